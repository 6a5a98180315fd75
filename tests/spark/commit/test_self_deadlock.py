"""A transaction that waits for itself: it is told so and rolls back, and whoever waits for a stranger is left alone."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import psycopg
import pytest

from recovery import RecoveryManager
from txpool.datasource import DataSource, connect, find, register
from txpool.errors import OperationalError
from txpool.spark import foreach_partition, write_table
from txpool.spark import register as register_format
from txpool.spark.commit import self_deadlock
from txpool.tm.demarcation.block import transaction
from txpool.tm.demarcation.calls import begin, commit
from txpool.tm.manager import get_manager
from txpool.xid import TaskName, make_xid

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from tests.conftest import Databases

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.usefixtures("sources")]

_TIMEOUT = 60.0
#: Between two looks, for the tests.
_PERIOD = 0.3
_WAITING = "select count(*) from pg_locks where not granted and locktype in ('transactionid', 'tuple')"


@pytest.fixture(autouse=True)
def landed(databases: Databases, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(self_deadlock, "PERIOD", _PERIOD)
    databases.execute("one", "create table landed (id bigint primary key, who text)")
    databases.execute("one", "insert into landed values (-1, 'old')")


def frame(spark: SparkSession, *span: int, partitions: int = 2) -> DataFrame:
    return spark.range(*span, numPartitions=partitions).selectExpr("'new' as who", "id")


def insert(rows: Iterator[Any]) -> None:
    """The user's writer."""
    from txpool.datasource import connect

    cursor = connect("one.properties").cursor()
    cursor.execute("set transaction isolation level read committed")  # no query may have come before it
    for row in rows:
        cursor.execute("insert into landed values (%s, current_setting('application_name'))", [row])


def update(rows: Iterator[Any]) -> None:
    """Another one, which has each row change the same one of the table."""
    from txpool.datasource import connect

    for _ in rows:
        connect("one.properties").cursor().execute("update landed set who = 'new' where id = -1")


def until(seen: Callable[[], object]) -> None:
    deadline = time.monotonic() + _TIMEOUT
    while not seen():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def waiting(databases: Databases) -> int:
    (number,) = databases.rows("one", _WAITING)[0]
    return int(number)


@contextmanager
def beside(work: Callable[[], object]) -> Iterator[list[BaseException]]:
    """Do it in a thread, and join it at the end of the block: what hangs is a failure, and not the end of the suite."""
    raised: list[BaseException] = []

    def run() -> None:
        try:
            work()
        except BaseException as error:
            raised.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    yield raised
    thread.join(_TIMEOUT)
    assert not thread.is_alive()


def refused(databases: Databases, work: Callable[[], object], message: str) -> BaseException:
    """Have it done in a transaction, which ends by that error, and leaves nothing behind."""

    def run() -> None:
        with transaction():
            work()

    with beside(run) as raised:
        pass
    with pytest.raises(OperationalError, match=message):
        raise raised[0]
    # A task that Spark has not killed by then gets its lock at the rollback, and prepares: recovery rolls that back.
    recovery = RecoveryManager(log=get_manager().log, datasources=[find("one.properties")], backoff=0)

    def nothing_is_prepared() -> bool:
        if databases.prepared():
            recovery.scan()
        return not databases.prepared()

    until(nothing_is_prepared)
    assert databases.rows("one", "select * from landed") == [(-1, "old")]
    query = "select relname from pg_class where relnamespace = to_regnamespace('txpool_spark') and relname ~ '^txp1'"
    assert databases.rows("one", query) == []
    # What still waited was let go, and has found its client gone.
    until(lambda: not waiting(databases))
    assert databases.rows("one", "select * from landed") == [(-1, "old")]
    return raised[0]


@pytest.mark.costly
@pytest.mark.parametrize(("strategy", "who"), [("direct", "partition 0"), ("staged", "the driver")])
def test_a_later_append_of_the_same_key(spark: SparkSession, databases: Databases, strategy: Any, who: str) -> None:
    def work() -> None:
        assert write_table(frame(spark, 4), "one.properties", "landed").strategy == "direct"
        write_table(frame(spark, 3, 9), "one.properties", "landed", strategy=strategy)

    message = rf"txp1:driver:\w+:\w+: in Spark write 1 {who} waits in one \(public.landed\) for what write 0 .*union"
    refused(databases, work, message)


def test_a_later_save_of_the_same_key(spark: SparkSession, databases: Databases) -> None:
    register_format(spark)

    def work() -> None:
        spark.createDataFrame([(1,)])  # Spark finds its formats only in a thread where it has been at work
        write_table(frame(spark, 4), "one.properties", "landed")
        writer = frame(spark, 3, 9).write.format("txpool").mode("append")
        try:
            writer.options(datasource="one.properties", dbtable="landed").save()
        except Exception as error:  # Spark's own, which has what the driver told it in its text
            raise OperationalError(str(error)) from error

    refused(databases, work, r"in Spark write 10\d+ the driver waits in one \(public.landed\) for what write 0 has")


@pytest.mark.costly
def test_what_the_driver_has_written_before(spark: SparkSession, databases: Databases) -> None:
    def same_key() -> None:
        connect("one.properties").cursor().execute("insert into landed values (7, 'driver')")
        foreach_partition(spark.sparkContext.parallelize(range(10), 2), insert)

    def same_row() -> None:
        connect("one.properties").cursor().execute("update landed set who = 'driver'")
        foreach_partition(spark.sparkContext.parallelize([1], 1), update)

    for work, partition in ((same_key, 1), (same_row, 0)):
        message = rf"write 0 partition {partition} waits in one \(public.landed\) for what the driver has .*not in both"
        error = refused(databases, work, message)
        assert "can only roll back" in "".join(error.__notes__)


@pytest.mark.costly
def test_two_partitions_with_the_same_key(spark: SparkSession, databases: Databases) -> None:
    def direct() -> None:
        write_table(frame(spark, 4).union(frame(spark, 3, 7)), "one.properties", "landed", strategy="direct")

    def foreach() -> None:
        foreach_partition(spark.sparkContext.parallelize([5, 5], 2), insert)

    for work in (direct, foreach):
        message = r"write 0 partition \d waits in one \(public.landed\) for what partition \d has .*keys distinct"
        refused(databases, work, message)


@pytest.mark.costly
def test_a_partition_that_queues_behind_a_stranger(spark: SparkSession, databases: Databases) -> None:
    dsn = databases.dsn("one")

    def update_last(rows: Iterator[Any]) -> None:
        import psycopg
        from pyspark import TaskContext

        from txpool.datasource import connect

        with psycopg.connect(dsn, autocommit=True) as connection:
            while TaskContext.get().partitionId():  # type: ignore[union-attr]
                if (connection.execute("select 1 from pg_locks where not granted").fetchone()) is not None:
                    break
        connect("one.properties").cursor().execute("update landed set who = 'new' where id = -1")

    def stranger() -> None:
        until(databases.prepared)
        databases.execute("one", "update landed set who = who where id = -1")

    with beside(stranger) as raised:
        work = lambda: foreach_partition(spark.sparkContext.parallelize([1, 2], 2), update_last)
        refused(databases, work, r"partition 1 waits in one \(public.landed\) for what partition 0 has written")
    assert raised == []


@pytest.mark.costly
def test_strangers_on_either_side_are_left_alone(spark: SparkSession, databases: Databases) -> None:
    # One that nobody uses, and that never answers.
    register(DataSource("gone", driver="psycopg", mode="xa", url="postgresql://nobody@127.0.0.1:1/gone"))

    def job() -> None:
        with transaction():
            write_table(frame(spark, 4), "one.properties", "landed")
            foreach_partition(spark.sparkContext.parallelize(range(10, 14), 2), insert)

    def late() -> None:
        until(lambda: len(databases.prepared()) >= 2)
        with pytest.raises(psycopg.errors.UniqueViolation):
            databases.execute("one", "insert into landed values (3, 'late')")

    with psycopg.connect(databases.dsn("one")) as early, beside(late) as unexpected, beside(job) as raised:
        early.execute("insert into landed values (12, 'early')")
        until(lambda: waiting(databases) == 2)
        time.sleep(5 * _PERIOD)
        assert waiting(databases) == 2
        early.rollback()
    assert unexpected == raised == []
    assert databases.rows("one", "select count(*) from landed where id >= 10") == [(4,)]
    assert databases.prepared() == []


def test_an_earlier_attempt_at_the_same_partition_is_left_to_the_monitor(
    spark: SparkSession, databases: Databases
) -> None:
    tx = begin()
    earlier = make_xid(tx.gtrid, 0, "one", task=TaskName(write=0, partition=1, attempt=1_000_000, branches=2)).joined

    def let_go() -> None:
        until(lambda: waiting(databases))
        time.sleep(5 * _PERIOD)
        databases.execute("one", f"rollback prepared '{earlier}'")  # type: ignore[arg-type]

    databases.execute("one", f"begin; insert into landed values (3, 'x'); prepare transaction '{earlier}'")  # type: ignore[arg-type]
    with beside(let_go) as raised:
        foreach_partition(spark.sparkContext.parallelize(range(4), 2), insert)
    commit()
    assert raised == []
    names = [(-1, "old"), *((number, f"{tx.gtrid}/0/{number // 2}") for number in range(4))]
    assert databases.rows("one", "select * from landed order by id") == names
    assert databases.prepared() == []
