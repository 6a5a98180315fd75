"""The driver as a PEP 249 module."""

from __future__ import annotations

from typing import Any, Final

from txpool.dbapi.types import (
    Binary,
    Date,
    DateFromTicks,
    Time,
    TimeFromTicks,
    Timestamp,
    TimestampFromTicks,
)
from txpool.resources.jdbc.dbapi.connection import JdbcConnection
from txpool.resources.jdbc.dbapi.cursor import JdbcCursor
from txpool.resources.jdbc.dbapi.errors import (
    ConnectionLost,
    DatabaseError,
    DataError,
    Error,
    IntegrityError,
    InterfaceError,
    InternalError,
    NotSupportedError,
    OperationalError,
    ProgrammingError,
    StatementCancelled,
    StatementTimeout,
)
from txpool.resources.jdbc.dbapi.type_objects import BINARY, DATETIME, NUMBER, ROWID, STRING

__all__ = [
    "BINARY",
    "DATETIME",
    "NUMBER",
    "ROWID",
    "STRING",
    "Binary",
    "ConnectionLost",
    "DataError",
    "DatabaseError",
    "Date",
    "DateFromTicks",
    "Error",
    "IntegrityError",
    "InterfaceError",
    "InternalError",
    "JdbcConnection",
    "JdbcCursor",
    "NotSupportedError",
    "OperationalError",
    "ProgrammingError",
    "StatementCancelled",
    "StatementTimeout",
    "Time",
    "TimeFromTicks",
    "Timestamp",
    "TimestampFromTicks",
    "Warning",
    "apilevel",
    "connect",
    "paramstyle",
    "threadsafety",
]

apilevel: Final = "2.0"
threadsafety: Final = 2
paramstyle: Final = "qmark"
Warning = Warning  # noqa: A001, PLW0127 - the name is PEP 249's


def connect(java_connection: Any) -> JdbcConnection:
    """A connection over a java.sql.Connection."""
    return JdbcConnection(java_connection)
