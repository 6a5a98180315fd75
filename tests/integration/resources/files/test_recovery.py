"""What a crash, or an error, leaves to recovery in a folder."""

from __future__ import annotations

import fcntl
import os
import shutil
import threading
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

import txpool
from tests.integration.resources.files.conftest import Exports, gone
from txpool import failpoints
from txpool.resources.base import BranchOutcome
from txpool.resources.files import branch, place
from txpool.resources.files.place import Place
from txpool.resources.files.work import PlaceWork
from txpool.tm import manager as managers


@pytest.mark.parametrize("error", [OSError("stale handle"), KeyboardInterrupt()])
@pytest.mark.parametrize("step", ["move_new", "exchange", "_succeed", "remove_tree", "forget"])
def test_what_a_commit_leaves_recovery_finishes(
    step: str, error: BaseException, exports: Exports, monkeypatch: pytest.MonkeyPatch
) -> None:
    with txpool.transaction():
        exports.write("a", "former")

    def failing(*_: object) -> None:
        raise error

    interrupted = pytest.raises(KeyboardInterrupt) if isinstance(error, KeyboardInterrupt) else nullcontext()
    with monkeypatch.context() as patch:
        patch.setattr(branch, step, failing)
        with interrupted, txpool.transaction() as tx:
            exports.write("b", "new")
            exports.write("a", "new", overwrite=True)
    assert tx.status is txpool.Status.COMMITTED
    exports.scan()
    assert exports.published() == exports.whole(a="new", b="new")
    gone()
    exports.scan()  # what could not be removed is swept
    assert exports.left() == []
    txpool.configure(exports.site / "txpool.properties")
    assert managers.get_manager().log.heuristics() == []


@pytest.mark.parametrize("point", ["coordinator.begin", "coordinator.prepared", "log.record"])
def test_recovery_removes_what_nobody_decided(point: str, exports: Exports) -> None:
    with failpoints.arming(point, "raise"), pytest.raises(txpool.Error), txpool.transaction():
        exports.write("a", "1")
    gone()
    exports.scan()
    assert exports.published() == {}
    assert exports.left() == []


def test_what_was_staged_and_never_prepared_is_swept_once_its_process_is_fenced(exports: Exports) -> None:
    """The journal: its name is durable before the first file."""
    tx = txpool.begin()
    exports.write("a", "1")
    txpool.suspend()
    staged = exports.left()
    assert len(staged) == 1
    exports.scan()
    assert exports.left() == staged, "its process lives"
    (exports.hidden / "staged" / "of-another-product").mkdir()
    txpool.resume(tx)
    work = tx.enlistment_in("exports")
    assert work is not None
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(PlaceWork, "rollback", lambda self: None)  # a process that dies removes nothing
        txpool.rollback()
    gone()
    exports.scan()
    assert exports.left() == ["of-another-product"]


def test_who_was_swept_cannot_prepare(exports: Exports) -> None:
    """A process that was taken for dead lives on."""
    with pytest.raises(txpool.TransactionRolledBack), txpool.transaction():
        exports.write("a", "1")
        (staged,) = exports.left()
        branch.sweep(Place("exports", str(exports.place)), staged)
    assert exports.published() == {}


def prepared(exports: Exports, *names: str, overwrite: bool = False) -> tuple[Place, str]:
    """A branch that a process has left prepared: its place, and its xid."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(branch.PlaceBranch, "end", lambda self, commit: BranchOutcome.UNKNOWN)
        with txpool.transaction():
            for name in names:
                exports.write(name, "new", overwrite=overwrite)
    (xid,) = [each.name for each in (exports.hidden / "prepared").iterdir()]
    return Place("exports", str(exports.place)), xid


def test_sweeping_leaves_what_is_prepared(exports: Exports) -> None:
    there, xid = prepared(exports, "a")
    (staged,) = [each.name for each in (exports.hidden / "staged").iterdir()]
    with pytest.raises(txpool.OperationalError, match="is prepared as"):
        branch.sweep(there, staged)
    assert branch.StagedInPlace(there).tables() == []
    assert branch.publish(there, xid) is BranchOutcome.COMMITTED
    assert exports.published() == exports.whole(a="new")


def test_40_two_who_both_looked_do_not_exchange_back(exports: Exports, monkeypatch: pytest.MonkeyPatch) -> None:
    """One is stopped between its look and its exchange. The other comes, and waits, or ends it."""
    with txpool.transaction():
        exports.write("a", "former")
    _, xid = prepared(exports, "a", overwrite=True)
    looked, go, came = threading.Event(), threading.Event(), threading.Event()
    exchange, flock = branch.exchange, fcntl.flock

    def publish() -> None:
        branch.publish(Place("exports", str(exports.place)), xid)

    first = threading.Thread(target=publish)

    def stopped(*arguments: Any) -> None:
        if threading.current_thread() is first:
            looked.set()
            assert go.wait(60)
        exchange(*arguments)

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

    monkeypatch.setattr(branch, "exchange", stopped)
    monkeypatch.setattr(fcntl, "flock", noticed)
    second = threading.Thread(target=second_publish)
    first.start()
    assert looked.wait(60)
    second.start()
    assert came.wait(60)
    go.set()
    first.join(60)
    second.join(60)
    assert exports.published() == exports.whole(a="new")
    assert exports.left() == []


def test_a_commit_and_a_rollback_at_once_agree(exports: Exports) -> None:
    for number in range(20):
        there, xid = prepared(exports, f"n{number}")
        answers: list[BranchOutcome | None] = []
        threads = [
            threading.Thread(target=lambda end=end: answers.append(end(there, xid)))  # type: ignore[misc]
            for end in (branch.publish, branch.withdraw)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        (ended,) = [each for each in answers if each is not None]
        assert (f"n{number}/_SUCCESS" in exports.published()) is (ended is BranchOutcome.COMMITTED)
        assert exports.left() == []


def test_a_publication_that_has_begun_is_not_rolled_back(exports: Exports, monkeypatch: pytest.MonkeyPatch) -> None:
    there, xid = prepared(exports, "a", "b")

    def failing(*_: object) -> None:
        raise OSError("stale handle")

    with monkeypatch.context() as patch:
        patch.setattr(branch, "_succeed", failing)
        with pytest.raises(OSError, match="stale handle"):
            branch.publish(there, xid)
    with pytest.raises(txpool.OperationalError, match="can only be committed"):
        branch.withdraw(there, xid)
    exports.scan()
    assert exports.published() == exports.whole(a="new", b="new")


def test_what_somebody_has_put_in_its_place_is_not_replaced(exports: Exports) -> None:
    """It stays in doubt, with the reason, until that is moved away."""
    prepared(exports, "a")
    (exports.place / "a").mkdir()
    (exports.place / "a" / "theirs").touch()
    exports.scan()
    assert exports.published() == {"a/theirs": ""}
    assert len(exports.left()) == 2
    (exports.place / "a").rename(exports.place / "moved")
    exports.scan()
    assert exports.published() == {**exports.whole(a="new"), "moved/theirs": ""}
    assert exports.left() == []


def test_what_somebody_has_removed_is_a_hazard(exports: Exports) -> None:
    prepared(exports, "a", "b")
    (staged,) = (exports.hidden / "staged").iterdir()
    shutil.rmtree(staged / "0")
    exports.scan()
    assert exports.published() == exports.whole(b="new")
    assert [each.ended for each in managers.get_manager().log.heuristics()] == ["lost"]
    assert exports.left() == []


@pytest.mark.parametrize("point", ["files.succeeded", ""])
def test_a_hazard_that_nobody_was_told_of_is_found_again(point: str, exports: Exports) -> None:
    """Who has found it is killed before it is in the decision log. The other folder says that the branch committed."""
    there, xid = prepared(exports, "a", "b")
    (staged,) = (exports.hidden / "staged").iterdir()
    shutil.rmtree(staged / "1")
    if point:
        with failpoints.arming(point, "raise"), pytest.raises(failpoints.Failpoint):
            branch.publish(there, xid)
    else:
        assert branch.publish(there, xid) is BranchOutcome.LOST
    exports.scan()
    assert exports.published() == exports.whole(a="new")
    assert [each.ended for each in managers.get_manager().log.heuristics()] == ["lost"]
    assert exports.left() == []


def test_a_commit_whose_answer_was_lost_shows_in_the_folder(exports: Exports, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also after a restore: the folder's own mark says who has published it."""
    publish = branch.publish

    def unheard(there: Place, xid: str) -> None:
        publish(there, xid)
        raise OSError("no answer")

    with monkeypatch.context() as patch:
        patch.setattr(branch, "publish", unheard)
        with txpool.transaction() as tx:
            exports.write("a", "new")
    assert tx.unanswered == ["exports"]
    (exports.hidden / "generation").rename(exports.site / "generation")
    exports.scan()
    assert managers.get_manager().log.heuristics() == []


def test_a_forked_child_does_not_keep_a_lock(exports: Exports) -> None:
    """A child that lives on behind its parent's death would keep recovery waiting."""
    there, xid = prepared(exports, "a")
    reader, writer = os.pipe()
    children: list[int] = []
    flock = fcntl.flock

    def forking(hidden: Any, name: str) -> None:
        pid = os.fork()
        if not pid:
            os.close(writer)
            os.read(reader, 1)  # until the parent has closed its end
            os._exit(0)
        children.append(pid)
        raise OSError("killed")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(branch, "forget", forking)
        # A process that is killed unlocks nothing.
        patch.setattr(fcntl, "flock", lambda file, how: None if how == fcntl.LOCK_UN else flock(file, how))
        with pytest.raises(OSError, match="killed"):
            branch.publish(there, xid)
    assert branch.publish(there, xid) is BranchOutcome.COMMITTED, "the child, which lives, holds no lock"
    os.close(writer)
    os.waitpid(children[0], 0)


def test_a_held_lock_is_named(exports: Exports, monkeypatch: pytest.MonkeyPatch) -> None:
    there, xid = prepared(exports, "a")
    monkeypatch.setattr(place, "WAIT", 0.0)
    with Path(exports.hidden / "prepared" / xid).open("r+b") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        with pytest.raises(txpool.OperationalError, match="has been held by another process"):
            branch.publish(there, xid)
    assert branch.publish(there, xid) is BranchOutcome.COMMITTED
