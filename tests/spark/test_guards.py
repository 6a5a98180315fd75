"""What is said before a write begins: errors for what would certainly fail, and warnings for what may."""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.spark.conftest import describe
from txpool.datasource import DataSource
from txpool.errors import ProgrammingError
from txpool.scope import transaction
from txpool.spark import foreach_partition, write_table
from txpool.spark.session import SparkWriteWarning, guard

if TYPE_CHECKING:
    from conftest import Databases
    from pyspark.sql import DataFrame, SparkSession

    from tests.conftest import LocalCluster

pytestmark = pytest.mark.spark

_CHECKSUMS = "spark.sql.shuffle.orderIndependentChecksum.enableFullRetryOnMismatch"


@pytest.fixture
def settings(spark: SparkSession) -> Iterator[Callable[[str, str], None]]:
    """`settings(key, value)`, until the test ends."""
    before: dict[str, str | None] = {}

    def change(key: str, value: str) -> None:
        before.setdefault(key, spark.conf.get(key))
        spark.conf.set(key, value)

    yield change
    for key, value in before.items():
        assert value is not None
        spark.conf.set(key, value)


def said(df: DataFrame, atomicity: str = "partition") -> list[str]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        guard(df.sparkSession, df, atomicity=atomicity)
    assert all(each.category is SparkWriteWarning and each.filename == __file__ for each in caught)
    return [str(each.message) for each in caught]


def rows(spark: SparkSession) -> DataFrame:
    return spark.range(100).selectExpr("id", "id % 7 as k")


def shuffled(spark: SparkSession) -> DataFrame:
    return rows(spark).repartition(3, "k")


_CHOSEN = "by chance, or by the order in which they come"
_MADE = "by values that are made by chance, or by the order of rows"
#: What is written, and what is said of it where partitions commit by themselves; None where nothing is to be said.
_FRAMES: dict[str, tuple[Callable[[SparkSession], DataFrame], str | None]] = {
    "plain": (rows, None),
    "dealt out": (lambda spark: rows(spark).repartition(3), None),
    "dealt out after a shuffle": (lambda spark: shuffled(spark).repartition(4), None),
    "by key": (shuffled, None),
    "grouped": (lambda spark: rows(spark).groupBy("k").sum("id"), None),
    "joined": (lambda spark: rows(spark).join(shuffled(spark).groupBy("k").count(), "k"), None),
    "chance in values alone": (lambda spark: shuffled(spark).selectExpr("*", "rand() as r", "uuid() as u"), None),
    "chance, and partitions by a key": (
        lambda spark: shuffled(spark).selectExpr("*", "uuid() as u").repartition(3, "id"),
        None,
    ),
    "chance over rows in order": (lambda spark: rows(spark).selectExpr("*", "uuid() as u").repartition(3, "u"), None),
    "a sample in order": (lambda spark: rows(spark).sample(0.5, seed=1).repartition(3), None),
    "a sample at the end": (lambda spark: shuffled(spark).sample(0.5, seed=1), None),
    "limited to one partition": (lambda spark: shuffled(spark).limit(5), None),
    "the time at the end": (lambda spark: shuffled(spark).selectExpr("*", "current_timestamp() as at"), None),
    "the time, and partitions by a key": (
        lambda spark: rows(spark).selectExpr("*", "current_timestamp() as at").repartition(3, "id"),
        None,
    ),
    "partitions by chance": (
        lambda spark: shuffled(spark).selectExpr("*", "uuid() as u").repartition(3, "u"),
        f"a shuffle {_MADE}",
    ),
    "by a chance that is forgotten": (
        lambda spark: shuffled(spark).selectExpr("*", "rand() as r").repartition(3, "r").drop("r"),
        f"a shuffle {_MADE}",
    ),
    "dealt out with chance": (
        lambda spark: shuffled(spark).selectExpr("id", "monotonically_increasing_id() as n").repartition(3),
        f"repartition(n) {_MADE}",
    ),
    "grouped by chance": (
        lambda spark: shuffled(spark).selectExpr("int(rand() * 9) as r").groupBy("r").count(),
        f"a shuffle {_MADE}",
    ),
    "cached chance": (
        lambda spark: shuffled(spark).selectExpr("*", "uuid() as u").cache().repartition(3, "u"),
        f"a shuffle {_MADE}",
    ),
    "dealt out after a limit": (
        lambda spark: shuffled(spark).limit(50).repartition(3),
        f"rows that are chosen {_CHOSEN}",
    ),
    "dealt out after a sample": (
        lambda spark: shuffled(spark).sample(0.5, seed=1).repartition(3),
        f"rows that are chosen {_CHOSEN}",
    ),
    "dealt out after a choice": (
        lambda spark: shuffled(spark).where("rand() < 0.5").repartition(3),
        f"rows that are chosen {_CHOSEN}",
    ),
    "dealt out with the time": (
        lambda spark: rows(spark).selectExpr("*", "current_timestamp() as at").repartition(3),
        "the current time is one",
    ),
    "sorted": (lambda spark: rows(spark).orderBy("id"), "bounds that it samples in each run"),
}
#: Of those what a lost part of a shuffle, within one run, has no hand in.
_RERUN = {"dealt out with the time", "sorted"}


@pytest.mark.usefixtures("sources")
@pytest.mark.parametrize("name", _FRAMES)
def test_rows_that_may_change_their_partition(spark: SparkSession, settings: Any, name: str) -> None:
    make, text = _FRAMES[name]
    df = make(spark)
    last = max(spark.sparkContext.statusTracker().getJobIdsForGroup(None), default=-1)
    warned = said(df)
    assert len(warned) == (text is not None)
    assert said(df, "job") == []
    settings(_CHECKSUMS, "false")
    harmed = said(df, "job")
    assert len(harmed) == (text is not None and name not in _RERUN)
    assert max(spark.sparkContext.statusTracker().getJobIdsForGroup(None), default=-1) == last
    for each in warned + harmed:
        assert text is not None
        assert text in each
        assert each.endswith(
            'Deal rows out by columns of the data that stay the same (df.repartition(n, "id")), or '
            "write df.checkpoint() first and read that"
        )
    df.unpersist()
