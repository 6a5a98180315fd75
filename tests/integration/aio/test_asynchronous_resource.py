"""A resource of one's own whose methods are coroutines."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from threading import Thread
from time import monotonic
from typing import Any

import pytest

import txpool
from tests.integration.aio.two_databases import TwoDatabases, struck_at
from tests.support.outbox import Message, Outbox
from tests.support.waiting import until
from txpool.resources.base import BranchOutcome
from txpool.resources.own.awaited import Waits
from txpool.resources.own.branch import ResourceRecovery, begin_work

#: The loops in which its methods ran.
ran_in: list[object] = []


async def elsewhere() -> None:
    ran_in.append(asyncio.get_running_loop())
    await asyncio.sleep(0)


class AsyncMessage(Message):  # type: ignore[misc]
    async def prepare(self, xid: str) -> None:
        await elsewhere()
        super().prepare(xid)

    async def rollback(self) -> None:
        await elsewhere()
        super().rollback()


class AsyncOutbox(Outbox):  # type: ignore[misc]
    async def identity(self) -> str:
        await elsewhere()
        return str(super().identity())

    async def generation(self) -> str:
        await elsewhere()
        return str(super().generation())

    async def begin(self) -> AsyncMessage:
        await elsewhere()
        return AsyncMessage(self.hidden)

    async def prepared(self) -> list[str]:
        await elsewhere()
        return [*super().prepared()]

    async def commit(self, xid: str) -> bool:
        await elsewhere()
        return bool(super().commit(xid))

    async def rollback(self, xid: str) -> bool:
        await elsewhere()
        return bool(super().rollback(xid))


@pytest.fixture
def outbox(tmp_path: Path) -> Any:
    ran_in.clear()
    folder = tmp_path / "outbox"
    folder.mkdir()
    return AsyncOutbox("outbox", folder)


def letters(outbox: Any) -> list[bytes]:
    return [each.read_bytes() for each in outbox.path.iterdir() if each.is_file()]


async def work(two: TwoDatabases, outbox: Any, value: int) -> None:
    async with txpool.transaction() as transaction:
        (await transaction.enlist(outbox)).write(f"{value}".encode())
        await two.insert(value)


def test_its_methods_run_in_the_tasks_loop(two: TwoDatabases, outbox: Any) -> None:
    async def main() -> None:
        await work(two, outbox, 1)
        with pytest.raises(ZeroDivisionError):
            async with txpool.transaction() as transaction:
                (await transaction.enlist(outbox)).write(b"lost")
                await two.insert(2)
                raise ZeroDivisionError
        assert {*ran_in} == {asyncio.get_running_loop()}

    asyncio.run(main())
    assert (two.held(1), two.held(2), letters(outbox)) == ((1, 1), (0, 0), [b"1"])


def test_it_is_cancelled_at_each_switch(two: TwoDatabases, outbox: Any) -> None:
    async def sweep() -> None:
        await work(two, outbox, 0)
        number, reached = 1, True
        while reached:
            task = asyncio.ensure_future(work(two, outbox, number))
            with struck_at(number, task.cancel) as switches:
                await asyncio.wait([task])
            reached = len(switches) >= number
            assert task.cancelled() or task.exception() is None
            assert two.held(number) == ((1, 1) if f"{number}".encode() in letters(outbox) else (0, 0))
            assert two.prepared == []
            number += 1

    asyncio.run(sweep())


def test_synchronous_code_and_recovery_use_it_too(two: TwoDatabases, outbox: Any) -> None:
    """Each call has a loop of its own there."""
    with txpool.transaction() as transaction:
        transaction.enlist(outbox).write(b"1")
        two.one.connect().execute("insert into t values (1)")
    assert (two.held(1), letters(outbox)) == ((1, 0), [b"1"])
    with txpool.transaction() as other:
        pass
    left, branch = begin_work(outbox, other.gtrid)
    left.write(b"2")  # type: ignore[attr-defined]
    branch.start_prepare()
    recovery = ResourceRecovery(outbox)
    (prepared,) = recovery.recover()
    assert prepared.xid == branch.record.xid
    assert recovery.commit(branch.record) is BranchOutcome.COMMITTED
    assert sorted(letters(outbox)) == [b"1", b"2"]
    assert recovery.recover() == []


def test_a_loop_that_is_closed_while_a_method_is_awaited(two: TwoDatabases, outbox: Any) -> None:
    """The thread that waits for it finds that nobody will answer, and rolls back."""
    loop = asyncio.new_event_loop()

    async def hang(xid: str) -> None:
        loop.call_soon(loop.stop)
        await asyncio.Event().wait()

    async def hanging() -> None:
        async with txpool.transaction() as transaction:
            letter = await transaction.enlist(outbox)
            letter.write(b"1")
            letter.prepare = hang
            await two.insert(1)

    coroutine = hanging()
    with suppress(RuntimeError):  # it was stopped before the coroutine has ended
        loop.run_until_complete(coroutine)
    loop.set_exception_handler(lambda *_: None)
    loop.close()
    coroutine.close()
    until(lambda: two.one.statistics().taken == two.two.statistics().taken == 0)
    assert (two.held(1), letters(outbox), two.prepared) == ((0, 0), [], [])


class Hanging:
    """Has a method wait for what never comes, unless it is released. It notes what it has heard."""

    def __init__(self, begins: Callable[[], object], then: Callable[..., Any] | None = None) -> None:
        self.heard: list[type[BaseException]] = []
        self.released = asyncio.Event()
        self._begins, self._then = begins, then

    async def __call__(self, *arguments: Any) -> Any:
        self._begins()
        try:
            await self.released.wait()
        except BaseException as error:
            self.heard.append(type(error))
            if self._then is None:
                raise
        return None if self._then is None else await self._then(*arguments)


async def work_in(
    two: TwoDatabases, outbox: Any, begun: list[Any], prepare: Hanging | None = None, value: int = 1
) -> None:
    async with txpool.transaction() as transaction:
        begun.append(transaction)
        await two.insert(value)
        letter = await transaction.enlist(outbox)
        letter.write(f"{value}".encode())
        if prepare is not None:
            letter.prepare = prepare


def nothing_is_left(two: TwoDatabases, outbox: Any, value: int = 1) -> bool:
    assert (letters(outbox), prepared_in(outbox), two.prepared) == ([], [], [])
    assert two.one.statistics().taken == two.two.statistics().taken == 0
    return two.held(value) == (0, 0)


def prepared_in(outbox: Any) -> list[str]:
    found = {*Outbox.prepared(outbox)} if outbox.hidden.exists() else set()
    return sorted(found - {"identity", "generation"})


def expire(transaction: txpool.Transaction) -> None:
    """As its timeout has it, which a thread of its own hears."""
    Thread(target=transaction.expire, args=(600,)).start()


@pytest.mark.parametrize("way", ["task", "timeout", "deadline"])
def test_what_hangs_before_the_decision_is_cancelled(two: TwoDatabases, outbox: Any, way: str) -> None:
    """The method hears of it, and all of it rolls back."""

    async def main(method: str, value: int) -> None:
        loop, begun, scope = asyncio.get_running_loop(), list[Any](), asyncio.timeout(None)
        hanging = Hanging(lambda: loop.call_soon(end))

        async def work() -> None:
            async with scope:
                await work_in(two, outbox, begun, hanging if method == "prepare" else None, value)

        task: asyncio.Task[None]
        ends: dict[str, tuple[Callable[[], object], type[BaseException]]] = {
            "task": (lambda: task.cancel("it is no longer wanted"), asyncio.CancelledError),
            "timeout": (lambda: scope.reschedule(loop.time()), TimeoutError),
            "deadline": (lambda: expire(begun[0]), txpool.TransactionTimeout),
        }
        end, heard = ends[way]
        if method != "prepare":
            setattr(outbox, method, hanging)
        task = asyncio.ensure_future(work())
        await asyncio.wait([task])
        with pytest.raises(heard):
            task.result()
        vars(outbox).pop(method, None)
        assert hanging.heard == [asyncio.CancelledError]
        assert begun[0].status is txpool.Status.ROLLED_BACK
        assert nothing_is_left(two, outbox, value)

    for value, method in enumerate(["identity", "begin", "generation", "prepare"]):
        asyncio.run(main(method, value))


def test_what_is_prepared_in_spite_of_the_cancellation_is_rolled_back(two: TwoDatabases, outbox: Any) -> None:
    begun: list[Any] = []

    async def main() -> None:
        async def prepare(xid: str) -> None:
            letter = begun[0].enlistment_in("outbox").pooled
            await type(letter).prepare(letter, xid)

        hanging = Hanging(lambda: asyncio.get_running_loop().call_soon(task.cancel), prepare)
        task = asyncio.ensure_future(work_in(two, outbox, begun, hanging))
        await asyncio.wait([task])
        assert task.cancelled()
        assert hanging.heard == [asyncio.CancelledError]

    asyncio.run(main())
    assert (begun[0].status, [*begun[0].unanswered]) == (txpool.Status.ROLLED_BACK, [])
    assert nothing_is_left(two, outbox)


def test_what_hangs_behind_the_decision_hears_of_no_cancellation(two: TwoDatabases, outbox: Any) -> None:
    begun: list[Any] = []

    async def main() -> None:
        def cancel() -> None:
            task.cancel()
            begun[0].expire(600)
            loop.call_soon(loop.call_soon, hanging.released.set)  # behind what would have reached the method

        loop = asyncio.get_running_loop()
        hanging = Hanging(lambda: loop.call_soon(cancel), type(outbox).commit.__get__(outbox))
        outbox.commit = hanging
        task = asyncio.ensure_future(work_in(two, outbox, begun))
        await asyncio.wait([task])
        assert task.cancelled()
        assert hanging.heard == []

    asyncio.run(main())
    assert (begun[0].status, [*begun[0].unanswered]) == (txpool.Status.COMMITTED, [])
    assert (two.held(1), letters(outbox), prepared_in(outbox), two.prepared) == ((1, 1), [b"1"], [], [])


def test_phase_two_waits_for_it_no_longer_than_for_a_database(
    two: TwoDatabases, outbox: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is left to recovery, in a task and in synchronous code."""
    monkeypatch.setattr(Waits, "until", lambda _: monotonic() + 0.05)
    begun: list[Any] = []
    outbox.commit = Hanging(lambda: None)
    asyncio.run(work_in(two, outbox, begun))
    outbox.commit = Hanging(lambda: None)
    with txpool.transaction() as transaction:
        begun.append(transaction)
        transaction.enlist(outbox).write(b"2")
    assert {(each.status, *each.unanswered) for each in begun} == {(txpool.Status.COMMITTED, "outbox")}
    assert (two.held(1), letters(outbox), len(prepared_in(outbox)), two.prepared) == ((1, 1), [], 2, [])


def test_the_deadline_of_synchronous_code_ends_it(two: TwoDatabases, outbox: Any) -> None:
    for method in ("begin", "prepare"):
        begun: list[Any] = []
        hanging = Hanging(lambda begun=begun: expire(begun[0]))  # type: ignore[misc]
        with pytest.raises(txpool.TransactionTimeout), txpool.transaction() as transaction:
            begun.append(transaction)
            two.one.connect().execute("insert into t values (1)")
            if method == "begin":
                outbox.begin = hanging
            letter = transaction.enlist(outbox)
            letter.write(b"1")
            letter.prepare = hanging
        vars(outbox).pop(method, None)
        assert hanging.heard == [asyncio.CancelledError]
        assert begun[0].status is txpool.Status.ROLLED_BACK
        assert nothing_is_left(two, outbox)
