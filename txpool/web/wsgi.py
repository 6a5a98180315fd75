"""A WSGI middleware by which each request is one transaction, and no byte of its response is sent before the decision.

The application runs, and its body is iterated and closed, in one thread and within the transaction. Then that ends, and
only then the server gets a response: the application's, or an error if the commit has failed. A client that goes
away meanwhile changes nothing.
"""

from __future__ import annotations

import logging
import re
import sys
from collections.abc import Callable, Generator
from contextlib import closing
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from txpool.errors import ProgrammingError, TransactionError, TransactionRolledBack
from txpool.tm.ambient import current, make_ambient, restore_ambient
from txpool.tm.demarcation.block import transaction
from txpool.web import responses
from txpool.web.received import received
from txpool.web.responses import is_error

if TYPE_CHECKING:
    from collections.abc import Iterable
    from wsgiref.types import StartResponse, WSGIApplication, WSGIEnvironment

__all__ = ["TransactionMiddleware", "is_error"]

logger = logging.getLogger("txpool")

_STATUS = re.compile(r"[1-9][0-9]{2}( [\t\x20-\x7e\x80-\xff]*)?")
_NAME = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")
_VALUE = re.compile(r"[\t\x20-\x7e\x80-\xff]*")  # Latin-1, and no control character
_LENGTH = "content-length"


class TransactionMiddleware(responses.Middleware["WSGIApplication", "WSGIEnvironment"]):
    """Makes each request of a WSGI application one transaction of its own. Thread-safe.

    It commits if the application has answered, and rolls back if that raised, if the request's body was cut
    off, or if `rollback_on_status`, given the answer's status, says so: by default from 400 on. A commit that fails
    is answered with 503 if the transaction rolled back, else with 500, and logged. `timeout` in seconds is the
    transaction's. A response of more than `max_body` bytes, or of the type `text/event-stream`, is refused, and rolls
    back. Requests for which `exclude(environ)` is true are passed on outside any transaction.
    `environ["txpool.transaction"]` is the Transaction.
    """

    def __call__(self, environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        ambient = current()
        if (
            ambient is not None and environ.get(responses.TRANSACTION) is ambient
        ):  # another middleware has begun it, and ends it
            return self._app(environ, start_response)
        if self._exclude is not None and self._exclude(environ):
            return self._app(environ, start_response)
        # Leave a transaction that an earlier request has left open in this thread.
        token = make_ambient(None)
        try:
            response = _Response(environ, self._max_body)
            failure = self._run(environ, response)
        finally:
            environ.pop(responses.TRANSACTION, None)
            restore_ambient(token)
        if failure is None:
            start_response(response.status, response.headers)
            return response.chunks
        logger.error(responses.WITHHELD, _request_name(environ), exc_info=failure)
        return _send_failure(failure, environ, start_response)

    def _run(self, environ: WSGIEnvironment, response: _Response) -> TransactionError | None:
        """Run the application within a transaction. Returns the error of its end, if the response must not be sent."""
        commits: bool | None = None
        body = received(environ)
        if body is not None:
            environ["wsgi.input"] = body
        try:
            with transaction(self._timeout) as begun:
                begun.may_be_empty = True
                environ[responses.TRANSACTION] = begun
                with closing(response.collected(self._app, environ)) as steps:
                    for _ in steps:
                        responses.require_in_time(begun, response.code)
                if body is not None:
                    body.require_uncut()  # also if the application has ignored that
                commits = not (response.failed or self._rollback_on_status(response.code))
                if not commits:
                    raise responses.ErrorResponse(f"{_request_name(environ)} was answered by {response.status}")
        except responses.ErrorResponse:
            return None
        except TransactionError as error:
            if commits is None:  # raised by the application, or before it could answer
                raise
            if not commits and isinstance(error, TransactionRolledBack):
                return None
            return error
        return None


class _Response:
    """The response of an application, kept until the decision."""

    def __init__(self, environ: WSGIEnvironment, limit: int) -> None:
        self.status = ""
        self.headers: list[tuple[str, str]] = []
        self.chunks: list[bytes] = []
        #: The application has called start_response() with an exception.
        self.failed = False
        self._request = _request_name(environ)
        self._has_body = environ.get("REQUEST_METHOD") != "HEAD"
        self._limit = limit
        self._size = 0
        self._complete = False

    @property
    def code(self) -> int:
        return int(self.status[:3] or 0)

    def collected(self, app: WSGIApplication, environ: WSGIEnvironment) -> Generator[None]:
        """Run the application to its end, with a step for each part of its body, which is closed in any case.

        ProgrammingError if the server would refuse the response after the decision, or the client take it for cut.
        """
        body = app(environ, self.start)
        try:
            for chunk in body:
                if not self.status:
                    raise ProgrammingError(f"{self._request}: the application has not called start_response()")
                self.write(chunk)
                yield
        finally:
            if hasattr(body, "close"):
                body.close()
        self._complete = True
        if not self.status:
            raise ProgrammingError(f"{self._request}: the application has not called start_response()")
        if self._has_body and self.code not in responses.WITHOUT_BODY:
            for name, value in self.headers:
                if name.lower() == _LENGTH and int(value) != self._size:
                    raise responses.is_cut(self._request, self._size, value)

    def start(self, status: str, headers: list[tuple[str, str]], error: Any = None, /) -> Callable[[bytes], object]:
        """WSGI's start_response. ProgrammingError if the server would refuse it after the decision."""
        if self.status and error is None:
            raise ProgrammingError(f"{self._request}: the application has called start_response() twice")
        if not _STATUS.fullmatch(status):
            raise ProgrammingError(f"{self._request}: {status!r} is no status: WSGI wants one like '200 OK'")
        for name, value in headers:
            number = name.lower() != _LENGTH or (value.isascii() and value.isdigit())
            if not (_NAME.fullmatch(name) and _VALUE.fullmatch(value) and number):
                raise ProgrammingError(f"{self._request}: the header {name!r} cannot be sent")
            if name.lower() == "content-type" and value.lower().startswith(responses.EVENT_STREAM):
                raise responses.streams_events(self._request)
        if error is not None:  # nothing has been sent yet: the error page replaces the response
            self.failed = True
            self.chunks.clear()
            self._size = 0
        self.status, self.headers = status, list(headers)
        return self.write

    def write(self, chunk: bytes) -> None:
        """WSGI's write()."""
        if self._complete:
            raise ProgrammingError(f"{self._request} has been answered: nothing more can be written")
        if not isinstance(chunk, bytes):
            chunk = bytes(memoryview(chunk))
        self._size += len(chunk)
        responses.require_size(self._request, self._size, self._limit)
        if chunk:
            self.chunks.append(chunk)


def _send_failure(
    failure: TransactionError, environ: WSGIEnvironment, start_response: StartResponse
) -> Iterable[bytes]:
    status, text = responses.response_to(failure)
    body = text.encode()
    headers = [("Content-Type", responses.PLAIN_TEXT), ("Content-Length", str(len(body)))]
    try:
        raise failure
    except TransactionError:
        start_response(status, headers, sys.exc_info())
    return [] if environ.get("REQUEST_METHOD") == "HEAD" else [body]


def _request_name(environ: WSGIEnvironment) -> str:
    """A request in messages: on one line, whatever its path decodes to."""
    path = quote(environ.get("SCRIPT_NAME", "") + environ.get("PATH_INFO", ""), "/:;=,@", "latin-1", "replace")
    return f"{environ.get('REQUEST_METHOD')} {path}"
