"""A resource of one's own whose methods are coroutines."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

import txpool
from tests.integration.aio.two_databases import TwoDatabases, struck_at
from tests.support.outbox import Message, Outbox
from tests.support.waiting import until
from txpool.resources.base import BranchOutcome
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
