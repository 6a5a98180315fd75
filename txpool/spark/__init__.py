"""The public functions for Spark: the tasks of a job take part in the driver's transaction and share its outcome."""

from __future__ import annotations

import importlib.util

if importlib.util.find_spec("pyspark") is None:
    raise ModuleNotFoundError(
        "txpool.spark needs Spark, which is not installed: pip install 'txpool[spark]'", name="pyspark"
    )

from txpool.spark.commit.session import SparkWriteWarning
from txpool.spark.files import write_files
from txpool.spark.messages import write_messages
from txpool.spark.partitions import PartitionsReport, foreach_partition, map_partitions
from txpool.spark.source.format import register
from txpool.spark.source.streaming import once_per_batch
from txpool.spark.table.report import Progress, WriteReport
from txpool.spark.table.table import write_table
from txpool.spark.task.input import whole

__all__ = [
    "PartitionsReport",
    "Progress",
    "SparkWriteWarning",
    "WriteReport",
    "foreach_partition",
    "map_partitions",
    "once_per_batch",
    "register",
    "whole",
    "write_files",
    "write_messages",
    "write_table",
]
