"""The DB-API cursor that users hold: the driver's own cursor, on the connection that its handle works on now."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import TracebackType
from typing import TYPE_CHECKING, Any, ClassVar, Self

from txpool.dbapi.overrides import CursorAttribute
from txpool.errors import InterfaceError, ProgrammingError, translate
from txpool.tm.required import require_transaction

if TYPE_CHECKING:
    from txpool.dbapi.connection import Connection
    from txpool.dbapi.enlistment import Enlistment


class Cursor:
    """A PEP 249 cursor. It keeps its connection alive; what PEP 249 does not know is the driver's own."""

    __slots__ = ("__weakref__", "_arguments", "_connection", "_raw", "_works_on")

    #: What a cursor keeps when its connection goes on elsewhere.
    _KEPT: ClassVar[tuple[str, ...]] = ("arraysize",)

    arraysize = CursorAttribute()

    def __init__(self, connection: Connection, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self._connection = connection
        self._arguments = (args, kwargs)
        self._open(connection._working())

    def _open(self, enlistment: Enlistment | None) -> None:
        """Make the driver's cursor, where the connection works now."""
        connection = self._connection
        home: Any = connection._pooled if enlistment is None else enlistment
        if enlistment is not None:
            enlistment.enter(connection)
        try:
            self._raw = self._make(home.raw, connection if enlistment is None else enlistment)
        except Exception as error:
            translate(error)
            raise
        finally:
            if enlistment is not None:
                enlistment.leave()
        self._works_on = home

    def _make(self, raw: Any, owner: Any) -> Any:
        args, kwargs = self._arguments
        return raw.cursor(*args, **kwargs)

    def _move(self, enlistment: Enlistment | None) -> None:
        """The connection has joined a transaction, or left one: go on there, as the cursor was."""
        former = self._raw
        self._open(enlistment)
        for name in self._KEPT:
            setattr(self._raw, name, getattr(former, name))

    # -- statements ---------------------------------------------------------------------------------------------

    def execute(self, operation: Any, *args: Any, **kwargs: Any) -> Self:
        """Execute a statement; returns the cursor."""
        connection = self._connection
        enlistment = connection._working()
        if enlistment is None:
            if self._works_on is not connection._pooled:
                self._move(None)
            require_transaction(connection._datasource)
            try:
                self._raw.execute(operation, *args, **kwargs)
            except Exception as error:
                translate(error)
                raise
            finally:
                self._executed()
            return self
        if self._works_on is not enlistment:
            self._move(enlistment)
        enlistment.start(connection)
        raw = self._raw
        try:
            raw.execute(operation, *args, **kwargs)
        except BaseException as error:
            enlistment.failed(raw, error)
            raise
        enlistment.finish(raw)
        return self

    def executemany(self, operation: Any, *args: Any, **kwargs: Any) -> Self:
        """Execute a statement once for each set of parameters; returns the cursor."""
        self._execute("executemany", operation, *args, **kwargs)
        return self

    def callproc(self, *args: Any) -> Any:
        """Call a stored procedure, where the driver can."""
        return self._execute("callproc", *args)

    def _execute(self, method: str, *args: Any, **kwargs: Any) -> Any:
        connection = self._connection
        enlistment = connection._working()
        if self._works_on is not (enlistment or connection._pooled):
            self._move(enlistment)
        raw = self._raw
        if enlistment is not None:
            enlistment.start(connection)
        else:
            require_transaction(connection._datasource)
        try:
            result = getattr(raw, method)(*args, **kwargs)
        except BaseException as error:
            if enlistment is None:
                translate(error)
                self._executed()
            else:
                enlistment.failed(raw, error)
            raise
        if enlistment is not None:
            enlistment.finish(raw)
        else:
            self._executed()
        return self if result is raw else result

    def _executed(self) -> None:
        """After a statement on a plain connection, for a driver that wants to know."""

    # -- results ------------------------------------------------------------------------------------------------

    def fetchone(self) -> Any:
        """The next row, or None."""
        return self._fetch(self._raw.fetchone)

    def fetchmany(self, size: int | None = None) -> list[Any]:
        """The next `size` rows (default `arraysize`)."""
        rows: list[Any] = self._fetch(self._raw.fetchmany, self._raw.arraysize if size is None else size)
        return rows

    def fetchall(self) -> list[Any]:
        """All rows that are left."""
        rows: list[Any] = self._fetch(self._raw.fetchall)
        return rows

    def nextset(self) -> bool | None:
        """Go to the next result; None where there is none."""
        advance = getattr(self._raw, "nextset", None)
        return None if advance is None else self._fetch(advance)

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        return self._fetch(self._raw.__next__)

    def _fetch(self, method: Callable[..., Any], *args: Any) -> Any:
        connection = self._connection
        if connection._enlistment is None:
            if self._works_on is not connection._pooled or self._works_on is None:
                raise self._gone()
            if self._works_on.pool_state is None:
                raise connection._refuse_after_fork()
            try:
                return method(*args)
            except Exception as error:
                translate(error)
                raise
        enlistment = connection._working()
        if enlistment is None or self._works_on is not enlistment:
            raise self._gone()
        enlistment.enter(connection)
        try:
            return method(*args)
        except Exception as error:
            translate(error)
            raise
        finally:
            enlistment.leave()

    def _gone(self) -> Exception:
        self._connection._require_open()
        return InterfaceError(
            "the result is gone: its connection has joined a transaction, or left one, since; execute again"
        )

    @property
    def description(self) -> Any:
        """The columns of the result, or None."""
        return self._raw.description

    @property
    def rowcount(self) -> int:
        """How many rows the statement produced or changed; -1 where that is not known."""
        return int(self._raw.rowcount)

    @property
    def lastrowid(self) -> Any:
        """The rowid of the row inserted last, where the driver tells; else None."""
        return getattr(self._raw, "lastrowid", None)

    @property
    def connection(self) -> Connection:
        """The very handle that made it."""
        return self._connection

    def setinputsizes(self, sizes: Any) -> None:
        """Does nothing, as PEP 249 permits."""

    def setoutputsize(self, size: Any, column: Any = None) -> None:
        """Does nothing, as PEP 249 permits."""

    # -- its end ------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Close the cursor; what it held open on the connection is released."""
        connection = self._connection
        enlistment = connection._enlistment
        if self._works_on is not connection._works_on() or (enlistment is not None and enlistment.ended):
            return  # the connection was given back, and it with it
        if self._works_on is not None and self._works_on.pool_state is None:
            return  # the parent's, after a fork
        if enlistment is None or not self._closing_executes():
            self._raw.close()
        else:
            with enlistment.lock:
                self._raw.close()

    def _closing_executes(self) -> bool:
        """Whether close() uses the connection. Finalisers call it: what needs no lock takes none."""
        return False

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property  # type: ignore[misc]
    def __class__(self) -> type:
        # Libraries ask by isinstance() which driver they have before them.
        return type(self._raw)

    def __repr__(self) -> str:
        return f"<txpool cursor on {self._connection!r}>"

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name in Cursor.__slots__:
            raise AttributeError(f"{type(self).__name__!r} has no attribute {name!r}")
        value = getattr(self._raw, name)
        if not callable(value) or name.startswith("_"):
            return value
        return lambda *args, **kwargs: self._execute(name, *args, **kwargs)


def refuse_script() -> ProgrammingError:
    """What executescript() inside a transaction hears."""
    return ProgrammingError(
        "executescript() commits before it begins, so it cannot run inside a transaction: execute() its statements "
        "one by one. Nothing was done."
    )
