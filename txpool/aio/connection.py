"""The connection that a task holds: a synchronous one of the same pool, whose methods are called in the bridge."""

from __future__ import annotations

from asyncio import CancelledError
from collections import deque
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import AbstractAsyncContextManager, AbstractContextManager, asynccontextmanager, nullcontext
from functools import partial
from pathlib import Path
from time import monotonic
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeVar

from txpool.aio.block import require_in_loop
from txpool.aio.blocks import AsyncPipeline, AsyncTransaction, Block, around, owner_of_call
from txpool.aio.bridge import current, run
from txpool.aio.cursor import AsyncCursor
from txpool.aio.lock import TaskLock, innermost
from txpool.aio.names import AWAITED, INSTEAD, READ, SET, SHIELDED, asynchronous, has_names
from txpool.datasource import DataSource
from txpool.datasource.lookup import find
from txpool.errors import NotSupportedError
from txpool.loops import in_thread
from txpool.pool.report import stack_of_caller
from txpool.tm.ambient import ambient
from txpool.tm.ambient import current as live_ambient

if TYPE_CHECKING:
    from txpool.config.secrets import Secret
    from txpool.dbapi.connection import PEP249Connection

T = TypeVar("T")


@has_names(READ, SET, AWAITED, SHIELDED)
class AsyncConnection:
    """A connection in an event loop, with the names of psycopg's AsyncConnection. In a transaction it is part of that.

    Several tasks may use it, and are serialised. Its errors are those of the synchronous connection.
    """

    __slots__ = ("__weakref__", "_handle", "_heard", "_lock", "_source")

    def __init__(self, handle: PEP249Connection, source: DataSource) -> None:
        self._handle = handle
        self._source = source
        self._lock = TaskLock("")
        #: Notifications that nobody has got yet, perhaps since a task was cancelled as they came.
        self._heard: deque[Any] = deque()

    async def call(
        self, function: Callable[[], T], *, shielded: bool = False, statement: bool = False, owner: Block | None = None
    ) -> T:
        """For this package: call what uses the connection. Shielded, a cancellation waits for its end.

        `owner` is the block that it is a part of.
        """
        require_in_loop(self._source)
        if owner is None and innermost.get() is not None:
            owner = await owner_of_call(self)
        if statement:
            enlistment, required = self._handle.enlistment, self._handle.required
            if enlistment is not None and enlistment.owner() is not ambient():
                enlistment.require_in_task(live_ambient())  # here, since a thread may use it without its transaction
            if required is not None and live_ambient() is None:
                required.check()  # here, since the greenlet's stack has no line of the program's
        return await self._run(function, owner, shielded=shielded)

    async def _run(self, function: Callable[[], T], owner: Block | None, *, shielded: bool) -> T:
        told = _wait_for_it if shielded else None
        if owner is None:
            return await run(partial(self._serialised, function), told=told)
        async with owner.turn(shielded=shielded):
            return await run(partial(self._serialised, function), told=told, owner=owner)

    def _serialised(self, function: Callable[[], T]) -> T:
        with self._lock:
            try:
                if self._source.waits_in_loop:
                    return function()
                return self._in_thread(function)
            except CancelledError:
                holder = self._handle.holder()
                if holder is not None:
                    holder.mark_unreusable()  # the cancel may reach it late
                raise

    def _in_thread(self, function: Callable[[], T]) -> T:
        """The call itself waits for its turn on the connection, and the thread only for the database."""
        call: Any = current()
        enlistment = self._handle.enlistment
        if enlistment is None or enlistment.ended:
            return call.in_thread(function)  # type: ignore[no-any-return]
        with enlistment.lock:
            return call.in_thread(function)  # type: ignore[no-any-return]

    def shares(self, other: AsyncConnection) -> bool:
        """For this package: whether what holds this connection holds the other, too."""
        mine = self._handle.enlistment
        return other is self or (mine is not None and mine is other.handle.enlistment)

    @asynccontextmanager
    async def hold(
        self, block: AbstractContextManager[T], kind: str, *, statement: bool = False
    ) -> AsyncIterator[tuple[T, Block]]:
        """For this package: around a block of the driver's, in which no other task can use the connection."""
        around = await owner_of_call(self)  # a pipeline
        owner = Block(self, kind) if around is None else around

        def enter() -> T:
            self._lock.acquire()  # until it is left
            try:
                return block.__enter__()
            except BaseException:
                self._lock.release()
                raise

        def leave(error: BaseException | None) -> bool | None:
            try:
                return block.__exit__(None if error is None else type(error), error, None)
            finally:
                self._lock.release()

        value = await self._entered(enter, leave, statement=statement, owner=owner)
        if around is None:
            innermost.set(owner)
        try:
            yield value, owner
        except GeneratorExit as error:  # nobody awaits this
            leave(error)
            raise
        except BaseException as error:
            if not await self.call(partial(leave, error), shielded=True, owner=owner):
                raise
        else:
            await self.call(partial(leave, None), shielded=True, owner=owner)
        finally:
            if around is None:
                owner.left = True
                if innermost.get() is owner:
                    innermost.set(owner.outer)

    async def _entered(
        self,
        enter: Callable[[], T],
        leave: Callable[[BaseException], object],
        *,
        statement: bool = False,
        owner: Block | None = None,
    ) -> T:
        """Enter a block of the driver's. If its task was cancelled behind that, it is left."""
        entered: list[T] = []
        try:
            await self.call(lambda: entered.append(enter()), statement=statement, owner=owner)
        except CancelledError as error:
            if entered:
                await self.call(partial(leave, error), shielded=True, owner=owner)
            raise
        return entered[0]

    @property
    def handle(self) -> PEP249Connection:
        """For this package: the synchronous connection, for what `call` runs."""
        return self._handle

    # -- psycopg's names ----------------------------------------------------------------------------------------

    def cursor(self, *args: Any, **kwargs: Any) -> AsyncCursor:
        """A cursor; the arguments are those of the driver's own."""
        if self._handle.closed:
            self._handle.cursor(*args, **kwargs)  # raises
        return AsyncCursor(self, partial(self._handle.cursor, *args, **kwargs))

    async def execute(self, query: Any, *args: Any, **kwargs: Any) -> AsyncCursor:
        """Execute on a new cursor, and return that."""
        handle = self._handle
        if hasattr(type(handle), "execute"):
            made = await self.call(partial(handle.execute, query, *args, **kwargs), statement=True)
            return AsyncCursor(self, None, made)
        return await self.cursor().execute(query, *args, **kwargs)

    async def commit(self) -> None:
        """As the synchronous connection's. Cancelled, it goes on to its end."""
        await self.call(self._handle.commit, shielded=True)

    async def rollback(self) -> None:
        """As the synchronous connection's. Cancelled, it goes on to its end."""
        await self.call(self._handle.rollback, shielded=True)

    async def close(self) -> None:
        """Give the physical connection back: now, or, in a transaction, at its end."""
        handle = self._handle
        if handle.pooled is None:  # without a wait
            handle.close()
        else:
            await self._run(handle.close, await owner_of_call(self), shielded=True)

    async def set_autocommit(self, value: bool) -> None:
        """As psycopg's."""
        await self.call(partial(setattr, self._handle, "autocommit", value))

    @asynccontextmanager
    async def transaction(self, *args: Any, **kwargs: Any) -> AsyncIterator[AsyncTransaction]:
        """A block as psycopg's; inside a transaction it is a savepoint. NotSupportedError for other drivers."""
        self.require("transaction")
        block = self._handle.transaction(*args, **kwargs)
        entered = await self._entered(block.__enter__, lambda error: block.__exit__(type(error), error, None))
        given = AsyncTransaction(entered, self)
        try:
            yield given
        except GeneratorExit:
            raise
        except BaseException as error:
            if getattr(error, "transaction", None) is given:  # psycopg's Rollback, of this block
                error.transaction = entered  # type: ignore[attr-defined]
            if not await self.call(partial(block.__exit__, type(error), error, error.__traceback__), shielded=True):
                raise
        else:
            await self.call(partial(block.__exit__, None, None, None), shielded=True)

    @asynccontextmanager
    async def pipeline(self) -> AsyncIterator[AsyncPipeline]:
        """Pipeline mode, as psycopg's. No other task can use the connection until its block ends."""
        self.require("pipeline")
        async with self.hold(self._handle.pipeline(), "pipeline") as (pipeline, block):
            if block.pipeline is None:  # else it is entered again
                block.pipeline = AsyncPipeline(pipeline, block)
            yield block.pipeline

    async def notifies(self, *, timeout: float | None = None, stop_after: int | None = None) -> AsyncIterator[Any]:
        """Notifications as they come, as psycopg's. Between them, other tasks can use the connection."""
        self.require("notifies")
        until = None if timeout is None else monotonic() + timeout
        received, left, heard = 0, timeout, self._heard
        while True:
            if not heard and not await self.call(partial(self._hear, left)):
                return
            while heard:
                received += 1
                yield heard.popleft()
            left = None if until is None else until - monotonic()
            if (stop_after is not None and received >= stop_after) or (left is not None and left <= 0):
                return

    def _hear(self, timeout: float | None) -> bool:
        before = len(self._heard)
        self._heard += self._handle.notifies(timeout=timeout, stop_after=1)
        return len(self._heard) > before

    async def cancel_safe(self, *, timeout: float = 30.0) -> None:
        """Cancel what the connection executes, as psycopg's."""
        self.require("cancel_safe")
        await run(lambda: in_thread(partial(self._handle.cancel_safe, timeout=timeout)), told=_wait_for_it)

    def require(self, method: str, what: str = "") -> None:
        """For this package: NotSupportedError if the synchronous one has no such method."""
        if not hasattr(type(self._handle), method):
            raise NotSupportedError(f"{self._source.name}: its driver has no {what or f'{method}()'}. Nothing was done")

    @property
    def closed(self) -> bool:
        """True after close(), after the end of the transaction in which it was taken, or where it is broken."""
        return self._handle.closed

    @property
    def datasource(self) -> DataSource:
        """The datasource that it was taken from."""
        return self._source

    async def __aenter__(self) -> Self:
        self._handle.__enter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Plain: as the driver's, and closed. In a transaction: closed, nothing else."""
        if isinstance(error, GeneratorExit):  # nobody awaits this: the pool closes the connection
            return
        if self._handle.pooled is None:  # in a transaction, or closed: without a wait
            self._handle.close()
        else:
            await self._run(partial(self._leave, kind, error), await owner_of_call(self), shielded=True)

    def _leave(self, kind: type[BaseException] | None, error: BaseException | None) -> None:
        try:
            self._handle.__exit__(kind, error, None)
        finally:
            self._handle.close()

    @property  # type: ignore[misc]
    def __class__(self) -> type:
        # psycopg's own functions, as TypeInfo.fetch(), ask by isinstance() whether to await.
        return asynchronous(self._handle.__class__) or type(self)

    def read(self, name: str) -> Any:
        """For this package: an attribute of the synchronous one."""
        if name == "connection":
            return self
        if not hasattr(type(self._handle), name) and not name.startswith("_"):
            raise AttributeError(name)
        return getattr(self._handle, name)

    def write(self, name: str, value: object) -> None:
        """For this package: set an attribute of the synchronous one."""
        self.read(name)
        setattr(self._handle, name, value)

    @property
    def lock(self) -> AbstractAsyncContextManager[None]:
        """For psycopg's own cursors over this connection, which wait by `wait()`: that is serialised with all else."""
        self.read("lock")
        return nullcontext()

    @property
    def _pipeline(self) -> Any:  # for them, and so is the next: not what another task is in
        block = around(self)
        return self.read("_pipeline") if block is not None and block.admits else None

    def _pipeline_nolock(self) -> AbstractAsyncContextManager[AsyncPipeline]:
        return self.pipeline()

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") and not name.startswith("__") and name not in AsyncConnection.__slots__:
            return self.read(name)  # psycopg's own cursors over this connection look there
        known = hasattr(type(self._handle), name) or name in INSTEAD
        if name.startswith("__") or not known:
            raise AttributeError(f"an asynchronous connection of {self._source.name} has no attribute {name!r}")
        instead = INSTEAD.get(name, "use that in a thread, by asyncio.to_thread()")
        what = f"an asynchronous connection of {self._source.name}"
        raise AttributeError(f"{what} has no {name!r}, which the synchronous one has: {instead}")

    def __repr__(self) -> str:
        return f"<asynchronous {repr(self._handle)[1:]}"


def _wait_for_it(_: BaseException) -> None:
    """A cancellation that changes nothing of the call."""


def connect(
    target: str | Path | DataSource, timeout: float | None, *, user: str | None, password: str | Secret | None
) -> Coroutine[Any, Any, AsyncConnection]:
    """As `txpool.aconnect`."""
    return open_connection(find(target), timeout, user=user, password=password)


async def open_connection(
    source: DataSource,
    timeout: float | None,
    *,
    user: str | None = None,
    password: str | Secret | None = None,
    prepare: Callable[[PEP249Connection], object] | None = None,
) -> AsyncConnection:
    """A connection of this datasource, with which `prepare` was called."""
    require_in_loop(source)

    def taken() -> PEP249Connection:
        handle = source.connect(timeout, user=user, password=password)
        if prepare is not None:
            try:
                prepare(handle)
            except BaseException:
                handle.close()
                raise
        return handle

    # What is clean is given back without a wait.
    handle = await run(taken, dispose=lambda taken: taken.close())
    if source.pool.leak_threshold is not None:  # the greenlet's stack has no line of the program's
        holder: Any = handle.holder()
        leaking = holder if handle.enlistment is None else holder.pooled
        leaking.stack = stack_of_caller()
    return AsyncConnection(handle, source)
