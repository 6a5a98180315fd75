"""What a crash, or an error, leaves to recovery in a bucket."""

from __future__ import annotations

import threading
from contextlib import nullcontext, suppress

import pytest

import txpool
from tests.integration.resources.s3.conftest import Objects, gone
from txpool import failpoints
from txpool.config.settings import DataSourceSettings
from txpool.resources.base import BranchOutcome
from txpool.resources.s3 import branch, work
from txpool.resources.s3.bucket import Bucket, StoreError
from txpool.resources.s3.manager import MANAGER
from txpool.tm import manager as managers


def ended(objects: Objects) -> list[str]:
    """The heuristic outcomes that the log has."""
    txpool.configure(objects.site / "txpool.properties")
    return [each.ended for each in managers.get_manager().log.heuristics()]


def prepared(objects: Objects, *names: str, overwrite: bool = False) -> tuple[Bucket, str]:
    """A branch that is decided, and whose commit was not done: its bucket, and its xid."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(branch.ObjectsBranch, "end", lambda self, commit: BranchOutcome.UNKNOWN)
        with txpool.transaction():
            for name in names:
                objects.write(name, "new", overwrite=overwrite)
    (xid,) = objects.manifests()
    return objects.bucket(), xid


def drop(objects: Objects, key: str) -> None:
    """As a lifecycle rule does."""
    for each in objects.client.list_multipart_uploads(Bucket="bucket")["Uploads"]:
        if each["Key"] == f"exports/{key}":
            objects.client.abort_multipart_upload(Bucket="bucket", Key=each["Key"], UploadId=each["UploadId"])


@pytest.mark.parametrize("error", [OSError("reset"), KeyboardInterrupt()])
@pytest.mark.parametrize("point", ["s3.ending", "s3.completed", "s3.published"])
def test_what_a_commit_leaves_recovery_finishes(point: str, error: BaseException, objects: Objects) -> None:
    def failing() -> None:
        raise error

    interrupted = pytest.raises(KeyboardInterrupt) if isinstance(error, KeyboardInterrupt) else nullcontext()
    with failpoints.arming(point, failing), interrupted, txpool.transaction() as tx:
        objects.write("a", "new")
    assert tx.status is txpool.Status.COMMITTED
    objects.scan()
    assert objects.published() == objects.whole(a="new")
    assert objects.left() == []
    assert ended(objects) == []


@pytest.mark.parametrize("point", ["coordinator.begin", "s3.uploaded", "coordinator.prepared", "log.record"])
def test_recovery_removes_what_nobody_decided(point: str, objects: Objects) -> None:
    with failpoints.arming(point, "raise"), pytest.raises(txpool.Error), txpool.transaction():
        objects.write("a", "1")
    gone()
    objects.scan()
    assert objects.published() == {}
    assert objects.left() == []


def test_what_was_staged_and_never_prepared_is_swept_once_its_process_is_fenced(objects: Objects) -> None:
    tx = txpool.begin()
    objects.write("a", "1")
    txpool.suspend()
    staged = objects.left()
    assert len(staged) == 4
    objects.scan()
    assert objects.left() == staged, "its process lives"
    theirs = objects.client.create_multipart_upload(Bucket="bucket", Key="exports/a/part-0.csv")
    txpool.resume(tx)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(work.ObjectsWork, "rollback", lambda self: None)  # a process that dies removes nothing
        txpool.rollback()
    gone()
    objects.scan()
    (left,) = objects.client.list_multipart_uploads(Bucket="bucket")["Uploads"]
    assert left["UploadId"] == theirs["UploadId"], "somebody else's upload of the same key stays"


def test_who_was_swept_cannot_prepare(objects: Objects) -> None:
    """A process that was taken for dead lives on."""
    for swept in ("whole", "begun"):
        with pytest.raises(txpool.Error, match="was swept"), txpool.transaction() as tx:
            objects.write("a", "1")
            (staged,) = branch.StagedUploads(objects.bucket()).tables()
            if swept == "whole":
                work.sweep(objects.bucket(), staged.name)
            else:
                key = f"{objects.hidden}staged/{staged.name}/swept"
                objects.client.put_object(Bucket="bucket", Key=key)
        assert tx.status is txpool.Status.ROLLED_BACK
        assert objects.published() == {}
        assert objects.left() == []


def test_sweeping_leaves_what_is_prepared(objects: Objects) -> None:
    bucket, xid = prepared(objects, "a")
    (staged,) = {key.split("/")[1] for key in objects.left() if key.startswith("staged/")}
    with pytest.raises(txpool.OperationalError, match="is prepared, and is not removed"):
        work.sweep(bucket, staged)
    assert branch.StagedUploads(bucket).tables() == []
    assert branch.publish(bucket, xid) is BranchOutcome.COMMITTED
    assert objects.published() == objects.whole(a="new")
    assert objects.left() == []


def test_two_who_publish_at_once_do_no_harm(objects: Objects) -> None:
    """One is stopped behind its first object; the other does all, and somebody overwrites that."""
    bucket, xid = prepared(objects, "a")
    answers = []

    def other() -> None:
        failpoints.disarm()
        answers.append(branch.publish(objects.bucket(), xid))
        with txpool.transaction():
            objects.write("a", "newer", overwrite=True)

    with failpoints.arming("s3.completed", other):
        answers.append(branch.publish(bucket, xid))
    assert answers == [BranchOutcome.COMMITTED, None]
    assert objects.published() == objects.whole(a="newer")
    assert objects.left() == []


def test_a_commit_and_a_rollback_at_once_agree(objects: Objects) -> None:
    for number in range(5):
        bucket, xid = prepared(objects, f"n{number}")
        answers: list[BranchOutcome | None] = []

        def finish(end: object, there: Bucket, name: str) -> None:
            with suppress(txpool.OperationalError):  # it can only be committed
                answers.append(end(there, name))  # type: ignore[operator]

        threads = [
            threading.Thread(target=finish, args=(end, bucket, xid)) for end in (branch.publish, branch.withdraw)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(120)
        (answer,) = {each for each in answers if each is not None}
        assert (f"n{number}/_SUCCESS" in objects.published()) is (answer is BranchOutcome.COMMITTED)
        assert objects.left() == []


@pytest.mark.parametrize("first", ["publish", "withdraw"])
def test_whoever_comes_first_says_how_it_ends(first: str, objects: Objects) -> None:
    """The other, who comes while that is not finished, finishes it, or says why not."""
    bucket, xid = prepared(objects, "a")
    with failpoints.arming("s3.ending", "raise"), pytest.raises(failpoints.Failpoint):
        getattr(branch, first)(bucket, xid)
    if first == "withdraw":
        assert branch.publish(bucket, xid) is BranchOutcome.ROLLED_BACK
        assert objects.published() == {}
    else:
        with pytest.raises(txpool.OperationalError, match="can only be committed"):
            branch.withdraw(bucket, xid)
        assert branch.publish(bucket, xid) is BranchOutcome.COMMITTED
        assert objects.published() == objects.whole(a="new")
    assert objects.left() == []


def test_what_somebody_has_put_in_its_place_is_not_replaced(objects: Objects) -> None:
    """It stays in doubt, with the reason, until that is moved away."""
    prepared(objects, "a")
    objects.client.put_object(Bucket="bucket", Key="exports/a/part-0.csv", Body=b"theirs")
    objects.scan()
    assert objects.published() == {"a/part-0.csv": "theirs"}
    assert objects.manifests()
    objects.client.delete_object(Bucket="bucket", Key="exports/a/part-0.csv")
    objects.scan()
    assert objects.published() == objects.whole(a="new")
    assert objects.left() == []


def test_an_upload_that_was_dropped_is_a_hazard_and_not_listed_for_ever(objects: Objects) -> None:
    """Trap 14: a lifecycle rule. NoSuchUpload is no success."""
    prepared(objects, "a", "b")
    drop(objects, "a/part-0.csv")
    objects.scan()
    objects.scan()  # its journal goes once that is recorded
    published = {"a/more/part-1.csv": "new", "b/part-0.csv": "new", "b/more/part-1.csv": "new"}
    assert objects.published() == published, "nobody says that all is there"
    assert objects.left() == []
    assert ended(objects) == ["lost"]


def test_nor_if_whoever_finds_that_is_killed_before_the_log_has_it(objects: Objects) -> None:
    bucket, xid = prepared(objects, "a", "b")
    drop(objects, "a/part-0.csv")
    assert branch.publish(bucket, xid) is BranchOutcome.LOST
    objects.scan()
    assert ended(objects) == ["lost"]
    objects.scan()
    assert objects.left() == []


def test_a_manifest_that_somebody_removes_is_a_hazard(objects: Objects) -> None:
    """As a lifecycle rule does. That it is gone is no sign of its publication while its journal is there."""
    _, xid = prepared(objects, "a")
    objects.client.delete_object(Bucket="bucket", Key=f"{objects.hidden}prepared/{xid}")
    objects.scan()
    assert objects.published() == {}
    assert ended(objects) == ["lost"]
    objects.scan()
    assert objects.left() == []


def test_a_404_of_a_proxy_is_no_answer(objects: Objects, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither of an upload, nor of a manifest."""
    call = Bucket.call
    bucket, xid = prepared(objects, "a")

    def failing(there: Bucket, operation: str, **parameters: object) -> object:
        if operation == failed:
            raise StoreError("An error occurred (404)", "404")
        return call(there, operation, **parameters)  # type: ignore[arg-type]

    with monkeypatch.context() as patch:
        patch.setattr(Bucket, "call", failing)
        for each in ("complete_multipart_upload", "get_object"):
            failed = each
            with pytest.raises(StoreError):
                branch.publish(bucket, xid)
    objects.scan()
    assert objects.published() == objects.whole(a="new")
    assert objects.left() == []


def test_an_upload_without_a_journal_goes_at_once(objects: Objects) -> None:
    with txpool.transaction():
        day = txpool.folder(objects.file, "a")
        with failpoints.arming("s3.created", "raise"), pytest.raises(failpoints.Failpoint):
            day.open("data")
        assert objects.left() == []


def test_parts_that_were_changed_are_a_hazard(objects: Objects) -> None:
    prepared(objects, "a")
    (upload,) = (
        each
        for each in objects.client.list_multipart_uploads(Bucket="bucket")["Uploads"]
        if each["Key"] == "exports/a/part-0.csv"
    )
    objects.client.upload_part(
        Bucket="bucket", Key=upload["Key"], UploadId=upload["UploadId"], PartNumber=1, Body=b"theirs"
    )
    objects.scan()
    objects.scan()
    assert objects.published() == {"a/more/part-1.csv": "new"}
    assert objects.left() == []
    assert ended(objects) == ["lost"]


@pytest.mark.parametrize("versions", [False, True])
def test_an_object_that_was_overwritten_shows_who_had_made_it_if_there_are_versions(
    versions: bool, objects: Objects
) -> None:
    if versions:
        objects.client.put_bucket_versioning(Bucket="bucket", VersioningConfiguration={"Status": "Enabled"})
    bucket, xid = prepared(objects, "a")
    with failpoints.arming("s3.completed", "raise"), pytest.raises(failpoints.Failpoint):
        branch.publish(bucket, xid)
    objects.client.put_object(Bucket="bucket", Key="exports/a/part-0.csv", Body=b"theirs")
    objects.scan()
    objects.scan()
    assert objects.left() == []
    assert ended(objects) == ([] if versions else ["lost"])
    assert objects.published()["a/part-0.csv"] == "theirs"
    if versions:
        for each in ("Versions", "DeleteMarkers"):
            for found in objects.client.list_object_versions(Bucket="bucket").get(each, ()):
                objects.client.delete_object(Bucket="bucket", Key=found["Key"], VersionId=found["VersionId"])


def test_a_commit_whose_answer_was_lost_shows_in_the_objects(objects: Objects, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also if the bucket was restored from a copy since."""
    publish = branch.publish

    def unheard(there: Bucket, xid: str, expected: str) -> None:
        publish(there, xid, expected)
        raise OSError("no answer")

    with monkeypatch.context() as patch:
        patch.setattr(branch, "publish", unheard)
        with txpool.transaction() as tx:
            objects.write("a", "new")
    assert tx.unanswered == ["objects"]
    objects.scan()
    assert ended(objects) == []


@pytest.mark.parametrize("written", [True, False])
def test_a_manifest_whose_answer_was_lost_is_rolled_back(
    written: bool, objects: Objects, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also if it appears later: its transaction was told that it rolls back."""
    put_new, late = Bucket.put_new, []

    def unheard(bucket: Bucket, key: str, content: str, *, once: bool = False) -> bool:
        if not once:
            return put_new(bucket, key, content)
        late.append((key, content))
        if written:
            put_new(bucket, key, content)
        raise OSError("no answer")

    with monkeypatch.context() as patch:
        patch.setattr(Bucket, "put_new", unheard)
        with pytest.raises(txpool.Error, match="no answer"), txpool.transaction() as tx:
            objects.write("a", "new")
    assert tx.status is txpool.Status.ROLLED_BACK
    assert objects.left() == []
    if not written:
        objects.client.put_object(Bucket="bucket", Key=late[0][0], Body=late[0][1].encode())
        objects.scan()  # although its process lives: it is marked finished
        assert objects.left() == []
    assert objects.published() == {}


@pytest.mark.costly
def test_a_bucket_that_was_made_anew_is_another(objects: Objects) -> None:
    _, xid = prepared(objects, "a")
    objects.client.delete_object(Bucket="bucket", Key=f"{objects.hidden}identity")
    manager = objects.scan()
    assert objects.manifests() == [xid]
    assert objects.published() == {}
    del manager


def test_the_findings_of_a_check(objects: Objects) -> None:
    def found() -> dict[str, str]:
        settings = DataSourceSettings.load(objects.file)
        return {each.topic: each.severity.value for each in MANAGER.findings(settings, stale_after=0, timeout=None)}

    settings = DataSourceSettings.load(objects.file)
    fine = {"connection": "ok", "conditions": "ok", "versions": "ok"}
    assert found() == {**fine, "lifecycle": "warning"}
    assert MANAGER.ends_after(settings) is None
    for days, prefix, severity in ((1, "", "wrong"), (3, "exports/a", "wrong"), (9, "exp", "ok"), (1, "b", "warning")):
        rule = {"ID": "r", "Status": "Enabled", "Filter": {"Prefix": prefix}}
        rule["AbortIncompleteMultipartUpload"] = {"DaysAfterInitiation": days}
        configuration = {"Rules": [rule]}
        objects.client.put_bucket_lifecycle_configuration(Bucket="bucket", LifecycleConfiguration=configuration)
        assert found() == {**fine, "lifecycle": severity}, prefix
    rule = {"ID": "r", "Status": "Enabled", "Filter": {"Prefix": "exports/.tx"}, "Expiration": {"Days": 400}}
    objects.client.put_bucket_lifecycle_configuration(Bucket="bucket", LifecycleConfiguration={"Rules": [rule]})
    findings = [*MANAGER.findings(settings, stale_after=0, timeout=None)]
    assert [each.topic for each in findings if each.severity.value == "wrong"] == ["lifecycle"]
    rule = {"ID": "r", "Status": "Enabled", "Filter": {"Prefix": ""}}
    rule["Transitions"] = [{"Days": 30, "StorageClass": "GLACIER"}]
    objects.client.put_bucket_lifecycle_configuration(Bucket="bucket", LifecycleConfiguration={"Rules": [rule]})
    findings = [*MANAGER.findings(settings, stale_after=0, timeout=None)]
    assert "moves objects below exports/.txpool/ to GLACIER" in findings[2].found
    assert objects.left() == []
