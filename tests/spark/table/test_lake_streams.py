"""A stream into an Iceberg table, a folder of files and a database: each batch lands in all of them, once."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.dataset
import pytest
from pyiceberg.table import StaticTable

import txpool
import txpool.lake
from txpool.spark import once_per_batch, write_files, write_table

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from tests.conftest import Databases

pytestmark = [pytest.mark.spark, pytest.mark.slow]


@pytest.fixture
def landed(sources: Path, databases: Databases) -> Callable[[], list[list[int]]]:
    """What has landed in each of the three, by engines that are not ours."""
    for name in ("wh", "out"):
        (sources / name).mkdir()
    (sources / "wh.properties").write_text("name = wh\ndriver = iceberg\ncatalog = one.properties\nwarehouse = wh\n")
    (sources / "out.properties").write_text("name = out\ndriver = files\nfolder = out\n")
    databases.execute("two", "create table landed (id bigint)")
    with txpool.transaction():
        lake = txpool.lake.catalog("wh.properties")
        lake.create_namespace("db")
        lake.create_table("db.landed", pa.schema([("id", pa.int64())]))

    def look() -> list[list[int]]:
        assert databases.prepared() == []
        ((metadata,),) = databases.rows("one", "select metadata_location from txpool_spark.iceberg_tables")
        files: Any = pyarrow.dataset.dataset(sources / "out", format="parquet", schema=pa.schema([("id", pa.int64())]))
        rows = [number for (number,) in databases.rows("two", "select id from landed")]
        return [
            sorted(found)
            for found in (
                StaticTable.from_metadata(metadata).scan().to_arrow()["id"].to_pylist(),
                files.to_table()["id"].to_pylist(),
                rows,
            )
        ]

    return look


@pytest.mark.costly
def test_each_batch_lands_once(spark: SparkSession, sources: Path, landed: Callable[[], list[list[int]]]) -> None:
    (sources / "in").mkdir()

    def put(number: int) -> None:
        file = sources / "in" / f"{number}.json"
        file.write_text("\n".join(json.dumps({"id": 5 * number + n}) for n in range(5)))
        os.utime(file, (number, number))  # a stream begins with the oldest

    def stream(checkpoint: str, fails_in: int = -1) -> list[int]:
        called = []

        def write(batch_df: DataFrame, batch_id: int) -> None:
            called.append(batch_id)
            write_table(batch_df, "wh.properties", "db.landed")
            write_files(batch_df, "out.properties", f"batch-{batch_id}", format="parquet")
            write_table(batch_df, "two.properties", "landed")
            if batch_id == fails_in:
                raise ValueError("behind all of it")

        read = spark.readStream.schema("id bigint").option("maxFilesPerTrigger", 1).json(str(sources / "in"))
        writer = read.writeStream.option("checkpointLocation", str(sources / checkpoint)).trigger(availableNow=True)
        batches = once_per_batch(write, "two.properties", name="landed")
        writer.foreachBatch(batches).start().awaitTermination()
        return called

    for number in range(3):
        put(number)
    with pytest.raises(Exception, match="behind all of it"):
        stream("checkpoint", fails_in=1)
    assert landed() == [[*range(5)]] * 3
    assert stream("checkpoint") == [1, 2]
    assert landed() == [[*range(15)]] * 3
    with pytest.raises(Exception, match="was written to foreachBatch already"):
        stream("another")  # which begins from the first file
    assert landed() == [[*range(15)]] * 3
