"""A stream of JSON files into a table. Drivers of the scripts import it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def stream_of_files(spark: SparkSession, folder: Path) -> Any:
    read: DataFrame = spark.readStream.schema("id bigint").option("maxFilesPerTrigger", 1).json(str(folder / "in"))
    writer = read.writeStream.format("txpool").options(datasource="one.properties", dbtable="plain")
    return writer.option("checkpointLocation", str(folder / "checkpoint")).trigger(availableNow=True)
