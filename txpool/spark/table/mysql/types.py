"""Matches the columns of a DataFrame with those of a table of MariaDB or MySQL, and checks their types.

A column accepts the types of Spark of which it keeps every value, or refuses the ones that it cannot keep. If a
value is what decides, as digits below a second, the encoding of the task checks it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql import types as T
from pyspark.sql.types import DataType, StructField

from txpool.resources.mysql.tables.own_tables import quoted
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
class _MySQLType:
    """How values are written to a type."""

    #: The kind of a ColumnEncoding.
    encoding: str
    #: The types of Spark that a column accepts.
    accepts: tuple[type[DataType], ...]
    #: The type to cast to, as Spark writes it, if a column does not accept what it is given.
    cast: str


#: MySQL's JSON, which keeps a number with a point as a double. MariaDB's is a text.
BINARY_JSON = "jsonb"
#: The digits of a decimal that a double keeps.
_DOUBLE_DIGITS = 15
_LONG_DIGITS = 18
_BOOLEAN_TOO = (T.BooleanType, *WHOLE)
_TEXTS = _MySQLType("text", TEXT, "string")
_BYTES = _MySQLType("binary", (T.BinaryType,), "binary")
_TYPES: Mapping[str, _MySQLType] = {
    "tinyint": _MySQLType("number", _BOOLEAN_TOO, "tinyint"),
    "smallint": _MySQLType("number", WHOLE, "smallint"),
    "mediumint": _MySQLType("number", WHOLE, "int"),
    "int": _MySQLType("number", WHOLE, "int"),
    "bigint": _MySQLType("number", WHOLE, "bigint"),
    "bit": _MySQLType("bit", _BOOLEAN_TOO, "bigint"),
    "year": _MySQLType("year", WHOLE, "int"),
    "float": _MySQLType("float", (T.FloatType,), "float"),
    "double": _MySQLType("double", (T.DoubleType, T.FloatType, T.ByteType, T.ShortType, T.IntegerType), "double"),
    "decimal": _MySQLType("decimal", (T.DecimalType, *WHOLE), "decimal(38,18)"),
    **dict.fromkeys(("varchar", "tinytext", "text", "mediumtext", "longtext"), _TEXTS),
    "char": _MySQLType("char", TEXT, "string"),
    "enum": _MySQLType("enum", TEXT, "string"),
    "set": _MySQLType("set", TEXT, "string"),
    **dict.fromkeys(("uuid", "inet4", "inet6"), _TEXTS),
    **dict.fromkeys(("json", BINARY_JSON), _MySQLType("text", (*TEXT, *NESTED), "string")),
    **dict.fromkeys(("binary", "varbinary", "tinyblob", "blob", "mediumblob", "longblob"), _BYTES),
    "date": _MySQLType("date", (T.DateType,), "date"),
    "time": _MySQLType("time", (T.TimeType,), "time"),
    "datetime": _MySQLType("timestamp", (T.TimestampNTZType, T.TimestampType), "timestamp_ntz"),
    "timestamp": _MySQLType("timestamp", (T.TimestampType,), "timestamp"),
}
#: The types whose `scale` is the number of digits below a second.
WITH_FRACTIONS = ("time", "datetime", "timestamp")
#: The precision of unsigned bigint.
_UNSIGNED_DIGITS = 20
_MAX_VARCHAR = 16_383
_UTF8 = "character set utf8mb4"
#: The length of a new table's key columns, whose index has at most 3,072 bytes.
_KEY_LENGTH = 255

_NEW_TYPES: Mapping[type[DataType], str] = {
    T.BooleanType: "tinyint(1)",
    T.ByteType: "tinyint",
    T.ShortType: "smallint",
    T.IntegerType: "int",
    T.LongType: "bigint",
    T.FloatType: "float",
    T.DoubleType: "double",
    T.StringType: f"longtext {_UTF8}",
    T.CharType: f"longtext {_UTF8}",
    T.BinaryType: "longblob",
    T.DateType: "date",
    T.TimeType: "time(6)",
    T.TimestampType: "timestamp(6)",
    T.TimestampNTZType: "datetime(6)",
    T.StructType: "json",
    T.MapType: "json",
    T.ArrayType: "json",
    T.VariantType: "json",
}


def definitions(fields: Iterable[StructField], keys: Sequence[str] = ()) -> list[tuple[str, str]]:
    """Names and declarations of a new table's columns. ProgrammingError if a type has no counterpart.

    Texts that are keys are compared by their code points, and have up to 255 characters.
    """
    return [(field.name, _declaration(field, key=field.name in keys)) for field in fields]


def _declaration(field: StructField, *, key: bool) -> str:
    kind = field.dataType
    required = key or not field.nullable
    if isinstance(kind, T.DecimalType):
        declared = f"decimal({kind.precision},{kind.scale})"
    elif isinstance(kind, T.VarcharType) and kind.length <= (_KEY_LENGTH if key else _MAX_VARCHAR):
        declared = f"varchar({kind.length}) {_UTF8}"
    elif isinstance(kind, TEXT):
        declared = f"varchar({_KEY_LENGTH}) {_UTF8}" if key else f"longtext {_UTF8}"
    elif isinstance(kind, T.BinaryType) and key:
        declared = f"varbinary({_KEY_LENGTH})"
    else:
        found = _NEW_TYPES.get(type(kind))
        if found is None:
            raise mismatch(
                f"column {field.name}", f"is {kind.simpleString()}, which MariaDB and MySQL cannot store: cast it"
            )
        declared = found
    if key and isinstance(kind, TEXT):
        declared += " collate utf8mb4_bin"
    if isinstance(kind, T.TimestampType):  # without a default, an UPDATE may set it to the current time
        return f"{declared} {'not null default current_timestamp(6)' if required else 'null default null'}"
    return f"{declared} not null" if required else declared


def pair_columns(
    fields: Iterable[StructField], columns: Sequence[Column], table: str
) -> tuple[list[tuple[StructField, Column]], Layout]:
    """Each field with its column, and the layout. ProgrammingError if a column does not fit."""
    return pair(fields, columns, table, _encoding)


def match(df: DataFrame, columns: Sequence[Column], table: str) -> tuple[DataFrame, Layout]:
    """The DataFrame with the names and types that the table needs, and its layout. Errors: as `pair_columns`."""
    pairs, layout = pair_columns(df.schema.fields, columns, table)
    return selected(df, pairs, _conversion), layout


def _encoding(field: StructField, column: Column, table: str) -> ColumnEncoding:
    json = JsonCheck.NUMBERS if column.type == BINARY_JSON else JsonCheck.NONE
    nested = isinstance(field.dataType, NESTED)
    plain = _plain_encoding(field, column, table)
    return replace(plain, json=json, nested=nested, numbered=column.numbered, signless=column.signless)


def _plain_encoding(field: StructField, column: Column, table: str) -> ColumnEncoding:
    kind, given = _TYPES.get(column.type), field.dataType
    if kind is None:
        raise type_mismatch(field, column, table, "cast it, or write it as text into a table of your own")
    unsigned = column.type == "bigint" and "unsigned" in column.declared
    wide = isinstance(given, T.DecimalType) and given.scale == 0 and given.precision <= _UNSIGNED_DIGITS
    if not isinstance(given, kind.accepts) and not (unsigned and wide):
        raise type_mismatch(field, column, table, f"cast it: {cast_expression(field, kind.cast)}")
    if column.type == BINARY_JSON and _most_digits(given) > _DOUBLE_DIGITS:
        raise type_mismatch(
            field,
            column,
            table,
            f"MySQL's JSON rounds decimals of more than {_DOUBLE_DIGITS} digits: cast those within to string, or to "
            f"decimal({_DOUBLE_DIGITS}, …)",
        )
    if column.type in ("float", "double"):
        if column.scale is not None:
            raise type_mismatch(field, column, table, f"it rounds: declare it {column.type}, without digits")
        return ColumnEncoding(column.name, kind.encoding)
    require_scale(field, column, given, table)
    require_json(field, column, table)
    if column.type in WITH_FRACTIONS or column.type == "binary":
        changed = column.type == "binary" or (column.type == "timestamp" and not column.nullable)
        return ColumnEncoding(column.name, kind.encoding, column.scale or 0, changed)
    if isinstance(given, T.DecimalType):
        return ColumnEncoding(column.name, "decimal")
    if column.type == "char" and isinstance(given, T.CharType):  # whose spaces at the end mean nothing in Spark, either
        return ColumnEncoding(column.name, "text")
    return ColumnEncoding(column.name, kind.encoding, labels=column.labels)


def _most_digits(kind: DataType) -> int:
    """The most digits of a decimal within nested data that no integer can hold; 0 if there is none."""
    if isinstance(kind, T.DecimalType):
        return kind.precision if kind.scale or kind.precision > _LONG_DIGITS else 0
    if isinstance(kind, T.StructType):
        return max((_most_digits(field.dataType) for field in kind.fields), default=0)
    if isinstance(kind, T.ArrayType):
        return _most_digits(kind.elementType)
    return _most_digits(kind.valueType) if isinstance(kind, T.MapType) else 0


def _conversion(field: StructField, column: Column) -> Callable[[Any], Any] | None:
    """Conversions that Spark does: to a timestamp without time zone in the session's, and of nested data to JSON."""
    if column.type == "datetime" and isinstance(field.dataType, T.TimestampType):
        return lambda value: value.cast(T.TimestampNTZType())
    if isinstance(field.dataType, NESTED):
        return as_json
    return None


def create_statement(name: str, definitions: Sequence[tuple[str, str]], keys: Sequence[str] = ()) -> str:
    """The CREATE TABLE statement; `definitions` are pairs of column and declaration."""
    parts = [f"{quoted(column)} {declared}" for column, declared in definitions]
    if keys:
        parts.append(f"primary key ({quoted_list(keys)})")
    return f"create table {name} ({', '.join(parts)}) engine = innodb"


def quoted_list(names: Iterable[str]) -> str:
    """Names as quoted identifiers with commas between them."""
    return ", ".join(map(quoted, names))
