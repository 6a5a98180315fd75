"""Blocks that hold a connection over several calls of a task, as psycopg's: COPY, and a pipeline."""

from __future__ import annotations

from asyncio import CancelledError, Lock, _get_running_loop, current_task, get_running_loop, sleep
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from concurrent.futures import Future
from contextlib import asynccontextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar

from txpool.aio.lock import TURNS, innermost
from txpool.dbapi.cursor import NOT_HERE
from txpool.errors import OperationalError, ProgrammingError

if TYPE_CHECKING:
    from txpool.aio.connection import AsyncConnection
    from txpool.aio.cursor import AsyncCursor

T = TypeVar("T")

#: How many rows, or parts of a COPY, that have arrived a call takes along.
_MOST_AHEAD: Final = 100
#: Seconds after which a thread does not wait for the loop any longer.
_LOOK_AGAIN: Final = 1.0


class Block:
    """One that is open. It owns the locks that are held in it: its calls are made in one greenlet after the other."""

    __slots__ = ("_turn", "closing", "connection", "kind", "left", "loop", "outer", "pipeline", "task")

    def __init__(self, connection: AsyncConnection, kind: str) -> None:
        self.connection = connection
        self.kind = kind
        self.loop = get_running_loop()
        task = current_task()
        #: The task that has opened it, for people.
        self.task = "a task that is gone" if task is None else f"task {task.get_name()!r}"
        self.left = False
        #: The innermost block around it.
        self.outer: Block | None = innermost.get()
        while self.outer is not None and self.outer.left:  # in another task, as the loop closes a stream
            self.outer = self.outer.outer
        #: It was left early, and is about to end.
        self.closing = False
        #: What its task has of it, if it is a pipeline.
        self.pipeline: AsyncPipeline | None = None
        self._turn = Lock()

    @property
    def admits(self) -> bool:
        """Whether what its task does on the connection meanwhile is in it."""
        return self.kind == "pipeline"

    @property
    def idle(self) -> bool:
        """Whether no call in it is under way."""
        return not self._turn.locked()

    def while_idle(self, function: Callable[[], object]) -> bool:
        """Call this in its loop's thread, unless a call in it is under way; whether it was called. From any thread."""
        if _get_running_loop() is self.loop or not self.loop.is_running():
            idle = self.idle
            if idle:
                function()
            return idle
        called: Future[bool] = Future()
        with suppress(RuntimeError, TimeoutError):  # the loop is closed, or busy
            self.loop.call_soon_threadsafe(lambda: called.set_result(self.while_idle(function)))
            return called.result(_LOOK_AGAIN)
        return False

    def is_within(self, other: object) -> bool:
        """Whether it is that one, or in it."""
        return self is other or (self.outer is not None and self.outer.is_within(other))

    async def ends(self) -> bool:
        """Wait for its end if it is a stream that was left before its last row.

        The loop closes such a generator by a task of its own.
        """
        if self.kind == "stream":
            for _ in range(TURNS):
                if self.closing or self.left:
                    break
                await sleep(0)
            if self.closing:
                async with self.turn(shielded=False):
                    pass
        return self.left

    @asynccontextmanager
    async def turn(self, *, shielded: bool) -> AsyncIterator[None]:
        """Around each call in it, since several tasks may be in it. A shielded one waits although it is cancelled."""
        cancelled = None
        while True:
            try:
                await self._turn.acquire()
                break
            except CancelledError as error:
                if not shielded:
                    raise
                cancelled = error
        try:
            yield
        finally:
            self._turn.release()
        if cancelled is not None:
            raise cancelled


async def owner_of_call(connection: AsyncConnection) -> Block | None:
    """The block of this task that owns what a call on the connection locks; None if that is the call itself.

    ProgrammingError if the call would wait for a block of its own task, or of the one that has started it there.
    """
    while (block := around(connection)) is not None and not block.admits:
        if not await block.ends():
            raise ProgrammingError(
                f"{connection!r} is within a {block.kind} of this task, or of the one that has started it there, and "
                "can do nothing else before that block's end. Nothing was sent"
            )
    return block


def around(connection: AsyncConnection) -> Block | None:
    """The innermost block that this task is in, and that holds the connection."""
    block: Block | None = innermost.get()
    while block is not None and (block.left or not block.connection.shares(connection)):
        block = block.outer
    return block


class Ahead(Generic[T]):
    """What a call of the bridge has read, and what had arrived behind it: a call for each would take ten times as long.

    `read` waits for the next; `read_here` is NOT_HERE if it would have to.
    """

    __slots__ = ("_failure", "_found", "_read", "_read_here")

    def __init__(self, read: Callable[[], T], read_here: Callable[[], T]) -> None:
        self._read = read
        self._read_here = read_here
        self._found: deque[T] = deque()
        #: What came behind them.
        self._failure: Exception | None = None

    async def next(self, call: Callable[[Callable[[], None]], Awaitable[None]]) -> T:
        """The next; what it calls is called by `call`."""
        while not self._found:  # again, if another task has taken what this one has read
            failure, self._failure = self._failure, None
            if failure is not None:
                raise failure
            await call(self._fill)
        return self._found.popleft()

    def _fill(self) -> None:
        self._found.append(self._read())
        try:
            for _ in range(_MOST_AHEAD):
                found = self._read_here()
                if found is NOT_HERE:
                    break
                self._found.append(found)
        except Exception as failure:
            self._failure = failure


class AsyncCopy:
    """A running COPY, with the names of psycopg's AsyncCopy."""

    __slots__ = ("_ahead", "_block", "_copy", "_interrupted", "_lost", "cursor")

    def __init__(self, copy: Any, cursor: AsyncCursor, block: Block) -> None:
        self._copy = copy
        self._block = block
        self._ahead = Ahead(self._read, copy.read_here)
        self.cursor = cursor
        #: Whether a task was cancelled while it sent a part: it is not known whether that was sent.
        self._interrupted = False
        #: Whether a task was cancelled while it read a part, which may be lost.
        self._lost = False

    async def _call(self, function: Callable[..., T], *args: Any) -> T:
        return await self.connection.call(partial(function, *args), owner=self._block)

    async def _send(self, part: Any) -> None:
        try:
            await self._call(self._copy.write, part)
        except CancelledError:
            self._interrupted = True
            raise

    def _read(self) -> Any:
        if self._lost:
            raise OperationalError(
                f"{self.connection.datasource.name}: a task was cancelled while it read a part of this COPY, and went "
                "on. That part may be lost, so nothing more is read"
            )
        try:
            return self._copy.read()
        except CancelledError:
            self._lost = True
            raise

    def require_whole(self) -> None:
        """For this package: OperationalError if a part may be missing."""
        if self._interrupted:
            raise OperationalError(
                f"{self.connection.datasource.name}: a task was cancelled while it sent a part of this COPY, and went "
                "on. Whether that part was sent is not known, so nothing of the COPY is done"
            )

    @property
    def connection(self) -> AsyncConnection:
        """The connection on which it runs."""
        return self.cursor.connection

    def set_types(self, types: Any) -> None:
        """As psycopg's."""
        self._copy.set_types(types)

    async def finish(self, exc: BaseException | None = None) -> None:
        """As psycopg's: end the COPY, or have it fail with this error. The block's end does so by itself."""
        await self._call(self._copy.finish, exc)

    async def write(self, buffer: Any) -> None:
        """Send a part of COPY FROM's data. If its task is cancelled meanwhile, the COPY fails at its end."""
        await self._send(buffer)

    async def write_row(self, row: Any) -> None:
        """Send a row, or keep it until there are enough to be sent."""
        if self._block.left:
            await self._call(self._copy.write_row, row)
        elif data := self._copy.formatter.write_row(row):
            await self._send(data)

    async def read(self) -> Any:
        """The next part of COPY TO's data; empty at its end. If its task is cancelled meanwhile, none follows."""
        if self._block.left:
            return await self._call(self._copy.read)
        return await self._ahead.next(self._call)

    async def read_row(self) -> Any:
        """The next row, or None."""
        part = await self.read()
        row = self._copy.formatter.parse_row(part) if part else None
        if part and row is None:  # it was the mark behind the last row, which the binary format has
            await self.read()
        return row

    async def rows(self) -> AsyncIterator[Any]:
        """All rows."""
        while (row := await self.read_row()) is not None:
            yield row

    async def __aiter__(self) -> AsyncIterator[Any]:
        while data := await self.read():
            yield data

    def __repr__(self) -> str:
        return f"<asynchronous {repr(self._copy)[1:]}"


class AsyncTransaction:
    """What a connection's `transaction()` gives, with the names of psycopg's AsyncTransaction."""

    __slots__ = ("_block", "_connection")

    def __init__(self, block: Any, connection: AsyncConnection) -> None:
        self._block = block
        self._connection = connection

    @property
    def connection(self) -> AsyncConnection:
        """The connection that made it."""
        return self._connection

    @property
    def savepoint_name(self) -> str | None:
        """As psycopg's."""
        name: str | None = self._block.savepoint_name
        return name

    @property
    def status(self) -> Any:
        """As psycopg's."""
        return self._block.status

    @property
    def Status(self) -> Any:  # noqa: N802
        """As psycopg's: the class of `status`."""
        return self._block.Status

    def __repr__(self) -> str:
        return f"<asynchronous {repr(self._block)[1:]}"


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
