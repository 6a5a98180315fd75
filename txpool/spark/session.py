"""The Spark session that a write runs in, and what it must be."""

from __future__ import annotations

import warnings
from typing import Any

from pyspark import RDD, SparkContext

from txpool.errors import NotSupportedError
from txpool.manager import get_manager


def context_of(df_or_rdd: Any, who: str) -> SparkContext:
    """Its SparkContext. NotSupportedError for Spark Connect, which has none here."""
    if isinstance(df_or_rdd, RDD):
        return df_or_rdd.context
    if type(df_or_rdd).__module__.startswith("pyspark.sql.connect"):
        raise NotSupportedError(
            f"{who} needs a driver of its own, and a Spark Connect DataFrame has none here: use a classic session "
            "(SparkSession.builder.master(…), or spark-submit). Nothing was done"
        )
    context: SparkContext = df_or_rdd.sparkSession.sparkContext
    return context


def warn_of_local_log(context: SparkContext) -> None:
    """The sqlite log is a folder of the machine on which the driver runs, which may be another one tomorrow."""
    url = get_manager().settings.log_url or ""
    if url.startswith("sqlite:") and not str(context.master).startswith("local"):
        warnings.warn(
            f"the decision log {url} is a folder on this driver's machine, and the master is {context.master}: keep "
            "that folder, and run recovery on the same machine",
            stacklevel=3,
        )
