"""The Spark session that a write runs in, and what it must be."""

from __future__ import annotations

import warnings
from typing import Any

from pyspark import RDD, SparkContext
from pyspark.sql import DataFrame

from txpool.errors import NotSupportedError
from txpool.spark.commit.determinism import unsteady
from txpool.tm.manager import get_manager

#: So that cores which are done sooner have something left to do.
_TASKS_FOR_A_CORE = 4
_CHECKSUM = "spark.sql.shuffle.orderIndependentChecksum"
_CHECKED = (f"{_CHECKSUM}.enabled", f"{_CHECKSUM}.enableFullRetryOnMismatch")


def require_classic(of_spark: Any, who: str) -> None:
    """NotSupportedError for a session or a DataFrame of Spark Connect, whose driver is elsewhere."""
    if type(of_spark).__module__.startswith("pyspark.sql.connect"):
        raise NotSupportedError(
            f"{who} needs a driver of its own, and Spark Connect has none here: use a classic session "
            "(SparkSession.builder.master(…), or spark-submit). Nothing was done"
        )


def context_of(df_or_rdd: Any, who: str) -> SparkContext:
    """Its SparkContext. NotSupportedError for Spark Connect, which has none here."""
    if isinstance(df_or_rdd, RDD):
        return df_or_rdd.context
    require_classic(df_or_rdd, who)
    context: SparkContext = df_or_rdd.sparkSession.sparkContext
    return context


def most_partitions(context: SparkContext) -> int | None:
    """How many tasks a write is worth; None where Spark may have other cores by and by."""
    if _setting(context, "spark.dynamicAllocation.enabled") == "true":
        return None
    return _TASKS_FOR_A_CORE * context.defaultParallelism


def _setting(context: SparkContext, name: str) -> str | None:
    """Of the context itself: getConf() makes a copy of all of them first, in as many calls of Java's."""
    return context._conf.get(name)


class SparkWriteWarning(UserWarning):
    """Something in the session, the database or the DataFrame may cost or harm a write. Each has its text to filter."""


def warn_of_risks(session_or_context: Any, df: Any = None, *, atomicity: str = "job", stacklevel: int = 3) -> None:
    """Warn of what may cost or harm a write in this session, and of this DataFrame where there is one; no job runs.

    With `atomicity` partition each partition is a transaction of its own, which no later attempt takes back. Warnings
    point to who called the caller, or by `stacklevel` further up.
    """
    context: SparkContext = getattr(session_or_context, "sparkContext", session_or_context)
    texts = [] if atomicity == "partition" else [_warn_of_local_log(context), _warn_of_speculation(context)]
    if isinstance(df, DataFrame):
        texts.append(_warn_of_nondeterminism(df, atomicity))
    for text in texts:
        if text is not None:
            warnings.warn(text, SparkWriteWarning, stacklevel=stacklevel)


def _warn_of_local_log(context: SparkContext) -> str | None:
    """The sqlite log is a folder of the machine on which the driver runs, which may be another one tomorrow."""
    url = get_manager().settings.log_url or ""
    if not url.startswith("sqlite:") or str(context.master).startswith("local"):
        return None
    return (
        f"the decision log {url} is a folder on this driver's machine, and the master is {context.master}: keep "
        "that folder, and run recovery on the same machine"
    )


def _warn_of_speculation(context: SparkContext) -> str | None:
    """A master without a cluster starts no copies."""
    local = context.master == "local" or str(context.master).startswith("local[")
    if local or _setting(context, "spark.speculation") != "true":
        return None
    return (
        "spark.speculation is on: a copy of a slow task does its work in the database again, and holds a prepared "
        "transaction or staged rows of its own until one of both is chosen; each row still lands once. Start the "
        "session with spark.speculation=false, or leave room in max_prepared_transactions"
    )


def _warn_of_nondeterminism(df: DataFrame, atomicity: str) -> str | None:
    """Rows that may move from one partition to another when some of them are computed again."""
    each = atomicity == "partition"
    # By its checksums Spark itself finds out that a shuffle has come out otherwise, and starts again or fails the job.
    if not each and all(df.sparkSession.conf.get(key) == "true" for key in _CHECKED):
        return None
    found = unsteady(df, rerun=each)
    if not found:
        return None
    when = (
        "a later attempt, or a rerun, may put rows twice or leave some out, since partitions that have committed stay"
        if each
        else "where a lost part of a shuffle is computed again, rows may land twice or be left out, since Spark's own "
        f"check is off ({' or '.join(_CHECKED)} is false)"
    )
    return (
        f"{'; '.join(found)}: {when}. Deal rows out by columns of the data that stay the same (df.repartition(n, "
        '"id")), or write df.checkpoint() first and read that'
    )
