"""What the options of a read ask for: its plan, and its rows, read by Spark or as a task would read them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSource, DataSourceReader
from pyspark.sql.types import StructType

from txpool.spark.source.reading import Reader, ReadPlan, plan_reading

if TYPE_CHECKING:
    from pyspark.sql import DataFrameReader, SparkSession


def plan_of(**options: str) -> ReadPlan:
    return plan_reading({"datasource": "one.properties"} | options)


def reading(spark: SparkSession, **options: str) -> DataFrameReader:
    """The reader of a format that reads what the options ask for."""
    plan = plan_of(**options)

    class Planned(DataSource):
        @classmethod
        def name(cls) -> str:
            return "planned"

        def schema(self) -> StructType:
            return plan.schema

        def reader(self, schema: StructType) -> DataSourceReader:
            return Reader(plan, schema)

    spark.dataSource.register(Planned)
    return spark.read.format("planned")


def parts(plan: ReadPlan, schema: StructType | None = None) -> list[list[tuple[Any, ...]]]:
    """The rows of each partition, read in this process as a task would."""
    reader = Reader(plan, plan.schema if schema is None else schema)
    return [
        [tuple(row.values()) for batch in reader.read(partition) for row in batch.to_pylist()]
        for partition in reader.partitions()
    ]


def rows(**options: str) -> list[tuple[Any, ...]]:
    return [row for part in parts(plan_of(**options)) for row in part]
