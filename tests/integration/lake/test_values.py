"""What pyarrow or pyiceberg would change in silence is refused, before a file is made."""

from __future__ import annotations

import datetime
import math
from collections.abc import Callable
from decimal import Decimal
from typing import Any
from uuid import UUID
from zoneinfo import ZoneInfo

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.expressions import EqualTo, GreaterThanOrEqual, NotEqualTo
from pyiceberg.io.pyarrow import ParquetFormatWriter, schema_to_pyarrow
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import HourTransform, IdentityTransform, Transform, TruncateTransform, YearTransform
from pyiceberg.types import (
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IcebergType,
    IntegerType,
    ListType,
    LongType,
    NestedField,
    StringType,
    StructType,
    TimestampType,
    TimestamptzType,
    UUIDType,
)

import txpool
from tests.integration.lake.conftest import IN_SQLITE, Lake
from txpool.errors import DataError
from txpool.lake import corrections
from txpool.lake.values import arrow_of


def _arrow(*fields: NestedField) -> pa.Schema:
    return schema_to_pyarrow(Schema(*fields), include_field_ids=False)


TABLE = _arrow(
    NestedField(1, "id", LongType()),
    NestedField(2, "at", TimestampType()),
    NestedField(3, "instant", TimestamptzType()),
    NestedField(4, "amount", DecimalType(10, 2)),
    NestedField(5, "name", StringType()),
    NestedField(6, "x", DoubleType()),
)
BERLIN = ZoneInfo("Europe/Berlin")
DAY = datetime.datetime(2026, 11, 29)


def _series(values: list[Any], **options: Any) -> pd.DataFrame:
    return pd.DataFrame(options | {"at": pd.Series(values, dtype=object)})


@pytest.mark.parametrize(
    ("frame", "reason"),
    [
        (pa.table({"at": pa.array([1], pa.timestamp("ns"))}), "nanoseconds"),
        (pa.table({"at": pa.array([2**60], pa.timestamp("s"))}), "cannot hold"),
        (pa.table({"at": pa.array([1], pa.timestamp("us", "UTC"))}), "not the same"),
        (pa.table({"instant": pa.array([1], pa.timestamp("us"))}), "not the same"),
        (pa.table({"instant": pa.array([1], pa.timestamp("us", "Europe/Berlin"))}), "time zone"),
        (pa.table({"amount": pa.array([Decimal("1.234")], pa.decimal128(10, 3))}), "rounded"),
        (pa.table({"amount": pa.array([Decimal("1.23")], pa.decimal128(20, 2))}), "may not fit"),
        (pa.table({"x": pa.array([2**60])}), "every integer"),
        (pa.table({"nothing": [1]}), "no column nothing"),
        (pa.table([[1], [2], [3]], names=["id", "name", "id"]), "the frame has twice the column id, and"),
        (pa.table({"id": pa.array([2**63], pa.uint64())}), "negative"),
        (pa.table({"name": [b"a"]}), "not the same"),
        (pa.table({"at": pa.array([1], pa.timestamp("ns")).dictionary_encode()}), "nanoseconds"),
        (pd.DataFrame({"id": [1]}, index=pd.Index([7], name="key")), "reset_index"),
        (pd.DataFrame({"id": [1]}, index=pd.RangeIndex(1, name="key")), "reset_index"),
        (_series([DAY, DAY.replace(tzinfo=BERLIN)]), "time zone Europe/Berlin"),
        (_series([[DAY, DAY.replace(tzinfo=BERLIN)]]), "time zone Europe/Berlin"),
        (_series([{"a": [DAY]}, {"a": [DAY.replace(tzinfo=BERLIN)]}]), "time zone Europe/Berlin"),
        (_series([DAY.date(), DAY]), "has dates, datetimes"),
        (_series(["a", b"b"]), "has bytes, texts"),
        (_series([{"a": [b"b"]}, {"a": ["a"]}]), "has bytes, texts"),
        (_series([pd.Timestamp(DAY) + pd.Timedelta(1, "ns")]), "nanoseconds"),
        (_series([np.array([pd.Timestamp(DAY) + pd.Timedelta(1, "ns")], dtype=object)]), "nanoseconds"),
        (_series([DAY.time().replace(tzinfo=datetime.UTC)]), "time zone"),
        (_series([Decimal("NaN")]), "Iceberg lacks"),
        ([{"id": 1}], "no Arrow stream"),
        (pd.DataFrame(index=range(3)), "no column"),
        (pa.table({"id": [1, 2]}).select([]), "no column"),
    ],
)
def test_it_is_refused(frame: Any, reason: str) -> None:
    with pytest.raises(DataError, match=reason):
        arrow_of(frame, TABLE, "db.orders")


def test_what_is_kept_is_taken() -> None:
    table = pa.table(
        {
            "id": pa.array([1], pa.int32()),
            "at": pa.array([1], pa.timestamp("ms")),
            "instant": pa.array([1], pa.timestamp("us", "UTC")),
            "amount": pa.array([Decimal("1.23")], pa.decimal128(5, 2)),
            "name": pa.array(["a"], pa.large_string()),
            "x": pa.array([1.5], pa.float32()),
        }
    )
    assert arrow_of(table, TABLE, "db.orders").equals(table)
    assert arrow_of(pd.DataFrame({"id": [1, 2]}), TABLE, "db.orders").to_pydict() == {"id": [1, 2]}


@pytest.mark.parametrize("kind", [pl.Categorical, pl.Enum(["a", "b"])])
def test_categories_of_polars_are_texts(kind: Any) -> None:
    frame = pl.DataFrame({"name": pl.Series(["b", None, "a"], dtype=kind)})
    assert arrow_of(frame, TABLE, "db.orders")["name"].to_pylist() == ["b", None, "a"]
    assert arrow_of(frame.clear(), TABLE, "db.orders")["name"].to_pylist() == []


def test_objects_of_one_kind_are_taken() -> None:
    given = [{"day": DAY.date(), "at": [DAY, None]}, {"day": None, "at": [pd.NaT, DAY]}, None, math.nan]
    kinds = StructType(NestedField(2, "day", DateType()), NestedField(3, "at", ListType(4, TimestampType())))
    arrow = _arrow(NestedField(1, "s", kinds))
    expected = [{"day": DAY.date(), "at": [DAY, None]}, {"day": None, "at": [None, DAY]}, None, None]
    assert arrow_of(pd.DataFrame({"s": given}), arrow, "db.t")["s"].to_pylist() == expected
    aware = DAY.replace(tzinfo=datetime.UTC)
    assert arrow_of(pd.DataFrame({"instant": pd.Series([pd.NaT, aware], dtype=object)}), TABLE, "db.t").num_rows == 2


def test_what_lies_within_is_found_by_name() -> None:
    kinds = StructType(NestedField(2, "a", LongType()), NestedField(3, "at", TimestampType()))
    frame = pa.table({"s": pa.array([{"at": 1, "a": 2}], pa.struct([("at", pa.timestamp("ns")), ("a", pa.int64())]))})
    with pytest.raises(DataError, match="nanoseconds"):
        arrow_of(frame, _arrow(NestedField(1, "s", kinds)), "db.orders")


@IN_SQLITE
def test_nothing_of_polars_is_read_as_another_type(lake: Lake) -> None:
    inner = pa.struct([("n", pa.string())])
    with txpool.transaction():
        lake.catalog.create_namespace("db")
        table = lake.catalog.create_table("db.t", pa.schema([("id", pa.int64()), ("s", inner), ("l", pa.list_(inner))]))
        for frame in (
            {"id": ["01"]},
            {"s": [{"n": "a", "extra": 7}]},
            {"l": [[{"n": "a", "extra": 7}]]},
        ):
            with pytest.raises(ValueError, match=r"(?i)mismatch|more columns"):
                table.append(pl.DataFrame(frame))
        table.append(pl.DataFrame({"id": [1], "s": [{"n": "a"}], "l": [[{"n": "b"}, None]]}))
    with txpool.transaction():
        read = lake.catalog.load_table("db.t").scan().to_arrow().to_pylist()
        assert read == [{"id": 1, "s": {"n": "a"}, "l": [{"n": "b"}, None]}]


@IN_SQLITE
def test_columns_are_matched_by_name_whatever_ids_they_had_elsewhere(lake: Lake) -> None:
    with txpool.transaction():
        lake.catalog.create_namespace("db")
        lake.catalog.create_table("db.one", pa.schema([("a", pa.string()), ("b", pa.string())])).append(
            pa.table({"a": ["A"], "b": ["B"]})
        )
        (task,) = lake.catalog.load_table("db.one").scan().plan_files()
        other = lake.catalog.create_table("db.other", pa.schema([("b", pa.string()), ("a", pa.string())]))
        other.append(pq.read_table(task.file.file_path, partitioning=None))
        assert other.scan().to_arrow().to_pylist() == [{"b": "B", "a": "A"}]


def test_a_text_is_no_time() -> None:
    arrow_of(pa.table({"at": ["2026-01-01"]}), TABLE, "db.orders")  # which pyiceberg refuses by its type


_RECORD = pa.struct([("n", pa.int64())])
_NESTED = pa.schema([("list", pa.list_(_RECORD)), ("map", pa.map_(pa.string(), _RECORD))])


@IN_SQLITE
@pytest.mark.parametrize("made", [pa.table, pd.DataFrame, pl.DataFrame])
def test_a_frame_without_nulls_is_taken_by_columns_that_must_have_a_value(lake: Lake, made: Any) -> None:
    schema = Schema(NestedField(1, "id", LongType(), required=True), NestedField(2, "name", StringType()))
    with txpool.transaction():
        lake.catalog.create_namespace("db")
        table = lake.catalog.create_table("db.strict", schema)
        table.append(made({"id": [1, 2], "name": ["a", None]}))
        table.append(made({"id": [3]}))
        for refused in ({"name": ["b"]}, {"id": pa.array([None], pa.int64())}):
            with pytest.raises(ValueError, match="required long"):
                table.append(pa.table(refused))
    with txpool.transaction():
        assert sorted(lake.catalog.load_table("db.strict").scan().to_arrow()["id"].to_pylist()) == [1, 2, 3]


@IN_SQLITE
def test_null_lists_and_maps_of_structs_stay_null(lake: Lake) -> None:
    full = {"list": [{"n": 1}, None], "map": [("k", {"n": 1}), ("l", None)]}
    given = [{"list": None, "map": None}, full, {"list": [], "map": []}, {"list": None, "map": None}]
    with txpool.transaction():
        lake.catalog.create_namespace("db")
        table = lake.catalog.create_table("db.nested", _NESTED)
        table.append(pa.Table.from_pylist(given, schema=_NESTED).slice(1))
    with txpool.transaction():
        table = lake.catalog.load_table("db.nested")
        assert table.scan().to_arrow().to_pylist() == given[1:]
        written = [pq.ParquetFile(task.file.file_path).read().to_pylist() for task in table.scan().plan_files()]
        assert written == [given[1:]]


@IN_SQLITE
def test_a_file_that_is_rewritten_keeps_each_row_once(lake: Lake) -> None:
    schema = Schema(NestedField(1, "id", LongType()), NestedField(2, "f", DoubleType()))
    given = [{"id": 1, "f": 0.0}, {"id": 2, "f": 2.0}, {"id": 3, "f": -0.0}]
    with txpool.transaction():
        lake.catalog.create_namespace("db")
        table = lake.catalog.create_table("db.parted", schema)
        table.append(pa.Table.from_pylist(given))
        with table.update_spec() as spec:
            spec.add_identity("f")
    with txpool.transaction():
        with pytest.raises(DataError, match="lost or doubled"):
            lake.catalog.load_table("db.parted").delete("id = 2")
    with txpool.transaction():
        assert lake.catalog.load_table("db.parted").scan().to_arrow().to_pylist() == given


@IN_SQLITE
@pytest.mark.parametrize(
    ("kind", "values", "wanted"),
    [(DoubleType(), [0.1, 1e300], 1e300), (UUIDType(), [bytes(16), bytes(range(16))], UUID(bytes=bytes(range(16))))],
)
def test_a_partition_s_value_is_read_as_it_was_written(lake: Lake, kind: Any, values: list[Any], wanted: Any) -> None:
    """pyiceberg alone reads doubles as floats, and UUIDs as what no filter has: a rewritten manifest kept the float."""
    schema = Schema(NestedField(1, "id", LongType()), NestedField(2, "v", kind))
    rows = pa.table({"id": [1, 2], "v": pa.array(values, pa.binary(16)) if isinstance(kind, UUIDType) else values})
    with txpool.transaction():
        lake.catalog.create_namespace("db")
        spec = PartitionSpec(PartitionField(2, 1000, IdentityTransform(), "v"))
        lake.catalog.create_table("db.parted", schema, partition_spec=spec).append(rows)
    with txpool.transaction():
        lake.catalog.load_table("db.parted").delete("id = 1")  # the manifest is written again
    with txpool.transaction():
        table = lake.catalog.load_table("db.parted")
        (left,) = table.scan().plan_files()
        assert left.file.partition[0] == values[1]
        assert len([*table.scan(row_filter=EqualTo("v", wanted)).plan_files()]) == 1
        assert [*table.scan(row_filter=NotEqualTo("v", wanted)).plan_files()] == []


@IN_SQLITE
@pytest.mark.parametrize("counted", [True, False], ids=["ours", "pyiceberg's"])
def test_a_row_with_nan_goes_only_if_it_is_meant(lake: Lake, counted: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """pyiceberg alone takes a file whose least and greatest numbers meet a condition for one whose rows all do."""
    if not counted:
        monkeypatch.setattr(ParquetFormatWriter, "close", corrections._close)
    schema = Schema(NestedField(1, "id", LongType()), NestedField(2, "v", DoubleType()))
    given = pa.table({"id": [1, 2], "v": [math.nan, 5.0]})
    changes: list[Callable[[Any], object]] = [
        lambda table: table.delete("v = 5"),
        lambda table: table.delete("v < 10"),
        lambda table: table.delete("v in (5, 6)"),
        lambda table: table.overwrite(given.slice(2), overwrite_filter="v >= 5"),
    ]
    with txpool.transaction():
        lake.catalog.create_namespace("db")
    for number, change in enumerate([*changes, lambda table: table.upsert(given.slice(1), join_cols=["v"])]):
        with txpool.transaction():
            lake.catalog.create_table(f"db.t{number}", schema).append(given)
        with txpool.transaction():
            change(lake.catalog.load_table(f"db.t{number}"))
        with txpool.transaction():
            left = lake.catalog.load_table(f"db.t{number}").scan().to_arrow()["id"].to_pylist()
        assert left == ([1] if number < len(changes) else [1, 2]), number


@IN_SQLITE
@pytest.mark.parametrize(
    ("condition", "left"),
    [
        ("k != 7", [1, 3, 4]),
        ("k != 9", [1, 4]),
        ("k not in (8, 9)", [1, 4]),
        ("not (k in (7, 8))", [1, 3, 4]),
        ("(k is null and j = 2) or k > 6", [1, 2, 4]),
        ("k > 6 or j = 1", []),
        ("v != 1.5 or j = 9", [2]),
    ],
)
def test_a_delete_takes_what_its_condition_meets(lake: Lake, condition: str, left: list[int]) -> None:
    """And no row of which a null leaves that unknown, in whatever file: as databases do, and as a scan finds them."""
    fields = [NestedField(1, "id", LongType()), NestedField(2, "k", LongType()), NestedField(3, "j", LongType())]
    schema = Schema(*fields, NestedField(4, "v", DoubleType()))
    found = [(1, None, 1, math.nan), (2, 5, 1, 1.5), (3, 7, None, 2.0), (4, None, 1, 2.0)]
    rows = pa.Table.from_pylist([dict(zip(("id", "k", "j", "v"), row, strict=True)) for row in found])
    with txpool.transaction():
        lake.catalog.create_namespace("db")
        table = lake.catalog.create_table("db.t", schema)
        table.append(rows.slice(0, 3))
        table.append(rows.slice(3))  # a file whose `k` are all null
    with txpool.transaction():
        table = lake.catalog.load_table("db.t")
        gone = table.scan(row_filter=condition).to_arrow()["id"].to_pylist()
        table.delete(condition)
    assert sorted(gone) == sorted({1, 2, 3, 4}.difference(left))
    assert lake.ids("t") == left


@IN_SQLITE
def test_a_condition_is_not_rounded(lake: Lake) -> None:
    fields = [NestedField(1, "id", LongType()), NestedField(2, "m", DecimalType(9, 2)), NestedField(3, "d", DateType())]
    row = {"id": 1, "m": Decimal("0.10"), "d": datetime.date(2026, 1, 1)}
    noon = datetime.datetime(2026, 1, 1, 12)
    with txpool.transaction():
        lake.catalog.create_namespace("db")
        table = lake.catalog.create_table("db.t", Schema(*fields))
        table.append(pa.Table.from_pylist([row], schema=_arrow(*fields)))
    rounded = ("id >= 1.4", "id = '1.4'", GreaterThanOrEqual("m", 0.1049), GreaterThanOrEqual("d", noon))
    exact = (
        "id = 1.0",
        "id = '1'",
        "id < 99999999999999999999.0",
        EqualTo("m", 0.1),
        EqualTo("d", noon.replace(hour=0)),
    )
    with txpool.transaction():
        table = lake.catalog.load_table("db.t")
        for condition in rounded:
            with pytest.raises(txpool.ProgrammingError, match="would be rounded"):
                table.scan(row_filter=condition).to_arrow()
            with pytest.raises(txpool.ProgrammingError, match="would be rounded"):
                table.delete(condition)
        for condition in exact:
            assert table.scan(row_filter=condition).to_arrow().num_rows == 1
    assert lake.ids("t") == [1]


@IN_SQLITE
def test_a_null_of_a_partition_is_compared_with_no_value(lake: Lake) -> None:
    schema = Schema(NestedField(1, "id", LongType()), NestedField(2, "k", LongType()))
    spec = PartitionSpec(PartitionField(2, 1000, IdentityTransform(), "k"))
    with txpool.transaction():
        lake.catalog.create_namespace("db")
        table = lake.catalog.create_table("db.t", schema, partition_spec=spec)
        table.append(pa.table({"id": [1, 2, 3], "k": [None, 1, 5]}))
        for condition, wanted in (("k != 5", [2]), ("k < 3 or id = 1", [1, 2]), ("k is null", [1])):
            scan = table.scan(row_filter=condition)
            assert sorted(scan.to_arrow()["id"].to_pylist()) == wanted
            assert scan.count() == len(wanted)
        table.delete("k > 3 or id = 2")
    assert lake.ids("t") == [1]


@IN_SQLITE
def test_a_file_says_how_many_nan_it_has(lake: Lake) -> None:
    """Whoever deletes by a condition looks there: without that, engines take it for none."""
    inner = StructType(NestedField(4, "f", FloatType()), NestedField(5, "n", LongType()))
    fields = [NestedField(1, "v", DoubleType()), NestedField(2, "s", inner), NestedField(3, "w", DoubleType())]
    within = [{"f": math.nan, "n": 1}, None, {"f": None, "n": 1}]
    rows = [{"v": v, "s": s} for v, s in zip([math.nan, math.nan, 1.0], within, strict=True)]
    with txpool.transaction():
        lake.catalog.create_namespace("db")
        table = lake.catalog.create_table("db.counted", Schema(*fields))
        table.append(pa.Table.from_pylist(rows, schema=_arrow(*fields)))
        (task,) = table.scan().plan_files()
        assert task.file.nan_value_counts == {1: 2, 3: 0, 4: 1}


@IN_SQLITE
def test_a_dot_in_the_name_of_a_partition(lake: Lake) -> None:
    schema = Schema(NestedField(1, "a.b", DoubleType()))
    spec = PartitionSpec(PartitionField(1, 100, IdentityTransform(), "p"))
    with txpool.transaction():
        lake.catalog.create_namespace("db")
        table = lake.catalog.create_table("db.parted", schema, partition_spec=spec)
        with pytest.raises(DataError, match=r"by a\.b, which"):
            table.append(pa.table({"a.b": [0.0, -0.0]}))


@IN_SQLITE
@pytest.mark.parametrize("value", [math.nan, -0.0])
def test_rows_that_a_partition_would_lose_or_double_are_refused(lake: Lake, value: float) -> None:
    inner = StructType(NestedField(2, "f", DoubleType()))
    schema = Schema(NestedField(1, "s", inner))
    spec = PartitionSpec(PartitionField(2, 100, IdentityTransform(), "f"))
    with txpool.transaction():
        lake.catalog.create_namespace("db")
        table = lake.catalog.create_table("db.parted", schema, partition_spec=spec)
        table.append(pa.table({"s": [{"f": 0.0}, {"f": None}, None]}))
        before = lake.files()
        with pytest.raises(DataError, match="lost or doubled"):
            table.append(pa.table({"s": [{"f": 0.0}, {"f": value}]}))
        assert lake.files() == before
    with txpool.transaction():
        assert lake.catalog.load_table("db.parted").scan().to_arrow().num_rows == 3


@IN_SQLITE
@pytest.mark.parametrize(
    ("kind", "divided", "value"),
    [
        (IntegerType(), TruncateTransform(10), -(2**31)),
        (LongType(), TruncateTransform(10), -(2**63)),
        (TimestampType(), HourTransform(), 2**63 - 1),
        (TimestampType(), YearTransform(), -(2**63)),
    ],
)
def test_a_value_that_its_partition_would_hide_is_refused(
    lake: Lake, kind: IcebergType, divided: Transform[Any, Any], value: int
) -> None:
    schema = _arrow(NestedField(1, "k", kind))
    first, hidden = (pa.Table.from_arrays([pa.array([each], schema[0].type)], schema=schema) for each in (0, value))
    with txpool.transaction():
        lake.catalog.create_namespace("db")
        table = lake.catalog.create_table("db.t", Schema(NestedField(1, "k", kind)))
        with table.update_spec() as update:
            update.add_field("k", divided, "part")
        table.append(first)
        before = lake.files()
        with pytest.raises(DataError, match="would not be found"):
            table.append(pa.concat_tables([first, hidden]))
        assert lake.files() == before
    with txpool.transaction():
        assert lake.catalog.load_table("db.t").scan().to_arrow().equals(first)


@IN_SQLITE
def test_a_datetime_with_a_time_zone_is_compared_with_instants_alone(lake: Lake) -> None:
    fields = [NestedField(1, "instant", TimestamptzType()), NestedField(2, "at", TimestampType())]
    row = {"instant": DAY.replace(tzinfo=datetime.UTC), "at": DAY}
    with txpool.transaction():
        lake.catalog.create_namespace("db")
        table = lake.catalog.create_table("db.t", Schema(*fields))
        table.append(pa.Table.from_pylist([row], schema=_arrow(*fields)))
    with txpool.transaction():
        table = lake.catalog.load_table("db.t")
        for condition in (EqualTo("instant", DAY), EqualTo("at", row["instant"]), NotEqualTo("at", row["instant"])):
            with pytest.raises(txpool.ProgrammingError, match="time zone is no value of timestamp"):
                table.scan(row_filter=condition).to_arrow()
            with pytest.raises(txpool.ProgrammingError, match="time zone is no value of timestamp"):
                table.delete(condition)
        with pytest.raises(ValueError, match="nanoseconds"):
            EqualTo("at", pd.Timestamp(DAY) + pd.Timedelta(1, "ns"))
        for condition in (EqualTo("instant", DAY.replace(hour=1, tzinfo=BERLIN)), EqualTo("at", DAY)):
            assert table.scan(row_filter=condition).to_arrow().num_rows == 1
        for key in ("instant", "at"):
            assert table.upsert(pa.Table.from_pylist([row], schema=_arrow(*fields)), [key]).rows_inserted == 0
    with txpool.transaction():
        assert lake.catalog.load_table("db.t").scan().to_arrow().to_pylist() == [row]


@IN_SQLITE
@pytest.mark.parametrize("kind", [FloatType(), DoubleType()], ids=str)
def test_an_infinite_float_is_found(lake: Lake, kind: IcebergType) -> None:
    schema = _arrow(NestedField(1, "v", kind))
    rows = pa.table({"v": [math.inf, -math.inf, 2.0**24]}, schema=schema)
    with txpool.transaction():
        lake.catalog.create_namespace("db")
        table = lake.catalog.create_table("db.t", Schema(NestedField(1, "v", kind)))
        table.append(rows)
        assert table.upsert(rows, ["v"]).rows_inserted == 0
        assert table.scan(row_filter=GreaterThanOrEqual("v", math.inf)).to_arrow().num_rows == 1
        table.delete(EqualTo("v", -math.inf))
        with pytest.raises(txpool.ProgrammingError, match="would be rounded"):
            table.delete(GreaterThanOrEqual("v", 1e39 if isinstance(kind, FloatType) else 2**53 + 1))
        assert table.scan(row_filter="v = 'inf'").to_arrow().num_rows == 1
    with txpool.transaction():
        found = lake.catalog.load_table("db.t").scan(row_filter=GreaterThanOrEqual("v", 2**24)).to_arrow()
    assert sorted(found["v"].to_pylist()) == [2.0**24, math.inf]
