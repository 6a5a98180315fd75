"""PyMySQL's connection and cursor, over a pooled connection."""

from __future__ import annotations

from typing import Any

import pymysql
import pymysql.connections
from pymysql.cursors import Cursor, DictCursor, SSCursor

from txpool.dbapi.open_results import hold_open
from txpool.errors import translated
from txpool.resources.mysql.handle import MySQLConnection, MySQLCursor

_BUFFERED = frozenset({Cursor, DictCursor})


class PyMySQLCursor(MySQLCursor):
    """A cursor as PyMySQL has it."""

    __slots__ = ()

    _CLOSED = pymysql.ProgrammingError

    def _make_raw(self, raw: pymysql.connections.Connection, holder: Any) -> Any:
        args, kwargs = self._arguments  # type: ignore[misc]
        cursor = raw.cursor(*args, **kwargs)
        if isinstance(cursor, SSCursor) and hasattr(holder, "cursors"):
            hold_open(holder, cursor)  # its rows are still on their way when the statement is over
        return cursor

    def _is_here(self, method: str) -> bool:
        return type(self.raw) in _BUFFERED


class PyMySQLConnection(MySQLConnection):
    """A connection as PyMySQL has it."""

    __slots__ = ()

    _cursor_class = PyMySQLCursor
    _STATEMENT = "sql"
    _driver_class = pymysql.connections.Connection
    _CLOSED = pymysql.InterfaceError

    def ping(self, reconnect: bool = False) -> None:
        """As PyMySQL's, but for `reconnect`, which would leave the pool's connection."""
        with translated():
            self._call("ping", (), {"reconnect": False})

    def connect(self, sock: Any = None) -> None:
        """As PyMySQL's. ProgrammingError inside a transaction."""
        self._renew("connect", (sock,))

    def _make_closed_raw(self) -> Any:
        return pymysql.connections.Connection(defer_connect=True)
