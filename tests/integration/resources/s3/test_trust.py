"""Somebody else may write to the bucket: what they plant changes no outcome, and nothing of it is published."""

from __future__ import annotations

import json
from typing import Any

import pytest

import txpool
from tests.integration.resources.s3.conftest import Objects, gone
from tests.integration.resources.s3.test_recovery import prepared
from txpool.config.settings import DataSourceSettings
from txpool.resources.base import BranchOutcome, BranchRecord
from txpool.resources.s3 import branch, manifest
from txpool.resources.s3.bucket import Bucket, Listed
from txpool.resources.s3.manager import MANAGER
from txpool.xid import make_gtrid, make_xid, parse

GTRID = make_gtrid("etl", "abcdefghijkl", 1)
XID = make_xid(GTRID, 0, "objects")


def upload(client: Any, key: str) -> list[Any]:
    """An upload of a client's own, whole but for its end, as a manifest names it."""
    begun = client.create_multipart_upload(Bucket="bucket", Key=f"exports/{key}")["UploadId"]
    part = client.upload_part(Bucket="bucket", Key=f"exports/{key}", UploadId=begun, PartNumber=1, Body=b"forged")
    return [0, key, begun, [part["ETag"]], True]


def forged(objects: Objects, xid: str = XID.joined) -> None:
    """A stranger's manifest: it would publish what they have uploaded."""
    stranger = objects.stranger()
    found = {"format": 1, "xid": xid, "staging": "theirs", "uploads": [upload(stranger, "a/x")], "ending": ""}
    stranger.put_object(Bucket="bucket", Key=f"{objects.hidden}prepared/{xid}", Body=json.dumps(found).encode())


def test_31_a_forged_manifest_is_listed_and_never_ended(objects: Objects) -> None:
    forged(objects)
    gone()
    manager = objects.scan()
    assert objects.manifests() == [XID.joined]
    settings = DataSourceSettings.load(objects.file)
    (listed,) = MANAGER.branch_recovery(settings).recover()
    assert not listed.prepared_by({"", "f" * 64})
    assert objects.published() == {}
    found = [each for each in MANAGER.findings(settings, stale_after=0, timeout=None) if each.topic == "owners"]
    assert "are not the bucket's owner's" in found[0].found
    del manager


@pytest.mark.parametrize("commit", [True, False])
def test_31_nor_if_a_decision_names_it(commit: bool, objects: Objects) -> None:
    """Without the digest of what was prepared, and with that of another."""
    forged(objects)
    access = MANAGER.branch_recovery(DataSourceSettings.load(objects.file))
    for evidence, told in (
        ({}, "is not proven to be the bucket's owner's"),
        ({"manifest": "0" * 64}, "is not the one"),
    ):
        record = BranchRecord(XID, "objects", evidence=evidence)
        assert access._end(record, commit=commit) is BranchOutcome.UNKNOWN
        assert told in access.why_not(record)
    assert objects.published() == {}
    assert objects.manifests() == [XID.joined]


def test_a_manifest_that_was_replaced_publishes_nothing_until_it_is_back(objects: Objects) -> None:
    """Also if the bucket enforces that its owner owns all: the decision has the digest."""
    _, xid = prepared(objects, "a")
    key = f"{objects.hidden}prepared/{xid}"
    former = objects.client.get_object(Bucket="bucket", Key=key)["Body"].read()
    found = json.loads(former)
    found["uploads"] = [upload(objects.client, "a/forged")]
    objects.client.put_object(Bucket="bucket", Key=key, Body=json.dumps(found).encode())
    objects.scan()
    assert objects.published() == {}
    objects.stranger().put_object(Bucket="bucket", Key=key, Body=former)  # whoever has written it
    objects.scan()
    assert objects.published() == objects.whole(a="new")
    assert objects.left() == ["exports/a/forged"]


@pytest.mark.parametrize("ending", ["rollback", "commit"])
def test_a_forged_ending_changes_no_outcome(ending: str, objects: Objects) -> None:
    """The digest leaves it out: it counts by whose it is."""
    bucket, xid = prepared(objects, "a")
    key = f"{objects.hidden}prepared/{xid}"
    found = json.loads(objects.client.get_object(Bucket="bucket", Key=key)["Body"].read())
    content = json.dumps({**found, "ending": ending}).encode()
    objects.stranger().put_object(Bucket="bucket", Key=key, Body=content)
    if ending == "commit":
        decoded = manifest.decode_manifest(xid, content)
        assert branch.withdraw(bucket, xid, manifest.digest(decoded)) is BranchOutcome.ROLLED_BACK
        assert objects.published() == {}
    else:
        objects.scan()
        assert objects.published() == objects.whole(a="new")
    assert objects.left() == []


@pytest.mark.costly
def test_what_is_decided_is_not_swept_while_a_stranger_has_replaced_its_manifest(objects: Objects) -> None:
    _, xid = prepared(objects, "a")
    key = f"{objects.hidden}prepared/{xid}"
    former = objects.client.get_object(Bucket="bucket", Key=key)["Body"].read()
    objects.stranger().put_object(Bucket="bucket", Key=key, Body=b"rubbish")
    gone()
    left = objects.left()
    objects.scan()
    assert objects.left() == left
    objects.client.put_object(Bucket="bucket", Key=key, Body=former)
    objects.scan()
    assert objects.published() == objects.whole(a="new")
    assert objects.left() == []


def test_an_object_that_says_to_be_ours_is_no_proof_while_the_upload_is_there(objects: Objects) -> None:
    """Whoever may write objects, though not below .txpool, has made it."""
    bucket, xid = prepared(objects, "a")
    found = manifest.read_manifest(bucket, xid)
    assert found is not None
    metadata = {"txpool": found.mark(found.uploads[0])}
    key = f"exports/{found.uploads[0].name}"
    objects.client.put_object(Bucket="bucket", Key=key, Metadata=metadata, Body=b"forged")
    with pytest.raises(txpool.OperationalError, match="was made by somebody"):
        branch.publish(bucket, xid)
    objects.client.delete_object(Bucket="bucket", Key=key)
    objects.scan()
    assert objects.published() == objects.whole(a="new")
    assert objects.left() == []


def test_an_entry_that_was_replaced_since_it_was_listed_drops_nothing(objects: Objects) -> None:
    theirs = upload(objects.client, "b/x")
    with txpool.transaction():
        objects.write("a", "1")
        (staged,) = branch.StagedUploads(objects.bucket()).tables()
        entry, *_ = manifest.journal(objects.bucket(), staged.name)
        content = json.dumps({"format": 1, "name": "b/x", "id": theirs[2]}).encode()
        former = objects.client.get_object(Bucket="bucket", Key=entry.key)["Body"].read()
        objects.stranger().put_object(Bucket="bucket", Key=entry.key, Body=content)
        assert manifest.read_entry(objects.bucket(), entry) is None
        objects.client.put_object(Bucket="bucket", Key=entry.key, Body=former)
    assert objects.left() == ["exports/b/x"]


def test_a_store_that_tells_no_owners_makes_nothing_ours(objects: Objects, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Bucket, "call", lambda *_, **__: {"Owner": {"ID": ""}})
    assert not objects.bucket().is_ours(Listed("key", "", "etag"))


def test_a_forged_journal_lets_nobody_drop_an_upload(objects: Objects) -> None:
    theirs = upload(objects.client, "b/x")
    staging = f"{GTRID.replace(':', '+')}+0badcafe"
    entry = {"format": 1, "name": "b/x", "id": theirs[2]}
    objects.stranger().put_object(
        Bucket="bucket", Key=f"{objects.hidden}staged/{staging}/0", Body=json.dumps(entry).encode()
    )
    gone()
    objects.scan()
    assert branch.StagedUploads(objects.bucket()).tables() == []
    assert objects.store.uploads() == ["exports/b/x"]


def test_a_forged_sweep_refuses_nothing(objects: Objects) -> None:
    with txpool.transaction():
        objects.write("a", "1")
        (staged,) = branch.StagedUploads(objects.bucket()).tables()
        objects.stranger().put_object(Bucket="bucket", Key=f"{objects.hidden}staged/{staged.name}/swept")
    assert objects.published() == objects.whole(a="1")


def test_a_forged_object_is_no_answer(objects: Objects) -> None:
    """It says of itself that a branch has made it, which was rolled back."""
    bucket, joined = prepared(objects, "a")
    xid = parse(joined)
    found = manifest.read_manifest(bucket, joined)
    assert xid is not None
    assert found is not None
    last = found.uploads[-1]
    evidence = {"generation": bucket.generation(), "object": last.name, "mark": found.mark(last)}
    record = BranchRecord(xid, "objects", bucket.identity(), evidence=evidence)
    resource = branch.BucketResource(bucket, "")
    assert branch.end_in_bucket(resource, record, commit=False) == (BranchOutcome.ROLLED_BACK, "")
    objects.stranger().put_object(
        Bucket="bucket", Key=f"exports/{last.name}", Metadata={"txpool": found.mark(last)}, Body=b"forged"
    )
    for commit in (True, False):
        assert branch.end_in_bucket(resource, record, commit=commit) == (BranchOutcome.ABSENT, "")
    objects.client.put_object(Bucket="bucket", Key=f"{objects.hidden}identity", Body=bucket.identity().encode())
    moved = record._replace(evidence={**evidence, "generation": "2020-01-01T00:00:00+00:00"})
    assert branch.end_in_bucket(resource, moved, commit=True) == (BranchOutcome.LOST, ""), "it was restored"


@pytest.mark.parametrize(
    "content", [b"", b"[]", b"{}", b'{"format": 2}', b'{"format": 1, "xid": 1, "uploads": 3}', b"\xff"]
)
def test_a_damaged_manifest_of_ours_is_told(content: bytes, objects: Objects) -> None:
    key = f"{objects.hidden}prepared/{XID.joined}"
    objects.client.put_object(Bucket="bucket", Key=key, Body=content)
    with pytest.raises(txpool.OperationalError, match=f"the manifest {XID.joined} is"):
        branch.withdraw(objects.bucket(), XID.joined)
    assert objects.manifests() == [XID.joined]


def test_a_damaged_identity_is_told(objects: Objects) -> None:
    objects.client.put_object(Bucket="bucket", Key=f"{objects.hidden}identity", Body=b"\xff\x00")
    with pytest.raises(txpool.OperationalError, match="is no identity"), txpool.transaction():
        txpool.folder(objects.file, "a")
