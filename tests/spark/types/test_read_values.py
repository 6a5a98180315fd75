"""What is read out of PostgreSQL is what is in it, whatever its type, value or name; the seed is printed."""

from __future__ import annotations

import json
import random
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psycopg
import pytest

from tests.spark.jdbc import JAR, jdbc
from tests.spark.reads import parts, plan_of, reading, rows
from txpool.errors import DataError
from txpool.spark.source.reading import Reader

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tests.conftest import Databases, Require

pytestmark = [pytest.mark.spark, pytest.mark.usefixtures("sources")]

_ROWS = 200
_WORDS = ("", " ", "\\N", "null", 'a"b', "{a,b}", "a,b\tc\nd\re\r\n", "ü€😀", "\\.", '"', "\n", "x" * 5000)
_MICROSECONDS = "(extract(epoch from {}) * 1000000)::bigint"


@dataclass(frozen=True)
class ReadType:
    """A type of PostgreSQL's: how a value of it is made, and what of a value is compared: there, and in Spark."""

    name: str
    make: Callable[[random.Random], Any]
    asked: str = "{}"
    shown: str = "{}"


def whole(bits: int) -> Callable[[random.Random], int]:
    return lambda r: r.choice([-(2 ** (bits - 1)), 2 ** (bits - 1) - 1, 0, r.randint(-(2**15), 2**15 - 1)])


def digits(precision: int, scale: int) -> Callable[[random.Random], str]:
    def make(r: random.Random) -> str:
        largest = 10 ** r.choice([1, precision // 2, precision]) - 1
        return f"{r.choice([0, largest, -largest, r.randint(-largest, largest)])}e{-scale}"

    return make


def moment(r: random.Random) -> datetime:
    first, last = datetime(1, 1, 2), datetime(9999, 12, 30)
    seconds = r.choice([r.randint(0, int((last - first).total_seconds())), r.randint(6 * 10**10, 7 * 10**10)])
    return first + timedelta(seconds=seconds, microseconds=r.choice([0, 500_000, r.randint(0, 999_999)]))


def text(r: random.Random) -> str:
    return r.choice([*_WORDS, "".join(map(chr, r.sample(range(32, 0x3000), 12)))])


def single(r: random.Random) -> str:
    return r.choice(["NaN", "-Infinity", "1e-45", "3.4028235e38", str(r.gauss(0, 100))])


def double(r: random.Random) -> str:
    return r.choice(["NaN", "Infinity", "-0", "5e-324", repr(r.gauss(0, 1e100))])


def several(kind: ReadType) -> Callable[[random.Random], Any]:
    return lambda r: [None if r.random() < 0.2 else kind.make(r) for _ in range(r.choice([0, 1, 5]))]


def instants(r: random.Random) -> str:
    return f"{moment(r)}+00"


def lasted(r: random.Random) -> str:
    return f"{r.randint(-9999, 9999)} days {r.choice([0, r.randint(-(10**15), 10**15)])} microseconds"


_INTEGER = ReadType("integer", whole(32))
_EACH = "case when {} is not null then array(select " + _MICROSECONDS.format("e") + " from unnest({}) e) end"
KINDS: dict[str, ReadType] = {
    "yes": ReadType("boolean", lambda r: r.random() < 0.5),
    "short": ReadType("smallint", whole(16)),
    "normal": _INTEGER,
    "large": ReadType("bigint", whole(64)),
    "single": ReadType("real", single, "{}::float8", "cast({} as double)"),
    "double": ReadType("double precision", double),
    "price": ReadType("numeric(12, 3)", digits(12, 3)),
    "widest": ReadType("numeric(38, 17)", digits(38, 17)),
    "free": ReadType("numeric", digits(38, 18)),
    "rounded": ReadType("numeric(5, -2)", digits(6, 0)),
    "small": ReadType("numeric(2, 5)", digits(2, 5)),
    "name": ReadType("text", text),
    "code": ReadType("varchar(20)", lambda r: text(r)[:20]),
    "padded": ReadType("char(7)", lambda r: text(r)[:7]),
    "key": ReadType("uuid", lambda r: str(uuid.UUID(int=r.getrandbits(128))), "{}::text"),
    "doc": ReadType("jsonb", lambda r: json.dumps({"a": r.random(), "b": [text(r)]}), "{}::text"),
    "kept": ReadType("json", lambda r: json.dumps({"a": text(r)}), "{}::text"),
    "raw": ReadType("bytea", lambda r: r.randbytes(r.choice([0, 1, 3000]))),
    "day": ReadType("date", lambda r: moment(r).date()),
    "hour": ReadType("time", lambda r: r.choice(["24:00", str(moment(r).time())]), "{}::text"),
    "clock": ReadType("timestamp", moment),
    "instant": ReadType("timestamptz", instants, _MICROSECONDS, "unix_micros({})"),
    "long": ReadType("interval", lasted),
    "mood": ReadType("mood", lambda r: r.choice(["fine", 'so "so"']), "{}::text"),
    "count": ReadType("positive", lambda r: r.randint(1, 100)),
    "numbers": ReadType("integer[]", several(_INTEGER)),
    "checked": ReadType("positive[]", several(ReadType("", lambda r: r.randint(1, 100))), "{}::int[]"),
    "words": ReadType("text[]", several(ReadType("", text))),
    "fixed": ReadType("char(7)[]", several(ReadType("", lambda r: text(r)[:7]))),
    "doubles": ReadType("double precision[]", several(ReadType("", double))),
    "prices": ReadType("numeric(20, 4)[]", several(ReadType("", digits(20, 4)))),
    "raws": ReadType("bytea[]", several(ReadType("", lambda r: r.randbytes(r.choice([0, 1, 30]))))),
    "days": ReadType("date[]", several(ReadType("", lambda r: moment(r).date()))),
    "moments": ReadType("timestamptz[]", several(ReadType("", instants)), _EACH, "transform({}, e -> unix_micros(e))"),
    "moods": ReadType("moods", several(ReadType("", lambda r: r.choice(["fine", 'so "so"']))), "{}::text[]"),
    "spans": ReadType("interval[]", several(ReadType("", lasted))),
}


@pytest.mark.slow
def test_what_is_read_is_what_is_there(spark: SparkSession, databases: Databases) -> None:
    seed = random.randrange(10**9)
    print(f"seed {seed}")
    r = random.Random(seed)
    databases.execute(
        "one",
        """
        create type mood as enum ('fine', 'so "so"'); create domain positive as int check (value > 0);
        create domain moods as mood[]; alter database one set datestyle = 'SQL, DMY';
        alter database one set timezone = 'America/St_Johns'; alter database one set extra_float_digits = -2;
        alter database one set intervalstyle = 'iso_8601'; alter database one set bytea_output = 'escape';
        alter database one set standard_conforming_strings = off
        """,
    )
    columns = ", ".join(f"{name} {kind.name}" for name, kind in KINDS.items())
    values = ", ".join(f"%s::{kind.name}" for kind in KINDS.values())
    plain = "-c datestyle=ISO -c intervalstyle=postgres -c extra_float_digits=1 -c bytea_output=hex"
    with psycopg.connect(databases.dsn("one"), options=plain) as connection:
        connection.execute(f"create table sent (at int, {columns})")  # type: ignore[arg-type]
        for at in range(_ROWS):
            row = [None if r.random() < 0.15 else kind.make(r) for kind in KINDS.values()]
            connection.execute(f"insert into sent values ({at}, {values})", row)  # type: ignore[arg-type]
        asked = ", ".join(kind.asked.replace("{}", name) for name, kind in KINDS.items())
        expected = connection.execute(f"select {asked} from sent order by at").fetchall()  # type: ignore[arg-type]
    df = reading(spark, dbtable="sent", partitionColumn="at", numPartitions="3").load()
    assert df.rdd.getNumPartitions() == 3
    found = df.orderBy("at").selectExpr(*(kind.shown.replace("{}", name) for name, kind in KINDS.items())).collect()
    assert len(found) == _ROWS
    for at, (wanted, got) in enumerate(zip(expected, found, strict=True)):
        for name, value, arrived in zip(KINDS, wanted, got, strict=True):
            assert same(value, arrived), f"row {at}, column {name}: {value!r} has arrived as {arrived!r}"


def same(value: Any, arrived: Any) -> bool:
    """Equal; NaN is itself, and a zero has its sign."""
    return repr(value) == repr(arrived) if "float" in repr(type(value)) else comparable(value) == comparable(arrived)


def comparable(value: Any) -> Any:
    if isinstance(value, list):
        return [comparable(each) for each in value]
    return repr(value) if isinstance(value, float) else bytes(value) if isinstance(value, bytearray) else value


def test_an_instant_is_shown_by_the_sessions_clock(spark: SparkSession, databases: Databases) -> None:
    databases.execute(
        "one",
        "create table seen as select timestamptz '1890-01-01 00:00Z' + n * interval '97 days 7 hours 11 minutes' as at "
        "from generate_series(0, 600) n",
    )
    df = reading(spark, dbtable="seen").load()
    before = spark.conf.get("spark.sql.session.timeZone")
    for zone in ("UTC", "Europe/Berlin", "America/New_York"):
        spark.conf.set("spark.sql.session.timeZone", zone)
        shown = df.selectExpr("date_format(at, 'yyyy-MM-dd HH:mm:ss') as at").orderBy("at")
        query = "select to_char(at at time zone %s, 'YYYY-MM-DD HH24:MI:SS') as at from seen order by 1"
        assert [tuple(row) for row in shown.collect()] == databases.rows("one", query, [zone]), zone
    spark.conf.set("spark.sql.session.timeZone", before)


def test_as_sparks_own_jdbc_reader_has_it(spark: SparkSession, databases: Databases, require: Require) -> None:
    require(Path(JAR).exists(), f"PostgreSQL's JDBC driver: {JAR}")
    databases.execute(
        "one",
        """
        create table sent as select n::bigint as id, n % 2 = 0 as yes, n::smallint as short, n * 0.37::float8 as double,
            (n * 0.1)::real as single, (n * 1.5)::numeric(12, 3) as price, n::numeric / 8 as free, 'n-' || n as name,
            'ab'::char(4) as padded, md5(n::text)::uuid as key, json_build_object('n', n) as doc,
            decode(md5(n::text), 'hex') as raw, date '1960-01-01' + n * 97 as day, array[n, null] as numbers,
            array['a"b', n::text] as words, timestamp '2001-01-01 10:00' + n * interval '1000003 us' as clock,
            timestamptz '2001-01-01 10:00Z' + n * interval '1000003 us' as instant
        from generate_series(0, 999) n;
        insert into sent (id) values (1000)
        """,
    )
    spark.sql(f"add jar {JAR}")
    options = jdbc(databases.server) | {"dbtable": "sent", "preferTimestampNTZ": "true"}
    theirs = spark.read.format("jdbc").options(**options).load()
    ours = reading(spark, dbtable="sent", partitionColumn="id", numPartitions="2").load()
    assert ours.dtypes == theirs.dtypes
    assert ours.orderBy("id").collect() == theirs.orderBy("id").collect()


@pytest.mark.parametrize(
    ("value", "why"),
    [
        ("'infinity'::date", "'infinity'"),
        ("'0044-03-15 BC'::date", "0044-03-15 BC"),
        ("'10000-01-01'::timestamp", "10000-01-01"),
        ("'-infinity'::timestamptz", "'-infinity'"),
        ("'NaN'::numeric", "NaN"),
        ("100000000000000000000::numeric", "precision"),
        ("0.1234567890123456789::numeric", "data loss"),
        ("'1 mon'::interval", "1 mon"),
        ("array[[1, 2], [3, 4]]", "{{1,2},{3,4}}"),
        ("array['infinity'::date]", "'infinity'"),
        ("array[100000000000000000000::numeric]", "precision"),
    ],
)
def test_a_value_that_spark_has_not_is_an_error_and_names_its_column(value: str, why: str) -> None:
    with pytest.raises(DataError) as caught:
        rows(query=f"select 1 as id, null::int[] as two, {value} as it union all select 2, null, null")
    assert "column it: " in str(caught.value)
    assert why in str(caught.value)
    assert "Cast the column" in str(caught.value)


def test_what_nobody_expects_of_a_text() -> None:
    values = " union all ".join(f"select {n} as n, {psycopg.sql.quote(word)} as word" for n, word in enumerate(_WORDS))
    expected = [*((word,) for word in _WORDS), (None,)]
    query = f"select word from ({values} union all select 99, null order by n) w"
    assert rows(query=query) == expected  # in a column of its own, where an empty line is a value
    assert rows(query=f"select word as a, word as b from ({query}) w;") == [(word, word) for (word,) in expected]


def test_rows_come_in_batches_however_wide_one_is() -> None:
    plan = plan_of(
        query="select n as id, repeat('ü', case n when 5 then 12000000 else 100000 end) as it "
        "from generate_series(1, 100) n"
    )
    (partition,) = Reader(plan, plan.schema).partitions()
    batches = [*Reader(plan, plan.schema).read(partition)]
    assert len(batches) > 3
    found = [row for batch in batches for row in batch.to_pylist()]
    assert [(row["id"], len(row["it"])) for row in found] == [
        (n, 12_000_000 if n == 5 else 100_000) for n in range(1, 101)
    ]


def test_any_name_is_a_name(databases: Databases) -> None:
    databases.execute(
        "one", """create schema "O d"; create table "O d"."T ""{0}"" %s" ("c ""{1}"" %d" int, "e" int[])"""
    )
    databases.execute("one", """insert into "O d"."T ""{0}"" %s" values (1, '{2,3}'), (null, null)""")
    options = {"partitionColumn": 'c "{1}" %d', "numPartitions": "2", "lowerBound": "0", "upperBound": "2"}
    plan = plan_of(dbtable='"O d"."T ""{0}"" %s"', **options)
    assert plan.schema.names == ['c "{1}" %d', "e"]
    assert parts(plan) == [[(None, None)], [(1, [2, 3])]]
    assert rows(dbtable="(select 7 as n) as t") == [(7,)]
