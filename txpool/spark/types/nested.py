"""Structs, maps, arrays and variants as JSON texts, by Spark: with null fields, and all of a second's digits."""

from __future__ import annotations

from typing import Any

from pyspark.sql import functions as F
from pyspark.sql import types as T
from pyspark.sql.types import DataType

NESTED = (T.StructType, T.MapType, T.ArrayType, T.VariantType)
#: Types whose values have one text each as the key of an object: Spark writes a date's number, and a struct's address.
_KEYS = (T.StringType, T.CharType, T.VarcharType, T.BooleanType, T.ByteType, T.ShortType, T.IntegerType, T.LongType)
_OPTIONS = {
    "ignoreNullFields": "false",
    "timeZone": "UTC",  # whatever the session's is: an offset of its own may have seconds
    "timestampFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXX",
    "timestampNTZFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSS",
}


def as_json(value: Any) -> Any:
    """The column as JSON texts."""
    return F.to_json(value, _OPTIONS)


def why_not_json(kind: DataType) -> str | None:
    """Why JSON cannot hold every value of a nested type, to follow its name; None if it can."""
    if isinstance(kind, T.StructType):
        if len({*kind.names}) < len(kind.names):
            return "a struct in it has two fields of one name, of which JSON keeps one: rename one"
        return next(filter(None, (why_not_json(field.dataType) for field in kind.fields)), None)
    if isinstance(kind, T.ArrayType):
        return why_not_json(kind.elementType)
    if isinstance(kind, T.MapType):
        if not isinstance(kind.keyType, _KEYS):
            return f"JSON has no keys of {kind.keyType.simpleString()}: make the map's keys strings"
        return why_not_json(kind.valueType)
    return None
