"""What a crash, an error or somebody else leaves to recovery in a folder of Delta tables."""

from __future__ import annotations

import fcntl
import shutil
import threading
from contextlib import nullcontext
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

import txpool
from tests.integration.resources.delta.conftest import SCHEMA, Tables, transactions
from tests.integration.resources.files.conftest import gone
from txpool import failpoints
from txpool.resources.base import BranchOutcome
from txpool.resources.delta import branch
from txpool.resources.files.branch import FolderResource, StagedInPlace, sweep
from txpool.resources.files.place import Place
from txpool.tm import manager as managers


def heuristics() -> list[str]:
    return [each.ended for each in managers.get_manager().log.heuristics()]


def test_a_folder_whose_driver_was_changed_ends_nothing_of_the_former_ones(tables: Tables) -> None:
    tables.create()
    _, xid = tables.prepared(1)
    staged, file = tables.left(), tables.site / "tables.properties"
    gone()
    file.write_text(file.read_text().replace("driver = delta", "driver = files"))
    for _ in range(2):
        tables.scan()
    assert (tables.committed(), tables.left()) == ([], staged)
    folders = FolderResource(Place("tables", str(tables.place)), str(file))
    for end in (folders.publish, folders.withdraw):
        with pytest.raises(txpool.OperationalError, match="prepared by driver = delta"):
            end(xid)
    file.write_text(file.read_text().replace("driver = files", "driver = delta"))
    tables.scan()
    assert (tables.committed(), tables.left()) == ([1], [])
    txpool.configure(tables.site / "txpool.properties")
    assert heuristics() == []


@pytest.mark.parametrize("error", [OSError("stale handle"), KeyboardInterrupt()])
@pytest.mark.parametrize("step", ["commit", "sync_log", "remove_staged", "forget"])
def test_what_a_commit_leaves_recovery_finishes(
    step: str, error: BaseException, tables: Tables, monkeypatch: pytest.MonkeyPatch
) -> None:
    tables.create()
    tables.create("other", partition_by=["part"])

    def failing(*_: object) -> None:
        raise error

    interrupted = pytest.raises(KeyboardInterrupt) if isinstance(error, KeyboardInterrupt) else nullcontext()
    with monkeypatch.context() as patch:
        patch.setattr(branch, step, failing)
        with interrupted, txpool.transaction() as tx:
            tables.append(1, 2)
            tables.append(3, to="other")
    assert tx.status is txpool.Status.COMMITTED
    tables.scan()
    assert (tables.committed(), tables.committed("other")) == ([1, 2], [3])
    gone()
    tables.scan()  # what could not be removed is swept
    assert tables.left() == []
    assert tables.unnamed() == tables.unnamed("other") == set()
    txpool.configure(tables.site / "txpool.properties")
    assert heuristics() == []


@pytest.mark.parametrize("point", ["coordinator.begin", "coordinator.prepared", "log.record"])
def test_recovery_removes_what_nobody_decided(point: str, tables: Tables) -> None:
    tables.create()
    with failpoints.arming(point, "raise"), pytest.raises(txpool.Error), txpool.transaction():
        tables.append(1)
    gone()
    tables.scan()
    assert tables.committed() == []
    assert tables.left() == []
    assert tables.unnamed() == set()


def test_who_was_swept_cannot_prepare(tables: Tables) -> None:
    """A process that was taken for dead lives on."""
    tables.create()
    with pytest.raises(txpool.TransactionRolledBack), txpool.transaction():
        tables.append(1)
        (staged,) = tables.left()
        sweep(tables.resource().place, staged)
    assert tables.committed() == []


def test_what_is_in_doubt_outlives_a_vacuum_by_others(tables: Tables) -> None:
    """Also a full one without any retention: nothing of it is in the table's folder."""
    tables.create()
    resource, _ = tables.prepared(1)
    for full in (False, True):
        DeltaTable(str(tables.place / "orders")).vacuum(0, dry_run=False, enforce_retention_duration=False, full=full)
    assert StagedInPlace(resource.place).tables() == []
    tables.scan()
    assert tables.committed() == [1]


def test_others_append_while_it_is_in_doubt(tables: Tables) -> None:
    tables.create()
    tables.prepared(1)
    write_deltalake(str(tables.place / "orders"), pa.table({"n": [7], "part": ["x"]}, schema=SCHEMA), mode="append")
    tables.scan()
    assert tables.committed() == [1, 7]
    assert heuristics() == []


def test_others_append_between_the_look_and_the_commit(tables: Tables, monkeypatch: pytest.MonkeyPatch) -> None:
    tables.create()
    resource, xid = tables.prepared(1)
    commit, theirs = branch.commit, [7, 8]

    def later(*arguments: Any) -> bool:
        if theirs:
            rows = pa.table({"n": [theirs.pop()], "part": ["x"]}, schema=SCHEMA)
            write_deltalake(str(tables.place / "orders"), rows, mode="append")
        return commit(*arguments)

    monkeypatch.setattr(branch, "commit", later)
    assert resource.publish(xid) is BranchOutcome.COMMITTED
    assert tables.committed() == [1, 7, 8]


def test_a_table_that_others_change_all_the_time_is_left_to_recovery(
    tables: Tables, monkeypatch: pytest.MonkeyPatch
) -> None:
    tables.create()
    monkeypatch.setattr(branch, "_TRIES", 3)
    with monkeypatch.context() as patch:
        patch.setattr(branch, "commit", lambda *_: False)
        with txpool.transaction() as tx:
            tables.append(1)
    assert tx.unanswered == ["tables"]
    tables.scan()
    assert tables.committed() == [1]
    assert heuristics() == []


def test_two_recoveries_that_both_looked_do_not_append_twice(tables: Tables, monkeypatch: pytest.MonkeyPatch) -> None:
    """One is stopped between its look and its commit. The other comes, and waits, or ends it."""
    tables.create()
    _, xid = tables.prepared(1)
    looked, go, came = threading.Event(), threading.Event(), threading.Event()
    commit, flock = branch.commit, fcntl.flock

    def publish() -> None:
        tables.resource().publish(xid)

    first = threading.Thread(target=publish)

    def stopped(*arguments: Any) -> bool:
        if threading.current_thread() is first:
            looked.set()
            assert go.wait(60)
        return commit(*arguments)

    def noticed(file: Any, operation: int) -> None:
        try:
            flock(file, operation)
        except BlockingIOError:
            came.set()
            raise

    def second_publish() -> None:
        try:
            publish()
        finally:
            came.set()

    monkeypatch.setattr(branch, "commit", stopped)
    monkeypatch.setattr(fcntl, "flock", noticed)
    second = threading.Thread(target=second_publish)
    first.start()
    assert looked.wait(60)
    second.start()
    assert came.wait(60)
    go.set()
    first.join(60)
    second.join(60)
    assert tables.committed() == [1]
    assert transactions(tables.place / "orders") == [xid]
    assert tables.left() == []


def test_a_commit_after_the_look_of_another_is_seen(tables: Tables, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without any lock, as of a process on a host whose locks do not count: each version has one name."""
    tables.create()
    resource, xid = tables.prepared(1)
    commit = branch.commit

    def twice(*arguments: Any) -> bool:
        assert commit(*arguments)
        assert not commit(*arguments)
        return False

    monkeypatch.setattr(branch, "commit", twice)
    assert resource.publish(xid) is BranchOutcome.COMMITTED
    assert tables.committed() == [1]


def test_a_commit_and_a_rollback_at_once_agree(tables: Tables) -> None:
    tables.create()
    for number in range(10):
        resource, xid = tables.prepared(number)
        answers: list[BranchOutcome | None] = []
        threads = [
            threading.Thread(target=lambda end=end: answers.append(end(xid)))  # type: ignore[misc]
            for end in (resource.publish, tables.resource().withdraw)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        (ended,) = [each for each in answers if each is not None]
        assert (number in tables.committed()) is (ended is BranchOutcome.COMMITTED)
        assert tables.left() == []


def test_a_publication_that_has_begun_is_not_rolled_back(tables: Tables, monkeypatch: pytest.MonkeyPatch) -> None:
    tables.create()
    tables.create("other")
    resource, xid = tables.prepared(1, to=("orders", "other"))
    link = resource._link

    def failing(hidden: Any, manifest: Any, append: Any) -> None:
        if append.table == "other":
            raise OSError("stale handle")
        link(hidden, manifest, append)

    with monkeypatch.context() as patch:
        patch.setattr(resource, "_link", failing)
        with pytest.raises(OSError, match="stale handle"):
            resource.publish(xid)
    with pytest.raises(txpool.OperationalError, match="can only be committed"):
        resource.withdraw(xid)
    tables.scan()
    assert tables.committed() == tables.committed("other") == [1]


def test_a_rollback_removes_what_a_commit_had_linked_alone(tables: Tables) -> None:
    """An operator rolls back by hand what a commit has begun, and no log names."""
    tables.create(partition_by=["part"])
    resource, xid = tables.prepared(1)
    with failpoints.arming("delta.linked", "raise"), pytest.raises(failpoints.Failpoint):
        resource.publish(xid)
    assert tables.unnamed()
    theirs = tables.place / "orders" / "theirs.parquet"
    theirs.touch()
    assert resource.withdraw(xid) is BranchOutcome.ROLLED_BACK
    assert tables.unnamed() == {"theirs.parquet"}
    assert tables.left() == []


# -- the table has changed in doubt ---------------------------------------------------------------------------------


def kept(tables: Tables) -> set[str]:
    return {each.name for each in (tables.hidden / "unpublished").rglob("*.parquet")}


def test_a_constraint_that_came_in_doubt_and_that_the_rows_break_is_a_hazard(
    tables: Tables, caplog: pytest.LogCaptureFixture
) -> None:
    tables.create()
    tables.prepared(-1)
    DeltaTable(str(tables.place / "orders")).alter.add_constraint({"positive": "n > 0"})
    tables.scan()
    assert tables.committed() == []
    assert heuristics() == ["lost"]
    assert "failed validation check" in caplog.text
    assert str(tables.hidden / "unpublished") in caplog.text
    assert tables.left() == []
    assert kept(tables), "the rows are not thrown away"


@pytest.mark.parametrize("removed", [False, True])
def test_a_hazard_that_nobody_was_told_of_is_found_again(removed: bool, tables: Tables) -> None:
    """Who has found it is killed before it is in the decision log. Rows of another table were appended."""
    tables.create("more")
    tables.create()
    resource, xid = tables.prepared(-1, to=("more", "orders"))
    DeltaTable(str(tables.place / "orders")).alter.add_constraint({"positive": "n > 0"})
    if removed:
        (staged,) = (tables.hidden / "staged").iterdir()
        with failpoints.arming("delta.appended", lambda: shutil.rmtree(staged)):
            assert resource.publish(xid) is BranchOutcome.LOST
    else:
        assert resource.publish(xid) is BranchOutcome.LOST
    tables.scan()
    assert (tables.committed("more"), tables.committed()) == ([-1], [])
    assert heuristics() == ["lost"]
    assert tables.left() == []


def test_a_constraint_that_came_in_doubt_and_that_the_rows_keep_is_none(tables: Tables) -> None:
    tables.create(partition_by=["part"])
    tables.prepared(1)
    DeltaTable(str(tables.place / "orders")).alter.add_constraint({"positive": "n > 0"})
    tables.scan()
    assert tables.committed() == [1]
    assert heuristics() == []
    assert tables.left() == []


def test_a_constraint_that_comes_between_the_look_and_the_commit_is_seen(
    tables: Tables, monkeypatch: pytest.MonkeyPatch
) -> None:
    tables.create()
    resource, xid = tables.prepared(-1)
    commit = branch.commit

    def later(*arguments: Any) -> bool:
        DeltaTable(str(tables.place / "orders")).alter.add_constraint({"positive": "n > 0"})
        return commit(*arguments)

    monkeypatch.setattr(branch, "commit", later)
    assert resource.publish(xid) is BranchOutcome.LOST
    assert tables.committed() == []


def test_a_column_that_came_in_doubt_is_null(tables: Tables) -> None:
    tables.create()
    tables.prepared(1)
    from deltalake import Field

    DeltaTable(str(tables.place / "orders")).alter.add_columns(Field("more", "integer"))
    tables.scan()
    found = DeltaTable(str(tables.place / "orders")).to_pyarrow_table().to_pylist()
    assert found == [{"n": 1, "part": "a b", "more": None}]
    assert heuristics() == []


def test_a_log_that_cannot_be_read_decides_nothing(tables: Tables) -> None:
    """As of a restore that is under way."""
    tables.create()
    tables.prepared(1)
    log = tables.place / "orders" / "_delta_log"
    log.rename(tables.site / "log")
    log.mkdir()
    tables.scan()
    assert heuristics() == []
    log.rmdir()
    (tables.site / "log").rename(log)
    tables.scan()
    assert tables.committed() == [1]


@pytest.mark.parametrize("change", ["dropped", "replaced", "other types"])
def test_a_table_that_is_another_is_a_hazard(change: str, tables: Tables) -> None:
    tables.create()
    tables.create("other")
    tables.prepared(1, to=("orders", "other"))
    table = tables.place / "orders"
    if change == "other types":
        write_deltalake(str(table), pa.table({"n": ["x"]}), mode="overwrite", schema_mode="overwrite")
    else:
        shutil.rmtree(table)
    if change == "replaced":
        tables.create()
    tables.scan()
    assert tables.committed("other") == [1], "the others commit"
    if change != "dropped":
        assert tables.committed() == (["x"] if change == "other types" else [])
    assert heuristics() == ["lost"]
    assert tables.left() == []
    assert kept(tables)


def test_what_somebody_has_removed_is_a_hazard(tables: Tables) -> None:
    tables.create()
    tables.prepared(1)
    (staged,) = (tables.hidden / "staged").iterdir()
    for each in staged.rglob("*.parquet"):
        each.unlink()
    tables.scan()
    assert tables.committed() == []
    assert heuristics() == ["lost"]


def test_a_commit_whose_answer_was_lost_shows_in_the_log(tables: Tables, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also after a restore: the table's own log says who has appended."""
    tables.create()
    publish = branch.DeltaResource.publish

    def unheard(resource: branch.DeltaResource, xid: str) -> None:
        publish(resource, xid)
        raise OSError("no answer")

    with monkeypatch.context() as patch:
        patch.setattr(branch.DeltaResource, "publish", unheard)
        with txpool.transaction() as tx:
            tables.append(1)
    assert tx.unanswered == ["tables"]
    (tables.hidden / "generation").rename(tables.site / "generation")
    tables.scan()
    assert heuristics() == []
