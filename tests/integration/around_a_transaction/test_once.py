"""transaction_id=: a transaction of one name happens once, whoever runs it again, and when."""

from __future__ import annotations

import asyncio
import pickle
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from contextvars import Context
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import psycopg
import pytest

import txpool
from tests.integration.around_a_transaction.world import World
from txpool import (
    AlreadyDone,
    OperationalError,
    ProgrammingError,
    Status,
    TransactionRolledBack,
    TransactionTimeout,
    once,
)
from txpool.datasource import DataSource
from txpool.manager import current, observers
from txpool.resources.xids import Xids
from txpool.scope import transaction, transactional

if TYPE_CHECKING:
    from tests.conftest import Databases
    from tests.strangers import Strangers

on_postgresql = pytest.mark.parametrize("world", ["psycopg"], indirect=True)
on_sqlite = pytest.mark.parametrize("world", ["sqlite3"], indirect=True)
#: Of PostgreSQL and of SQLite.
TABLES = {"psycopg": "txpool_spark.writes", "sqlite3": "txpool_spark_writes"}
ID = "invoice-42"


def insert(world: World, number: int) -> None:
    world.insert(world.datasource.connect(), number)


def run(world: World, number: int, name: str = ID, **options: Any) -> str:
    """One run of the work; the transaction's name."""
    with transaction(transaction_id=name, record_in=world.datasource, **options) as tx:
        insert(world, number)
    return tx.gtrid


def records(world: World) -> list[tuple[Any, ...]]:
    with closing(world.bare()) as raw:
        return raw.execute(  # type: ignore[no-any-return]
            f"select transaction_id, target, gtrid, mode, plan from {TABLES[world.options['driver']]} order by gtrid"
        ).fetchall()


def test_a_rerun_is_told_before_the_body(world: World) -> None:
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
def test_every_way_to_take_part(world: World, mode: str) -> None:
    datasource = world.open(mode=mode)
    if mode == "cmr" and world.options["driver"] == "psycopg":
        Xids("one", datasource.driver_adapter).create()
    for number in (1, 2):
        with (
            pytest.raises(AlreadyDone) if number == 2 else _nothing(),
            transaction(transaction_id=ID, record_in=datasource),
        ):
            world.insert(datasource.connect(), number)
    assert world.read() == [1]


@contextmanager
def _nothing() -> Iterator[None]:
    yield


@on_postgresql
def test_the_record_is_one_with_what_is_elsewhere(world: World, databases: Databases) -> None:
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


def test_a_nested_block_is_a_part_of_the_whole(world: World) -> None:
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


def test_a_decorated_function(world: World) -> None:
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


def test_a_method_and_a_coroutine_function(world: World) -> None:
    class Till:
        @transactional(transaction_id=lambda _, number: f"invoice-{number}", record_in=world.datasource)
        async def pay(self, number: int) -> None:
            insert(world, number)

    asyncio.run(Till().pay(1))
    with pytest.raises(AlreadyDone):
        asyncio.run(Till().pay(1))
    assert world.read() == [1]


@on_postgresql
@pytest.mark.parametrize("isolation", ["read committed", "repeatable read", "serializable"])
@pytest.mark.parametrize("commits", [True, False])
def test_of_two_at_a_time_one_waits(world: World, databases: Databases, isolation: str, commits: bool) -> None:
    databases.execute("one", f"alter database one set default_transaction_isolation = '{isolation}'")  # type: ignore[arg-type]
    run(world, 0, "another")  # the table is there
    outcome: list[object] = []

    def second() -> None:
        try:
            outcome.append(run(world, 2))
        except AlreadyDone as error:
            outcome.append(error)

    thread = threading.Thread(target=second)
    with (
        pytest.raises(LookupError) if not commits else _nothing(),
        transaction(transaction_id=ID, record_in=world.datasource),
    ):
        insert(world, 1)
        thread.start()
        wait_until(lambda: waits(databases))
        if not commits:
            raise LookupError
    thread.join(30)
    assert [type(each) for each in outcome] == [AlreadyDone if commits else str]
    assert world.read() == ([0, 1] if commits else [0, 2])


@on_postgresql
def test_many_at_once_where_nothing_was_recorded_before(world: World) -> None:
    """Each of them makes the schema and the table; and none needs a second connection of the pool for that."""
    datasource = world.open(pool_max_size=4, pool_max_wait=5)
    start = threading.Barrier(4)
    failed: list[BaseException] = []

    def one(number: int) -> None:
        try:
            with transaction():
                world.insert(datasource.connect(), number)
                start.wait(10)
                with transaction(transaction_id=f"invoice-{number}", record_in=datasource):
                    world.insert(datasource.connect(), -number)
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=one, args=[number]) for number in range(1, 5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failed == []
    assert world.read() == [-4, -3, -2, -1, 1, 2, 3, 4]
    assert len(records(world)) == 4


def waits(databases: Databases) -> bool:
    return bool(databases.rows("one", "select 1 from pg_stat_activity where wait_event_type = 'Lock'"))


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


@on_postgresql
def test_an_older_snapshot_lets_nobody_through(world: World, databases: Databases) -> None:
    """It does not see the record, and its key is taken: what others see is told, and the outer one goes on."""
    run(world, 0, "another")
    with transaction():
        cursor = world.datasource.connect().cursor()
        cursor.execute("set transaction isolation level repeatable read")
        cursor.execute("select n from t").fetchall()
        done = Context().run(run, world, 1)
        with pytest.raises(AlreadyDone, match=done):
            run(world, 2)
        insert(world, 3)
    assert world.read() == [0, 1, 3]


@on_postgresql
def test_who_waits_is_told_and_may_go_on(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(once, "_PATIENCE", (50, 100))
    with closing(world.bare()) as other, transaction() as tx:
        run(world, 1, "another")
        hold(other)
        cursor = world.datasource.connect().cursor()
        cursor.execute("set local lock_timeout = '7s'")
        with pytest.raises(
            OperationalError, match=r"another run of transaction_id='invoice-42' is at work now, or is in"
        ):
            run(world, 2)
        assert tx.active
        assert cursor.execute("show lock_timeout").fetchone() == ("7s",)
        other.execute("rollback")
        run(world, 3)
    assert world.read() == [1, 3]


def hold(other: Any, name: str = ID) -> None:
    """As another run that goes on."""
    other.execute("begin")
    other.execute(
        "insert into txpool_spark.writes (transaction_id, target, gtrid, mode, plan) "
        f"values ('{name}', 'transaction', 'txp1:x', 'block', '-')"
    )


@on_postgresql
def test_the_wait_ends_with_the_transactions_time(world: World) -> None:
    run(world, 1, "another")
    with closing(world.bare()) as other:
        hold(other)
        with pytest.raises(TransactionTimeout, match=r"timeout of 0.2 s"):
            run(world, 2, timeout=0.2)
    assert world.read() == [1]


@on_postgresql
def test_an_interrupted_claim_dooms_the_outer_transaction(world: World, databases: Databases) -> None:
    """The name may be taken by then, and nothing was done under it."""
    run(world, 1, "another")
    main = threading.get_ident()

    def strike() -> None:
        wait_until(lambda: waits(databases))
        signal.pthread_kill(main, signal.SIGINT)

    with closing(world.bare()) as other, pytest.raises(TransactionRolledBack), transaction() as tx:
        hold(other)
        thread = threading.Thread(target=strike)
        thread.start()
        with pytest.raises(KeyboardInterrupt):
            run(world, 2)
        thread.join()
        assert tx.status is Status.MARKED_ROLLBACK
    assert world.read() == [1]


@on_sqlite
def test_attempts_of_a_claim_that_found_the_file_busy(world: World) -> None:
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
def test_attempts_after_a_conflict_at_the_end(world: World, databases: Databases, branches: int) -> None:
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


@on_postgresql
def test_where_nothing_can_be_recorded(world: World, databases: Databases) -> None:
    """The error says so, nothing is done, and the outer transaction goes on."""
    run(world, 1, "another")
    with transaction():
        cursor = world.datasource.connect().cursor()
        cursor.execute("set transaction read only")
        with pytest.raises(psycopg.errors.ReadOnlySqlTransaction) as refused:
            run(world, 2)
        assert cursor.execute("select n from t").fetchall() == [(1,)]
    assert "transaction_id='invoice-42' could not be recorded in txpool_spark.writes of one, and nothing was" in str(
        refused.value.__notes__
    )
    databases.execute("one", "drop schema txpool_spark cascade")
    with pytest.raises(psycopg.errors.UndefinedTable):
        run(world, 3)
    run(world, 4)  # and it is made anew
    assert world.read() == [1, 4]


def test_a_role_that_may_create_nothing(strangers: Strangers) -> None:
    strangers.admin("revoke create on database one from app", "create table t (n integer)", "grant all on t to app")
    with DataSource(
        name="app", driver="psycopg", url=strangers.url(), password=strangers.password, pool_max_size=1
    ) as datasource:

        def work() -> None:
            with transaction(transaction_id=ID, record_in=datasource):
                datasource.connect().execute("insert into t values (1)")

        with pytest.raises(psycopg.errors.InsufficientPrivilege) as refused:
            work()
        assert "create schema txpool_spark authorization" in str(refused.value.__notes__)
        strangers.admin("create schema txpool_spark authorization app")
        work()
        with pytest.raises(AlreadyDone):
            work()
    assert strangers.databases.rows("one", "select count(*) from t") == [(1,)]


def test_32_a_strangers_table_says_nothing(strangers: Strangers) -> None:
    strangers.does("mallory", "create schema txpool_spark", "grant all on schema txpool_spark to public")
    with (
        DataSource(name="app", driver="psycopg", url=strangers.url(), password=strangers.password) as datasource,
        pytest.raises(OperationalError, match="schema txpool_spark belongs to mallory"),
        transaction(transaction_id=ID, record_in=datasource),
    ):
        pytest.fail("the body must not run")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"transaction_id": ID}, "needs record_in="),
        ({"record_in": "one"}, "record_in= is where a transaction_id= is recorded"),
        ({"transaction_id": 42, "record_in": "one"}, "is text, and not int"),
        ({"transaction_id": "", "record_in": "one"}, "1 to 200 printable characters"),
        ({"transaction_id": "x" * 201, "record_in": "one"}, "has 201"),
        ({"transaction_id": "a\nb", "record_in": "one"}, "not printable"),
        ({"transaction_id": "a\0b", "record_in": "one"}, "not printable"),
    ],
)
def test_what_is_no_id(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ProgrammingError, match=message):
        transaction(**options)
    with pytest.raises(ProgrammingError, match=message):
        transactional(**options)(int)
    assert current() is None


def test_what_is_no_place_and_no_propagation(world: World) -> None:
    with pytest.raises(txpool.ConfigurationError, match="nowhere"):
        transaction(transaction_id=ID, record_in="nowhere")
    with pytest.raises(ProgrammingError, match="a transaction_id has no use with 'supports'"):
        transactional("supports", transaction_id=ID, record_in="one")
    wrong = transactional(transaction_id=lambda: 7, record_in=world.datasource)(lambda: None)  # type: ignore[arg-type,return-value]
    with pytest.raises(ProgrammingError, match="is text, and not int"):
        wrong()
    wrong = transactional(transaction_id=lambda: None, record_in=world.datasource)(lambda: None)  # type: ignore[arg-type,return-value]
    with pytest.raises(ProgrammingError, match="is text, and not NoneType"):
        wrong()
    assert current() is None
