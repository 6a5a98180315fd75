"""Each type both ways, on each database; what Python or the database cannot hold is an error, and no other value.

The JVM's zone has an hour missing on 31 March 2024, at half past two: a driver that reads or writes a time by that zone
makes another one of it.
"""

from __future__ import annotations

import math
import uuid
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from enum import IntEnum
from typing import Any

import numpy as np
import pandas as pd
import psycopg
import pytest

from tests.conftest import Databases
from tests.support.jdbc import DATABASES, JdbcDatabase, java_zone
from tests.support.mysql import MySQLServer
from txpool.resources.jdbc.dbapi import errors
from txpool.resources.jdbc.dbapi.connection import JdbcConnection

INDIA = timezone(timedelta(hours=5, minutes=30))
MISSING = datetime(2024, 3, 31, 2, 30, 0, 123456)
GREGORIAN = datetime(1582, 10, 10, 1, 2, 3)
ZONED = datetime(2024, 3, 31, 2, 30, 0, 123456, tzinfo=INDIA)
A_UUID = uuid.UUID("12345678-1234-5678-1234-567812345678")
LONG_TEXT = "é😀" * 50_000

EVERYWHERE: list[tuple[str, Any]] = [
    ("smallint", -3),
    ("int", 2**31 - 1),
    ("bigint", 2**63 - 1),
    ("bigint", -(2**63)),
    ("double precision", 1e308),
    ("real", 0.1),
    ("numeric(20,4)", Decimal("12345678.9000")),
    ("boolean", True),
    ("boolean", False),
    ("date", date(2024, 2, 29)),
    ("date", date(1, 1, 1)),
    ("date", date(1582, 10, 10)),
    ("date", date(9999, 12, 31)),
    ("time", time(23, 59, 58)),
]
VALUES: dict[str, list[tuple[str, Any]]] = {
    "h2": [
        ("varchar(100)", "hé \0 😀"),
        ("timestamp", MISSING),
        ("timestamp", GREGORIAN),
        ("timestamp with time zone", ZONED),
        ("time with time zone", time(1, 2, 3, tzinfo=INDIA)),
        ("time(6)", time(1, 2, 3, 456789)),
        ("varbinary(100)", b"\0\xff"),
        ("blob", bytes(range(256)) * 1000),
        ("clob", LONG_TEXT),
        ("uuid", A_UUID),
        ("double precision", math.nan),
        ("decfloat", Decimal("1E+50")),
        ("interval day to second(6)", timedelta(days=-1, microseconds=3)),
        ("int array", [1, None, 3]),
        ("int array", []),
        ("varchar array", ["a", None]),
        ("timestamp(6) array", [MISSING]),
        ("numeric(10,2) array", [Decimal("1.50")]),
        ("int array array", [[1, 2], [3]]),
        ("varbinary array", [b"ab"]),
        ("enum('a','b')", "a"),
    ],
    "derby": [
        ("varchar(100)", "hé \0 😀"),
        ("timestamp", MISSING),
        ("timestamp", GREGORIAN),
        ("varchar(100) for bit data", b"\0\xff"),
        ("blob", bytes(range(256)) * 1000),
        ("clob", LONG_TEXT),
        ("long varchar", "abc"),
    ],
    "postgresql": [
        ("text", LONG_TEXT),
        ("timestamp", MISSING),
        ("timestamp", GREGORIAN),
        ("timestamptz", ZONED),
        ("timetz", time(1, 2, 3, tzinfo=INDIA)),
        ("time", time(1, 2, 3, 456789)),
        ("bytea", bytes(range(256)) * 1000),
        ("uuid", A_UUID),
        ("double precision", math.nan),
        ("double precision", -math.inf),
        ("double precision", -0.0),
        ("numeric", Decimal("NaN")),
        ("numeric", Decimal("1E+50")),
        ("interval", timedelta(days=-1, microseconds=3)),
        ("interval", timedelta(days=3, hours=5)),
        ("int[]", [1, None, 3]),
        ("int[]", []),
        ("int[]", [[1, 2], [3, 4]]),
        ("text[]", ["a", None, 'x,"\\y']),
        ("timestamp[]", [MISSING]),
        ("timestamptz[]", [ZONED]),
        ("date[]", [date(2024, 1, 2)]),
        ("numeric[]", [Decimal("1.50")]),
        ("float8[]", [1.5, math.inf]),
        ("bool[]", [True, None]),
        ("bytea[]", [b"a\0b", None]),
        ("uuid[]", [A_UUID]),
    ],
    "mariadb": [
        ("varchar(100) character set utf8mb4", "hé \0 😀"),
        ("longtext character set utf8mb4", LONG_TEXT),
        ("datetime(6)", MISSING),
        ("datetime(6)", GREGORIAN),
        ("time(6)", time(1, 2, 3, 456789)),
        ("varbinary(100)", b"\0\xff"),
        ("blob", bytes(range(200)) * 100),
        ("uuid", A_UUID),
        ("tinyint", 5),
        ("tinyint(1)", 5),
        ("bigint unsigned", 2**64 - 1),
        ("int unsigned", 2**32 - 1),
        ("bit(1)", True),
        ("bit(8)", b"\x05"),
        ("year", 2024),
        ("decimal(65,10)", Decimal("123456789012345678901234567890.5000000000")),
        ("json", '{"a": 1}'),
    ],
}


def same(one: object, other: object) -> bool:
    """Of one type and value; NaN is NaN, and each zero keeps its sign."""
    return type(one) is type(other) and repr(one) == repr(other) if isinstance(one, float) else same_value(one, other)


def same_value(one: Any, other: Any) -> bool:
    if isinstance(one, Decimal) and one.is_nan():
        return isinstance(other, Decimal) and other.is_nan()
    return type(one) is type(other) and bool(one == other)


@pytest.mark.parametrize("jdbc_database", DATABASES, indirect=True)
def test_each_type_both_ways(jdbc_database: JdbcDatabase, request: pytest.FixtureRequest) -> None:
    wrong = []
    raw = jdbc_database.connect()
    raw.autocommit = True
    with java_zone("Europe/Berlin"):
        raw = jdbc_database.connect()  # some drivers ask for the zone when they connect
        for number, (kind, value) in enumerate(EVERYWHERE + VALUES[jdbc_database.name]):
            cursor = raw.cursor()
            cursor.execute(f"create table t{number} (v {kind})")
            cursor.execute(f"insert into t{number} values (?)", (value,))
            cursor.executemany(f"insert into t{number} values (?)", [(None,), (value,), (None,)])
            raw.commit()
            cursor.execute(f"select v from t{number}")
            found = sorted((each for (each,) in cursor.fetchall()), key=lambda each: each is None)
            if not (same(value, found[0]) and same(value, found[1]) and found[2:] == [None, None]):
                wrong.append((kind, value if len(repr(value)) < 100 else "…", [repr(each)[:100] for each in found]))
    raw.close()
    assert wrong == []
    if jdbc_database.name == "postgresql":  # and psycopg reads what was meant
        databases: Databases = request.getfixturevalue("databases")
        assert psycopg_reads(databases) == []


def psycopg_reads(databases: Databases) -> list[tuple[str, object, object]]:
    wrong: list[tuple[str, object, object]] = []
    with psycopg.connect(databases.dsn("one")) as connection:
        for number, (kind, value) in enumerate(EVERYWHERE + VALUES["postgresql"]):
            query = psycopg.sql.SQL("select v from {} where v is not null").format(psycopg.sql.Identifier(f"t{number}"))
            for (found,) in connection.execute(query).fetchall():
                if not same(value, found):
                    wrong.append((kind, value, found))
    return wrong


def read_error(raw: JdbcConnection, query: str) -> errors.Error:
    """The error with which the value is fetched; the statement itself succeeds."""
    cursor = raw.execute(query)
    with pytest.raises(errors.DataError, match=r"column .* cannot be read") as caught:
        cursor.fetchall()
    assert raw.failed is None
    return caught.value


@pytest.mark.parametrize("jdbc_database", ["postgresql"], indirect=True)
def test_what_python_cannot_hold_of_postgresql_is_an_error(jdbc_database: JdbcDatabase) -> None:
    raw = jdbc_database.connect()
    for value in ("timestamptz 'infinity'", "timestamp '-infinity'", "date 'infinity'", "timestamp '0044-03-15 BC'"):
        read_error(raw, f"select {value} as v")
    for value in ("date '20000-01-01'", "time '24:00'", "interval '1 month'", "interval '2 years 1 day'"):
        read_error(raw, f"select {value} as v")
    read_error(raw, "select array[timestamp 'infinity'] as v")
    assert raw.execute("select 1").fetchall() == [(1,)]


@pytest.mark.parametrize("jdbc_database", ["h2"], indirect=True)
def test_rows_before_the_one_that_cannot_be_read_are_fetched(jdbc_database: JdbcDatabase) -> None:
    raw = jdbc_database.connect()
    raw.execute("create table t (i int, v timestamp(9))")
    raw.execute("insert into t values (1, '2024-01-01 00:00:00.000001'), (2, '2024-01-01 00:00:00.000000001')")
    cursor = raw.execute("select i, v from t order by i")
    assert cursor.fetchone() == (1, datetime(2024, 1, 1, microsecond=1))
    for _ in range(2):
        with pytest.raises(errors.DataError, match=r"column V: .*00:00:00.000000001"):
            cursor.fetchone()
    read_error(raw, "select interval '1' month")


@pytest.mark.parametrize("jdbc_database", ["mariadb"], indirect=True)
def test_what_python_cannot_hold_of_mariadb_is_an_error(jdbc_database: JdbcDatabase) -> None:
    raw = jdbc_database.connect()
    raw.execute("set sql_mode = ''")
    raw.execute("create table t (d date, s datetime, t time)")
    for column, value in (
        ("d", "0000-00-00"),
        ("d", "2024-02-00"),
        ("s", "0000-00-00 00:00:00"),
        ("s", "2024-02-00 01:02:03"),
        ("s", "2024-00-01 01:02:03"),
        ("t", "25:00:00"),
        ("t", "-01:00:00"),
    ):
        raw.execute("delete from t")
        raw.execute(f"insert into t ({column}) values ('{value}')")
        assert value in str(read_error(raw, f"select {column} from t"))


@pytest.mark.parametrize("jdbc_database", ["mariadb"], indirect=True)
def test_mariadb_has_a_zoned_time_in_its_sessions_zone(jdbc_database: JdbcDatabase, mariadb: MySQLServer) -> None:
    with java_zone("Europe/Berlin"):
        raw = jdbc_database.connect()
        raw.execute("create table t (v timestamp(6) null)")
        for zone in ("+00:00", "-03:00"):
            raw.execute(f"set time_zone = '{zone}'")
            raw.execute("insert into t values (?)", (ZONED,))
        raw.commit()
    found = mariadb.execute("set time_zone = '+00:00'", "select v from t", database="one")
    assert found == [(ZONED.astimezone(UTC).replace(tzinfo=None),)] * 2


@pytest.mark.parametrize("jdbc_database", ["mariadb"], indirect=True)
def test_what_mariadb_cannot_hold_is_an_error(jdbc_database: JdbcDatabase) -> None:
    raw = jdbc_database.connect()
    raw.execute("create table t (nan double, infinity double, t time, i bigint)")
    raw.execute("insert into t values (5, 6, null, 7)")
    for statement, value in (
        ("update t set infinity = ?", math.nan),  # the driver's text would be the name of a column
        ("update t set nan = ?", math.inf),
        ("update t set nan = ?", Decimal("NaN")),
        ("update t set i = ?", 2**64),
    ):
        with pytest.raises(errors.DataError):
            raw.execute(statement, (value,))
    with pytest.raises(errors.NotSupportedError, match="no times with a zone"):
        raw.execute("update t set t = ?", (time(1, 2, 3, tzinfo=INDIA),))
    assert raw.execute("select * from t").fetchall() == [(5.0, 6.0, None, 7)]


@pytest.mark.parametrize("jdbc_database", ["derby"], indirect=True)
def test_derby_has_no_zones_and_no_fractions_in_a_time(jdbc_database: JdbcDatabase) -> None:
    raw = jdbc_database.connect()
    raw.execute("create table t (s timestamp, t time)")
    with pytest.raises(errors.NotSupportedError, match="write the UTC time without a zone"):
        raw.execute("insert into t (s) values (?)", (ZONED,))
    with pytest.raises(errors.NotSupportedError, match="no fractions of a second"):
        raw.execute("insert into t (t) values (?)", (time(1, 2, 3, 4),))
    for value in ([1, 2], timedelta(1)):
        with pytest.raises(errors.Error):
            raw.execute("insert into t (s) values (?)", (value,))
    assert raw.execute("select * from t").fetchall() == []


class Colour(IntEnum):
    RED = 1


@pytest.mark.parametrize("jdbc_database", ["postgresql"], indirect=True)
def test_parameters_of_other_types(jdbc_database: JdbcDatabase) -> None:
    raw = jdbc_database.connect()
    raw.execute("create table t (i bigint, n numeric, f float8, s text, b bytea, z timestamptz)")
    rows: list[tuple[Any, ...]] = [
        (Colour.RED, 2**70, np.float64(1.5), np.str_("x"), bytearray(b"1"), pd.Timestamp("2024-01-01T00:00:00Z")),
        (np.int64(2), Decimal("2.5"), 2, "y", memoryview(b"2"), None),
        (2**62, 3, None, None, b"3", datetime(2024, 1, 1, tzinfo=UTC)),
    ]
    raw.cursor().executemany("insert into t values (?, ?, ?, ?, ?, ?)", rows)
    new_year = datetime(2024, 1, 1, tzinfo=UTC)
    assert raw.execute("select * from t order by i").fetchall() == [
        (1, Decimal(2**70), 1.5, "x", b"1", new_year),
        (2, Decimal("2.5"), 2.0, "y", b"2", None),
        (2**62, Decimal(3), None, None, b"3", new_year),
    ]
    for value, error in (
        ({"a": 1}, errors.ProgrammingError),
        (object(), errors.ProgrammingError),
        ("\ud800", errors.DataError),
        (pd.NaT, errors.DataError),
        (pd.Timestamp(1), errors.DataError),
    ):
        with pytest.raises(error):
            raw.execute("select ?::text", (value,))
    assert raw.failed is None, "nothing of that was sent"
