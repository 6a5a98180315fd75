"""Any value at all, into a column that may not have it: it arrives equal, or the write fails by the column's name.

So is what foreach_partition() hands to a writer of one's own. TXPOOL_VALUE_ROWS and TXPOOL_VALUE_SEED as in
value_kinds.py.
"""

from __future__ import annotations

import json
import math
import random
import re
import sqlite3
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from datetime import UTC, datetime, time
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import hypothesis
import pytest
from hypothesis import HealthCheck, Phase
from hypothesis import strategies as st

import txpool
from tests.spark.mysql import describe
from tests.spark.types.test_written_values_equal import frame
from tests.spark.types.value_kinds import (
    KINDS,
    ROWS,
    SEED,
    Kind,
    decimals,
    isoformat,
    json_float,
    same,
    utc,
    values_of,
    whole,
)
from tests.support.mysql import MySQLServer
from txpool.spark import foreach_partition, write_table

if TYPE_CHECKING:
    from pyspark.sql import Row, SparkSession

    from tests.conftest import Databases

pytestmark = [pytest.mark.spark, pytest.mark.usefixtures("sources")]

_JOBS = max(7, ROWS // 300)
#: Our own sentence, or the server's.
_NAMES_COLUMN = re.compile(r"column `?(\w+`\.`)?'?x\b|column [`'][\w`.]*x[`']|CONSTRAINT `?t\.x", re.IGNORECASE)


@dataclass(frozen=True)
class Narrow:
    """A column that does not have every value of its kind."""

    declared: str
    kind: Kind
    #: What the target's client selects, and what is expected of it.
    read: str = "x"
    found: Callable[[Any], Any] = lambda value: value


def narrow(
    declared: str,
    plain: str,
    values: st.SearchStrategy[Any],
    cast: str = "{0}",
    send: Callable[[Any], Any] = lambda value: value,
    read: str = "x",
    found: Callable[[Any], Any] = lambda value: value,
) -> Narrow:
    return Narrow(declared, Kind(plain, values, send, cast), read, found)


_SHORT = st.text("aB ", max_size=7)
_ANY_TEXT = st.text(max_size=6)
_BYTES = st.binary(max_size=6)
_IDS = st.uuids().map(str) | st.text("0123456789abcdefABCDEF -{}", min_size=30, max_size=38)
_PAIRS = st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 9)), max_size=4)
_DOCUMENTS = st.text('{}[]":,a1.- ', max_size=8) | _PAIRS.map(
    lambda pairs: "{" + ", ".join(f'"{key}": {value}' for key, value in pairs) + "}"
)


def _document(text: str) -> Any:
    """What JSON says; of a key that is there twice, both."""
    return json.loads(text, object_pairs_hook=lambda pairs: dict(pairs) if len(dict(pairs)) == len(pairs) else pairs)


def _utf8(value: bytes) -> Any:
    return value.decode(errors="backslashreplace")


_DAYS = "date_from_unix_date({0})"
_MOMENT = "timestamp_micros({0})"
_MICROSECONDS = "(extract(epoch from x) * 1000000)::numeric(30)"
_POSTGRESQL = [
    narrow("varchar(4)", "string", _SHORT),
    narrow("char(4)", "string", _SHORT, found=lambda value: value.ljust(4)),
    narrow("uuid", "string", _IDS, read="x::text", found=lambda value: str(uuid.UUID(value))),
    narrow("date", "int", whole(32), _DAYS, read="x - date '1970-01-01'"),
    narrow("timestamptz", "bigint", whole(64), _MOMENT, read=_MICROSECONDS),
    narrow("timestamp(2)", "string", st.datetimes(), "cast({0} as timestamp_ntz)", isoformat),
    narrow("time(1)", "string", st.times(), "cast({0} as time(6))", time.isoformat),
    narrow("numeric(7,2)", "decimal(9,2)", decimals(9, 2)),
    narrow("numeric(7,-2)", "bigint", whole(16)),
    narrow("smallint", "bigint", whole(64)),
    narrow("text", "string", _ANY_TEXT),
    narrow("text", "binary", _BYTES, "cast({0} as string)", bytearray, found=_utf8),
    narrow("jsonb", "string", _DOCUMENTS, found=_document),
    narrow("double precision", "bigint", whole(64)),
    narrow("varchar(2)[]", "array<string>", st.lists(_SHORT, max_size=3)),
]
_MYSQL = [
    narrow("varchar(4) character set utf8mb3 collate utf8mb3_bin", "string", _SHORT | _ANY_TEXT),
    narrow("char(4) character set utf8mb4 collate utf8mb4_bin", "string", _SHORT),
    narrow("tinyint unsigned", "smallint", whole(16)),
    narrow("year", "int", st.integers(0, 2200)),
    narrow("bit(5)", "int", st.integers(-9, 40), read="x + 0"),
    narrow("enum('a','B','2')", "string", st.sampled_from(["a", "A", "B", "b ", "1", "2", "3", ""])),
    narrow("decimal(7,2)", "decimal(9,2)", decimals(9, 2)),
    narrow("datetime(2)", "string", st.datetimes(), "cast({0} as timestamp_ntz)", isoformat),
    narrow("timestamp(6) null", "bigint", whole(64), _MOMENT, read="cast(unix_timestamp(x) * 1000000 as signed)"),
    narrow("date", "int", whole(32), _DAYS, read="to_days(x) - to_days('1970-01-01')"),
    narrow("double", "double", st.floats()),
    narrow("float", "float", st.floats(width=32), read="x * 1e0"),  # which keeps -0.0
    narrow("text character set utf8mb4", "binary", _BYTES, "cast({0} as string)", bytearray, found=_utf8),
    narrow("json", "string", _DOCUMENTS, found=_document),
    narrow("binary(3)", "binary", _BYTES, send=bytearray),
    narrow("int auto_increment primary key", "int", st.none() | whole(32)),
]
_SQLITE = [
    narrow("real", "double", st.floats()),
    narrow("numeric", "float", st.floats(width=32)),
    narrow("integer primary key", "bigint", st.none() | whole(64)),
    narrow("date", "int", whole(32), _DAYS, read="cast(julianday(x) - julianday('1970-01-01') as int)"),
    narrow("text", "binary", _BYTES, "cast({0} as string)", bytearray, found=_utf8),
    narrow("text", "string", _ANY_TEXT),
    narrow("numeric", "string", _SHORT),
    narrow("real", "bigint", whole(64)),
    narrow("decimal(15, 2)", "decimal(15, 2)", decimals(15, 2), found=float),
]


def _made(column: Narrow, seed: str, examples: int) -> list[Any]:
    found: list[Any] = []

    @hypothesis.seed(seed)
    @hypothesis.settings(
        max_examples=examples,
        database=None,
        deadline=None,
        phases=[Phase.generate],
        suppress_health_check=[*HealthCheck],
    )
    @hypothesis.given(column.kind.values)
    def collect(value: Any) -> None:
        found.append(value)

    collect()
    return found


def _samples(columns: Sequence[Narrow], name: str) -> Iterator[tuple[Narrow, Any]]:
    """Columns in turn, in another order each time, each with a value."""
    order = random.Random(f"{SEED} {name}").sample(columns, len(columns))
    each = -(-_JOBS // len(order))
    made = [_made(column, f"{SEED} {name} {number}", max(3, 2 * each)) for number, column in enumerate(order)]
    for number in range(_JOBS):
        values = made[number % len(order)]
        yield order[number % len(order)], values[-1 - number // len(order) % len(values)]


@pytest.mark.costly
@pytest.mark.parametrize("target", ["postgresql", "mariadb", "mysql8", "sqlite"])
def test_it_arrives_equal_or_the_write_fails(
    spark: SparkSession, databases: Databases, sources: Path, target: str, request: pytest.FixtureRequest
) -> None:
    print(f"TXPOOL_VALUE_SEED={SEED}")
    spark.conf.set("spark.sql.timeType.enabled", "true")
    ask: Callable[[str], Any]
    if target == "postgresql":
        file, columns = "one.properties", _POSTGRESQL

        def ask(query: str) -> Any:
            if query.startswith("select"):
                return databases.rows("one", query)  # type: ignore[arg-type]
            return databases.execute("one", query)  # type: ignore[arg-type]

    elif target == "sqlite":
        file, columns = "file.properties", _SQLITE
        (sources / file).write_text("driver = sqlite3\nmode = local\nurl = sqlite:///file.db\n")

        def ask(query: str) -> Any:
            with closing(sqlite3.connect(sources / "file.db", isolation_level=None)) as connection:
                return connection.execute(query).fetchall()

    else:
        file, columns = "shop.properties", _MYSQL
        server: MySQLServer = request.getfixturevalue(target)
        server.empty()
        describe(sources, server)

        def ask(query: str) -> Any:
            return server.execute("set time_zone = '+00:00'", query, database="one")

    outcomes = {"equal": 0, "refused": 0}
    try:
        for column, value in _samples(columns, target):
            ask("drop table if exists t")
            ask(f"create table t (x {column.declared})")
            df = frame(spark, {"x": column.kind}, [(value,)]).drop("at")
            refusal = ""
            try:
                write_table(df, file, "t")
            except Exception as error:
                refusal = str(error)
            if refusal:
                assert _NAMES_COLUMN.search(refusal), refusal
                assert ask("select x from t") in ([], ())
                outcomes["refused"] += 1
                continue
            ((found,),) = ask(f"select {column.read} from t")
            if column.declared == "json" and found is not None:
                found = _document(found)  # MariaDB keeps the text
            expected = None if value is None else column.found(value)
            assert same(expected, found), f"{column.declared}: sent {value!r}, and found {found!r}"
            outcomes["equal"] += 1
    finally:
        spark.conf.unset("spark.sql.timeType.enabled")
    print(outcomes)


#: What a driver takes as a parameter of what Spark's Row gives, and the columns of PostgreSQL and of MariaDB and MySQL.
_OF_ROWS: Mapping[str, tuple[str, str]] = {
    "yes": ("boolean", "tinyint(1)"),
    "large": ("bigint", "bigint"),
    "double": ("double precision", "double"),
    "widest": ("numeric(38, 10)", "decimal(38, 10)"),
    "name": ("text", "longtext character set utf8mb4 collate utf8mb4_bin"),
    "raw": ("bytea", "longblob"),
    "day": ("date", "date"),
    "clock": ("timestamp", "datetime(6)"),
    "instant": ("timestamptz", "datetime(6)"),
    "numbers": ("bigint[]", "longtext"),
    "words": ("text[]", "longtext character set utf8mb4 collate utf8mb4_bin"),
    "prices": ("numeric(20, 4)[]", "longtext"),
    "tree": ("jsonb", "longtext character set utf8mb4 collate utf8mb4_bin"),
}


def _document_of(row: Row) -> str:
    """What one writes of a nested Row."""
    found = row.asDict(recursive=True)
    at = found["at"] and f"{found['at'].astimezone(UTC).replace(tzinfo=None).isoformat(timespec='microseconds')}Z"
    return json.dumps(found | {"d": json_float(found["d"]), "at": at})


def _itself(value: Any) -> Any:
    return value


def _decimals(text: str) -> Any:
    return [None if each is None else Decimal(each) for each in json.loads(text)]


#: What one gives to the driver for what Spark's Row has; a timestamp of it is in the worker's own zone, without it.
_POSTGRESQL_PARAMETER: Mapping[str, Callable[[Any], Any]] = {
    "raw": bytes,
    "instant": datetime.astimezone,
    "tree": _document_of,
}
_MYSQL_PARAMETER: Mapping[str, Callable[[Any], Any]] = {
    "raw": bytes,
    "numbers": json.dumps,
    "words": json.dumps,
    "prices": lambda value: json.dumps([None if each is None else str(each) for each in value]),
    "tree": _document_of,
}
_MYSQL_HELD: Mapping[str, Callable[[Any], Any]] = {
    "yes": bool,
    "instant": lambda value: value.astimezone(UTC),
    "numbers": json.loads,
    "words": json.loads,
    "prices": _decimals,
    "tree": json.loads,
}


@pytest.mark.costly
@pytest.mark.parametrize("target", ["postgresql", "mariadb", "mysql8"])
def test_a_row_of_sparks_arrives_as_it_is_handed_over(
    spark: SparkSession, databases: Databases, sources: Path, target: str, request: pytest.FixtureRequest
) -> None:
    kinds = {name: KINDS[name] for name in _OF_ROWS}
    columns = [[_finite(value) for value in values_of(name)] for name in kinds]
    sent = [*zip(*columns, strict=True)]
    place = 0 if target == "postgresql" else 1
    names = {name: f'"{name}"' if place == 0 else f"`{name}`" for name in kinds}
    declared = ", ".join(f"{names[name]} {types[place]}" for name, types in _OF_ROWS.items())
    created = f"create table t (at int primary key, {declared})"
    selected = f"select {', '.join(names.values())} from t order by at"
    if place == 0:
        file = "one.properties"
        databases.execute("one", created)  # type: ignore[arg-type]
    else:
        file = "shop.properties"
        server: MySQLServer = request.getfixturevalue(target)
        server.empty()
        describe(sources, server)
        server.execute("alter database one character set utf8mb4", created, database="one")
    insert = f"insert into t (at, {', '.join(names.values())}) values ({', '.join(['%s'] * (len(kinds) + 1))})"

    handed = _POSTGRESQL_PARAMETER if place == 0 else _MYSQL_PARAMETER

    def write(rows: Iterator[Row]) -> None:
        connection = txpool.connect(file)
        plain = [
            (row.at, *(None if row[name] is None else handed.get(name, _itself)(row[name]) for name in names))
            for row in rows
        ]
        connection.cursor().executemany(insert, plain)

    with txpool.transaction():
        foreach_partition(frame(spark, kinds, sent).repartition(2), write, datasources=[file])
    found = databases.rows("one", selected) if place == 0 else server.execute(selected, database="one")  # type: ignore[arg-type]
    assert len(found) == ROWS
    for one, other in zip(sent, found, strict=True):
        for (name, kind), value, got in zip(kinds.items(), one, other, strict=True):
            expected = None if value is None else utc(value) if name == "instant" else kind.found(value)
            held = _MYSQL_HELD.get(name, _itself)(got) if place == 1 and got is not None else got
            assert same(expected, held), (name, expected, held)


def _finite(value: Any) -> Any:
    """No number that MariaDB and MySQL have not, and no sign of a zero, which MariaDB does not keep."""
    if not isinstance(value, float):
        return value
    return value + 0.0 if math.isfinite(value) else None
