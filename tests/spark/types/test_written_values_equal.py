"""What Spark holds equals what the server's client reads, over all types and targets, or the write fails by name."""

from __future__ import annotations

import json
import math
import random
import sqlite3
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.spark.mysql import describe
from tests.spark.types.value_kinds import (
    ROWS,
    SEED,
    ZONES,
    Kind,
    as_kind,
    micros,
    same,
    utc,
    values_of,
)
from tests.support.mysql import MySQLServer
from txpool.spark import write_table

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from tests.conftest import Databases

pytestmark = [pytest.mark.spark, pytest.mark.usefixtures("sources")]

#: At most so many rows a job.
_JOB = 1000


def _finite(value: Any) -> Any:
    """A number that MariaDB, MySQL and SQLite have: no NaN, and no sign of a zero; and no infinity of the first two."""
    return None if not math.isfinite(value) else value + 0.0


def _no_nan(value: Any) -> Any:
    return None if math.isnan(value) else value + 0.0


def _plain_numbers(value: Any) -> Any:
    """A document whose number MySQL's JSON has."""
    return value | {"d": 0.25}


def _loads(found: Any) -> Any:
    return None if found is None else json.loads(found)


@dataclass(frozen=True)
class Target:
    """A database, its columns, and how it is asked."""

    file: str
    kinds: Mapping[str, Kind]
    execute: Callable[..., object]
    rows: Callable[[str], Sequence[Sequence[Any]]]
    #: The arguments of write_table() by the way's name.
    ways: Mapping[str, dict[str, Any]]
    #: The value that is written in place of one that the target's column has not.
    fit: Mapping[str, Callable[[Any], Any]]
    #: What is made of a value that was read.
    load: Mapping[str, Callable[[Any], Any]]
    quote: str = '"'

    def create(self, kinds: Mapping[str, Kind]) -> None:
        declared = ", ".join(f"{self.named(name)} {kind.declared}" for name, kind in kinds.items())
        self.execute("drop table if exists landed")
        self.execute(f"create table landed (at int primary key, {declared})")

    def named(self, name: str) -> str:
        return f"{self.quote}{name}{self.quote}"


_UPSERT: dict[str, Any] = {"mode": "upsert", "keys": ["at"]}
_WAYS = {"append": {"strategy": "direct"}, "staged": {"strategy": "staged"}, "upsert": _UPSERT}
_INSTANT = "(extract(epoch from {0}) * 1000000)::int8"
_POSTGRESQL = {
    "yes": as_kind("yes", "boolean"),
    "tiny": as_kind("tiny", "smallint"),
    "short": as_kind("short", "smallint"),
    "normal": as_kind("normal", "bigint"),
    "large": as_kind("large", "numeric"),
    "single": as_kind("single", "real", "{0}::float8"),
    "double": as_kind("double", "double precision"),
    "price": as_kind("price", "numeric(12, 3)"),
    "small": as_kind("small", "numeric"),
    "widest": as_kind("widest", "numeric(38, 10)"),
    "name": as_kind("name", "text"),
    "code": as_kind("code", "varchar(8)"),
    "raw": as_kind("raw", "bytea"),
    "day": as_kind("day", "date"),
    "clock": as_kind("clock", "timestamp"),
    "instant": as_kind("instant", "timestamptz", _INSTANT, found=micros),
    "hour": as_kind("hour", "time"),
    "lasted": as_kind("lasted", "interval", _INSTANT),
    "key": as_kind("key", "uuid", "{0}::text"),
    "tree": as_kind("tree", "jsonb"),
    "any": as_kind("any", "json"),
    "numbers": as_kind("numbers", "bigint[]"),
    "words": as_kind("words", "text[]"),
    "reals": as_kind("reals", "double precision[]"),
    "prices": as_kind("prices", "numeric(20, 4)[]"),
    "blobs": as_kind("blobs", "bytea[]"),
    "days": as_kind("days", "date[]"),
    "clocks": as_kind("clocks", "timestamp[]"),
}
#: The columns whose rows go in the binary format, if no other is there.
_BINARY = [
    *("yes", "tiny", "short", "normal", "large", "single", "double", "price"),
    *("name", "code", "raw", "day", "clock", "instant", "hour", "key"),
]
_TEXT = "character set utf8mb4 collate utf8mb4_bin"
_MYSQL = {
    "yes": as_kind("yes", "tinyint(1)", found=int),
    "tiny": as_kind("tiny", "tinyint"),
    "short": as_kind("short", "smallint"),
    "normal": as_kind("normal", "int"),
    "large": as_kind("large", "bigint"),
    "single": as_kind("single", "float", "{0} + 0e0"),
    "double": as_kind("double", "double"),
    "price": as_kind("price", "decimal(12, 3)"),
    "small": as_kind("small", "decimal(18, 18)"),
    "widest": as_kind("widest", "decimal(38, 10)"),
    "name": as_kind("name", f"longtext {_TEXT}"),
    "code": as_kind("code", f"varchar(8) {_TEXT}"),
    "raw": as_kind("raw", "longblob"),
    "day": as_kind("day", "date", "cast({0} as char)", found=str),
    "clock": as_kind("clock", "datetime(6)", "cast({0} as char)", found=lambda it: it.isoformat(" ", "microseconds")),
    "recent": as_kind("recent", "timestamp(6)"),
    "hour": as_kind("hour", "time(6)", found=lambda it: datetime.combine(datetime.min, it) - datetime.min),
    "tree": as_kind("tree", "json"),
    "any": as_kind("any", "json"),
    "numbers": as_kind("numbers", "json"),
    "words": as_kind("words", "json"),
}
_SQLITE = {
    "yes": as_kind("yes", "boolean", found=int),
    "tiny": as_kind("tiny", "integer"),
    "short": as_kind("short", "int"),
    "normal": as_kind("normal", "real"),
    "large": as_kind("large", "numeric"),
    "single": as_kind("single", "real"),
    "double": as_kind("double", ""),
    "price": as_kind("price", "numeric", found=float),
    "small": as_kind("small", "text", found=lambda it: f"{it:f}"),
    "widest": as_kind("widest", "text", found=lambda it: f"{it:f}"),
    "name": as_kind("name", "text"),
    "code": as_kind("code", ""),
    "raw": as_kind("raw", "blob"),
    "day": as_kind("day", "date", found=str),
    "clock": as_kind("clock", "datetime", found=lambda it: it.isoformat(" ", "microseconds")),
    "instant": as_kind("instant", "timestamp", found=lambda it: utc(it).isoformat(" ", "microseconds")),
    "hour": as_kind("hour", "time", found=lambda it: it.isoformat("microseconds")),
    "tree": as_kind("tree", "json"),
    "any": as_kind("any", "text"),
    "numbers": as_kind("numbers", "text"),
    "words": as_kind("words", "text"),
}


@pytest.fixture
def target(request: pytest.FixtureRequest, databases: Databases, sources: Path) -> Iterator[Target]:
    name = request.param
    if name.startswith("postgresql"):
        kinds = _POSTGRESQL if name == "postgresql" else {each: _POSTGRESQL[each] for each in _BINARY}

        def rows(query: str) -> Any:
            return databases.rows("one", query)  # type: ignore[arg-type]

        def execute(statement: str) -> None:
            databases.execute("one", statement)  # type: ignore[arg-type]

        yield Target("one.properties", kinds, execute, rows, _WAYS, {}, {})
    elif name == "sqlite":
        (sources / "file.properties").write_text("driver = sqlite3\nmode = local\nurl = sqlite:///file.db\n")
        with closing(sqlite3.connect(sources / "file.db", isolation_level=None)) as file:
            ways: dict[str, dict[str, Any]] = {"append": {}, "overwrite": {"mode": "overwrite"}, "upsert": _UPSERT}
            fit = {"single": _no_nan, "double": _no_nan}
            load = dict.fromkeys(("tree", "any", "numbers", "words"), _loads)
            yield Target(
                "file.properties", _SQLITE, file.execute, lambda query: file.execute(query).fetchall(), ways, fit, load
            )
    else:
        server: MySQLServer = request.getfixturevalue(name)
        server.empty()
        describe(sources, server)
        fit = {"single": _finite, "double": _finite} | ({} if server.is_mariadb else {"tree": _plain_numbers})
        load = dict.fromkeys(("tree", "any", "numbers", "words"), _loads)
        with server.connect("one", init_command="set time_zone = '+00:00'") as connection:

            def ask(query: str) -> Any:
                cursor = connection.cursor()
                cursor.execute(query)
                return cursor.fetchall()

            yield Target("shop.properties", _MYSQL, ask, ask, _WAYS, fit, load, "`")


def frame(spark: SparkSession, kinds: Mapping[str, Kind], rows: Sequence[Sequence[Any]]) -> DataFrame:
    """The rows, each with its number before it."""
    plain = [
        (at, *(None if value is None else kind.send(value) for kind, value in zip(kinds.values(), row, strict=True)))
        for at, row in enumerate(rows)
    ]
    schema = ", ".join(["at int", *(f"`{name}` {kind.plain}" for name, kind in kinds.items())])
    df = spark.createDataFrame(plain, schema)
    return df.selectExpr("at", *(f"{kind.cast.format(f'`{name}`')} as `{name}`" for name, kind in kinds.items()))


@pytest.mark.costly
@pytest.mark.parametrize("target", ["postgresql", "postgresql, binary", "mariadb", "mysql8", "sqlite"], indirect=True)
def test_what_is_read_equals_what_was_held(spark: SparkSession, target: Target) -> None:
    print(f"TXPOOL_VALUE_SEED={SEED}")
    spark.conf.set("spark.sql.timeType.enabled", "true")
    zone, r = spark.conf.get("spark.sql.session.timeZone"), random.Random(f"{SEED} zones")
    columns = [
        [None if value is None else target.fit.get(name, lambda it: it)(value) for value in values_of(name)]
        for name in target.kinds
    ]
    everything = [*zip(*columns, strict=True)]
    jobs = max(len(target.ways), -(-ROWS // _JOB))
    read = ", ".join(kind.read.format(target.named(name)) for name, kind in target.kinds.items())
    try:
        for number in range(jobs):
            way = [*target.ways][number % len(target.ways)]
            rows = everything[number::jobs]
            spark.conf.set("spark.sql.session.timeZone", r.choice(ZONES))
            target.create(target.kinds)
            if way == "upsert":
                target.execute("insert into landed (at) values (0), (1), (2)")
            df = frame(spark, target.kinds, rows).repartition(2)
            assert write_table(df, target.file, "landed", **target.ways[way]).rows == len(rows)
            found = target.rows(f"select {read} from landed order by at")
            assert len(found) == len(rows)
            for sent, arrived in zip(rows, found, strict=True):
                for (name, kind), value, got in zip(target.kinds.items(), sent, arrived, strict=True):
                    expected = None if value is None else kind.found(value)
                    loaded = target.load.get(name, lambda it: it)(got)
                    assert same(expected, loaded), f"{way}, column {name}: sent {expected!r}, and found {loaded!r}"
    finally:
        spark.conf.set("spark.sql.session.timeZone", zone or "UTC")
        spark.conf.unset("spark.sql.timeType.enabled")
