"""What a server would take and store otherwise, without an error, is refused: the write fails, and none of it stays."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.spark.mysql import describe
from tests.support.mysql import MySQLServer
from txpool.errors import ProgrammingError
from txpool.spark import write_table

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tests.conftest import Databases

pytestmark = [pytest.mark.spark, pytest.mark.usefixtures("sources")]

_DOC = """named_struct('at', timestamp'2026-01-02 03:04:05.678901Z', 'day', timestamp_ntz'2026-01-02 03:04:05.000001',
    'none', cast(null as string), 'list', array(1, null), 'map', map('a', null))"""
_SHOWN = {
    "at": "2026-01-02T03:04:05.678901Z",
    "day": "2026-01-02T03:04:05.000001",
    "none": None,
    "list": [1, None],
    "map": {"a": None},
}


@pytest.mark.parametrize(
    ("column", "declared", "message"),
    [
        ("cast(id as int) as x", "numeric(5,-2)", "digits would be lost"),
        ("cast(id as decimal(5, 0)) as x", "numeric(5,-2)", "digits would be lost"),
        ("array(id) as x", "numeric(5,-2)[]", "digits would be lost"),
        ("cast(id as int) as x", "rounded", "digits would be lost"),
        ("interval '1' hour as x", "interval day", "cuts some intervals off"),
        ("interval '1.5' second as x", "interval second(0)", "cuts some intervals off"),
        ("named_struct('a', 1, 'a', 2) as x", "jsonb", "two fields of one name"),
        ("array(named_struct('a', 1, 'a', 2)) as x", "json", "two fields of one name"),
        ("map(current_date(), 1) as x", "jsonb", "no keys of date"),
        ("map(named_struct('a', 1), 1) as x", "jsonb", "no keys of struct"),
        ("'x' as x", "name", "is name"),
        ("'x' as x", "xml", "is xml"),
        ("'1' as x", "bit(3)", r"is bit\(3\)"),
        ("'1' as x", "money", "is money"),
        ("'(1,2)' as x", "point", "is point"),
        ("named_struct('a', 1) as x", "pair", "is pair"),
    ],
)
def test_postgresql_before_the_job(
    spark: SparkSession, databases: Databases, column: str, declared: str, message: str
) -> None:
    databases.execute("one", "create domain rounded as numeric(5,-2); create type pair as (a int)")
    databases.execute("one", f"create table t (x {declared})")  # type: ignore[arg-type]
    with pytest.raises(ProgrammingError, match=f"column x .*{message}"):
        write_table(spark.range(1).selectExpr(column), "one.properties", "t")


_TASKS = [
    ("'12345678-1234-1234-1234-12345678 9ab'", "uuid", "column x: "),
    ("concat(' ', repeat('1', 30), ' ')", "uuid", "column x: "),
    ("repeat('1', 33)", "uuid", "column x: "),
    ("array('12345678-1234-1234-1234-12345678 9ab')", "uuid[]", "column x: "),
    ("date_from_unix_date(2147483647)", "date", "a date is from"),
    ("date_from_unix_date(-2147483648)", "date", "a date is from"),
    ("date_from_unix_date(2147483647 - 10957)", "date", "a date is from"),
    ("timestamp_micros(9223372036854775807)", "timestamptz", "a timestamp is from"),
    ("timestamp_micros(-9223372036854775808)", "timestamptz", "a timestamp is from"),
    ("timestamp_micros(-62135596800000001)", "timestamptz", "a timestamp is from"),
    ("cast(timestamp_micros(-9223372036854775808) as timestamp_ntz)", "timestamp", "a timestamp is from"),
    ("array(date_from_unix_date(2147483647))", "date[]", "a date is from"),
    ("'abc  '", "varchar(3)", "it has 5 characters, and the column 3"),
    ("'abc  '", "char(3)", "it has 5 characters, and the column 3"),
    ("'abc  '", "short", "it has 5 characters, and the column 3"),
    ("array('abc  ')", "varchar(3)[]", "it has 5 characters, and the column 3"),
    ("timestamp_ntz'2026-01-01 00:00:00.1234'", "timestamp(3)", "has 3 digits below a second"),
    ("timestamp'2026-01-01 00:00:00.1234Z'", "timestamptz(0)", "has no digits below a second"),
    ("array(timestamp_ntz'2026-01-01 00:00:00.5')", "timestamp(0)[]", "has no digits below a second"),
    ("""'{"a": 1, "a": 2}'""", "jsonb", "has a key twice"),
    ("""'[{"b": {"a": 1, "\\\\u0061": 2}}]'""", "jsonb", "has a key twice"),
    ("""array('{"a": 1, "a": 2}')""", "jsonb[]", "has a key twice"),
    ("'{'", "jsonb", "invalid JSON"),
    ("'{'", "json", "column x"),
    ("'a\\0b'", "text", "column x"),
    ("cast(X'FF' as string)", "text", "column x"),
    ("cast(X'EDA080' as string)", "text", "column x"),
    ("named_struct('a', cast(X'FF' as string))", "jsonb", "has U\\+FFFD"),
    ("123456", "numeric(5,0)", "numeric field overflow"),
    ("70000", "smallint", "column x: a value does not fit into smallint"),
    ("'sad'", "mood", "column x"),
]


@pytest.mark.costly
@pytest.mark.parametrize("strategy", ["direct", "staged"])
def test_postgresql_in_the_task(spark: SparkSession, databases: Databases, strategy: Any) -> None:
    """The second of two partitions has the value: nothing of the first stays."""
    databases.execute("one", "create domain short as varchar(3); create type mood as enum ('fine')")
    for value, declared, message in _TASKS if strategy == "direct" else _TASKS[::4]:
        databases.execute("one", f"drop table if exists t; create table t (x {declared})")  # type: ignore[arg-type]
        df = spark.range(2, numPartitions=2).selectExpr(f"if(id = 1, {value}, null) as x")
        with pytest.raises(Exception, match=message.replace(" ", r"\s")) as caught:
            write_table(df, "one.properties", "t", strategy=strategy)
        assert "column x" in str(caught.value), (value, declared)
        assert databases.rows("one", "select count(*) from t") == [(0,)], (value, declared)


def test_postgresql_keeps_what_only_looks_so(spark: SparkSession, databases: Databases) -> None:
    databases.execute(
        "one",
        "create table t (id int, i interval, d double precision, u uuid, v varchar(3), c char(3), ts timestamp(3), "
        "n numeric(38, 10), dates date[], j jsonb, s text)",
    )
    df = spark.sql(
        "select 1 as id, interval '-106751991 04:00:54.775807' day to second as i, -0.0d as d, "
        "'{12345678-1234-1234-1234-123456789ABC}' as u, 'ab ' as v, 'ab ' as c, "
        "timestamp_ntz'0001-01-01 00:00:00.123' as ts, cast('-1E-10' as decimal(38, 10)) as n, "
        "array(date'0001-01-01', null, date'9999-12-31') as dates, '{\"a\": 1.10, \"b\": [{}, {}]}' as j, '\\\\.' as s"
    )
    write_table(df, "one.properties", "t")
    (found,) = databases.rows(
        "one",
        "select extract(epoch from i)::text, d::text, u::text, v, octet_length(c), ts::text, n::text, dates::text, "
        "j::text, s from t",
    )
    assert found == (
        "-9223372036854.775807",
        "-0",
        "12345678-1234-1234-1234-123456789abc",
        "ab ",
        3,
        "0001-01-01 00:00:00.123",
        "-0.0000000001",
        "{0001-01-01,NULL,9999-12-31}",
        '{"a": 1.10, "b": [{}, {}]}',
        "\\.",
    )


def test_a_session_that_reads_another_encoding(spark: SparkSession, databases: Databases, sources: Path) -> None:
    file = sources / "one.properties"
    file.write_text(file.read_text().replace("/one", "/one?client_encoding=LATIN1"))
    databases.execute("one", "create table t (x text, at timestamp); create table u (x text, j jsonb)")
    write_table(spark.sql("select 'ü€😀' as x, timestamp_ntz'2026-01-01' as at"), "one.properties", "t")
    write_table(spark.sql("select 'ü€😀' as x, '[\"ü\"]' as j"), "one.properties", "u")
    assert databases.rows("one", "select x from t union all select x from u") == [("ü€😀",)] * 2


@pytest.mark.parametrize("zone", ["UTC", "Africa/Monrovia"])
@pytest.mark.parametrize("policy", ["CORRECTED", "LEGACY"])
def test_nested_data_keep_null_fields_and_microseconds(
    spark: SparkSession, databases: Databases, sources: Path, mariadb: MySQLServer, zone: str, policy: str
) -> None:
    databases.execute("one", "create table t (x jsonb)")
    mariadb.empty()
    describe(sources, mariadb)
    mariadb.execute("create table t (x json)", database="one")
    (sources / "file.properties").write_text("driver = sqlite3\nmode = local\nurl = sqlite:///file.db\n")
    settings = {"spark.sql.session.timeZone": zone, "spark.sql.legacy.timeParserPolicy": policy}
    before = {name: spark.conf.get(name) for name in settings}
    try:
        for name, value in settings.items():
            spark.conf.set(name, value)
        df = spark.sql(f"select {_DOC} as x")
        write_table(df, "one.properties", "t")
        write_table(df, "shop.properties", "t")
        write_table(df, "file.properties", "t", create=True)
    finally:
        for name, value in before.items():
            spark.conf.set(name, value or "")
    assert databases.rows("one", "select x from t") == [(_SHOWN,)]
    assert json.loads(mariadb.execute("select x from t", database="one")[0][0]) == _SHOWN
    with closing(sqlite3.connect(sources / "file.db")) as file:
        assert json.loads(file.execute("select x from t").fetchone()[0]) == _SHOWN


@pytest.mark.costly
@pytest.mark.parametrize("kind", ["mariadb", "mysql8"])
def test_mariadb_and_mysql(spark: SparkSession, sources: Path, kind: str, request: pytest.FixtureRequest) -> None:
    server: MySQLServer = request.getfixturevalue(kind)
    server.empty()
    describe(sources, server)
    refused = [
        ("cast(null as int) as x", "int auto_increment primary key", "it is NULL, and the server would take"),
        ("timestamp'1970-01-01 00:00:00Z' as x", "timestamp(6) null", "ncorrect datetime value"),
        ("timestamp'2200-01-01 00:00:00Z' as x", "timestamp(6) null", "ncorrect datetime value"),
        ("date_from_unix_date(2147483647) as x", "date", "a date is from"),
        ("map(cast(X'FF' as string), 1) as x", "json", r"has U\+FFFD"),
        ("'abc  ' as x", "char(3)", "loses spaces at the end|Data too long"),
        ("'😀' as x", "varchar(3) character set utf8mb3", "Incorrect string value"),
        ("cast(X'FF' as string) as x", "varchar(3)", "."),
        ("1e300d as x", "float", "."),
    ]
    if not server.is_mariadb:
        refused += [
            ("""'{"a": 1, "a": 2}' as x""", "json", "has a key twice"),
            ("'[0.1234567890123456]' as x", "json", "more than 15 digits"),
            ("'[1e23]' as x", "json", "more than 15 digits"),
            ("array(double('123456789012345.67')) as x", "json", "more than 15 digits"),
            ("'[123456789012345678901234567890]' as x", "json", "more than 64 bits"),
        ]
    for value, declared, message in refused:
        server.execute("drop table if exists t", f"create table t (x {declared})", database="one")
        with pytest.raises(Exception, match=message):
            write_table(spark.sql(f"select {value}"), "shop.properties", "t")
        assert server.execute("select * from t", database="one") == [], (value, declared)
    server.execute("drop table t", "create table t (d double, f float, j json)", database="one")
    df = spark.sql("select -0.0d as d, cast(-0.0d as float) as f, '{\"a\": [1.5, 1e22, -0.0]}' as j")
    if server.is_mariadb:
        for column in ("d", "f"):
            with pytest.raises(Exception, match=r"it is -0\.0"):
                write_table(df.select(column), "shop.properties", "t")
        df = df.selectExpr("d + 0 as d", "cast(f + 0 as float) as f", "j")
    write_table(df, "shop.properties", "t")
    ((d, f, j),) = server.execute("select cast(d as char), cast(f as char), j from t", database="one")
    assert (d, f) == (("0", "0") if server.is_mariadb else ("-0", "-0"))
    assert json.loads(j) == {"a": [1.5, 1e22, 0.0]}


@pytest.mark.costly
def test_sqlite(spark: SparkSession, sources: Path) -> None:
    (sources / "file.properties").write_text("driver = sqlite3\nmode = local\nurl = sqlite:///file.db\n")
    with closing(sqlite3.connect(sources / "file.db")) as file:
        for value, declared, strict, message in [
            ("-0.0d as x", "real", "", "it is -0.0"),
            ("-0.0d as x", "numeric", "", "it is -0.0"),
            ("cast(-0.0d as float) as x", "real", "", "it is -0.0"),
            ("cast(null as int) as x", "integer primary key", "", "it is NULL, and the server would take"),
            ("'1e5' as x", "numeric", "", "column x is string"),
            ("'1e5' as x", "any", "", "column x is string"),
            ("cast(9007199254740993 as bigint) as x", "real", "", "column x is bigint"),
            ("cast(1 as bigint) as x", "real", "strict", "column x is bigint"),
            ("'x' as x", "int", "strict", "column x is string"),
            ("date_from_unix_date(2147483647) as x", "date", "", "a date is from"),
            ("cast(X'FF' as string) as x", "text", "", "column x"),
            ("array(cast(X'FF' as string)) as x", "json", "", r"has U\+FFFD"),
        ]:
            file.executescript(f"drop table if exists t; create table t (x {declared}) {strict}")
            with pytest.raises(Exception, match=message):
                write_table(spark.sql(f"select {value}"), "file.properties", "t")
            assert file.execute("select count(*) from t").fetchone() == (0,)
        file.executescript("drop table t; create table t (x, r real, i int, b blob, s text) ")
        df = spark.sql("select -0.0d as x, 1e300d as r, 9223372036854775807 as i, '1e5' as b, 'a\\0b' as s")
        write_table(df, "file.properties", "t")
        (found,) = file.execute("select x, r, i, b, s from t").fetchall()
        assert repr(found) == "(-0.0, 1e+300, 9223372036854775807, '1e5', 'a\\x00b')"
