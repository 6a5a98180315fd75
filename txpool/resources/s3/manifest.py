"""What names uploads: the manifest of a prepared branch, and the journal of what is staged."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from hashlib import sha256
from typing import Final, NamedTuple

from txpool import failpoints
from txpool.errors import OperationalError, described
from txpool.resources.files.place import is_name
from txpool.resources.files.work import gtrid_of
from txpool.resources.s3.bucket import NOT_THERE, Bucket, StoreError
from txpool.xid import parse

_FORMAT: Final = 1
_STAGING = re.compile(r"[A-Za-z0-9_.+-]{1,200}")
COMMIT: Final = "commit"
ROLLBACK: Final = "rollback"
#: How often a manifest is read that another changes: it does so twice.
_TRIES: Final = 5
#: The journal's entry by which a sweep forbids that the rest be prepared.
SWEPT: Final = "swept"


class Upload(NamedTuple):
    """The n-th upload of a transaction: the name of its object, its id, its parts, and whether it may replace one."""

    number: int
    name: str
    id: str
    parts: tuple[str, ...] = ()
    overwrite: bool = False


class UploadManifest(NamedTuple):
    """What a prepared branch publishes, in this order; how it ends, once that has begun; and the store's ETag of it."""

    xid: str
    staging: str
    uploads: tuple[Upload, ...]
    ending: str = ""
    etag: str = ""

    def encode(self) -> str:
        return json.dumps({"format": _FORMAT, **self._replace(etag="")._asdict()})

    def mark(self, upload: Upload) -> str:
        """What the object of an upload says of itself."""
        return f"{self.staging}/{upload.number}"


def decode_manifest(xid: str, content: bytes) -> UploadManifest:
    """OperationalError if it is damaged, of a later version, or another branch's."""
    try:
        found = json.loads(content)
        uploads = tuple(
            Upload(int(number), str(name), str(upload), tuple(map(str, parts)), bool(overwrite))
            for number, name, upload, parts, overwrite in found["uploads"]
        )
        if (
            found["format"] == _FORMAT
            and found["xid"] == xid
            and found["ending"] in ("", COMMIT, ROLLBACK)
            and _STAGING.fullmatch(found["staging"])
            and all(is_name(each.name) for each in uploads)
        ):
            return UploadManifest(xid, found["staging"], uploads, found["ending"])
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise OperationalError(f"the manifest {xid} is damaged: {described(error)}") from error
    raise OperationalError(f"the manifest {xid} is a later txpool's, or was written for another branch")


def digest(manifest: UploadManifest) -> str:
    """What a decision keeps of a manifest: nobody can put another in its place."""
    return sha256(manifest._replace(ending="").encode().encode()).hexdigest()


def read_manifest(bucket: Bucket, xid: str, expected: str = "") -> UploadManifest | None:
    """The manifest of a branch; None if there is none. OperationalError if it is not ours.

    `expected` is its digest in a decision: that one counts, whoever owns it, and no other.
    """
    key = bucket.manifest_key(xid)
    try:
        content, answer = bucket.read(key)
    except StoreError as error:
        if error.code in NOT_THERE:
            return None
        raise
    found = decode_manifest(xid, content)._replace(etag=answer["ETag"])
    if expected:
        if digest(found) != expected:
            raise OperationalError(
                f"the manifest {xid} is not the one that was prepared, and is left as it is: put its former version "
                "back, and recovery goes on"
            )
    elif not any(each.key == key and bucket.is_ours(each) for each in bucket.listed(key)):
        raise OperationalError(
            f"the manifest {xid} is not proven to be the bucket's owner's, who alone is trusted: it is left as it is"
        )
    return found


def end_manifest(bucket: Bucket, xid: str, expected: str, *, commit: bool) -> UploadManifest | None:
    """The manifest, once it says how its branch ends, which the first who comes writes. None if there is none.

    So of a commit and a rollback at once only one does anything.
    """
    for _ in range(_TRIES):
        found = read_manifest(bucket, xid, expected)
        if found is None or found.ending:
            return found
        ended = found._replace(ending=COMMIT if commit else ROLLBACK)
        if bucket.replace(bucket.manifest_key(xid), ended.encode(), found.etag):
            if failpoints.armed:
                failpoints.hit("s3.ending")
            return ended
    raise OperationalError(f"the manifest {xid} changes whenever it is read, and is left as it is")


def manifests(bucket: Bucket) -> Iterator[tuple[str, bool]]:
    """The names of the manifests, and whether each one is ours."""
    prefix = bucket.manifest_key("")
    for each in bucket.listed(prefix):
        yield each.key.removeprefix(prefix), bucket.is_ours(each)


def is_prepared(bucket: Bucket, staging: str) -> bool:
    """Whether a manifest that is ours names what is staged so."""
    gtrid = gtrid_of(staging)
    for name, ours in manifests(bucket):
        xid = parse(name)
        if ours and (xid is None or xid.gtrid == gtrid):
            found = read_manifest(bucket, name)
            if found is not None and found.staging == staging:
                return True
    return False


def write_entry(bucket: Bucket, staging: str, upload: Upload) -> None:
    """Add an upload to the journal."""
    content = json.dumps({"format": _FORMAT, "name": upload.name, "id": upload.id})
    bucket.call("put_object", Key=bucket.staged_key(staging, upload.number), Body=content.encode())


def read_entry(bucket: Bucket, key: str) -> Upload | None:
    """An upload out of the journal; None if it is gone. OperationalError if it cannot be read."""
    try:
        content, _ = bucket.read(key)
    except StoreError as error:
        if error.code in NOT_THERE:
            return None
        raise
    try:
        found = json.loads(content)
        if found["format"] == _FORMAT and is_name(found["name"]):
            return Upload(int(key.rpartition("/")[2]), found["name"], str(found["id"]))
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise OperationalError(f"s3://{bucket.bucket}/{key} is damaged: {described(error)}") from error
    raise OperationalError(f"s3://{bucket.bucket}/{key} is a later txpool's")
