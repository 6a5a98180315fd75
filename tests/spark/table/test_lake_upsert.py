"""write_table(mode="upsert") into Iceberg tables: rows with the same keys are replaced, all others stay as they are."""

from __future__ import annotations

import datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pytest
from pyiceberg import types as iceberg
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import BucketTransform, IdentityTransform

import txpool
import txpool.lake
from tests.spark.table.test_lake import committed, create, data_files, lake, require_nothing_else
from txpool.spark import write_table

pytestmark = [pytest.mark.spark, pytest.mark.slow]

__all__ = ["lake"]

Field = iceberg.NestedField
KEYED = Schema(
    Field(1, "id", iceberg.LongType()), Field(2, "name", iceberg.StringType()), Field(3, "amount", iceberg.DoubleType())
)


def append(table: str, /, **columns: Any) -> None:
    """From plain Python: each call makes a file of its own."""
    with txpool.transaction():
        txpool.lake.catalog("wh.properties").load_table(f"db.{table}").append(pa.table(columns))


def rows(databases: Any, name: str, *columns: str) -> list[tuple[Any, ...]]:
    """As DuckDB reads the files that the table names."""
    wanted = ", ".join(columns or ("id", "name", "amount"))
    return duckdb.sql(f"select {wanted} from read_parquet({data_files(committed(databases, name))})").fetchall()


@pytest.mark.costly
def test_rows_with_the_same_key_are_replaced(spark: Any, lake: Path, databases: Any) -> None:
    create("t", KEYED)
    append("t", id=[1, 2, 3], name=["a", "b", None], amount=[1.0, 2.0, 3.0])
    append("t", id=[100, 101], name=["x", "y"], amount=[10.0, 11.0])
    append("t", id=pa.array([None, 4], pa.int64()), name=["of none", "d"], amount=[0.0, 4.0])
    untouched = data_files(committed(databases, "t"))
    databases.execute("two", "create table done (id bigint)")
    new = spark.createDataFrame(
        [(2, "B", 2.5), (4, None, None), (50, "new", 50.0)], "id long, name string, amount double"
    )
    with txpool.transaction():
        report = write_table(new.repartition(2), "wh.properties", "db.t", mode="upsert", keys=["id"])
        assert (report.strategy, report.rows) == ("direct", 3)
        write_table(new.select("id"), "two.properties", "done")
    expected = [
        (None, "of none", 0.0),
        (1, "a", 1.0),
        (2, "B", 2.5),
        (3, None, 3.0),
        (4, None, None),
        (50, "new", 50.0),
        (100, "x", 10.0),
        (101, "y", 11.0),
    ]
    assert sorted(rows(databases, "t"), key=lambda row: row[0] or 0) == expected
    table = committed(databases, "t")
    assert len([each for each in data_files(table) if each in untouched]) == 1  # the one with 100 and 101
    assert [each.summary.operation.value for each in table.snapshots()][-1] == "overwrite"
    assert table.current_snapshot().summary["total-records"] == "8"
    assert databases.rows("two", "select count(*) from done") == [(3,)]
    # The same once more changes nothing; with other rows alone it appends, and with none it makes no snapshot.
    write_table(new, "wh.properties", "db.t", mode="upsert", keys=["id"])
    assert sorted(rows(databases, "t"), key=lambda row: row[0] or 0) == expected
    write_table(spark.createDataFrame([(7, "g", 7.0)], new.schema), "wh.properties", "db.t", mode="upsert", keys=["id"])
    table = committed(databases, "t")
    assert table.current_snapshot().summary.operation.value == "append"
    write_table(new.where("false"), "wh.properties", "db.t", mode="upsert", keys=["id"])
    assert committed(databases, "t").current_snapshot() == table.current_snapshot()
    assert sorted(rows(databases, "t"), key=lambda row: row[0] or 0) == sorted(
        [*expected, (7, "g", 7.0)], key=lambda row: row[0] or 0
    )
    require_nothing_else(lake, committed(databases, "t"))


@pytest.mark.costly
def test_several_keys_of_any_type_in_any_partition(spark: Any, lake: Path, databases: Any) -> None:
    kinds = Schema(
        Field(1, "row", iceberg.StringType()),
        Field(2, "0", iceberg.DecimalType(20, 4)),
        Field(3, "day", iceberg.DateType()),
        Field(4, "at", iceberg.TimestamptzType()),
        Field(5, "who", iceberg.UUIDType()),
        Field(6, "raw", iceberg.BinaryType()),
        Field(7, "part", iceberg.StringType()),
        Field(8, "value", iceberg.LongType()),
    )
    spec = PartitionSpec(
        PartitionField(7, 1000, IdentityTransform(), "part"), PartitionField(1, 1001, BucketTransform(4), "bucket")
    )
    create("k", kinds, spec)
    day, moment = datetime.date(2026, 3, 8), datetime.datetime(2026, 3, 8, 7, 30, tzinfo=datetime.UTC)
    who = "00000000-0000-0000-0000-00000000000%d"

    def frame(*given: tuple[str, int, str | None, int]) -> Any:
        data = [
            (name, Decimal(number), day, moment, who % number, bytes([number]), part, value)
            for name, number, part, value in given
        ]
        kinds = "row string, `0` decimal(20,4), day date, at timestamp, who string, raw binary, part string, value long"
        return spark.createDataFrame(data, kinds)

    keys = ["row", "0", "day", "at", "who", "raw"]
    first = frame(("a", 1, "p", 10), ("a", 2, "p", 20), ("b", 1, None, 30), ("c", 3, "q/r s", 40))
    write_table(first.repartition(1), "wh.properties", "db.k")
    # One moves to another partition, one of the partition of nulls stays in it, one is new.
    second = frame(("a", 2, "z", 21), ("b", 1, None, 31), ("a", 3, "p", 50))
    write_table(second, "wh.properties", "db.k", mode="upsert", keys=keys)
    found = committed(databases, "k").scan().to_arrow().select(["row", "0", "part", "value"]).to_pylist()
    assert sorted((each["row"], int(each["0"]), each["part"], each["value"]) for each in found) == [
        ("a", 1, "p", 10),
        ("a", 2, "z", 21),
        ("a", 3, "p", 50),
        ("b", 1, None, 31),
        ("c", 3, "q/r s", 40),
    ]
    require_nothing_else(lake, committed(databases, "k"))


@pytest.mark.costly
def test_what_cannot_be_done_leaves_the_table_as_it_was(spark: Any, lake: Path, databases: Any) -> None:
    create("t", KEYED)
    append("t", id=[1, 2], name=["a", "b"], amount=[1.0, 2.0])
    kinds = "id long, name string, amount double"
    good = spark.createDataFrame([(1, "A", 1.5)], kinds)
    for df, keys, says in (
        (spark.createDataFrame([(1, "x", 0.0), (5, "y", 0.0), (1, "z", 0.0)], kinds), ["id"], "id = 1: 2 rows have it"),
        (spark.createDataFrame([(1, "x", 0.0), (None, "y", 0.0)], kinds), ["id"], "a key must have a value"),
    ):
        with pytest.raises(txpool.DataError, match=says):
            write_table(df, "wh.properties", "db.t", mode="upsert", keys=keys)
    for df, keys, says in (
        (good, ["missing"], "has no column missing"),
        (good, ["amount"], "column amount is double"),
        (good.select("id", "name"), ["id"], "lacks amount"),
        (good, [], "keys"),
    ):
        with pytest.raises(txpool.ProgrammingError, match=says):
            write_table(df, "wh.properties", "db.t", mode="upsert", keys=keys)
    # Another program's commit between the reading and the end is a conflict, and nothing is lost.
    with pytest.raises(txpool.TransactionRolledBack, match="was changed by another transaction"):
        with txpool.transaction():
            write_table(good, "wh.properties", "db.t", mode="upsert", keys=["id"])
            outer = txpool.suspend()
            append("t", id=[9], name=["other"], amount=[9.0])
            txpool.resume(outer)
    assert sorted(rows(databases, "t")) == [(1, "a", 1.0), (2, "b", 2.0), (9, "other", 9.0)]
    require_nothing_else(lake, committed(databases, "t"))
