"""What write_table() has written, Spark's own JDBC reader reads as it was sent: random schemas, rows and time zones.

The seed is printed. TXPOOL_JDBC_ROUNDS=100 has more schemas than the few of every run, and TXPOOL_JDBC_SEED repeats
one. The reader needs PostgreSQL's JDBC jar: Debian's libpostgresql-jdbc-java, or the path in POSTGRESQL_JAR.
"""

from __future__ import annotations

import json
import os
import random
import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psycopg

from txpool.datasource import DataSource
from txpool.spark import write_table
from txpool.tm.manager import configure

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


ROUNDS = int(os.environ.get("TXPOOL_JDBC_ROUNDS", "2"))
SEED = os.environ.get("TXPOOL_JDBC_SEED") or secrets.token_hex(4)
_ROWS = 60
_WIDE = 120

_ZONES = (
    "UTC",
    "America/New_York",
    "Asia/Kolkata",
    "Europe/Berlin",
    "Australia/Lord_Howe",
    "America/St_Johns",
    "Pacific/Apia",
    "Africa/Monrovia",
)
#: Clocks that one of the zones shows twice, or never, or by the mean time of a place; and those of the calendars' gap.
_CLOCKS = (
    "2026-03-08 02:30:00",
    "2026-11-01 01:30:00.000001",
    "2026-03-29 02:00:00",
    "2026-10-25 02:59:59.999999",
    "2026-04-05 01:45:00",
    "2011-12-30 12:00:00",
    "1972-01-07 00:44:30",
    "1969-12-31 23:59:59.999999",
    "1883-11-18 12:03:57",
    "1867-10-18 00:00:00",
    "1582-10-04 23:59:59",
    "1582-10-10 12:00:00",
    "1582-10-15 00:00:00",
    "1500-02-28 12:00:00",
    "0001-01-03 00:00:00",
)
_WORDS = ("", " ", "\\N", "null", 'a"b', "{a,b}", "a,b\tc\nd\re", "ü€😀", "\\.", "x" * 3000)
_MICROSECONDS = "(extract(epoch from {}) * 1000000)::bigint::text"
# Where arithmetic with times would go by the clock of the session's zone.
_LASTED = """cast(cast(extract(day from {0}) * 86400000000 + extract(hour from {0}) * 3600000000
    + extract(minute from {0}) * 60000000L + extract(second from {0}) * 1000000 as bigint) as string)"""
#: The same of every element of an array.
_MANY = """case when {{0}} is not null then coalesce(
    (select json_agg({} order by place) from unnest({{0}}) with ordinality each(e, place)), '[]')::text end"""


@dataclass(frozen=True)
class WrittenType:
    """A type of PostgreSQL's, and how a value of Spark's comes to be one."""

    declared: str
    #: A value, as text.
    make: Callable[[random.Random], str]
    #: What Spark makes of the text.
    cast: str
    #: The text of a value in Spark, with nothing lost: equal values have equal ones.
    shown: str = "cast({} as string)"
    #: The same in PostgreSQL, for what the reader may not be trusted with.
    asked: str | None = None
    #: The same as `shown` of what the reader makes of the column, where that is another type; empty where it is no use.
    read: str | None = None
    #: A table that write_table() creates has another type.
    elsewhere: bool = False


def _digits(r: random.Random) -> WrittenType:
    precision = r.randint(1, 38)
    scale = r.randint(0, precision)

    def make(r: random.Random) -> str:
        largest = 10 ** r.choice([1, precision // 2, precision]) - 1
        number = r.choice([0, largest, -largest, r.randint(-largest, largest)])
        text = str(abs(number)).zfill(scale + 1)
        return ("-" if number < 0 else "") + text[: len(text) - scale] + ("." + text[-scale:] if scale else "")

    return WrittenType(f"numeric({precision},{scale})", make, f"cast({{}} as decimal({precision},{scale}))")


def _clock(r: random.Random) -> str:
    if r.random() < 0.5:
        return r.choice(_CLOCKS)
    first, last = r.choice([(datetime(1, 1, 3), datetime(1900, 1, 1)), (datetime(1900, 1, 1), datetime(9999, 12, 29))])
    return str(
        first + timedelta(seconds=r.randint(0, int((last - first).total_seconds())), microseconds=r.randint(0, 9))
    )


def _whole(bits: int) -> Callable[[random.Random], str]:
    most = 2 ** (bits - 1) - 1
    return lambda r: str(r.choice([-most - 1, most, 0, r.randint(-most, most)]))


def _text(r: random.Random) -> str:
    return r.choice([*_WORDS, "".join(map(chr, r.sample(range(32, 0x3000), 12)))])


def _plain(declared: str, cast: str, make: Callable[[random.Random], str]) -> Callable[[random.Random], WrittenType]:
    kind = WrittenType(declared, make, f"cast({{}} as {cast})")
    return lambda r: kind


_SINGLES: tuple[Callable[[random.Random], WrittenType], ...] = (
    _plain("boolean", "boolean", lambda r: r.choice(["true", "false"])),
    _plain("smallint", "tinyint", _whole(8)),
    _plain("smallint", "smallint", _whole(16)),
    _plain("integer", "int", _whole(32)),
    _plain("bigint", "bigint", _whole(64)),
    _plain("real", "float", lambda r: r.choice(["NaN", "-0.0", "1e-45", "Infinity", str(r.randint(0, 2**24) / 2**10)])),
    _plain("double precision", "double", lambda r: r.choice(["NaN", "-0.0", "5e-324", str(r.gauss(0, 1e100))])),
    _plain("text", "string", _text),
    _digits,
    _digits,
    lambda r: WrittenType("bytea", lambda r: r.randbytes(r.choice([0, 1, 900])).hex(), "unhex({})", "hex({})"),
    lambda r: WrittenType(
        "date",
        lambda r: _clock(r)[:10],
        "cast({} as date)",
        "cast(unix_date({}) as string)",
        "({} - date '1970-1-1')::text",
    ),
    lambda r: WrittenType(
        "timestamptz", _clock, "cast({} as timestamp)", "cast(unix_micros({}) as string)", _MICROSECONDS
    ),
    lambda r: WrittenType("timestamp", _clock, "cast({} as timestamp_ntz)", asked="{}::text"),
)
_SCALARS = (
    *_SINGLES,
    _plain("time", "time", lambda r: r.choice(["00:00:00", "23:59:59.999999", _clock(r)[11:]])),
    # The reader has strings for intervals, in words of its driver's.
    lambda r: WrittenType(
        "interval",
        lambda r: f"{r.choice('+-')}{r.randint(0, 10**10)}.{r.randint(0, 999_999):06}",
        "make_dt_interval(0, 0, 0, cast({} as decimal(18, 6)))",
        _LASTED,
        _MICROSECONDS,
        read="",
    ),
    lambda r: WrittenType(
        "jsonb",
        _document,
        "from_json({}, 'a bigint, b array<string>, c map<string, double>')",
        "to_json({})",
        read="{}",
    ),
    lambda r: WrittenType(r.choice(["json", "jsonb"]), _document, "{}", "{}", elsewhere=True),
    lambda r: WrittenType("varchar(40)", lambda r: _text(r)[:40], "{}", "{}", elsewhere=True),
    lambda r: WrittenType("uuid", lambda r: str(_uuid(r)), "{}", "{}", elsewhere=True),
)


def _document(r: random.Random) -> str:
    return json.dumps({"a": r.randint(-9, 2**60), "b": [_text(r), None], "c": {_text(r): r.random(), "null": None}})


def _uuid(r: random.Random) -> str:
    digits = r.randbytes(16).hex()
    return "-".join((digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:]))


def _array(r: random.Random) -> WrittenType:
    one = r.choice(_SINGLES)(r)

    def make(r: random.Random) -> str:
        return json.dumps([None if r.random() < 0.2 else one.make(r) for _ in range(r.choice([0, 1, 5]))])

    return replace(
        one,
        declared=f"{one.declared}[]",
        make=make,
        cast=f"transform(from_json({{}}, 'array<string>'), e -> {one.cast.format('e')})",
        shown=f"to_json(transform({{}}, e -> {one.shown.format('e')}))",
        asked=None if one.asked is None else _MANY.format(one.asked.format("e")),
    )


@dataclass(frozen=True)
class _Place:
    """Where the rows go: the folder of the datasource's file, and how others get at its database."""

    folder: str
    url: str
    dsn: str
    user: str

    def read(self, spark: SparkSession) -> DataFrame:
        secret = (Path(self.folder) / "secret").read_text()
        reader = spark.read.option("preferTimestampNTZ", "true").option("driver", "org.postgresql.Driver")
        return reader.jdbc(self.url, "landed", properties={"user": self.user, "password": secret})

    def rows(self, query: Any) -> list[tuple[Any, ...]]:
        with psycopg.connect(self.dsn, autocommit=True) as connection:
            return connection.execute(query).fetchall()

    def execute(self, statement: Any) -> None:
        with psycopg.connect(self.dsn, autocommit=True) as connection:
            connection.execute(statement)


def rounds(seed: str, count: str, *place: str) -> None:
    """In a process of its own: so many schemas, each written and read."""
    from pyspark.sql import SparkSession

    there = _Place(*place)
    os.chdir(there.folder)
    spark = SparkSession.builder.getOrCreate()
    configure(node_name="driver", log_url="sqlite:///txlog", log_create=True)
    source = DataSource.from_properties("one.properties")
    values = 0
    for number in range(int(count)):
        values += _round(spark, source, there, random.Random(f"{seed} {number}"), number)
    print(f"{values} values")
    spark.stop()


def _round(spark: SparkSession, source: DataSource, there: _Place, r: random.Random, number: int) -> int:
    zone, machine, way = r.choice(_ZONES), r.choice(_ZONES), ("direct", "staged", "created")[number % 3]
    width = _WIDE if number % 4 == 0 else r.randint(3, 25)
    makers = r.choices([*_SCALARS, _array, _array, _array, _array], k=width)
    kinds = {f"c{at}": make(r) for at, make in enumerate(makers)}
    kinds = {name: kind for name, kind in kinds.items() if way != "created" or not kind.elsewhere}
    print(
        f"round {number}: {way}, session in {zone}, JVM in {machine}, {[kind.declared for kind in kinds.values()]}",
        flush=True,
    )
    spark.conf.set("spark.sql.session.timeZone", zone)
    _set_machine(spark, machine)
    holes = r.choice([0, 0.1, 0.6])
    texts = [
        (at, *(None if r.random() < holes else kind.make(r) for kind in kinds.values()))
        for at in range(r.choice([1, _ROWS]))
    ]
    plain = spark.createDataFrame(texts, ", ".join(["at int", *(f"{name} string" for name in kinds)]))
    sent = plain.selectExpr("at", *(f"{kind.cast.format(name)} as {name}" for name, kind in kinds.items()))
    there.execute("drop table if exists landed")
    if way == "created":
        report = write_table(sent, source, "landed", "error")
    else:
        columns = ", ".join(f"{name} {kind.declared}" for name, kind in kinds.items())
        there.execute(f"create table landed (at int, {columns})")
        report = write_table(sent, source, "landed", strategy=way)  # type: ignore[arg-type]
    assert report.strategy == ("direct" if way == "direct" else "staged")
    declared = dict(
        there.rows(
            "select attname::text, format_type(atttypid, atttypmod) from pg_attribute "
            "where attrelid = 'landed'::regclass and attnum > 0"
        )
    )
    expected = _shown(sent, kinds)
    readable = {
        name: kind if kind.read is None else replace(kind, shown=kind.read)
        for name, kind in kinds.items()
        if kind.read != ""
    }
    # Elsewhere the reader's driver is some minutes off before 1900, and by an hour for clocks that are never shown.
    _set_machine(spark, "UTC")
    read = _shown(there.read(spark).select("at", *readable), readable)
    asked = {name: kind for name, kind in kinds.items() if kind.asked is not None}
    selected = ", ".join(["at", *(str(kind.asked).format(name) for name, kind in asked.items())])
    told = [
        dict(zip(("at", *asked), row, strict=True)) for row in there.rows(f"select {selected} from landed order by at")
    ]
    assert len(expected) == len(read) == len(told) == len(texts)
    for name, kind in kinds.items():
        assert _same_type(declared[name], kind.declared), (name, declared[name])
        document = kind.declared.startswith("json") or kind.declared.endswith("[]")
        for here, by_reader, by_database in zip(expected, read, told, strict=True):
            value = _loaded(here[name], document)
            if name in asked:
                assert _loaded(by_database[name], document) == value, _told(name, kind, value, by_database[name])
            if name in readable and not _within_the_gap(kind.declared, value):
                assert _loaded(by_reader[name], document) == value, _told(name, kind, value, by_reader[name])
    return len(texts) * len(kinds)


def _set_machine(spark: SparkSession, zone: str) -> None:
    zones: Any = spark._jvm.java.util.TimeZone  # type: ignore[union-attr]
    zones.setDefault(zones.getTimeZone(zone))


def _shown(df: DataFrame, kinds: Mapping[str, WrittenType]) -> list[dict[str, Any]]:
    shown = df.selectExpr("at", *(f"{kind.shown.format(name)} as {name}" for name, kind in kinds.items()))
    return [row.asDict() for row in sorted(shown.collect(), key=lambda row: row["at"])]


def _same_type(there: str, declared: str) -> bool:
    names = {"character varying": "varchar", " without time zone": "", "timestamp with time zone": "timestamptz"}
    for long, short in names.items():
        there = there.replace(long, short)
    return there == declared


def _told(name: str, kind: WrittenType, sent: Any, found: Any) -> str:
    return f"column {name}, {kind.declared}: sent {sent!r}, and found {found!r}"


def _loaded(text: str | None, document: bool) -> Any:
    return json.loads(text) if document and text is not None else text


def _within_the_gap(declared: str, value: Any) -> bool:
    """Whether a date is none of the calendar that JDBC's classes have: 1582-10-04 was the day before 1582-10-15.

    The reader moves such a date by ten days, wherever it comes from: 1582-10-10 is read as 1582-10-20.
    """
    if isinstance(value, list):
        return any(_within_the_gap(declared, element) for element in value)
    if value is None or not declared.startswith(("date", "timestamp")):
        return False
    if declared.startswith("date"):
        return -141_437 <= int(value) < -141_427
    if declared.startswith("timestamptz"):
        return -12_220_156_800 <= int(value) // 10**6 < -12_219_292_800
    return "1582-10-05" <= str(value) < "1582-10-15"
