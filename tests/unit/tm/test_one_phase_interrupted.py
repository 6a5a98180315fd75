"""A commit of one participant: interrupts on the way to the rollback, and behind the COMMIT."""

from __future__ import annotations

import gc
import itertools
import sqlite3
import sys
from contextlib import closing
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

import txpool
from tests.support.opcodes import trace_opcodes
from txpool import Status, failpoints
from txpool.tm import transaction as transaction_module
from txpool.tm.commit import coordinator, one_phase
from txpool.tm.completion import completion

pytestmark = pytest.mark.usefixtures("nobody_watches")


def marked_and_struck_at(number: int, source: txpool.DataSource) -> tuple[txpool.Transaction, bool]:
    """Mark it rollback-only while it commits, and interrupt it in that call of those that follow; whether one came."""
    files = {one_phase.__file__, coordinator.__file__, completion.__file__, transaction_module.__file__}
    marked, struck, seen = False, False, 0

    def mark() -> None:
        nonlocal marked
        tx.set_rollback_only()
        marked = True

    def trace(frame: FrameType, event: str, _: Any) -> Any:
        nonlocal struck, seen
        if frame.f_code.co_filename not in files:
            return None
        if event == "call" and marked and not struck:
            seen += 1
            if seen == number:
                struck = True
                raise KeyboardInterrupt
        return None

    traced, tx = sys.gettrace(), txpool.begin()
    source.connect().execute("insert into t values (1)")
    gc.disable()  # a finaliser is not to be struck
    trace_opcodes(trace)
    try:
        with failpoints.arming("coordinator.begin", mark):
            txpool.commit()
    except (KeyboardInterrupt, txpool.TransactionRolledBack):
        pass
    finally:
        sys.settrace(traced)
        gc.enable()
    return tx, struck


def test_an_interrupt_on_the_way_from_a_failure_to_the_rollback_keeps_no_lock(tmp_path: Path) -> None:
    path = tmp_path / "one.db"
    # An interrupt after the rollback may keep its connection until the transaction is dropped.
    options: dict[str, Any] = {"driver": "sqlite3", "mode": "local", "pool_max_size": 500}
    with txpool.DataSource(name="one", url=f"sqlite:///{path}", **options) as source:
        with txpool.transaction():
            source.connect().execute("create table t (a integer)")
        other = sqlite3.connect(path, timeout=0, isolation_level=None)
        for number in itertools.count(1):
            tx, struck = marked_and_struck_at(number, source)
            assert tx.status is Status.ROLLED_BACK
            other.execute("begin immediate")  # nobody has the lock
            other.execute("rollback")
            if not struck:
                break
        assert number > 10
        assert other.execute("select count(*) from t").fetchone() == (0,)
        other.close()


def test_an_interrupt_as_the_commit_returns_leaves_it_committed(tmp_path: Path) -> None:
    path = tmp_path / "one.db"
    committed, struck = False, False

    def trace(frame: FrameType, event: str, _: Any) -> Any:
        nonlocal committed, struck
        if frame.f_code is one_phase.commit_alone.__code__:
            committed = committed or event == "return"
            return trace
        if frame.f_code is not txpool.Transaction._end.__code__:
            return None
        frame.f_trace_opcodes = True
        if event == "opcode" and committed and not struck:
            struck = True
            raise KeyboardInterrupt
        return trace

    with txpool.DataSource(name="one", driver="sqlite3", mode="local", url=f"sqlite:///{path}") as source:
        with txpool.transaction():
            source.connect().execute("create table t (a integer)")
        traced, tx = sys.gettrace(), txpool.begin()
        source.connect().execute("insert into t values (1)")
        trace_opcodes(trace)
        try:
            with pytest.raises(KeyboardInterrupt):
                txpool.commit()
        finally:
            sys.settrace(traced)
        assert struck
        assert tx.status is Status.COMMITTED
        with closing(source.connect()) as connection:
            assert connection.execute("select count(*) from t").fetchone() == (1,)
