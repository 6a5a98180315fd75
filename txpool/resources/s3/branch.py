"""The branch of a transaction in a bucket, and recovery's access to it."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

from txpool import failpoints
from txpool.errors import OperationalError, described
from txpool.resources.base import BranchOutcome, BranchRecord
from txpool.resources.files.branch import StagedInPlace, StagedWork
from txpool.resources.files.place import Place
from txpool.resources.files.work import SUCCESS, gtrid_of
from txpool.resources.own.branch import ResourceBranch, ResourceRecovery, leads_elsewhere
from txpool.resources.own.resource import Resource
from txpool.resources.recovery_access import PreparedBranch, StagingTable
from txpool.resources.s3.bucket import TAKEN, Bucket, StoreError
from txpool.resources.s3.manifest import (
    COMMIT,
    ROLLBACK,
    SWEPT,
    Upload,
    UploadManifest,
    digest,
    end_manifest,
    journal,
    manifests,
    prepared_gtrids,
    read_manifest,
)
from txpool.resources.s3.work import ObjectsWork, clear, sweep
from txpool.xid import parse

logger = logging.getLogger("txpool")

_GENERATION = "generation"
_MANIFEST = "manifest"
#: The last object, and what it says of itself.
_OBJECT = "object"
_MARK = "mark"
#: What the store answers if an upload cannot be completed any more: somebody has dropped it, or changed its parts.
_GONE = {"NoSuchUpload", "InvalidPart", "InvalidPartOrder", "EntityTooSmall"}


class BucketResource(Resource):
    """A bucket, as the protocol of branches needs it."""

    def __init__(self, bucket: Bucket, file: str) -> None:
        super().__init__(bucket.name)
        self.bucket = bucket
        self.file = file

    def identity(self) -> str:
        return self.bucket.identity()

    def generation(self) -> str:
        return self.bucket.generation()

    def begin(self) -> ObjectsWork:
        raise NotImplementedError("its work begins with a gtrid")

    def prepared(self) -> list[str]:
        return [xid for xid, _ in manifests(self.bucket)]

    def commit(self, xid: str) -> bool:
        return publish(self.bucket, xid) is BranchOutcome.COMMITTED

    def rollback(self, xid: str) -> bool:
        return withdraw(self.bucket, xid) is BranchOutcome.ROLLED_BACK


def publish(bucket: Bucket, xid: str, expected: str = "") -> BranchOutcome | None:
    """Complete the uploads of this branch. LOST if one is neither there nor completed; None: no manifest."""
    manifest = end_manifest(bucket, xid, expected, commit=True)
    if manifest is None:
        return None
    if manifest.ending == ROLLBACK:  # before anything was published, and nothing ever will be
        _drop(bucket, manifest)
        return BranchOutcome.ROLLED_BACK
    lost: list[Upload] = []
    for upload in manifest.uploads:
        # Not all is there, so that no mark may say so: neither to readers, nor to a recovery that finds no manifest.
        if (lost and upload.name.endswith(f"/{SUCCESS}")) or not _complete(bucket, manifest, upload):
            lost.append(upload)
        elif failpoints.armed:
            failpoints.hit("s3.completed")
    if lost and read_manifest(bucket, xid, expected) is None:
        return None  # another has ended it meanwhile, and what it has published may have been overwritten since
    if not lost:  # else it shows that nobody has published it, until recovery has heard of that, and sweeps it
        clear(bucket, manifest.staging, {each.number for each in manifest.uploads})
    if failpoints.armed:
        failpoints.hit("s3.published")
    bucket.delete(bucket.manifest_key(xid))
    if not lost:
        return BranchOutcome.COMMITTED
    names = ", ".join(each.name for each in lost)
    logger.error("%s: %s is decided, and its uploads were dropped by somebody: %s", bucket.name, xid, names)
    return BranchOutcome.LOST


def _complete(bucket: Bucket, manifest: UploadManifest, upload: Upload) -> bool:
    """Let one object appear. False if its upload is gone, and no object says that it came of it."""
    key = f"{bucket.prefix}{upload.name}"
    condition: dict[str, Any] = {} if upload.overwrite else {"IfNoneMatch": "*"}
    try:
        bucket.complete(key, upload.id, upload.parts, **condition)
    except StoreError as error:
        if error.code not in _GONE | TAKEN:
            raise
        if not bucket.has_upload(key, upload.id):  # while it is there, no object has come of it, whatever one says
            return bucket.shows(key, manifest.mark(upload))
        if error.code in TAKEN:
            raise OperationalError(
                f"s3://{bucket.bucket}/{key} was made by somebody since {manifest.xid} was prepared, and is left as it "
                "is: move it away, and recovery publishes what is decided"
            ) from error
        return False
    return True


def withdraw(bucket: Bucket, xid: str, expected: str = "") -> BranchOutcome | None:
    """Roll back what is prepared under this name; None: no manifest. OperationalError if its publication has begun."""
    manifest = end_manifest(bucket, xid, expected, commit=False)
    if manifest is None:
        return None
    if manifest.ending == COMMIT:
        raise OperationalError(f"the publication of {xid} has begun: it can only be committed")
    _drop(bucket, manifest)
    return BranchOutcome.ROLLED_BACK


def _drop(bucket: Bucket, manifest: UploadManifest) -> None:
    """Finish a rollback that has begun: nothing of it is published, nor will be."""
    for upload in manifest.uploads:
        bucket.abort(f"{bucket.prefix}{upload.name}", upload.id)
    clear(bucket, manifest.staging, {each.number for each in manifest.uploads})
    bucket.delete(bucket.manifest_key(manifest.xid))


def end_in_bucket(resource: BucketResource, record: BranchRecord, *, commit: bool) -> tuple[BranchOutcome, str]:
    """End a prepared branch: its outcome, and the reason if that is UNKNOWN. Raises no Exception."""
    bucket, evidence = resource.bucket, record.evidence
    try:
        elsewhere = leads_elsewhere(resource, record)
        if elsewhere:
            return BranchOutcome.UNKNOWN, elsewhere
        ended = (publish if commit else withdraw)(bucket, record.xid.joined, evidence.get(_MANIFEST, ""))
        if ended is not None:
            return ended, ""
        name, mark = evidence.get(_OBJECT), evidence.get(_MARK, "")
        if name and bucket.shows(f"{bucket.prefix}{name}", mark):
            return BranchOutcome.COMMITTED, ""
        if commit and name and not all(each.key.endswith(SWEPT) for each in journal(bucket, mark.rpartition("/")[0])):
            return BranchOutcome.LOST, ""  # whoever publishes all of it removes that before the manifest
        same = bool(record.identity) and evidence.get(_GENERATION) == resource.generation()
        return (BranchOutcome.ABSENT if same else BranchOutcome.LOST), ""
    except Exception as error:
        return BranchOutcome.UNKNOWN, described(error)


class ObjectsBranch(ResourceBranch):
    """The branch of a transaction in a bucket."""

    def __init__(self, resource: BucketResource, work: ObjectsWork, gtrid: str) -> None:
        super().__init__(resource, work, gtrid)
        self._bucket, self._objects = resource, work

    def start_prepare(self) -> None:
        try:
            super().start_prepare()
        finally:
            manifest = self._objects.manifest
            if manifest is not None:  # whatever became of it: a rollback by its name ends no other
                last = manifest.uploads[-1]
                proof = {_MANIFEST: digest(manifest), _OBJECT: last.name, _MARK: manifest.mark(last)}
                self.record = self.record._replace(evidence={**self.record.evidence, **proof})

    def end_prepared(self, *, commit: bool) -> tuple[BranchOutcome, str]:
        return end_in_bucket(self._bucket, self.record, commit=commit)


class ObjectsRecovery(ResourceRecovery):
    """Recovery's access to the branches of a bucket. Thread-safe."""

    def __init__(self, resource: BucketResource) -> None:
        super().__init__(resource)
        self._bucket = resource

    def recover(self) -> list[PreparedBranch]:
        evidence = {_GENERATION: self._bucket.generation()}
        found = ((parse(name), ours) for name, ours in manifests(self._bucket.bucket))
        return [
            PreparedBranch(xid, roles=None if ours else frozenset(), evidence=evidence)
            for xid, ours in found
            if xid is not None
        ]

    def end(self, record: BranchRecord, *, commit: bool) -> tuple[BranchOutcome, str]:
        return end_in_bucket(self._bucket, record, commit=commit)


class SparkFiles(StagedWork):
    """What Spark's writer has written for one transaction, which is not in the store."""


class StagedUploads:
    """Recovery's access to what crashes have left staged: in a bucket, and where Spark's writer writes."""

    def __init__(self, bucket: Bucket, place: Place | None = None) -> None:
        self._bucket = bucket
        self._place = None if place is None else StagedInPlace(place)

    def tables(self) -> Sequence[StagedWork]:
        """What is staged and not prepared, of whatever transaction."""
        prefix = self._bucket.staged_key("").rstrip("/")
        listed = [each for each in self._bucket.listed(f"{prefix}/") if self._bucket.is_ours(each)]
        names = {each.key.removeprefix(f"{prefix}/").partition("/")[0] for each in listed}
        prepared = prepared_gtrids(self._bucket)
        found = [StagedWork(gtrid_of(each), each) for each in sorted(names)]
        local = () if self._place is None else self._place.tables()
        return [
            *(each for each in found if each.gtrid and each.gtrid not in prepared),
            *(SparkFiles(each.gtrid, each.name) for each in local),
        ]

    def drop(self, table: StagingTable) -> None:
        if self._place is not None and isinstance(table, SparkFiles):
            self._place.drop(table)
        else:
            sweep(self._bucket, table.name)
