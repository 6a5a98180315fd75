"""Functions that write as if there were no transaction, and the ways in which Spark itself runs such functions."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd
import pyarrow as pa
from pyspark.sql.functions import pandas_udf, udf

import txpool
from txpool.datasource import DataSource
from txpool.spark import foreach_partition, write_table

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_RESULT = "id bigint"
#: A worker process keeps what a module has, from job to job.
_kept: list[Any] = []


def write(folder: str, number: int) -> int:
    """As somebody does who has replaced psycopg.connect()."""
    with closing(txpool.connect(f"{folder}/one.properties")) as connection:
        connection.cursor().execute("insert into landed values (%s)", [number])
        connection.commit()
    return number


@txpool.transactional("not_supported")
def write_outside(folder: str, number: int) -> int:
    return write(folder, number)


@txpool.transactional("requires_new")
def write_apart(folder: str, number: int) -> int:
    with closing(txpool.connect(f"{folder}/one.properties")) as connection:
        connection.cursor().execute("insert into landed values (%s)", [number])
    return number


@txpool.transactional
def write_joined(folder: str, number: int) -> int:
    return write(folder, number)


def write_begun(folder: str, number: int) -> int:
    txpool.begin()
    try:
        return write_joined(folder, number)
    finally:
        txpool.commit()


def write_in_thread(folder: str, number: int) -> int:
    errors: list[Exception] = []

    def work() -> None:
        try:
            write(folder, number)
        except Exception as error:
            errors.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    for error in errors:
        raise error
    return number


def write_by_datasource(folder: str, number: int) -> int:
    with DataSource.from_properties(f"{folder}/one.properties").connect() as connection:
        connection.cursor().execute("insert into landed values (%s)", [number])
    return number


def write_by_engine(folder: str, number: int) -> int:
    import sqlalchemy

    from txpool.engine import create_engine

    with create_engine(f"{folder}/one.properties").begin() as connection:
        connection.execute(sqlalchemy.text("insert into landed values (:id)"), {"id": number})
    return number


def write_late(folder: str, number: int) -> int:
    """When the transaction has ended."""
    Path(folder, "late").touch()
    while not Path(folder, "ended").exists():
        time.sleep(0.05)
    return write(folder, number)


def keep(folder: str) -> None:
    _kept.append(txpool.connect(f"{folder}/one.properties"))


def write_by_kept(folder: str, number: int) -> int:
    for connection in _kept or [txpool.connect(f"{folder}/one.properties")]:
        connection.cursor().execute("insert into landed values (%s)", [number])
        connection.commit()
    return number


Job = Callable[["SparkSession", Callable[[str, int], int], str], object]


def frame(spark: SparkSession) -> Any:
    return spark.range(1, 5, numPartitions=2)


def by_pandas(spark: SparkSession, write: Any, folder: str) -> object:
    @pandas_udf("bigint")
    def each(numbers: pd.Series) -> pd.Series:
        return numbers.map(lambda number: write(folder, number))

    return frame(spark).select(each("id")).collect()


def in_pandas(spark: SparkSession, write: Any, folder: str) -> object:
    def each(frames: Iterator[Any]) -> Iterator[Any]:
        for some in frames:
            yield some.assign(id=some["id"].map(lambda number: write(folder, number)))

    return frame(spark).mapInPandas(each, _RESULT).collect()


def in_arrow(spark: SparkSession, write: Any, folder: str) -> object:
    def each(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            yield pa.RecordBatch.from_pydict({"id": [write(folder, number) for number in batch["id"].to_pylist()]})

    return frame(spark).mapInArrow(each, _RESULT).collect()


def in_groups(spark: SparkSession, write: Any, folder: str) -> object:
    def each(some: Any) -> Any:
        return some.assign(id=some["id"].map(lambda number: write(folder, number)))

    return frame(spark).groupBy("id").applyInPandas(each, _RESULT).collect()


def by_row(spark: SparkSession, write: Any, folder: str) -> object:
    return frame(spark).select(udf(lambda number: write(folder, number), "bigint")("id")).collect()


def by_partition(spark: SparkSession, write: Any, folder: str) -> object:
    return frame(spark).foreachPartition(lambda rows: [write(folder, row.id) for row in rows])


def by_rdd(spark: SparkSession, write: Any, folder: str) -> object:
    rdd = spark.sparkContext.parallelize(range(1, 5), 2)
    return rdd.foreachPartition(lambda rows: [write(folder, row) for row in rows])


def mapped(spark: SparkSession, write: Any, folder: str) -> object:
    return frame(spark).rdd.mapPartitions(lambda rows: (write(folder, row.id) for row in rows)).collect()


def upstream(spark: SparkSession, write: Any, folder: str) -> object:
    """Of a write that is a part of the transaction, in a stage before it, or a process beside it."""
    rdd = frame(spark).rdd.map(lambda row: (write(folder, row.id), 1)).partitionBy(2)
    return foreach_partition(rdd, list)


def written(spark: SparkSession, write: Any, folder: str) -> object:
    df = frame(spark).select(udf(lambda number: write(folder, number), "bigint")("id").alias("id"))
    return write_table(df, "one.properties", "landed")


OUTSIDE: tuple[Job, ...] = (by_rdd, in_pandas, upstream)
FORMS: tuple[Job, ...] = (by_partition, by_rdd, mapped, in_pandas, in_arrow, by_pandas, in_groups, by_row)
WRITERS = (
    write_joined,
    write_begun,
    write_in_thread,
    write_by_datasource,
    write_by_engine,
    write_by_kept,
)
