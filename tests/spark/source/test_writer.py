"""format("txpool"): Spark's own writer API, whose rows are a part of the transaction of the thread that writes."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from contextvars import copy_context
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

from recovery import RecoveryManager
from txpool.datasource import DataSource, connect
from txpool.errors import TransactionRolledBack, TransactionTimeout
from txpool.spark import register, write_table
from txpool.spark.commit.slots import SlotReservation
from txpool.tm.demarcation.block import transaction
from txpool.tm.demarcation.calls import begin, commit, resume, rollback, suspend
from txpool.tm.demarcation.transactional import transactional
from txpool.tm.manager import get_manager

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from tests.conftest import Databases

pytestmark = [pytest.mark.spark, pytest.mark.usefixtures("sources")]


@pytest.fixture(autouse=True)
def landed(databases: Databases, spark: SparkSession) -> None:
    register(spark)
    for name in (databases.one, databases.two):
        databases.execute(name, "create table keyed (id bigint primary key, who text, n int default 7)")
        databases.execute(name, "create table plain (id bigint, who text, n int default 7)")


def frame(spark: SparkSession, *span: int, who: str = "new", partitions: int = 2) -> DataFrame:
    return spark.range(*span, numPartitions=partitions).selectExpr(f"'{who}' as who", "id")


def save(df: DataFrame, table: str, mode: str = "append", datasource: str = "one.properties", **options: Any) -> None:
    writer = df.write.format("txpool").option("datasource", datasource).option("dbtable", table)
    for name, value in options.items():
        writer = writer.option(name, value)
    writer.mode(mode).save()


def rows(databases: Databases, table: str, name: str = "one") -> list[tuple[Any, ...]]:
    return databases.rows(name, f"select id, who from {table} order by id")


def staging(databases: Databases) -> list[tuple[Any, ...]]:
    query = "select relname from pg_class where relnamespace = to_regnamespace('txpool_spark') and relname ~ '^txp1'"
    return databases.rows("one", query)


def new(*ids: int) -> list[tuple[int, str]]:
    return [(number, "new") for number in range(*ids)]


@pytest.mark.slow
def test_it_is_a_part_of_the_transaction_of_its_thread(spark: SparkSession, databases: Databases) -> None:
    with transaction() as tx:
        save(frame(spark, 100, partitions=3), "plain")
        assert {gid.startswith(tx.gtrid) for gid in databases.prepared()} == {True}
        assert len(databases.prepared()) == 3
        save(frame(spark, 100), "keyed")
        save(frame(spark, 9), "keyed", datasource="two.properties")
        connect("two.properties").cursor().execute("insert into keyed values (-1, 'new')")
        write_table(frame(spark, 9), "two.properties", "plain")
        assert rows(databases, "plain") == rows(databases, "keyed") == rows(databases, "keyed", "two") == []
    assert rows(databases, "plain") == rows(databases, "keyed") == new(100)
    assert rows(databases, "keyed", "two") == new(-1, 9)
    assert rows(databases, "plain", "two") == new(9)
    assert databases.rows("one", "select distinct n from keyed") == [(7,)]
    assert databases.prepared() == staging(databases) == []


def test_what_went_direct_is_not_overwritten_unseen(spark: SparkSession, databases: Databases) -> None:
    for write in (save, lambda df, table, mode: write_table(df, "one.properties", table, mode)):
        with pytest.raises(Exception, match=r"overwrite of public.plain in one: an earlier write"), transaction():
            save(frame(spark, 4), "plain")
            write(frame(spark, 2), "plain", "overwrite")
    assert rows(databases, "plain") == databases.prepared() == []


def test_a_rollback_takes_it_back(spark: SparkSession, databases: Databases) -> None:
    begin()
    save(frame(spark, 10), "plain")
    save(frame(spark, 10), "keyed")
    rollback()
    begin()
    save(frame(spark, 10), "plain")
    with pytest.raises(Exception, match=r"(?s)Failed to commit.*duplicate key.*can only roll back"):
        save(frame(spark, 4).union(frame(spark, 4)), "keyed")
    with pytest.raises(TransactionRolledBack):
        commit()
    assert rows(databases, "plain") == rows(databases, "keyed") == []
    assert databases.prepared() == staging(databases) == []


def breaking(dsn: str, batches: Iterator[Any]) -> Iterator[Any]:
    """The second partition fails once the first one is prepared."""
    import psycopg

    for batch in batches:
        if batch.id.max() < 5:
            yield batch
            continue
        with psycopg.connect(dsn, autocommit=True) as connection:
            deadline = time.monotonic() + 600
            while connection.execute("select from pg_prepared_xacts").rowcount == 0:
                assert time.monotonic() < deadline
                time.sleep(0.02)
        raise ValueError("broken")


@pytest.mark.costly
def test_where_there_is_no_transaction_it_is_one(spark: SparkSession, databases: Databases) -> None:
    save(frame(spark, 10), "keyed")
    save(frame(spark, 0), "keyed", "append")
    with pytest.raises(Exception, match="duplicate key"):
        save(frame(spark, 9, 20), "keyed")
    broken = spark.range(10, numPartitions=2).mapInPandas(partial(breaking, databases.dsn("one")), "id bigint")
    with pytest.raises(Exception, match="broken"):
        save(broken, "plain")
    with pytest.raises(Exception, match="broken"), transaction():
        save(broken, "plain")
    assert rows(databases, "keyed") == new(10)
    assert rows(databases, "plain") == databases.prepared() == staging(databases) == []


@pytest.mark.costly
def test_modes(spark: SparkSession, databases: Databases) -> None:
    databases.execute("one", "insert into keyed values (-5, 'old', 1), (3, 'old', 1)")
    save(frame(spark, 10), "keyed", upsertKeys="id")
    assert rows(databases, "keyed") == [(-5, "old"), *new(10)]
    with transaction():
        save(frame(spark, 5), "keyed", "overwrite")
        assert rows(databases, "keyed") == [(-5, "old"), *new(10)]
    assert rows(databases, "keyed") == new(5)
    save(frame(spark, 0), "keyed", "overwrite")
    assert rows(databases, "keyed") == []
    save(frame(spark, 3), "fresh", createTable="true")
    assert rows(databases, "fresh") == new(3)
    local = spark.sql(
        "select timestamp'2020-07-01 12:00:00' as at, array(1, null) as many, timestamp_ntz'1500-01-01' as x"
    )
    databases.execute("one", "create table timely (at timestamp, many int[], x timestamp)")
    save(local, "timely")
    write_table(local, "one.properties", "timely")
    ((sent, number),) = databases.rows("one", "select timely, count(*) from timely group by 1")
    assert (sent, number) == ('("2020-07-01 12:00:00","{1,NULL}","1500-01-01 00:00:00")', 2)


@pytest.mark.costly
def test_too_few_slots_go_staged_task_by_task(spark: SparkSession, databases: Databases) -> None:
    ((maximum,),) = databases.rows("one", "select current_setting('max_prepared_transactions')::int")
    with closing(_Others(maximum - 3)):
        with transaction():
            save(frame(spark, 100, partitions=8), "plain")
            assert len(databases.prepared()) == 2  # and one is left to the driver
            assert rows(databases, "plain") == []
        with pytest.raises(Exception, match="All slots for prepared transactions are taken"):
            save(frame(spark, 100, 200, partitions=8), "plain", strategy="direct")
    # The job has failed by one task, and another may still prepare: that is a late branch, which recovery sweeps.
    manager = RecoveryManager(
        log=get_manager().log, datasources=[DataSource.from_properties("one.properties")], backoff=0
    )
    for _ in range(100):
        if not databases.prepared() + staging(databases) and not running_tasks(spark):
            break
        manager.scan()
        time.sleep(0.1)
    assert rows(databases, "plain") == new(100)
    assert databases.prepared() == staging(databases) == []


def running_tasks(spark: SparkSession) -> int:
    """How many tasks run, those of a job that has failed as well."""
    infos = spark.sparkContext._jsc.sc().statusTracker().getExecutorInfos()
    return sum(info.numRunningTasks() for info in infos)


class _Others:
    """Slots that are kept for other jobs."""

    def __init__(self, slots: int) -> None:
        self._kept = SlotReservation(DataSource.from_properties("one.properties"), slots)

    def close(self) -> None:
        self._kept.release()


@pytest.mark.costly
def test_a_name_of_its_own_makes_a_rerun_harmless(spark: SparkSession, databases: Databases) -> None:
    for table in ("plain", "keyed"):
        save(frame(spark, 10), table, transactionId="nightly")
        save(frame(spark, 10), table, transactionId="nightly")
        assert rows(databases, table) == new(10)
        with pytest.raises(Exception, match=r"'nightly' has written 10 rows into public.*there are 11 rows now"):
            save(frame(spark, 11), table, transactionId="nightly")
        with pytest.raises(Exception, match="its plan was different"):
            save(frame(spark, 10).select("id"), table, transactionId="nightly")
        assert rows(databases, table) == new(10)
    assert databases.prepared() == staging(databases) == []


@pytest.mark.costly
def test_what_cannot_be_told_is_refused(spark: SparkSession, databases: Databases) -> None:
    few = frame(spark, 3)

    async def in_a_task() -> None:
        with transaction():
            save(few, "keyed")

    with pytest.raises(Exception, match=r"begun in an asyncio task.*write_table\(\)"):
        asyncio.run(in_a_task())

    with ThreadPoolExecutor(1) as pool:
        # Spark finds its formats only in a thread where it has been at work.
        pool.submit(lambda: spark.createDataFrame([(1,)])).result()
        elsewhere = r"is open in the driver's process, but not in the thread that writes"
        with pytest.raises(Exception, match=elsewhere), transaction():
            pool.submit(save, few, "keyed").result()
        # Another thread has one of its own.
        with transaction():
            pool.submit(transactional()(save), few, "plain").result()
            assert rows(databases, "plain") == new(3)
            suspended = suspend()
            with pytest.raises(Exception, match=elsewhere):
                save(few, "keyed")
            resume(suspended)
            save(few, "keyed")
    save(few, "plain")
    assert rows(databases, "plain") == [row for row in new(3) for _ in range(2)]
    assert rows(databases, "keyed") == new(3)


def test_a_thread_tells_of_no_transaction_but_its_own(spark: SparkSession, databases: Databases) -> None:
    few = frame(spark, 3)
    ended = begin()
    ended.commit()  # which leaves it ambient
    save(few, "plain")
    suspend()
    assert rows(databases, "plain") == new(3)
    with ThreadPoolExecutor(1) as pool:
        pool.submit(lambda: spark.createDataFrame([(1,)])).result()
        with (
            pytest.raises(
                Exception, match=r"begun in .* another thread, so it is not certain whether this write is a part of it"
            ),
            transaction(),
        ):
            # A context that is lent to a thread, which is itself in none when it writes.
            pool.submit(copy_context().run, transactional("requires_new")(lambda: None)).result()
            pool.submit(save, few, "keyed").result()
    assert rows(databases, "keyed") == databases.prepared() == []


def test_row_policies_are_heeded(spark: SparkSession, databases: Databases) -> None:
    databases.execute("one", "alter table plain enable row level security")
    save(frame(spark, 3), "plain")
    assert rows(databases, "plain") == new(3)


@pytest.mark.costly
def test_a_timeout_ends_the_job(spark: SparkSession, databases: Databases) -> None:
    def sleep(batches: Iterator[Any]) -> Iterator[Any]:
        import time

        time.sleep(600)
        yield from batches

    with pytest.raises(TransactionTimeout), transaction(timeout=5):
        save(frame(spark, 3).mapInArrow(sleep, "who string, id bigint"), "plain")
    assert rows(databases, "plain") == databases.prepared() == staging(databases) == []


@pytest.mark.costly
def test_what_does_not_fit_is_said_before_any_task_runs(spark: SparkSession, databases: Databases) -> None:
    databases.execute("one", "create table deep (id bigint, doc jsonb, at timestamp[])")
    few = frame(spark, 3)
    wrong: dict[str, tuple[DataFrame, dict[str, Any]]] = {
        r"no option dbtabel, and nothing was done: did you mean dbtable\?": (
            few,
            {"table": "keyed", "dbtabel": "keyed"},
        ),
        r"column idd is not in public.keyed": (few.withColumnRenamed("id", "idd"), {}),
        r"no table public.nowhere in one: .*create it by .option\(\"createTable\", \"true\"\)": (
            few,
            {"table": "nowhere"},
        ),
        r"upsert into public.keyed needs a unique index": (few, {"upsertKeys": "who"}),
        r'upsertKeys need mode\("append"\)': (few, {"upsertKeys": "id", "mode": "overwrite"}),
        r"strategy is 'fast': it is one of auto": (few, {"strategy": "fast"}),
        r"strategy=direct is not possible: public.keyed has a unique index": (few, {"strategy": "direct"}),
        r"cannot be written in the \"ErrorIfExists\" mode": (few, {"mode": "error"}),
        r"column doc is map<string,bigint>.*to_json": (few.selectExpr("map(who, id) as doc"), {"table": "deep"}),
        r"column at is array<timestamp>.*cast it": (few.selectExpr("array(now()) as at"), {"table": "deep"}),
        r"'three.properties' is neither a registered datasource": (few, {"datasource": "three.properties"}),
    }
    last = max(spark.sparkContext.statusTracker().getJobIdsForGroup(None), default=-1)
    for message, (df, options) in wrong.items():
        with pytest.raises(Exception, match=message):
            save(df, **({"table": "keyed"} | options))
    assert max(spark.sparkContext.statusTracker().getJobIdsForGroup(None), default=-1) == last
    assert rows(databases, "keyed") == databases.prepared() == []
