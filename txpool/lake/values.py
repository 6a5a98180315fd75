"""What pyarrow, pandas and Polars have made, as an Arrow table whose values a lake stores as they are.

pyarrow and pyiceberg convert some values in silence. What would be changed so is refused, before a file is made.
"""

from __future__ import annotations

import datetime
import sys
from collections import Counter
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from txpool.errors import DataError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from pyiceberg.table.metadata import TableMetadata

_UNITS = {"s": 1_000_000, "ms": 1_000}
_UTC = ("UTC", "+00:00", "Etc/UTC", "Z")


def arrow_of(frame: Any, schema: pa.Schema, where: str) -> pa.Table:
    """The frame as an Arrow table that fits the table's schema. DataError if a value would change."""
    pandas = sys.modules.get("pandas")
    if pandas is not None and isinstance(frame, pandas.DataFrame):
        _require_plain(frame, pandas, where)
    if isinstance(frame, pa.Table):
        table = frame
    elif hasattr(frame, "__arrow_c_stream__"):
        table = pa.table(frame)
    else:
        raise DataError(
            f"{where}: a {type(frame).__name__} has no Arrow stream, and nothing was written: pass a table of pyarrow, "
            "or a DataFrame of pandas or Polars"
        )
    wanted = {field.name: field for field in schema}
    names = table.column_names
    for faulty, wrong in (
        ([name for name in names if name not in wanted], "the table has no column"),
        ([name for name, times in Counter(names).items() if times > 1], "the frame has twice the column"),
    ):
        if faulty:
            raise DataError(f"{where}: {wrong} {', '.join(faulty)}, and nothing was written")
    if not names and getattr(frame, "shape", (0,))[0]:
        raise DataError(f"{where}: the frame has rows and no columns, and nothing was written")
    # Without metadata: the ids of another table's columns would tell pyiceberg where values belong, in place of names.
    fields, columns = [], []
    for column, field in zip(table.columns, table.schema, strict=True):
        whole = not wanted[field.name].nullable and not column.null_count  # of frames each column may have nulls
        fields.append(pa.field(field.name, _without_views(field.type), field.nullable and not whole))
    for column, field in zip(table.columns, fields, strict=True):
        _require_kept(column, wanted[field.name].type, f"{where}: column {field.name}")
        columns.append(column if column.type == field.type else _as_kind(column, field.type))
    return pa.Table.from_arrays(columns, schema=pa.schema(fields))


def _as_kind(column: pa.ChunkedArray, kind: pa.DataType) -> pa.ChunkedArray:
    if not pa.types.is_dictionary(column.type):
        return column.cast(kind)
    # Arrow takes nothing out of views, as which Polars has the texts of categories.
    return pa.chunked_array([each.dictionary.cast(kind).take(each.indices) for each in column.chunks], kind)


def exactly(table: pa.Table, schema: pa.Schema, where: str) -> pa.Table:
    """What `arrow_of` has made, with the schema's columns, types and order; what is missing is null.

    DataError for a column of another kind. ValueError, TypeError, NotImplementedError for a value that does not fit.
    """
    columns = []
    for field in schema:
        if field.name not in table.column_names:
            columns.append(pa.nulls(table.num_rows, field.type))
            continue
        column = table[field.name]
        if not _is_of_kind(column.type, field.type):
            raise DataError(
                f"{where}: column {field.name} is {column.type}, and {field.type} in the table, and nothing was "
                "written. Cast it first, so that you see what changes"
            )
        columns.append(column.cast(field.type))
    return pa.Table.from_arrays(columns, schema=schema)


def _is_of_kind(given: pa.DataType, wanted: pa.DataType) -> bool:
    """Whether values of the one type may be values of the other, if they fit."""
    kind = pa.types
    if kind.is_dictionary(given):
        return _is_of_kind(given.value_type, wanted)
    if kind.is_struct(given) and kind.is_struct(wanted):
        return {each.name for each in given} == {each.name for each in wanted} and all(
            _is_of_kind(*pair) for pair in _parts(given, wanted)
        )
    if kind.is_map(given) and kind.is_map(wanted):
        return _is_of_kind(given.key_type, wanted.key_type) and _is_of_kind(given.item_type, wanted.item_type)
    if _is_list(given) and _is_list(wanted):
        return _is_of_kind(given.value_type, wanted.value_type)
    kinds = (_is_text, _is_bytes, kind.is_boolean, kind.is_integer, kind.is_floating, kind.is_decimal, kind.is_date)
    return kind.is_null(given) or any(each(given) and each(wanted) for each in (*kinds, kind.is_timestamp))


def _is_list(kind: pa.DataType) -> bool:
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind))


def require_partitionable(table: pa.Table, metadata: TableMetadata, where: str) -> None:
    """DataError for NaN or -0.0 in a column by whose values a table is partitioned: pyiceberg loses or doubles rows."""
    from pyiceberg.types import DoubleType, FloatType

    schema = metadata.schema()
    for part in metadata.spec().fields:
        if not isinstance(schema.find_type(part.source_id), (FloatType, DoubleType)):
            continue
        whole = str(schema.find_column_name(part.source_id))
        first, *within = [whole] if whole in table.column_names else whole.split(".")
        if first not in table.column_names:
            continue
        values = pc.struct_field(table[first], within) if within else table[first]
        signs = pc.is_in(pc.divide(pa.scalar(1.0, values.type), values), pa.array([float("-inf")], values.type))
        if pc.any(pc.or_(pc.is_nan(values), signs)).as_py():
            raise DataError(
                f"{where} is partitioned by {whole}, which has NaN or -0.0, and nothing was "
                "written: such rows would be lost or doubled. Partition by another column, or replace these values"
            )


def _require_plain(frame: Any, pandas: Any, where: str) -> None:
    """Arrow would drop the name of a range, or make a column of an index."""
    index = frame.index
    if not isinstance(index, pandas.RangeIndex) or any(name is not None for name in index.names):
        raise DataError(
            f"{where}: the DataFrame has an index that is no plain range, which would be lost or become a column, and "
            "nothing was written. Write frame.reset_index(), with drop=True if the index is to be dropped"
        )
    for name, column in frame.items():
        if column.dtype == object:
            _require_one_kind(column, f"{where}: column {name}")


def _require_one_kind(column: Any, where: str) -> None:
    """Of several kinds, Arrow makes one: datetimes of several time zones those of the first, or dates, texts bytes."""
    kinds: dict[tuple[Any, ...], set[str]] = {}
    for path, value in _parts_of(column):
        lost = ""
        if isinstance(value, datetime.datetime):
            if type(value).__name__ != "NaTType":  # which is a datetime
                kinds.setdefault(path, set()).add(f"datetimes of the time zone {value.tzinfo}")
                lost = "nanoseconds" if getattr(value, "nanosecond", 0) else ""
        elif isinstance(value, datetime.date):
            kinds.setdefault(path, set()).add("dates")
        elif isinstance(value, (str, bytes, bytearray, memoryview)):
            kinds.setdefault(path, set()).add("texts" if isinstance(value, str) else "bytes")
        elif isinstance(value, datetime.time):
            lost = "" if value.tzinfo is None else "time zone"
        elif isinstance(value, Decimal) and not value.is_finite():
            raise DataError(f"{where} has the decimal {value}, which Iceberg lacks, and nothing was written")
        if lost:
            raise DataError(f"{where} has {value}, whose {lost} would be lost, and nothing was written")
    for found in kinds.values():
        if len(found) > 1:
            raise DataError(
                f"{where} has {', '.join(sorted(found))}, and nothing was written: convert them to one, datetimes by "
                "astimezone(datetime.UTC)"
            )


def _parts_of(values: Iterable[Any], path: tuple[Any, ...] = ()) -> Iterator[tuple[tuple[Any, ...], Any]]:
    """What is in a column, also within its lists and dicts, with the names that lead there."""
    for value in values:
        if isinstance(value, dict):
            for name, part in value.items():
                yield from _parts_of([part], (*path, name))
        elif isinstance(value, (list, tuple)) or getattr(getattr(value, "dtype", None), "kind", "") == "O":
            yield from _parts_of(value, (*path, None))
        else:
            yield path, value


def _require_kept(column: pa.ChunkedArray, wanted: pa.DataType, where: str) -> None:
    reason = _change(column.type, wanted)
    if reason:
        raise DataError(
            f"{where} is {column.type}, and {wanted} in the table: {reason}, and nothing was written. Cast it first, "
            "so that you see what changes"
        )
    if pa.types.is_timestamp(wanted) and pa.types.is_timestamp(column.type) and column.type.unit in _UNITS:
        limit = (2**63 - 1) // _UNITS[column.type.unit]
        extremes = pc.min_max(column.cast(pa.int64()))
        if any(each is not None and abs(each) > limit for each in extremes.as_py().values()):
            raise DataError(f"{where} has a time that microseconds cannot hold, and nothing was written")


def _change(given: pa.DataType, wanted: pa.DataType) -> str:  # noqa: PLR0911, PLR0912 - a table of types
    """Why values would change; empty if they would not, or pyiceberg itself refuses them."""
    if pa.types.is_dictionary(given):
        return _change(given.value_type, wanted)
    if pa.types.is_timestamp(given) and pa.types.is_timestamp(wanted):
        if given.unit == "ns" and wanted.unit != "ns":
            return "nanoseconds would be cut off"
        if (given.tz is None) != (wanted.tz is None):
            return "a time without a zone and an instant are not the same"
        if given.tz is not None and given.tz not in _UTC:
            return "the time zone would be lost"
    elif pa.types.is_decimal(given) and pa.types.is_decimal(wanted):
        if given.scale != wanted.scale or given.precision > wanted.precision:
            return "the decimals would be rounded, or may not fit"
    elif pa.types.is_time(given) and pa.types.is_time(wanted):
        if given.unit == "ns":
            return "nanoseconds would be cut off"
    elif pa.types.is_nested(given) and pa.types.is_nested(wanted):
        if pa.types.is_struct(given) and len({*given.names}) < given.num_fields:
            return "a struct has two fields of one name, of which one would be lost"
        return next((why for pair in _parts(given, wanted) if (why := _change(*pair))), "")
    elif pa.types.is_unsigned_integer(given) and pa.types.is_integer(wanted):
        if given.bit_width >= wanted.bit_width:
            return "large numbers would become negative"
    elif (_is_text(given) and _is_bytes(wanted)) or (_is_bytes(given) and _is_text(wanted)):
        return "a text and bytes are not the same"
    elif pa.types.is_integer(given) and pa.types.is_floating(wanted):
        return "a float does not hold every integer"
    elif pa.types.is_float64(given) and pa.types.is_float32(wanted):
        return "digits would be lost"
    elif pa.types.is_date64(given):
        return "the time of day would be lost"
    return ""


def _parts(given: pa.DataType, wanted: pa.DataType) -> list[tuple[pa.DataType, pa.DataType]]:
    """The types within two nested types, in pairs: of structs by name."""
    fields = [given.field(n) for n in range(given.num_fields)]
    if pa.types.is_struct(given) and pa.types.is_struct(wanted):
        return [(each.type, wanted.field(each.name).type) for each in fields if each.name in wanted.names]
    if given.num_fields != wanted.num_fields:
        return []
    return [(each.type, wanted.field(n).type) for n, each in enumerate(fields)]


def _is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind))


def _is_bytes(kind: pa.DataType) -> bool:
    return bool(pa.types.is_binary(kind) or pa.types.is_large_binary(kind) or pa.types.is_binary_view(kind))


def _without_views(kind: pa.DataType) -> pa.DataType:
    """The type with what pyiceberg knows in place of views, as Polars has them."""

    def within(field: pa.Field) -> pa.Field:
        return field.with_type(_without_views(field.type))

    made = kind
    if pa.types.is_string_view(kind):
        made = pa.large_string()
    elif pa.types.is_binary_view(kind):
        made = pa.large_binary()
    elif "_view" not in str(kind):
        pass
    elif pa.types.is_struct(kind):
        made = pa.struct([within(kind.field(n)) for n in range(kind.num_fields)])
    elif pa.types.is_map(kind):
        made = pa.map_(within(kind.key_field), within(kind.item_field))
    elif pa.types.is_dictionary(kind):
        made = _without_views(kind.value_type)
    else:
        made = pa.large_list(within(kind.value_field))
    return made
