"""The cursor that a task holds."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from txpool.aio.blocks import Ahead, AsyncCopy
from txpool.aio.names import OF_CURSOR, SET_ON_CURSOR, asynchronous, has_names
from txpool.dbapi.cursor import NOT_HERE
from txpool.errors import ProgrammingError

if TYPE_CHECKING:
    from txpool.aio.connection import AsyncConnection

_END = object()


class _Copying:
    """The synchronous block of a COPY; the cursor is made as it is entered, since that may have to wait."""

    def __init__(self, make: Callable[[], Any], statement: Any, params: Any, writer: Any) -> None:
        self._make = make
        self._arguments = statement, params, writer
        self._block: Any = None

    def __enter__(self) -> Any:
        statement, params, writer = self._arguments
        self._block = self._make().copy(statement, params, writer=writer)
        return self._block.__enter__()

    def __exit__(self, *error: Any) -> bool | None:
        left: bool | None = self._block.__exit__(*error)
        return left


class _Streaming:
    """The synchronous block of a stream."""

    def __init__(self, make: Callable[[], Any], query: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self._make = make
        self._arguments = query, args, kwargs
        self._rows: Any = None

    def __enter__(self) -> Any:
        query, args, kwargs = self._arguments
        self._rows = self._make().stream(query, *args, **kwargs)
        return self._rows

    def __exit__(self, *_: object) -> None:
        self._rows.close()


@has_names(OF_CURSOR, SET_ON_CURSOR)
class AsyncCursor:
    """A cursor in an event loop. The synchronous one is made by its first call, since that may have to wait."""

    __slots__ = ("__weakref__", "_closed", "_connection", "_cursor", "_given", "_make")

    def __init__(self, connection: AsyncConnection, make: Callable[[], Any] | None, cursor: Any = None) -> None:
        self._connection = connection
        self._make = make
        self._cursor = cursor
        #: What was set before it was made.
        self._given: dict[str, Any] = {}
        self._closed = False

    def _made(self) -> Any:
        cursor = self._cursor
        if cursor is None:
            if self._make is None:
                raise RuntimeError("a cursor without a maker")
            cursor = self._make()
            for name, value in self._given.items():
                setattr(cursor, name, value)
            if self._closed:
                cursor.close()
            self._cursor = cursor
        return cursor

    async def _call(self, method: str, *args: Any, **kwargs: Any) -> Any:
        """Call a method of the synchronous cursor."""

        def call() -> Any:
            cursor = self._made()
            result = getattr(cursor, method)(*args, **kwargs)
            return self if result is cursor else result

        return await self._connection.call(call, statement=method.startswith("execute"))

    async def execute(self, query: Any, *args: Any, **kwargs: Any) -> Self:
        """Execute a statement; returns the cursor."""
        await self._call("execute", query, *args, **kwargs)
        return self

    async def executemany(self, query: Any, params_seq: Iterable[Any], *args: Any, **kwargs: Any) -> Self:
        """Execute a statement once for each set of parameters; returns the cursor."""
        await self._call("executemany", query, params_seq, *args, **kwargs)
        return self

    def _here(self, method: str) -> Any:
        """As this method, if its rows have arrived; else NOT_HERE. A call for each row would take longer than that."""
        return NOT_HERE if self._cursor is None else self._cursor.fetch_here(method)

    async def fetchone(self) -> Any:
        """The next row, or None."""
        row = self._here("fetchone")
        return await self._call("fetchone") if row is NOT_HERE else row

    async def fetchmany(self, size: int | None = None) -> list[Any]:
        """The next `size` rows (default `arraysize`)."""
        rows: list[Any] = await (self._call("fetchmany") if size is None else self._call("fetchmany", size))
        return rows

    async def fetchall(self) -> list[Any]:
        """All rows that are left."""
        rows: list[Any] = await self._call("fetchall")
        return rows

    def nextset(self) -> Any:
        """Go to the next result; None if there is none. At once with psycopg, as its own; else awaited."""
        if not hasattr(type(self._connection.handle), "pipeline"):
            return self._call("nextset")
        return None if self._cursor is None else self._cursor.nextset()

    async def scroll(self, *args: Any, **kwargs: Any) -> None:
        """Move within the result, as the driver's."""
        await self._call("scroll", *args, **kwargs)

    @asynccontextmanager
    async def copy(self, statement: Any, params: Any = None, *, writer: Any = None) -> AsyncIterator[AsyncCopy]:
        """COPY, as psycopg's. No other task can use the connection until its block ends."""
        connection = self._connection
        connection.require("pipeline", "COPY")  # a cursor is made by its first call
        copying = _Copying(self._made, statement, params, writer)
        async with connection.hold(copying, "COPY", statement=True) as (copy, block):
            running = AsyncCopy(copy, self, block)
            yield running
            running.require_whole()

    async def stream(self, query: Any, *args: Any, **kwargs: Any) -> AsyncIterator[Any]:
        """Rows as they arrive, as psycopg's. No other task can use the connection until its end."""
        connection = self._connection
        connection.require("pipeline", "stream")
        streaming = _Streaming(self._made, query, args, kwargs)
        async with connection.hold(streaming, "stream", statement=True) as (rows, block):
            ahead = Ahead(partial(next, rows, _END), partial(self._made().next_here, rows, _END))
            try:
                while (row := await ahead.next(partial(connection.call, owner=block))) is not _END:
                    yield row
            except GeneratorExit:  # it is left early
                block.closing = True
                await connection.call(rows.close, shielded=True, owner=block)
                raise

    async def results(self) -> AsyncIterator[Self]:
        """The cursor at each of its results, as psycopg's."""
        more: bool | None = self._cursor is not None and getattr(self._cursor, "pgresult", True) is not None
        while more:
            yield self
            more = await self._call("nextset")

    async def set_result(self, index: int) -> Self:
        """Go to this result, as psycopg's."""
        await self._call("set_result", index)
        return self

    def setinputsizes(self, sizes: Any) -> None:
        """Does nothing, as in the drivers."""

    def setoutputsize(self, size: Any, column: Any = None) -> None:
        """Does nothing, as in the drivers."""

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Any:
        try:
            row = self._here("__next__")
        except StopIteration:
            raise StopAsyncIteration from None
        if row is NOT_HERE:
            row = await self._connection.call(lambda: next(self._made(), _END))
        if row is _END:
            raise StopAsyncIteration
        return row

    async def close(self) -> None:
        """Close the cursor; what it held open on the connection is released."""
        self._closed = True
        cursor = self._cursor
        if cursor is not None:
            await self._connection.call(cursor.close)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if isinstance(error, GeneratorExit):  # nobody awaits this
            return
        await self.close()

    @property
    def adapters(self) -> Any:
        """As psycopg's: what is registered there holds for this cursor."""
        return self._at_once("adapters").adapters

    def mogrify(self, query: Any, params: Any = None) -> str:
        """As psycopg's AsyncClientCursor has it."""
        mogrified: str = self._at_once("mogrify").mogrify(query, params)
        return mogrified

    def _at_once(self, name: str) -> Any:
        """The synchronous one, for what cannot be awaited."""
        connection = self._connection
        connection.require("pipeline", name)
        if self._cursor is None and connection.handle.pooled is None:
            raise ProgrammingError(
                f"{name} of {self!r}: in a transaction a cursor has it behind its first statement. Until then, "
                "connection.adapters holds for all cursors that follow. Nothing was done"
            )
        return self._made()

    @property
    def connection(self) -> AsyncConnection:
        """The connection that made it."""
        return self._connection

    @property  # type: ignore[misc]
    def __class__(self) -> type:
        # Libraries ask by isinstance() which driver a cursor is of, and whether to await it.
        handle: Any = self._connection.handle
        if not hasattr(type(handle), "cursor_factory"):
            return type(self)
        if self._cursor is None:
            make: Any = self._make
            of_server = make.args or make.keywords.get("name")
            made = handle.server_cursor_factory if of_server else handle.cursor_factory
        else:
            made = self._cursor.__class__
        return asynchronous(made) or type(self)

    @property
    def closed(self) -> bool:
        """Whether it is closed."""
        return self._closed

    def read(self, name: str) -> Any:
        """For this package: an attribute of the synchronous one, or as it is before the first statement."""
        if self._cursor is not None:
            return getattr(self._cursor, name)
        if name in self._given:
            return self._given[name]
        make: Any = self._make
        handle: Any = self._connection.handle
        if hasattr(type(handle), "pipeline"):
            if name == "row_factory" and not make.keywords.get(name):
                return handle.row_factory
            if name == "format":
                from psycopg.pq import Format

                return Format(int(make.keywords.get("binary") or False))
        return {"name": None, **make.keywords, **dict(zip(("name",), make.args, strict=False))}.get(
            name, OF_CURSOR.get(name, SET_ON_CURSOR.get(name))
        )

    def write(self, name: str, value: object) -> None:
        """For this package: set an attribute of the synchronous one, now or once it is made."""
        if self._cursor is None:
            self._given[name] = value
        else:
            setattr(self._cursor, name, value)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(f"{type(self).__name__!r} has no attribute {name!r}")
        raise AttributeError(
            f"an asynchronous cursor of {self._connection.datasource.name} has no {name!r}: where the synchronous one "
            "has it, use that in a thread, by asyncio.to_thread()"
        )

    def __repr__(self) -> str:
        return f"<asynchronous cursor: {self._cursor!r}>" if self._cursor is not None else "<asynchronous cursor>"
