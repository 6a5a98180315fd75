"""The FileIO of tables in a bucket: each object is an upload in parts, which is in the journal before it begins."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pyiceberg.io.pyarrow import PyArrowFile, PyArrowFileIO

from txpool.errors import NotSupportedError, OperationalError
from txpool.lake.journals.files import JournaledFileIO
from txpool.locks import Lock
from txpool.resources.s3.bucket import MARK, TAKEN, StoreError
from txpool.resources.s3.manifest import Upload
from txpool.resources.s3.upload import ObjectFile

if TYPE_CHECKING:
    from pyarrow.fs import FileSystem
    from pyiceberg.io import OutputStream

    from txpool.lake.journals.base import MakesFiles
    from txpool.lake.journals.bucket import BucketJournals, LakeUpload

#: What a store answers to the second try of what its first has done, and if a sweep has dropped the upload.
_GONE = TAKEN | {"NoSuchUpload"}


class LakeObject(ObjectFile):
    """Bytes on their way into an object, which is there once this is closed."""

    def __init__(self, upload: LakeUpload, work: MakesFiles, journals: BucketJournals) -> None:
        super().__init__(_Parts(work, journals), Upload(0, upload.path, upload.id))
        self._made_by, self._journals = upload, journals

    def close(self) -> None:
        """Let the object appear. An error if it does not."""
        if self.closed:
            return
        super().close()
        made, bucket = self._made_by, self._journals.bucket
        key, parts = self._journals.key_of(made.path), self.upload(overwrite=False).parts
        try:
            bucket.complete(key, made.id, parts, IfNoneMatch="*")
        except StoreError as error:
            if error.code not in _GONE:
                raise
            found = bucket.head(key)  # an earlier try may have done it, whose answer was lost
            if found is None or found["Metadata"].get(MARK) != made.mark or found["ContentLength"] != self.tell():
                raise OperationalError(
                    f"{self._journals.name}: {made.path} was not written: its transaction has ended, or somebody's "
                    "object is there, which was left as it is"
                ) from error


class _Parts:
    """Sends parts, as long as whoever answers for the file still does."""

    def __init__(self, work: MakesFiles, journals: BucketJournals) -> None:
        self._work, self._journals = work, journals

    def require_active(self) -> None:
        with self._work.making():
            pass

    def is_open(self) -> bool:
        return True

    def send(self, upload: Upload, number: int, content: bytes) -> str:
        key = self._journals.key_of(upload.name)
        sent = self._journals.bucket.call("upload_part", Key=key, UploadId=upload.id, PartNumber=number, Body=content)
        return str(sent["ETag"])


class LakeObjectFile(PyArrowFile):
    """An object that is about to be made."""

    def __init__(self, location: str, files: FileSystem, work: MakesFiles, journals: BucketJournals) -> None:
        super().__init__(location, location.removeprefix("s3://"), files)
        self._work, self._journals = work, journals
        self._made: LakeObject | None = None

    def create(self, overwrite: bool = False) -> OutputStream:
        self._made = LakeObject(self._work.file(self.location), self._work, self._journals)
        return self._made

    def __len__(self) -> int:
        return super().__len__() if self._made is None else self._made.tell()


class BucketFileIO(JournaledFileIO):
    """Objects, of one transaction. Any thread may write."""

    def __init__(self, work: MakesFiles, journals: BucketJournals) -> None:
        super().__init__(work)
        self._journals = journals
        self.fs_by_scheme = BucketReader(journals).fs_by_scheme

    def new_output(self, location: str) -> PyArrowFile:
        path = self._journals.inside(location)
        return LakeObjectFile(path, self.fs_by_scheme("s3", None), self._work, self._journals)


class BucketReader(PyArrowFileIO):
    """Objects, which Arrow's own client reads. Any thread may read."""

    def __init__(self, journals: BucketJournals) -> None:
        super().__init__({})
        self._journals = journals
        self._lock = Lock()
        self._access: dict[str, Any] = {}
        self._files: FileSystem | None = None
        self.fs_by_scheme = self._reading

    def _reading(self, scheme: str, place: str | None) -> FileSystem:
        """Arrow's client, with the credentials of now."""
        from pyarrow.fs import S3FileSystem

        if scheme != "s3":
            raise NotSupportedError(f"{self._journals.name}: {scheme}: is not read: its tables are in s3: alone")
        with self._lock:
            access = self._journals.bucket.access()
            if self._files is None or access != self._access:
                self._access, self._files = access, S3FileSystem(**access)
            return self._files
