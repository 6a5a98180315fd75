"""A transaction that has one participant: whatever strikes, and wherever, its result is what the database says."""

from __future__ import annotations

import gc
import itertools
import sqlite3
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

import txpool
from tests.models.coordinator import ConnectionLost, FailingCalls, ModelBranch
from tests.support.opcodes import trace_opcodes
from txpool import Status, failpoints
from txpool.resources.base import BranchOutcome
from txpool.tm.commit.coordinator import Coordinator
from txpool.tm.commit.one_phase import commit_alone, commit_participant
from txpool.tm.commit.request import Outcome, Result
from txpool.tm.transaction import Transaction

pytestmark = pytest.mark.usefixtures("nobody_watches")

STATES = {Outcome.COMMITTED: "committed", Outcome.ROLLED_BACK: "rolled back"}


class Refusing(ModelBranch):
    """Its database answers COMMIT by a rollback."""

    failure = ConnectionLost("refused")

    def commit_one_phase(self) -> BranchOutcome:
        return self._end("rolled back", BranchOutcome.ROLLED_BACK)


def struck_at(number: int, branch: ModelBranch) -> Result | None:
    """The result of a commit with an interrupt before that instruction of `commit_participant`; None where it raises.

    The result has no interrupt where there are fewer instructions.
    """
    seen = itertools.count(1)

    def trace(frame: FrameType, event: str, _: Any) -> Any:
        if frame.f_code is not commit_participant.__code__:
            return None
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        if event == "opcode" and next(seen) == number:
            raise KeyboardInterrupt
        return trace

    traced, result = sys.gettrace(), Result(Outcome.COMMITTED, "gtrid")
    trace_opcodes(trace)
    try:
        commit_alone(branch, result, lambda: None)
    except KeyboardInterrupt:
        return None
    finally:
        sys.settrace(traced)
    return result


@pytest.mark.parametrize("kind", [ModelBranch, Refusing])
def test_an_interrupt_at_every_instruction_leaves_the_outcome_true(kind: type[ModelBranch]) -> None:
    answered, in_doubt = 0, 0
    struck_at(0, kind(FailingCalls({}), "one"))  # Python 3.12 and later trace instructions from the second run on
    for number in itertools.count(1):
        branch = kind(FailingCalls({}), "one")
        result = struck_at(number, branch)
        if result is None:  # nothing was sent
            assert branch.state == "open"
            continue
        if result.interrupt is None:
            break
        if result.outcome is Outcome.IN_DOUBT:
            in_doubt += 1
            assert not result.resolvable
        else:
            answered += 1
            assert STATES[result.outcome] == branch.state
            assert result.resolvable
    assert answered > 2
    assert in_doubt > 2


@pytest.mark.parametrize(("when", "state"), [("before", "open"), ("after", "committed")])
def test_a_lost_answer_is_in_doubt_for_good(when: str, state: str) -> None:
    branch = ModelBranch(FailingCalls({0: (when, ConnectionLost)}), "one")
    result = Result(Outcome.COMMITTED, "gtrid")
    commit_alone(branch, result, lambda: None)
    assert branch.state == state
    assert (result.outcome, result.resolvable) == (Outcome.IN_DOUBT, False)
    assert isinstance(result.cause, ConnectionLost)


def test_a_rollback_cause_comes_before_all_else() -> None:
    branch, cause = ModelBranch(FailingCalls({}), "one"), ValueError("too late")
    with pytest.raises(ValueError, match="too late"):
        commit_alone(branch, Result(Outcome.COMMITTED, "gtrid"), lambda: cause)
    assert branch.state == "open"


# -- before the COMMIT is sent ------------------------------------------------------------------------------------


def interrupt() -> None:
    raise KeyboardInterrupt


def mark_rollback_only() -> None:
    transaction = txpool.current()
    assert transaction is not None
    transaction.set_rollback_only()


class OneTable:
    """A datasource with an empty table."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "one.db"
        self.source = txpool.DataSource(name="one", driver="sqlite3", mode="local", url=f"sqlite:///{self.path}")
        with txpool.transaction():
            self.source.connect().execute("create table t (a integer)")

    def insert(self) -> Transaction:
        """A row, in the ambient transaction."""
        self.source.connect().execute("insert into t values (1)")
        transaction = txpool.current()
        assert transaction is not None
        return transaction

    def rows(self) -> int:
        reader = sqlite3.connect(self.path)
        try:
            ((count,),) = reader.execute("select count(*) from t")
            return int(count)
        finally:
            reader.close()


@pytest.mark.parametrize(
    ("action", "error"), [(interrupt, KeyboardInterrupt), (mark_rollback_only, txpool.TransactionRolledBack)]
)
def test_what_comes_before_the_commit_is_sent_rolls_back(
    tmp_path: Path, action: Callable[[], None], error: type[BaseException]
) -> None:
    table = OneTable(tmp_path)
    with failpoints.arming("coordinator.begin", action), pytest.raises(error) as raised, txpool.transaction() as tx:
        table.insert()
    assert tx.status is Status.ROLLED_BACK
    assert "rolled back" in "".join([str(raised.value), *getattr(raised.value, "__notes__", ())])
    assert table.source.pool.statistics().taken == 0
    assert table.rows() == 0
    table.source.close()


def test_an_interrupt_while_a_failure_is_handled_leaves_nothing_open(tmp_path: Path) -> None:
    """It comes where a function begins, as Python has it: at each one between the failure and the rollback."""
    table = OneTable(tmp_path)
    for number in itertools.count(1):
        struck = fail_and_interrupt(table, number)
        until = time.monotonic() + 10
        while table.source.pool.statistics().taken and time.monotonic() < until:
            gc.collect()  # its error refers to it
            time.sleep(0.01)  # a thread rolls back what nobody can end any more
        assert table.source.pool.statistics().taken == 0, struck
        assert table.rows() == 0
        if not struck:
            break
    assert number > 4
    table.source.close()


def fail_and_interrupt(table: OneTable, number: int) -> str:
    """Mark a transaction rollback-only as it commits, and interrupt the number-th function after that.

    Returns its name; an empty one where the rollback begins before it.
    """
    seen, struck, rolling_back = itertools.count(1), "", False

    def trace(frame: FrameType, event: str, _: Any) -> None:
        nonlocal struck, rolling_back
        rolling_back = rolling_back or frame.f_code is Coordinator.rollback.__code__
        if not struck and not rolling_back and next(seen) == number:
            struck = frame.f_code.co_qualname
            raise KeyboardInterrupt

    def fail() -> None:
        mark_rollback_only()
        trace_opcodes(trace)

    traced = sys.gettrace()
    gc.disable()  # a finaliser is not to be struck
    try:
        with failpoints.arming("coordinator.begin", fail), txpool.transaction():
            table.insert()
    except (KeyboardInterrupt, txpool.TransactionRolledBack):
        pass
    finally:
        sys.settrace(traced)
        gc.enable()
    return struck
