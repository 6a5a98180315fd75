"""The FileIO of a lake's tables: each file is in the journal before it is made."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pyiceberg.io import InputFile, OutputFile
from pyiceberg.io.pyarrow import PyArrowFile, PyArrowFileIO

if TYPE_CHECKING:
    from txpool.lake.work import LakeWork


class JournaledFileIO(PyArrowFileIO):
    """Local files, of one transaction. Any thread may write."""

    def __init__(self, work: LakeWork) -> None:
        super().__init__({})
        self._work = work

    def new_output(self, location: str) -> PyArrowFile:
        self._work.file(location)
        return super().new_output(location)

    def delete(self, location: str | InputFile | OutputFile) -> None:
        self._work.discard(location if isinstance(location, str) else location.location)

    def __getstate__(self) -> dict[str, Any]:
        raise TypeError("the files of a transaction's tables cannot be pickled: other processes read after the commit")
