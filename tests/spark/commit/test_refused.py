"""A task whose configuration is wrong: Spark does not try it again, and the error names the executor."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from socket import gethostname
from typing import TYPE_CHECKING, Any

import pytest

import txpool
from txpool.errors import ConfigurationError
from txpool.spark import foreach_partition, map_partitions, register, write_table
from txpool.tm.demarcation.block import transaction

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from tests.conftest import Databases

pytestmark = pytest.mark.spark

ON_THE_EXECUTOR = (
    rf"needs the environment variable SECRET_OF_ONE, which is not set: this is a task of Spark's, on {gethostname()}: "
    r"start the session with spark.executorEnv.SECRET_OF_ONE"
)


@pytest.fixture(autouse=True)
def landed(databases: Databases, sources: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The driver has a variable that the workers, which were started before, have not."""
    databases.execute("one", "create table landed (id bigint)")
    databases.execute("one", "create table keyed (id bigint primary key)")
    text = (sources / "one.properties").read_text()
    reference = next(line for line in text.splitlines() if line.startswith("password"))
    (sources / "one.properties").write_text(text.replace(reference, "password = ${env:SECRET_OF_ONE}"))
    monkeypatch.setenv("SECRET_OF_ONE", databases.server.password)


@pytest.fixture
def failures(spark: SparkSession) -> Callable[[], int]:
    """How many tasks of this test's jobs have failed."""
    tracker = spark.sparkContext.statusTracker()

    def count() -> int:
        jobs = [tracker.getJobInfo(job) for job in tracker.getJobIdsForGroup(None)]
        stages = [tracker.getStageInfo(stage) for job in jobs if job for stage in job.stageIds]
        return sum(stage.numFailedTasks for stage in stages if stage)

    before = count()
    return lambda: count() - before


def insert(rows: Iterator[Any]) -> Iterator[int]:
    connection = txpool.connect("one.properties")
    for row in rows:
        connection.execute("insert into landed values (%s)", (row.id,))
        yield row.id


def frame(spark: SparkSession) -> DataFrame:
    return spark.range(10, numPartitions=2)


WRITES: dict[str, Callable[[DataFrame], object]] = {
    "foreach_partition": lambda df: foreach_partition(df, insert),
    "map_partitions": lambda df: map_partitions(df, insert),
    "direct": lambda df: write_table(df, "one.properties", "landed", strategy="direct"),
    "staged": lambda df: write_table(df, "one.properties", "landed", strategy="staged"),
}


@pytest.mark.parametrize("write", WRITES)
def test_a_secret_that_is_missing_on_the_executor(
    spark: SparkSession, databases: Databases, failures: Callable[[], int], write: str
) -> None:
    with pytest.raises(ConfigurationError, match=ON_THE_EXECUTOR), transaction():
        WRITES[write](frame(spark))
    assert failures() == 0
    assert databases.rows("one", "select id from landed") == databases.prepared() == []


def test_where_each_partition_is_a_transaction(
    spark: SparkSession, databases: Databases, failures: Callable[[], int]
) -> None:
    with pytest.raises(ConfigurationError, match=ON_THE_EXECUTOR):
        write_table(frame(spark), "one.properties", "landed", atomicity="partition", transaction_id="once")
    assert failures() == 0
    assert databases.rows("one", "select id from landed") == []


@pytest.mark.parametrize("table", ["landed", "keyed"])
def test_by_the_format(spark: SparkSession, databases: Databases, failures: Callable[[], int], table: str) -> None:
    register(spark)
    with pytest.raises(Exception) as caught:
        save = frame(spark).write.format("txpool").option("datasource", "one.properties")
        save.option("dbtable", table).mode("append").save()
    assert "spark.executorEnv.SECRET_OF_ONE" in str(caught.value)
    assert failures() == 0
    assert databases.rows("one", "select id from landed") == databases.prepared() == []


def test_another_error_is_tried_again(spark: SparkSession, failures: Callable[[], int]) -> None:
    def fail(rows: Iterator[Any]) -> None:
        raise ZeroDivisionError

    with pytest.raises(Exception, match="ZeroDivisionError"), transaction():
        foreach_partition(frame(spark), fail)
    assert failures() > 0
