"""SQLite tables as targets of a write: reads their description, matches columns, and converts values.

SQLite silently converts values by the affinity of the column's declared type, and may lose digits by it. So a column
accepts only types of Spark of which it keeps every value.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import closing
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame
from pyspark.sql import types as T
from pyspark.sql.types import DataType, StructField

from txpool.datasource import DataSource
from txpool.errors import NotSupportedError, ProgrammingError
from txpool.spark.table.target import Target
from txpool.spark.types import checks
from txpool.spark.types.columns import (
    TEXT,
    WHOLE,
    Column,
    Layout,
    cast_expression,
    mismatch,
    pair,
    require_json,
    selected,
    type_mismatch,
)
from txpool.spark.types.encoding import ColumnEncoding, misfit, require_kept
from txpool.spark.types.identifiers import quoted
from txpool.spark.types.nested import NESTED, as_json

if TYPE_CHECKING:
    from txpool.dbapi.cursor import PEP249Cursor

_NAME = re.compile(r'(?:("(?:[^"]|"")+"|[^".]+)\.)?("(?:[^"]|"")+"|[^".]+)')
#: Values of `hidden` in `pragma table_xinfo` for generated columns.
_VIRTUAL, _STORED = 2, 3
#: The default collation.
_BINARY = "BINARY"
#: The number of digits that survive if SQLite stores a decimal as a number.
_MAX_DIGITS = 15

_DATES_AND_TIMES = (T.DateType, T.TimeType, T.TimestampType, T.TimestampNTZType)
_NUMBERS = (T.BooleanType, *WHOLE)
#: Spark's types whose values a column keeps, by the kind of column that `_affinity` returns.
_ACCEPTED: Mapping[str, tuple[type[DataType], ...]] = {
    "integer": _NUMBERS,
    "real": (T.FloatType, T.DoubleType, T.ByteType, T.ShortType, T.IntegerType, T.DecimalType),
    "numeric": (*_NUMBERS, T.FloatType, T.DoubleType, T.DecimalType, T.BinaryType),
    "text": (*TEXT, *NESTED, *_DATES_AND_TIMES, T.DecimalType),
    "blob": (*_NUMBERS, T.FloatType, T.DoubleType, *TEXT, *NESTED, *_DATES_AND_TIMES, T.DecimalType, T.BinaryType),
    "date or time": _DATES_AND_TIMES,
    "json": (T.StructType, T.MapType, T.ArrayType),
}
#: The type to cast to, as Spark writes it, if a column does not accept what it is given.
_CASTS: Mapping[str, str] = {
    "integer": "bigint",
    "real": "double",
    "numeric": "bigint",
    "text": "string",
    "blob": "binary",
    "date or time": "timestamp",
    "json": "array<string>",
}
#: The declared type of a column of a new table.
_NEW_TYPES: Mapping[type[DataType], str] = {
    T.BooleanType: "boolean",
    T.FloatType: "real",
    T.DoubleType: "real",
    T.DateType: "date",
    T.TimeType: "time",
    T.TimestampType: "timestamp",
    T.TimestampNTZType: "timestamp",
    T.BinaryType: "blob",
    **dict.fromkeys(WHOLE, "integer"),
    **dict.fromkeys((*TEXT, *NESTED), "text"),
}


def read_target(
    datasource: DataSource, table: str, new: Sequence[tuple[str, str]] | None = None, keys: Sequence[str] = ()
) -> Target:
    """Describe the table, or what it would be with the columns `new`; nothing is written.

    Reads in the ambient transaction, which may then hold the lock of the file. ProgrammingError if there is no table
    and `new` is None; NotSupportedError for a view.
    """
    parts = _NAME.fullmatch(table)
    if parts is None:
        raise ProgrammingError(f"{table!r} is not the name of a table: write table, or schema.table. Nothing was done.")
    schema, name = (_unquoted(part) for part in (parts[1] or "main", parts[2]))
    full = f"{quoted(schema)}.{quoted(name)}"
    with closing(datasource.connect()) as connection:
        cursor = connection.cursor()
        query = f"select name, type from {quoted(schema)}.sqlite_master where lower(name) = lower(?)"
        found = cursor.execute(f"{query} and type in ('table', 'view')", [name]).fetchone()
        if found is None and new is None:
            raise ProgrammingError(
                f"there is no table {full} in {datasource.name}: name an existing table, or create it by create=True. "
                "Nothing was done."
            )
        if found is None:
            columns = [Column(column, declared, _affinity(declared)) for column, declared in new or ()]
            return Target(full, tuple(columns), (frozenset(keys),), exists=False, overriding="")
        name, kind = found
        if kind == "view":
            raise NotSupportedError(f"{table} in {datasource.name} is a view: name the table behind it")
        unique, collations = _indexes(cursor, schema, name)
        described = _pragma(cursor, schema, "table_xinfo", name)
    primary = [(column, declared.upper()) for _, column, declared, _, _, key, _ in described if key]
    rowid = [column for column, declared in primary if len(primary) == 1 and declared == "INTEGER"]
    unique += [frozenset(rowid)] if rowid else []
    columns = []
    for _, column, declared, required, default, _, hidden in described:
        collation = collations.get(column, _BINARY)
        compared = "" if collation == _BINARY else f" collate {quoted(collation)}"
        missing = bool(required) and default is None and column not in rowid
        generated = hidden in (_VIRTUAL, _STORED)
        columns.append(
            Column(
                column,
                declared + compared,
                _affinity(declared),
                required=missing,
                generated=generated,
                numbered=column in rowid,
            )
        )
    return Target(f"{quoted(schema)}.{quoted(name)}", tuple(columns), tuple(unique), overriding="")


def _indexes(cursor: PEP249Cursor, schema: str, table: str) -> tuple[list[frozenset[str]], dict[str, str]]:
    """The columns of each unique index, and the collations of these columns."""
    unique: list[frozenset[str]] = []
    collations: dict[str, str] = {}
    for _, index, is_unique, _, is_partial in _pragma(cursor, schema, "index_list", table):
        if not is_unique or is_partial:
            continue
        keys = [
            (name, collation)
            for _, _, name, _, collation, is_key in _pragma(cursor, schema, "index_xinfo", index)
            if is_key
        ]
        if None not in (name for name, _ in keys):
            unique.append(frozenset(name for name, _ in keys))
            collations.update(keys)
    return unique, collations


def _pragma(cursor: PEP249Cursor, schema: str, pragma: str, of: str) -> list[Any]:
    rows: list[Any] = cursor.execute(f"pragma {quoted(schema)}.{pragma}({quoted(of)})").fetchall()
    return rows


def _unquoted(name: str) -> str:
    return name[1:-1].replace('""', '"') if name.startswith('"') else name


def _affinity(declared: str) -> str:
    """The affinity of a declared type by SQLite's rules; numeric is split further into date or time, and JSON."""
    name = declared.upper()
    for kind, marks in (
        ("integer", ("INT",)),
        ("text", ("CHAR", "CLOB", "TEXT")),
        ("blob", ("BLOB",)),
        ("real", ("REAL", "FLOA", "DOUB")),
        ("date or time", ("DATE", "TIME")),
        ("json", ("JSON",)),
    ):
        if any(mark in name for mark in marks):
            return kind
    return "numeric" if name else "blob"


def definitions(fields: Iterable[StructField]) -> list[tuple[str, str]]:
    """Names and declarations of a new table's columns. ProgrammingError if a type has no counterpart."""
    return [(field.name, _new_type(field) + ("" if field.nullable else " not null")) for field in fields]


def _new_type(field: StructField) -> str:
    kind = field.dataType
    if isinstance(kind, T.DecimalType):
        return f"decimal({kind.precision},{kind.scale})" if kind.precision <= _MAX_DIGITS else "text"
    if type(kind) not in _NEW_TYPES:
        raise mismatch(
            f"column {field.name}", f"is {kind.simpleString()}, which SQLite cannot store: cast it, or drop it"
        )
    return _NEW_TYPES[type(kind)]


def match(df: DataFrame, columns: Sequence[Column], table: str) -> tuple[DataFrame, Layout]:
    """The DataFrame with the table's column names, and its layout. ProgrammingError if a column does not fit."""
    pairs, layout = pair(df.schema.fields, columns, table, _encoding)
    return selected(df, pairs, _conversion), layout


def _conversion(field: StructField, _: Column) -> Callable[[Any], Any] | None:
    """Nested data is converted to JSON in Spark."""
    return as_json if isinstance(field.dataType, NESTED) else None


def _encoding(field: StructField, column: Column, table: str) -> ColumnEncoding:
    given = field.dataType
    if not isinstance(given, _ACCEPTED[column.type]):
        raise type_mismatch(
            field,
            column,
            table,
            f"SQLite would change some values: declare the column differently, or cast it: "
            f"{cast_expression(field, _CASTS[column.type])}",
        )
    if isinstance(given, T.DecimalType) and given.precision > _MAX_DIGITS and column.type not in ("text", "blob"):
        raise type_mismatch(
            field, column, table, f"SQLite keeps {_MAX_DIGITS} digits in it: cast it, or declare the column text"
        )
    require_json(field, column, table)
    signless = isinstance(given, T.FloatType | T.DoubleType) and column.type in ("real", "numeric")
    nested = isinstance(given, NESTED)
    return ColumnEncoding(field.name, given.typeName(), nested=nested, numbered=column.numbered, signless=signless)


def converted(batch: pa.RecordBatch, encodings: Sequence[ColumnEncoding]) -> pa.RecordBatch:
    """The batch in SQLite's types: integers, reals, text and blobs. DataError for a value that SQLite cannot store."""
    columns = [_converted(array, encoding) for array, encoding in zip(batch.columns, encodings, strict=True)]
    return pa.RecordBatch.from_arrays(columns, batch.schema.names)


def _converted(array: pa.Array, encoding: ColumnEncoding) -> pa.Array:
    convert = _CONVERSIONS.get(encoding.kind)
    try:
        require_kept(array, encoding)
        return array if convert is None else convert(array)
    except (pa.ArrowInvalid, ValueError) as error:
        raise misfit(encoding, error) from error


def _text(array: pa.Array) -> pa.Array:
    array.validate(full=True)  # Spark's strings may be any bytes, SQLite's are UTF-8
    return array


def _float(array: pa.Array) -> pa.Array:
    if pc.any(pc.is_nan(array)).as_py():
        raise ValueError("it is NaN, which SQLite would store as NULL")
    return array


def _date(array: pa.Array) -> pa.Array:
    checks.require_days(array)
    return array.cast(pa.string())


def _timestamp(array: pa.Array) -> pa.Array:
    checks.require_moments(array)
    return array.cast(pa.string())


def _decimal_text(array: pa.Array) -> pa.Array:
    # Arrow would write small decimals with an exponent.
    return pa.array([None if value is None else f"{value:f}" for value in array.to_pylist()], pa.string())


def _time_of_day(array: pa.Array) -> pa.Array:
    return array.cast(pa.time64("us")).cast(pa.string())


def _instant(array: pa.Array) -> pa.Array:
    """Timestamps with time zone as text in UTC, with the offset."""
    checks.require_moments(array)
    return pc.binary_join_element_wise(array.cast(pa.timestamp("us")).cast(pa.string()), "+00:00", "")


_CONVERSIONS: Mapping[str, Callable[[Any], Any]] = {
    "decimal": _decimal_text,
    **dict.fromkeys(("string", "char", "varchar"), _text),
    "date": _date,
    "timestamp_ntz": _timestamp,
    "float": _float,
    "double": _float,
    "timestamp": _instant,
    "time": _time_of_day,
}
