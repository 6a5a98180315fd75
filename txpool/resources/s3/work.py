"""The objects of one transaction: each is an upload in parts, which the commit completes."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from shutil import copyfileobj
from typing import IO, Any, Final

from txpool import failpoints
from txpool.errors import (
    ConfigurationError,
    NotSupportedError,
    OperationalError,
    ProgrammingError,
    TransactionRolledBack,
)
from txpool.locks import Lock
from txpool.resources.base import Refused
from txpool.resources.files.place import Place, is_name, named
from txpool.resources.files.work import SUCCESS, StagedFolder, gtrid_of, new_staging, overlap
from txpool.resources.own.resource import Work
from txpool.resources.s3.bucket import MARK, Bucket
from txpool.resources.s3.local import local_folder, written_in
from txpool.resources.s3.manifest import (
    SWEPT,
    Upload,
    UploadManifest,
    journal,
    manifests,
    prepared_gtrids,
    read_entry,
    read_manifest,
    write_entry,
)
from txpool.resources.s3.upload import ObjectFile, opened_object

#: How many bytes a key may have.
_LONGEST: Final = 1024
#: How many files are sent at the same time, and how much of each is read at once.
_UPLOADS: Final = 8
_CHUNK: Final = 1024 * 1024
#: What lets Spark write to a bucket.
STAGING: Final = "staging = /mnt/shared, which every executor has under that path"
_MODES: Final = {"w", "x", "wt", "xt", "wb", "xb"}


class StagedObjects(StagedFolder):
    """Objects that appear below a name when the transaction commits, one by one, and `_SUCCESS` last."""

    def __init__(self, work: ObjectsWork, name: str, *, overwrite: bool) -> None:
        self.name = name
        self.overwrite = overwrite
        self.files: dict[str, ObjectFile] = {}
        self._objects = work

    def __repr__(self) -> str:
        return f"<StagedObjects {self.name} in {self._objects.bucket.shown}>"

    @property
    def path(self) -> Path:
        raise NotSupportedError(
            f"{self.name} is in an object store, where nothing has a path. Give what open() returns to whatever writes "
            "files: most libraries take that"
        )

    @contextmanager
    def filling(self) -> Iterator[Path]:
        """A folder of the datasource's `staging`: at the end of the block its files become objects, and it goes."""
        place = self._objects.place
        if place is None:
            raise ConfigurationError(
                f"datasource {self._objects.bucket.name} names no folder for that: write {STAGING}"
            )
        with local_folder(place, self._objects.gtrid) as folder:
            yield folder
            files = written_in(folder)
            pool = ThreadPoolExecutor(_UPLOADS)
            try:
                for each in [pool.submit(self._upload, folder / file, file) for file in files]:
                    each.result()
            finally:
                pool.shutdown(cancel_futures=True)

    def _upload(self, path: Path, file: str) -> None:
        with path.open("rb") as source, self.open(file, "wb") as written:
            copyfileobj(source, written, _CHUNK)
        if failpoints.armed:
            failpoints.hit("s3.copied")

    def open(self, file: str | os.PathLike[str], mode: str = "w", **options: Any) -> IO[Any]:
        """Open a new object in it, for writing, as the built-in open() does. Close it before the commit."""
        self._objects.require_active()
        name: str = named(file)
        if not is_name(name) or name == SUCCESS:
            raise ProgrammingError(f"{name!r} is no name of an object in {self.name}. Nothing was written")
        if mode not in _MODES:
            raise ProgrammingError(f"{self.name}/{name}: mode {mode!r} is not offered: objects are written whole, by w")
        if "b" in mode and options:
            raise ProgrammingError(f"{self.name}/{name}: {', '.join(options)} has no use for bytes. Leave it out")
        if name not in self.files:
            found = self._objects.begin_upload(f"{self.name}/{name}")
            opened = opened_object(found, mode, **options)
            if self.files.setdefault(name, found) is found:  # or another thread has opened it meanwhile
                return opened
        raise ProgrammingError(f"{self.name}/{name} was written already, and an object is written once")


class ObjectsWork(Work):
    """The objects of one transaction in one bucket."""

    def __init__(self, bucket: Bucket, gtrid: str, place: Place | None = None) -> None:
        self.bucket = bucket
        #: Where Spark's writer writes.
        self.place = place
        self.gtrid = gtrid
        self.staging = new_staging(gtrid)
        self.folders: list[StagedObjects] = []
        self.manifest: UploadManifest | None = None
        self._count = 0
        self._done = False
        self._process = os.getpid()
        self._lock = Lock()

    @property
    def idle(self) -> bool:
        return not self.folders

    def is_open(self) -> bool:
        """Whether anything may still be sent."""
        if self._done:
            return False
        with suppress(Exception):
            self.require_active()
            return True
        return False

    def folder(self, name: str, *, overwrite: bool) -> StagedObjects:
        """New objects, which are published below this name."""
        self.require_active()
        if not is_name(name):
            raise ProgrammingError(
                f"{self.bucket.name}: {name!r} is no name below it: write orders/2026-11-27, or the like. Nothing was "
                "done"
            )
        found = StagedObjects(self, name, overwrite=overwrite)
        taken_by = "" if overwrite else self._taken(found)
        if taken_by:
            raise ProgrammingError(f"{self.bucket.name}: {taken_by}. The transaction is as it was")
        with self._lock:
            taken = [each.name for each in self.folders if overlap(each.name, name)]
            if not taken:
                self.folders.append(found)
                return found
        raise ProgrammingError(
            f"{self.bucket.name}: {self.gtrid} writes {taken[0]} already, and {name} is that, or above or below it: "
            "write both into one. The transaction is as it was"
        )

    def begin_upload(self, name: str) -> ObjectFile:
        """A new object, to be written."""
        return ObjectFile(self, self._begin(name))

    def _begin(self, name: str) -> Upload:
        """A new upload. Its id is in the journal before its first part is sent."""
        if self._process != os.getpid():  # the parent, which commits, would know nothing of it
            raise ProgrammingError(
                f"{name} was not written: call open() in the process that has begun the transaction, and in no child "
                "that was forked from it"
            )
        key = f"{self.bucket.prefix}{name}"
        if len(key.encode()) > _LONGEST:
            raise ProgrammingError(f"{name} is too long: a key has {_LONGEST} bytes at most. Nothing was written")
        with self._lock:
            number, self._count = self._count, self._count + 1
        metadata = {MARK: f"{self.staging}/{number}"}
        created = self.bucket.call("create_multipart_upload", Key=key, Metadata=metadata)
        upload = Upload(number, name, created["UploadId"])
        try:
            if failpoints.armed:
                failpoints.hit("s3.created")
            write_entry(self.bucket, self.staging, upload)
        except BaseException:  # nobody else may ever know of it
            with suppress(Exception):
                self.bucket.abort(key, upload.id)
            raise
        if failpoints.armed:
            failpoints.hit("s3.staged")
        return upload

    def send(self, upload: Upload, number: int, content: bytes) -> str:
        """Send one part; what the store calls it."""
        sent = self.bucket.call(
            "upload_part",
            Key=f"{self.bucket.prefix}{upload.name}",
            UploadId=upload.id,
            PartNumber=number,
            Body=content,
        )
        return str(sent["ETag"])

    def prepare(self, xid: str) -> None:
        self._done = True
        files = [(file, each.overwrite) for each in self.folders for file in each.files.values()]
        torn = [file.name for file, _ in files if not file.whole]
        if torn:
            raise Refused(f"{torn[0]} is not closed, or a write to it has failed: close it before the commit")
        uploads = [file.upload(overwrite=overwrite) for file, overwrite in files]
        for each in self.folders:
            last = self._begin(f"{each.name}/{SUCCESS}")
            uploads.append(last._replace(parts=(self.send(last, 1, xid.encode()),), overwrite=each.overwrite))
        self.manifest = UploadManifest(xid, self.staging, tuple(uploads))
        if failpoints.armed:
            failpoints.hit("s3.uploaded")
        if not self.bucket.put_new(self.bucket.manifest_key(xid), self.manifest.encode(), once=True):
            self.manifest = None
            raise Refused(f"a manifest {xid} is there already")
        # From here on a vote is no `Refused`: it is rolled back by its name. Whoever looks before they write misses
        # another: one that is still prepared, or has ended meanwhile, and whose objects are there.
        self._require_there(uploads)
        for other, ours in manifests(self.bucket):
            if ours and other != xid:
                self._require_apart(other)
        for each in self.folders:
            taken = self._taken(each)
            if taken:
                raise TransactionRolledBack(
                    f"{self.bucket.name} voted to roll back {self.gtrid}: {taken}",
                    gtrid=self.gtrid,
                    datasource=self.bucket.name,
                )

    def _require_there(self, uploads: list[Upload]) -> None:
        """Nobody has swept, or aborted, what the manifest names."""
        prefix = self.bucket.staged_key(self.staging)
        found = {each.key.removeprefix(prefix) for each in journal(self.bucket, self.staging)}
        if SWEPT in found or not found.issuperset(str(each.number) for each in uploads):
            raise OperationalError(f"what {self.gtrid} has staged was swept: recovery has taken its process for dead")
        for each in uploads:
            if not self.bucket.has_upload(f"{self.bucket.prefix}{each.name}", each.id):
                raise OperationalError(f"the upload of {each.name} is gone: somebody, or a lifecycle rule, ended it")

    def _require_apart(self, other: str) -> None:
        manifest = read_manifest(self.bucket, other)
        for upload in () if manifest is None else manifest.uploads:
            for each in self.folders:
                if overlap(upload.name, each.name):
                    raise OperationalError(
                        f"another transaction, {other}, is prepared to publish {upload.name}, and {each.name} is that, "
                        "or above or below it. Try again once that has ended: `txpool-recovery list` shows it"
                    )

    def _taken(self, folder: StagedObjects) -> str:
        """By which objects, that would stay, if any: a commit removes none, and cannot say no any more."""
        prefix = f"{self.bucket.prefix}{folder.name}/"
        ours = {*folder.files, SUCCESS} if folder.overwrite else set()
        for each in self.bucket.listed(prefix):
            if each.key.removeprefix(prefix) in ours:
                continue
            if folder.overwrite:
                return (
                    f"{each.key} is there, and this transaction does not write it: beside the new objects it would "
                    "stay. Write the same names, another folder, or remove it before"
                )
            return f"{each.key} is there already: choose another name than {folder.name}, or overwrite=True"
        return ""

    def rollback(self) -> None:
        """Drop what is staged, unless a manifest names it."""
        self._done = True
        if self._count:
            (clear if self.manifest is None else sweep)(self.bucket, self.staging)


def sweep(bucket: Bucket, staging: str) -> None:
    """Drop what was staged under this name and is not prepared. OperationalError if a manifest names it."""
    # First, and whoever's is there: whoever would still prepare it sees that.
    bucket.call("put_object", Key=bucket.staged_key(staging, SWEPT), Body=b"")
    if gtrid_of(staging) in prepared_gtrids(bucket):
        raise OperationalError(f"{staging} is prepared, and is not removed")
    if failpoints.armed:
        failpoints.hit("s3.sweeping")
    clear(bucket, staging)


def clear(bucket: Bucket, staging: str, completed: Collection[int] = ()) -> None:
    """Drop every upload of a journal that is not completed, and the journal. OperationalError if it cannot be read."""
    prefix = bucket.staged_key(staging)
    entries = journal(bucket, staging)
    for each in entries:
        name = each.key.removeprefix(prefix)
        if name == SWEPT or (name.isdecimal() and int(name) in completed):
            continue
        upload = read_entry(bucket, each)
        if upload is not None:
            bucket.abort(f"{bucket.prefix}{upload.name}", upload.id)
    bucket.delete_all([each.key for each in entries if each.key != f"{prefix}{SWEPT}"])
    bucket.delete_all([each.key for each in entries if each.key == f"{prefix}{SWEPT}"])
