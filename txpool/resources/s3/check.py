"""What `txpool check` finds out about a bucket."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from typing import Any, Final

from txpool.errors import OperationalError, described
from txpool.findings.finding import Finding, failure, ok, warning
from txpool.resources.s3.bucket import ANY, REFUSED, TAKEN, Bucket, StoreError
from txpool.resources.s3.manifest import manifests

#: For how many days an upload must stay.
LEAST: Final = 7
DAY: Final = 86_400.0
#: Where objects are kept, and not read.
_FROZEN: Final = {"DEEP_ARCHIVE", "GLACIER"}
#: Why rules matter that take away what is needed.
_PREPARED: Final = "a rule that aborts uploads takes away what is prepared"
_REMOVED: Final = (
    "a manifest is what is prepared, and the identity tells the bucket from others: without them a transaction that "
    "has committed is not published"
)
_REMOVED_OF_TABLES: Final = (
    "tables name files for as long as a snapshot has them, and without a journal nobody removes what a crash leaves"
)


def findings(bucket: Bucket, owners: tuple[str, ...]) -> Iterator[Finding]:
    """The findings about the bucket of a datasource."""
    try:
        identity, branches = bucket.identity(), [*manifests(bucket)]
        staged = {each.key.rpartition("/")[0] for each in bucket.listed(bucket.staged_key("").rstrip("/"))}
    except Exception as error:
        yield failure("connection", f"{bucket.name}: {bucket.shown} cannot be used: {described(error)}")
        return
    yield ok(
        "connection",
        f"{bucket.name} is {bucket.shown}, with the identity {identity}; {len(branches)} branches are prepared there, "
        f"and {len(staged)} transactions stage",
    )
    yield of_conditions(bucket)
    yield from of_lifecycle(bucket)
    yield _of_versions(bucket)
    yield from of_owners(bucket, sum(not ours for _, ours in branches), owners)


def of_conditions(bucket: Bucket) -> Finding:
    """Whether the store has conditional writes: by one, a manifest says how its branch ends."""
    key = f"{bucket.hidden}probe-{secrets.token_hex(8)}"
    try:
        try:
            first, second = bucket.put_new(key, "first"), bucket.put_new(key, "second")
            third = bucket.replace(key, "third", '"0"') or _completes(bucket, key)
            ours = any(bucket.is_ours(each) for each in bucket.listed(key))
        finally:
            bucket.delete(key)
    except OperationalError as error:
        return failure("conditions", f"{bucket.shown} cannot be written to: {described(error)}")
    if not ours:
        return failure(
            "owners",
            f"{bucket.shown} does not say that what this process writes is the bucket's owner's",
            "recovery ends what is decided, and leaves the rest for ever",
            f"let the bucket enforce its owner's ownership; if the store tells none, prepared.owners = {ANY}",
        )
    if first and not second and not third:
        return ok(
            "conditions",
            f"{bucket.shown} writes an object only if none is there, or the one that was read, where it is asked to",
        )
    return failure(
        "conditions",
        f"{bucket.shown} replaces an object although If-None-Match or If-Match forbids it",
        "of a commit and a rollback at once both would be done, and others' objects would be replaced in silence",
        "use a store that has conditional writes",
    )


def _completes(bucket: Bucket, key: str) -> bool:
    """Whether an upload takes the place of an object although that is forbidden."""
    upload = bucket.call("create_multipart_upload", Key=key)["UploadId"]
    try:
        part = bucket.call("upload_part", Key=key, UploadId=upload, PartNumber=1, Body=b"fourth")["ETag"]
        bucket.complete(key, upload, [part], IfNoneMatch="*")
    except StoreError as error:
        if error.code not in TAKEN:
            raise
        return False
    finally:
        bucket.abort(key, upload)
    return True


def lifecycle(bucket: Bucket) -> list[Any]:
    """The rules of the bucket that are on. StoreError."""
    try:
        rules = bucket.call("get_bucket_lifecycle_configuration")["Rules"]
    except StoreError as error:
        if error.code != "NoSuchLifecycleConfiguration":
            raise
        return []
    return [rule for rule in rules if rule.get("Status") == "Enabled"]


def aborted_after(bucket: Bucket, rules: list[Any]) -> int | None:
    """After how many days a rule aborts an upload of this place; None if none does."""
    days = [
        rule["AbortIncompleteMultipartUpload"]["DaysAfterInitiation"]
        for rule in rules
        if "AbortIncompleteMultipartUpload" in rule and _meets(_prefix_of(rule), bucket.prefix)
    ]
    return min(days, default=None)


def _prefix_of(rule: Any) -> str:
    """Of what begins so, and perhaps of less: of conditions by tags or sizes nothing is known."""
    found = rule.get("Filter", {})
    prefix = rule.get("Prefix") or found.get("Prefix") or found.get("And", {}).get("Prefix")
    return str(prefix or "")


def _meets(prefix: str, other: str) -> bool:
    return prefix.startswith(other) or other.startswith(prefix)


def of_lifecycle(bucket: Bucket, *, tables: bool = False) -> Iterator[Finding]:
    """The findings about the rules. With `tables` all objects have to stay, and no upload is prepared."""
    kept = bucket.prefix if tables else bucket.hidden
    try:
        rules = lifecycle(bucket)
    except StoreError as error:
        why = f"a rule may remove what is below {kept}" if tables else _PREPARED
        do = "allow s3:GetLifecycleConfiguration"
        yield warning("lifecycle", f"the lifecycle rules of the bucket cannot be read: {described(error)}", why, do)
        return
    if tables:  # what txpool writes has no tags
        rules = [rule for rule in rules if not _has_tags(rule.get("Filter", {}))]
    expiring = [rule for rule in rules if "Expiration" in rule and _meets(_prefix_of(rule), kept)]
    if any({"Days", "Date"} & rule["Expiration"].keys() for rule in expiring):
        yield failure(
            "lifecycle",
            f"a lifecycle rule removes objects below {kept}",
            _REMOVED_OF_TABLES if tables else _REMOVED,
            f"let the rule's prefix leave out {kept}",
        )
    moving = [rule for rule in rules if rule.get("Transitions") and _meets(_prefix_of(rule), kept)]
    frozen = {each.get("StorageClass") for rule in moving for each in rule["Transitions"]} & _FROZEN
    if frozen:
        yield warning(
            "lifecycle",
            f"a lifecycle rule moves objects below {kept} to {', '.join(sorted(frozen))}",
            "they cannot be read there: nothing is prepared or ended any more once it has moved the identity",
            f"let the rule's prefix leave out {kept}",
        )
    days = aborted_after(bucket, rules)
    if days is None:
        yield _not_aborted(bucket)
    elif tables:
        yield ok("lifecycle", f"a lifecycle rule aborts uploads after {days} days: no file may take longer to write")
    elif days < LEAST:
        yield failure(
            "lifecycle",
            f"a lifecycle rule aborts uploads of {bucket.shown} after {days} days",
            "what is prepared is such an upload: a branch that is in doubt for longer is lost, although it has "
            "committed, and reported as a heuristic hazard",
            f"let it do so after {LEAST} days or more, and let recovery run",
        )
    else:
        yield ok("lifecycle", f"a lifecycle rule aborts uploads after {days} days: recovery must run within that")


def _has_tags(condition: Any) -> bool:
    return "Tag" in condition or bool(condition.get("And", {}).get("Tags"))


def _not_aborted(bucket: Bucket) -> Finding:
    """That no rule aborts an upload of this place."""
    return warning(
        "lifecycle",
        f"no lifecycle rule aborts uploads of {bucket.shown}",
        "a process that is killed between the beginning of an upload and its journal leaves an upload without parts, "
        "which nobody can tell from another's",
        f"add a rule with AbortIncompleteMultipartUpload after {LEAST} days or more",
    )


def _of_versions(bucket: Bucket) -> Finding:
    try:
        status = bucket.call("get_bucket_versioning").get("Status", "")
    except StoreError as error:
        why = "whether an object shows that it was published after somebody has overwritten it is not known"
        return warning("versions", f"the versioning cannot be read: {described(error)}", why, "allow it")
    if status == "Enabled":
        return ok("versions", "the bucket keeps versions: an object shows who has made it after it is overwritten, too")
    return ok(
        "versions",
        "the bucket keeps no versions: what somebody overwrites before recovery has heard of its publication is "
        "reported as a heuristic hazard",
    )


def of_owners(bucket: Bucket, foreign: int, owners: tuple[str, ...]) -> Iterator[Finding]:
    if foreign:
        yield warning(
            "owners",
            f"{foreign} manifests in {bucket.shown} are not the bucket's owner's",
            "whoever made them may have made up their names: they are listed, and never ended",
            "remove them, or write their owner's canonical id into prepared.owners",
        )
    if not bucket.account:
        yield warning(
            "owners",
            f"{bucket.name} does not say whose account the bucket {bucket.bucket} is",
            "if it is removed, anybody can make one of that name, and would get what is written",
            "write bucket.owner = the account's twelve digits",
        )
    if ANY in owners:
        yield warning(
            "owners",
            f"prepared.owners = {ANY} trusts everybody who may write to {bucket.hidden}",
            "such a manifest can publish or drop what another has staged",
            "use it only if the store does not tell who owns an object",
        )
    try:
        public = bucket.call("get_bucket_policy_status")["PolicyStatus"]["IsPublic"]
    except StoreError as error:
        if error.code not in {*REFUSED, "NoSuchBucketPolicy"}:
            yield warning(
                "owners", f"the bucket's policy cannot be read: {described(error)}", "it may be public", "allow it"
            )
        return
    if public:
        yield warning(
            "owners",
            f"the policy of {bucket.bucket} is public",
            "where the bucket's owner owns all that others write, a forged manifest looks like ours",
            f"let nobody but this application write to {bucket.hidden}",
        )
