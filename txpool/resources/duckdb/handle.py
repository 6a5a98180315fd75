"""The connections and cursors that users hold, over a pooled connection."""

from __future__ import annotations

from typing import Any

from txpool.dbapi.connection import PEP249Connection
from txpool.dbapi.cursor import Cursor
from txpool.resources.duckdb.connection import DuckDBRawConnection


class DuckDBCursor(Cursor):
    """A cursor, with qmark parameters, or a dict of named ones."""

    __slots__ = ()

    def _executed(self) -> None:
        if self.raw.hinted:
            try:
                self.raw.connection.look()
            except BaseException:  # an interrupt: it is not known
                self._holder.mark_unreusable()
                raise


class DuckDBConnection(PEP249Connection):
    """A connection to DuckDB. Outside a transaction each statement commits, unless SQL has begun one, as in DuckDB."""

    __slots__ = ()

    _cursor_class = DuckDBCursor
    _driver_class = DuckDBRawConnection

    def execute(self, operation: str, parameters: Any = ()) -> Any:
        """Execute a statement on a new cursor, and return that."""
        return self.cursor().execute(operation, parameters)
