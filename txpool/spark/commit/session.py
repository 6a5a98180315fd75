"""Checks the Spark session of a write: what it must be, and warnings about settings that are risky."""

from __future__ import annotations

import warnings
from typing import Any

from pyspark import RDD, SparkContext
from pyspark.sql import DataFrame

from txpool.errors import NotSupportedError
from txpool.tm.manager import get_manager

#: More than one, so that a core that finishes early has further tasks.
_TASKS_FOR_A_CORE = 4
#: A task costs as much as to write about so many bytes.
_FEW_BYTES = 1 << 20


def require_classic(session_or_df: Any, caller: str) -> None:
    """NotSupportedError for a session or a DataFrame of Spark Connect, whose driver is another process."""
    if type(session_or_df).__module__.startswith("pyspark.sql.connect"):
        raise NotSupportedError(
            f"{caller} needs Spark's driver in this process, and Spark Connect has it elsewhere: use a classic session "
            "(SparkSession.builder.master(…), or spark-submit). Spark Connect is not supported, and ends in "
            'DATA_SOURCE_NOT_FOUND for format("txpool"). Nothing was done'
        )


def context_of(df_or_rdd: Any, caller: str) -> SparkContext:
    """The SparkContext of a DataFrame or RDD. NotSupportedError for Spark Connect, which has none in this process."""
    if isinstance(df_or_rdd, RDD):
        return df_or_rdd.context
    require_classic(df_or_rdd, caller)
    context: SparkContext = df_or_rdd.sparkSession.sparkContext
    return context


def most_useful(df: DataFrame) -> int | None:
    """The largest useful number of tasks of a write, which is one for few rows.

    None with dynamic allocation, since cores may be added later.
    """
    if _holds_few(df):
        return 1
    context = df.sparkSession.sparkContext
    if _setting(context, "spark.dynamicAllocation.enabled") == "true":
        return None
    return _TASKS_FOR_A_CORE * context.defaultParallelism


def _holds_few(df: DataFrame) -> bool:
    """Whether Spark's session holds all rows in memory already, and they are few; runs no Spark job.

    What is still to be computed counts as many, however few rows come out: its tasks are to share that work.
    """
    plan: Any = df._jdf.queryExecution().withCachedData()
    kind = str(plan.getClass().getSimpleName())
    held = kind == "LocalRelation" or (
        kind == "InMemoryRelation" and bool(plan.cacheBuilder().isCachedColumnBuffersLoaded())
    )
    return held and int(plan.stats().sizeInBytes()) <= _FEW_BYTES


def has_at_most(df: DataFrame, partitions: int) -> bool:
    """Whether the user has set the number of partitions last, and to no more than these; runs no Spark job.

    Spark takes the last of two coalesce() in a row, and with it a number that may be larger than the first.
    """
    plan: Any = df._jdf.queryExecution().optimizedPlan()
    return str(plan.getClass().getSimpleName()) == "Repartition" and int(plan.numPartitions()) <= partitions


def _setting(context: SparkContext, name: str) -> str | None:
    """A setting of the context. getConf() would copy all settings first, with a call to Java for each."""
    return context._conf.get(name)


class SparkWriteWarning(UserWarning):
    """Something in the session or the database may slow down or harm a write. Filter it by its text."""


def warn_of_risks(context: SparkContext, *, stacklevel: int = 3) -> None:
    """Warn of what may slow down or harm a write in this session; runs no Spark job.

    Warnings point to the caller's caller, or further up with a larger `stacklevel`.
    """
    for text in (_warn_of_local_log(context), _warn_of_speculation(context)):
        if text is not None:
            warnings.warn(text, SparkWriteWarning, stacklevel=stacklevel)


def _warn_of_local_log(context: SparkContext) -> str | None:
    """The sqlite log is a folder on the driver's machine, and in a cluster the next driver may run on another one."""
    url = get_manager().settings.log_url or ""
    if not url.startswith("sqlite:") or str(context.master).startswith("local"):
        return None
    return (
        f"the decision log {url} is a folder on this driver's machine, and the master is {context.master}: keep "
        "the folder, and run recovery on the same machine"
    )


def _warn_of_speculation(context: SparkContext) -> str | None:
    """Speculative copies cost slots; a local master starts none."""
    local = context.master == "local" or str(context.master).startswith("local[")
    if local or _setting(context, "spark.speculation") != "true":
        return None
    return (
        "spark.speculation is on: a copy of a slow task does its work in the database again, and holds a prepared "
        "transaction or staged rows of its own until one of the two is chosen; each row is still written once. Start "
        "the session with spark.speculation=false, or leave room in max_prepared_transactions"
    )
