"""An interrupt before the decision rolls the transaction back; at any other moment it leaves the outcome as it is."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from types import FrameType

import pytest

import txpool
from recovery import RecoveryManager
from tests.integration.tm.three_databases import ThreeDatabases
from txpool import failpoints
from txpool.tm.manager import get_manager


def test_an_interrupt_while_the_end_waits_for_another_threads_statement_rolls_back(world: ThreeDatabases) -> None:
    def interrupt() -> None:
        while tx.active:
            time.sleep(0.01)
        time.sleep(0.2)  # it has come to wait by then
        os.kill(os.getpid(), signal.SIGINT)

    handler = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt), txpool.transaction() as tx:
            world.insert(world.one)
            executing = threading.Thread(target=world.one.connect().cursor().execute, args=("select pg_sleep(2)",))
            executing.start()
            asleep = "select 1 from pg_stat_activity where query = 'select pg_sleep(2)'"
            while not world.databases.rows("one", asleep):
                time.sleep(0.01)
            threading.Thread(target=interrupt).start()
    finally:
        signal.signal(signal.SIGINT, handler)
    executing.join()
    assert tx.status is txpool.Status.ROLLED_BACK
    assert world.one.statistics().taken == 0
    assert world.held == (0, 0, 0)


@pytest.mark.parametrize("fails", [False, True], ids=["commit", "rollback"])
def test_an_interrupt_while_a_connection_is_given_back_leaves_the_outcome_and_the_others(
    world: ThreeDatabases, fails: bool
) -> None:
    def interrupt(frame: FrameType, event: str, _: object) -> None:
        if event == "call" and frame.f_code.co_name == "give_back":
            sys.setprofile(None)
            raise KeyboardInterrupt

    told: list[txpool.Status] = []
    with pytest.raises(KeyboardInterrupt) as caught, txpool.transaction() as tx:
        world.insert(world.one)
        world.insert(world.two)
        tx.after_completion(told.append)
        sys.setprofile(interrupt)
        if fails:
            raise ValueError
    outcome = txpool.Status.ROLLED_BACK if fails else txpool.Status.COMMITTED
    assert [*told, tx.status] == [outcome, outcome]
    assert [note for note in caught.value.__notes__ if tx.gtrid in note and outcome.value in note]
    assert world.two.statistics().taken == 0
    assert world.held == ((0, 0, 0) if fails else (1, 1, 0))


def test_an_interrupt_in_a_callback_after_the_end_leaves_the_outcome_and_the_other_callbacks(
    world: ThreeDatabases,
) -> None:
    def interrupted(_: txpool.Status) -> None:
        raise KeyboardInterrupt

    told: list[txpool.Status] = []
    with pytest.raises(KeyboardInterrupt) as caught, txpool.transaction() as tx:
        world.insert(world.one)
        tx.after_completion(told.append)
        tx.after_completion(interrupted)
    assert told == [txpool.Status.COMMITTED]
    assert caught.value.__notes__ == [f"{tx.gtrid}: committed"]
    assert world.held == (1, 0, 0)


@pytest.mark.parametrize(
    ("point", "left"),
    [
        ("coordinator.preparing", (0, 0, 0)),
        ("coordinator.prepared", (0, 0, 0)),
        ("coordinator.decided", (1, 1, 0)),
        ("coordinator.committing", (1, 1, 0)),
    ],
)
def test_an_interrupt_before_the_decision_rolls_back_and_after_it_never(
    world: ThreeDatabases, point: str, left: tuple[int, int, int]
) -> None:
    handler = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with (
            failpoints.arming(point, "interrupt"),
            pytest.raises(KeyboardInterrupt) as raised,
            txpool.transaction(),
        ):
            world.insert(world.one, world.two)
    finally:
        signal.signal(signal.SIGINT, handler)
    assert ("rolled back" if left == (0, 0, 0) else "committed") in raised.value.__notes__[0]
    log = get_manager().log
    RecoveryManager(log=log, datasources=[world.one, world.two, world.ledger], backoff=0).scan()
    assert world.held == left
    assert world.databases.prepared() == []
