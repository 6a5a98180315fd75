"""psycopg's cursors, over a pooled connection."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from time import monotonic
from typing import TYPE_CHECKING, Any, Self

import psycopg
from psycopg.copy import Writer
from psycopg.rows import tuple_row

from txpool.dbapi.cursor import NOT_HERE, Cursor, PEP249Cursor
from txpool.dbapi.driver_attributes import CursorAttribute, forwards
from txpool.dbapi.refusals import may_end_unseen
from txpool.errors import translated
from txpool.resources.postgresql.handle.copy import Copy
from txpool.resources.postgresql.session.libpq import ACTIVE
from txpool.resources.postgresql.session.psycopg_private import (
    answer_alone,
    cursor_with,
    has_page,
    has_psycopgs_adapters,
    sent_by,
    write_through,
)
from txpool.resources.postgresql.statements.statement_text import may_begin_anew, outlives_transaction

if TYPE_CHECKING:
    from txpool.dbapi.connection import PEP249Connection
    from txpool.dbapi.enlistment import Enlistment

_CURSORS = psycopg.Cursor, psycopg.ServerCursor
_NO_ARGUMENTS: tuple[tuple[Any, ...], dict[str, Any]] = (), {}


def require_seen(connection: PEP249Connection, enlistment: Enlistment, statement: Any) -> None:
    """ProgrammingError if a statement whose command tags are not seen may end the transaction and begin another."""
    if statement is not None and may_begin_anew(connection.text_of_statement(statement)):
        raise may_end_unseen(enlistment.datasource.name, enlistment.gtrid)


@forwards(name for cursor in _CURSORS for name in dir(cursor))
class PsycopgCursor(PEP249Cursor):
    """A cursor as psycopg has it, server-side ones too."""

    __slots__ = ()

    _KEPT = ("arraysize", "row_factory")
    _STATEMENT = "query"
    _CLOSED = psycopg.InterfaceError
    _FETCHING = frozenset({"scroll"})

    row_factory = CursorAttribute()

    itersize = CursorAttribute()
    format = CursorAttribute()

    def _executed(self) -> None:
        self._note_session()

    def _closing_executes(self) -> bool:
        return isinstance(self.raw, psycopg.ServerCursor)

    def _is_here(self, method: str) -> bool:
        raw = self.raw
        if type(raw) is psycopg.ServerCursor:
            return method == "__next__" and has_page(raw)
        return type(raw) is psycopg.Cursor and raw.pgresult is not None

    @contextmanager
    def copy(self, statement: Any, params: Any = None, *, writer: Writer | None = None) -> Iterator[Copy]:
        """COPY, as psycopg's; inside a transaction nobody else can use the connection until its block ends."""
        with self._block(statement, "COPY"):
            if writer is not None:
                write_through(writer, self.raw)
            with self.raw.copy(statement, params, writer=writer) as copy:
                yield Copy(copy, self)

    def stream(self, query: Any, *args: Any, **kwargs: Any) -> Iterator[Any]:
        """Rows as they arrive, as psycopg's; inside a transaction nobody else can use the connection meanwhile."""
        with self._block(query, "stream"):
            yield from self.raw.stream(query, *args, **kwargs)

    def next_here(self, stream: Iterator[Any], end: object) -> Any:
        """For an event loop: the next row of a `stream()`, or that it ends, if this has arrived; else NOT_HERE."""
        pgconn = self.raw.connection.pgconn
        return next(stream, end) if pgconn.transaction_status == ACTIVE and not pgconn.is_busy() else NOT_HERE

    def nextset(self) -> bool | None:
        """Go to the next result; None if there is none."""
        advanced: bool | None = self.raw.nextset()
        return advanced

    def set_result(self, index: int) -> Self:
        """Go to this result."""
        self.raw.set_result(index)
        return self

    def results(self) -> Iterator[Self]:
        """The cursor at each of its results."""
        for _ in self.raw.results():
            yield self

    def __repr__(self) -> str:
        return f"{super().__repr__()[:-1]}: {self.raw!r}>"

    def close(self) -> None:
        super().close()
        if not self.raw.closed:
            # It has outlived its physical connection, which may be another's by now: no I/O, as psycopg.Cursor has it.
            psycopg.Cursor.close(self.raw)

    def _fetch_left(self, method: Callable[..., Any], args: tuple[Any, ...]) -> Any:
        # Rows that have arrived stay with psycopg's cursor after the connection is closed.
        if self._connection.closed and not isinstance(self.raw, psycopg.ServerCursor):
            with translated():
                if self.raw.pgresult is not None:
                    return method(*args)
                # Without a result psycopg would look for it in a pipeline, which may be another user's by now.
                raise self.closed_error() if self.raw.closed else psycopg.ProgrammingError("no result available")
        return super()._fetch_left(method, args)

    @contextmanager
    def _block(self, statement: Any, kind: str) -> Iterator[None]:
        connection = self._connection
        enlistment = connection.current_enlistment()
        if not self._is_on(enlistment or connection.pooled):
            self._reopen(enlistment)
        try:
            if enlistment is None:
                connection.require_transaction()
                pooled = self._holder
                try:
                    pooled.since = monotonic()
                    with translated():
                        yield
                finally:
                    pooled.since = 0.0
            else:
                require_seen(connection, enlistment, statement)
                with enlistment.started(connection, statement, kind=kind):
                    yield
        finally:
            if outlives_transaction(sent_by(self.raw)):
                self._holder.raw.changed = True


class ExecutedCursor(PsycopgCursor):
    """The cursor of connection.execute() in a transaction.

    After a command without rows it keeps only what that has answered, and psycopg's cursor is there for the next
    command. It gets one again if more than its rowcount is asked for.
    """

    __slots__ = ("_answer", "_raw", "_spare")

    def __init__(self, connection: PEP249Connection) -> None:
        self._connection = connection
        self._arguments = _NO_ARGUMENTS
        self._holder = None
        #: psycopg's cursor; None before the statement, and if it was given back.
        self._raw: psycopg.Cursor[Any] | None = None
        #: What is left if it was given back: the result, and behind it the cursor that was made with that, if any.
        self._answer: list[Any] | None = None
        #: Where psycopg's cursor is given back to; None if it stays.
        self._spare: list[psycopg.Cursor[Any]] | None = None

    @property
    def raw(self) -> Any:
        answer = self._answer
        if answer is not None:
            answer.append(cursor_with(self._holder.raw, answer[0]))
            self._raw, self._answer = answer[1], None  # if several threads ask at once, all take the first
        return self._raw

    @raw.setter
    def raw(self, raw: psycopg.Cursor[Any]) -> None:
        self._raw, self._answer = raw, None

    def _take_raw(self, enlistment: Enlistment) -> Any:
        raw = enlistment.raw
        usual = raw.row_factory is tuple_row and raw.cursor_factory is psycopg.Cursor and has_psycopgs_adapters(raw)
        if not usual:
            return super()._take_raw(enlistment)
        encoding = raw.pgconn.parameter_status(b"client_encoding")
        if encoding != raw.spare_encoding:
            raw.spare, raw.spare_encoding = [], encoding
        try:
            cursor = raw.spare.pop()
        except IndexError:
            cursor = psycopg.Cursor(raw)
        self._raw, self._spare, self._holder, self._use = cursor, raw.spare, enlistment, enlistment.uses
        return cursor

    def give_raw_back(self) -> None:
        """Once the statement has succeeded, and before anybody else has this cursor."""
        raw, spare = self._raw, self._spare
        if raw is not None and spare is not None:
            result = answer_alone(raw)
            if result is not None:
                self._raw, self._answer = None, [result]
                spare.append(raw)

    @property
    def rowcount(self) -> int:
        """How many rows the statement has changed; -1 if that is not known."""
        answer = self._answer
        if answer is None:
            return super().rowcount
        changed = answer[0].command_tuples
        return -1 if changed is None else changed


class UserCursor(Cursor, PsycopgCursor):
    """A cursor of a class that the user has set as the connection's factory: its attributes can be set, too."""

    __slots__ = ()

    def _reopen(self, enlistment: Any) -> None:
        previous = self.raw
        super()._reopen(enlistment)
        for name, value in getattr(previous, "__dict__", {}).items():
            setattr(self.raw, name, value)

    def __setattr__(self, name: str, value: Any) -> None:
        if hasattr(PsycopgCursor, name):
            object.__setattr__(self, name, value)
        else:
            setattr(self.raw, name, value)
