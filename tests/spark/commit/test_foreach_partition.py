"""foreach_partition(): what tasks write has the outcome of the driver's transaction."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import txpool
import txpool.datasource
from recovery import RecoveryManager
from txpool.datasource import DataSource
from txpool.errors import (
    ConfigurationError,
    OperationalError,
    ProgrammingError,
    TransactionRolledBack,
    TransactionTimeout,
)
from txpool.spark import foreach_partition
from txpool.tm.demarcation.block import transaction
from txpool.tm.demarcation.calls import begin, commit, rollback
from txpool.tm.manager import configure, get_manager

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tests.conftest import Databases

pytestmark = pytest.mark.spark

Write = Callable[[Iterator[Any]], object]


@pytest.fixture(autouse=True)
def folder(databases: Databases, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The working directory: a decision log, and a file for each database, with its password by reference."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "secret").write_text(databases.server.password)
    (tmp_path / "secret").chmod(0o600)
    for name in (databases.one, databases.two):
        text = f"name = {name}\ndriver = psycopg\nurl = {databases.url(name)}\npassword = ${{file:secret}}\n"
        # Workers keep their pools from test to test, and each test begins by ending all sessions.
        text += "pool.check-bypass = 0\n"
        (tmp_path / f"{name}.properties").write_text(text)
        databases.execute(name, "create table landed (id bigint primary key, who int)")
    manager = configure(node_name="driver", log_url="sqlite:///txlog", log_create=True)
    yield tmp_path
    for datasource in set(txpool.datasource.known().values()):
        datasource.close()
    manager.close()


def writer(*files: str, suffix: str = "", then: Callable[[int], object] = lambda partition: None) -> Write:
    """A user's writer: every row into all of these datasources, and `then` once they are written."""

    def write(rows: Iterator[Any]) -> None:
        from pyspark import TaskContext

        from txpool.datasource import connect

        partition = TaskContext.get().partitionId()
        cursors = [connect(file + suffix).cursor() for file in files]
        for row in rows:
            for cursor in cursors:
                cursor.execute("insert into landed values (%s, %s)", [row.id if hasattr(row, "id") else row, partition])
        then(partition)

    return write


def landed(databases: Databases, name: str) -> list[int]:
    return [row for (row,) in databases.rows(name, "select id from landed order by id")]


@pytest.mark.slow
def test_every_partition_lands_with_what_the_driver_wrote(spark: SparkSession, databases: Databases) -> None:
    with transaction() as tx:
        first = foreach_partition(spark.range(100).repartition(3), writer("one.properties", "two.properties"))
        assert landed(databases, "one") == []
        assert len(databases.prepared()) == 6
        # The second has an empty partition, an RDD, and a generator for a writer.
        rows = spark.sparkContext.parallelize([100], 2)
        write = writer("one.properties")
        second = foreach_partition(rows, lambda rows: (write(iter([row])) for row in rows))
        txpool.datasource.connect("two.properties").cursor().execute("insert into landed values (-1)")
    assert (first.gtrid, first.write, first.partitions, first.attempts, first.branches) == (tx.gtrid, 0, 3, 3, 6)
    assert (second.write, second.partitions, second.attempts, second.branches) == (1, 2, 2, 1)
    assert landed(databases, "one") == list(range(101))
    assert landed(databases, "two") == list(range(-1, 100))
    assert databases.prepared() == []
    assert tx._log.finished() == set()  # type: ignore[union-attr]


def test_the_driver_may_still_roll_back(spark: SparkSession, databases: Databases) -> None:
    begin()
    foreach_partition(spark.range(10), writer("one.properties"))
    assert len(databases.prepared()) == 2
    rollback()
    assert landed(databases, "one") == []
    assert databases.prepared() == []


def test_a_partition_that_fails_leaves_nothing_of_any(spark: SparkSession, databases: Databases) -> None:
    dsn = databases.dsn("one")

    def fail_once_the_other_is_prepared(partition: int) -> None:
        import psycopg

        with psycopg.connect(dsn, autocommit=True) as connection:
            while partition == 1:
                (prepared,) = connection.execute("select count(*) from pg_prepared_xacts").fetchone() or (0,)
                if prepared == 4:  # two of the first write, and two of the other partition
                    raise LookupError("the user's own error")

    tx = begin()
    foreach_partition(spark.range(10), writer("one.properties"))
    write = writer("one.properties", "two.properties", then=fail_once_the_other_is_prepared)
    with pytest.raises(Exception, match="LookupError: the user's own error") as caught:
        foreach_partition(spark.range(20, 30), write)
    assert tx.gtrid in caught.value.__notes__[-1]
    assert "This was partition 1 (task attempt" in str(caught.value)
    with pytest.raises(ProgrammingError, match="rollback-only"):
        txpool.datasource.connect("one.properties")
    with pytest.raises(TransactionRolledBack, match="Spark write 1 failed"):
        commit()
    assert landed(databases, "one") == landed(databases, "two") == []
    assert databases.prepared() == []
    assert tx.gtrid in tx._log.finished()  # type: ignore[union-attr]


@pytest.mark.costly
def test_what_is_prepared_after_the_rollback_is_swept_by_recovery(spark: SparkSession, databases: Databases) -> None:
    # The server goes on with the PREPARE of partition 0, whose client is killed meanwhile with the rest of the job.
    databases.execute(
        "one",
        """
        create function nap() returns trigger language plpgsql as
            'begin if new.who = 0 then perform pg_sleep(8); end if; return null; end';
        create constraint trigger nap after insert on landed deferrable initially deferred
            for each row when (new.id = 0) execute function nap()
        """,
    )
    dsn = databases.dsn("one")

    def fail_while_the_other_prepares(partition: int) -> None:
        import psycopg

        query = "select 1 from pg_stat_activity where state = 'active' and query like '%prepare transaction ''txp%'"
        with psycopg.connect(dsn, autocommit=True) as connection:
            while partition == 1:
                if connection.execute(query + " and pid <> pg_backend_pid()").fetchone():
                    raise LookupError

    begin()
    with pytest.raises(Exception, match="LookupError"):
        foreach_partition(spark.range(4), writer("one.properties", then=fail_while_the_other_prepares))
    rollback()
    while not databases.prepared():  # it comes late
        time.sleep(0.1)
    log = get_manager().log
    RecoveryManager(log=log, datasources=[txpool.datasource.find("one.properties")], backoff=0).scan()
    assert databases.prepared() == []
    assert landed(databases, "one") == []


def test_without_a_partition_nothing_runs(spark: SparkSession, databases: Databases) -> None:
    with transaction():
        report = foreach_partition(spark.sparkContext.emptyRDD(), writer("one.properties"))
    assert (report.partitions, report.attempts, report.branches) == (0, 0, 0)


def test_no_task_reads_before_what_earlier_runs_have_left_is_settled(
    spark: SparkSession, databases: Databases, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Spark runs those before a shuffle to plan what follows: they would read what an earlier run is yet to change."""
    ran, before = folder / "ran", list[bool]()

    def reading(batches: Iterator[Any]) -> Iterator[Any]:
        ran.touch()
        yield from batches

    monkeypatch.setattr("txpool.spark.partitions.settle_earlier_runs", lambda *_: before.append(ran.exists()))
    shuffled = spark.range(9).mapInArrow(reading, "id bigint").groupBy("id").count()
    with transaction():
        foreach_partition(shuffled, writer("one.properties"))
    assert before == [False]
    assert ran.exists()
    assert landed(databases, "one") == [*range(9)]


def test_a_marked_datasource_is_refused_in_a_task(spark: SparkSession, databases: Databases, folder: Path) -> None:
    (folder / "ledger.properties").write_text("driver = sqlite3\nmode = cmr\nurl = sqlite:///ledger.db\n")
    with (
        pytest.raises(Exception, match=r"datasource ledger \(mode=cmr\) cannot be used inside a task"),
        transaction(),
    ):
        foreach_partition(spark.range(4), writer("one.properties", "ledger.properties"))
    assert landed(databases, "one") == []
    assert databases.prepared() == []
    assert not (folder / "ledger.db").exists()


@pytest.mark.costly
def test_a_timeout_cancels_the_job(spark: SparkSession, databases: Databases) -> None:
    def sleep(partition: int) -> None:
        from txpool.datasource import connect

        connect("one.properties").cursor().execute("select pg_sleep(600)")

    with pytest.raises(TransactionTimeout) as caught, transaction(timeout=3):
        foreach_partition(spark.range(4), writer("one.properties", then=sleep))
    assert "cancelled" in str(caught.value.__cause__)
    assert spark.sparkContext.statusTracker().getActiveJobsIds() == []
    assert landed(databases, "one") == []
    assert databases.prepared() == []


def test_slots_are_counted_before_the_job(spark: SparkSession, databases: Databases) -> None:
    rows = spark.sparkContext.parallelize(range(70), 70)
    with pytest.raises(OperationalError, match=r"70 partitions need 70 .* and 64 are free .*coalesce"), transaction():
        foreach_partition(rows, writer("one.properties"), datasources=["one.properties"])
    assert spark.sparkContext.statusTracker().getActiveJobsIds() == []


@pytest.mark.costly
def test_a_task_that_finds_no_slot_says_so_and_all_is_freed(spark: SparkSession, databases: Databases) -> None:
    rows = spark.sparkContext.parallelize(range(70), 70)
    with pytest.raises(Exception, match=r"each of its 70 partitions\. Write fewer partitions"), transaction():
        foreach_partition(rows, writer("one.properties"))
    assert landed(databases, "one") == []
    assert databases.prepared() == []


def test_tasks_find_what_the_function_mentions_from_the_drivers_folder(
    spark: SparkSession, databases: Databases, folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    assert os.getcwd() == str(folder)  # where no worker process is
    with transaction():
        foreach_partition(spark.range(4), writer("one.properties"))
    assert landed(databases, "one") == [0, 1, 2, 3]
    assert caplog.messages == []


def test_a_database_that_the_driver_did_not_know_is_refused_before_anything_is_prepared(
    spark: SparkSession, databases: Databases
) -> None:
    """After a crash nobody would look for it: the log has no note of it."""
    write = writer("one", suffix=".properties")
    with pytest.raises(Exception, match=r"nothing was prepared there .* datasources=\[…\]"), transaction():
        foreach_partition(spark.range(4), write)
    assert databases.prepared() == []
    assert landed(databases, "one") == []
    with transaction():
        foreach_partition(spark.range(4), write, datasources=["one.properties"])
    assert landed(databases, "one") == [0, 1, 2, 3]


def test_what_the_driver_cannot_load_is_refused_as_well(
    spark: SparkSession, databases: Databases, folder: Path
) -> None:
    text = "name = elsewhere\ndriver = psycopg\nurl = ${env:ELSEWHERE}\npassword = ${file:secret}\n"
    (folder / "elsewhere.properties").write_text(text)
    url = databases.url("two")
    insert = writer("elsewhere.properties")

    def write(rows: Iterator[Any]) -> None:
        os.environ["ELSEWHERE"] = url
        insert(rows)

    begin()
    with pytest.raises(Exception, match=r"nothing was prepared there"):
        foreach_partition(spark.range(4), write)
    with pytest.raises(TransactionRolledBack):
        commit()
    assert databases.prepared() == []
    assert landed(databases, "two") == []


def test_a_namesake_is_not_mistaken_for_it(spark: SparkSession, databases: Databases, folder: Path) -> None:
    elsewhere = folder / "elsewhere"
    elsewhere.mkdir()
    text = (folder / "two.properties").read_text()
    (elsewhere / "one.properties").write_text(text.replace("name = two", "name = one"))
    (elsewhere / "secret").write_text(databases.server.password)
    (elsewhere / "secret").chmod(0o600)
    txpool.datasource.find(elsewhere / "one.properties")
    with transaction():
        foreach_partition(spark.range(4), writer("one.properties"))
    assert landed(databases, "one") == [0, 1, 2, 3]
    with pytest.raises(ProgrammingError, match="two datasources are called one, postgresql://"), transaction():
        txpool.connect("one.properties").cursor().execute("insert into landed values (9)")
        txpool.connect(elsewhere / "one.properties").cursor().execute("insert into landed values (9)")
    assert (landed(databases, "one"), landed(databases, "two")) == ([0, 1, 2, 3], [])


def test_a_registered_datasource_is_found_by_its_name(spark: SparkSession, databases: Databases, folder: Path) -> None:
    password = txpool.datasource.find("one.properties").settings.password
    txpool.datasource.register(DataSource("north", driver="psycopg", url=databases.url("one"), password=password))
    with transaction():
        foreach_partition(spark.range(4), writer("north"))
    assert landed(databases, "one") == [0, 1, 2, 3]


def test_no_password_travels(spark: SparkSession, databases: Databases, folder: Path) -> None:
    from pyspark import cloudpickle

    from txpool.spark.task.datasources import TaskDatasources, datasources_for
    from txpool.spark.task.task import PartitionTask

    inline = folder / "inline.properties"
    inline.write_text(f"driver = psycopg\nurl = {databases.url('one')}\npassword = {databases.server.password}\n")
    inline.chmod(0o600)
    code = DataSource("code", driver="psycopg", url=databases.url("one"), password=databases.server.password)
    txpool.datasource.register(code)
    datasources = TaskDatasources.pack(
        [txpool.datasource.find("one.properties")], datasources_for((), writer("inline.properties"))
    )
    assert set(datasources.settings) == {"one", "inline"}
    sent = cloudpickle.dumps(
        PartitionTask("txp1:n:abcdefghijkl:1", 0, 4, writer("inline.properties"), datasources, frozenset())
    )
    assert b"inline.properties" in sent
    assert databases.server.password.encode() not in sent

    with (
        pytest.raises(Exception, match=r"The driver's datasource code is not available in this task: .* cannot travel"),
        transaction(),
    ):
        foreach_partition(spark.range(4), writer("code"))
    with pytest.raises(ConfigurationError, match="cannot travel"), transaction():
        foreach_partition(spark.range(4), writer("code"), datasources=["code"])
    with transaction():  # a task of this machine reads the file again
        foreach_partition(spark.range(4), writer("inline.properties"))
    assert landed(databases, "one") == [0, 1, 2, 3]


def test_it_needs_a_transaction_and_a_decision_log(spark: SparkSession, databases: Databases) -> None:
    with pytest.raises(ProgrammingError, match=r"with txpool.transaction\(\)"):
        foreach_partition(spark.range(4), writer("one.properties"))
    configure(node_name="nobody")
    with pytest.raises(ProgrammingError, match=r"log.url = sqlite:///txlog"), transaction():
        foreach_partition(spark.range(4), writer("one.properties"))
    assert spark.sparkContext.statusTracker().getActiveJobsIds() == []
