"""What pyarrow or pyiceberg would change in silence is refused, before a file is made."""

from __future__ import annotations

import datetime
from decimal import Decimal
from typing import Any
from zoneinfo import ZoneInfo

import pandas as pd
import pyarrow as pa
import pytest
from pyiceberg.schema import Schema
from pyiceberg.types import DecimalType, DoubleType, LongType, NestedField, StringType, TimestampType, TimestamptzType

from txpool.errors import DataError
from txpool.lake.values import arrow_of

TABLE = Schema(
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
        (pd.DataFrame({"id": [1]}, index=pd.Index([7], name="key")), "reset_index"),
        (pd.DataFrame({"id": [1]}, index=pd.RangeIndex(1, name="key")), "reset_index"),
        (_series([DAY, DAY.replace(tzinfo=BERLIN)]), "time zones"),
        (_series([Decimal("NaN")]), "Iceberg lacks"),
        ([{"id": 1}], "no Arrow stream"),
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
