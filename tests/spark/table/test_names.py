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


_LONG = "n" * 63


@pytest.mark.parametrize(
    ("columns", "select", "found"),
    [
        ("a int, b int", "2 as b, 1 as a", (1, 2)),
        ("a int, b int", "1 as a", (1, None)),
        ("a int, b int default 7", "1 as a", (1, 7)),
        ('"Total" int, b int', "2 as B, 1 as total", (1, 2)),
        ('"A" int, a int', "1 as A, 2 as a", (1, 2)),
        (f"{_LONG} int, b int", f"1 as {_LONG}, 2 as b", (1, 2)),
        (f"{'ü' * 31} int, b int", f"1 as `{'ü' * 31}`, 2 as b", (1, 2)),
        ('"a""b.c" int, " " int', '1 as `a"b.c`, 2 as ` `', (1, 2)),
    ],
)
def test_columns_are_matched_by_name(
    spark: SparkSession, databases: Databases, columns: str, select: str, found: tuple[Any, ...]
) -> None:
    databases.execute("one", f"create table t ({columns})")  # type: ignore[arg-type]
    spark.conf.set("spark.sql.caseSensitive", "true")
    try:
        for strategy in ("direct", "staged"):
            write_table(spark.sql(f"select {select}"), "one.properties", "t", strategy=strategy)  # type: ignore[arg-type]
    finally:
        spark.conf.unset("spark.sql.caseSensitive")
    assert databases.rows("one", "select * from t") == [found] * 2


@pytest.mark.parametrize(
    ("table", "columns", "select", "message"),
    [
        ("t", "a int", "1 as a, 2 as c", "column c is not in public.t"),
        ("t", "a int, b int not null", "1 as a", "column b of public.t must have a value"),
        ("t", "a int", "1 as a, 2 as A", "columns a and A are both public.t.a"),
        ("t", '"A" int, a int', "1 as a, 2 as B", "column B is not in public.t"),
        ("t", '"AB" int, "Ab" int', "1 as ab", "column ab is not in public.t"),
        ("t", f"{_LONG} int", f"1 as {_LONG}m", f"column {_LONG}m is not in public.t"),
        (f"{_LONG}m", "a int", "1 as a", "has more than 63 bytes"),
        (f"public.{_LONG}m", "a int", "1 as a", "has more than 63 bytes"),
    ],
)
def test_a_name_that_is_not_there_is_refused(
    spark: SparkSession, databases: Databases, table: str, columns: str, select: str, message: str
) -> None:
    databases.execute("one", f"create table {table} ({columns})")  # type: ignore[arg-type]
    spark.conf.set("spark.sql.caseSensitive", "true")
    try:
        with pytest.raises(ProgrammingError, match=message):
            write_table(spark.sql(f"select {select}"), "one.properties", table)
    finally:
        spark.conf.unset("spark.sql.caseSensitive")


def test_a_new_table_has_whole_names_or_is_not_made(spark: SparkSession, databases: Databases) -> None:
    with pytest.raises(ProgrammingError, match=f"column {_LONG}m is not in"):
        write_table(spark.sql(f"select 1 as {_LONG}m"), "one.properties", "made", create=True)
    with pytest.raises(ProgrammingError, match="more than 63 bytes"):
        write_table(spark.sql("select 1 as a"), "one.properties", f"{_LONG}m", create=True)
    assert databases.rows("one", "select to_regclass('made'), to_regclass(repeat('n', 63))") == [(None, None)]


@pytest.mark.parametrize("kind", ["mariadb", "sqlite"])
def test_mariadb_and_sqlite_match_by_name_too(
    spark: SparkSession, sources: Path, mariadb: MySQLServer, kind: str
) -> None:
    mariadb.empty()
    describe(sources, mariadb)
    (sources / "file.properties").write_text("driver = sqlite3\nmode = local\nurl = sqlite:///file.db\n")
    made = f"create table t (`{'n' * 64}` int, `a.b` int default 7)"
    with closing(sqlite3.connect(sources / "file.db")) as file:
        file.execute(made)
        mariadb.execute(made, database="one")
        source = "shop.properties" if kind == "mariadb" else "file.properties"
        write_table(spark.sql(f"select 2 as `A.B`, 1 as {'N' * 64}"), source, "t")
        write_table(spark.sql(f"select 1 as {'n' * 64}"), source, "t")
        for select in ("1 as c", f"1 as {'n' * 65}", f"1 as {'n' * 63}"):
            with pytest.raises(ProgrammingError, match="is not in"):
                write_table(spark.sql(f"select {select}"), source, "t")
        found = (
            mariadb.execute("select * from t", database="one") if kind == "mariadb" else file.execute("select * from t")
        )
        assert sorted(found) == [(1, 2), (1, 7)]
