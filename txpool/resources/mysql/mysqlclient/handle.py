"""mysqlclient's connection and cursor, over a pooled connection."""

from __future__ import annotations

from typing import Any

import MySQLdb
import MySQLdb.connections

from txpool.errors import NotSupportedError
from txpool.resources.mysql.handle import MySQLConnection, MySQLCursor


class MySQLdbCursor(MySQLCursor):
    """A cursor as mysqlclient has it."""

    __slots__ = ()

    _CLOSED = MySQLdb.ProgrammingError


class MySQLdbHandle(MySQLConnection):
    """A connection as mysqlclient has it."""

    __slots__ = ()

    _cursor_class = MySQLdbCursor
    _STATEMENT = "query"
    _driver_class = MySQLdb.connections.Connection
    _CLOSED = MySQLdb.OperationalError

    def change_user(self, *args: Any) -> None:
        """As mysqlclient's. ProgrammingError inside a transaction."""
        self._renew("change_user", args)

    def send_query(self, *args: Any) -> None:
        """NotSupportedError: whose transaction a statement belongs to is known only if it executes as a whole."""
        raise NotSupportedError(
            f"send_query() on a connection of {self.datasource.name}: nobody could tell what it has begun. Use query() "
            "or a cursor. Nothing was sent."
        )
