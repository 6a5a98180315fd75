"""transactional(): each call of a function is a transaction, or a part of one."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator

import pytest

import txpool
from txpool import Status
from txpool.transaction import Transaction


def test_propagations() -> None:
    @txpool.transactional()
    def required() -> txpool.Transaction | None:
        return txpool.current()

    @txpool.transactional("requires_new")
    def requires_new() -> txpool.Transaction | None:
        return txpool.current()

    @txpool.transactional("mandatory")
    def mandatory() -> txpool.Transaction | None:
        return txpool.current()

    @txpool.transactional("supports")
    def supports() -> txpool.Transaction | None:
        return txpool.current()

    @txpool.transactional("not_supported")
    def not_supported() -> txpool.Transaction | None:
        return txpool.current()

    @txpool.transactional("never")
    def never() -> txpool.Transaction | None:
        return txpool.current()

    assert required() is not None
    assert requires_new() is not None
    assert supports() is None
    assert not_supported() is None
    assert never() is None
    with pytest.raises(txpool.ProgrammingError, match="must be called within"):
        mandatory()
    with txpool.transaction() as tx:
        assert required() is tx
        assert mandatory() is tx
        assert supports() is tx
        assert requires_new() not in (tx, None)
        assert not_supported() is None
        with pytest.raises(txpool.ProgrammingError, match="must not be called within"):
            never()
        assert txpool.current() is tx


def test_which_exceptions_roll_back() -> None:
    seen: list[txpool.Transaction | None] = []

    @txpool.transactional(dont_rollback_on=(LookupError,), rollback_on=(IndexError,))
    def fails(error: Exception) -> None:
        seen.append(txpool.current())
        raise error

    for error, status in [
        (KeyError("kept"), Status.COMMITTED),
        (IndexError("not kept"), Status.ROLLED_BACK),
        (ValueError("not kept"), Status.ROLLED_BACK),
    ]:
        with pytest.raises(type(error)):
            fails(error)
        tx = seen.pop()
        assert tx is not None
        assert tx.status is status


def test_a_coroutine_function_is_a_transaction_until_it_has_been_awaited() -> None:
    seen: list[Transaction | None] = []

    @txpool.transactional(dont_rollback_on=(KeyError,))
    async def work(error: Exception | None) -> int:
        seen.append(txpool.current())
        await asyncio.sleep(0)
        assert txpool.current() is seen[-1]
        assert txpool.status() is Status.ACTIVE
        if error is not None:
            raise error
        return 7

    async def main() -> None:
        assert await work(None) == 7
        for error in (KeyError("kept"), ZeroDivisionError("the reason")):
            with pytest.raises(type(error)) as raised:
                await work(error)
            assert raised.value is error
        assert txpool.current() is None

    asyncio.run(main())
    assert [tx and tx.status for tx in seen] == [Status.COMMITTED, Status.COMMITTED, Status.ROLLED_BACK]


def test_a_generator_cannot_be_decorated() -> None:
    def plain() -> Iterator[int]:
        yield 1

    async def asynchronous() -> AsyncIterator[int]:
        yield 1

    for generator in (plain, asynchronous):
        with pytest.raises(txpool.ProgrammingError, match="is a generator: its body runs when it is iterated"):
            txpool.transactional()(generator)
