"""write_table() into Iceberg tables: a snapshot names the files of one attempt each, and nothing else stays.

What is committed is read by pyiceberg alone, and by DuckDB and Spark over the files that it names.
"""

from __future__ import annotations

import datetime
from decimal import Decimal
from pathlib import Path
from threading import Thread
from typing import Any

import duckdb
import pyarrow as pa
import pytest
from pyiceberg import types as iceberg
from pyiceberg.partitioning import UNPARTITIONED_PARTITION_SPEC, PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table import StaticTable
from pyiceberg.transforms import BucketTransform, DayTransform, IdentityTransform

import txpool
import txpool.lake
from txpool.spark import write_table

pytestmark = [pytest.mark.spark, pytest.mark.slow]

Field = iceberg.NestedField


@pytest.fixture
def lake(sources: Path) -> Path:
    (sources / "wh").mkdir()
    settings = "name = wh\ndriver = iceberg\ncatalog = one.properties\nwarehouse = wh\n"
    (sources / "wh.properties").write_text(settings)
    with txpool.transaction():
        txpool.lake.catalog("wh.properties").create_namespace("db")
    return sources / "wh"


def create(
    name: str,
    schema: Any,
    spec: PartitionSpec = UNPARTITIONED_PARTITION_SPEC,
    location: str | None = None,
    **properties: str,
) -> None:
    with txpool.transaction():
        lake = txpool.lake.catalog("wh.properties")
        lake.create_table(f"db.{name}", schema, location, spec, properties=properties)


def committed(databases: Any, name: str) -> StaticTable:
    """The table as pyiceberg alone finds it."""
    query = "select metadata_location from txpool_spark.iceberg_tables where table_name = %s"
    return StaticTable.from_metadata(databases.rows("one", query, [name])[0][0])


def data_files(table: StaticTable) -> list[str]:
    return [each.file.file_path for each in table.scan().plan_files()]


def require_nothing_else(lake: Path, *tables: StaticTable) -> None:
    """Each file below `data` is named by a snapshot, and no journal is left."""
    named = set()
    for table in tables:
        for snapshot in table.snapshots():
            for manifest in snapshot.manifests(table.io):
                named |= {
                    each.data_file.file_path.removeprefix("file://")
                    for each in manifest.fetch_manifest_entry(table.io, False)
                }
    assert {str(each) for each in lake.rglob("*.parquet")} == named
    assert sorted(each.name for each in (lake / "_txpool").iterdir()) == ["catalog", "identity"]


@pytest.mark.costly
def test_append_and_overwrite_beside_a_database(spark: Any, lake: Path, databases: Any) -> None:
    databases.execute("two", "create table done (id bigint)")
    rows = spark.range(100, numPartitions=3).selectExpr("id", "cast(id % 3 as int) as part")
    with txpool.transaction():
        report = write_table(rows, "wh.properties", "db.orders", mode="error")
        assert (report.strategy, report.partitions, report.rows, report.attempts) == ("direct", 3, 100, 3)
        write_table(rows.where("id < 10"), "wh.properties", "db.orders")
        write_table(rows.select("id"), "two.properties", "done")
        read = txpool.lake.catalog("wh.properties").load_table("db.orders").scan().to_arrow()
        assert read.num_rows == 110
        assert not databases.rows("one", "select * from txpool_spark.iceberg_tables")
    table = committed(databases, "orders")
    assert sorted(table.scan().to_arrow()["id"].to_pylist()) == sorted([*range(100), *range(10)])
    found = duckdb.sql(f"select count(*), sum(id) from read_parquet({data_files(table)})").fetchall()[0]
    assert found == (110, 4950 + 45)
    assert spark.read.parquet(*data_files(table)).count() == 110
    assert databases.rows("two", "select count(*) from done") == [(100,)]
    with pytest.raises(txpool.ProgrammingError, match="exists already"):
        write_table(rows, "wh.properties", "db.orders", mode="error")
    assert write_table(rows, "wh.properties", "db.orders", mode="ignore").strategy == "skipped"
    for name, says in (("db.missing", "there is no table db.missing in wh"), ("orders", "write namespace.table")):
        with pytest.raises(txpool.ProgrammingError, match=says):
            write_table(rows, "wh.properties", name)
    with pytest.raises(txpool.ProgrammingError, match=r"no namespace new in wh: .*create_namespace\('new'\)"):
        write_table(rows, "wh.properties", "new.orders", create=True)
    with pytest.raises(txpool.NotSupportedError, match="use strategy='auto'"):
        write_table(rows, "wh.properties", "db.orders", strategy="staged")
    write_table(rows.where("id = 7"), "wh.properties", "db.orders", mode="overwrite")
    table = committed(databases, "orders")
    assert table.scan().to_arrow()["id"].to_pylist() == [7]
    require_nothing_else(lake, table)


def test_a_rerun_of_a_committed_write_writes_nothing(spark: Any, lake: Path, databases: Any) -> None:
    rows = spark.range(10)
    for strategy in ("direct", "skipped"):
        report = write_table(rows, "wh.properties", "db.orders", create=True, transaction_id="load-1")
        assert (report.strategy, report.rows) == (strategy, 10)
    assert committed(databases, "orders").scan().to_arrow().num_rows == 10


ZONE = "America/New_York"
MOMENT = datetime.datetime(2026, 3, 8, 7, 30, 0, 1, datetime.UTC)
EVERY = Schema(
    Field(1, "truth", iceberg.BooleanType()),
    Field(2, "small", iceberg.IntegerType()),
    Field(3, "wide", iceberg.LongType()),
    Field(4, "single", iceberg.DoubleType()),
    Field(5, "number", iceberg.DecimalType(20, 4)),
    Field(6, "day", iceberg.DateType()),
    Field(7, "hour", iceberg.TimeType()),
    Field(8, "plain", iceberg.TimestampType()),
    Field(9, "instant", iceberg.TimestamptzType()),
    Field(10, "text", iceberg.StringType(), required=True),
    Field(11, "key", iceberg.UUIDType()),
    Field(12, "code", iceberg.FixedType(3)),
    Field(13, "raw", iceberg.BinaryType()),
    Field(14, "list", iceberg.ListType(15, iceberg.TimestamptzType(), element_required=True)),
    Field(16, "map", iceberg.MapType(17, iceberg.StringType(), 18, iceberg.TimestamptzType(), value_required=False)),
    Field(
        19,
        "struct",
        iceberg.StructType(Field(20, "a", iceberg.IntegerType()), Field(21, "b c", iceberg.TimestamptzType())),
    ),
    Field(22, "left out", iceberg.StringType()),
    Field(
        23,
        "records",
        iceberg.ListType(24, iceberg.StructType(Field(25, "n", iceberg.LongType())), element_required=False),
    ),
    Field(
        26,
        "named",
        iceberg.MapType(
            27, iceberg.StringType(), 28, iceberg.StructType(Field(29, "n", iceberg.LongType())), value_required=False
        ),
    ),
)
VALUES = {
    "records": ("array(named_struct('n', 1L), null)", [{"n": 1}, None]),
    "named": ("map('k', named_struct('n', 1L))", [("k", {"n": 1})]),
    "truth": ("true", True),
    "small": ("cast(-5 as tinyint)", -5),
    "wide": ("cast(7 as int)", 7),
    "single": ("cast(0.1 as float)", pa.scalar(0.1, pa.float32()).as_py()),
    "number": ("cast('-12345678901234.5678' as decimal(18, 4))", Decimal("-12345678901234.5678")),
    "day": ("date '0001-01-01'", datetime.date(1, 1, 1)),
    "hour": ("time '01:02:03.000004'", datetime.time(1, 2, 3, 4)),
    "plain": ("timestamp_ntz '2026-03-08 02:30:00.000001'", datetime.datetime(2026, 3, 8, 2, 30, 0, 1)),
    "instant": ("timestamp '2026-03-08 07:30:00.000001 UTC'", MOMENT),
    "text": ("'é\\u0000'", "é\0"),
    "key": ("'00000000-0000-0000-0000-00000000000a'", "00000000-0000-0000-0000-00000000000a"),
    "code": ("cast('abc' as binary)", b"abc"),
    "raw": ("X'00FF'", b"\x00\xff"),
    "list": ("array(timestamp '2026-03-08 07:30:00.000001 UTC')", [MOMENT]),
    "map": ("map('k', timestamp '2026-03-08 07:30:00.000001 UTC')", [("k", MOMENT)]),
    "struct": ("named_struct('a', 1, 'b c', timestamp '2026-03-08 07:30:00.000001 UTC')", {"a": 1, "b c": MOMENT}),
}


def test_every_type_in_any_time_zone(spark: Any, lake: Path, databases: Any) -> None:
    create("every", EVERY, PartitionSpec(PartitionField(9, 100, DayTransform(), "d")))
    spark.conf.set("spark.sql.session.timeZone", ZONE)
    spark.conf.set("spark.sql.timeType.enabled", "true")
    try:
        row = [f"{text} as {name}" for name, (text, _) in VALUES.items()]
        nulls = [
            text if name == "text" else text.replace(text, f"if(false, {text}, null)")
            for name, (text, _) in VALUES.items()
        ]
        rows = (
            spark.range(1)
            .selectExpr(*row)
            .unionAll(
                spark.range(1).selectExpr(*(f"{text} as {name}" for name, text in zip(VALUES, nulls, strict=True)))
            )
        )
        write_table(rows, "wh.properties", "db.every")
        write_table(rows.drop("key", "code"), "wh.properties", "db.made", create=True)
    finally:
        spark.conf.unset("spark.sql.session.timeZone")
        spark.conf.unset("spark.sql.timeType.enabled")
    expected = {name: value for name, (_, value) in VALUES.items()}
    for name, lacking in (("every", ()), ("made", ("key", "code"))):
        table = committed(databases, name)
        full, empty = sorted(table.scan().to_arrow().to_pylist(), key=lambda each: each["raw"] is None)
        assert {each: str(full[each]) if each == "key" else full[each] for each in VALUES if each not in lacking} == {
            each: value for each, value in expected.items() if each not in lacking
        }
        assert {each for each in VALUES if each not in lacking and empty[each] is not None} == {"text"}
    made = {field.name: field.field_type for field in table.schema().fields}
    assert (made["instant"], made["plain"]) == (iceberg.TimestamptzType(), iceberg.TimestampType())
    files = data_files(committed(databases, "every"))
    instant = duckdb.sql(f"select epoch_us(max(instant)) from read_parquet({files}, hive_partitioning=false)")
    assert instant.fetchall()[0] == (int(MOMENT.timestamp()) * 1_000_000 + 1,)


@pytest.mark.parametrize(
    ("column", "expression", "says"),
    [
        ("plain", "timestamp '2026-01-01 00:00:00'", "is timestamp, and wh.db.every.plain is timestamp"),
        ("instant", "timestamp_ntz '2026-01-01 00:00:00'", "does not keep each of its values"),
        ("small", "1L", "does not keep each"),
        ("single", "cast(1 as int)", "does not keep each"),
        ("number", "cast(1 as decimal(20, 5))", "does not keep each"),
        ("raw", "parse_json('1')", "is variant"),
        ("list", "interval '1' year", "does not keep each"),
        ("unknown", "1", "is not in"),
        ("text", None, "must have a value"),
    ],
)
def test_what_would_change_is_refused_before_a_task(
    column: str, expression: str | None, says: str, spark: Any, lake: Path, databases: Any
) -> None:
    create("every", EVERY)
    rows = spark.range(1)
    frame = (
        rows.selectExpr("true as truth")
        if expression is None
        else rows.selectExpr("'t' as text" if column != "text" else "true as truth", f"{expression} as {column}")
    )
    with pytest.raises(txpool.ProgrammingError, match=says) as caught:
        write_table(frame, "wh.properties", "db.every")
    assert "nothing was written" in str(caught.value)
    require_nothing_else(lake, committed(databases, "every"))


def test_rows_without_columns_are_not_lost(spark: Any, lake: Path) -> None:
    write_table(spark.range(1), "wh.properties", "db.bare", create=True)
    with pytest.raises(txpool.ProgrammingError, match="has no columns"):
        write_table(spark.range(3).drop("id"), "wh.properties", "db.bare")


def test_two_columns_of_one_name_make_no_table(spark: Any, lake: Path, databases: Any) -> None:
    with pytest.raises(txpool.ProgrammingError, match="column id is there twice"):
        write_table(spark.sql("select 1 id, 2 id"), "wh.properties", "db.orders", create=True)
    assert not databases.rows("one", "select * from txpool_spark.iceberg_tables")


@pytest.mark.parametrize("expression", ["parse_json('1')", "interval '1' year", "null", "array(interval '1' day)"])
def test_a_type_that_iceberg_lacks_makes_no_table(expression: str, spark: Any, lake: Path, databases: Any) -> None:
    with pytest.raises(txpool.ProgrammingError, match="which Iceberg lacks"):
        write_table(spark.range(1).selectExpr(f"{expression} as x"), "wh.properties", "db.new", create=True)
    assert not databases.rows("one", "select * from txpool_spark.iceberg_tables")


@pytest.mark.parametrize(
    ("kind", "required", "expression", "says"),
    [
        (iceberg.StringType(), True, "if(id = 1, null, 'x')", "must have a value"),
        (iceberg.FixedType(3), False, "if(id = 1, X'00', X'000000')", "does not fit"),
        (iceberg.UUIDType(), False, "upper('00000000-0000-0000-0000-00000000000a')", "no UUID in its usual form"),
        (
            iceberg.MapType(
                2,
                iceberg.StringType(),
                3,
                iceberg.StructType(Field(4, "a", iceberg.ListType(5, iceberg.LongType(), element_required=True))),
            ),
            False,
            "map('k', named_struct('a', array(if(id = 1, null, id))))",
            "must have a value",
        ),
    ],
    ids=["required", "fixed", "uuid", "within"],
)
def test_a_value_that_does_not_fit_leaves_nothing(
    kind: iceberg.IcebergType, required: bool, expression: str, says: str, spark: Any, lake: Path, databases: Any
) -> None:
    create("strict", Schema(Field(1, "x", kind, required=required)), **{"write.target-file-size-bytes": "1"})
    rows = spark.range(2, numPartitions=1).selectExpr(f"{expression} as x")
    with pytest.raises(Exception, match=says):
        write_table(rows, "wh.properties", "db.strict")
    table = committed(databases, "strict")
    assert table.scan().to_arrow().num_rows == 0
    require_nothing_else(lake, table)


@pytest.mark.costly
def test_partitions_and_small_files(spark: Any, lake: Path, databases: Any) -> None:
    schema = Schema(Field(1, "id", iceberg.LongType()), Field(2, "f", iceberg.DoubleType()))
    spec = PartitionSpec(
        PartitionField(1, 100, BucketTransform(2), "b"), PartitionField(2, 101, IdentityTransform(), "f")
    )
    create("parted", schema, spec, f"file://{lake}/db/parted", **{"write.target-file-size-bytes": "1600"})
    rows = spark.range(400, numPartitions=2).selectExpr("id", "cast(id % 2 as double) as f")
    write_table(rows, "wh.properties", "db.parted")
    table = committed(databases, "parted")
    assert sorted(table.scan().to_arrow()["id"].to_pylist()) == list(range(400))
    assert len(table.scan(row_filter="f = 1").to_arrow()) == 200
    assert len(data_files(table)) >= 8
    for value in ("'NaN'", "'-0.0'"):
        with pytest.raises(Exception, match="lost or doubled"):
            write_table(rows.selectExpr("id", f"cast({value} as double) as f"), "wh.properties", "db.parted")
    require_nothing_else(lake, committed(databases, "parted"))


@pytest.mark.costly
def test_a_job_that_meets_another_writer_runs_again(spark: Any, lake: Path, databases: Any) -> None:
    """All of it: what the first attempt has written, here and elsewhere, goes."""
    databases.execute("two", "create table done (id bigint)")
    create("orders", pa.schema([("id", pa.int64())]))
    rows, gtrids = spark.range(10, numPartitions=2), []

    def others() -> None:
        with txpool.transaction():
            txpool.lake.catalog("wh.properties").load_table("db.orders").append(pa.table({"id": [100 + len(gtrids)]}))

    def load(mode: Any, conflicts: int) -> None:
        gtrids.append(txpool.current().gtrid)  # type: ignore[union-attr]
        write_table(rows, "wh.properties", "db.orders", mode=mode)
        write_table(rows, "two.properties", "done")
        if len(gtrids) <= conflicts:
            thread = Thread(target=others)
            thread.start()
            thread.join()

    txpool.transactional(attempts=3)(load)("append", 2)
    assert len({*gtrids}) == 3
    table = committed(databases, "orders")
    assert sorted(table.scan().to_arrow()["id"].to_pylist()) == [*range(10), 101, 102]
    gtrids.clear()
    with pytest.raises(txpool.TransactionRolledBack, match="was changed by another transaction"):
        txpool.transactional(attempts=2)(load)("overwrite", 2)
    assert len(gtrids) == 2
    gtrids.clear()
    txpool.transactional(attempts=2)(load)("overwrite", 1)
    table = committed(databases, "orders")
    assert sorted(table.scan().to_arrow()["id"].to_pylist()) == [*range(10)]
    assert sorted(databases.rows("two", "select id from done")) == [(n,) for n in range(10) for _ in range(2)]
    require_nothing_else(lake, table)
