"""The driver's connection: PEP 249 over a java.sql.Connection."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from contextlib import suppress
from math import ceil
from types import TracebackType
from typing import Any, ClassVar, Final, Self

from txpool.locks import RLock
from txpool.resources.jdbc.dbapi import errors
from txpool.resources.jdbc.dbapi.cursor import JdbcCursor
from txpool.resources.jdbc.jvm.jvm import entered, helper

#: Above this size, in bytes, a buffer is given up after its use.
_KEPT: Final = 1 << 22
_SMALLEST: Final = 1 << 16
#: Databases whose driver gives the number of a new row without a statement of its own.
_GIVES_KEYS: Final = ("mariadb", "mysql", "h2", "apache derby", "hsql")
_MOST_SECONDS: Final = 2_147_483
_CLOSED: Final = "the connection is closed"


class JdbcConnection:
    """A connection over a java.sql.Connection, outside autocommit mode unless that is set.

    Threads may share it: each call has the connection alone. `cancel()` and `abort()` do not wait for the others.
    """

    Warning: ClassVar = Warning
    Error: ClassVar = errors.Error
    InterfaceError: ClassVar = errors.InterfaceError
    DatabaseError: ClassVar = errors.DatabaseError
    DataError: ClassVar = errors.DataError
    OperationalError: ClassVar = errors.OperationalError
    IntegrityError: ClassVar = errors.IntegrityError
    InternalError: ClassVar = errors.InternalError
    ProgrammingError: ClassVar = errors.ProgrammingError
    NotSupportedError: ClassVar = errors.NotSupportedError

    cursor_class: type[JdbcCursor] = JdbcCursor

    def __init__(self, java_connection: Any) -> None:
        """Outside autocommit mode from now on; the connection given is closed with this one."""
        #: The java.sql.Connection.
        self.java = java_connection
        #: Seconds that a statement may take; None is as long as it likes. Drivers count whole seconds.
        self.query_timeout: float | None = None
        #: How many rows the driver fetches at a time; 0 is as the driver does, which may be all.
        self.fetch_size = 0
        #: A statement was sent in the transaction that is open.
        self.in_transaction = False
        #: A statement of the user's was sent. Who has to know since when sets it to False.
        self.used = False
        #: The first error of a statement of the user's. Who has to know since when sets it to None.
        self.failed: errors.Error | None = None
        #: An error has said that the connection is gone.
        self.broken = False
        self.closed = False
        self._lock = RLock()
        try:
            self._begin_session()
        except BaseException:
            with suppress(errors.Error):
                errors.call(java_connection.close)
            raise

    def _begin_session(self) -> None:
        java = self.java
        about = errors.call(java.getMetaData)
        #: The database's name, in lower case, and its version.
        self.product = str(errors.call(about.getDatabaseProductName)).lower()
        self.version = str(errors.call(about.getDatabaseProductVersion))
        self.gives_keys = self.product.startswith(_GIVES_KEYS)
        #: Numbers of results that no cursor wants any more.
        self.unwanted: list[int] = []
        self._session = errors.call(helper("Session"), java, self.product)
        #: Whether Java's buffer is ours: not if an interrupt came between Java's having a new one and our taking it.
        self._in_step = False
        self._view = memoryview(b"")
        self._execute, self._execute_many = self._session.execute, self._session.executeMany
        #: None if a change of it was interrupted, or has failed.
        self._autocommit: bool | None = bool(errors.call(java.getAutoCommit))
        self.autocommit = False
        self._initial_isolation = self.isolation
        self._initial_read_only = self.read_only
        #: In milliseconds; None as long as nobody has set another.
        self._initial_network_timeout: int | None = None

    # -- its transactions ---------------------------------------------------------------------------------------

    @property
    def autocommit(self) -> bool:
        """Whether each statement commits by itself. Setting it commits what is open, as JDBC has it."""
        if self._autocommit is None:
            self._autocommit = bool(self._on("getAutoCommit"))
        return self._autocommit

    @autocommit.setter
    def autocommit(self, value: bool) -> None:
        value = bool(value)
        if value is not self._autocommit:
            self._autocommit = None  # until it is known
            self._on("setAutoCommit", value)
            self._autocommit = value
            self.in_transaction = False

    def commit(self) -> None:
        """Commit; does nothing in autocommit mode."""
        self._end("commit")

    def rollback(self) -> None:
        """Roll back; does nothing in autocommit mode."""
        self._end("rollback")

    def _end(self, method: str) -> None:
        self.require_open()
        if self.autocommit:
            return
        self._on(method)
        self.in_transaction = False

    @property
    def isolation(self) -> int:
        """The number of the level in which transactions begin, as java.sql.Connection has it."""
        return int(self._on("getTransactionIsolation"))

    @isolation.setter
    def isolation(self, level: int) -> None:
        self._on("setTransactionIsolation", level)

    @property
    def read_only(self) -> bool:
        """Whether transactions begin read-only, for databases that know such."""
        return bool(self._on("isReadOnly"))

    @read_only.setter
    def read_only(self, value: bool) -> None:
        self._on("setReadOnly", bool(value))

    # -- statements ---------------------------------------------------------------------------------------------

    def cursor(self) -> JdbcCursor:
        """A new cursor."""
        self.require_open()
        return self.cursor_class(self)

    def execute(self, operation: str, parameters: Sequence[Any] = ()) -> JdbcCursor:
        """Execute a statement on a new cursor, and return that."""
        cursor = self.cursor()
        cursor.execute(operation, parameters)
        return cursor

    def run(self, operation: str, parameters: Sequence[Any] = ()) -> JdbcCursor:
        """Execute a statement of txpool's own, which leaves `used` and `failed` as they are."""
        before = self.used, self.failed
        try:
            return self.execute(operation, parameters)
        finally:
            self.used, self.failed = before

    def cancel(self) -> None:
        """Ask the database to stop the statement that executes. Any thread may call it."""
        self.require_open()
        errors.call(self._session.cancel)

    def set_network_timeout(self, seconds: float | None) -> None:
        """How long the driver waits for an answer; then the connection is lost. None is for ever.

        NotSupportedError if the driver has no such time.
        """
        milliseconds = 0 if seconds is None else max(1, min(ceil(seconds * 1000), 2**31 - 1))
        if self._initial_network_timeout is None:
            self._initial_network_timeout = int(self._on("getNetworkTimeout"))
        self.call(self._session.setNetworkTimeout, milliseconds)

    def ping(self, timeout: float | None = None) -> None:
        """OperationalError if the connection is dead, or does not answer within `timeout` (seconds, rounded up)."""
        self.require_open()
        seconds = 0 if timeout is None else max(1, min(ceil(timeout), _MOST_SECONDS))
        if not self._on("isValid", seconds):
            self.broken = True
            raise errors.ConnectionLost("the connection does not answer")

    def reset(self) -> None:
        """Roll back, leave autocommit mode, and restore what was set on this object."""
        if self.autocommit:
            self.autocommit = False
        else:
            self.rollback()
        self.query_timeout, self.fetch_size = None, 0
        self._on("clearWarnings")
        if self._initial_network_timeout is not None:
            self.call(self._session.setNetworkTimeout, self._initial_network_timeout)
            self._initial_network_timeout = None
        if self.read_only is not self._initial_read_only:
            self.read_only = self._initial_read_only
        if self.isolation != self._initial_isolation:
            self.isolation = self._initial_isolation
        self.in_transaction = False

    # -- its end ------------------------------------------------------------------------------------------------

    @property
    def lost(self) -> bool:
        """Whether it is closed, or an error has said that it is gone. No I/O."""
        return self.closed or self.broken

    def close(self) -> None:
        """Close it; what was not committed rolls back."""
        if self.closed:
            return
        entered()
        try:
            if self.in_transaction and not self.broken:
                self.rollback()  # Derby refuses to close an open transaction, Oracle commits it
        except BaseException:
            self.abort()
            raise
        self._forget()
        with suppress(errors.ConnectionLost):
            errors.call(self.java.close)

    def abort(self) -> None:
        """Close it without waiting for the server, if the driver can. Any thread may call it."""
        if self.closed:
            return
        entered()
        session = self._session
        self._forget()
        errors.call(session.abort)

    def _forget(self) -> None:
        self.closed = True
        self.in_transaction = False

    def require_open(self) -> None:
        """InterfaceError if it is closed, or a parent process's."""
        if self.closed:
            raise errors.InterfaceError(_CLOSED)
        entered()  # even the name of a Java method leads into Java

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """As psycopg's: commit, or roll back after an error, and close."""
        try:
            if kind is None:
                self.commit()
            elif not self.lost:
                self.rollback()
        finally:
            self.close()

    # -- for its cursors ----------------------------------------------------------------------------------------

    def _on(self, name: str, *args: Any) -> Any:
        self.require_open()
        return self.call(getattr(self.java, name), *args)

    def call(self, method: Callable[..., Any], *args: Any) -> Any:
        """Call a method of Java's on this connection, alone."""
        self.require_open()
        with self._lock:
            try:
                return errors.call(method, *args)
            except errors.Error as error:
                self.note(error)
                raise

    def note(self, error: errors.Error) -> None:
        """Remember it if an error says that the connection is gone."""
        if isinstance(error, errors.ConnectionLost):
            self.broken = True

    def _note_failure(self, error: errors.Error) -> None:
        self.note(error)
        if self.failed is None:
            self.failed = error

    def answer(self, pieces: list[bytes]) -> bytes:
        """Send the pieces of a request, and have its answer."""
        self.require_open()
        with self._lock:
            self._begin(pieces)
            try:
                return self._answer(self._execute)
            except errors.Error as error:
                self._note_failure(error)
                raise

    def change(self, pieces: list[bytes]) -> int:
        """Send the pieces of a batch; how many rows it has changed, -1 if the driver does not tell."""
        self.require_open()
        with self._lock:
            self._begin(pieces)
            try:
                changed = int(errors.call(self._execute_many))
            except errors.Error as error:
                self._note_failure(error)
                raise
            self._shrink()
            return changed

    def more(self, method: str, number: int, rows: int) -> bytes:
        """What the helper's `fetch` or `next` answers for an open result."""
        self.require_open()
        with self._lock:
            self._step()
            try:
                return self._answer(getattr(self._session, method), number, rows)
            except errors.Error as error:
                self._note_failure(error)
                raise

    def _begin(self, pieces: list[bytes]) -> None:
        unwanted, self.unwanted = self.unwanted, []
        closing = len(unwanted).to_bytes(4, "little") + b"".join(each.to_bytes(4, "little") for each in unwanted)
        data = b"".join((closing, *pieces))
        size = len(data)
        self._step()
        if size > len(self._view):
            self._use_buffer(errors.call(self._session.room, size))
        self._view[:size] = data
        self.used = True
        self.in_transaction = not self._autocommit

    def _step(self) -> None:
        if not self._in_step:
            self._use_buffer(errors.call(self._session.buffer))
        self._in_step = False

    def _answer(self, method: Callable[..., Any], *args: Any) -> bytes:
        size = int(errors.call(method, *args))
        if size < 0:
            size = -size
            self._use_buffer(errors.call(self._session.buffer))
        data = self._view[:size].tobytes()
        self._shrink()
        return data

    def _shrink(self) -> None:
        if len(self._view) > _KEPT:
            self._use_buffer(errors.call(self._session.room, _SMALLEST))
        self._in_step = True

    def _use_buffer(self, buffer: Any) -> None:
        # memoryview() alone has a format of Java's, which Python cannot write to.
        size = int(buffer.capacity())
        self._view = memoryview((ctypes.c_ubyte * size).from_buffer(buffer)).cast("B")
