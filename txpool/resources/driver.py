"""What the pool, the handles and the resource managers need to know of a DB-API driver."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from txpool.resources.dialect import Dialect
from txpool.resources.marks import Marks


class Driver(Protocol):
    """One DB-API driver's own ways, for one datasource. Thread-safe; a raw connection has one user at a time."""

    @property
    def module(self) -> Any:
        """The PEP 249 module."""

    @property
    def dialect(self) -> Dialect:
        """How a local transaction goes in its database."""

    @property
    def marks(self) -> Marks | None:
        """How its tables of marks are written; None where it has none."""

    @property
    def roles(self) -> tuple[str, ...]:
        """The database's roles that the datasource's file names, for the application and for recovery."""

    def connect(self, timeout: float | None = None) -> Any:
        """A new raw connection, outside a transaction, with the session as the datasource wants it.

        `timeout` is in seconds, beside the driver's own; a driver may take a second or two where less is left.
        """

    def execute(self, raw: Any, statement: str, parameters: Sequence[Any] = ()) -> Any:
        """Execute a statement of ours; the cursor of PEP 249 that has its result."""

    def is_open(self, raw: Any) -> bool:
        """No I/O: neither closed nor, as far as is known, lost."""

    def is_clean(self, raw: Any) -> bool:
        """No I/O: open, healthy, and outside a transaction."""

    def reset(self, raw: Any, timeout: float | None = None) -> None:
        """Roll back and restore the session; raises where it cannot, or where the server has not answered in time."""

    def ping(self, raw: Any, timeout: float | None = None) -> None:
        """Raises where the connection is dead; TimeoutError where the server has not answered in time.

        After that only `close` is of use: the answer may come yet, and would be taken for another's.
        """

    def close(self, raw: Any) -> None:
        """Never waits for the server."""

    def cancel(self, raw: Any, timeout: float | None = None) -> None:
        """Ask the server to stop what the connection is executing; from any thread, never raises.

        It takes a moment, or where the server cannot be reached so many seconds.
        """

    def begin(self, raw: Any, label: str = "") -> None:
        """Before a statement: open the local transaction, where the driver does not do so by itself.

        With a `label`, the server shows the session under that name until the transaction ends, where it can.
        """

    def reached_server(self, error: BaseException) -> bool:
        """Whether the database may have seen the statement that failed so; false only where it certainly has not."""

    def ended_by(self, raw: Any, raw_cursor: Any) -> str | None:
        """After a statement inside a transaction: `commit` or `rollback` where the user's own SQL has ended it."""
