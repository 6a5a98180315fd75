"""transaction(), begin and its kin: what is ambient where, and how a block ends."""

from __future__ import annotations

import asyncio
import os
import pickle
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from contextvars import copy_context

import pytest
from pyspark import cloudpickle

import txpool
from txpool import Status
from txpool.tm.transaction import Transaction


def test_a_block_commits() -> None:
    with txpool.transaction() as tx:
        assert txpool.current() is tx
        assert tx.status is Status.ACTIVE
    assert tx.status is Status.COMMITTED
    assert txpool.current() is None


def test_an_exception_rolls_back_and_passes() -> None:
    with pytest.raises(ZeroDivisionError), txpool.transaction() as tx:
        raise ZeroDivisionError
    assert tx.status is Status.ROLLED_BACK
    assert txpool.current() is None


def test_a_nested_block_joins() -> None:
    with txpool.transaction() as outer:
        with txpool.transaction() as inner:
            assert inner is outer
        assert outer.status is Status.ACTIVE
    assert outer.status is Status.COMMITTED


def test_a_nested_blocks_exception_marks_the_whole_rollback_only() -> None:
    with pytest.raises(txpool.TransactionRolledBack, match="inner block failed") as raised, txpool.transaction() as tx:
        with pytest.raises(ZeroDivisionError), txpool.transaction():
            raise ZeroDivisionError("the reason")
        assert tx.status is Status.MARKED_ROLLBACK
    assert tx.status is Status.ROLLED_BACK
    assert isinstance(raised.value.__cause__, ZeroDivisionError)
    assert raised.value.gtrid == tx.gtrid


def test_a_block_cannot_be_entered_twice_at_once() -> None:
    """Else its second end would be the first one's, too. One behind the other is as two blocks."""
    block = txpool.transaction()
    for _ in range(2):
        with block as tx:
            inner = txpool.transaction()
            for _ in range(2):
                with inner:
                    for each in (block, inner):
                        with pytest.raises(txpool.ProgrammingError, match="entered before"), each:
                            pass
        assert tx.status is Status.COMMITTED
    assert txpool.current() is None


def test_a_block_cannot_be_shared_by_two_threads() -> None:
    block = txpool.transaction()
    refused: list[BaseException] = []

    def enter() -> None:
        try:
            with block:
                pass
        except BaseException as error:
            refused.append(error)

    with block as tx:
        thread = threading.Thread(target=enter)
        thread.start()
        thread.join()
    assert [type(each) for each in refused] == [txpool.ProgrammingError]
    assert tx.status is Status.COMMITTED


def test_a_block_that_was_refused_can_be_entered_later() -> None:
    refused = txpool.transaction()
    with pytest.raises(txpool.TransactionRolledBack), txpool.transaction() as tx:
        tx.set_rollback_only()
        with pytest.raises(txpool.ProgrammingError, match="rollback-only"), refused:
            pass
    with refused as tx:
        pass
    assert tx.status is Status.COMMITTED


def test_a_block_that_an_interrupt_has_kept_from_its_end_can_be_entered_later(monkeypatch: pytest.MonkeyPatch) -> None:
    block = txpool.transaction()

    def strike(*_: object) -> None:
        raise KeyboardInterrupt

    def work() -> Transaction:
        with block as begun:
            return begun

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(txpool.transaction, "must_end", strike)
        work()
    assert work().status is Status.COMMITTED


def test_no_block_can_join_what_can_only_roll_back() -> None:
    with pytest.raises(txpool.TransactionRolledBack), txpool.transaction() as tx:
        tx.set_rollback_only()
        with pytest.raises(txpool.ProgrammingError, match="rollback-only"), txpool.transaction():
            pass


def test_begin_commit_rollback_status() -> None:
    assert txpool.status() is None
    tx = txpool.begin()
    assert txpool.status() is Status.ACTIVE
    txpool.commit()
    assert tx.status is Status.COMMITTED
    assert txpool.current() is None
    tx = txpool.begin()
    txpool.rollback()
    assert tx.status is Status.ROLLED_BACK
    for end in (txpool.commit, txpool.rollback):
        with pytest.raises(txpool.ProgrammingError, match="there is no transaction"):
            end()


def test_begin_in_a_transaction_is_refused() -> None:
    tx = txpool.begin()
    with pytest.raises(txpool.ProgrammingError, match=tx.gtrid):
        txpool.begin()
    txpool.rollback()


def test_only_leaving_ends_a_block() -> None:
    with txpool.transaction() as tx:
        for end in (tx.commit, tx.rollback, txpool.commit, txpool.rollback):
            with pytest.raises(txpool.ProgrammingError, match=r"ends with its `with transaction\(\)` block"):
                end()
        assert tx.status is Status.ACTIVE
    assert tx.status is Status.COMMITTED


def test_an_ended_transaction_cannot_end_again() -> None:
    with txpool.transaction() as tx:
        pass
    for end in (tx.commit, tx.rollback):
        with pytest.raises(txpool.ProgrammingError, match="has ended"):
            end()


def test_suspend_and_resume() -> None:
    tx = txpool.begin()
    assert txpool.suspend() is tx
    assert txpool.current() is None
    with txpool.transaction() as other:
        assert other is not tx
        with pytest.raises(txpool.ProgrammingError, match=other.gtrid):
            txpool.resume(tx)
    txpool.resume(tx)
    txpool.commit()
    assert tx.status is Status.COMMITTED
    with pytest.raises(txpool.ProgrammingError, match="has ended"):
        txpool.resume(tx)


def test_set_rollback_only() -> None:
    with pytest.raises(txpool.TransactionRolledBack, match="rollback-only"), txpool.transaction() as tx:
        tx.set_rollback_only()


def test_callbacks_come_in_order() -> None:
    heard: list[object] = []
    with txpool.transaction() as tx:
        tx.before_completion(lambda: heard.append("interposed"), interposed=True)
        tx.before_completion(lambda: heard.append("first"))
        tx.before_completion(lambda: heard.append(txpool.current() is tx))
        tx.after_completion(lambda status: heard.append(("outer", status)))
        tx.after_completion(lambda status: heard.append(("inner", status)))
        assert heard == []
    assert heard == ["first", True, "interposed", ("inner", Status.COMMITTED), ("outer", Status.COMMITTED)]


def test_before_completion_may_register_more_and_is_left_out_of_a_rollback() -> None:
    heard: list[str] = []
    with txpool.transaction() as tx:
        tx.before_completion(lambda: tx.before_completion(lambda: heard.append("second")))
    assert heard == ["second"]
    with pytest.raises(ZeroDivisionError), txpool.transaction() as tx:
        tx.before_completion(lambda: heard.append("never"))
        raise ZeroDivisionError
    assert heard == ["second"]


def test_a_failing_before_completion_forces_rollback_and_stops_the_rest() -> None:
    heard: list[object] = []
    with pytest.raises(txpool.TransactionRolledBack, match="division by zero"), txpool.transaction() as tx:
        tx.before_completion(lambda: 1 / 0)
        tx.before_completion(lambda: heard.append("never"))
        tx.after_completion(heard.append)
    assert heard == [Status.ROLLED_BACK]


def test_a_failing_after_completion_changes_nothing(caplog: pytest.LogCaptureFixture) -> None:
    heard: list[object] = []
    with txpool.transaction() as tx:
        tx.after_completion(heard.append)
        tx.after_completion(lambda _: 1 / 0)
    assert tx.status is Status.COMMITTED
    assert heard == [Status.COMMITTED]
    assert "the outcome stands" in caplog.text


def test_a_thread_starts_with_none() -> None:
    seen: list[object] = []
    with txpool.transaction():
        thread = threading.Thread(target=lambda: seen.append(txpool.current()))
        thread.start()
        thread.join()
    assert seen == [None]


def test_asyncio_tasks_have_each_their_own_and_inherit_their_creators() -> None:
    async def own(seen: list[str]) -> None:
        with txpool.transaction() as tx:
            await asyncio.sleep(0)
            assert txpool.current() is tx
            seen.append(tx.gtrid)

    async def inherited() -> object:
        return txpool.current()

    async def main() -> None:
        seen: list[str] = []
        await asyncio.gather(*(own(seen) for _ in range(10)))
        assert len(set(seen)) == 10
        with txpool.transaction() as tx:
            assert await asyncio.create_task(inherited()) is tx

    asyncio.run(main())


def test_a_cancelled_task_rolls_back() -> None:
    async def main() -> txpool.Transaction:
        seen: list[txpool.Transaction] = []

        async def work() -> None:
            with txpool.transaction() as tx:
                seen.append(tx)
                await asyncio.Event().wait()

        task = asyncio.create_task(work())
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        return seen[0]

    assert asyncio.run(main()).status is Status.ROLLED_BACK


def test_a_timeout_marks_rollback_only() -> None:
    expired = threading.Event()
    with pytest.raises(txpool.TransactionTimeout, match=r"0\.05 s"), txpool.transaction(timeout=0.05) as tx:
        tx.on_cancel(expired.set)
        assert expired.wait(60)
        assert tx.status is Status.MARKED_ROLLBACK
    assert tx.status is Status.ROLLED_BACK


def test_a_timeout_does_not_outlive_its_transaction() -> None:
    for seconds in (0.05, 1.0, 60.0):  # on a busy machine the block may take longer
        expired = threading.Event()
        with suppress(txpool.TransactionTimeout), txpool.transaction(timeout=seconds) as tx:
            tx.on_cancel(expired.set)
        if tx.status is Status.COMMITTED:
            break
    assert not expired.wait(2 * seconds)
    assert tx.status is Status.COMMITTED


def test_what_being_cancelled_looked_like_is_the_cause_of_the_timeout() -> None:
    expired = threading.Event()
    with pytest.raises(txpool.TransactionTimeout) as raised, txpool.transaction(timeout=0.05) as tx:
        tx.on_cancel(expired.set)
        assert expired.wait(60)
        raise OSError("canceling statement")
    assert isinstance(raised.value.__cause__, OSError)


def test_a_scoped_value_lives_as_long_as_its_transaction() -> None:
    closed: list[list[int]] = []
    basket: txpool.TransactionScoped[list[int]] = txpool.TransactionScoped(list, closed.append)
    with pytest.raises(txpool.ProgrammingError, match="only within a transaction"):
        basket()
    for number in (1, 2):
        with txpool.transaction():
            basket().append(number)
            assert basket() == [number]
    assert closed == [[1], [2]]


def test_observers_hear_of_every_transaction() -> None:
    heard: list[tuple[str, str]] = []
    phases = ("begin", "before", "success", "failure")
    for phase in phases:
        txpool.observe(lambda tx, phase=phase: heard.append((phase, tx.gtrid)), phase)  # type: ignore[misc]
    with txpool.transaction() as good:
        pass
    with pytest.raises(ZeroDivisionError), txpool.transaction() as bad:
        raise ZeroDivisionError
    assert [phase for phase, gtrid in heard if gtrid == good.gtrid] == ["begin", "before", "success"]
    assert [phase for phase, gtrid in heard if gtrid == bad.gtrid] == ["begin", "failure"]


def test_an_observer_of_no_phase_is_refused() -> None:
    with pytest.raises(txpool.ProgrammingError, match="no phase 'nope' to observe: these are begin, before"):
        txpool.observe(lambda _: None, "nope")  # type: ignore[arg-type]


def test_observers_are_the_process_s_whatever_is_configured_after() -> None:
    heard: list[str] = []
    txpool.observe(lambda tx: heard.append(tx.gtrid), "success")
    txpool.configure(node_name="later", log_url="memory:")
    with txpool.transaction() as tx:
        pass
    assert tx.gtrid in heard


def test_a_forked_child_has_none_and_cannot_end_its_parents() -> None:
    txpool.configure(node_name="etl-1", log_url="memory:")
    with txpool.transaction() as tx:
        child = os.fork()
        if child == 0:
            refused = False
            try:
                tx.commit()
            except txpool.ProgrammingError:
                refused = True
            with txpool.transaction() as own:
                fresh = own.gtrid.split(":")[2] != tx.gtrid.split(":")[2]
            os._exit(0 if refused and fresh and txpool.current() is None else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert tx.status is Status.COMMITTED


def test_current_travels_with_a_function_that_names_it() -> None:
    source = "from txpool import current\ndef write(rows): return current()"
    namespace: dict[str, object] = {"__name__": "__main__"}
    exec(source, namespace)
    assert pickle.loads(cloudpickle.dumps(namespace["write"]))([]) is None


def test_what_was_begun_and_never_ended_is_told_at_the_end() -> None:
    source = "import txpool; txpool.begin()"
    done = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True, check=True)
    assert "was begun, and the program ends without an end to it: what was done within it rolls back" in done.stderr
    assert "It was begun at <string>:1, in <module>" in done.stderr


def test_an_interrupted_begin_leaves_nothing_ambient(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(transaction: Transaction | None) -> None:
        if transaction is not None:
            raise KeyboardInterrupt

    assert "pyspark" in sys.modules
    monkeypatch.setattr("txpool.tm.ambient.publish", interrupt)
    for start in (txpool.begin, txpool.transaction().__enter__):
        with pytest.raises(KeyboardInterrupt):
            start()
        assert txpool.current() is None


def test_it_does_not_commit_while_another_thread_makes_something_a_part_of_it() -> None:
    growing, ended = threading.Event(), threading.Event()

    def grow(tx: Transaction) -> None:
        with tx.defer_commit():
            growing.set()
            ended.wait(60)

    so = "another thread was still adding work to it"
    with pytest.raises(txpool.TransactionRolledBack, match=so), txpool.transaction() as tx:
        thread = threading.Thread(target=grow, args=[tx])
        thread.start()
        growing.wait(60)
    ended.set()
    thread.join()
    with txpool.transaction() as tx:
        grow(tx)
    assert tx.status is Status.COMMITTED


@pytest.mark.parametrize("begun_by", [txpool.begin, txpool.transaction().__enter__])
def test_the_work_of_one_that_was_given_up_begins_no_other(begun_by: Callable[[], object]) -> None:
    """As in the thread of a web request that was cancelled, and whose first half has rolled back."""
    tx = txpool.begin()
    elsewhere = copy_context()
    tx.abandoned = True
    txpool.rollback()
    with pytest.raises(txpool.ProgrammingError, match="was given up and rolls back: its work cannot go on in another"):
        elsewhere.run(begun_by)
