"""Matches the columns of a DataFrame with those of a table by name, and checks their types, before any task runs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import types as T  # noqa: N812 - as every user of Spark knows it
from pyspark.sql.types import DataType, StructField

from txpool.config.properties import nearest
from txpool.errors import ProgrammingError
from txpool.spark.types.binary import WORD_DIGITS, WORD_SCALE
from txpool.spark.types.checks import JsonCheck
from txpool.spark.types.encoding import ColumnEncoding
from txpool.spark.types.nested import NESTED, as_json, why_not_json

WHOLE = (T.ByteType, T.ShortType, T.IntegerType, T.LongType)
TEXT = (T.StringType, T.CharType, T.VarcharType)


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
#: The type to cast to, as Spark writes it, where a column does not accept what it is given.
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


@dataclass(frozen=True, slots=True)
class Column:
    """A column of the table, as the database describes it."""

    name: str
    #: The type as SQL writes it, with its length or precision.
    declared: str
    #: The database's name of the type; of an array its element type, of a domain its base type.
    type: str
    oid: int = 0
    array: bool = False
    enum: bool = False
    #: The scale of a numeric, or the digits below a second; None if there is no limit.
    scale: int | None = None
    #: The column is NOT NULL and has no default.
    required: bool = False
    generated: bool = False
    #: The most characters of a text; None if there is no limit.
    length: int | None = None
    #: The column may be NULL.
    nullable: bool = True
    #: The texts that it can have, where those are listed.
    labels: tuple[str, ...] = ()
    #: A row without a value for it has the next number.
    numbered: bool = False
    #: A floating-point zero loses its sign.
    signless: bool = False


@dataclass(frozen=True, slots=True)
class Layout:
    """The columns that are written, and the encoding of each; plain data for the tasks."""

    names: tuple[str, ...]
    encodings: tuple[ColumnEncoding, ...]
    #: The types of the columns as SQL writes them.
    declared: tuple[str, ...]


def match(df: DataFrame, columns: Sequence[Column], table: str) -> tuple[DataFrame, Layout]:
    """The DataFrame with the names and types that the table needs, and its layout. Errors: as `pair`."""
    pairs, layout = pair(df.schema.fields, columns, table)
    return selected(df, pairs, _conversion), layout


def pair(
    fields: Iterable[StructField],
    columns: Sequence[Column],
    table: str,
    encoding: Callable[[StructField, Column, str], ColumnEncoding] | None = None,
) -> tuple[list[tuple[StructField, Column]], Layout]:
    """Each field with its column, and the layout. `encoding` returns the encoding of a field, by default PostgreSQL's.

    ProgrammingError with the name of the column if it does not fit: the table has no such column, a value could not be
    stored unchanged, or a required column of the table has no value.
    """
    known = {column.name: column for column in columns}
    chosen: dict[str, tuple[StructField, Column]] = {}
    for field in fields:
        column = _named(field.name, known, table)
        if column.name in chosen:
            raise mismatch(f"columns {chosen[column.name][0].name} and {field.name}", f"are both {table}.{column.name}")
        if column.generated:
            raise mismatch(f"column {field.name}", f"is generated by the table {table}: leave it out (df.drop)")
        chosen[column.name] = field, column
    missing = [column.name for column in columns if column.required and column.name not in chosen]
    if missing:
        raise mismatch(f"column {missing[0]}", f"of {table} must have a value, and the DataFrame has no such column")
    pairs = [*chosen.values()]
    encodings = tuple((encoding or _encoding)(field, column, table) for field, column in pairs)
    return pairs, Layout(tuple(chosen), encodings, tuple(column.declared for _, column in pairs))


def definitions(fields: Iterable[StructField]) -> list[tuple[str, str]]:
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


def _named(name: str, known: Mapping[str, Column], table: str) -> Column:
    """The column of that name; without one, the only column whose name differs by case alone. ProgrammingError."""
    if name in known:
        return known[name]
    alike = [column for column in known.values() if column.name.lower() == name.lower()]
    if len(alike) != 1:
        raise mismatch(f"column {name}", f"is not in {table}: {nearest(name, known)}")
    return alike[0]


def _encoding(field: StructField, column: Column, table: str) -> ColumnEncoding:
    kind = _TEXTS if column.enum else _TYPES.get(column.type)
    given = field.dataType
    if kind is None or (column.array and not (isinstance(given, T.ArrayType))):
        raise type_mismatch(field, column, table, "cast it, or write it as text into a table of your own")
    if column.array:
        assert isinstance(given, T.ArrayType)  # noqa: S101 - for mypy: checked above
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


def require_scale(field: StructField, column: Column, given: DataType, table: str) -> None:
    """ProgrammingError if a numeric column would round a decimal or a whole number, which it does without an error."""
    scale = given.scale if isinstance(given, T.DecimalType) else 0
    if column.type in ("numeric", "decimal") and column.scale is not None and scale > column.scale:
        raise type_mismatch(field, column, table, f"digits would be lost: round it to {column.scale} decimals")


def require_json(field: StructField, column: Column, table: str) -> None:
    """ProgrammingError if nested data cannot be written as JSON texts."""
    why = None if column.array else why_not_json(field.dataType)
    if why is not None:
        raise type_mismatch(field, column, table, why)


def _cast(field: StructField, column: Column) -> str:
    """The expression that casts a column of the DataFrame to what the table's column accepts."""
    kind = _CASTS.get(column.type, "string")
    if column.type == "numeric":
        kind = f"decimal(38,{18 if column.scale is None else max(column.scale, 0)})"
    return cast_expression(field, f"array<{kind}>" if column.array else kind)


def cast_expression(field: StructField, kind: str) -> str:
    """The expression that casts a column of the DataFrame, for an error."""
    return f'df.withColumn("{field.name}", df["{_reference(field.name)}"].cast("{kind}"))'


def _reference(name: str) -> str:
    """What finds a column of a DataFrame: without backticks a dot in its name would be the way to a struct's field."""
    return f"`{name.replace('`', '``')}`" if "." in name or "`" in name else name


def selected(
    df: DataFrame,
    pairs: Sequence[tuple[StructField, Column]],
    conversion: Callable[[StructField, Column], Callable[[Any], Any] | None],
) -> DataFrame:
    """The DataFrame with the table's column names; `conversion` returns a function for values to convert, or None."""
    conversions = [conversion(field, column) for field, column in pairs]
    if not any(conversions) and all(field.name == column.name for field, column in pairs):
        return df  # select() would cost a millisecond or two for each column
    values = (df[_reference(field.name)] for field, _ in pairs)
    converted = (
        value if convert is None else convert(value) for value, convert in zip(values, conversions, strict=True)
    )
    return df.select(*(value.alias(column.name) for value, (_, column) in zip(converted, pairs, strict=True)))


def mapped_in_arrow(
    df: DataFrame, function: Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]], schema: str
) -> DataFrame:
    """As `df.mapInArrow`, where columns may have any names; the function knows them by their places."""
    if any(_reference(name) != name for name in df.columns):  # PySpark would not find these
        df = df.toDF(*(f"column{place}" for place in range(len(df.columns))))
    return df.mapInArrow(function, schema)


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


def type_mismatch(field: StructField, column: Column, table: str, remedy: str) -> ProgrammingError:
    """The error for a column whose values the table's column would not store unchanged."""
    what = f"is {field.dataType.simpleString()}, and {table}.{column.name} is {column.declared}: {remedy}"
    return mismatch(f"column {field.name}", what)


def mismatch(subject: str, what: str) -> ProgrammingError:
    """The error for a DataFrame that does not fit the table."""
    stop = "" if what.endswith("?") else "."
    return ProgrammingError(f"{subject} {what}{stop} No task was started, nothing was written.")
