"""transaction_id=: of two runs at a time one waits for the other, or is told, and never are both done."""

from __future__ import annotations

import signal
import threading
from contextlib import closing, nullcontext
from contextvars import Context
from typing import TYPE_CHECKING, Any, NoReturn

import psycopg
import pytest

from tests.integration.tm.demarcation.idempotent_work import ID, hold, insert, records, run, waits
from tests.integration.tm.demarcation.table import OneDatasource
from tests.support.waiting import until
from txpool import AlreadyDone, OperationalError, Status, TransactionRolledBack, TransactionTimeout
from txpool.idempotency import once as idempotency
from txpool.resources.postgresql.tables.trust import relation_faults
from txpool.tm.demarcation.block import transaction

if TYPE_CHECKING:
    from tests.conftest import Databases

on_postgresql = pytest.mark.parametrize("world", ["psycopg"], indirect=True)


@on_postgresql
@pytest.mark.parametrize("isolation", ["read committed", "repeatable read", "serializable"])
@pytest.mark.parametrize("commits", [True, False])
def test_of_two_at_a_time_one_waits(world: OneDatasource, databases: Databases, isolation: str, commits: bool) -> None:
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
        pytest.raises(LookupError) if not commits else nullcontext(),
        transaction(transaction_id=ID, record_in=world.datasource),
    ):
        insert(world, 1)
        thread.start()
        until(lambda: waits(databases))
        if not commits:
            raise LookupError
    thread.join(60)
    assert [type(each) for each in outcome] == [AlreadyDone if commits else str]
    assert world.read() == ([0, 1] if commits else [0, 2])


@on_postgresql
def test_many_at_once_where_nothing_was_recorded_before(world: OneDatasource) -> None:
    """Each of them makes the schema and the table; and none needs a second connection of the pool for that."""
    datasource = world.open(pool_max_size=4, pool_max_wait=5)
    start = threading.Barrier(4)
    failed: list[BaseException] = []

    def one(number: int) -> None:
        try:
            with transaction():
                world.insert(datasource.connect(), number)
                start.wait(60)
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


def test_a_table_that_is_made_while_somebody_looks_at_it_is_looked_at_again(databases: Databases) -> None:
    """A statement finds it by its name at once, and by its own snapshot nothing of it."""

    class Looking(psycopg.Cursor[Any]):
        def fetchall(self) -> list[Any]:
            found = super().fetchall()
            self.connection.rollback()  # the next look has a snapshot of its own
            return found

    with psycopg.connect(databases.dsn("one"), cursor_factory=Looking) as raw:
        raw.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        raw.execute("select 1")
        databases.execute("one", "create table made (n integer)")
        assert relation_faults(raw.cursor(), ["made"]) == []


@on_postgresql
def test_an_older_snapshot_lets_nobody_through(world: OneDatasource, databases: Databases) -> None:
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
def test_who_waits_is_told_and_may_go_on(world: OneDatasource, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(idempotency, "_LOCK_TIMEOUTS_MS", (50, 100))
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


@on_postgresql
def test_no_run_is_blamed_where_somebody_has_locked_the_records(
    world: OneDatasource, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(idempotency, "_LOCK_TIMEOUTS_MS", (50, 100))
    run(world, 1, "another")
    with closing(world.bare()) as other:
        other.execute("begin")
        other.execute("lock table txpool_spark.writes")
        with pytest.raises(OperationalError, match=r"Or somebody has locked txpool_spark\.writes of one\. Nothing"):
            run(world, 2)
    assert world.read() == [1]


@on_postgresql
def test_the_wait_ends_with_the_transactions_time(world: OneDatasource) -> None:
    run(world, 1, "another")
    with closing(world.bare()) as other:
        hold(other)
        with pytest.raises(TransactionTimeout, match=r"timeout of 0.2 s"):
            run(world, 2, timeout=0.2)
    assert world.read() == [1]


@on_postgresql
def test_an_interrupted_claim_dooms_the_outer_transaction(world: OneDatasource, databases: Databases) -> None:
    """The name may be taken by then, and nothing was done under it."""
    run(world, 1, "another")
    main = threading.get_ident()

    def interrupt() -> None:
        until(lambda: waits(databases))
        signal.pthread_kill(main, signal.SIGINT)

    with closing(world.bare()) as other, pytest.raises(TransactionRolledBack), transaction() as tx:
        hold(other)
        thread = threading.Thread(target=interrupt)
        thread.start()
        with pytest.raises(KeyboardInterrupt):
            run(world, 2)
        thread.join()
        assert tx.status is Status.MARKED_ROLLBACK
    assert world.read() == [1]


def test_an_interrupt_once_the_name_is_taken_dooms_it_too(
    world: OneDatasource, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*_: object, **__: object) -> NoReturn:
        raise KeyboardInterrupt

    monkeypatch.setattr(idempotency.IdempotentWork, "_checked", interrupt)
    with pytest.raises(TransactionRolledBack), transaction() as tx:
        with pytest.raises(KeyboardInterrupt):
            run(world, 1)
        assert tx.status is Status.MARKED_ROLLBACK
    assert world.read() == []
