"""An ASGI middleware by which each request is one transaction, and no byte of its response is sent before the decision.

The transaction ends as the application sends the last part of its response. What it does behind that, as background
tasks, is outside. If the commit has failed, the server gets an error in place of the response, and that is raised into
the application, so that nothing more of the request runs.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any
from urllib.parse import quote

from txpool.aio.block import begin, dismiss
from txpool.errors import ProgrammingError, TransactionError, TransactionRolledBack
from txpool.tm.ambient import current
from txpool.tm.demarcation.block import transaction
from txpool.web import responses

logger = logging.getLogger("txpool")

_NAME = re.compile(rb"[A-Za-z0-9!#$%&'*+.^_`|~-]+")
_VALUE = re.compile(rb"[\t\x20-\x7e\x80-\xff]*")  # no control character

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Application = Callable[[Scope, Receive, Send], Awaitable[None]]


class TransactionMiddleware(responses.Middleware[Application, Scope]):
    """Makes each HTTP request of an ASGI application one transaction of its own, in the event loop.

    It commits as the application has answered, and rolls back if that raised, if it was told before that the client has
    gone away, as when it reads the request or streams its answer, or if `rollback_on_status`, given the answer's
    status, says so: by default from 400 on. A commit that fails is answered with 503 if the transaction rolled back,
    else with 500, and logged. `timeout` in seconds is the transaction's. A response of more than `max_body` bytes, or
    of the type `text/event-stream`, is refused, and rolls back. Requests for which `exclude(scope)` is true, WebSockets
    and the lifespan are passed on, outside any transaction. `scope["txpool.transaction"]` is the Transaction.
    """

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        ambient = current()
        within = (
            ambient is not None and scope.get(responses.TRANSACTION) is ambient
        )  # another middleware's, which ends it
        if scope["type"] != "http" or within or (self._exclude is not None and self._exclude(scope)):
            await self._app(scope, receive, send)
            return
        block = await begin(self._timeout)
        given = scope.get("extensions")
        scope[responses.TRANSACTION] = block.entered_transaction
        # Without those by which a response would pass by what is kept of it.
        scope["extensions"] = {name: each for name, each in (given or {}).items() if "response" not in name}
        try:
            rule, limit = self._rollback_on_status, self._max_body
            exchange = _Exchange(block, scope, receive, send, rollback_on_status=rule, max_body=limit)
            await exchange.run(self._app)
        finally:
            scope.pop(responses.TRANSACTION, None)
            scope["extensions"] = given or {}
            block.leave_context()


class _Exchange:
    """One request, and its response, which is kept until the decision."""

    def __init__(
        self,
        block: transaction,
        scope: Scope,
        receive: Receive,
        send: Send,
        *,
        rollback_on_status: Callable[[int], object],
        max_body: int,
    ) -> None:
        self._block = block
        self._scope = scope
        self._receive_next = receive
        self._send_on = send
        self._rollback_on_status = rollback_on_status
        self._limit = max_body
        self._messages: list[Message] = []
        self._status = 0
        self._size = 0
        #: The application was told that the client has gone away: it may have given up its work.
        self._gone = False
        #: The transaction's end has begun.
        self._completing = False
        #: The error of its end, if the response was not sent.
        self._failure: TransactionError | None = None

    async def run(self, app: Application) -> None:
        try:
            await app(self._scope, self._receive, self._send)
            if not self._completing:
                self._require_client()
                raise ProgrammingError(f"{self._name}: the application has returned, and not completed its response")
        except BaseException as error:
            if self._failure is not None and isinstance(error, Exception):  # raised into the application, and answered
                return
            if not self._completing:
                self._completing = True
                await dismiss(self._block, error)
            if self._gone and isinstance(error, ConnectionAbortedError):
                logger.info("%s", error)
                return
            raise

    @property
    def _name(self) -> str:
        """The request in messages: on one line, whatever its path decodes to."""
        return f"{self._scope['method']} {quote(self._scope.get('path', ''), '/:;=,@', errors='replace')}"

    async def _receive(self) -> Message:
        message = await self._receive_next()
        self._gone = self._gone or message["type"] == "http.disconnect"
        return message

    def _require_client(self) -> None:
        if self._gone:
            raise ConnectionAbortedError(f"the client of {self._name} went away: its transaction rolls back")

    async def _send(self, message: Message) -> None:
        if self._failure is not None:
            raise self._failure
        if self._completing:
            await self._send_on(message)
            return
        kind = message["type"]
        if kind == "http.response.start":
            self._start(message)
        elif kind == "http.response.body":
            self._add(message)
        else:
            raise ProgrammingError(f"{self._name}: {kind} cannot be kept until its transaction's end: it rolls back")
        self._messages.append(message)
        if kind == "http.response.body" and not message.get("more_body", False):
            self._require_complete()
            await self._end()

    def _start(self, message: Message) -> None:
        """ProgrammingError if the server would refuse it after the decision, or if it is a stream."""
        if self._status:
            raise ProgrammingError(f"{self._name}: the application has started its response twice")
        for name, value in message.get("headers", ()):
            if not (isinstance(name, bytes) and isinstance(value, bytes)) or not (
                _NAME.fullmatch(name) and _VALUE.fullmatch(value)
            ):
                raise ProgrammingError(f"{self._name}: the header {name!r} cannot be sent")
            if name.lower() == b"content-type" and value.lower().startswith(responses.EVENT_STREAM.encode()):
                raise responses.streams_events(self._name)
        status = int(message["status"])
        if not 200 <= status <= 599:
            raise ProgrammingError(f"{self._name}: {status} is no status of a response")
        self._status = status

    def _add(self, message: Message) -> None:
        if not self._status:
            raise ProgrammingError(f"{self._name}: the application has not started its response")
        responses.require_in_time(self._block.entered_transaction, self._status)
        body = message.get("body", b"")
        if not isinstance(body, bytes | bytearray | memoryview):
            raise ProgrammingError(f"{self._name}: a body of {type(body).__name__} cannot be sent")
        self._size += len(body)
        responses.require_size(self._name, self._size, self._limit)

    def _require_complete(self) -> None:
        """Raise if the client would take the response for cut, or the application has given up a part of it."""
        self._require_client()
        if self._scope["method"] == "HEAD" or self._status in responses.WITHOUT_BODY:
            return
        for name, value in self._messages[0].get("headers", ()):
            if name.lower() == b"content-length" and value != str(self._size).encode():
                raise responses.is_cut(self._name, self._size, value.decode("latin-1"))

    async def _end(self) -> None:
        """End the transaction, and send the response; or an error, which is raised, too."""
        self._completing = True
        error = None
        if self._rollback_on_status(self._status):
            error = responses.ErrorResponse(f"{self._name} was answered by {self._status}")
        try:
            await dismiss(self._block, error)
        except TransactionError as failure:
            if error is None or not isinstance(failure, TransactionRolledBack):
                logger.exception(responses.WITHHELD, self._name)
                self._failure = failure
                await self._send_failure(failure)
                raise
        for message in self._messages:
            await self._send_on(message)

    async def _send_failure(self, failure: TransactionError) -> None:
        status, text = responses.response_to(failure)
        length = str(len(text.encode())).encode()
        headers = [(b"content-type", responses.PLAIN_TEXT.encode()), (b"content-length", length)]
        await self._send_on({"type": "http.response.start", "status": int(status[:3]), "headers": headers})
        body = b"" if self._scope["method"] == "HEAD" else text.encode()
        await self._send_on({"type": "http.response.body", "body": body})
