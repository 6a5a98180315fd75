"""One transaction over two PostgreSQL databases and a marked SQLite file: what each end of it leaves in them."""

from __future__ import annotations

import os
import signal
import sqlite3
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

import psycopg
import pytest

import txpool
from recovery import RecoveryManager
from txpool import failpoints
from txpool.tm.manager import get_manager

if TYPE_CHECKING:
    from tests.conftest import Databases


@dataclass
class ThreeDatabases:
    """Three databases, each with a table t, and their datasources."""

    databases: Databases
    one: txpool.DataSource
    two: txpool.DataSource
    ledger: txpool.DataSource
    folder: Path

    def insert(self, *datasources: txpool.DataSource, value: int = 1) -> None:
        for datasource in datasources:
            with closing(datasource.connect()) as connection:
                connection.cursor().execute(f"insert into t values ({value})")

    def backend(self, datasource: txpool.DataSource) -> int:
        """The server process of its connection in the ambient transaction."""
        with closing(datasource.connect()) as connection:
            cursor = connection.cursor()
            cursor.execute("select pg_backend_pid()")
            return int(cursor.fetchone()[0])

    @property
    def held(self) -> tuple[int, int, int]:
        """How many rows each database holds, asked past txpool."""
        with closing(sqlite3.connect(self.folder / "ledger.db")) as ledger:
            in_ledger = ledger.execute("select count(*) from t").fetchone()[0]
        in_one, in_two = (self.databases.rows(name, "select count(*) from t")[0][0] for name in ("one", "two"))
        return in_one, in_two, in_ledger

    @property
    def marks(self) -> list[str]:
        with closing(sqlite3.connect(self.folder / "ledger.db")) as ledger:
            return [xid for (xid,) in ledger.execute("select xid from xids where xid <> 'txp1:identity'")]


@pytest.fixture
def world(databases: Databases, tmp_path: Path) -> Iterator[ThreeDatabases]:
    for name in ("one", "two"):
        databases.execute(name, "create table t (a integer primary key)")
    with closing(sqlite3.connect(tmp_path / "ledger.db")) as ledger:
        ledger.execute("pragma journal_mode = wal")
        ledger.execute("create table t (a integer primary key)")
    server = databases.server
    options = {"driver": "psycopg", "mode": "xa", "password": server.password, "pool_max_wait": 5}
    one, two = (txpool.DataSource(name=name, url=server.url(name), **options) for name in ("one", "two"))
    ledger_source = txpool.DataSource(
        name="ledger", driver="sqlite3", mode="cmr", url=f"sqlite:///{tmp_path}/ledger.db", cmr_batch_size=1
    )
    ledger_source.xids_table().create()  # type: ignore[attr-defined]
    txpool.configure(node_name="here", log_url=f"sqlite:///{tmp_path}/txlog", log_create=True)
    yield ThreeDatabases(databases, one, two, ledger_source, tmp_path)
    for datasource in (one, two, ledger_source):
        datasource.close()
    txpool.configure(node_name="tests", log_url="memory:")


def test_all_three_commit_and_nothing_stays_behind(world: ThreeDatabases) -> None:
    with txpool.transaction():
        world.insert(world.one, world.two, world.ledger)
        assert world.held == (0, 0, 0)
    assert world.held == (1, 1, 1)
    assert world.databases.prepared() == []
    assert world.marks == []


def test_all_three_roll_back(world: ThreeDatabases) -> None:
    with pytest.raises(ZeroDivisionError), txpool.transaction():
        world.insert(world.one, world.two, world.ledger)
        raise ZeroDivisionError
    assert world.held == (0, 0, 0)
    assert world.databases.prepared() == []
    assert world.marks == []


def test_the_false_yes_of_a_failed_transaction_is_a_vote_to_roll_back(world: ThreeDatabases) -> None:
    """psycopg's own tpc_prepare() answers yes here, and a hand-written two-phase commit is torn: one of two commits."""
    server = world.databases.server
    with psycopg.connect(server.dsn("one")) as one, psycopg.connect(server.dsn("two")) as two:
        for number, connection in enumerate((one, two)):
            connection.tpc_begin(connection.xid(1, "by-hand", str(number)))
            connection.execute("insert into t values (100)")
        with pytest.raises(psycopg.errors.UndefinedTable):
            two.execute("select * from nowhere")
        one.tpc_prepare()
        two.tpc_prepare()
        one.tpc_commit()
        with pytest.raises(psycopg.Error):
            two.tpc_commit()
        two.close()
    assert world.held == (1, 0, 0), "the bug that users of tpc_prepare() have today is gone: a test to rethink"

    with pytest.raises(txpool.TransactionRolledBack, match="two"), txpool.transaction():
        world.insert(world.one, world.two)
        with closing(world.two.connect()) as connection, pytest.raises(txpool.ProgrammingError):
            connection.cursor().execute("select * from nowhere")
    assert world.held == (1, 0, 0), "and with txpool nothing is torn"
    assert world.databases.prepared() == []


def test_a_constraint_that_is_checked_at_prepare_rolls_all_back(world: ThreeDatabases) -> None:
    world.databases.execute("two", "create table child (a integer references t deferrable initially deferred)")
    with pytest.raises(txpool.TransactionRolledBack) as raised, txpool.transaction():
        world.insert(world.one, world.ledger)
        with closing(world.two.connect()) as connection:
            connection.cursor().execute("insert into child values (42)")
    assert isinstance(raised.value.__cause__, psycopg.errors.ForeignKeyViolation)
    assert isinstance(raised.value.__cause__, txpool.IntegrityError)
    assert "datasource two voted to roll back" in str(raised.value)
    assert world.held == (0, 0, 0)
    assert world.databases.prepared() == []
    assert world.marks == []


def test_what_is_refused_by_the_only_database_names_it(world: ThreeDatabases) -> None:
    world.databases.execute("two", "create table child (a integer references t deferrable initially deferred)")
    with pytest.raises(txpool.TransactionRolledBack, match="datasource two refused to commit"), txpool.transaction():
        world.two.connect().cursor().execute("insert into child values (42)")
    with pytest.raises(txpool.TransactionRolledBack, match="datasource two: COMMIT was not sent"):  # noqa: SIM117
        with txpool.transaction(), closing(world.two.connect()) as connection:
            with pytest.raises(txpool.ProgrammingError):
                connection.cursor().execute("select * from nowhere")


def test_a_database_that_cannot_be_connected_to_is_named(tmp_path: Path, world: ThreeDatabases) -> None:
    nowhere = tmp_path / "nowhere" / "ledger.db"
    with (
        txpool.DataSource(name="lost", driver="sqlite3", mode="local", url=f"sqlite:///{nowhere}") as lost,
        pytest.raises(sqlite3.OperationalError, match=f"datasource lost .*{nowhere}.*unable to open"),
    ):
        lost.connect()
    options: dict[str, Any] = {"driver": "psycopg", "url": world.databases.url("one"), "driver_xyz": "1"}
    with (
        txpool.DataSource(name="odd", password=world.databases.server.password, **options) as odd,
        pytest.raises(txpool.ProgrammingError, match=r"datasource odd .*xyz"),
    ):
        odd.connect()


def test_no_log_is_an_error_that_shows_the_two_lines(world: ThreeDatabases) -> None:
    txpool.configure()
    with pytest.raises(txpool.ProgrammingError) as raised, txpool.transaction():
        world.insert(world.one, world.two)
    assert "\n    node.name = " in str(raised.value)
    assert "\n    log.url = sqlite:///" in str(raised.value)
    assert world.held == (0, 0, 0)
    with txpool.transaction():
        world.insert(world.one)
    assert world.held == (1, 0, 0), "one database needs no log"


def test_a_second_marked_datasource_is_refused_and_the_first_goes_on(world: ThreeDatabases) -> None:
    world.databases.execute("one", "create table other (a integer)")
    server = world.databases.server
    other = txpool.DataSource(
        name="other", driver="psycopg", mode="cmr", url=server.url("one"), password=server.password
    )
    with txpool.transaction():
        world.insert(world.ledger)
        with pytest.raises(txpool.ProgrammingError, match="only one"):
            other.connect()
    other.close()
    assert world.held == (0, 0, 1)


def test_a_local_datasource_must_be_alone(world: ThreeDatabases) -> None:
    server = world.databases.server
    local = txpool.DataSource(
        name="local", driver="psycopg", mode="local", url=server.url("one"), password=server.password
    )
    with txpool.transaction():
        world.insert(local)
        with pytest.raises(txpool.ProgrammingError, match="must be alone"):
            world.two.connect()
    with txpool.transaction():
        world.insert(world.two)
        with pytest.raises(txpool.ProgrammingError, match="must be alone"):
            local.connect()
    local.close()
    assert world.held == (1, 1, 0)


def test_an_idle_datasource_takes_no_part(world: ThreeDatabases) -> None:
    with txpool.transaction():
        world.insert(world.one)
        world.two.connect().close()
        world.ledger.connect().close()
    assert world.held == (1, 0, 0)
    with closing(sqlite3.connect(world.folder / "txlog" / "log.db")) as log:
        assert log.execute("select count(*) from decisions").fetchone()[0] == 0, "one branch needs no decision"


def test_a_connection_that_was_closed_to_establish_the_truth_does_not_go_back(
    world: ThreeDatabases, caplog: pytest.LogCaptureFixture
) -> None:
    failpoints.arm("marked.committed", "raise")
    with txpool.transaction():
        world.insert(world.one, world.two, world.ledger)
    failpoints.disarm()
    assert world.held == (1, 1, 1)
    assert "could not be reset" not in caplog.text
    statistics = world.ledger.statistics()
    assert (statistics.reset_failures, statistics.taken) == (0, 0)
    with txpool.transaction():
        world.insert(world.one, world.ledger, value=2)
    assert world.held == (2, 1, 2)


def test_a_timeout_while_it_prepares_is_told_as_that(world: ThreeDatabases) -> None:
    world.databases.execute(
        "two",
        "create function nap() returns trigger language plpgsql as 'begin perform pg_sleep(600); return null; end'; "
        "create constraint trigger slow after insert on t deferrable initially deferred "
        "for each row execute function nap()",
    )
    with pytest.raises(txpool.TransactionTimeout, match=r"0\.5 s") as raised, txpool.transaction(timeout=0.5):
        world.insert(world.one, world.two)
    causes = [raised.value.__cause__, getattr(raised.value.__cause__, "__cause__", None)]
    assert any(isinstance(cause, psycopg.errors.QueryCanceled) for cause in causes)
    assert world.databases.prepared() == []
    assert world.held == (0, 0, 0)


def test_connect_waits_inside_a_transaction_as_long_as_it_is_told(world: ThreeDatabases) -> None:
    with txpool.DataSource(
        "narrow",
        driver="psycopg",
        url=world.one.settings.url,
        password=world.databases.server.password,
        pool_max_size=1,
    ) as narrow:
        held = narrow.connect()
        with pytest.raises(txpool.PoolTimeout, match=r"0\.05 s"), txpool.transaction():
            narrow.connect(timeout=0.05)
        held.close()


def test_a_timeout_cancels_what_is_executing(world: ThreeDatabases) -> None:
    with pytest.raises(txpool.TransactionTimeout) as raised, txpool.transaction(timeout=0.3):
        world.insert(world.one)
        with closing(world.two.connect()) as connection:
            connection.cursor().execute("select pg_sleep(60)")
    assert isinstance(raised.value.__cause__, psycopg.errors.QueryCanceled)
    assert world.held == (0, 0, 0)
    world.insert(world.one)


def test_a_cancel_that_comes_before_its_statement_is_sent_again(
    world: ThreeDatabases, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first one is there while the session does nothing, and the server forgets it."""
    driver = world.one.driver_adapter
    cancel, cancelled = driver.cancel, list[object]()

    def too_early(raw: object, timeout: float | None = None) -> None:
        cancelled.append(raw)
        if len(cancelled) > 1:
            cancel(raw, timeout)

    monkeypatch.setattr(type(driver), "cancel", lambda _, raw, timeout=None: too_early(raw, timeout))
    with pytest.raises(txpool.TransactionTimeout) as raised, txpool.transaction(timeout=0.3):
        world.insert(world.one)
        with closing(world.one.connect()) as connection:
            connection.cursor().execute("select pg_sleep(20)")
    assert isinstance(raised.value.__cause__, psycopg.errors.QueryCanceled)
    assert len(cancelled) > 1
    assert world.held == (0, 0, 0)


def test_a_cancel_that_comes_late_never_meets_the_next_transaction(world: ThreeDatabases) -> None:
    """Its thread is held back until the connection would have gone to somebody else."""
    late = threading.Event()

    def hold(*_: object) -> None:
        if threading.current_thread().name == "txpool-cancel":
            late.wait()

    threading.setprofile(hold)
    try:
        with pytest.raises(txpool.TransactionTimeout), txpool.transaction() as tx:
            cancelled = world.backend(world.one)
            tx.expire(1.0)
    finally:
        threading.setprofile(None)
    (cancel,) = (thread for thread in threading.enumerate() if thread.name == "txpool-cancel")
    with txpool.transaction():
        assert world.backend(world.one) != cancelled
        late.set()
        cancel.join()


def test_an_interrupt_while_the_end_waits_for_another_threads_statement_rolls_back(world: ThreeDatabases) -> None:
    def interrupt() -> None:
        while tx.active:
            time.sleep(0.01)
        time.sleep(0.2)  # it has come to wait by then
        os.kill(os.getpid(), signal.SIGINT)

    handler = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt), txpool.transaction() as tx:
            world.insert(world.one)
            executing = threading.Thread(target=world.one.connect().cursor().execute, args=("select pg_sleep(2)",))
            executing.start()
            asleep = "select 1 from pg_stat_activity where query = 'select pg_sleep(2)'"
            while not world.databases.rows("one", asleep):
                time.sleep(0.01)
            threading.Thread(target=interrupt).start()
    finally:
        signal.signal(signal.SIGINT, handler)
    executing.join()
    assert tx.status is txpool.Status.ROLLED_BACK
    assert world.one.statistics().taken == 0
    assert world.held == (0, 0, 0)


@pytest.mark.parametrize("fails", [False, True], ids=["commit", "rollback"])
def test_an_interrupt_while_a_connection_is_given_back_leaves_the_outcome_and_the_others(
    world: ThreeDatabases, fails: bool
) -> None:
    def interrupt(frame: FrameType, event: str, _: object) -> None:
        if event == "call" and frame.f_code.co_name == "give_back":
            sys.setprofile(None)
            raise KeyboardInterrupt

    told: list[txpool.Status] = []
    with pytest.raises(KeyboardInterrupt) as caught, txpool.transaction() as tx:
        world.insert(world.one)
        world.insert(world.two)
        tx.after_completion(told.append)
        sys.setprofile(interrupt)
        if fails:
            raise ValueError
    outcome = txpool.Status.ROLLED_BACK if fails else txpool.Status.COMMITTED
    assert [*told, tx.status] == [outcome, outcome]
    assert [note for note in caught.value.__notes__ if tx.gtrid in note and outcome.value in note]
    assert world.two.statistics().taken == 0
    assert world.held == ((0, 0, 0) if fails else (1, 1, 0))


def test_an_interrupt_in_a_callback_after_the_end_leaves_the_outcome_and_the_other_callbacks(
    world: ThreeDatabases,
) -> None:
    def interrupted(_: txpool.Status) -> None:
        raise KeyboardInterrupt

    told: list[txpool.Status] = []
    with pytest.raises(KeyboardInterrupt) as caught, txpool.transaction() as tx:
        world.insert(world.one)
        tx.after_completion(told.append)
        tx.after_completion(interrupted)
    assert told == [txpool.Status.COMMITTED]
    assert caught.value.__notes__ == [f"{tx.gtrid}: committed"]
    assert world.held == (1, 0, 0)


def test_work_after_the_timeout_is_refused_and_never_autocommitted(world: ThreeDatabases) -> None:
    expired = threading.Event()
    with pytest.raises(txpool.TransactionTimeout), txpool.transaction(timeout=0.1) as tx:
        world.insert(world.one)
        tx.on_cancel(expired.set)
        assert expired.wait(10)
        world.insert(world.two)
    assert world.held == (0, 0, 0)


def test_work_of_other_threads_in_the_same_transaction_is_part_of_it(world: ThreeDatabases) -> None:
    with pytest.raises(txpool.TransactionRolledBack), txpool.transaction() as tx:
        connections = [world.one.connect() for _ in range(8)]
        threads = [
            threading.Thread(target=c.cursor().execute, args=(f"insert into t values ({n})",))
            for n, c in enumerate(connections)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert world.held == (0, 0, 0)
        assert world.one.statistics().size == 1
        tx.set_rollback_only()
        with pytest.raises(txpool.ProgrammingError):
            world.insert(world.one)
    assert world.held == (0, 0, 0)


@pytest.mark.parametrize(
    ("point", "left"),
    [
        ("coordinator.preparing", (0, 0, 0)),
        ("coordinator.prepared", (0, 0, 0)),
        ("coordinator.decided", (1, 1, 0)),
        ("coordinator.committing", (1, 1, 0)),
    ],
)
def test_an_interrupt_before_the_decision_rolls_back_and_after_it_never(
    world: ThreeDatabases, point: str, left: tuple[int, int, int]
) -> None:
    handler = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with (
            failpoints.arming(point, "interrupt"),
            pytest.raises(KeyboardInterrupt) as raised,
            txpool.transaction(),
        ):
            world.insert(world.one, world.two)
    finally:
        signal.signal(signal.SIGINT, handler)
    assert ("rolled back" if left == (0, 0, 0) else "committed") in raised.value.__notes__[0]
    log = get_manager().log
    RecoveryManager(log=log, datasources=[world.one, world.two, world.ledger], backoff=0).scan()
    assert world.held == left
    assert world.databases.prepared() == []


def test_a_decision_that_may_or_may_not_be_written_is_in_doubt_and_settled_in_the_background(
    world: ThreeDatabases,
) -> None:
    """The log's disk fails after the vote: nobody commits or rolls back until an abort record has told the truth."""
    failpoints.arm("log.recorded")
    failpoints.arm("log.abort")
    try:
        with pytest.raises(txpool.TransactionInDoubt) as raised, txpool.transaction() as tx:
            world.insert(world.one, world.two)
        assert tx.status is txpool.Status.IN_DOUBT
        assert raised.value.gtrid == tx.gtrid
        assert len(world.databases.prepared()) == 2
        assert world.held == (0, 0, 0)
    finally:
        failpoints.disarm()
    deadline = time.monotonic() + 30
    while get_manager().in_doubt and time.monotonic() < deadline:
        time.sleep(0.05)
    assert tx.status is txpool.Status.COMMITTED, "the record had landed"
    assert world.held == (1, 1, 0)
    assert world.databases.prepared() == []
