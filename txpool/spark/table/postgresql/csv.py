"""COPY's CSV, which Arrow writes: NULL is nothing, and every text has quotes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import csv

from txpool.spark.types.buffers import hexadecimal

_OPTIONS = csv.WriteOptions(include_header=False, quoting_style="needed")
_TEXT = pa.large_string()
_QUOTE, _NOTHING, _NULL = pa.scalar('"', _TEXT), pa.scalar("", _TEXT), pa.scalar("NULL", _TEXT)


def field(array: pa.Array, kind: str) -> pa.Array:
    """A column in a form that Arrow writes as PostgreSQL's type reads it; a list as an array."""
    if not pa.types.is_list(array.type) and not pa.types.is_large_list(array.type):
        return _FORMS.get(kind, _as_it_is)(array)
    elements = _FORMS.get(kind, _as_it_is)(array.flatten()).cast(_TEXT)
    for character in ("\\", '"'):
        elements = pc.replace_substring(elements, character, "\\" + character)
    elements = pc.coalesce(pc.binary_join_element_wise(_QUOTE, elements, _QUOTE, _NOTHING), _NULL)
    lengths = pc.fill_null(pc.list_value_length(array), 0).cast(pa.int64())
    offsets = pa.concat_arrays([pa.array([0], pa.int64()), pc.cumulative_sum(lengths)])
    joined = pc.binary_join(pa.LargeListArray.from_arrays(offsets, elements), pa.scalar(",", _TEXT))
    arrays = pc.binary_join_element_wise(pa.scalar("{", _TEXT), joined, pa.scalar("}", _TEXT), _NOTHING)
    return pc.if_else(array.is_valid(), arrays, pa.scalar(None, _TEXT))


def rows(fields: Sequence[Any], _: int) -> memoryview:
    """The rows of the columns, as CSV."""
    written = pa.BufferOutputStream()
    batch = pa.RecordBatch.from_arrays([*fields], [str(number) for number, _ in enumerate(fields)])
    csv.write_csv(batch, written, _OPTIONS)
    return memoryview(written.getvalue())


def _as_it_is(array: pa.Array) -> pa.Array:
    return array


def _bytes(array: pa.Array) -> pa.Array:
    digits = hexadecimal(pc.fill_null(array, b"").cast(pa.large_binary())).cast(_TEXT)
    return pc.if_else(array.is_valid(), pc.binary_join_element_wise(pa.scalar("\\x", _TEXT), digits, _NOTHING), None)


def _timestamps(array: pa.Array) -> pa.Array:
    """A timestamp with time zone is written in UTC, and its text ends with Z."""
    return array.cast(pa.timestamp("us", None if array.type.tz is None else "UTC"))


def _intervals(array: pa.Array) -> pa.Array:
    """Hours, minutes and seconds: the server's days have no fixed length."""
    return pa.array([None if each is None else _clock(each) for each in array.cast(pa.int64()).to_pylist()], _TEXT)


def _clock(microseconds: int) -> str:
    seconds, rest = divmod(abs(microseconds), 1_000_000)
    sign = "-" if microseconds < 0 else ""
    return f"{sign}{seconds // 3600}:{seconds // 60 % 60:02}:{seconds % 60:02}.{rest:06}"


_FORMS: dict[str, Any] = {
    "bytea": _bytes,
    "timestamp": _timestamps,
    "time": lambda array: array.cast(pa.time64("us")),
    "interval": _intervals,
}
