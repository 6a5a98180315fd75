"""Resources of a user's own in transactions: they commit, vote to roll back, and are refused without a log."""

from __future__ import annotations

import time
from pathlib import Path
from threading import Event
from typing import Any

import pytest

import txpool
from tests.integration.resources.own.outboxes import left, sent
from tests.support.outbox import Message
from txpool.tm import manager as managers


def test_two_resources_commit_together(log: Path, outbox: Any, second: Any) -> None:
    with txpool.transaction() as tx:
        work = tx.enlist(outbox)
        assert tx.enlist(outbox) is work
        work.write(b"one")
        tx.enlist(second).write(b"two")
        assert (sent(outbox), sent(second)) == ([], [])
    assert (sent(outbox), sent(second), left(outbox), left(second)) == (["one"], ["two"], [], [])


def test_an_exception_leaves_nothing(log: Path, outbox: Any, second: Any) -> None:
    with pytest.raises(ValueError), txpool.transaction() as tx:
        tx.enlist(outbox).write(b"one")
        tx.enlist(second).write(b"two")
        raise ValueError
    assert (sent(outbox), sent(second), left(outbox), left(second)) == ([], [], [], [])


def test_one_alone_commits(log: Path, outbox: Any) -> None:
    with txpool.transaction() as tx:
        tx.enlist(outbox).write(b"one")
    assert (sent(outbox), left(outbox)) == (["one"], [])


def test_one_that_did_nothing_takes_no_part(log: Path, outbox: Any, second: Any) -> None:
    with txpool.transaction() as tx:
        tx.enlist(outbox)
        tx.enlist(second).write(b"two")
    assert (sent(outbox), sent(second), left(outbox)) == ([], ["two"], [])


def test_a_vote_to_roll_back(log: Path, outbox: Any, second: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def taken(file: Path, _: bytes) -> None:
        raise FileExistsError(file)

    monkeypatch.setitem(Message.prepare.__globals__, "create_file", taken)
    with pytest.raises(txpool.TransactionRolledBack, match="prepared already"), txpool.transaction() as tx:
        tx.enlist(outbox).write(b"one")
        tx.enlist(second).write(b"two")
    assert (sent(outbox), sent(second), left(outbox), left(second)) == ([], [], [], [])


def test_without_a_log_nothing_is_prepared(outbox: Any) -> None:
    with txpool.transaction() as tx, pytest.raises(txpool.ProgrammingError, match="needs a decision log"):
        tx.enlist(outbox)


def test_work_after_the_end_is_refused(log: Path, outbox: Any) -> None:
    with txpool.transaction() as tx:
        work = tx.enlist(outbox)
        work.write(b"one")
    with pytest.raises(txpool.ProgrammingError, match="has ended"):
        work.write(b"late")
    with pytest.raises(txpool.ProgrammingError, match="has ended"):
        tx.enlist(outbox)
    with pytest.raises(txpool.TransactionTimeout), txpool.transaction(timeout=0.05) as tx:
        work = tx.enlist(outbox)
        work.write(b"two")
        time.sleep(0.2)
        work.write(b"late")
    assert (sent(outbox), left(outbox)) == (["one"], [])


def test_a_dropped_transaction_rolls_back(log: Path, outbox: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    undone = Event()
    monkeypatch.setattr(Message, "rollback", lambda _: undone.set())

    def begun() -> Any:
        tx = managers.get_manager().new_transaction()
        work = tx.enlist(outbox)
        work.write(b"one")
        return work

    work = begun()
    assert undone.wait(60)
    assert (sent(outbox), left(outbox)) == ([], [])
    with pytest.raises(txpool.ProgrammingError):
        work.write(b"late")


@pytest.mark.parametrize("error", [OSError("no space left"), KeyboardInterrupt()])
@pytest.mark.parametrize("when", ["before", "after"])
def test_a_prepare_without_an_answer(
    when: str, error: BaseException, log: Path, outbox: Any, second: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    prepare = Message.prepare

    def failing(work: Any, xid: str) -> None:
        if work.hidden.parent == second.path:
            if when == "after":
                prepare(work, xid)
            raise error
        prepare(work, xid)

    monkeypatch.setattr(Message, "prepare", failing)
    expected = KeyboardInterrupt if isinstance(error, KeyboardInterrupt) else txpool.TransactionRolledBack
    with pytest.raises(expected), txpool.transaction() as tx:
        tx.enlist(outbox).write(b"one")
        tx.enlist(second).write(b"two")
    assert (sent(outbox), sent(second), left(outbox), left(second)) == ([], [], [], [])
