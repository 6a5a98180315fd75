"""transaction_id=: a transaction of one name happens once, and who runs it again is told."""

from __future__ import annotations

import asyncio
import pickle
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, nullcontext
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest

import txpool
from tests.integration.tm.demarcation.idempotent_work import ID, insert, records, run
from tests.integration.tm.demarcation.table import OneDatasource
from txpool import AlreadyDone, ProgrammingError, Status, TransactionRolledBack
from txpool.resources.marked.xids import Xids
from txpool.tm.ambient import current
from txpool.tm.demarcation.block import transaction
from txpool.tm.demarcation.transactional import transactional
from txpool.tm.manager import observers

if TYPE_CHECKING:
    from tests.conftest import Databases

on_postgresql = pytest.mark.parametrize("world", ["psycopg"], indirect=True)
on_sqlite = pytest.mark.parametrize("world", ["sqlite3"], indirect=True)


def test_a_rerun_is_told_before_the_body(world: OneDatasource) -> None:
    """And a rollback, or an exception, takes the name back with all else."""
    with (
        pytest.raises(LookupError),
        transaction(transaction_id=ID, record_in=world.datasource),
    ):
        insert(world, 1)
        raise LookupError
    gtrid = run(world, 2)
    with pytest.raises(
        AlreadyDone, match=rf"'{ID}' is done already: {gtrid} has committed it .*Nothing was done"
    ) as told:
        run(world, 3)
    assert world.read() == [2]
    assert current() is None
    assert records(world) == [(ID, "transaction", gtrid, "block", "-")]
    error = pickle.loads(pickle.dumps(told.value))
    assert (error.transaction_id, error.datasource, error.gtrid) == (ID, "one", gtrid)
    assert abs(error.done_at - datetime.now(UTC)) < timedelta(minutes=1)
    assert str(error) == str(told.value)
    run(world, 4, "invoice-43")
    assert world.read() == [2, 4]
    assert world.datasource.statistics().taken == 0


@pytest.mark.parametrize("mode", ["cmr", "last-resource", "local"])
def test_every_way_to_take_part(world: OneDatasource, mode: str) -> None:
    datasource = world.open(mode=mode)
    if mode == "cmr" and world.options["driver"] == "psycopg":
        Xids("one", datasource.driver_adapter).create()
    for number in (1, 2):
        with (
            pytest.raises(AlreadyDone) if number == 2 else nullcontext(),
            transaction(transaction_id=ID, record_in=datasource),
        ):
            world.insert(datasource.connect(), number)
    assert world.read() == [1]


@on_postgresql
def test_the_record_is_one_with_what_is_elsewhere(world: OneDatasource, databases: Databases) -> None:
    databases.execute("two", "create table t (n integer)")
    second = world.open(name="two", url=databases.url("two"))

    def both(number: int, *, fail: bool = False) -> None:
        with transaction(transaction_id=ID, record_in=second) as tx:
            insert(world, number)
            if fail:
                tx.set_rollback_only()

    with pytest.raises(TransactionRolledBack):
        both(1, fail=True)
    both(2)
    with pytest.raises(AlreadyDone):
        both(3)
    assert world.read() == [2]
    assert databases.rows("two", "select count(*) from txpool_spark.writes") == [(1,)]
    assert databases.prepared() == []


def test_a_nested_block_is_a_part_of_the_whole(world: OneDatasource) -> None:
    """AlreadyDone dooms nobody, and leaves the session as it was; the record goes with the outer one."""
    with pytest.raises(LookupError), transaction():
        run(world, 1)
        raise LookupError
    run(world, 2)
    with transaction() as tx:
        insert(world, 3)
        with pytest.raises(AlreadyDone):
            run(world, 4)
        assert tx.active
        insert(world, 5)
        own = run(world, 6, "invoice-43")
        with pytest.raises(AlreadyDone, match=f"this very transaction, {own}, has done it, and its end decides"):
            run(world, 7, "invoice-43")
    assert own == tx.gtrid
    assert world.read() == [2, 3, 5, 6]


def test_a_decorated_function(world: OneDatasource) -> None:
    @transactional(transaction_id=lambda number, **_: f"invoice-{number}", record_in=world.datasource)
    def pay(number: int, **_: Any) -> int:
        insert(world, number)
        return number

    assert (pay(1, by="card"), pay(2)) == (1, 2)
    with pytest.raises(AlreadyDone, match="invoice-1"):
        pay(1)
    assert world.read() == [1, 2]

    @transactional("requires_new", transaction_id="invoice-1", record_in=world.datasource)
    def refund() -> None:
        insert(world, 3)

    with pytest.raises(
        ProgrammingError, match=r"stands for other work already.*: that was .*pay\(\), and this is .*refund\(\)"
    ):
        refund()
    with pytest.raises(AlreadyDone):  # nothing tells what a block does
        run(world, 4, "invoice-1")
    nameless = transactional(transaction_id="invoice-1", record_in=world.datasource)(lambda: insert(world, 5))
    with pytest.raises(AlreadyDone):
        nameless()
    assert world.read() == [1, 2]


def test_a_method_and_a_coroutine_function(world: OneDatasource) -> None:
    class Till:
        @transactional(transaction_id=lambda _, number: f"invoice-{number}", record_in=world.datasource)
        async def pay(self, number: int) -> None:
            insert(world, number)

    asyncio.run(Till().pay(1))
    with pytest.raises(AlreadyDone):
        asyncio.run(Till().pay(1))
    assert world.read() == [1]


@on_sqlite
def test_attempts_of_a_claim_that_found_the_file_busy(world: OneDatasource) -> None:
    datasource = world.open(driver_timeout=0.01)
    tried: list[int] = []
    with closing(world.bare()) as other:
        other.execute("begin immediate")

        def name(number: int) -> str:
            """Called once for each call, however many attempts it takes."""
            tried.append(number)
            return f"invoice-{number}"

        @transactional(attempts=3, transaction_id=name, record_in=datasource)
        def pay(number: int) -> None:
            world.insert(datasource.connect(), number)

        observed: list[Status] = []
        with observing(observed, lambda: other.execute("rollback")):
            pay(1)
        with pytest.raises(AlreadyDone):
            pay(1)
    assert world.read() == [1]
    assert tried == [1, 1]
    assert observed == [Status.ROLLED_BACK, Status.COMMITTED]


@contextmanager
def observing(seen: list[Status], first: Callable[[], object]) -> Iterator[None]:
    """The end of every transaction; `first` is called at the first one."""

    def attach(tx: txpool.Transaction) -> None:
        tx.after_completion(hear)

    def hear(status: Status) -> None:
        seen.append(status)
        if len(seen) == 1:
            first()

    observers.append(attach)
    try:
        yield
    finally:
        observers.remove(attach)


@on_postgresql
@pytest.mark.parametrize("branches", [1, 2])
def test_attempts_after_a_conflict_at_the_end(world: OneDatasource, databases: Databases, branches: int) -> None:
    databases.execute("two", "create table t (n integer)")
    second = world.open(name="two", url=databases.url("two"))
    tries: list[str] = []

    @transactional(attempts=2, transaction_id=ID, record_in=second)
    def work() -> None:
        tries.append(current().gtrid)  # type: ignore[union-attr]
        if branches == 2:
            insert(world, 1)
        cursor = second.connect().cursor()
        cursor.execute("insert into t values (1)")
        if len(tries) == 1:
            cursor.execute("do $$ begin raise exception using errcode = 'serialization_failure'; end $$")

    work()
    assert len(tries) == 2
    assert databases.rows("two", "select gtrid from txpool_spark.writes") == [(tries[1],)]
    assert databases.rows("two", "select n from t") == [(1,)]
