"""Blocks that hold a connection over several calls of a task, as psycopg's: COPY, and a pipeline."""

from __future__ import annotations

from asyncio import Task, current_task
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from txpool.errors import ProgrammingError

if TYPE_CHECKING:
    from txpool.aio.connection import AsyncConnection
    from txpool.aio.cursor import AsyncCursor


class Block:
    """One that is open. It owns the locks that are held in it: its calls are made in one greenlet after the other."""

    __slots__ = ("connection", "kind")

    def __init__(self, connection: AsyncConnection, kind: str) -> None:
        self.connection = connection
        self.kind = kind

    @property
    def admits(self) -> bool:
        """Whether what its task does on the connection meanwhile is in it."""
        return self.kind == "pipeline"


#: The innermost one of each task.
open_blocks: WeakKeyDictionary[Task[Any], Block] = WeakKeyDictionary()


def owner_of_call(connection: AsyncConnection) -> Block | None:
    """The block of this task that owns what a call on the connection locks; None if that is the call itself.

    ProgrammingError if the call would wait for a block of its own task.
    """
    block = open_blocks.get(current_task())  # type: ignore[arg-type]
    if block is None or block.admits:
        return block
    if block.connection.shares(connection):
        raise ProgrammingError(
            f"{connection!r} is within a {block.kind} of this task, and can do nothing else before that block's end. "
            "Nothing was sent"
        )
    return None


class AsyncCopy:
    """A running COPY, with the names of psycopg's AsyncCopy."""

    __slots__ = ("_block", "_copy", "cursor")

    def __init__(self, copy: Any, cursor: AsyncCursor, block: Block) -> None:
        self._copy = copy
        self._block = block
        self.cursor = cursor

    async def _call(self, method: str, *args: Any) -> Any:
        return await self.connection.call(lambda: getattr(self._copy, method)(*args), owner=self._block)

    @property
    def connection(self) -> AsyncConnection:
        """The connection on which it runs."""
        return self.cursor.connection

    def set_types(self, types: Any) -> None:
        """As psycopg's."""
        self._copy.set_types(types)

    async def finish(self, exc: BaseException | None = None) -> None:
        """As psycopg's: end the COPY, or have it fail with this error. The block's end does so by itself."""
        await self._call("finish", exc)

    async def write(self, buffer: Any) -> None:
        """Send a part of COPY FROM's data."""
        await self._call("write", buffer)

    async def write_row(self, row: Any) -> None:
        """Send a row."""
        await self._call("write_row", row)

    async def read(self) -> Any:
        """The next part of COPY TO's data; empty at its end."""
        return await self._call("read")

    async def read_row(self) -> Any:
        """The next row, or None."""
        return await self._call("read_row")

    async def rows(self) -> AsyncIterator[Any]:
        """All rows."""
        while (row := await self.read_row()) is not None:
            yield row

    async def __aiter__(self) -> AsyncIterator[Any]:
        while data := await self.read():
            yield data


class AsyncPipeline:
    """A pipeline, with the names of psycopg's AsyncPipeline."""

    __slots__ = ("_block", "_pipeline")

    def __init__(self, pipeline: Any, block: Block) -> None:
        self._pipeline = pipeline
        self._block = block

    async def sync(self) -> None:
        """Have the server answer what was sent."""
        await self._block.connection.call(self._pipeline.sync, owner=self._block)

    @property
    def status(self) -> Any:
        """As psycopg's."""
        return self._pipeline.status

    def is_supported(self) -> bool:
        """Whether the server and libpq have pipelines."""
        supported: bool = self._pipeline.is_supported()
        return supported
