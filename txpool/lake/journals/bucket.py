"""The journals of a warehouse in a bucket, which are objects, as the tables' files are.

    <warehouse>/_txpool/identity, …/catalog         as in a folder
    <warehouse>/_txpool/staged/<gtrid>/begun        a transaction's journal is there
    <warehouse>/_txpool/staged/<gtrid>/<n>          objects that it makes, or takes over, and the ids of their uploads
    <warehouse>/_txpool/staged/<gtrid>/<write>.<partition>.<attempt>/<n>
                                                    the same of an attempt's

Each object is an upload in parts. The journal has its id before its first part is sent, and a sweep drops it: nobody
completes it any more. That is what a folder's locks are for. An object is removed only if it says that this entry of
the journal has made it. So an entry does no harm that arrives late, when its transaction has ended: whoever was not
answered makes the object by another.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from txpool import failpoints
from txpool.errors import ConfigurationError, OperationalError, described
from txpool.lake.journals.base import FOLDER, WarehouseJournals
from txpool.resources.s3 import check
from txpool.resources.s3.bucket import MARK, NOT_THERE, Listed, StoreError
from txpool.resources.s3.manager import MANAGER, OUTAGES
from txpool.resources.s3.manifest import journal as entries_of

if TYPE_CHECKING:
    from pyiceberg.io.pyarrow import PyArrowFileIO

    from txpool.config.settings import DataSourceSettings
    from txpool.findings.finding import Finding
    from txpool.lake.journals.base import MakesFiles

_FORMAT: Final = 1
_BEGUN: Final = "begun"
#: How often an upload is begun whose entry in the journal is not answered.
_TRIES: Final = 5


class LakeUpload(NamedTuple):
    """By what an object is made, and what it says of itself: which entry of which journal lists it."""

    path: str
    id: str
    mark: str


class BucketJournal:
    """An open journal: one of the transaction's, or of an attempt's."""

    def __init__(self, gtrid: str, attempt: str = "") -> None:
        self.gtrid = gtrid
        self.attempt = attempt
        self._count = 0

    def next_entry(self) -> str:
        """The name of its next entry."""
        self._count += 1
        return f"{self.attempt}/{self._count}" if self.attempt else str(self._count)


class BucketJournals(WarehouseJournals):
    """The journals of a warehouse in a bucket. Thread-safe. Errors: StoreError, too, which is an OperationalError."""

    def __init__(self, settings: DataSourceSettings, *, recovery: bool = False) -> None:
        self.name = settings.name
        self.root = (settings.warehouse or "").rstrip("/")
        self.bucket = MANAGER.bucket(settings, recovery=recovery, url=self.root, hidden=FOLDER)
        self._staged = f"{self.bucket.hidden}staged/"
        self._settings = settings

    def __reduce__(self) -> tuple[Any, ...]:
        return BucketJournals, (self._settings,)  # whose references another process resolves

    def identity(self) -> str:
        return self.bucket.identity()

    def binding(self, token: str) -> str:
        key = f"{self.bucket.hidden}catalog"
        self.bucket.put_new(key, token)
        return self.bucket.read(key)[0].decode("ascii", "replace")

    def findings(self) -> Iterator[Finding]:
        yield check.of_conditions(self.bucket)
        with suppress(StoreError):
            if check.aborted_after(self.bucket, check.lifecycle(self.bucket)) is None:
                yield check.not_aborted(self.bucket)
        yield from check.of_owners(self.bucket, 0, self._settings.prepared_owners)

    # -- files --------------------------------------------------------------------------------------------------

    def inside(self, location: str) -> str:
        name = location.removeprefix(f"{self.root}/")
        parts = name.split("/")
        # pyiceberg takes what is behind the other two for no part of a path.
        if name == location or {"", ".", ".."} & {*parts} or parts[0] == FOLDER or {"#", "?"} & {*name}:
            raise ConfigurationError(
                f"{self.name}: the warehouse is {self.root}, and {location} is not in it: tables have their files "
                "there. Not written"
            )
        return location

    def key(self, path: str) -> str:
        """The key of the object that has a path."""
        return f"{self.bucket.prefix}{path.removeprefix(f'{self.root}/')}"

    def io(self, work: MakesFiles) -> PyArrowFileIO:
        from txpool.lake.journals.objects import BucketFileIO

        return BucketFileIO(work, self)

    def size(self, path: str) -> int | None:
        found = self.bucket.head(self.key(path))
        return None if found is None else int(found["ContentLength"])

    def discard(self, path: str) -> None:
        self.bucket.delete(self.key(path))

    def sync(self, paths: Iterable[str]) -> None:
        """Nothing: the store has answered that it has them."""

    def _remove(self, path: str, upload: str, mark: str) -> None:
        """Remove what an upload has made, or would still make."""
        if failpoints.armed:
            failpoints.hit("lake.sweeping")
        key = self.key(path)
        self.bucket.abort(key, upload)
        found = self.bucket.head(key)
        if found is not None and found["Metadata"].get(MARK) == mark:
            self.bucket.delete(key)

    # -- journals -----------------------------------------------------------------------------------------------

    def shown(self, gtrid: str) -> str:
        return f"s3://{self.bucket.bucket}/{self.bucket.staged_key(gtrid)}"

    def exists(self, gtrid: str) -> bool:
        begun = self.bucket.staged_key(gtrid, _BEGUN)
        return any(each.key == begun and self.bucket.is_ours(each) for each in self.bucket.listed(begun))

    def gtrids(self) -> Iterator[str]:
        for each in self.bucket.listed(self._staged):
            if self.bucket.is_ours(each):
                yield each.key.removeprefix(self._staged).partition("/")[0]

    def open(self, gtrid: str) -> BucketJournal:
        # Of a second try it is not known whose the first was.
        if not self.bucket.put_new(self.bucket.staged_key(gtrid, _BEGUN), "", once=True):
            raise FileExistsError(self.shown(gtrid))
        return BucketJournal(gtrid)

    def close(self, journal: BucketJournal) -> None:
        """Nothing: no lock is held."""

    def list_new(self, journal: BucketJournal, path: str) -> LakeUpload:
        """Its upload. If an object is there already, it is not replaced: the upload cannot be completed."""
        for _ in range(_TRIES - 1):
            try:
                return self._begin(journal, path)
            except StoreError as error:
                if error.code not in OUTAGES:
                    raise
        return self._begin(journal, path)

    def _begin(self, journal: BucketJournal, path: str) -> LakeUpload:
        key, entry = self.key(path), journal.next_entry()
        mark = f"{journal.gtrid}/{entry}"
        upload = str(self.bucket.call("create_multipart_upload", Key=key, Metadata={MARK: mark})["UploadId"])
        try:
            if failpoints.armed:
                failpoints.hit("s3.created")
            self._add(journal, entry, {path: upload}, once=True)
        except BaseException:  # nobody else may ever know of it
            with suppress(Exception):
                self.bucket.abort(key, upload)
            raise
        return LakeUpload(path, upload, mark)

    def list_files(self, journal: BucketJournal, *paths: str) -> None:
        """Those of attempts, whose journals have their uploads."""
        self._add(journal, journal.next_entry(), dict.fromkeys(paths, ""))

    def _add(self, journal: BucketJournal, entry: str, uploads: Mapping[str, str], *, once: bool = False) -> None:
        files = {path.removeprefix(f"{self.root}/"): upload for path, upload in uploads.items()}
        content = json.dumps({"format": _FORMAT, "files": files})
        key = self.bucket.staged_key(journal.gtrid, entry)
        self.bucket.call("put_object", once=once, Key=key, Body=content.encode())

    @contextmanager
    def attempt(self, gtrid: str, numbers: str) -> Iterator[BucketJournal]:
        if not self.exists(gtrid):
            raise OperationalError(
                f"{self.name}: {self.shown(gtrid)} is not there for this task. Either {gtrid} has ended, or this "
                "executor is led to another object store"
            )
        yield BucketJournal(gtrid, numbers)

    def clear(self, gtrid: str, *, published: bool) -> None:
        attempts, own = self._entries(gtrid)
        kept = {path for each in own for path in self._read(each)} if published and attempts else set()
        for each in (*attempts, *(() if published else own)):
            for path, upload in self._read(each).items():
                if upload and path not in kept:
                    self._remove(path, upload, each.key.removeprefix(self._staged))
        self.bucket.delete_all([each.key for each in attempts])
        self._remove_journal(gtrid, own)

    def remove(self, gtrid: str) -> None:
        self._remove_journal(gtrid, self._entries(gtrid)[1])

    def _remove_journal(self, gtrid: str, own: list[Listed]) -> None:
        begun = self.bucket.staged_key(gtrid, _BEGUN)
        self.bucket.delete_all([each.key for each in own if each.key != begun])
        self.bucket.delete(begun)

    def _entries(self, gtrid: str) -> tuple[list[Listed], list[Listed]]:
        """The entries of a transaction's attempts, and its own, those that are ours."""
        prefix = self.bucket.staged_key(gtrid)
        found: tuple[list[Listed], list[Listed]] = [], []
        for each in entries_of(self.bucket, gtrid):
            found["/" not in each.key.removeprefix(prefix)].append(each)
        return found

    def _read(self, entry: Listed) -> dict[str, str]:
        """The files of an entry, and their uploads' ids; none if it is gone. OperationalError if it cannot be read."""
        if entry.key.endswith(f"/{_BEGUN}"):
            return {}
        try:
            content, _ = self.bucket.read(entry.key, IfMatch=entry.etag)
        except StoreError as error:
            if error.code in NOT_THERE:
                return {}
            raise
        try:
            found = json.loads(content)
            if found["format"] == _FORMAT:
                return {self.inside(f"{self.root}/{name}"): str(upload) for name, upload in found["files"].items()}
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise OperationalError(f"s3://{self.bucket.bucket}/{entry.key} is damaged: {described(error)}") from error
        raise OperationalError(f"s3://{self.bucket.bucket}/{entry.key} is a later txpool's")
