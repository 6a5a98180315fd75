"""Plain functions are called, and one returns a coroutine, which nobody would await: that is said, and not lost."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable
from typing import Any

import pytest

import txpool
from txpool import Status

done: list[str] = []


async def flush(*_: object) -> None:
    done.append("flushed")


class Flush:
    async def __call__(self, *_: object) -> None:
        await flush()


CALLBACKS = [flush, functools.partial(flush), lambda *_: flush(), Flush()]


@pytest.mark.parametrize("callback", CALLBACKS)
def test_before_completion(callback: Callable[[], object]) -> None:
    """It would commit without what the callback stands for."""
    with pytest.raises(txpool.TransactionRolledBack, match="whose body nobody would run"):
        with txpool.transaction() as transaction:
            transaction.before_completion(callback)
    assert transaction.status is Status.ROLLED_BACK


@pytest.mark.parametrize("callback", CALLBACKS)
def test_after_completion(callback: Callable[[Status], object], caplog: pytest.LogCaptureFixture) -> None:
    with txpool.transaction() as transaction:
        transaction.after_completion(callback)
    assert transaction.status is Status.COMMITTED
    assert "whose body nobody would run" in caplog.text


def test_an_observer() -> None:
    """One that is a coroutine function is refused before; this one is none."""
    for event in (None, str):
        end = txpool.observe(lambda _: flush(), "before", event)  # type: ignore[call-overload]
        try:
            with pytest.raises(txpool.TransactionRolledBack, match=r"returned the coroutine flush\(\)"):
                with txpool.transaction() as transaction:
                    transaction.fire("it")
        finally:
            end()


def test_a_task_may_be_created() -> None:
    async def main() -> None:
        tasks: list[asyncio.Task[None]] = []

        async with txpool.transaction() as transaction:
            transaction.before_completion(lambda: tasks.append(asyncio.create_task(flush())))
            transaction.after_completion(lambda _: asyncio.create_task(flush()))
        await asyncio.gather(*tasks)

    done.clear()
    pytest.importorskip("greenlet")
    asyncio.run(main())
    assert done


def logged(function: Callable[..., Any]) -> Callable[..., Any]:
    """A decorator that knows nothing of coroutines."""

    @functools.wraps(function)
    def call(*args: Any) -> Any:
        return function(*args)

    return call


@pytest.mark.parametrize("attempts", [1, 3])
def test_a_decorated_coroutine_function(attempts: int) -> None:
    """Its body would run behind the end of its transaction."""
    done.clear()

    @txpool.transactional(attempts=attempts)
    @logged
    async def work() -> None:
        done.append("worked")

    with pytest.raises(txpool.ProgrammingError, match=r"returned the coroutine .*work\(\), .*nothing of that was done"):
        asyncio.run(work())
    assert done == []
    assert txpool.current() is None
