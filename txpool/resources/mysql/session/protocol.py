"""Commands over a raw connection of MariaDB or MySQL, sent and received apart, as split-phase branches need it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Protocol

if TYPE_CHECKING:
    from txpool.resources.mysql.session.state import MySQLRawConnection

#: The driver has refused to send, since results of the program's own are not read to their end.
OUT_OF_STEP: Final = 2014
#: Sent behind a ROLLBACK, whose warnings say whether rows stay in tables without transactions.
WARNINGS: Final = "show warnings"
_ROWS_STAY: Final = 1196
#: Errors of the client: the connection is lost, or its answers are out of step.
_CLIENT_ERRORS: Final = range(2000, 3000)
# Errors of the server that end the session: shutdown, KILL, network errors, and MySQL's for a session that was idle.
_SESSION_ENDING: Final = frozenset({0, 1053, 1077, 1079, 1152, 1158, 1159, 1160, 1161, 1184, 1927, 3169, 4031})


@dataclass(frozen=True, slots=True)
class CommandResult:
    """The answer to one command: the server's error, or the rows of its result."""

    error: Exception | None = None
    rows: tuple[Any, ...] = ()
    #: How many rows it has changed.
    affected: int = 0

    @property
    def code(self) -> int:
        """The error's number; 0 if there is none."""
        return 0 if self.error is None else code_of(self.error)


class Greeted(Protocol):
    """A raw connection, as far as all need it who ask its server."""

    @property
    def is_mariadb(self) -> bool: ...
    @property
    def session_number(self) -> int | None:
        """The number that the client was greeted with; None if its driver does not tell it."""


class Session(Protocol):
    """Several commands in one message over one raw connection. Used by one thread at a time."""

    @property
    def raw(self) -> Greeted: ...

    def is_alive(self) -> bool:
        """Whether the connection is open and in step, as far as is known without waiting."""

    def send(self, *statements: str) -> None:
        """Send without waiting. The driver's OperationalError if the connection is lost."""

    def receive(self, until: float | None = None) -> list[CommandResult]:
        """The answers to all that was sent, in order. An error of the server is an answer; a lost connection raises.

        If what went ahead is refused, its error is each answer, and the connection is closed.

        `ReplyTimeout` if they have not come at `until`, by the monotonic clock. After an exception the connection is
        closed.
        """

    def run(self, statement: str, until: float | None = None) -> tuple[Any, ...]:
        """Send one and receive; its rows. Raises the server's error."""

    def ping(self, until: float | None, timeout: float | None) -> None:
        """Raise if the connection is dead; TimeoutError at `until`, which is `timeout` seconds after the start."""

    def quoted(self, text: str) -> str:
        """The text as an SQL literal."""


class DriverSession(Session, Protocol):
    """A session over one of Python's drivers."""

    @property
    def raw(self) -> MySQLRawConnection: ...


def after_what_went_ahead(raw: MySQLRawConnection, answers: list[CommandResult]) -> list[CommandResult]:
    """The answers without the first. If that is an error, nothing may stay of the others, and it is each of them."""
    ahead, *rest = answers
    if ahead.error is None:
        return rest
    raw.break_off()  # what was executed all the same is in a local transaction: the server rolls it back
    return [ahead] * len(rest)


def tells_that_rows_stay(warnings: CommandResult) -> bool:
    """Whether the answer to `WARNINGS` says that a ROLLBACK has left rows in tables without transactions."""
    return any(int(code) == _ROWS_STAY for _, code, _ in warnings.rows)


def code_of(error: BaseException) -> int:
    """The number of a driver's error; -1 if it has none."""
    code = error.args[0] if error.args else None
    return code if isinstance(code, int) else -1


def ends_session(error: BaseException) -> bool:
    """Whether an error says that the session has ended, so that it is unknown whether the command was executed."""
    code = code_of(error)
    return code in _CLIENT_ERRORS or code in _SESSION_ENDING or code < 0
