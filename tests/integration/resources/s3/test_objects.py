"""Objects that appear when their transaction commits: what readers see, what is refused, what is left."""

from __future__ import annotations

import os
import threading
import traceback
from contextlib import nullcontext
from pathlib import Path

import pytest

import txpool
from tests.integration.resources.s3.conftest import Objects
from tests.support.forking import in_child
from txpool import failpoints
from txpool.config.settings import DataSourceSettings
from txpool.conformance.cases.case import Verdict
from txpool.conformance.kit import run_cases
from txpool.resources.s3 import branch, bucket, upload
from txpool.resources.s3.manager import MANAGER
from txpool.resources.s3.work import ObjectsWork


def test_it_appears_with_the_commit_and_only_then(objects: Objects) -> None:
    with txpool.transaction():
        objects.write("a", "1")
        objects.write("b", "2")
        assert objects.published() == {}
    assert objects.published() == objects.whole(a="1", b="2")
    assert objects.left() == []


def test_it_is_gone_with_a_rollback(objects: Objects) -> None:
    with pytest.raises(ZeroDivisionError), txpool.transaction():
        objects.write("2026/11/27", "1")
        1 / 0
    assert objects.published() == {}
    assert objects.left() == []


def test_large_small_and_empty_objects_in_text_and_bytes(objects: Objects, monkeypatch: pytest.MonkeyPatch) -> None:
    part = 5 * 1024 * 1024
    monkeypatch.setattr(upload, "PART", part)
    large = os.urandom(2 * part + 17)
    with txpool.transaction():
        day = txpool.folder(objects.file, "day")
        with day.open("large", "wb") as file:
            for start in range(0, len(large), 1_000_003):
                assert file.write(memoryview(large)[start : start + 1_000_003]) > 0
        day.open("empty", "xb").close()
        with day.open("text", encoding="utf-16", newline="\r\n") as file:
            print("ä\n☃", file=file, end="")
    found = objects.client.get_object(Bucket="bucket", Key="exports/day/large")
    assert found["Body"].read() == large
    assert found["ETag"].endswith('-3"')
    assert objects.client.get_object(Bucket="bucket", Key="exports/day/empty")["Body"].read() == b""
    text = objects.client.get_object(Bucket="bucket", Key="exports/day/text")["Body"].read()
    assert text == "ä\r\n☃".encode("utf-16")


def test_success_comes_when_all_objects_are_there(objects: Objects, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []
    complete = branch._complete

    def seeing(*arguments: object) -> bool:
        seen.append(sorted(objects.published()))
        return complete(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(branch, "_complete", seeing)
    with txpool.transaction():
        objects.write("a", "1")
    assert seen == [[], ["a/part-0.csv"], ["a/more/part-1.csv", "a/part-0.csv"]]


def test_a_name_that_is_taken_is_refused(objects: Objects) -> None:
    with txpool.transaction():
        objects.write("a", "1")
    with txpool.transaction() as tx:
        with pytest.raises(txpool.ProgrammingError, match=r"is there already.*overwrite=True"):
            txpool.folder(objects.file, "a")
        assert tx.status is txpool.Status.ACTIVE
        objects.write("b", "2")
        with pytest.raises(txpool.ProgrammingError, match="writes b already"):
            txpool.folder(objects.file, "b/c", overwrite=True)
    assert objects.published() == objects.whole(a="1", b="2")


def test_objects_of_the_same_names_are_replaced(objects: Objects) -> None:
    with txpool.transaction():
        objects.write("a", "former")
    with txpool.transaction():
        objects.write("a", "new", overwrite=True)
        assert objects.published() == objects.whole(a="former")
    assert objects.published() == objects.whole(a="new")
    assert objects.left() == []


def test_what_would_stay_beside_the_new_objects_is_a_vote_to_roll_back(objects: Objects) -> None:
    with txpool.transaction():
        objects.write("a", "former")
    with pytest.raises(txpool.TransactionRolledBack, match=r"part-1\.csv is there.*would stay"), txpool.transaction():
        with txpool.folder(objects.file, "a", overwrite=True).open("part-0.csv") as file:
            file.write("new")
    assert objects.published() == objects.whole(a="former")
    assert objects.left() == []


def test_one_that_was_made_meanwhile_is_a_vote_to_roll_back(objects: Objects) -> None:
    with pytest.raises(txpool.TransactionRolledBack, match="is there already"), txpool.transaction():
        objects.write("a", "1")
        objects.client.put_object(Bucket="bucket", Key="exports/a/theirs", Body=b"theirs")
    assert objects.left() == []
    assert objects.published() == {"a/theirs": "theirs"}


@pytest.mark.parametrize("overwrite", [False, True])
def test_also_if_that_was_between_the_look_and_the_manifest(overwrite: bool, objects: Objects) -> None:
    """Another transaction has published, and its manifest is gone before ours is there."""

    def other() -> None:
        failpoints.disarm()
        objects.client.put_object(Bucket="bucket", Key="exports/a/theirs", Body=b"theirs")

    with failpoints.arming("s3.uploaded", other):
        with pytest.raises(txpool.TransactionRolledBack, match="is there"), txpool.transaction():
            objects.write("a", "1", overwrite=overwrite)
    assert objects.left() == []
    assert objects.published() == {"a/theirs": "theirs"}


@pytest.mark.costly
def test_an_upload_that_is_gone_before_the_commit_is_a_vote_to_roll_back(objects: Objects) -> None:
    """A lifecycle rule ends uploads of a long transaction."""
    with pytest.raises(txpool.Error, match=r"upload of a/part-0\.csv is gone"), txpool.transaction() as tx:
        objects.write("a", "1")
        (begun,) = (
            each
            for each in objects.client.list_multipart_uploads(Bucket="bucket")["Uploads"]
            if each["Key"] == "exports/a/part-0.csv"
        )
        objects.client.abort_multipart_upload(Bucket="bucket", Key=begun["Key"], UploadId=begun["UploadId"])
    assert tx.status is txpool.Status.ROLLED_BACK
    assert objects.left() == []
    assert objects.published() == {}


def test_two_of_ours_do_not_both_prepare_one_name(objects: Objects) -> None:
    """Trap 13: a commit cannot refuse. So the later one is told at its PREPARE."""
    first = txpool.begin()
    objects.write("orders/2026", "1")
    txpool.suspend()
    place = MANAGER.branch_recovery(DataSourceSettings.load(objects.file))
    assert place.recover() == []
    work = first.enlistment_in("objects")
    assert work is not None
    work.branch.start_prepare()
    assert [each.xid.gtrid for each in place.recover()] == [first.gtrid]
    with pytest.raises(txpool.Error, match=rf"{first.gtrid}.*is prepared to publish orders/2026"):
        with txpool.transaction() as tx:
            objects.write("orders", "2")
    assert tx.status is txpool.Status.ROLLED_BACK
    txpool.resume(first)
    txpool.rollback()
    assert objects.left() == []
    assert objects.published() == {}


@pytest.mark.parametrize("dropped", [False, True])
@pytest.mark.parametrize("mode", ["w", "wb"])
def test_what_is_still_open_is_a_vote_to_roll_back(mode: str, dropped: bool, objects: Objects) -> None:
    """Also if nobody holds it any more: a finaliser sends nothing."""
    with pytest.raises(txpool.TransactionRolledBack, match=r"late\.csv is not closed"), txpool.transaction():
        file = objects.write("a", "1").open("late.csv", mode)
        file.write("held back" if mode == "w" else b"held back")
        if dropped:
            del file
    if not dropped:
        with pytest.raises(txpool.ProgrammingError, match="has ended") if mode == "w" else nullcontext():
            file.close()
    assert objects.published() == {}
    assert objects.left() == []


def test_a_write_that_has_failed_is_a_vote_to_roll_back(objects: Objects, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever catches the error and goes on has lost bytes."""
    monkeypatch.setattr(upload, "PART", 8)
    send = upload.ObjectFile._send
    with pytest.raises(txpool.TransactionRolledBack, match="a write to it has failed"), txpool.transaction():
        file = txpool.folder(objects.file, "a").open("data", "wb")
        with monkeypatch.context() as patch:
            patch.setattr(upload.ObjectFile, "_send", lambda self, size: 1 / 0)
            with pytest.raises(ZeroDivisionError):
                file.write(b"123456789")
        assert upload.ObjectFile._send is send
        with pytest.raises(txpool.OperationalError, match="it is not known what has arrived"):
            file.write(b"more")
        with pytest.raises(txpool.OperationalError, match="can only roll back"):
            file.close()
    assert objects.left() == []


@pytest.mark.parametrize("name", ["", "/etc", "a/../b", "..", ".txpool/staged", "sub/.txpool", "a//b", "a\n", "./a"])
def test_names_that_lead_elsewhere(objects: Objects, name: str) -> None:
    with txpool.transaction():
        with pytest.raises(txpool.ProgrammingError, match="is no name below it"):
            txpool.folder(objects.file, name)
    assert objects.published() == {}


def test_what_open_refuses(objects: Objects) -> None:
    with txpool.transaction():
        day = txpool.folder(objects.file, Path("day"))
        for file, mode, options, told in (
            (None, "w", {}, "is no name of an object"),
            ("_SUCCESS", "w", {}, "is no name of an object"),
            ("../a", "w", {}, "is no name of an object"),
            (".txpool/prepared/x", "w", {}, "is no name of an object"),
            ("a", "r", {}, "objects are written whole"),
            ("a", "a", {}, "objects are written whole"),
            ("a", "wb", {"encoding": "utf-8"}, "encoding has no use for bytes"),
            ("a" * 1100, "w", {}, "1024 bytes at most"),
        ):
            with pytest.raises(txpool.ProgrammingError, match=told):
                day.open(file, mode, **options)  # type: ignore[arg-type]
        day.open(Path("a")).close()
        with pytest.raises(txpool.ProgrammingError, match="is written once"):
            day.open("a")
        with pytest.raises(txpool.NotSupportedError, match="nothing has a path"):
            os.fspath(day)
    assert objects.published() == {"day/a": "", "day/_SUCCESS": ""}
    with pytest.raises(txpool.ProgrammingError):
        day.open("late")


@pytest.mark.parametrize(("step", "told"), [("_taken", "writes day already"), ("_begin", "is written once")])
def test_of_two_threads_with_one_name_one_writes(
    step: str, told: str, objects: Objects, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both might look before either is known. Here the other thread's whole call comes in between."""
    with txpool.transaction():
        folders = [] if step == "_taken" else [txpool.folder(objects.file, "day")]

        def writes() -> None:
            folder = folders[0] if folders else txpool.folder(objects.file, "day")
            with folder.open("a") as file:
                file.write("theirs")

        meanwhile = [writes]
        real = getattr(ObjectsWork, step)

        def look(*arguments: object) -> object:
            if meanwhile:
                meanwhile.pop()()
            return real(*arguments)

        monkeypatch.setattr(ObjectsWork, step, look)
        with pytest.raises(txpool.ProgrammingError, match=told):
            writes()
    assert objects.published() == {"day/a": "theirs", "day/_SUCCESS": ""}
    assert objects.left() == []


def test_a_forked_child_writes_no_object(objects: Objects) -> None:
    """Its parent, which commits, would know nothing of it."""
    with txpool.transaction():
        day = txpool.folder(objects.file, "day")

        def writes() -> None:
            with pytest.raises(txpool.ProgrammingError, match="in the process that has begun the transaction"):
                day.open("theirs", "wb")

        in_child(writes)
        day.open("ours").close()
    assert objects.published() == {"day/ours": "", "day/_SUCCESS": ""}
    assert objects.left() == []


def test_outside_of_a_transaction_and_without_a_log(objects: Objects) -> None:
    with pytest.raises(txpool.ProgrammingError, match="outside a transaction"):
        txpool.folder(objects.file, "a")
    txpool.configure(node_name="n")
    with txpool.transaction(), pytest.raises(txpool.ProgrammingError, match="needs a decision log"):
        txpool.folder(objects.file, "a")
    with pytest.raises(txpool.ConfigurationError, match="write url = s3://bucket/exports"):
        DataSourceSettings.load(name="a", driver="s3", url="s3:///a")
    with pytest.raises(txpool.ConfigurationError, match="twelve digits"):
        DataSourceSettings.load(name="a", driver="s3", url="s3://a", bucket_owner="me")
    with pytest.raises(txpool.NotSupportedError, match=r"txpool\.folder\(\) writes there"):
        txpool.connect(objects.file)


def test_a_missing_library_is_named(objects: Objects, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "botocore.session", None)
    with pytest.raises(txpool.ConfigurationError, match=r"pip install 'txpool\[s3\]'"), txpool.transaction():
        txpool.folder(objects.file, "a")


def test_a_bucket_of_another_account_and_none(objects: Objects) -> None:
    text = objects.file.read_text()
    for former, new, told in (("1234", "9999", "AccessDenied"), ("s3://bucket", "s3://nowhere", "NoSuchBucket")):
        other = objects.site / f"{new[-4:]}.properties"
        other.touch(0o600)
        other.write_text(text.replace(former, new))
        with pytest.raises(txpool.OperationalError, match=told), txpool.transaction():
            txpool.folder(other, "a")


def test_a_store_that_does_not_answer(objects: Objects, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bucket, "_ATTEMPTS", 1)
    objects.file.write_text(objects.file.read_text().replace(objects.store.url, "http://me:secret-of-url@127.0.0.1:9"))
    with pytest.raises(txpool.OperationalError, match="does not answer") as raised, txpool.transaction():
        txpool.folder(objects.file, "a")
    assert MANAGER.is_outage(raised.value)
    assert "secret-of" not in "".join(traceback.format_exception(raised.value))


@pytest.mark.costly
def test_the_conformance_kit(objects: Objects) -> None:
    run = run_cases(DataSourceSettings.load(objects.file), patience=1)
    failed = [each for each in run.results if each.verdict is Verdict.FAILED]
    assert not failed
    assert len([each for each in run.results if each.verdict is Verdict.PASSED]) >= 12
    assert objects.left() == []


def test_threads_stage_side_by_side(objects: Objects) -> None:
    def job(number: int) -> None:
        with txpool.transaction():
            objects.write(f"n{number}", str(number))

    threads = [threading.Thread(target=job, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert objects.published() == objects.whole(**{f"n{number}": str(number) for number in range(4)})
