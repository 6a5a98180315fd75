"""A stream whose batches go into three databases, one transaction each. Drivers of the scripts import it."""

from __future__ import annotations

import os
import signal
from typing import TYPE_CHECKING

from txpool.datasource import connect
from txpool.spark import once_per_batch, write_table

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def write_batches(spark: SparkSession, *, dies_after: int = -1) -> None:
    """Write each file of `in` as a batch; the process kills itself once that batch is committed."""
    once = once_per_batch(_write, "one.properties")

    def once_and_die(batch_df: DataFrame, batch_id: int) -> None:
        once(batch_df, batch_id)
        if batch_id == dies_after:
            os.kill(os.getpid(), signal.SIGKILL)

    folder = os.getcwd()  # a session that is shared has another one
    stream = spark.readStream.schema("id bigint").option("maxFilesPerTrigger", 1).json(f"{folder}/in").writeStream
    stream = stream.option("checkpointLocation", f"{folder}/checkpoint").trigger(availableNow=True)
    stream.foreachBatch(once_and_die).start().awaitTermination()


def _write(batch_df: DataFrame, batch_id: int) -> None:
    with open("calls", "a") as calls:
        calls.write(f"{batch_id} ")
    write_table(batch_df, "one.properties", "landed")
    write_table(batch_df, "two.properties", "landed")
    rows = [(row.id, batch_id) for row in batch_df.toLocalIterator()]
    connect("ledger.properties").cursor().executemany("insert into landed values (?, ?)", rows)
