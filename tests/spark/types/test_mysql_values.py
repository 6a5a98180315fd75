"""What write_table() makes of values in MariaDB and MySQL: the same, or an error."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.conftest import EVERY_PAIR
from tests.spark import mysql
from tests.spark.mysql import describe
from tests.support.mysql import MySQLServer
from txpool.errors import ProgrammingError
from txpool.spark import write_table

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.usefixtures("sources", "server")]


@pytest.fixture(params=["mariadb", "mysql8"])
def server(request: pytest.FixtureRequest, sources: Path) -> MySQLServer:
    """Each of the two servers, and a file that describes its database one."""
    found: MySQLServer = request.getfixturevalue(request.param)
    found.empty()
    describe(sources, found)
    return found


@pytest.fixture
def ask(server: MySQLServer) -> Callable[..., list[tuple[Any, ...]]]:
    return lambda *statements: server.execute(*statements, database="one")


@pytest.fixture
def left(server: MySQLServer) -> Callable[[], list[str]]:
    return lambda: mysql.left(server)


_VALUES = {
    "yes boolean": True,
    "tiny tinyint": -128,
    "small smallint": -(2**15),
    "whole int": 2**31 - 1,
    "big bigint": -(2**63),
    "narrow float": 0.1,
    "wide double": -1.7976931348623157e308,
    "third double": 1 / 3,
    "least double": 5e-324,
    "many decimal(38,10)": Decimal("1E-10"),
    "most decimal(38,0)": Decimal("-" + "9" * 38),
    "word string": 'naïve 𝄞 it\'s a \\ "quote"\0\n\x1a %s',
    "trailing string": "x  ",
    "raw binary": b"\0\xff'\\",
    "day date": dt.date(1, 1, 1),
    "last date": dt.date(9999, 12, 31),
    "clock time(6)": dt.time(23, 59, 59, 1),
    "moment timestamp": dt.datetime(2026, 10, 25, 1, 30, 0, 1, tzinfo=dt.UTC),
    "wall timestamp_ntz": dt.datetime(1582, 10, 4, 1, 2, 3, 4),
    "list array<int>": "[1,null]",
    "both struct<a: int, b: string>": '{"a":1,"b":"x"}',
}


def test_values_come_out_as_they_were(spark: SparkSession, server: MySQLServer, ask: Any) -> None:
    names = [declared.split()[0] for declared in _VALUES]
    given = {**dict(zip(names, _VALUES.values(), strict=True)), "list": [1, None], "both": (1, "x")}
    df = spark.createDataFrame([tuple(given.values()), (None,) * len(names)], ", ".join(_VALUES))
    write_table(df, "shop.properties", "made", create=True)
    server.execute("set global time_zone = '+05:00'")  # no session's zone changes an instant
    try:
        write_table(df, "shop.properties", "made")
        with server.connect("one", init_command="set time_zone = '+00:00'") as connection:
            cursor = connection.cursor()
            # A float has more digits than are shown: cast it.
            shown = [f"`{name}`" if name != "narrow" else "cast(narrow as decimal(20,10))" for name in names]
            cursor.execute(f"select {', '.join(shown)} from made order by yes desc")
            found = cursor.fetchall()
    finally:
        server.execute("set global time_zone = 'SYSTEM'")
    assert found[2:] == ((None,) * len(names),) * 2
    expected = [*_VALUES.values()]
    for row in found[:2]:
        seen = dict(zip(names, row, strict=True))
        seen["yes"] = bool(seen["yes"])
        seen["clock"] = (dt.datetime.min + seen["clock"]).time()
        seen["moment"] = seen["moment"].replace(tzinfo=dt.UTC)
        seen["narrow"] = round(float(seen["narrow"]), 7)
        seen["list"], seen["both"] = (seen[each].replace(" ", "") for each in ("list", "both"))
        assert [*seen.values()] == expected


@pytest.mark.parametrize("kept", ["decimal(15,2)", "decimal(18,0)", "string"])
def test_decimals_within_json_are_exact_or_refused(
    spark: SparkSession, server: MySQLServer, ask: Any, kept: str
) -> None:
    """MySQL's JSON makes a double of a number with a point; MariaDB's is a text."""
    exact = "1234567890123456789.01"
    df = spark.range(1).selectExpr(f"named_struct('a', array(cast('{exact}' as decimal(38,2)))) as x")
    for create in (True, False):
        if server.is_mariadb:
            write_table(df, "shop.properties", "nested", create=create)
        else:
            with pytest.raises(ProgrammingError, match="MySQL's JSON rounds decimals of more than 15 digits"):
                write_table(df, "shop.properties", "nested", create=create)
            ask("create table if not exists nested (x json)")
    assert {exact in text for (text,) in ask("select x from nested")} == ({True} if server.is_mariadb else set())
    few = spark.range(1).selectExpr(f"map('a', cast('1234567890123.25' as {kept})) as x")
    write_table(few, "shop.properties", "nested")
    assert "12345678901" in ask("select x from nested")[-1][0]


@pytest.mark.parametrize(
    ("column", "declared", "message"),
    [
        ("id as amount", "varchar(9)", r"column amount is bigint, and .*amount is varchar\(9\)"),
        ("id as amount", "double", "column amount is bigint, and .*amount is double"),
        ("'007' as amount", "int", "column amount is string"),
        ("cast(id as double) as amount", "float", "column amount is double"),
        ("cast(id as double) as amount", "double(10,2)", "it rounds: declare it double, without digits"),
        ("cast(id as decimal(16,3)) as amount", "decimal(16,2)", "digits would be lost: round it to 2"),
        ("timestamp_ntz'2026-01-01 00:00:00' as amount", "timestamp null", "column amount is timestamp_ntz"),
        ("current_date() as amount", "datetime", "column amount is date"),
        ("interval '1' day as amount", "text", "column amount is interval day"),
        ("'x' as amount", "point", "column amount is string, and .*amount is point"),
        ("id as amuont", "int", r"column amuont is not in .*: did you mean amount\? No task was started"),
        ("id as other", "int, other int as (amount * 2)", "column other is generated"),
        ("id as other", "int not null, other int", "column amount of .* must have a value"),
    ],
)
def test_what_would_be_changed_is_refused_before_the_job(
    spark: SparkSession, ask: Any, column: str, declared: str, message: str
) -> None:
    ask(f"create table strange (amount {declared})")
    with pytest.raises(ProgrammingError, match=message):
        write_table(spark.range(3).selectExpr(column), "shop.properties", "strange")
    assert ask("select * from strange") == []


@pytest.mark.parametrize(
    ("column", "declared", "message"),
    [
        ("cast(null as timestamp) as x", "timestamp not null default current_timestamp", "column x: .*cannot be null"),
        ("300 as x", "tinyint", "Out of range value"),
        ("-1 as x", "bigint unsigned", "Out of range value"),
        ("'long' as x", "varchar(3)", "Data too long"),
        # Strict mode lets this pass, and only notes it.
        pytest.param(
            "'abc ' as x",
            "varchar(3)",
            r"the server would change a value, and warns: Data truncated .* \(warning 1265\)",
            id="cut",
        ),
        ("'𝄞' as x", "varchar(3) character set latin1", "Incorrect string value"),
        ("timestamp'1969-01-01 00:00:00' as x", "timestamp null", "Incorrect datetime value"),
        ("cast(null as int) as x", "int not null", "cannot be null"),
        ("'{' as x", "json", r"invalid JSON|CONSTRAINT"),
    ],
)
def test_a_value_that_would_be_changed_fails_its_task(
    spark: SparkSession, ask: Any, left: Any, column: str, declared: str, message: str
) -> None:
    assert_refused_in_the_task(spark, ask, left, column, declared, message)


def assert_refused_in_the_task(
    spark: SparkSession, ask: Any, left: Any, column: str, declared: str, message: str
) -> None:
    """Whatever mode the server has: it would cut off, round and replace values."""
    ask("set global sql_mode = ''")
    try:
        ask(f"create table strange (x {declared})")
        with pytest.raises(Exception, match=message):
            write_table(spark.range(1).selectExpr(column), "shop.properties", "strange")
    finally:
        ask("set global sql_mode = default")
    assert ask("select * from strange") == []
    assert left() == ["strange"]


#: Where txpool itself looks, the same on either server: by default it is seen on one.
_OWN = ["mariadb", "mysql8"] if EVERY_PAIR else ["mariadb"]


@pytest.mark.parametrize("server", _OWN, indirect=True)
@pytest.mark.parametrize(
    ("column", "declared", "message"),
    [
        # The server takes a number for the place of a label, and compares labels by the column's collation.
        ("'no' as x", "enum('yes')", "none of the column's labels, 'yes'"),
        ("'2' as x", "enum('a','b')", "none of the column's labels, 'a', 'b'"),
        ("'0' as x", "enum('a','b')", "none of the column's labels"),
        ("'B' as x", "enum('a','b')", "none of the column's labels"),
        ("'b ' as x", "enum('a','b')", "none of the column's labels"),
        ("'3' as x", "set('a','b')", "none of the column's labels"),
        ("'a,B' as x", "set('a','b')", "none of the column's labels"),
        ("bigint(-1) as x", "bit(64)", "a BIT has no sign"),
        ("'ab ' as x", "char(5)", "CHAR loses spaces at the end"),
        ("binary('ab') as x", "binary(3)", r"column x: .*BINARY\(3\) would pad it with zero bytes"),
        ("double('nan') as x", "double", "column x: .*neither NaN nor an infinity"),
        ("timestamp_ntz'2026-01-01 00:00:00.5' as x", "datetime", "column x: .*the server would round"),
        ("timestamp_ntz'2026-01-01 00:00:00.1234' as x", "datetime(3)", "has 3 digits below a second"),
        ("70 as x", "year", "a YEAR is from 1901"),
    ],
)
def test_a_value_that_the_column_would_take_otherwise_fails_its_task(
    spark: SparkSession, ask: Any, left: Any, column: str, declared: str, message: str
) -> None:
    assert_refused_in_the_task(spark, ask, left, column, declared, message)


def test_values_that_a_column_has_ways_of_its_own_with(spark: SparkSession, ask: Any) -> None:
    ask("create table odd (id int auto_increment primary key, big bigint unsigned, j json, bits bit(4), moved time(0))")
    df = spark.sql(
        "select 0 as id, 18446744073709551615 as big, '[0.1, \"é\"]' as j, 9 as bits, time'12:00:00' as moved"
    )
    write_table(df, "shop.properties", "odd")
    (found,) = ask("select id, big, j, bits + 0, moved from odd")
    assert found == (0, 18446744073709551615, '[0.1, "é"]', 9, dt.timedelta(hours=12))


def test_labels_are_read_as_the_server_writes_them(spark: SparkSession, ask: Any) -> None:
    ask(r"create table labelled (e enum('1','it''s','a\\b''\n','é, x',''), s set('x','it''s','1'), b bit(64))")
    df = spark.createDataFrame(
        [("1", "it's,x", 2**63 - 1), ("it's", "", 0), ("a\\b'\n", "1", 1), ("é, x", None, None), ("", "x", 2)],
        "e string, s string, b bigint",
    )
    write_table(df, "shop.properties", "labelled")
    assert sorted(ask("select e, s, b + 0 from labelled"), key=str) == sorted(
        [("1", "x,it's", 2**63 - 1), ("it's", "", 0), ("a\\b'\n", "1", 1), ("é, x", None, None), ("", "x", 2)], key=str
    )
