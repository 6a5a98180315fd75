"""The FileIO of a lake's tables: each file is in the journal before it is made."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from pyiceberg.io import InputFile, OutputFile
from pyiceberg.io.pyarrow import PyArrowFile, PyArrowFileIO

from txpool.errors import OperationalError
from txpool.lake.journals.base import MakesFiles, WarehouseJournals
from txpool.locks import Lock

if TYPE_CHECKING:
    from pyarrow.fs import FileSystem
    from pyiceberg.io import OutputStream


class AttemptFiles:
    """The files that are made under a journal which somebody holds: a Spark task's attempt, or a branch at its end.

    pyiceberg's threads may outlive an attempt that fails. They make nothing after `close()`, when the journal is not
    locked any more, and its descriptor may be another file's.
    """

    def __init__(self, journals: WarehouseJournals, journal: Any) -> None:
        self._journals = journals
        self._journal = journal
        self._lock = Lock()
        self._closed = False
        #: Their paths.
        self.made: set[str] = set()

    def close(self) -> None:
        """The attempt has ended, whose journal is still open."""
        with self._lock:
            self._closed = True

    def file(self, location: str) -> Any:
        path = self._journals.inside(location)
        with self.making():
            made = self._journals.list_new(self._journal, path)
            self.made.add(path)
        return made

    @contextmanager
    def making(self) -> Iterator[None]:
        with self._lock:
            if self._closed:
                raise OperationalError(f"{self._journals.name}: this attempt of a task has ended, and makes no files")
            yield

    def discard(self, location: str) -> None:
        path = self._journals.inside(location)
        with self._lock:
            self.made.remove(path)
            self._journals.discard(path)


class JournaledFile(PyArrowFile):
    """A file that comes to be only while whoever answers for it still does."""

    def __init__(self, location: str, path: str, files: FileSystem, work: MakesFiles) -> None:
        super().__init__(location, path, files)
        self._work = work

    def create(self, overwrite: bool = False) -> OutputStream:
        with self._work.making():
            return super().create(overwrite)


class JournaledFileIO(PyArrowFileIO):
    """Local files, of one transaction. Any thread may write."""

    def __init__(self, work: MakesFiles) -> None:
        super().__init__({})
        self._work = work

    def new_output(self, location: str) -> PyArrowFile:
        path = self._work.file(location)  # a `#` in a location would end the path that pyiceberg finds in it
        return JournaledFile(location, path, self.fs_by_scheme("file", None), self._work)

    def delete(self, location: str | InputFile | OutputFile) -> None:
        self._work.discard(location if isinstance(location, str) else location.location)

    def __getstate__(self) -> dict[str, Any]:
        raise TypeError("the files of a transaction's tables cannot be pickled: other processes read after the commit")
