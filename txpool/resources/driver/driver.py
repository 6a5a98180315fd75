"""A DB-API driver as the pool, the connections and the branches use it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol

from txpool.resources.driver.dialect import Dialect
from txpool.resources.driver.marks import Marks

if TYPE_CHECKING:
    from txpool.resources.driver.raw import RawConnection


class Driver(Protocol):
    """A DB-API driver with the settings of one datasource. Thread-safe; a raw connection has one user at a time.

    A raw connection is the driver's own. If its database prepares, it also has `identity` and `role`, as
    `PrepareLocation` describes them. What has a default here is inherited by a class that is derived from this one.
    """

    @property
    def module(self) -> Any:
        """The PEP 249 module."""

    @property
    def dialect(self) -> Dialect:
        """How local transactions commit and roll back."""

    @property
    def marks(self) -> Marks | None:
        """How its table of marks is written and read; None if the database can have none."""
        return None

    @property
    def roles(self) -> tuple[str, ...]:
        """The database roles that the datasource's file names, for the application and for recovery."""
        return ()

    def connect(self, timeout: float | None = None) -> Any:
        """Open a raw connection, outside a transaction, with the session set as the datasource's file says.

        `timeout` is in seconds, beside the driver's own timeout; a driver may take a second or two if less is left.
        """

    def execute(self, raw: RawConnection, statement: str, parameters: Sequence[Any] = ()) -> Any:
        """Execute a statement of txpool's own; returns the PEP 249 cursor with its result."""

    def is_open(self, raw: RawConnection) -> bool:
        """Whether the connection is open: neither closed nor, as far as is known, lost. No I/O."""

    def is_clean(self, raw: RawConnection) -> bool:
        """Whether the connection can be used again as it is: open, reset, and outside a transaction. No I/O."""

    def reset(self, raw: RawConnection, timeout: float | None = None) -> None:
        """Roll back and restore the session. Raises if that fails, or takes longer than `timeout` (seconds)."""

    def ping(self, raw: RawConnection, timeout: float | None = None) -> None:
        """Raise if the connection is dead; TimeoutError if the server takes longer than `timeout` (seconds).

        After an error only `close` may be called: a late answer would be taken for the next statement's.
        """

    def close(self, raw: RawConnection) -> None:
        """Close the connection, without waiting for the server."""

    def cancel(self, raw: RawConnection, timeout: float | None = None) -> None:
        """Ask the server to stop the statement that executes on the connection. Any thread may call it; never raises.

        It waits at most `timeout` seconds for a server that cannot be reached.
        """
        return

    def hang_up(self, raw: RawConnection) -> None:
        """Let no more pass: whoever waits on the connection gets an error, and so does all that comes later.

        Any thread may call it; never raises. One that cannot do that cancels, as a file's.
        """
        self.cancel(raw)

    def begin(self, raw: RawConnection, label: str = "") -> bool:
        """Called before a statement: begin the local transaction. False if the driver does so with the statement.

        A `label` is the session's name for the server's lists of sessions until the transaction ends, if the server
        has such a name.
        """
        return False

    def reached_server(self, error: BaseException) -> bool:
        """Whether the statement that raised `error` may have reached the database, and ended the transaction there.

        False only if it surely has not, or if the connection itself tells that, as SQLite's does.
        """

    def note_failure(self, raw: RawConnection, raw_cursor: Any, error: BaseException) -> None:
        """Called after a statement that failed inside a transaction; `raw_cursor` is None if the driver has none.

        If the failure keeps the transaction from committing, its end can then say which statement it was.
        """
        return

    def ended_by(self, raw: RawConnection, raw_cursor: Any) -> str | None:
        """Called after a statement: `commit` or `rollback` if the user's own SQL has ended the local transaction."""


class BeginsWithStatement(Driver, Protocol):
    """A driver that can begin a transaction together with its first statement: one that has `execute_first`."""

    def execute_first(
        self, raw: RawConnection, raw_cursor: Any, statement: Any, args: tuple[Any, ...], options: dict[str, Any]
    ) -> bool:
        """Begin the local transaction, and execute a statement, as the cursor's `execute` does.

        If BEGIN is refused, or nothing is sent, no transaction is open behind the error. False if the statement
        cannot be executed so: nothing is done.
        """
