"""sqlite3's connection and cursor, over a pooled connection."""

from __future__ import annotations

import sqlite3
from typing import TYPE_CHECKING, Any
from weakref import WeakSet

from txpool.dbapi.connection import Connection
from txpool.dbapi.cursor import Cursor, refuse_script
from txpool.dbapi.overrides import Attribute, CursorAttribute
from txpool.pool import Pooled

if TYPE_CHECKING:
    from txpool.datasource import DataSource
    from txpool.dbapi.enlistment import Enlistment


class SQLiteCursor(Cursor):
    """A cursor as sqlite3 has it."""

    __slots__ = ()

    _KEPT = ("arraysize", "row_factory")

    row_factory = CursorAttribute()

    _CLOSED = sqlite3.ProgrammingError

    def _make_raw(self, raw: Any, holder: Any) -> Any:
        cursor = super()._make_raw(raw, holder)
        # One that has not been read to its end keeps a read transaction open, which must end with its holder's part.
        if holder.cursors is None:
            holder.cursors = WeakSet()
        holder.cursors.add(cursor)
        return cursor

    def executescript(self, script: str) -> SQLiteCursor:
        """As sqlite3's, which commits first: ProgrammingError inside a transaction."""
        if self._connection.current_enlistment() is not None:
            raise refuse_script()
        self._execute("executescript", script)
        return self


class SQLiteConnection(Connection):
    """A connection as sqlite3 has it."""

    __slots__ = ("cursors",)

    _cursor_class = SQLiteCursor
    _driver_class = sqlite3.Connection
    _CLOSED = sqlite3.ProgrammingError
    _MODES = frozenset({"isolation_level", "autocommit"})
    _CONCURRENT = frozenset({"interrupt"})
    _EXECUTING = frozenset({"blobopen"})

    isolation_level = Attribute()
    row_factory = Attribute()
    text_factory = Attribute()
    if hasattr(sqlite3.Connection, "autocommit"):
        autocommit = Attribute()

    def __init__(self, datasource: DataSource, pooled: Pooled[Any] | None, enlistment: Enlistment | None) -> None:
        super().__init__(datasource, pooled, enlistment)
        #: The raw cursors of a plain handle.
        self.cursors: WeakSet[Any] | None = None

    def execute(self, sql: str, *args: Any) -> SQLiteCursor:
        """Execute on a new cursor, and return that."""
        cursor: SQLiteCursor = self.cursor().execute(sql, *args)
        return cursor

    def executemany(self, sql: str, *args: Any) -> SQLiteCursor:
        """Execute on a new cursor once for each set of parameters, and return it."""
        cursor: SQLiteCursor = self.cursor().executemany(sql, *args)
        return cursor

    def executescript(self, script: str) -> SQLiteCursor:
        """As the cursor's."""
        cursor: SQLiteCursor = self.cursor().executescript(script)
        return cursor

    def blobopen(self, *args: Any, **kwargs: Any) -> Any:
        """As sqlite3's: what is written into the blob is a statement's work."""
        if self.current_enlistment() is None:
            self.require_transaction()
        return self._call("blobopen", args, kwargs)

    def close(self) -> None:
        if self.pooled is None or self.pooled.pool_state is not None:
            self._end_cursors()
        super().close()

    def _detach(self, pooled: Pooled[Any]) -> None:
        self._end_cursors()
        super()._detach(pooled)

    def _make_closed_raw(self) -> sqlite3.Connection:
        raw = sqlite3.connect(":memory:")
        raw.close()
        return raw

    def has_work(self, raw: Any) -> bool:
        return bool(raw.in_transaction)

    def _end_cursors(self) -> None:
        for cursor in list(self.cursors or ()):
            cursor.close()
        self.cursors = None
