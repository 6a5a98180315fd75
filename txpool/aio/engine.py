"""SQLAlchemy's AsyncEngine over a datasource: its synchronous dialect, and a DBAPI connection that awaits the bridge.

SQLAlchemy runs its own code in a greenlet of its own. Each call of a connection or a cursor there is one coroutine,
which SQLAlchemy's await_only() hands to the task: so no greenlet of ours runs within one of SQLAlchemy's.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from functools import cache, partial
from typing import TYPE_CHECKING, Any, TypeVar

import sqlalchemy
from sqlalchemy.dialects import registry
from sqlalchemy.engine import AdaptedConnection, make_url
from sqlalchemy.ext.asyncio import AsyncEngine
from sqlalchemy.util import await_only

from txpool.aio.connection import AsyncConnection, open_connection
from txpool.dbapi.managed_commit import give_up, why_invalid
from txpool.tm.rules.required import outside

if TYPE_CHECKING:
    from txpool.datasource import DataSource

T = TypeVar("T")

set_own = object.__setattr__

#: What a connection tells without a wait.
_AT_ONCE = frozenset({"broken", "closed"})


class AwaitedConnection(AdaptedConnection):
    """What SQLAlchemy has for a DBAPI connection. Its attributes are the synchronous connection's."""

    __slots__ = ("_driver_connection", "_handle")

    _connection: Any  # an AsyncConnection

    def __init__(self, connection: AsyncConnection) -> None:
        set_own(self, "_connection", connection)
        set_own(self, "_driver_connection", connection)
        set_own(self, "_handle", connection.handle)

    @property
    def driver_connection(self) -> Any:
        """What a program gets as the driver's own: the connection that a task holds."""
        return self._driver_connection

    def give_up(self, why: str) -> None:
        """SQLAlchemy invalidates it, or drops it."""
        give_up(self._handle, why)

    def call(self, function: Callable[[], T], *, statement: bool = False) -> T:
        """Call what uses the synchronous connection."""
        result: T = await_only(self._connection.call(function, statement=statement))
        return result

    def cursor(self, *args: Any, **kwargs: Any) -> AwaitedCursor:
        kind = AwaitedStream if args or kwargs else AwaitedCursor
        return kind(self, partial(self._handle.cursor, *args, **kwargs))

    def stream(self) -> AwaitedStream:
        """A cursor whose rows are fetched as they are asked for."""
        return AwaitedStream(self, self._handle.cursor)

    def execute(self, *args: Any) -> AwaitedCursor:
        cursor = self.cursor()
        cursor.execute(*args)
        return cursor

    def commit(self) -> None:
        await_only(self._connection.commit())

    def rollback(self) -> None:
        await_only(self._connection.rollback())

    def close(self) -> None:
        await_only(self._connection.close())

    def terminate(self) -> None:
        """Outside of SQLAlchemy's greenlet, where nothing can be awaited, the pool closes what is dropped."""
        try:
            self.close()
        except sqlalchemy.exc.MissingGreenlet:
            self.give_up("and nobody has closed it")
            if self._handle.pooled is None:
                self._handle.close()

    def initialize(self, proxied: Any, initialize: Callable[[], T]) -> T:
        """Run the dialect's questions to a new server as one call, over the synchronous connection.

        They are no work of the program's, so they need no transaction.
        """

        def ask() -> T:
            with outside():
                return initialize()

        proxied.dbapi_connection = handle = self._handle
        set_own(self, "_driver_connection", handle)
        try:
            return self.call(ask)
        finally:
            proxied.dbapi_connection = self
            set_own(self, "_driver_connection", self._connection)

    def __getattr__(self, name: str) -> Any:
        handle = self._handle
        if name in _AT_ONCE or name.startswith("__"):
            return getattr(handle, name)
        found = self.call(partial(getattr, handle, name))
        if not callable(found) or isinstance(found, type):
            return found
        return lambda *args, **kwargs: self.call(partial(found, *args, **kwargs))

    def __setattr__(self, name: str, value: Any) -> None:
        self.call(partial(setattr, self._handle, name, value))


class AwaitedCursor:
    """What SQLAlchemy has for a DBAPI cursor. The rows of a result come with its statement, in one call."""

    __slots__ = ("_connection", "_cursor", "_make", "_rows", "arraysize")

    def __init__(self, connection: AwaitedConnection, make: Callable[[], Any]) -> None:
        self._connection = connection
        self._make = make
        #: The synchronous one, made by the first call.
        self._cursor: Any = None
        self._rows: deque[Any] = deque()
        self.arraysize = 1

    def _made(self) -> Any:
        if self._cursor is None:
            self._cursor = self._make()
        return self._cursor

    def _run(self, method: str, *args: Any) -> None:
        cursor = self._made()
        getattr(cursor, method)(*args)
        self._keep(cursor)

    def _keep(self, cursor: Any) -> None:
        if cursor.description is not None:
            self._rows = deque(cursor.fetchall())

    def execute(self, operation: Any, parameters: Any = None) -> None:
        given = (operation,) if parameters is None else (operation, parameters)
        self._connection.call(partial(self._run, "execute", *given), statement=True)

    def executemany(self, operation: Any, parameters: Any) -> None:
        def run() -> None:
            self._made().executemany(operation, parameters)

        self._connection.call(run, statement=True)

    def callproc(self, *args: Any) -> None:
        self._connection.call(partial(self._run, "callproc", *args), statement=True)

    def nextset(self) -> Any:
        def advance() -> Any:
            cursor = self._made()
            advanced = cursor.nextset()
            self._rows = deque()
            if advanced:
                self._keep(cursor)
            return advanced

        return self._connection.call(advance)

    def fetchone(self) -> Any:
        return self._rows.popleft() if self._rows else None

    def fetchmany(self, size: int | None = None) -> list[Any]:
        rows = self._rows
        return [rows.popleft() for _ in range(min(self.arraysize if size is None else size, len(rows)))]

    def fetchall(self) -> list[Any]:
        rows, self._rows = [*self._rows], deque()
        return rows

    def __iter__(self) -> Iterator[Any]:
        while self._rows:
            yield self._rows.popleft()

    def close(self) -> None:
        """Without a wait, since SQLAlchemy closes it where nothing can be awaited: all of its rows were read."""
        self._rows.clear()

    async def _async_soft_close(self) -> None:
        """SQLAlchemy asks for it before it hands a result to code that cannot await."""

    @property
    def description(self) -> Any:
        return None if self._cursor is None else self._cursor.description

    @property
    def rowcount(self) -> int:
        return -1 if self._cursor is None else self._cursor.rowcount

    def setinputsizes(self, *_: Any) -> None:
        pass

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or self._cursor is None:
            raise AttributeError(name)
        return getattr(self._cursor, name)


class AwaitedStream(AwaitedCursor):
    """A cursor of the server's, or one that reads a file: each fetch is a call."""

    __slots__ = ()

    def _keep(self, cursor: Any) -> None:
        pass

    def fetchone(self) -> Any:
        return self._connection.call(self._made().fetchone)

    def fetchmany(self, size: int | None = None) -> list[Any]:
        return self._connection.call(partial(self._made().fetchmany, self.arraysize if size is None else size))

    def fetchall(self) -> list[Any]:
        return self._connection.call(self._made().fetchall)

    def __iter__(self) -> Iterator[Any]:
        while (row := self.fetchone()) is not None:
            yield row

    def close(self) -> None:
        if self._cursor is not None:
            self._connection.call(self._cursor.close)


class _AwaitedMethods:
    """What a synchronous dialect of SQLAlchemy's gets in addition."""

    is_async = True
    has_terminate = True
    supports_statement_cache = True

    def get_driver_connection(self, connection: Any) -> Any:
        return connection.driver_connection if type(connection) is AwaitedConnection else connection

    def do_terminate(self, connection: AwaitedConnection) -> None:
        connection.terminate()

    def initialize(self, connection: Any) -> None:
        proxied = connection.connection
        proxied.dbapi_connection.initialize(proxied, partial(super().initialize, connection))  # type: ignore[misc]


class _Streams:
    """Of a dialect whose driver has no cursors of the server's, but does not read all rows at once."""

    def create_server_side_cursor(self) -> Any:
        return self._dbapi_connection.stream()  # type: ignore[attr-defined]


@cache
def awaited(base: Any) -> Any:
    """The dialect class that awaits, of a synchronous one."""
    added: dict[str, Any] = {"supports_statement_cache": True}
    if not base.supports_server_side_cursors:
        added["supports_server_side_cursors"] = True
        added["execution_ctx_cls"] = type("ExecutionContext", (_Streams, base.execution_ctx_cls), {})
    return type(base.__name__, (_AwaitedMethods, base), added)


@cache
def _dialect(url: str) -> str:
    """The beginning of a url like this one, whose dialect awaits."""
    given = make_url(url)
    name = f"{given.get_backend_name()}_{given.get_driver_name()}"
    base: Any = given.get_dialect()
    globals()[name] = awaited(base)
    registry.register(f"{given.get_backend_name()}.txpool_{given.get_driver_name()}", __name__, name)
    return f"{given.get_backend_name()}+txpool_{given.get_driver_name()}://"


def make_engine(
    source: DataSource, url: str, prepare: Callable[[Any, dict[str, Any]], None], options: dict[str, Any]
) -> AsyncEngine:
    """As `txpool.engine.create_async_engine`, whose arguments were checked.

    The url is one of the database's dialect; `prepare(connection, arguments)` makes a connection the Engine's.
    """
    engine = sqlalchemy.create_engine(_dialect(url), poolclass=sqlalchemy.NullPool, **options)
    connect_by(engine, source, prepare)
    return AsyncEngine(engine)


def connect_by(engine: sqlalchemy.Engine, source: DataSource, prepare: Callable[[Any, dict[str, Any]], None]) -> None:
    """Let an Engine whose dialect awaits take its connections from the datasource."""

    @sqlalchemy.event.listens_for(engine, "do_connect")
    def connect(_dialect: Any, _record: Any, _args: Any, arguments: dict[str, Any]) -> Any:
        opened = open_connection(source, None, prepare=lambda handle: prepare(handle, arguments))
        return AwaitedConnection(await_only(opened))

    sqlalchemy.event.listen(engine, "invalidate", lambda connection, _, error: connection.give_up(why_invalid(error)))
