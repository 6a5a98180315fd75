"""A block that commits without any participant warns, once for the line at which it begins."""

from __future__ import annotations

import asyncio
import inspect
import warnings
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import pytest

import txpool
from tests.integration.tm.demarcation.table import OneDatasource
from txpool import EmptyTransactionWarning
from txpool.datasource import DataSource
from txpool.tm import manager
from txpool.tm.demarcation.block import transaction
from txpool.tm.demarcation.transactional import transactional


@pytest.fixture
def one(world: OneDatasource) -> DataSource:
    return world.open()


def warned(work: Callable[[], Any], *, times: int = 1) -> list[tuple[str, int]]:
    """The places that were warned of."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("default")
        for _ in range(times):
            work()
    assert {each.category for each in caught} <= {EmptyTransactionWarning}
    assert all("docs/how-to/what-takes-part.md" in str(each.message) for each in caught)
    return [(each.filename, each.lineno) for each in caught]


def here(ahead: int) -> tuple[str, int]:
    frame: Any = inspect.currentframe()
    return __file__, frame.f_back.f_lineno + ahead


def test_a_block_names_its_line_once() -> None:
    place = here(3)

    def work() -> None:
        with transaction():
            pass

    assert warned(work, times=3) == [place]


def test_a_block_of_a_stack_and_an_async_one() -> None:
    def stack() -> None:
        with ExitStack() as stack:
            stack.enter_context(transaction())

    async def in_task() -> None:
        async with transaction():
            await asyncio.sleep(0)

    assert [place[0] for place in warned(stack)] == [__file__]
    assert [place[0] for place in warned(lambda: asyncio.run(in_task()))] == [__file__]


def test_a_decorated_function_names_itself() -> None:
    place = here(2)

    @transactional
    def work() -> int:
        return 7

    assert work is not None
    assert warned(work, times=2) == [(__file__, pytest.approx(place[1], abs=1))]


def test_inner_blocks_do_not_warn(one: DataSource, world: OneDatasource) -> None:
    def work() -> None:
        with transaction():
            with transaction():
                pass
            world.insert(one.connect(), 1)
            with transaction():
                pass

    assert warned(work) == []
    assert world.read() == [1]


def test_an_outer_block_is_not_empty_if_an_inner_one_is_not(one: DataSource, world: OneDatasource) -> None:
    def work() -> None:
        with transaction(), transaction():
            world.insert(one.connect(), 1)

    assert warned(work) == []


@pytest.mark.parametrize("what", ["connection", "before", "after", "spark", "error", "rollback-only"])
def test_what_is_not_empty(one: DataSource, what: str) -> None:
    def work() -> None:
        with transaction() as tx:
            if what == "connection":
                one.connect().close()
            elif what == "before":
                tx.before_completion(lambda: None)
            elif what == "after":
                tx.after_completion(lambda status: None)
            elif what == "spark":
                tx.adopt((), late_branches=False)
            elif what == "rollback-only":
                tx.set_rollback_only()
            else:
                raise ZeroDivisionError

    def swallowed() -> None:
        try:
            work()
        except (ZeroDivisionError, txpool.TransactionRolledBack):
            assert what in ("error", "rollback-only")

    assert warned(swallowed) == []


def test_observers_and_a_timeout_are_no_participants() -> None:
    told: list[object] = []
    txpool.observe(told.append, "success")

    def work() -> None:
        with transaction(timeout=60):
            pass

    try:
        assert len(warned(work)) == len(told) == 1
    finally:
        manager.observers.pop()


def test_what_before_completion_does_counts(one: DataSource, world: OneDatasource) -> None:
    def work() -> None:
        with transaction() as tx:
            tx.before_completion(lambda: world.insert(one.connect(), 1))

    assert warned(work) == []
    assert world.read() == [1]


def test_calls_do_not_warn() -> None:
    def work() -> None:
        txpool.begin()
        txpool.commit()

    assert warned(work) == []


@pytest.mark.filterwarnings("error::txpool.EmptyTransactionWarning")
def test_as_an_error_it_comes_behind_the_commit() -> None:
    with pytest.raises(EmptyTransactionWarning), transaction() as tx:
        pass
    assert tx.status is txpool.Status.COMMITTED
    assert txpool.current() is None
