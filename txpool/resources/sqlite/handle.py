"""sqlite3's connection and cursor, over a pooled connection."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Self

from txpool.dbapi.connection import PEP249Connection
from txpool.dbapi.cursor import Cursor, PEP249Cursor
from txpool.dbapi.driver_attributes import Attribute, CursorAttribute, forwards
from txpool.dbapi.open_results import OpenResults, close_open, hold_open
from txpool.dbapi.refusals import script_refused
from txpool.errors import InterfaceError, ProgrammingError, translate, translated
from txpool.pool import Pooled
from txpool.resources.sqlite.session import BEGINS, PLAIN, changes_session
from txpool.tm.ambient import ambient

if TYPE_CHECKING:
    from txpool.dbapi.enlistment import Enlistment
    from txpool.dbapi.statements import PooledDatasource
    from txpool.resources.sqlite.driver import SQLiteRawConnection

#: Methods of sqlite3.Connection that leave the session as it was. All others that are not defined here may change it.
_HARMLESS = frozenset({"backup", "getconfig", "getlimit", "serialize"})
_NONE: frozenset[str] = frozenset()


class SQLiteCursor(PEP249Cursor):
    """A cursor as sqlite3 has it.

    What is ordinary costs one call more than sqlite3's own: on a plain connection the raw cursor is asked first, and
    only if it fails, why. It fails, and has done nothing, once its connection was given back or has joined a
    transaction, since it was closed then.
    """

    __slots__ = ("_passed_on", "_pooled")

    _KEPT = ("arraysize", "row_factory")

    row_factory = CursorAttribute()

    _CLOSED = sqlite3.ProgrammingError

    def _make_raw(self, raw: SQLiteRawConnection, holder: Any) -> Any:
        connection = self._connection
        #: The statements that are passed on without a further look: none if the datasource demands one.
        self._passed_on = PLAIN if connection.required is None else _NONE
        args, kwargs = self._arguments  # type: ignore[misc]
        cursor = raw.cursor(*args, **kwargs) if args or kwargs else raw.cursor()
        hold_open(holder, cursor)
        #: The pooled connection if it is plain; None inside a transaction.
        self._pooled = None
        if holder is connection:
            self._pooled = pooled = connection.pooled
            if pooled is None or pooled.raw is not raw:  # another thread has closed the connection meanwhile
                cursor.close()
                raise self._result_gone()
        return cursor

    def execute(self, sql: Any, parameters: Any = (), /) -> Self:  # type: ignore[override]  # as sqlite3 has it
        """Execute a statement; returns the cursor."""
        if sql not in self._passed_on:
            return self._watched(super().execute, sql, parameters)
        pooled = self._pooled
        if pooled is not None and ambient() is None and pooled.pool_state is not None:
            try:
                self.raw.execute(sql, parameters)
                return self
            except Exception as error:
                if self._is_on(self._connection.pooled):
                    translate(error)
                    raise
        return super().execute(self._absorbed(sql), parameters)

    def fetchone(self) -> Any:
        """The next row, or None."""
        pooled = self._pooled
        if pooled is not None and pooled.pool_state is not None:
            try:
                return self.raw.fetchone()
            except Exception as error:
                if self._is_on(self._connection.pooled):
                    translate(error)
                    raise
        return self._fetch(self.raw.fetchone)

    def fetchmany(self, size: int | None = None) -> list[Any]:
        """The next `size` rows (default `arraysize`)."""
        pooled = self._pooled
        if pooled is not None and pooled.pool_state is not None:
            raw = self.raw
            try:
                rows: list[Any] = raw.fetchmany(raw.arraysize if size is None else size)
                return rows
            except Exception as error:
                if self._is_on(self._connection.pooled):
                    translate(error)
                    raise
        return super().fetchmany(size)

    def fetchall(self) -> list[Any]:
        """All rows that are left."""
        pooled = self._pooled
        if pooled is not None and pooled.pool_state is not None:
            try:
                rows: list[Any] = self.raw.fetchall()
                return rows
            except Exception as error:
                if self._is_on(self._connection.pooled):
                    translate(error)
                    raise
        return super().fetchall()

    def __next__(self) -> Any:
        pooled = self._pooled
        if pooled is not None and pooled.pool_state is not None:
            try:
                return next(self.raw)
            except StopIteration:
                raise
            except Exception as error:
                if self._is_on(self._connection.pooled):
                    translate(error)
                    raise
        return self._fetch(self.raw.__next__)

    @property
    def lastrowid(self) -> int | None:
        """The rowid of the row inserted last."""
        rowid: int | None = self.raw.lastrowid
        return rowid

    def executemany(self, sql: Any, parameters: Any, /) -> Self:  # type: ignore[override]  # as sqlite3 has it
        """Execute a statement once for each set of parameters; returns the cursor."""
        return self._watched(super().executemany, sql, parameters)

    def executescript(self, script: str) -> SQLiteCursor:
        """As sqlite3's, which commits first: ProgrammingError inside a transaction."""
        enlistment = self._connection.current_enlistment()
        if enlistment is not None:
            raise script_refused(enlistment.datasource.name, enlistment.gtrid)
        self._require_kept_read_only(script)
        try:
            self._execute("executescript", script)
        finally:
            self._holder.raw.changed = True
        return self

    def _watched(self, execute: Callable[..., Any], sql: Any, parameters: Any) -> Self:
        """Execute, and note whether the statement may have changed the session: then nobody else gets that."""
        changes = sql not in PLAIN and changes_session(sql)
        if changes:
            self._require_kept_read_only(sql)
        try:
            execute(self._absorbed(sql), parameters)
        finally:
            if changes:
                self._holder.raw.changed = True
        return self

    def _absorbed(self, sql: Any) -> Any:
        """The statement; inside a transaction, which has begun, an empty one in place of a BEGIN, as libraries send."""
        inside = self._connection.enlistment is not None or ambient() is not None
        return "" if inside and type(sql) is str and BEGINS[sql] else sql

    def _require_kept_read_only(self, sql: object) -> None:
        """ProgrammingError if a statement would let a read-only transaction write."""
        if "query_only" in str(sql).lower():
            connection = self._connection
            holder: Any = connection.current_enlistment() or connection.pooled
            if holder.raw.begins_read_only:
                raise ProgrammingError(
                    f"datasource {connection.datasource.name}: its transactions are read-only here, and pragma "
                    "query_only is how SQLite keeps them so. Nothing was done."
                )


class SQLiteFactoryCursor(Cursor, SQLiteCursor):
    """A cursor over one of the user's own class: `connection.cursor(factory)`."""

    __slots__ = ()

    def _make_raw(self, raw: SQLiteRawConnection, holder: Any) -> Any:
        raw.changed = True  # what its class executes by itself is not seen
        return super()._make_raw(raw, holder)


@forwards(dir(sqlite3.Connection))
class SQLiteConnection(PEP249Connection):
    """A connection as sqlite3 has it."""

    __slots__ = ("cursors",)

    _driver_class = sqlite3.Connection
    _CLOSED = sqlite3.ProgrammingError
    _CLOSED_MESSAGE = "Cannot operate on a closed database. "  # by which SQLAlchemy knows it
    _MODES = frozenset({"isolation_level", "autocommit"})
    _CONCURRENT = frozenset({"interrupt"})

    isolation_level = Attribute()
    row_factory = Attribute()
    text_factory = Attribute()
    if hasattr(sqlite3.Connection, "autocommit"):
        autocommit = Attribute()

    def __init__(self, datasource: PooledDatasource, pooled: Pooled[Any] | None, enlistment: Enlistment | None) -> None:
        super().__init__(datasource, pooled, enlistment)
        #: The raw cursors and blobs of a plain handle.
        self.cursors: OpenResults = set()
        if pooled is not None:
            pooled.results = self.cursors

    def cursor(self, *args: Any, **kwargs: Any) -> SQLiteCursor:
        """A cursor; the arguments are sqlite3's own."""
        return SQLiteFactoryCursor(self, args, kwargs) if args or kwargs else SQLiteCursor(self, args, kwargs)

    def execute(self, sql: str, parameters: Any = (), /) -> SQLiteCursor:
        """Execute on a new cursor, and return that."""
        return SQLiteCursor(self, (), {}).execute(sql, parameters)

    def executemany(self, sql: str, parameters: Any, /) -> SQLiteCursor:
        """Execute on a new cursor once for each set of parameters, and return it."""
        return SQLiteCursor(self, (), {}).executemany(sql, parameters)

    def executescript(self, script: str) -> SQLiteCursor:
        """As the cursor's."""
        return SQLiteCursor(self, (), {}).executescript(script)

    def blobopen(self, *args: Any, **kwargs: Any) -> Any:
        """As sqlite3's: what is written into the blob is a statement's work."""
        enlistment = self.current_enlistment()
        if enlistment is not None:
            with enlistment.started(self):
                blob = enlistment.raw.blobopen(*args, **kwargs)
                hold_open(enlistment, blob)
            return blob
        self.require_transaction()
        pooled: Any = self.pooled
        with translated():
            blob = pooled.raw.blobopen(*args, **kwargs)
        hold_open(self, blob)
        if self.pooled is not pooled:  # another thread has closed this connection meanwhile
            blob.close()
            raise self._left_error("the blob")
        return blob

    def iterdump(self, **options: Any) -> Iterator[str]:
        """As sqlite3's; it ends with the connection, or with the transaction, in which it has begun."""
        enlistment = self.current_enlistment()
        home: Any = enlistment or self.pooled
        use, lines = home.uses, home.raw.iterdump(**options)
        hold_open(self if enlistment is None else enlistment, lines)
        while True:
            if home.pool_state is None:
                raise self.after_fork_error()
            here = self.pooled if enlistment is None else self.current_enlistment()
            if home.uses != use or here is not home:
                raise self._left_error("iterdump()")
            with translated() if enlistment is None else enlistment.entered(self):
                line = next(lines, None)
            if line is None:
                return
            yield line

    def _left_error(self, what: str) -> BaseException:
        self.require_open()
        return InterfaceError(f"{what} is gone: its connection has joined a transaction, or left one, since")

    def backup(self, target: Any, **options: Any) -> None:
        """As sqlite3's; the target is a connection of sqlite3's, or another handle, outside of any transaction."""
        if type(target) is SQLiteConnection:
            enlistment = target.current_enlistment()
            if enlistment is not None:
                raise ProgrammingError(
                    f"backup() into a connection of {target.datasource.name} inside {enlistment.gtrid} would replace "
                    "the whole database, which no rollback undoes: take a connection outside. Nothing was done."
                )
            name, target = target.datasource.name, target.raw_connection()
            if target.begins_read_only:
                raise ProgrammingError(
                    f"backup() into a connection of {name}, whose transactions are read-only: it replaces the whole "
                    "database. Nothing was done."
                )
        self._call("backup", (target,), options)

    def _call(self, name: str, args: Any, kwargs: Any) -> Any:
        try:
            return super()._call(name, args, kwargs)
        finally:
            holder: Any = self.holder()
            if name not in _HARMLESS and holder is not None:
                holder.raw.changed = True

    def _attach(self) -> None:
        super()._attach()
        self.pooled.results = self.cursors  # type: ignore[union-attr]

    def _before_give_back(self, pooled: Pooled[Any], datasource: PooledDatasource) -> None:
        try:
            close_open(self.cursors)
        except BaseException:  # another thread executes on one of them: this connection stays as it was
            self.pooled, self._datasource = pooled, datasource
            raise
        super()._before_give_back(pooled, datasource)

    def _make_closed_raw(self) -> sqlite3.Connection:
        raw = sqlite3.connect(":memory:")
        raw.close()
        return raw

    def has_work(self, raw: SQLiteRawConnection) -> bool:
        return bool(raw.in_transaction)
