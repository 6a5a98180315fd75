"""Matches the columns of a DataFrame with those of an Iceberg table by name, and checks their types before any task."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pyarrow as pa
from pyiceberg import types as iceberg
from pyiceberg.schema import Schema
from pyspark.sql import DataFrame
from pyspark.sql import types as T

from txpool.spark.types.columns import Column, Layout, mismatch, pair, selected
from txpool.spark.types.encoding import ColumnEncoding

#: Each type of Spark: Arrow's for a column of a new table, and Iceberg's types that keep all of its values.
_KINDS: Mapping[type[T.DataType], tuple[pa.DataType, tuple[type[iceberg.IcebergType], ...]]] = {
    T.BooleanType: (pa.bool_(), (iceberg.BooleanType,)),
    **dict.fromkeys((T.ByteType, T.ShortType, T.IntegerType), (pa.int32(), (iceberg.IntegerType, iceberg.LongType))),
    T.LongType: (pa.int64(), (iceberg.LongType,)),
    T.FloatType: (pa.float32(), (iceberg.FloatType, iceberg.DoubleType)),
    T.DoubleType: (pa.float64(), (iceberg.DoubleType,)),
    **dict.fromkeys((T.StringType, T.CharType, T.VarcharType), (pa.string(), (iceberg.StringType,))),
    T.BinaryType: (pa.binary(), (iceberg.BinaryType, iceberg.FixedType)),
    T.DateType: (pa.date32(), (iceberg.DateType,)),
    T.TimeType: (pa.time64("us"), (iceberg.TimeType,)),
    T.TimestampType: (pa.timestamp("us", "UTC"), (iceberg.TimestamptzType,)),
    T.TimestampNTZType: (pa.timestamp("us"), (iceberg.TimestampType,)),
}


def match(df: DataFrame, schema: Schema, table: str) -> tuple[DataFrame, Layout]:
    """The DataFrame with the table's column names. ProgrammingError if a column or a type does not fit."""
    wanted = {field.name: field.field_type for field in schema.fields}
    columns = [Column(each.name, str(each.field_type), "", required=each.required) for each in schema.fields]

    def encoding(field: T.StructField, column: Column, _: str) -> ColumnEncoding:
        kind = wanted[column.name]
        as_uuid = isinstance(kind, iceberg.UUIDType) and isinstance(field.dataType, T.StringType)
        if not as_uuid and not _keeps(kind, field.dataType):
            raise mismatch(
                f"column {field.name}",
                f"is {field.dataType.simpleString()}, and {table}.{column.name} is {kind}, which does not keep each "
                "of its values: cast it, so that you see what changes",
            )
        return ColumnEncoding(column.name, str(kind))

    pairs, layout = pair(df.schema.fields, columns, table, encoding)
    return selected(df, pairs, lambda *_: None), layout


def _keeps(wanted: iceberg.IcebergType, given: T.DataType) -> bool:
    """Whether a column keeps each value of a type as it is."""
    match given, wanted:
        case T.DecimalType(), iceberg.DecimalType():
            return bool(given.scale == wanted.scale and given.precision <= wanted.precision)
        case T.ArrayType(), iceberg.ListType():
            return _keeps(wanted.element_type, given.elementType)
        case T.MapType(), iceberg.MapType():
            return _keeps(wanted.key_type, given.keyType) and _keeps(wanted.value_type, given.valueType)
        case T.StructType(), iceberg.StructType():
            names = [field.name for field in wanted.fields]
            return names == given.names and all(
                _keeps(field.field_type, its.dataType) for field, its in zip(wanted.fields, given.fields, strict=True)
            )
    return type(given) in _KINDS and isinstance(wanted, _KINDS[type(given)][1])


def new_schema(fields: Sequence[T.StructField]) -> pa.Schema:
    """The columns of a new table; each may be null, as Spark makes them. ProgrammingError for a type Iceberg lacks."""
    names = [field.name for field in fields]
    for name in names:
        if names.count(name) > 1:
            raise mismatch(f"column {name}", "is there twice: leave one out, or rename it")
    return pa.schema([pa.field(field.name, _arrow(field.dataType, field.name)) for field in fields])


def _arrow(given: T.DataType, column: str) -> pa.DataType:
    def within(part: T.DataType) -> pa.DataType:
        return _arrow(part, column)

    match given:
        case T.DecimalType():
            return pa.decimal128(given.precision, given.scale)
        case T.ArrayType():
            return pa.list_(within(given.elementType))
        case T.MapType():
            return pa.map_(within(given.keyType), within(given.valueType))
        case T.StructType() if given.fields:
            return pa.struct([pa.field(each.name, within(each.dataType)) for each in given.fields])
    if type(given) not in _KINDS:
        raise mismatch(
            f"column {column}", f"has the type {given.simpleString()}, which Iceberg lacks: cast it, or leave it out"
        )
    return _KINDS[type(given)][0]
