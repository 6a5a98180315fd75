"""The DB-API cursor that users hold: it wraps the driver's own cursor, on the connection that its handle has now."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from time import monotonic
from types import TracebackType
from typing import TYPE_CHECKING, Any, ClassVar, Final, Self

from txpool.dbapi.driver_attributes import CursorAttribute
from txpool.errors import InterfaceError, translate
from txpool.tm.ambient import ambient
from txpool.tm.completion.status import ACTIVE

if TYPE_CHECKING:
    from txpool.dbapi.connection import PEP249Connection
    from txpool.dbapi.enlistment import Enlistment
    from txpool.resources.driver.raw import RawConnection


#: In the place of a statement that was given by the name that its driver has for it.
BY_NAME: Final[Any] = object()
#: In the place of rows that cannot be had without waiting.
NOT_HERE: Final[Any] = object()


class PEP249Cursor:
    """A PEP 249 cursor. It keeps its connection alive; what PEP 249 leaves to the driver is the driver's own.

    It has no `__getattr__`: see `txpool.dbapi.driver_attributes`.
    """

    __slots__ = ("__weakref__", "_arguments", "_connection", "_holder", "_use", "raw")

    #: The attributes that are set again when the driver's cursor is made again.
    _KEPT: ClassVar[tuple[str, ...]] = ("arraysize",)

    #: Methods that fetch: they move within a result that is there.
    _FETCHING: ClassVar[frozenset[str]] = frozenset({"nextset", "scroll"})

    #: The name of the statement that execute() and executemany() take.
    _STATEMENT: ClassVar[str] = "operation"
    #: Methods whose first argument is a statement.
    _STATEMENTS_FIRST: ClassVar[frozenset[str]] = frozenset({"executemany"})
    #: Methods that send nothing, and are no statement.
    _LOCAL: ClassVar[frozenset[str]] = frozenset({"mogrify"})
    #: The class that the driver raises for a cursor that is closed.
    _CLOSED: ClassVar[type[Exception]] = InterfaceError

    arraysize = CursorAttribute()

    def __init__(self, connection: PEP249Connection, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self._connection = connection
        #: Those of the driver's cursor(); None once it is closed.
        self._arguments: tuple[tuple[Any, ...], dict[str, Any]] | None = (args, kwargs)
        #: What holds the connection of the driver's cursor; None before that is made.
        self._holder: Any = None
        self._open(connection.current_enlistment())

    def _open(self, enlistment: Enlistment | None) -> None:
        """Make the driver's cursor, on the physical connection that the handle has now."""
        connection = self._connection
        holder: Any = enlistment
        try:
            if enlistment is None:
                holder = connection.pooled
                if holder is None:  # another thread has closed the connection, or joined a transaction, meanwhile
                    raise self._result_gone()
                #: The driver's cursor.
                self.raw = self._make_raw(holder.raw, connection)
            else:
                with enlistment.lock:
                    enlistment.begin_use(connection)
                    self.raw = self._make_raw(enlistment.raw, enlistment)
        except Exception as error:
            translate(error)
            raise
        self._holder = holder
        #: A physical connection that was given back, and taken again, is another one to its cursors.
        self._use: int = holder.uses

    def _is_on(self, holder: Any) -> bool:
        """Whether the driver's cursor belongs to this holder, and to its present use."""
        return self._holder is holder and self._use == holder.uses

    def _make_raw(self, raw: RawConnection, holder: Any) -> Any:
        args, kwargs = self._arguments  # type: ignore[misc]
        return raw.cursor(*args, **kwargs)

    def _take_raw(self, enlistment: Enlistment) -> Any:
        """Under the lock: take the driver's cursor for the first statement, if none was made before that."""
        self.raw, self._holder, self._use = self._make_raw(enlistment.raw, enlistment), enlistment, enlistment.uses
        return self.raw

    def _reopen(self, enlistment: Enlistment | None) -> None:
        """The connection has joined a transaction, or left one: make the driver's cursor again, set as it was."""
        if self._arguments is None:
            raise self.closed_error()
        if self._holder is None:
            self._open(enlistment)
            return
        previous = self.raw
        self._open(enlistment)
        for name in self._KEPT:
            setattr(self, name, getattr(previous, name))

    # -- statements ---------------------------------------------------------------------------------------------

    def execute(self, operation: Any = BY_NAME, /, *args: Any, **kwargs: Any) -> Self:
        """Execute a statement; returns the cursor."""
        if operation is BY_NAME:
            operation = self._take_statement("execute", kwargs)
        connection = self._connection
        enlistment = connection.enlistment
        if enlistment is None or enlistment.ended or enlistment.owner() is not ambient():
            enlistment = connection.current_enlistment()
        if enlistment is None:
            if not self._is_on(connection.pooled):
                self._reopen(None)
            connection.require_transaction()
            pooled = self._holder
            try:
                pooled.since = monotonic()
                self.raw.execute(operation, *args, **kwargs)
            except Exception as error:
                translate(error)
                raise
            finally:
                pooled.since = 0.0
                self._executed()
            return self
        holder = self._holder
        if holder is not enlistment and holder is not None:
            self._reopen(enlistment)
        with enlistment.lock:
            first = enlistment.start(connection, operation, executes=True)
            raw = self._take_raw(enlistment) if holder is None else self.raw
            try:
                if first:
                    enlistment.execute_first(raw, operation, args, kwargs)
                elif kwargs or len(args) != 1:
                    raw.execute(operation, *args, **kwargs)
                else:
                    raw.execute(operation, args[0])
            except BaseException as error:
                enlistment.failed(raw, error)
                raise
            enlistment.finish(raw)
        return self

    def executemany(self, operation: Any = BY_NAME, /, *args: Any, **kwargs: Any) -> Self:
        """Execute a statement once for each set of parameters; returns the cursor."""
        if operation is BY_NAME:
            operation = self._take_statement("executemany", kwargs)
        self._execute("executemany", operation, *args, **kwargs)
        return self

    def _take_statement(self, method: str, kwargs: dict[str, Any]) -> Any:
        """Take the statement out of what was given by name."""
        try:
            return kwargs.pop(self._STATEMENT)
        except KeyError:
            raise TypeError(f"{method}() missing 1 required argument: {self._STATEMENT!r}") from None

    def _execute(self, method: str, *args: Any, **kwargs: Any) -> Any:
        connection = self._connection
        enlistment = connection.current_enlistment()
        if not self._is_on(enlistment or connection.pooled):
            self._reopen(enlistment)
        raw = self.raw
        if enlistment is None:
            connection.require_transaction()
            pooled = self._holder
            try:
                pooled.since = monotonic()
                result = getattr(raw, method)(*args, **kwargs)
            except Exception as error:
                translate(error)
                raise
            finally:
                pooled.since = 0.0
                self._executed()
        else:
            with enlistment.lock:
                enlistment.start(connection, args[0] if args and method in self._STATEMENTS_FIRST else None)
                try:
                    result = getattr(raw, method)(*args, **kwargs)
                except BaseException as error:
                    enlistment.failed(raw, error)
                    raise
                enlistment.finish(raw)
        return self if result is raw else result

    def _executed(self) -> None:
        """Called after each statement on a plain connection, also after one that failed."""

    def _note_session(self) -> None:
        """The driver notes what has changed the session, so that the pool restores it."""
        try:
            self._connection.datasource.driver_adapter.ended_by(self._holder.raw, self.raw)
        except BaseException:  # an interrupt: it is not known
            self._holder.mark_unreusable()
            raise

    # -- results ------------------------------------------------------------------------------------------------

    def fetchone(self) -> Any:
        """The next row, or None."""
        return self._fetch(self.raw.fetchone)

    def fetchmany(self, size: int | None = None) -> list[Any]:
        """The next `size` rows (default `arraysize`)."""
        rows: list[Any] = self._fetch(self.raw.fetchmany, self.raw.arraysize if size is None else size)
        return rows

    def fetchall(self) -> list[Any]:
        """All rows that are left."""
        rows: list[Any] = self._fetch(self.raw.fetchall)
        return rows

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        return self._fetch(self.raw.__next__)

    def _fetch(self, method: Callable[..., Any], *args: Any) -> Any:
        connection = self._connection
        enlistment = connection.enlistment
        if enlistment is None:
            if not self._is_on(connection.pooled):
                return self._fetch_left(method, args)
            if self._holder.pool_state is None:
                raise connection.after_fork_error()
            try:
                return method(*args)
            except Exception as error:
                translate(error)
                raise
        if enlistment.ended:
            return self._fetch_left(method, args)
        if enlistment.owner() is not ambient():
            enlistment = connection.current_enlistment()
        if enlistment is None or self._holder is not enlistment:
            raise self._result_gone()
        with enlistment.lock:
            enlistment.begin_use(connection)
            try:
                return method(*args)
            except Exception as error:
                translate(error)
                raise

    def fetch_here(self, method: str) -> Any:
        """For an event loop: as this method, if that waits for nothing and nobody; else NOT_HERE, and nothing is done.

        In any state but the usual one it is NOT_HERE, too: the method itself tells what is wrong.
        """
        holder, here = self._holder, ambient()
        enlistment = self._connection.enlistment
        if enlistment is None:
            usual = here is None and self._is_on(self._connection.pooled)
        else:
            usual = holder is enlistment and enlistment.owner() is here and not enlistment.ended
            usual = usual and here is not None and here.status is ACTIVE
        if not usual or holder.pool_state is None or not self._is_here(method):
            return NOT_HERE
        try:
            return getattr(self.raw, method)()
        except Exception as error:
            translate(error)
            raise

    def _is_here(self, method: str) -> bool:
        """Whether what this method would fetch has arrived."""
        return False

    def _fetch_left(self, method: Callable[..., Any], args: tuple[Any, ...]) -> Any:
        """Fetch after the connection has left the physical one on which the result was made."""
        raise self._result_gone()

    def _result_gone(self) -> BaseException:
        if self._arguments is None:
            return self.closed_error()
        self._connection.require_open()
        return InterfaceError(
            "the result is gone: its connection has joined a transaction, or left one, since; execute again"
        )

    @property
    def description(self) -> Any:
        """The columns of the result, or None."""
        return self.raw.description

    @property
    def rowcount(self) -> int:
        """How many rows the statement produced or changed; -1 if that is not known."""
        return int(self.raw.rowcount)

    @property
    def connection(self) -> PEP249Connection:
        """The connection that made it."""
        return self._connection

    def setinputsizes(self, sizes: Any) -> None:
        """Does nothing, as PEP 249 permits."""

    def setoutputsize(self, size: Any, column: Any = None) -> None:
        """Does nothing, as PEP 249 permits."""

    # -- its end ------------------------------------------------------------------------------------------------

    def closed_error(self) -> BaseException:
        """The error of a closed cursor: of the class that the driver raises, and of ours."""
        return translate(self._CLOSED("this cursor is closed: take another by cursor()"))

    def close(self) -> None:
        """Close the cursor; what it held open on the connection is released."""
        self._arguments = None
        connection = self._connection
        enlistment = connection.enlistment
        if not self._is_on(connection.holder()) or (enlistment is not None and enlistment.ended):
            return  # the physical connection was given back, and the driver's cursor was closed with it
        if self._holder is not None and self._holder.pool_state is None:
            return  # after a fork it is the parent's
        if enlistment is None or not self._closing_executes():
            self.raw.close()
        else:
            with enlistment.lock:
                if not enlistment.settled:  # else the connection may be another transaction's by now
                    self.raw.close()

    def _closing_executes(self) -> bool:
        """Whether close() sends something. Only then it takes a lock, since finalisers call it."""
        return False

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property  # type: ignore[misc]
    def __class__(self) -> type:
        # Libraries ask by isinstance() which driver a cursor is of.
        return type(self.raw)

    def __repr__(self) -> str:
        return f"<txpool cursor on {self._connection!r}>"

    # -- the driver's own ---------------------------------------------------------------------------------------

    def driver_attribute(self, name: str) -> Any:
        """An attribute of the driver's own, that no class of ours defines."""
        if name.startswith("__") or name in PEP249Cursor.__slots__:
            raise AttributeError(f"{type(self).__name__!r} has no attribute {name!r}")
        value = getattr(self.raw, name)
        if not callable(value) or name.startswith("_") or isinstance(value, type) or name in self._LOCAL:
            return value
        if name in self._FETCHING:
            return lambda *args, **kwargs: self._moved(value, args, kwargs)
        return lambda *args, **kwargs: self._execute(name, *args, **kwargs)

    def _moved(self, method: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        result = self._fetch(partial(method, *args, **kwargs))
        return self if result is self.raw else result


class Cursor(PEP249Cursor):
    """A cursor whose attributes beyond PEP 249 are whatever its driver's has."""

    __slots__ = ()

    def __getattr__(self, name: str) -> Any:
        return self.driver_attribute(name)
