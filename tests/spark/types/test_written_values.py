"""What arrives in the table is equal to what was in the DataFrame, whatever its type; the seed is printed."""

from __future__ import annotations

import json
import random
import uuid
from collections.abc import Callable, Iterator
from datetime import UTC, date, datetime, timedelta
from decimal import Context, Decimal
from typing import TYPE_CHECKING, Any

import pytest

from txpool.spark import write_table

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tests.conftest import Databases

pytestmark = [pytest.mark.spark, pytest.mark.usefixtures("sources")]

_ROWS = 400
_EXACT = Context(prec=60)
_WORDS = ("", " ", "\\N", "null", 'a"b', "a,b\tc\nd\re", "ü€😀", "\\.", "x" * 5000)

#: By column: its type in Spark, its type in PostgreSQL, and how a value is made.
Column = tuple[str, str, Callable[[random.Random], Any]]


def digits(precision: int, scale: int) -> Callable[[random.Random], Decimal]:
    def make(r: random.Random) -> Decimal:
        largest = 10 ** r.choice([1, precision // 2, precision]) - 1
        return Decimal(r.choice([0, largest, -largest, r.randint(-largest, largest)])).scaleb(-scale, _EXACT)

    return make


def whole(bits: int) -> Callable[[random.Random], int]:
    return lambda r: r.choice(
        [-(2 ** (bits - 1)), 2 ** (bits - 1) - 1, 0, r.randint(-(2**20), 2**20) % 2 ** (bits - 1)]
    )


def moment(r: random.Random) -> datetime:
    first, last = datetime(1, 1, 2), datetime(9999, 12, 30)
    seconds = r.choice([r.randint(0, int((last - first).total_seconds())), r.randint(6 * 10**10, 7 * 10**10)])
    return first + timedelta(seconds=seconds, microseconds=r.randint(0, 999_999))


def several(make: Callable[[random.Random], Any]) -> Callable[[random.Random], list[Any]]:
    return lambda r: [None if r.random() < 0.2 else make(r) for _ in range(r.choice([0, 1, 5]))]


def text(r: random.Random) -> str:
    return r.choice([*_WORDS, "".join(map(chr, r.sample(range(32, 0x3000), 12)))])


COLUMNS: dict[str, Column] = {
    "yes": ("boolean", "boolean", lambda r: r.random() < 0.5),
    "tiny": ("tinyint", "smallint", whole(8)),
    "short": ("smallint", "smallint", whole(16)),
    "normal": ("int", "integer", whole(32)),
    "large": ("bigint", "bigint", whole(64)),
    "wider": ("int", "bigint", whole(32)),
    "counted": ("bigint", "numeric", whole(64)),
    "single": ("float", "real", lambda r: r.choice([0.5, -1.25, 2.0**127, float("inf"), r.randint(0, 2**24) / 2**10])),
    "double": ("double", "double precision", lambda r: r.choice([r.gauss(0, 1e100), -0.0, 5e-324, float("-inf")])),
    "price": ("decimal(10, 2)", "numeric(12, 3)", digits(10, 2)),
    "eighteen": ("decimal(18, 18)", "numeric", digits(18, 18)),
    "nineteen": ("decimal(19, 0)", "numeric", digits(19, 0)),
    "widest": ("decimal(38, 17)", "numeric(38, 17)", digits(38, 17)),
    "name": ("string", "text", text),
    "code": ("string", "varchar(20)", lambda r: text(r)[:20]),
    "raw": ("binary", "bytea", lambda r: bytearray(r.randbytes(r.choice([0, 1, 3000])))),
    "day": ("date", "date", lambda r: moment(r).date()),
    "clock": ("timestamp_ntz", "timestamp", moment),
    "instant": ("timestamp", "timestamptz", moment),
    "lasted": ("interval day to second", "interval", lambda r: timedelta(microseconds=r.randint(-(10**15), 10**15))),
    "key": ("string", "uuid", lambda r: str(uuid.UUID(int=r.getrandbits(128)))),
    "doc": ("string", "jsonb", lambda r: json.dumps({"a": r.random(), "b": [text(r)]})),
    "kept": ("string", "json", lambda r: json.dumps({"a": text(r)})),
    "tree": ("struct<a: int, b: array<string>>", "jsonb", lambda r: {"a": r.randint(0, 9), "b": [r.choice("xyz")]}),
    "numbers": ("array<bigint>", "bigint[]", several(whole(64))),
    "words": ("array<string>", "text[]", several(text)),
    "prices": ("array<decimal(20, 4)>", "numeric[]", several(digits(20, 4))),
    "clocks": ("array<timestamp_ntz>", "timestamp[]", several(moment)),
    "mood": ("string", "mood", lambda r: r.choice(["fine", "so so"])),
    "positive": ("int", "positive", lambda r: r.randint(1, 100)),
}


@pytest.fixture(params=["UTC", "Europe/Berlin", "America/New_York"])
def zone(spark: SparkSession, request: pytest.FixtureRequest) -> Iterator[str]:
    """The session's time zone."""
    before = spark.conf.get("spark.sql.session.timeZone")
    spark.conf.set("spark.sql.session.timeZone", request.param)
    yield request.param
    spark.conf.set("spark.sql.session.timeZone", before)


@pytest.mark.parametrize("strategy", ["direct"])
def test_values_arrive_equal(spark: SparkSession, databases: Databases, zone: str, strategy: Any) -> None:
    seed = random.randrange(10**9)
    print(f"seed {seed}")
    r = random.Random(seed)
    sent = [tuple(None if r.random() < 0.15 else make(r) for _, _, make in COLUMNS.values()) for _ in range(_ROWS)]
    names = [*COLUMNS]
    shuffled = r.sample(names, len(names))
    databases.execute(
        "one", "create type mood as enum ('fine', 'so so'); create domain positive as int check (value > 0)"
    )
    declared = ", ".join(f"{name} {COLUMNS[name][1]}" for name in shuffled)
    databases.execute("one", f"create table landed (at int, {declared})")  # type: ignore[arg-type]
    plain = [
        (number, *(_plain(name, value) for name, value in zip(names, row, strict=True)))
        for number, row in enumerate(sent)
    ]
    schema = ", ".join(f"{name} {_plain_type(COLUMNS[name][0])}" for name in names)
    df = spark.createDataFrame(plain, f"at int, {schema}").repartition(3)
    df = df.selectExpr("at", *(_typed(name, COLUMNS[name][0]) for name in names))
    report = write_table(df, "one.properties", "landed", strategy=strategy)
    assert report.rows == _ROWS
    selected = ", ".join(_read(name) for name in names)
    found = databases.rows("one", f"select {selected} from landed order by at")  # type: ignore[arg-type]
    for number, (expected, row) in enumerate(zip(sent, found, strict=True)):
        for name, value, got in zip(names, expected, row, strict=True):
            assert got == _expected(name, value), f"row {number}, column {name}"


# Python's values go to Spark as what no time zone of this process bends, and are given their types there.
def _plain_type(kind: str) -> str:
    return "string" if kind == "timestamp" else kind


def _plain(name: str, value: Any) -> Any:
    if value is None or COLUMNS[name][0] != "timestamp":
        return value
    return value.isoformat() + "+00:00"


def _typed(name: str, kind: str) -> str:
    return f"cast({name} as timestamp) as {name}" if kind == "timestamp" else name


def _read(name: str) -> str:
    kind = COLUMNS[name][1]
    if kind == "real":  # whose shortest form is not the same number in Python
        return f"{name}::float8"
    if kind == "timestamptz":  # beyond what Python has of years, in another zone
        return f"{name} at time zone 'UTC'"
    return f"{name}::text" if kind in ("uuid", "mood") else name


def _expected(name: str, value: Any) -> Any:
    if value is None:
        return None
    if COLUMNS[name][1] in ("json", "jsonb"):
        return json.loads(value) if isinstance(value, str) else value
    return bytes(value) if isinstance(value, bytearray) else value


def test_an_instant_is_the_sessions_clock_where_the_column_has_no_zone(
    spark: SparkSession, databases: Databases, zone: str
) -> None:
    databases.execute("one", "create table landed (clock timestamp, clocks timestamp[])")
    instant = datetime(2026, 7, 1, 12, tzinfo=UTC)
    df = spark.sql("select timestamp'2026-07-01 12:00:00Z' as clock").selectExpr("clock", "array(clock) as clocks")
    write_table(df, "one.properties", "landed")
    (found,) = databases.rows("one", "select clock, clocks[1] from landed")
    shown = {"UTC": 12, "Europe/Berlin": 14, "America/New_York": 8}[zone]
    assert found == (datetime(2026, 7, 1, shown),) * 2
    assert instant.year == 2026
    assert date(2026, 7, 1) == found[0].date()


def test_wide_rows_go_in_slices(spark: SparkSession, databases: Databases) -> None:
    databases.execute("one", "create table landed (id bigint, wide text)")
    df = spark.range(0, 400, numPartitions=1).selectExpr("id", "repeat(cast(id as string), 100000) as wide")
    report = write_table(df, "one.properties", "landed")
    assert report.bytes > 100_000_000
    query = "select count(*), bool_and(wide = repeat(id::text, 100000)) from landed"
    assert databases.rows("one", query) == [(400, True)]
