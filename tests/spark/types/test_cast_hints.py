"""The error for a column of another type shows the expression that casts it, and that expression serves."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.errors import AnalysisException

from txpool.errors import ProgrammingError
from txpool.spark.table.postgresql import types
from txpool.spark.table.sqlite import target as sqlite
from txpool.spark.types.columns import Column

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    Match = Callable[[DataFrame, Sequence[Column], str], Any]

pytestmark = pytest.mark.spark

#: Literals of Spark's types, of which each column refuses at least one.
GIVEN = ("'x'", "1.5d", "1.25", "X'00'", "current_date()", "current_timestamp()", "interval '1' day", "true", "1L")


@pytest.fixture(autouse=True)
def with_times(spark: SparkSession) -> Iterator[None]:
    spark.conf.set("spark.sql.timeType.enabled", "true")
    yield
    spark.conf.unset("spark.sql.timeType.enabled")


def is_served(spark: SparkSession, match: Match, column: Column, given: str) -> bool:
    """Whether the column refuses the literal, and then accepts what the expression of the error makes of it.

    False where Spark itself cannot cast the one to the other, as a date to a number.
    """
    df = spark.sql(f"select {given} as c")
    try:
        match(df, [column], "t")
    except ProgrammingError as error:
        text = str(error)
    else:
        return False
    shown = re.search(r"cast it: (df\.withColumn\(.*\))\. No task", text)
    if shown is None:
        return False
    with suppress(AnalysisException):
        match(eval(shown[1], {"df": df}), [column], "t")
        return True
    return False


@pytest.mark.parametrize("name", [name for name in types._TYPES if name not in ("json", "jsonb")])
@pytest.mark.parametrize("array", [False, True])
def test_postgresql(spark: SparkSession, name: str, array: bool) -> None:
    column = Column("c", f"{name}{'[]' * array}", name, array=array, scale=2 if name == "numeric" else None)
    given = [f"array({each})" for each in GIVEN] if array else GIVEN
    assert any(is_served(spark, types.match, column, each) for each in given)


@pytest.mark.parametrize("name", ["integer", "real", "text", "numeric", "date or time"])
def test_sqlite(spark: SparkSession, name: str) -> None:
    assert any(is_served(spark, sqlite.match, Column("c", name, name), each) for each in GIVEN)


def test_the_types_are_named(spark: SparkSession) -> None:
    with pytest.raises(ProgrammingError) as caught:
        types.match(spark.sql("select 'x' as c"), [Column("c", "integer", "int4")], "public.t")
    assert str(caught.value) == (
        'column c is string, and public.t.c is integer: cast it: df.withColumn("c", df["c"].cast("int")). '
        "No task was started, nothing was written."
    )
