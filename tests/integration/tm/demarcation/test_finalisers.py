"""A finaliser ends an idle handle wherever it strikes: it draws nothing into a transaction, and waits for nothing."""

from __future__ import annotations

import gc
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import pytest

from tests.integration.tm.demarcation.table import OneDatasource
from txpool.errors import ProgrammingError, TransactionRolledBack
from txpool.tm.demarcation.block import transaction

# Blocks without work of their own
pytestmark = pytest.mark.filterwarnings("ignore::txpool.EmptyTransactionWarning")


class Abandoned:
    """A cycle that holds a handle, as an SQLAlchemy session does, and ends it as that does."""

    def __init__(self, handle: Any) -> None:
        self.handle = handle
        self.itself = self

    def __del__(self) -> None:
        self.handle.rollback()
        self.handle.close()


class Quiet(Abandoned):
    """As SQLAlchemy, which logs what a finaliser hears."""

    def __del__(self) -> None:
        with suppress(ProgrammingError):
            super().__del__()


@pytest.fixture(autouse=True)
def _collect_on_request_only() -> Iterator[None]:
    gc.disable()
    yield
    gc.enable()


def returns(work: Callable[[], None]) -> None:
    """Run it in a thread that may stand for ever."""
    errors: list[BaseException] = []

    def run() -> None:
        try:
            work()
            assert sys.getprofile() is None, "the function in which the collector was to come was never called"
        except BaseException as error:
            errors.append(error)
        finally:
            sys.setprofile(None)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(60)
    assert not thread.is_alive(), "it waits for a lock that its own thread holds"
    assert errors == []


def collect_inside(name: str) -> None:
    """The collector's hour: when this thread next calls a function of that name."""

    def finalise(frame: Any, event: str, _: Any) -> None:
        if event == "call" and frame.f_code.co_name == name:
            sys.setprofile(None)
            gc.collect()

    sys.setprofile(finalise)


@pytest.mark.parametrize("mode", ["refuse", "join"])
@pytest.mark.parametrize("place", ["begin", "enlist_datasource", "begin_use", "start"])
def test_an_idle_handle_is_abandoned(world: OneDatasource, mode: str, place: str) -> None:
    datasource = world.open(managed_commit=mode)

    def work() -> None:
        idle = datasource.connect()
        idle.execute("select 1").fetchall()
        idle.commit()
        Abandoned(idle)
        with transaction():
            collect_inside(place)
            world.insert(datasource.connect(), 1)

    returns(work)
    assert world.read() == [1]
    assert datasource.statistics().taken == 0


@pytest.mark.parametrize("mode", ["refuse", "join"])
def test_an_idle_handle_brings_nothing_into_a_transaction(world: OneDatasource, mode: str) -> None:
    datasource = world.open(managed_commit=mode)
    idle = datasource.connect()
    detached = datasource.connect()
    with transaction():
        world.insert(detached, 1)
    with transaction() as tx:
        for handle in (idle, detached):
            handle.rollback()
            if mode == "refuse":
                with pytest.raises(ProgrammingError, match=r"managed\.commit = join"):
                    handle.commit()
            else:
                handle.commit()
        assert repr(tx) == f"<Transaction {tx.gtrid} active>"
        assert "plain" in repr(idle)
        assert "detached" in repr(detached)
    idle.close()
    detached.close()
    assert world.read() == [1]


def test_a_handle_that_is_enlisted_is_closed_while_another_thread_works(world: OneDatasource) -> None:
    """A finaliser strikes in any thread: it must not wait for the statement of another."""
    datasource = world.open(managed_commit="join")
    with transaction():
        connection, other = datasource.connect(), datasource.connect()
        world.insert(connection, 1)
        cursor = other.cursor()
        with connection.enlistment.lock:  # type: ignore[union-attr]

            def work() -> None:
                cursor.close()
                other.close()

            returns(work)
        connection.commit()
    assert world.read() == [1]


def test_a_handle_with_work_is_abandoned_inside_a_statement(world: OneDatasource) -> None:
    """Its work cannot be undone alone, below another's: as always then, the whole transaction rolls back."""
    datasource = world.open(managed_commit="join")
    kept: list[Any] = []

    def work() -> None:
        with pytest.raises(TransactionRolledBack, match="what another has done since"), transaction():
            kept[:] = datasource.connect(), datasource.connect()
            world.insert(kept[0], 1)
            cursor = kept[1].cursor()
            Quiet(kept[0])
            collect_inside("_execute_gen" if datasource.driver == "psycopg" else "finish")
            cursor.execute("insert into t values (2)")

    returns(work)
    assert world.read() == []
