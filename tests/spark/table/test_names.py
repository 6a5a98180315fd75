"""Columns of any names, as Spark's JDBC writer takes them: to PySpark itself a dot is the way to a struct's field."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.spark.mysql import describe
from tests.support.mysql import MySQLServer
from txpool.datasource import DataSource
from txpool.errors import ProgrammingError
from txpool.spark import register, write_table

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from tests.conftest import Databases

pytestmark = [pytest.mark.spark, pytest.mark.usefixtures("sources")]

NAMES = ("addr.city", "a`b", 'a"b', "x %s", "Größe", "select")
ROW = (1, 2, 3, 4, 5, 6)
WAYS: list[dict[str, Any]] = [
    {"strategy": "direct"},
    {"strategy": "staged"},
    {"mode": "overwrite"},
    {"mode": "upsert", "keys": ["addr.city"]},
    {"atomicity": "partition", "transaction_id": "named"},
]


def frame(spark: SparkSession) -> DataFrame:
    return spark.createDataFrame([ROW], ", ".join(f"c{place} int" for place in range(len(NAMES)))).toDF(*NAMES)


def columns(quote: str) -> str:
    quoted = (f"{quote}{name.replace(quote, quote * 2)}{quote} int" for name in NAMES)
    return ", ".join(quoted).replace(" int", " int primary key", 1)


@pytest.mark.parametrize("options", WAYS, ids=str)
def test_postgresql(spark: SparkSession, databases: Databases, options: dict[str, Any]) -> None:
    databases.execute("one", f"create table odd ({columns(chr(34))})")
    assert write_table(frame(spark), "one.properties", "odd", **options).rows == 1
    assert databases.rows("one", "select * from odd") == [ROW]


@pytest.mark.parametrize("source", ["one.properties", "shop.properties", "file.properties"])
def test_a_table_that_is_created(
    spark: SparkSession, databases: Databases, sources: Path, mariadb: MySQLServer, source: str
) -> None:
    mariadb.empty()
    describe(sources, mariadb)
    (sources / "file.properties").write_text("driver = sqlite3\nmode = local\nurl = sqlite:///file.db\n")
    assert write_table(frame(spark), source, "odd", create=True).rows == 1
    with closing(DataSource.from_properties(sources / source).connect()) as connection:
        cursor = connection.cursor()
        cursor.execute("select * from odd")
        assert cursor.fetchall() in ([ROW], (ROW,))
        connection.commit()


def test_the_format(spark: SparkSession, databases: Databases) -> None:
    databases.execute("one", f"create table odd ({columns(chr(34))})")
    register(spark)
    options = {"datasource": "one.properties", "dbtable": "odd"}
    frame(spark).write.format("txpool").options(**options).mode("append").save()
    assert databases.rows("one", "select * from odd") == [ROW]
    found = spark.read.format("txpool").options(**options).load()
    assert (tuple(found.columns), [tuple(row) for row in found.collect()]) == (NAMES, [ROW])


@pytest.mark.parametrize("options", WAYS, ids=str)
def test_mariadb(spark: SparkSession, sources: Path, mariadb: MySQLServer, options: dict[str, Any]) -> None:
    mariadb.empty()
    mariadb.execute("set names utf8mb4", f"create table odd ({columns('`')})", database="one")
    describe(sources, mariadb)
    assert write_table(frame(spark), "shop.properties", "odd", **options).rows == 1
    assert mariadb.execute("select * from odd", database="one") == [ROW]


@pytest.mark.parametrize("options", [{}, *WAYS[2:4]], ids=str)
def test_sqlite(spark: SparkSession, sources: Path, options: dict[str, Any]) -> None:
    (sources / "file.properties").write_text("driver = sqlite3\nmode = cmr\nurl = sqlite:///file.db\n")
    with closing(sqlite3.connect(sources / "file.db")) as file:
        file.execute(f"create table odd ({columns(chr(34))})")
        DataSource.from_properties(sources / "file.properties").xids_table().create()  # type: ignore[attr-defined]
        assert write_table(frame(spark), "file.properties", "odd", **options).rows == 1
        assert file.execute("select * from odd").fetchall() == [ROW]


def test_the_cast_that_an_error_proposes_can_be_written_so(spark: SparkSession, databases: Databases) -> None:
    databases.execute("one", 'create table odd ("addr.city" text)')
    df = spark.createDataFrame([ROW], frame(spark).schema).select("`addr.city`")
    with pytest.raises(ProgrammingError) as raised:
        write_table(df, "one.properties", "odd")
    proposed = str(raised.value).split("cast it: ")[1].split(". No task")[0]
    assert write_table(eval(proposed, {"df": df}), "one.properties", "odd").rows == 1
    assert databases.rows("one", "select * from odd") == [("1",)]
