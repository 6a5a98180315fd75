"""write_table() into Delta tables: the log names the files of one attempt each, and nothing else stays.

What is committed is read by DuckDB over the files that the log names, and by deltalake.
"""

from __future__ import annotations

import datetime
import signal
import subprocess
from collections.abc import Callable, Sequence
from decimal import Decimal
from itertools import zip_longest
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from pyspark.sql.types import StructType

import txpool
from recovery import RecoveryManager
from tests.integration.resources.delta.conftest import committed, transactions
from tests.spark.table.test_lake_lost import SCRIPT
from txpool.spark import write_table

pytestmark = [pytest.mark.spark, pytest.mark.slow]


@pytest.fixture
def tables(sources: Path) -> Path:
    (sources / "tables").mkdir()
    (sources / "tables.properties").write_text("name = tables\ndriver = delta\nfolder = tables\n")
    return sources / "tables"


def create(place: Path, name: str, *columns: tuple[str, pa.DataType], **options: Any) -> None:
    DeltaTable.create(str(place / name), pa.schema(columns), **options)


def left(tables: Path) -> list[str]:
    return [each.name for kind in ("prepared", "staged") for each in (tables / ".txpool" / kind).iterdir()]


def test_append_beside_a_database(spark: Any, tables: Path, databases: Any) -> None:
    databases.execute("two", "create table done (id bigint)")
    create(tables, "orders", ("id", pa.int64()), ("part", pa.int32()), ("more", pa.string()), partition_by=["part"])
    rows = spark.range(100, numPartitions=3).selectExpr("id", "cast(id % 3 as smallint) as part")
    with txpool.transaction():
        report = write_table(rows, "tables.properties", "orders")
        assert (report.strategy, report.partitions, report.rows, report.attempts) == ("direct", 3, 100, 3)
        txpool.lake.write_table(pa.table({"id": [1000]}), "tables.properties", "orders")
        write_table(rows.where("id < 0"), "tables.properties", "orders")
        write_table(rows.select("id"), "two.properties", "done")
        assert committed(tables / "orders", "id") == []
    assert committed(tables / "orders", "id") == [*range(100), 1000]
    assert len(transactions(tables / "orders")) == 1
    found = DeltaTable(str(tables / "orders")).to_pyarrow_table(filters=[("part", "=", 2)])
    assert sorted(found["id"].to_pylist()) == [*range(2, 100, 3)]
    assert databases.rows("two", "select count(*) from done") == [(100,)]
    assert left(tables) == []


def test_what_is_refused_before_any_task(spark: Any, tables: Path) -> None:
    create(tables, "orders", ("id", pa.int32()))
    rows = spark.range(3)
    for options, says in (
        ({"mode": "overwrite"}, "does not overwrite"),
        ({"mode": "upsert", "keys": ["id"]}, "does not upsert"),
        ({"create": True}, "takes no create=True"),
        ({"transaction_id": "load-1"}, "takes no transaction_id"),
        ({"strategy": "staged"}, "use strategy='auto'"),
    ):
        with pytest.raises(txpool.NotSupportedError, match=says):
            write_table(rows, "tables.properties", "orders", **options)
    for given, says in (
        (rows, "id is bigint, and tables.orders.id is int"),
        (rows.selectExpr("cast(id as string) id"), "id is string"),
        (rows.selectExpr("cast(id as int) id", "1 as other"), "other is not in tables.orders"),
    ):
        with pytest.raises(txpool.ProgrammingError, match=says):
            write_table(given, "tables.properties", "orders")
    with pytest.raises(txpool.OperationalError, match="no Delta table missing"):
        write_table(rows, "tables.properties", "missing")
    assert committed(tables / "orders", "id") == []
    assert left(tables) == []


def test_a_constraint_that_a_row_breaks_fails_the_job(spark: Any, tables: Path) -> None:
    create(tables, "orders", ("id", pa.int64()))
    DeltaTable(str(tables / "orders")).alter.add_constraint({"small": "id < 50"})
    with pytest.raises(Exception, match="failed validation check"):
        write_table(spark.range(100, numPartitions=2), "tables.properties", "orders")
    assert committed(tables / "orders", "id") == []
    assert left(tables) == []


MOMENT = datetime.datetime(2026, 3, 8, 7, 30, 0, 1, datetime.UTC)
ROW = (
    *(1, 2, 3, 4, 1.5, 2.5, True, "\U0001f600", b"\0\xff", datetime.date(1, 1, 1), MOMENT),
    *(datetime.datetime(1, 1, 1, 0, 0, 0, 1), Decimal("-1.20"), [1, None], {"a": None}, (1, ["q"]), [(1,), None]),
)
TYPES = (
    "b byte, s short, i int, l long, f float, d double, flag boolean, t string, bin binary, day date, at timestamp, "
    "local timestamp_ntz, money decimal(38,2), list array<int>, map map<string,bigint>, "
    "struct struct<x: bigint, y: array<string>>, structs array<struct<x: bigint>>"
)


def test_each_type_whatever_the_session_time_zone(spark: Any, tables: Path) -> None:
    """Also a null of each."""
    schema = StructType.fromDDL(TYPES)
    from deltalake import Schema

    DeltaTable.create(str(tables / "every"), Schema.from_json(schema.json()))
    zone = spark.conf.get("spark.sql.session.timeZone")
    spark.conf.set("spark.sql.session.timeZone", "America/New_York")
    try:
        write_table(spark.createDataFrame([ROW, (None,) * len(ROW)], schema), "tables.properties", "every")
    finally:
        spark.conf.set("spark.sql.session.timeZone", zone)
    found = DeltaTable(str(tables / "every")).to_pyarrow_table().to_pylist()
    whole, empty = sorted(found, key=lambda row: row["b"] is None)
    assert set(empty.values()) == {None}
    expected = {
        **dict(zip(schema.names, ROW, strict=True)),
        "struct": {"x": 1, "y": ["q"]},
        "structs": [{"x": 1}, None],
    }
    assert {**whole, "map": dict(whole["map"])} == expected


#: By the type of a partition's column: what is hard to keep as the text of a path. Spark 4.1's Delta reads the same.
PARTITIONS: dict[str, Sequence[Any]] = {
    "string": [
        " ",
        "=",
        "a%41",
        "a/b",
        "..",
        "\U0001f600",
        "\n",
        "\0",
        "a:b",
        "null",
        "a\\b",
        "'",
        "\u2028",
        "x" * 200,
    ],
    "tinyint": [-128, 127],
    "smallint": [-32768, 32767],
    "int": [-(2**31), 2**31 - 1],
    "bigint": [-(2**63), 2**63 - 1],
    "boolean": [False, True],
    "date": [datetime.date(1, 1, 1), datetime.date(9999, 12, 31), datetime.date(1582, 10, 10)],
    "timestamp": [
        *(datetime.datetime(1, 1, 2, 0, 0, 0, 1, datetime.UTC), datetime.datetime(9999, 12, 30, tzinfo=datetime.UTC)),
        *(datetime.datetime(2026, 11, 1, hour, 30, tzinfo=datetime.UTC) for hour in (5, 6)),  # one local time
    ],
    "timestamp_ntz": [
        *(datetime.datetime(1, 1, 1, 0, 0, 0, 1), datetime.datetime(9999, 12, 31, 23, 59, 59, 999_999)),
        datetime.datetime(2026, 3, 8, 2, 30),  # in no clock of New York
    ],
}


@pytest.mark.costly
def test_each_type_of_a_partition_keeps_its_values(spark: Any, tables: Path) -> None:
    """Or the table is refused before any task."""
    from deltalake import Schema

    names = {f"p{number}": kind for number, kind in enumerate(PARTITIONS)}
    schema = StructType.fromDDL(", ".join(["n int", *(f"{name} {kind}" for name, kind in names.items())]))
    DeltaTable.create(str(tables / "parts"), Schema.from_json(schema.json()), partition_by=[*names])
    rows = [(number, *values) for number, values in enumerate(zip_longest(*PARTITIONS.values()))]
    zone = spark.conf.get("spark.sql.session.timeZone")
    spark.conf.set("spark.sql.session.timeZone", "America/New_York")
    try:
        write_table(spark.createDataFrame(rows, schema).coalesce(1), "tables.properties", "parts")
    finally:
        spark.conf.set("spark.sql.session.timeZone", zone)
    found = DeltaTable(str(tables / "parts")).to_pyarrow_table().to_pylist()
    assert sorted(tuple(row[name] for name in schema.names) for row in found) == rows
    for kind in ("decimal(10,2)", "float", "double", "binary"):
        name = kind[:5]
        other = StructType.fromDDL(f"n bigint, p {kind}")
        DeltaTable.create(str(tables / name), Schema.from_json(other.json()), partition_by=["p"])
        with pytest.raises(txpool.NotSupportedError, match="partitions by p"):
            write_table(spark.createDataFrame([], other), "tables.properties", name)
    for text in ("", "__HIVE_DEFAULT_PARTITION__"):
        with pytest.raises(Exception, match="Delta's partitions would make it null"):
            write_table(spark.createDataFrame([(100, text)], "n int, p0 string"), "tables.properties", "parts")
    assert len(DeltaTable(str(tables / "parts")).to_pyarrow_table()) == len(rows)
    assert left(tables) == []


def test_executors_that_die_and_then_the_driver(
    spark_process: Callable[..., subprocess.Popen[str]], tables: Path, databases: Any
) -> None:
    """A task is retried, each time; then the driver is killed once all is prepared."""
    create(tables, "orders", ("id", pa.int64()))
    script = SCRIPT.replace("wh.properties", "tables.properties").replace("db.orders", "orders")
    killed = {"TXPOOL_FAILPOINTS": "coordinator.prepared=kill@2"}
    process = spark_process(script, master="local-cluster[2,1,1024]", env=killed)
    output, _ = process.communicate(timeout=600)
    errors = Path(process.args[1]).with_suffix(".err").read_text()  # type: ignore[index,arg-type]
    assert (process.returncode, output) == (-signal.SIGKILL, "2 1000 True\n"), errors[-8000:]
    assert left(tables)
    Path("recovery.properties").write_text(
        "node.name = driver\nlog.url = sqlite:///txlog\nrecovery.backoff = 0\n"
        "datasources = one.properties, two.properties, tables.properties\n"
    )
    manager = RecoveryManager(Path("recovery.properties"))
    for _ in range(3):  # a task that outlives its driver may still write
        manager.scan()
    assert committed(tables / "orders", "id") == [*range(1000)]
    assert databases.rows("two", "select count(*) from done") == [(1000,)]
    assert len(transactions(tables / "orders")) == 1
    assert left(tables) == []
