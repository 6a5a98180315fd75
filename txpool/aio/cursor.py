"""The cursor that a task holds."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from txpool.aio.blocks import AsyncCopy
from txpool.errors import NotSupportedError

if TYPE_CHECKING:
    from txpool.aio.connection import AsyncConnection

#: What can be set before the first statement, and how it stands then.
_SETTABLE = {"arraysize": 1, "row_factory": None, "itersize": 100, "format": None}
#: Of a cursor that has executed nothing.
_EMPTY = {"description": None, "rowcount": -1, "lastrowid": None, "statusmessage": None, "rownumber": None}


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

    async def fetchone(self) -> Any:
        """The next row, or None."""
        return await self._call("fetchone")

    async def fetchmany(self, size: int | None = None) -> list[Any]:
        """The next `size` rows (default `arraysize`)."""
        rows: list[Any] = await (self._call("fetchmany") if size is None else self._call("fetchmany", size))
        return rows

    async def fetchall(self) -> list[Any]:
        """All rows that are left."""
        rows: list[Any] = await self._call("fetchall")
        return rows

    async def nextset(self) -> bool | None:
        """Go to the next result; None if there is none."""
        advanced: bool | None = await self._call("nextset")
        return advanced

    async def scroll(self, *args: Any, **kwargs: Any) -> None:
        """Move within the result, as the driver's."""
        await self._call("scroll", *args, **kwargs)

    @asynccontextmanager
    async def copy(self, statement: Any, params: Any = None, *, writer: Any = None) -> AsyncIterator[AsyncCopy]:
        """COPY, as psycopg's. No other task can use the connection until its block ends."""
        connection = self._connection
        if not hasattr(type(connection.handle), "pipeline"):  # a cursor is made by its first call
            raise NotSupportedError(f"{connection.datasource.name}: its driver has no COPY. Nothing was done")
        async with connection.hold(_Copying(self._made, statement, params, writer), "COPY") as (copy, block):
            yield AsyncCopy(copy, self, block)

    async def __aiter__(self) -> AsyncIterator[Any]:
        while (row := await self.fetchone()) is not None:
            yield row

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
    def connection(self) -> AsyncConnection:
        """The connection that made it."""
        return self._connection

    @property
    def closed(self) -> bool:
        """Whether it is closed."""
        return self._closed

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(f"{type(self).__name__!r} has no attribute {name!r}")
        cursor = self._cursor
        if cursor is None:
            if name in self._given:
                return self._given[name]
            if name in _EMPTY or name in _SETTABLE:
                return _EMPTY.get(name, _SETTABLE.get(name))
        elif name in _EMPTY or name in _SETTABLE:
            return getattr(cursor, name)
        instead = "where the synchronous one has it, use that in a thread, by asyncio.to_thread()"
        if name == "stream":
            instead = "take a cursor of the server's, by connection.cursor('a name'), and `async for` fetches its rows"
        raise AttributeError(f"an asynchronous cursor of {self._connection.datasource.name} has no {name!r}: {instead}")

    def __setattr__(self, name: str, value: Any) -> None:
        if name.startswith("_"):
            object.__setattr__(self, name, value)
        elif name not in _SETTABLE:
            raise AttributeError(f"{name!r} cannot be set on an asynchronous cursor")
        elif self._cursor is None:
            self._given[name] = value
        else:
            setattr(self._cursor, name, value)

    def __repr__(self) -> str:
        return f"<asynchronous cursor: {self._cursor!r}>" if self._cursor is not None else "<asynchronous cursor>"
