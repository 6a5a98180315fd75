"""once_per_batch(): a batch is one transaction over all databases, and is written once, whatever is begun again."""

from __future__ import annotations

import json
import signal
import sqlite3
import subprocess
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.spark.source.batches import write_batches
from txpool import failpoints
from txpool.datasource import DataSource, connect
from txpool.errors import NotSupportedError, ProgrammingError
from txpool.spark import foreach_partition, once_per_batch, write_table
from txpool.spark.source.streaming import offsets
from txpool.tm.ambient import current
from txpool.tm.demarcation.block import transaction

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from tests.conftest import Databases

pytestmark = [pytest.mark.spark, pytest.mark.usefixtures("sources")]

_LEDGER = "name = ledger\ndriver = sqlite3\nmode = cmr\nurl = sqlite:///ledger.db\n"
_COUNT = "select count(*), count(distinct id) from landed"
_SCRIPT = """
    import os, sys

    from pyspark.sql import SparkSession

    from tests.spark.source.batches import write_batches
    from txpool.tm import manager

    os.chdir(sys.argv[1])
    spark = SparkSession.builder.getOrCreate()
    manager.configure(node_name="driver", log_url="sqlite:///txlog")
    write_batches(spark, dies_after=int(sys.argv[2]))
"""


@pytest.fixture(autouse=True)
def landed(databases: Databases, sources: Path) -> None:
    """A table in each database, and one file of five rows in the folder that streams read."""
    databases.execute("one", "create table landed (id bigint)")
    databases.execute("two", "create table landed (id bigint)")
    put(sources / "in", 0)


def put(folder: Path, number: int) -> None:
    """A file of five rows, which is a batch."""
    folder.mkdir(exist_ok=True)
    lines = [json.dumps({"id": 5 * number + n}) for n in range(5)]
    (folder / f"{number}.json").write_text("\n".join(lines))


@pytest.mark.costly
def test_every_row_lands_exactly_once_whenever_the_driver_is_killed(
    spark: SparkSession, spark_process: Callable[..., subprocess.Popen[str]], databases: Databases, sources: Path
) -> None:
    for number in range(1, 4):
        put(sources / "in", number)
    ledger = sources / "ledger.db"
    with closing(sqlite3.connect(ledger)) as connection:
        connection.execute("pragma journal_mode = wal")
        connection.execute("create table landed (id bigint, batch bigint)")
    (sources / "ledger.properties").write_text(_LEDGER)
    DataSource.from_properties("ledger.properties").xids_table().create()  # type: ignore[attr-defined]

    def killed(dies_after: int = -1, **environment: str) -> bool:
        process = spark_process(_SCRIPT, str(sources), str(dies_after), env=environment)
        process.communicate(timeout=600)
        return process.returncode == -signal.SIGKILL

    def held() -> list[int]:
        with closing(sqlite3.connect(ledger)) as connection:
            kept = connection.execute(_COUNT).fetchall()
        counts = [*kept, *databases.rows("one", _COUNT), *databases.rows("two", _COUNT)]
        assert all(rows == distinct for rows, distinct in counts)
        return [rows for rows, _ in counts]

    # Batch 1 is prepared everywhere, and not decided.
    assert killed(TXPOOL_FAILPOINTS="coordinator.prepared=kill@2")
    assert (held(), len(databases.prepared())) == ([5, 5, 5], 3)
    # It has rolled back, and is written; batch 2 is decided by the ledger, and not committed elsewhere.
    assert killed(TXPOOL_FAILPOINTS="coordinator.decided=kill@2")
    assert (held(), len(databases.prepared())) == ([15, 10, 10], 3)
    # It is committed, and not written; batch 3 is committed, and Spark has not been told.
    assert killed(dies_after=3)
    assert (held(), databases.prepared()) == ([20, 20, 20], [])
    assert not (sources / "checkpoint/commits/3").exists()
    # It is not written.
    write_batches(spark)
    assert (held(), databases.prepared()) == ([20, 20, 20], [])
    assert (sources / "checkpoint/commits/3").exists()
    assert (sources / "calls").read_text().split() == ["0", "1", "1", "2", "3"]


@pytest.fixture
def stream(spark: SparkSession, sources: Path) -> Callable[..., list[int]]:
    """Run a stream over a folder to its end; the batches that were written."""

    def run(
        folder: str = "in",
        checkpoint: str = "checkpoint",
        *,
        schema: str = "id bigint",
        name: str | None = None,
        then: Callable[[DataFrame, int], object] = lambda batch_df, batch_id: None,
        around: Callable[[Any], Any] = lambda once: once,
    ) -> list[int]:
        written = []

        def write(batch_df: DataFrame, batch_id: int) -> None:
            write_table(batch_df, "one.properties", "landed")
            write_table(batch_df, "two.properties", "landed")
            then(batch_df, batch_id)
            written.append(batch_id)

        read = spark.readStream.schema(schema).option("maxFilesPerTrigger", 1).json(str(sources / folder))
        writer = read.writeStream.option("checkpointLocation", str(sources / checkpoint)).trigger(availableNow=True)
        writer.foreachBatch(around(once_per_batch(write, "one.properties", name=name))).start().awaitTermination()
        return written

    return run


def counts(databases: Databases) -> list[tuple[Any, ...]]:
    assert databases.prepared() == []
    return [*databases.rows("one", _COUNT), *databases.rows("two", _COUNT)]


@pytest.mark.costly
def test_a_name_is_recognised_on_another_checkpoint(
    stream: Callable[..., list[int]], databases: Databases, sources: Path
) -> None:
    put(sources / "elsewhere", 0)
    assert stream(name="orders") == [0]
    assert stream(checkpoint="another", name="orders") == []
    for other in ({"folder": "elsewhere"}, {"schema": "id bigint, price double"}):
        with pytest.raises(
            Exception,
            match=r"batch 0 of stream 'orders' .* already, by txp1:.*: its schema or its offsets were different",
        ):
            stream(checkpoint=f"of {[*other]}", name="orders", **other)
    put(sources / "in", 1)
    assert stream(name="orders") == [1]
    with pytest.raises(Exception, match=r"batch 1 of stream 'orders' .*: this is batch 0\. Go on with the checkpoint"):
        stream(checkpoint="a third", name="orders")
    assert counts(databases) == [(10, 10), (10, 10)]
    # The query's own id, where no name is given, is another on every checkpoint.
    assert stream(checkpoint="a fourth") == [0, 1]
    assert databases.rows("one", "select batch from txpool_spark.writes") == [(1,), (1,)]
    assert counts(databases) == [(20, 10), (20, 10)]
    # A table that was made before there were streams gains what they need.
    databases.execute("one", "alter table txpool_spark.writes drop column batch")
    assert stream(checkpoint="a fifth", name="late") == [0, 1]
    assert databases.rows("one", "select batch from txpool_spark.writes where transaction_id = 'late'") == [(1,)]


@pytest.mark.costly
def test_what_fails_rolls_back_and_comes_again(
    stream: Callable[..., list[int]], databases: Databases, sources: Path
) -> None:
    def insert(rows: Iterator[Any]) -> None:
        connect("two.properties").cursor().executemany("insert into landed values (%s)", [[-row.id] for row in rows])

    def fail(batch_df: DataFrame, batch_id: int) -> None:
        foreach_partition(batch_df, insert)
        raise LookupError("the last moment")

    with pytest.raises(Exception, match="LookupError: the last moment"):
        stream(then=fail)
    assert counts(databases) == [(0, 0), (0, 0)]
    # The log's disk fails, and the outcome is unknown; the batch that comes again waits for it.
    failpoints.arm("log.recorded")
    failpoints.arm("log.abort")
    try:
        with pytest.raises(Exception, match="TransactionInDoubt"):
            stream()
    finally:
        failpoints.disarm()
    assert stream() == []
    assert counts(databases) == [(5, 5), (5, 5)]


@pytest.mark.costly
def test_the_transaction_around_a_start_is_not_the_batch_s(
    stream: Callable[..., list[int]], databases: Databases
) -> None:
    def within_another(once: Callable[[DataFrame, int], None]) -> Callable[[DataFrame, int], None]:
        def call(batch_df: DataFrame, batch_id: int) -> None:
            assert current() is None
            with transaction() as another:
                connect("two.properties").cursor().execute("insert into landed values (-2)")
                once(batch_df, batch_id)
                another.set_rollback_only()
            raise AssertionError("it has committed")

        return call

    with pytest.raises(LookupError), transaction() as tx:
        connect("one.properties").cursor().execute("insert into landed values (-1)")
        with pytest.raises(Exception, match="TransactionRolledBack"):
            stream(around=within_another)
        assert current() is tx
        raise LookupError
    assert counts(databases) == [(5, 5), (5, 5)]
    assert stream() == []


@pytest.mark.costly
def test_offsets_are_the_same_each_time_that_a_batch_runs(spark: SparkSession, sources: Path) -> None:
    spark.range(9).write.parquet(str(sources / "static"))
    seen: list[Any] = []

    def note_offsets(batch_df: DataFrame, batch_id: int) -> None:
        query_id = batch_df.sparkSession.sparkContext.getLocalProperty("sql.streaming.queryId")
        assert query_id is not None
        seen.append(json.loads(offsets(spark, query_id, batch_id)))
        with pytest.raises(ProgrammingError, match="is not running batch 7 now"):
            offsets(spark, query_id, 7)
        if len(seen) in (1, 3):
            raise LookupError

    def run() -> None:
        files = spark.readStream.schema("id bigint").option("maxFilesPerTrigger", 1).json(str(sources / "in"))
        ticks = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 3).load().select("value")
        joined = files.union(ticks).join(spark.read.parquet(str(sources / "static")), "id")
        writer = joined.writeStream.option("checkpointLocation", str(sources / "checkpoint")).foreachBatch(note_offsets)
        writer.trigger(processingTime="0 seconds").start().awaitTermination()

    for _ in range(2):
        with pytest.raises(Exception, match="LookupError"):
            run()
        spark.range(9).write.mode("append").parquet(str(sources / "static"))
    tick = ['{"offset":0,"timestamp":0}', '{"offset":3,"timestamp":1000}']
    assert seen[0] == seen[1] == [[f"file://{sources}/in/0.json"], tick]
    assert seen[2] == [['{"offset":3,"timestamp":1000}', '{"offset":6,"timestamp":2000}']]


def test_it_is_refused_where_it_cannot_work(spark: SparkSession, sources: Path) -> None:
    with pytest.raises(ProgrammingError, match="no streaming query is running in this thread"):
        once_per_batch(print, "one.properties")(spark.range(1), 0)
    (sources / "ledger.properties").write_text(_LEDGER)
    with pytest.raises(NotSupportedError, match=r"kept in PostgreSQL, MariaDB or MySQL, and ledger has driver=sqlite3"):
        once_per_batch(print, "ledger.properties")
