"""DuckDB's connection and cursor in PEP 249's form, and what a fork means to them."""

from __future__ import annotations

import ctypes
import os
import re
from collections.abc import Sequence
from contextlib import closing, suppress
from typing import Any, Final
from weakref import WeakSet

import duckdb

from txpool.errors import OperationalError, described
from txpool.resources.base import Refused

_TRANSACTION: Final = "select txid_current()"
#: What begins or ends a transaction has one of these words in it.
_HINT: Final = re.compile("begin|start|commit|rollback|abort|end", re.IGNORECASE)
#: A transaction in which a statement has failed has no number to be asked for.
_FAILED: Final = -1
#: The connections that are open in this process.
_open: WeakSet[DuckDBRawConnection] = WeakSet()
#: Those of the process that this one was forked from. They are kept for ever: DuckDB writes into its file when they go.
_inherited: list[DuckDBRawConnection] = []


class DuckDBRawCursor:
    """A PEP 249 cursor. It reads its whole result at once, since a connection of DuckDB has one at a time."""

    arraysize = 1
    rowcount = -1

    def __init__(self, raw: DuckDBRawConnection) -> None:
        self.connection = raw
        self.description: Any = None
        #: Whether its last statement may have begun or ended a transaction.
        self.hinted = False
        self._rows: list[Any] = []

    def execute(self, statement: str, parameters: Sequence[Any] | dict[str, Any] = ()) -> DuckDBRawCursor:
        """Execute a statement, with a sequence for `?` and `$1`, or a dict for `$name`."""
        self.connection.used = True
        self.hinted = _HINT.search(statement) is not None
        self._rows = []
        found = self.connection.db.execute(statement, parameters if isinstance(parameters, dict) else [*parameters])
        self.description = found.description
        self._rows = found.fetchall()[::-1] if found.description else []
        return self

    def executemany(self, statement: str, parameters: Sequence[Any]) -> DuckDBRawCursor:
        """Execute a statement once for each set of parameters."""
        for each in parameters:
            self.execute(statement, each)
        return self

    def fetchone(self) -> Any:
        """The next row, or None."""
        return self._rows.pop() if self._rows else None

    def fetchmany(self, size: int | None = None) -> list[Any]:
        """The next `size` rows (default `arraysize`)."""
        return [self._rows.pop() for _ in range(min(self.arraysize if size is None else size, len(self._rows)))]

    def fetchall(self) -> list[Any]:
        """All rows that are left."""
        return self.fetchmany(len(self._rows))

    def __next__(self) -> Any:
        if not self._rows:
            raise StopIteration
        return self._rows.pop()

    def close(self) -> None:
        """Let the result go."""
        self._rows = []

    def setinputsizes(self, sizes: Any) -> None:
        """Nothing, as PEP 249 allows."""

    def setoutputsize(self, size: int, column: int | None = None) -> None:
        """Nothing, as PEP 249 allows."""


class DuckDBRawConnection:
    """A physical connection, and which transaction is open on it."""

    marks_identity = ""

    def __init__(self, path: str, config: dict[str, Any]) -> None:
        self._path, self._config = path, config
        self.closed = True
        #: DuckDB's number of the open transaction; None outside of one.
        self.transaction: int | None = None
        #: Something may have been set in its session, or, behind an interrupt, a transaction may be open.
        self.used = False
        if _inherited:
            raise OperationalError(
                "a forked process cannot open DuckDB, which was open in the process that it was forked from: both "
                "would write into one file. Nothing was done. Fork before the first connection (gunicorn without "
                "--preload), or use the start method spawn"
            )
        _open.add(self)  # first: another thread may fork while it opens
        try:
            self.db = duckdb.connect(path, config=config)
        except BaseException:
            _open.discard(self)
            raise
        self.closed = False
        (self.catalog,) = self.db.execute("select current_database()").fetchone()  # type: ignore[misc]

    def cursor(self) -> DuckDBRawCursor:
        """A cursor; all of a connection share its transaction."""
        return DuckDBRawCursor(self)

    def begin(self) -> None:
        """Begin a transaction, unless one is open."""
        if self.transaction is None:
            self.used = True
            self.db.execute("begin")
            self.transaction = self._number()

    def look(self) -> None:
        """Find out whether the program's own SQL has begun or ended a transaction. Outside of one each has its own."""
        try:
            first = self._number()
            self.transaction = first if self._number() == first else None
        except duckdb.TransactionException:
            self.transaction = _FAILED

    def ended(self) -> bool:
        """Whether the transaction that was begun here is not open any more. TransactionException if it has failed."""
        return self.transaction is None or self._number() != self.transaction

    def require_transaction(self) -> None:
        """Refused if it is not open any more, or a statement has failed: COMMIT would roll back without an error."""
        try:
            ended = self.ended()
        except duckdb.Error as error:
            raise Refused(f"COMMIT was not sent: {described(error)}") from error
        if ended:
            raise Refused(
                "COMMIT was not sent: the transaction has ended before it, or (before DuckDB 2.0) a USE of another "
                "database hides it"
            )

    def commit(self) -> None:
        """Commit what is open. TransactionException if a statement has failed in it."""
        if self.transaction is not None:
            self._number()
            self.db.execute("commit")
            self.transaction = None

    def rollback(self) -> None:
        """Roll back what is open."""
        if self.transaction is not None:
            self.transaction = None
            with suppress(duckdb.TransactionException):  # it has ended already
                self.db.execute("rollback")

    def open_anew(self) -> None:
        """Another session. It opens before the old one closes: the last one to close would write the whole file."""
        with closing(self.db):
            DuckDBRawConnection.__init__(self, self._path, self._config)

    def close(self) -> None:
        """Close it; what is open rolls back."""
        self.closed = True
        self.db.close()
        _open.discard(self)

    def _number(self) -> int:
        (number,) = self.db.execute(_TRANSACTION).fetchone()  # type: ignore[misc]
        return int(number)


def _after_fork_in_child() -> None:
    for raw in _open:
        _inherited.append(raw)
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(getattr(raw, "db", None)))  # also when the interpreter ends
    _open.clear()


os.register_at_fork(after_in_child=_after_fork_in_child)
