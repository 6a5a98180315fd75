"""The FileIO of a lake's tables: each file is in the journal before it is made."""

from __future__ import annotations

import os
from contextlib import suppress
from typing import Any, Protocol

from pyiceberg.io import InputFile, OutputFile
from pyiceberg.io.pyarrow import PyArrowFile, PyArrowFileIO

from txpool.lake.journals import Journals
from txpool.locks import Lock


class MakesFiles(Protocol):
    """Who answers for the files that are made. Any thread may call it."""

    def file(self, location: str) -> None:
        """List a file that is about to be made."""

    def discard(self, location: str) -> None:
        """Remove a file that was made, and is not needed."""


class AttemptFiles:
    """The files of one attempt of a Spark task, which the driver publishes or a sweep removes."""

    def __init__(self, journals: Journals, journal: int) -> None:
        self._journals = journals
        self._journal = journal
        self._lock = Lock()
        #: Their paths.
        self.made: set[str] = set()

    def file(self, location: str) -> None:
        path = self._journals.inside(location)
        with self._lock:
            self._journals.list_new(self._journal, path)
            self.made.add(path)

    def discard(self, location: str) -> None:
        path = self._journals.inside(location)
        with self._lock:
            self.made.remove(path)
            with suppress(FileNotFoundError):
                os.unlink(path)


class JournaledFileIO(PyArrowFileIO):
    """Local files, of one transaction. Any thread may write."""

    def __init__(self, work: MakesFiles) -> None:
        super().__init__({})
        self._work = work

    def new_output(self, location: str) -> PyArrowFile:
        self._work.file(location)
        return super().new_output(location)

    def delete(self, location: str | InputFile | OutputFile) -> None:
        self._work.discard(location if isinstance(location, str) else location.location)

    def __getstate__(self) -> dict[str, Any]:
        raise TypeError("the files of a transaction's tables cannot be pickled: other processes read after the commit")
