"""Connections and cursors over a pooled connection: what is the same over PyMySQL and over mysqlclient."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from txpool.dbapi.connection import Connection
from txpool.dbapi.cursor import BY_NAME, Cursor
from txpool.dbapi.refusals import autocommit_refused
from txpool.errors import ProgrammingError

if TYPE_CHECKING:
    from txpool.resources.mysql.session.state import MySQLRawConnection


class MySQLCursor(Cursor):
    """A cursor whose execute() returns a number of rows, as both drivers have it."""

    __slots__ = ()

    _STATEMENT = "query"
    _FETCHING = frozenset({"nextset", "scroll", "fetchall_unbuffered", "read_next", "fetch_row"})

    def execute(self, operation: Any = BY_NAME, /, *args: Any, **kwargs: Any) -> Any:
        """Execute a statement; returns how many rows it has produced or changed."""
        super().execute(operation, *args, **kwargs)
        return self.raw.rowcount

    def executemany(self, operation: Any = BY_NAME, /, *args: Any, **kwargs: Any) -> Any:
        """Execute a statement once for each set of parameters; returns how many rows it has changed."""
        if operation is BY_NAME:
            operation = self._take_statement("executemany", kwargs)
        return self._execute("executemany", operation, *args, **kwargs)

    def _closing_executes(self) -> bool:
        return True  # it reads what is left of its results


class MySQLConnection(Connection):
    """A connection of either driver."""

    __slots__ = ()

    #: The name of the statement that query() takes.
    _STATEMENT: ClassVar[str]

    _EXECUTING = frozenset({"query", "next_result", "show_warnings", "select_db", "kill", "insert_rows"})

    def autocommit(self, value: bool) -> None:
        """As the driver's. ProgrammingError inside a transaction, unless it is off, as it is there."""
        enlistment = self.current_enlistment()
        if enlistment is None:
            self._call("autocommit", (value,), {})
        elif value:
            raise autocommit_refused(self.datasource.name, enlistment.gtrid)

    def begin(self) -> None:
        """As the driver's. ProgrammingError inside a transaction, which has begun."""
        enlistment = self.current_enlistment()
        if enlistment is not None:
            raise ProgrammingError(
                f"begin() on a connection of {self.datasource.name} inside {enlistment.gtrid}, which has begun: leave "
                "it out. Nothing was done."
            )
        self._call("begin", (), {})

    def _statement_in(self, name: str, args: Any, kwargs: Any) -> Any:
        return (args[0] if args else kwargs.get(self._STATEMENT)) if name == "query" else None

    def _renew(self, name: str, args: Any) -> None:
        """Call what gives the connection another session: nothing would be in the transaction from then on."""
        enlistment = self.current_enlistment()
        if enlistment is not None:
            raise ProgrammingError(
                f"{name}() on a connection of {self.datasource.name} inside {enlistment.gtrid} would end its part "
                "there, and what follows would commit by itself: call it outside. Nothing was done."
            )
        try:
            self._call(name, args, {})
        finally:
            pooled = self.pooled
            if pooled is not None:
                pooled.mark_unreusable()  # what was asked of the first session may not hold for this one

    @property
    def open(self) -> bool:
        """Whether it is open, as the driver's."""
        if self.closed:
            return False
        holder: Any = self.holder()
        return holder is None or not holder.raw.lost

    @property
    def closed(self) -> bool:
        if self.pooled is not None:
            return bool(self.pooled.raw.lost)
        return self._why_closed() is not None

    def _leave_block(self, *, failed: bool) -> None:
        self.close()  # the drivers' blocks end so, and what was not committed rolls back

    def has_work(self, raw: MySQLRawConnection) -> bool:
        return not raw.lost and bool(raw.started or raw.in_transaction)
