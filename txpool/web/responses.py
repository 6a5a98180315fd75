"""What WSGI and ASGI share: the middleware's settings, what it refuses, and its response if a commit fails."""

from __future__ import annotations

from collections.abc import Callable
from inspect import iscoroutinefunction
from typing import Generic, TypeVar

from txpool.errors import ProgrammingError, TransactionError, TransactionRolledBack, TransactionTimeout
from txpool.tm.transaction import Transaction

A = TypeVar("A")
R = TypeVar("R")

#: The key of a request's environ, or scope, that has its Transaction.
TRANSACTION = "txpool.transaction"

MAX_BODY = 8 * 2**20
#: Statuses of responses without a body.
WITHOUT_BODY = (204, 304)
EVENT_STREAM = "text/event-stream"
#: In the log, after a request, if its response is not sent.
WITHHELD = "%s: the application's answer is withheld, since its commit failed"
PLAIN_TEXT = "text/plain; charset=utf-8"

#: The status, and the text.
PlainResponse = tuple[str, str]

_ROLLED_BACK: PlainResponse = (
    "503 Service Unavailable",
    "The transaction of this request was rolled back: what the request did within it does not stay. If it did nothing "
    "else, it may be sent again.\n",
)
_UNCERTAIN: PlainResponse = (
    "500 Internal Server Error",
    "What has become of this request is not certain: it may have been done, as a whole or in part. Do not send it "
    "again before that is settled; the server's log names its transaction.\n",
)


class ErrorResponse(Exception):
    """The application has answered with an error: the transaction rolls back."""


def response_to(failure: TransactionError) -> PlainResponse:
    """The response to a request whose transaction has ended so."""
    return _ROLLED_BACK if isinstance(failure, TransactionRolledBack) else _UNCERTAIN


def is_error(status: int) -> bool:
    """Whether a status is 400 or above. Frameworks turn exceptions into such responses, so no middleware sees them."""
    return status >= 400


class Middleware(Generic[A, R]):
    """What a middleware is told. `A` is the application, and `R` what an application gets of a request."""

    def __init__(
        self,
        app: A,
        *,
        timeout: float | None = None,
        exclude: Callable[[R], object] | None = None,
        rollback_on_status: Callable[[int], object] = is_error,
        max_body: int = MAX_BODY,
    ) -> None:
        for name, function in (("exclude", exclude), ("rollback_on_status", rollback_on_status)):
            if iscoroutinefunction(function):
                raise ProgrammingError(
                    f"TransactionMiddleware({name}={function!r}): nobody awaits a coroutine function, and each request "
                    "would count as one for which it is true: give a plain function"
                )
        self._app = app
        self._timeout = timeout
        self._exclude = exclude
        self._rollback_on_status = rollback_on_status
        self._max_body = max_body


def require_in_time(begun: Transaction, status: int) -> None:
    """Raise the timeout, if the response is no error. An endless body ends so."""
    if isinstance(begun.rollback_cause, TransactionTimeout) and not is_error(status):
        raise begun.rollback_cause


def require_size(request: str, size: int, limit: int) -> None:
    """ProgrammingError if a response is too long to be kept."""
    if size > limit:
        raise ProgrammingError(
            f"{request} answers by more than max_body = {limit:,} bytes, which would be kept in memory until its "
            "transaction's end: it rolls back. Have such requests pass by: TransactionMiddleware(…, exclude=…)"
        )


def streams_events(request: str) -> ProgrammingError:
    """The error of a response that is a stream of events."""
    return ProgrammingError(
        f"{request} answers by a stream of events, and nothing leaves before its transaction's end: it rolls back. "
        "Have such requests pass by: TransactionMiddleware(…, exclude=…)"
    )


def is_cut(request: str, size: int, length: str) -> ProgrammingError:
    """The error of a response that the client would take for cut."""
    return ProgrammingError(f"{request} answers by {size:,} bytes, and its Content-Length says {length}")
