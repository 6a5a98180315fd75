"""Matches the columns of a DataFrame with those of a table of PostgreSQL, and checks their types."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql import types as T
from pyspark.sql.types import DataType, StructField

from txpool.spark.table.postgresql.binary import WORD_DIGITS, WORD_SCALE
from txpool.spark.types.checks import JsonCheck
from txpool.spark.types.columns import (
    TEXT,
    WHOLE,
    Column,
    Layout,
    cast_expression,
    mismatch,
    pair,
    require_json,
    require_scale,
    selected,
    type_mismatch,
)
from txpool.spark.types.encoding import ColumnEncoding
from txpool.spark.types.nested import NESTED, as_json


@dataclass(frozen=True, slots=True)
class _PostgreSQLType:
    """How values are written to a type of PostgreSQL."""

    #: The kind of a ColumnEncoding.
    encoding: str
    #: The types of Spark that a column accepts.
    accepts: tuple[type[DataType], ...]


_TEXTS = _PostgreSQLType("text", TEXT)
_TYPES: Mapping[str, _PostgreSQLType] = {
    "bool": _PostgreSQLType("boolean", (T.BooleanType,)),
    "int2": _PostgreSQLType("smallint", WHOLE),
    "int4": _PostgreSQLType("integer", WHOLE),
    "int8": _PostgreSQLType("bigint", WHOLE),
    "float4": _PostgreSQLType("real", (T.FloatType,)),
    "float8": _PostgreSQLType("double precision", (T.DoubleType, T.FloatType, T.ByteType, T.ShortType, T.IntegerType)),
    "numeric": _PostgreSQLType("numeric", (T.DecimalType, *WHOLE)),
    "text": _TEXTS,
    "varchar": _TEXTS,
    "bpchar": _TEXTS,
    "citext": _TEXTS,
    "json": _PostgreSQLType("text", (*TEXT, *NESTED)),
    "jsonb": _PostgreSQLType("jsonb", (*TEXT, *NESTED)),
    "uuid": _PostgreSQLType("uuid", TEXT),
    "bytea": _PostgreSQLType("bytea", (T.BinaryType,)),
    "date": _PostgreSQLType("date", (T.DateType,)),
    "time": _PostgreSQLType("time", (T.TimeType,)),
    "timestamp": _PostgreSQLType("timestamp", (T.TimestampNTZType, T.TimestampType)),
    "timestamptz": _PostgreSQLType("timestamp", (T.TimestampType,)),
    "interval": _PostgreSQLType("interval", (T.DayTimeIntervalType,)),
}
_JSON = ("json", "jsonb")
#: The kinds that have no binary form here.
_AS_TEXT = ("jsonb", "interval")
#: The most digits below a second, which Spark has.
_MICROSECOND_DIGITS = 6
_TIMES = ("time", "timestamp", "timestamptz")
#: The type to cast to, as Spark writes it, if a column does not accept what it is given.
_CASTS: Mapping[str, str] = {
    "bool": "boolean",
    "int2": "smallint",
    "int4": "int",
    "int8": "bigint",
    "float4": "float",
    "float8": "double",
    "bytea": "binary",
    "date": "date",
    "time": "time",
    "timestamp": "timestamp_ntz",
    "timestamptz": "timestamp",
    "interval": "interval day to second",
}
#: The types of a new table's columns; `new_type` adds decimals and arrays.
_NEW_TYPES: Mapping[type[DataType], str] = {
    T.BooleanType: "boolean",
    T.ByteType: "smallint",
    T.ShortType: "smallint",
    T.IntegerType: "integer",
    T.LongType: "bigint",
    T.FloatType: "real",
    T.DoubleType: "double precision",
    T.StringType: "text",
    T.CharType: "text",
    T.VarcharType: "text",
    T.BinaryType: "bytea",
    T.DateType: "date",
    T.TimeType: "time",
    T.TimestampType: "timestamptz",
    T.TimestampNTZType: "timestamp",
    T.DayTimeIntervalType: "interval",
    T.StructType: "jsonb",
    T.MapType: "jsonb",
    T.VariantType: "jsonb",
}


def match(df: DataFrame, columns: Sequence[Column], table: str) -> tuple[DataFrame, Layout]:
    """The DataFrame with the names and types that the table needs, and its layout. Errors: as `pair`."""
    pairs, layout = pair_columns(df.schema.fields, columns, table)
    return selected(df, pairs, _conversion), layout


def pair_columns(
    fields: Iterable[StructField], columns: Sequence[Column], table: str
) -> tuple[list[tuple[StructField, Column]], Layout]:
    """Each field with its column, and the layout. ProgrammingError if a column does not fit."""
    return pair(fields, columns, table, _encoding)


def definitions(fields: Iterable[StructField], keys: Sequence[str] = ()) -> list[tuple[str, str]]:
    """Names and declarations of a new table's columns. ProgrammingError if a type has no counterpart."""
    return [(field.name, new_type(field) + ("" if field.nullable else " not null")) for field in fields]


def new_type(field: StructField) -> str:
    """The type of a new table's column."""
    kind = field.dataType
    if isinstance(kind, T.DecimalType):
        return f"numeric({kind.precision},{kind.scale})"
    if isinstance(kind, T.ArrayType):
        if isinstance(kind.elementType, NESTED):
            return "jsonb"
        return new_type(StructField(field.name, kind.elementType)) + "[]"
    found = _NEW_TYPES.get(type(kind))
    if found is None:
        raise mismatch(
            f"column {field.name}", f"is {kind.simpleString()}, for which PostgreSQL has no type: cast it, or drop it"
        )
    return found


def _encoding(field: StructField, column: Column, table: str) -> ColumnEncoding:
    kind = _TEXTS if column.enum else _TYPES.get(column.type)
    given = field.dataType
    if kind is None or (column.array and not (isinstance(given, T.ArrayType))):
        raise type_mismatch(field, column, table, "cast it, or write it as text into a table of your own")
    if column.array:
        assert isinstance(given, T.ArrayType)
        given = given.elementType
        if isinstance(given, T.ArrayType):
            raise type_mismatch(field, column, table, "arrays with more than one dimension cannot be written")
    elif column.type in _JSON and isinstance(given, NESTED):
        given = T.StringType()
    if not isinstance(given, kind.accepts) or (column.array and isinstance(given, NESTED)):
        raise type_mismatch(field, column, table, f"cast it: {_cast(field, column)}")
    if column.type == "interval" and column.scale is not None:
        raise type_mismatch(field, column, table, "it cuts some intervals off: declare it interval")
    require_scale(field, column, given, table)
    require_json(field, column, table)
    times = column.type in _TIMES and column.scale is not None and column.scale < _MICROSECOND_DIGITS
    wide = isinstance(given, T.DecimalType) and (given.precision > WORD_DIGITS or given.scale > WORD_SCALE)
    made_here = isinstance(field.dataType, NESTED) and not column.array
    return ColumnEncoding(
        field.name,
        kind.encoding,
        column.oid,
        column.array,
        digits=column.scale if times else None,
        length=column.length,
        nested=made_here,
        json=JsonCheck.KEYS if column.type == "jsonb" and not made_here else JsonCheck.NONE,
        as_text=wide or kind.encoding in _AS_TEXT,
    )


def _cast(field: StructField, column: Column) -> str:
    """The expression that casts a column of the DataFrame to what the table's column accepts."""
    kind = _CASTS.get(column.type, "string")
    if column.type == "numeric":
        kind = f"decimal(38,{18 if column.scale is None else max(column.scale, 0)})"
    return cast_expression(field, f"array<{kind}>" if column.array else kind)


def _conversion(field: StructField, column: Column) -> Callable[[Any], Any] | None:
    """Conversions that Spark does: to a timestamp without time zone in the session's, and of nested data to JSON."""
    plain = T.TimestampNTZType()
    if column.type == "timestamp" and isinstance(field.dataType, T.TimestampType):
        return lambda value: value.cast(plain)
    if column.type == "timestamp" and column.array:
        return lambda value: value.cast(T.ArrayType(plain))
    if column.type in _JSON and not column.array and isinstance(field.dataType, NESTED):
        return as_json
    return None
