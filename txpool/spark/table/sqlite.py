"""A table of SQLite's as a target: how it describes itself, and what of Spark's its columns keep as it is.

SQLite converts what is put into a column by the affinity of its declared type, and says nothing where that costs
digits. So a type is let in only where no value of it can come out as another.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import closing
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - as every user of Spark knows it
from pyspark.sql import types as T  # noqa: N812
from pyspark.sql.types import DataType, StructField

from txpool.datasource import DataSource
from txpool.errors import DataError, NotSupportedError, ProgrammingError
from txpool.spark.table.target import Target, quoted
from txpool.spark.types.columns import NESTED, TEXT, WHOLE, Column, Layout, mismatch, pair, selected, unfit
from txpool.spark.types.encoding import ColumnEncoding

_NAME = re.compile(r'(?:("(?:[^"]|"")+"|[^".]+)\.)?("(?:[^"]|"")+"|[^".]+)')
#: What `pragma table_xinfo` says of columns that are generated.
_VIRTUAL, _STORED = 2, 3
#: How values are told apart that nothing is said of.
_BINARY = "BINARY"
#: Digits that survive where SQLite makes a number of a decimal.
_DIGITS = 15

_MOMENTS = (T.DateType, T.TimeType, T.TimestampType, T.TimestampNTZType)
_NUMBERS = (T.BooleanType, *WHOLE)
#: By what a column is, from `_kind`: Spark's types whose values it keeps.
_TAKES: Mapping[str, tuple[type[DataType], ...]] = {
    "integer": _NUMBERS,
    "real": (T.FloatType, T.DoubleType, T.ByteType, T.ShortType, T.IntegerType, T.DecimalType),
    "numeric": (*_NUMBERS, T.FloatType, T.DoubleType, T.DecimalType, T.BinaryType),
    "text": (*TEXT, *NESTED, *_MOMENTS, T.DecimalType),
    "blob": (*_NUMBERS, T.FloatType, T.DoubleType, *TEXT, *NESTED, *_MOMENTS, T.DecimalType, T.BinaryType),
    "moment": _MOMENTS,
    "json": (T.StructType, T.MapType, T.ArrayType),
}
#: What a column of a new table is declared as.
_NEW: Mapping[type[DataType], str] = {
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
    """The table as it is, or would be with the columns `new`; nothing is written. ProgrammingError where it is missing.

    As the ambient transaction sees it, which then has the file's lock.
    """
    parts = _NAME.fullmatch(table)
    if parts is None:
        raise ProgrammingError(f"{table!r} is no table's name: write table, or schema.table. Nothing was done.")
    schema, name = (_plain(part) for part in (parts[1] or "main", parts[2]))
    full = f"{quoted(schema)}.{quoted(name)}"
    with closing(datasource.connect()) as connection:
        cursor = connection.cursor()
        query = f"select name, type from {quoted(schema)}.sqlite_master where lower(name) = lower(?)"  # noqa: S608
        found = cursor.execute(f"{query} and type in ('table', 'view')", [name]).fetchone()
        if found is None and new is None:
            raise ProgrammingError(
                f"there is no table {full} in {datasource.name}: name one that is, or let it be made by create=True. "
                "Nothing was done."
            )
        if found is None:
            columns = [Column(column, declared, _kind(declared)) for column, declared in new or ()]
            return Target(full, tuple(columns), (frozenset(keys),), exists=False, overriding="")
        name, kind = found
        if kind == "view":
            raise NotSupportedError(f"{table} in {datasource.name} is a view: name its table")
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
        columns.append(Column(column, declared + compared, _kind(declared), required=missing, generated=generated))
    return Target(f"{quoted(schema)}.{quoted(name)}", tuple(columns), tuple(unique), overriding="")


def _indexes(cursor: Any, schema: str, table: str) -> tuple[list[frozenset[str]], dict[str, str]]:
    """The columns of each unique index, and by what they are told apart where that is not byte by byte."""
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


def _pragma(cursor: Any, schema: str, pragma: str, of: str) -> list[Any]:
    rows: list[Any] = cursor.execute(f"pragma {quoted(schema)}.{pragma}({quoted(of)})").fetchall()
    return rows


def _plain(name: str) -> str:
    return name[1:-1].replace('""', '"') if name.startswith('"') else name


def _kind(declared: str) -> str:
    """The affinity of a declared type by SQLite's own rules; of numeric ones, those that are for something else."""
    name = declared.upper()
    for kind, marks in (
        ("integer", ("INT",)),
        ("text", ("CHAR", "CLOB", "TEXT")),
        ("blob", ("BLOB",)),
        ("real", ("REAL", "FLOA", "DOUB")),
        ("moment", ("DATE", "TIME")),
        ("json", ("JSON",)),
    ):
        if any(mark in name for mark in marks):
            return kind
    return "numeric" if name else "blob"


def definitions(fields: Iterable[StructField]) -> list[tuple[str, str]]:
    """Names and declarations of a new table's columns. ProgrammingError where a type has no counterpart."""
    return [(field.name, _new_type(field) + ("" if field.nullable else " not null")) for field in fields]


def _new_type(field: StructField) -> str:
    kind = field.dataType
    if isinstance(kind, T.DecimalType):
        return f"decimal({kind.precision},{kind.scale})" if kind.precision <= _DIGITS else "text"
    if type(kind) not in _NEW:
        raise mismatch(
            f"column {field.name}", f"is {kind.simpleString()}, which SQLite cannot keep: cast it, or drop it"
        )
    return _NEW[type(kind)]


def match(df: DataFrame, columns: Sequence[Column], table: str) -> tuple[DataFrame, Layout]:
    """The DataFrame's columns as the table wants them. ProgrammingError, which names the column, where one does not."""
    pairs, layout = pair(df.schema.fields, columns, table, _wire)
    return selected(df, pairs, lambda field, _: F.to_json if isinstance(field.dataType, NESTED) else None), layout


def _wire(field: StructField, column: Column, table: str) -> ColumnEncoding:
    given = field.dataType
    if not isinstance(given, _TAKES[column.type]):
        raise unfit(field, column, table, "SQLite would make other values of some: cast it, or declare it otherwise")
    if isinstance(given, T.DecimalType) and given.precision > _DIGITS and column.type not in ("text", "blob"):
        raise unfit(field, column, table, f"SQLite keeps {_DIGITS} digits there: cast it, or declare the column text")
    return ColumnEncoding(field.name, given.typeName())


def converted(batch: pa.RecordBatch, wires: Sequence[ColumnEncoding]) -> pa.RecordBatch:
    """The batch in what SQLite has: whole numbers, floats, text and bytes. DataError for a value that it has not."""
    columns = [
        _CONVERSIONS.get(wire.kind, _same)(array, wire) for array, wire in zip(batch.columns, wires, strict=True)
    ]
    return pa.RecordBatch.from_arrays(columns, batch.schema.names)


def _same(array: Any, wire: ColumnEncoding) -> Any:
    return array


def _number(array: Any, wire: ColumnEncoding) -> Any:
    if pc.any(pc.is_nan(array)).as_py():
        raise DataError(f"column {wire.column}: a value is NaN, which SQLite would make NULL. Nothing was written")
    return array


def _digits(array: Any, wire: ColumnEncoding) -> Any:
    # Arrow writes small ones with an exponent.
    return pa.array([None if value is None else f"{value:f}" for value in array.to_pylist()], pa.string())


def _text(array: Any, wire: ColumnEncoding) -> Any:
    return array.cast(pa.string())


def _of_day(array: Any, wire: ColumnEncoding) -> Any:
    return array.cast(pa.time64("us")).cast(pa.string())


def _instant(array: Any, wire: ColumnEncoding) -> Any:
    """In UTC, and said so."""
    return pc.binary_join_element_wise(array.cast(pa.timestamp("us")).cast(pa.string()), "+00:00", "")


_CONVERSIONS: Mapping[str, Callable[[Any, ColumnEncoding], Any]] = {
    "float": _number,
    "double": _number,
    "decimal": _digits,
    "date": _text,
    "timestamp_ntz": _text,
    "timestamp": _instant,
    "time": _of_day,
}
