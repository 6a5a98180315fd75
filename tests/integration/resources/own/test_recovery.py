"""What is left to recovery of a resource of a user's own."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

import txpool
from tests.integration.resources.own.outboxes import file_of, gone, left, recover, sent
from txpool import failpoints
from txpool.resource import find
from txpool.tm import manager as managers


@pytest.mark.parametrize("error", [OSError("stale handle"), KeyboardInterrupt()])
def test_what_a_commit_leaves_recovery_finishes(
    error: BaseException, log: Path, outbox: Any, second: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    paths = file_of(outbox, log), file_of(second, log)

    def failing(xid: str) -> bool:
        raise error

    monkeypatch.setattr(second, "commit", failing)
    interrupted = pytest.raises(KeyboardInterrupt) if isinstance(error, KeyboardInterrupt) else nullcontext()
    with interrupted, txpool.transaction() as tx:
        tx.enlist(outbox).write(b"one")
        tx.enlist(second).write(b"two")
    assert (sent(outbox), sent(second)) == (["one"], [])
    assert tx.status is txpool.Status.COMMITTED
    assert tx.unanswered == ["others"]
    recover(log, *paths)
    assert (sent(outbox), sent(second), left(second)) == (["one"], ["two"], [])


def test_a_person_who_rolls_back_is_seen(log: Path, outbox: Any, second: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Absent at the coordinator's own first COMMIT: rule 34."""
    commit = outbox.commit

    def after_somebody(xid: str) -> bool:
        assert outbox.rollback(xid)
        return bool(commit(xid))

    monkeypatch.setattr(outbox, "commit", after_somebody)
    with pytest.raises(txpool.HeuristicHazard), txpool.transaction() as tx:
        tx.enlist(outbox).write(b"one")
        tx.enlist(second).write(b"two")
    assert (sent(outbox), sent(second)) == ([], ["two"])


@pytest.mark.parametrize("restored", [False, True])
def test_a_commit_whose_answer_was_lost(
    restored: bool, log: Path, outbox: Any, second: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is no hazard, unless the folder was restored from a copy since: rule 34."""
    paths = file_of(outbox, log), file_of(second, log)
    commit = outbox.commit

    def unheard(xid: str) -> bool:
        commit(xid)
        raise OSError("no answer")

    monkeypatch.setattr(outbox, "commit", unheard)
    with txpool.transaction() as tx:
        tx.enlist(outbox).write(b"one")
        tx.enlist(second).write(b"two")
    assert tx.unanswered == ["outbox"]
    if restored:
        generation = outbox.hidden / "generation"
        generation.rename(outbox.path.with_name("former"))
        generation.touch()
    recover(log, *paths)
    assert (sent(outbox), sent(second), left(outbox)) == (["one"], ["two"], [])
    assert [each.ended for each in managers.get_manager().log.heuristics()] == (["lost"] if restored else [])


def test_recovery_rolls_back_what_nobody_decided(log: Path, outbox: Any, second: Any) -> None:
    paths = file_of(outbox, log), file_of(second, log)
    outbox.identity()
    for name in ("another-product-7", "0123456789abcdef.new"):  # the second is what a crash within PREPARE leaves
        (outbox.hidden / name).touch()
    with failpoints.arming("log.record", "raise"), pytest.raises(txpool.TransactionError), txpool.transaction() as tx:
        tx.enlist(outbox).write(b"one")
        tx.enlist(second).write(b"two")
    gone()
    recover(log, *paths)
    assert (sent(outbox), sent(second), left(second)) == ([], [], [])
    assert left(outbox) == ["0123456789abcdef.new", "another-product-7"]


@pytest.mark.parametrize("error", [OSError("stale handle"), KeyboardInterrupt()])
def test_one_alone_is_decided_and_so_its_commit_is_tried_again(
    error: BaseException, log: Path, outbox: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """This process lives, and nobody else ends what it has prepared."""
    commit, errors = outbox.commit, [error]

    def failing_once(xid: str) -> bool:
        if errors:
            raise errors.pop()
        return bool(commit(xid))

    monkeypatch.setattr(outbox, "commit", failing_once)
    interrupted = pytest.raises(KeyboardInterrupt) if isinstance(error, KeyboardInterrupt) else nullcontext()
    with interrupted, txpool.transaction() as tx:
        tx.enlist(outbox).write(b"one")
    assert tx.status is txpool.Status.COMMITTED
    recover(log, file_of(outbox, log))
    assert (sent(outbox), left(outbox)) == (["one"], [])


def alone_and_killed(log: Path, outbox: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that dies behind the decision of one that is alone."""

    def dying(xid: str) -> bool:
        raise SystemExit

    with monkeypatch.context() as patch:
        patch.setattr(outbox, "commit", dying)
        with pytest.raises(SystemExit), txpool.transaction() as tx:
            tx.enlist(outbox).write(b"one")
    gone()


def test_one_alone_is_recovered(log: Path, outbox: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    alone_and_killed(log, outbox, monkeypatch)
    assert len(left(outbox)) == 1
    recover(log, file_of(outbox, log))
    assert (sent(outbox), left(outbox)) == (["one"], [])


def test_recovery_finds_the_file_by_the_note(
    log: Path, outbox: Any, second: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its own configuration does not name it: rule 33."""
    alone_and_killed(log, find(file_of(outbox, log)), monkeypatch)
    assert len(left(outbox)) == 1
    recover(log, file_of(second, log))
    assert (sent(outbox), left(outbox)) == (["one"], [])
