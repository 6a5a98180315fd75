"""transactional(): each call of a function is a transaction, or a part of one."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import psycopg.errors
import pytest

import txpool
from txpool import Status
from txpool.tm.transaction import Transaction


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
    with pytest.raises(
        txpool.ProgrammingError, match=r"must be called within.*block of `txpool\.transaction.*Nothing was done"
    ):
        mandatory()
    with txpool.transaction() as tx:
        assert required() is tx
        assert mandatory() is tx
        assert supports() is tx
        assert requires_new() not in (tx, None)
        assert not_supported() is None
        with pytest.raises(
            txpool.ProgrammingError, match=r"must not be called within.*txp1:.* is active.*Nothing was done"
        ):
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


def test_without_parentheses() -> None:
    @txpool.transactional
    def plain(number: int) -> tuple[int, Transaction | None]:
        """What it does."""
        return number, txpool.current()

    @txpool.transactional
    async def coroutine() -> Transaction | None:
        await asyncio.sleep(0)
        return txpool.current()

    class Service:
        @txpool.transactional
        def method(self) -> Transaction | None:
            return txpool.current()

        @classmethod
        @txpool.transactional
        def of_the_class(cls) -> tuple[type, Transaction | None]:
            return cls, txpool.current()

        @staticmethod
        @txpool.transactional
        async def static() -> Transaction | None:
            return txpool.current()

    number, ambient = plain(7)
    assert (number, plain.__name__, plain.__doc__) == (7, "plain", "What it does.")
    kind, of_the_class = Service.of_the_class()
    assert kind is Service
    for tx in (
        ambient,
        asyncio.run(coroutine()),
        Service().method(),
        of_the_class,
        asyncio.run(Service.static()),
        txpool.transactional(functools.partial(plain, 1))()[1],
    ):
        assert tx is not None
        assert tx.status is Status.COMMITTED


def test_an_object_whose_call_is_a_coroutine_is_one() -> None:
    class Job:
        async def __call__(self) -> Status | None:
            await asyncio.sleep(0)
            return txpool.status()

    assert asyncio.run(txpool.transactional(Job())()) is Status.ACTIVE


@pytest.mark.parametrize(
    ("decorated", "so"),
    [
        (classmethod(lambda cls: None), "write @classmethod above @transactional"),
        (staticmethod(lambda: None), "write @staticmethod above @transactional"),
        (property(lambda self: None), "write @property above @transactional"),
        (Exception, "Exception is a class that defines no public method"),
    ],
)
@pytest.mark.parametrize("around", [txpool.transactional, txpool.transactional()])
def test_what_is_no_function_cannot_be_decorated(around: Any, decorated: object, so: str) -> None:
    with pytest.raises(txpool.ProgrammingError, match=so):
        around(decorated)


@pytest.mark.parametrize(
    ("options", "so"),
    [
        ({"propagation": "requires-new"}, "there is no propagation 'requires-new': it is required or requires_new"),
        ({"attempts": 0}, "a whole number from 1 on"),
        ({"attempts": True}, "a whole number from 1 on"),
        ({"propagation": "supports", "attempts": 2}, "begins no transaction"),
    ],
)
def test_arguments_that_mean_nothing(options: dict[str, Any], so: str) -> None:
    with pytest.raises(txpool.ProgrammingError, match=so):
        txpool.transactional(**options)


class Failing:
    """Raises what it is given, one after the other, and counts."""

    def __init__(self, *errors: BaseException) -> None:
        self.errors = [*errors]
        self.seen: list[Transaction | None] = []

    def __call__(self) -> int:
        self.seen.append(txpool.current())
        if self.errors:
            raise self.errors.pop(0)
        return len(self.seen)


def conflict() -> Exception:
    return psycopg.errors.SerializationFailure("the reason")


def test_each_attempt_is_a_transaction_of_its_own() -> None:
    work = Failing(conflict(), psycopg.errors.DeadlockDetected("the reason"))
    assert txpool.transactional(attempts=3)(work)() == 3
    assert [tx and tx.status for tx in work.seen] == [Status.ROLLED_BACK, Status.ROLLED_BACK, Status.COMMITTED]
    assert len(set(work.seen)) == 3


def test_the_last_error_says_how_often_it_was_attempted() -> None:
    errors = [conflict() for _ in range(4)]
    work = Failing(*errors)
    with pytest.raises(psycopg.errors.SerializationFailure) as raised:
        txpool.transactional(attempts=3)(work)()
    assert raised.value is errors[2]
    assert len(work.seen) == 3
    (note,) = raised.value.__notes__
    assert note.endswith("was attempted 3 times, each in a transaction of its own")
    work = Failing(conflict(), ValueError("another"))
    with pytest.raises(ValueError, match="another") as other:
        txpool.transactional(attempts=3)(work)()
    assert "was attempted 2 times" in other.value.__notes__[0]


def test_coroutines_are_attempted_again_while_others_go_on() -> None:
    async def main() -> None:
        work, ticks = Failing(conflict(), conflict()), 0

        @txpool.transactional(attempts=3)
        async def coroutine() -> int:
            await asyncio.sleep(0)
            return work()

        task = asyncio.create_task(coroutine())
        while not task.done():
            ticks += 1
            await asyncio.sleep(0)
        assert await task == 3
        assert ticks > 20
        assert len(set(work.seen)) == 3

    asyncio.run(main())


def test_only_who_began_it_attempts_it_again() -> None:
    work = Failing(conflict())
    with pytest.raises(psycopg.errors.SerializationFailure) as raised, txpool.transaction() as tx:
        txpool.transactional(attempts=3)(work)()
    assert work.seen == [tx]
    assert not hasattr(raised.value, "__notes__")
    work = Failing(conflict())
    with txpool.transaction() as tx:
        assert txpool.transactional("requires_new", attempts=3)(work)() == 2
        assert tx not in work.seen


def timed_out(_: Exception) -> Exception:
    tx = txpool.current()
    assert tx is not None
    tx.expire(1)
    return conflict()


def in_doubt(error: Exception) -> Exception:
    error.__cause__ = txpool.TransactionInDoubt("an inner one")
    return error


def beside_what_is_in_doubt(error: Exception) -> Exception:
    error.__context__ = txpool.TransactionInDoubt("an inner one")
    return error


def heuristic(error: Exception) -> Exception:
    mixed = txpool.HeuristicMixed("some of it")
    mixed.__cause__ = error
    return mixed


def beside(error: Exception) -> Exception:
    other = ValueError("while something else was handled")
    other.__context__ = error
    return other


def wants_too_much(_: Exception) -> Exception:
    return psycopg.errors.OutOfMemory("a statement's")


@pytest.mark.parametrize("become", [timed_out, in_doubt, beside_what_is_in_doubt, heuristic, beside, wants_too_much])
def test_what_is_not_attempted_again(become: Callable[[Exception], Exception]) -> None:
    seen: list[Transaction | None] = []

    @txpool.transactional(attempts=3)
    def work() -> None:
        seen.append(txpool.current())
        raise become(conflict())

    with pytest.raises((txpool.Error, psycopg.Error, ValueError)):
        work()
    assert len(seen) == 1


def test_what_has_committed_is_not_attempted_again() -> None:
    work = Failing(conflict())
    with pytest.raises(psycopg.errors.SerializationFailure):
        txpool.transactional(attempts=3, dont_rollback_on=(psycopg.errors.SerializationFailure,))(work)()
    assert [tx and tx.status for tx in work.seen] == [Status.COMMITTED]


def test_an_interrupt_is_not_attempted_again() -> None:
    strike = KeyboardInterrupt()
    strike.__cause__ = conflict()
    work = Failing(strike)
    with pytest.raises(KeyboardInterrupt):
        txpool.transactional(attempts=3)(work)()
    assert len(work.seen) == 1


def test_a_class_has_transactional_methods() -> None:
    def gtrid() -> str | None:
        return None if (tx := txpool.current()) is None else tx.gtrid

    class Base:
        def inherited(self) -> str | None:
            return gtrid()

    @txpool.transactional("requires_new")
    class Service(Base):
        def method(self) -> str | None:
            return gtrid()

        @classmethod
        def of_class(cls) -> tuple[type, str | None]:
            return cls, gtrid()

        @staticmethod
        def static() -> str | None:
            return gtrid()

        async def awaited(self) -> str | None:
            return gtrid()

        @txpool.transactional("not_supported")
        def outside(self) -> str | None:
            return gtrid()

        @property
        def value(self) -> str | None:
            return gtrid()

        def _private(self) -> str | None:
            return gtrid()

    service = Service()
    with txpool.transaction() as tx:
        found = [service.method(), Service.of_class()[1], Service.static(), asyncio.run(service.awaited())]
        assert Service.of_class()[0] is Service
        assert service.outside() is None
        assert [service.inherited(), service.value, service._private()] == [tx.gtrid] * 3
    assert None not in found
    assert len({*found, tx.gtrid}) == 5


def test_a_method_that_is_transactional_within_another_decorator_stays_as_it_is() -> None:
    def noted(function: Any) -> Any:
        return functools.wraps(function)(lambda self: function(self))  # noqa: PLW0108 - another function

    @txpool.transactional
    class Service:
        @noted
        @txpool.transactional(propagation="never")
        def outside(self) -> Transaction | None:
            return txpool.current()

        @noted
        def within(self) -> Transaction | None:
            return txpool.current()

    assert Service().outside() is None
    assert Service().within() is not None


def test_of_a_class_with_a_generator_nothing_is_decorated() -> None:
    class Service:
        def method(self) -> bool:
            return txpool.current() is not None

        def rows(self) -> Iterator[int]:
            yield 1

    with pytest.raises(txpool.ProgrammingError, match=r"Service\.rows\(\) is a generator"):
        txpool.transactional(Service)
    assert not Service().method()
