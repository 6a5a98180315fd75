"""PEP 249's type objects. A type code is the name of JDBC's type, as `INTEGER` or `TIMESTAMP_WITH_TIMEZONE`."""

from __future__ import annotations

from typing import Final

from txpool.dbapi.types import TypeCodes
from txpool.resources.jdbc.dbapi import kinds

#: By the numbers of java.sql.Types.
_NAMES: Final = {
    -7: "BIT",
    -6: "TINYINT",
    5: "SMALLINT",
    4: "INTEGER",
    -5: "BIGINT",
    6: "FLOAT",
    7: "REAL",
    8: "DOUBLE",
    2: "NUMERIC",
    3: "DECIMAL",
    1: "CHAR",
    12: "VARCHAR",
    -1: "LONGVARCHAR",
    91: "DATE",
    92: "TIME",
    93: "TIMESTAMP",
    -2: "BINARY",
    -3: "VARBINARY",
    -4: "LONGVARBINARY",
    0: "NULL",
    2000: "JAVA_OBJECT",
    2001: "DISTINCT",
    2002: "STRUCT",
    2003: "ARRAY",
    2004: "BLOB",
    2005: "CLOB",
    2006: "REF",
    16: "BOOLEAN",
    -8: "ROWID",
    -15: "NCHAR",
    -9: "NVARCHAR",
    -16: "LONGNVARCHAR",
    2011: "NCLOB",
    2009: "SQLXML",
    2012: "REF_CURSOR",
    2013: "TIME_WITH_TIMEZONE",
    2014: "TIMESTAMP_WITH_TIMEZONE",
}
_BY_KIND: Final = {kinds.UUID: "UUID", kinds.INTERVAL: "INTERVAL", kinds.BOOLEAN: "BOOLEAN"}
_ZONED: Final = {"timetz": "TIME_WITH_TIMEZONE", "timestamptz": "TIMESTAMP_WITH_TIMEZONE"}


def type_code(kind: int, jdbc_type: int, type_name: str) -> str:
    """The type code of a column: JDBC's name of what its values are; the database's if JDBC has none."""
    return _BY_KIND.get(kind) or _ZONED.get(type_name) or _NAMES.get(jdbc_type, type_name.upper() or "OTHER")


STRING: Final = TypeCodes(
    {"CHAR", "VARCHAR", "LONGVARCHAR", "NCHAR", "NVARCHAR", "LONGNVARCHAR", "CLOB", "NCLOB", "SQLXML"}
)
BINARY: Final = TypeCodes({"BINARY", "VARBINARY", "LONGVARBINARY", "BLOB"})
NUMBER: Final = TypeCodes({"TINYINT", "SMALLINT", "INTEGER", "BIGINT", "FLOAT", "REAL", "DOUBLE", "NUMERIC", "DECIMAL"})
DATETIME: Final = TypeCodes({"DATE", "TIME", "TIMESTAMP", "TIME_WITH_TIMEZONE", "TIMESTAMP_WITH_TIMEZONE", "INTERVAL"})
ROWID: Final = TypeCodes({"ROWID"})
