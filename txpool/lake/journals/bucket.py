"""The journals of a warehouse in a bucket, which are objects, as the tables' files are.

    <warehouse>/_txpool/identity, …/catalog, …/key  as in a folder
    <warehouse>/_txpool/staged/<gtrid>/begun        a transaction's journal is there
    <warehouse>/_txpool/staged/<gtrid>/<n>          objects that it makes, or takes over, and the ids of their uploads
    <warehouse>/_txpool/staged/<gtrid>/note-<n>     what a branch in a REST catalog is about to do
    <warehouse>/_txpool/staged/<gtrid>/swept        a sweep has begun
    <warehouse>/_txpool/staged/<gtrid>/<write>.<partition>.<attempt>/<n>
                                                    the same of an attempt's

Each object is an upload in parts. The journal has its id before its first part is sent, and a sweep drops it: nobody
completes it any more. That is what a folder's locks are for. An object is removed only if it says that this entry of
the journal has made it. So an entry does no harm that arrives late, when its transaction has ended: whoever was not
answered makes the object by another.

Who ends a branch in a REST catalog lists the entries of files before it reads the notes, and removes them before it
removes the notes. So no entry is taken for one without notes that has some.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Iterable, Iterator, Mapping, Set
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from txpool import failpoints
from txpool.errors import ConfigurationError, OperationalError, described
from txpool.lake.journals.base import FOLDER, WarehouseJournals
from txpool.resources.iceberg.manager import store_options
from txpool.resources.s3 import check
from txpool.resources.s3.bucket import MARK, NOT_THERE, Listed, StoreError
from txpool.resources.s3.manager import MANAGER, OUTAGES
from txpool.resources.s3.manifest import SWEPT
from txpool.resources.s3.manifest import journal as entries_of

if TYPE_CHECKING:
    from pyiceberg.io.pyarrow import PyArrowFileIO

    from txpool.config.settings import DataSourceSettings
    from txpool.findings.finding import Finding
    from txpool.lake.journals.base import MakesFiles

_FORMAT: Final = 1
_BEGUN: Final = "begun"
_NOTE: Final = "note-"
#: How often an upload is begun whose entry in the journal is not answered.
_TRIES: Final = 5


class LakeUpload(NamedTuple):
    """By what an object is made, and what it says of itself: which entry of which journal lists it."""

    path: str
    id: str
    mark: str


class Entries(NamedTuple):
    """What a transaction's journal has: the entries of its attempts, its own, and its notes."""

    attempts: list[Listed]
    own: list[Listed]
    notes: list[Listed]


class BucketJournal:
    """An open journal: one of the transaction's, or of an attempt's."""

    def __init__(self, gtrid: str, prefix: str = "", entries: Entries | None = None) -> None:
        self.gtrid = gtrid
        #: What it listed when it was opened again.
        self.entries = entries
        self._prefix = prefix
        self._count = 0

    def next_entry(self) -> str:
        """The name of its next entry."""
        self._count += 1
        return f"{self._prefix}{self._count}"


class BucketJournals(WarehouseJournals):
    """The journals of a warehouse in a bucket. Thread-safe. Errors: StoreError, too, which is an OperationalError."""

    def __init__(self, settings: DataSourceSettings, *, recovery: bool = False) -> None:
        self.name = settings.name
        self.root = (settings.warehouse or "").rstrip("/")
        options = store_options(settings, recovery=recovery)
        self.bucket = MANAGER.bucket(settings, url=self.root, hidden=FOLDER, options=options)
        self._staged = f"{self.bucket.hidden}staged/"
        self._settings = settings
        self._key = self._bound = ""

    def __reduce__(self) -> tuple[Any, ...]:
        return BucketJournals, (self._settings,)  # whose references another process resolves

    def identity(self) -> str:
        return self.bucket.identity()

    def generation(self) -> str:
        return self.bucket.generation()

    def key(self) -> str:
        if not self._key:
            where = f"{self.bucket.hidden}key"
            self.bucket.put_new(where, secrets.token_hex(16))
            content, answer = self.bucket.read(where)
            shown = next((each for each in self.bucket.listed(where) if each.key == where), None)
            if shown is None or shown.etag != answer["ETag"] or not self.bucket.is_ours(shown):
                raise OperationalError(
                    f"{self.name}: s3://{self.bucket.bucket}/{where} is not proven to be the bucket's owner's, and it "
                    "shows which references are ours. Nothing was done; with nothing prepared there, remove it"
                )
            self._key = content.decode("ascii", "replace")
        return self._key

    def binding(self, token: str) -> str:
        if self._bound != token:
            key = f"{self.bucket.hidden}catalog"
            self.bucket.put_new(key, token)
            self._bound = self.bucket.read(key)[0].decode("ascii", "replace")
        return self._bound

    def findings(self) -> Iterator[Finding]:
        yield check.of_conditions(self.bucket)
        yield from check.of_lifecycle(self.bucket, tables=True)
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

    def key_of(self, path: str) -> str:
        """The key of the object that has a path."""
        return f"{self.bucket.prefix}{path.removeprefix(f'{self.root}/')}"

    def located(self, location: str) -> str:
        """As S3's other names are, too."""
        scheme, _, rest = location.partition("://")
        return f"s3://{rest}" if scheme in ("s3a", "s3n") else location

    def reader(self) -> PyArrowFileIO:
        from txpool.lake.journals.objects import BucketReader

        return BucketReader(self)

    def io(self, work: MakesFiles) -> PyArrowFileIO:
        from txpool.lake.journals.objects import BucketFileIO

        return BucketFileIO(work, self)

    def make_once(self, path: str, content: bytes) -> None:
        self.bucket.put_new(self.key_of(path), content)

    def size(self, path: str) -> int | None:
        found = self.bucket.head(self.key_of(path))
        return None if found is None else int(found["ContentLength"])

    def discard(self, path: str) -> None:
        self.bucket.delete(self.key_of(path))

    def sync(self, paths: Iterable[str]) -> None:
        """Nothing: the store has answered that it has them."""

    def _remove(self, path: str, upload: str, mark: str) -> None:
        """Remove what an upload has made, or would still make."""
        if failpoints.armed:
            failpoints.hit("lake.sweeping")
        key = self.key_of(path)
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

    def reopen(self, gtrid: str) -> BucketJournal:
        """Its entries have names of their own."""
        if not self.exists(gtrid):
            raise FileNotFoundError(self.shown(gtrid))
        return BucketJournal(gtrid, _prefix())

    def hold(self, journal: BucketJournal, gtrid: str) -> None:
        """Nothing: there are no locks."""

    def is_removed(self, journal: BucketJournal) -> bool:
        # In this order: a sweep removes what says that it has begun after the other.
        swept = self.bucket.staged_key(journal.gtrid, SWEPT)
        return self.bucket.head(swept) is not None or not self.exists(journal.gtrid)

    @contextmanager
    def held_alone(self, gtrid: str, *, sweeping: bool = False) -> Iterator[BucketJournal | None]:
        """Nobody is kept from it. What a sweep finds noted after it has begun is all that there is."""
        if not any(True for _ in self.bucket.listed(self.bucket.staged_key(gtrid))):
            yield None
            return
        if sweeping:  # whoever's is there
            self.bucket.call("put_object", Key=self.bucket.staged_key(gtrid, SWEPT), Body=b"")
        yield BucketJournal(gtrid, _prefix(), self._entries(gtrid))

    def note(self, journal: BucketJournal, fact: Mapping[str, Any]) -> None:
        self._put(journal.gtrid, f"{_NOTE}{journal.next_entry()}", {"note": fact})

    def notes(self, gtrid: str) -> list[dict[str, Any]]:
        """In the order in which each open journal has written them."""
        found = [(each, self._content(each).get("note")) for each in self._entries(gtrid).notes]
        found.sort(key=lambda each: (each[0].key.rpartition("-")[0], int(each[0].key.rpartition("-")[2])))
        return [note for _, note in found if isinstance(note, dict)]

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
        key, entry = self.key_of(path), journal.next_entry()
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
        self._put(journal.gtrid, entry, {"files": files}, once=once)

    def _put(self, gtrid: str, entry: str, found: Mapping[str, Any], *, once: bool = False) -> None:
        content = json.dumps({"format": _FORMAT, **found})
        self.bucket.call("put_object", once=once, Key=self.bucket.staged_key(gtrid, entry), Body=content.encode())

    @contextmanager
    def attempt(self, gtrid: str, numbers: str) -> Iterator[BucketJournal]:
        if not self.exists(gtrid):
            raise OperationalError(
                f"{self.name}: {self.shown(gtrid)} is not there for this task. Either {gtrid} has ended, or this "
                "executor is led to another object store"
            )
        yield BucketJournal(gtrid, f"{numbers}/")

    def clear(self, gtrid: str) -> None:
        entries = self._entries(gtrid)
        kept = {path for each in entries.own for path in self._files(each)} if entries.attempts else set()
        self._clear(entries.attempts, kept)
        self._remove_journal(gtrid, entries)

    def clear_but(self, gtrid: str, kept: Set[str], held: BucketJournal | None = None) -> None:
        entries = held.entries if held is not None and held.entries is not None else self._entries(gtrid)
        self._clear((*entries.attempts, *entries.own), kept)
        self._remove_journal(gtrid, entries)

    def _clear(self, entries: Iterable[Listed], kept: Set[str]) -> None:
        for each in entries:
            for path, upload in self._files(each).items():
                if upload and path not in kept:
                    self._remove(path, upload, each.key.removeprefix(self._staged))

    def remove(self, gtrid: str) -> None:
        entries = self._entries(gtrid)
        self._remove_journal(gtrid, entries._replace(attempts=[]))

    def _remove_journal(self, gtrid: str, entries: Entries) -> None:
        begun, swept = (self.bucket.staged_key(gtrid, each) for each in (_BEGUN, SWEPT))
        own = [each.key for each in entries.own]
        self.bucket.delete_all([each.key for each in entries.attempts])
        self.bucket.delete_all([each for each in own if each not in (begun, swept)])
        self.bucket.delete_all([each.key for each in entries.notes])
        self.bucket.delete(begun)
        self.bucket.delete_all([each for each in own if each == swept])

    def _entries(self, gtrid: str) -> Entries:
        """Those that are ours."""
        prefix = self.bucket.staged_key(gtrid)
        found = Entries([], [], [])
        for each in entries_of(self.bucket, gtrid):
            name = each.key.removeprefix(prefix)
            (found.attempts if "/" in name else found.notes if name.startswith(_NOTE) else found.own).append(each)
        return found

    def _files(self, entry: Listed) -> dict[str, str]:
        """The files of an entry, and their uploads' ids; none if it is gone. OperationalError if it cannot be read."""
        if entry.key.endswith((f"/{_BEGUN}", f"/{SWEPT}")):
            return {}
        found = self._content(entry).get("files", {})
        try:
            return {self.inside(f"{self.root}/{name}"): str(upload) for name, upload in found.items()}
        except AttributeError as error:
            raise self._damaged(entry, error) from error

    def _content(self, entry: Listed) -> dict[str, Any]:
        """What an entry has; nothing if it is gone. OperationalError if it cannot be read."""
        try:
            content, _ = self.bucket.read(entry.key, IfMatch=entry.etag)
        except StoreError as error:
            if error.code in NOT_THERE:
                return {}
            raise
        try:
            found = json.loads(content)
            if found["format"] == _FORMAT:
                return dict(found)
        except (KeyError, TypeError, ValueError) as error:
            raise self._damaged(entry, error) from error
        raise OperationalError(f"s3://{self.bucket.bucket}/{entry.key} is a later txpool's")

    def _damaged(self, entry: Listed, error: Exception) -> OperationalError:
        return OperationalError(f"s3://{self.bucket.bucket}/{entry.key} is damaged: {described(error)}")


def _prefix() -> str:
    """Of the names of entries that nobody else gives."""
    return f"{secrets.token_hex(8)}-"
