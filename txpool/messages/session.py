"""Sessions: what sends and receives messages within the ambient transaction."""

from __future__ import annotations

import time
import uuid
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from math import inf, isnan
from pathlib import Path
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Any, TypeVar

from txpool.datasource import find, find_source
from txpool.errors import NotSupportedError, ProgrammingError, described
from txpool.locks import Lock
from txpool.resources.messages.tables import Outgoing, Tried, tables_of
from txpool.tm.ambient import current, forked_within
from txpool.tm.demarcation.block import transaction
from txpool.tm.demarcation.transactional import transactional

if TYPE_CHECKING:
    from txpool.datasource import DataSource, Source
    from txpool.tm.transaction import Transaction

T = TypeVar("T")
_NOT_GIVEN: Any = object()
#: The header with a message's place in a trace.
TRACEPARENT = "traceparent"
#: The longest delay of a message, in seconds: a hundred years. A broker has no room for any number.
_LONGEST_DELAY = 3.2e9


@dataclass(frozen=True, slots=True)
class ReceivedMessage:
    """A message, as it was received."""

    #: None if it was sent without a body.
    body: bytes | None
    key: str | None
    headers: Mapping[str, str]
    #: The same each time that it is received, and no other message's: what `once()` needs.
    id: str
    #: When it was sent, in seconds since 1970, by the broker's clock or the sender's.
    time: float
    #: How the session finds it again.
    place: Any = field(repr=False)
    #: How often a consumer has tried it by itself before.
    tries: int = 0

    @property
    def value(self) -> bytes | None:
        """The body."""
        return self.body

    @property
    def text(self) -> str:
        """The body as text. UnicodeDecodeError if it is none; ProgrammingError if there is no body."""
        if self.body is None:
            raise ProgrammingError(f"message {self.id} has no body")
        return self.body.decode()


class MessageSession(ABC):
    """Sends and receives messages, as a file describes it. `txpool.session()` returns the same one each time.

    Any thread may send. One thread at a time receives.
    """

    #: How many characters a key has, at least and at most.
    _key_lengths: tuple[float, float] = (1, 200)
    #: The header that has a message's id; None if that stands elsewhere.
    _own_header: str | None = None

    def __init__(self, source: Source) -> None:
        self.source = source  #: What its file describes.
        self.name = source.name  #: The name that its file gives.
        settings = source.settings
        #: The queue of `datasource` in which parked messages are.
        self.parking = settings.parking_queue
        if self.parking in (settings.queue, f"topic:{settings.topic}"):
            raise settings.properties.error("parking", f"leads back to where it came from: {self.parking}")
        self.parking_after = settings.parking_after  #: How often a consumer tries a message.
        self._receiving = Lock()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name}: {self.source.url}>"

    def __reduce__(self) -> tuple[Any, ...]:
        return session, (self.source,)

    def close(self) -> None:
        """Close its connections. `txpool.session()` makes another then. The datasource stays open."""
        self.source.close()

    @property
    @abstractmethod
    def datasource(self) -> DataSource:
        """The datasource that keeps what the session must remember."""

    @property
    def prepares_in(self) -> Source:
        """What prepares a transaction's messages."""
        return self.datasource

    def send(
        self,
        body: bytes | bytearray | memoryview | str | None = _NOT_GIVEN,
        *,
        value: bytes | bytearray | memoryview | str | None = _NOT_GIVEN,
        key: str | None = None,
        headers: Mapping[str, str] | None = None,
        delay: float = 0,
    ) -> str:
        """Send a message, which is received once the ambient transaction has committed; returns its id.

        Outside a transaction it is sent at once, and the broker's answer awaited; a child that was forked within one
        sends within one of its own. A text is sent as UTF-8. `value` is another name of `body`, as Kafka has it. It
        cannot be received for `delay` seconds. Errors: ProgrammingError for arguments that are none; NotSupportedError
        for what the broker does not have; the transaction's and the broker's own.
        """
        headers = {} if headers is None else headers
        if (body is _NOT_GIVEN) == (value is _NOT_GIVEN):
            raise ProgrammingError("a message has one body, given as such or as its value, and nothing was sent")
        body = value if body is _NOT_GIVEN else body
        if not (body is None or isinstance(body, bytes | bytearray | memoryview | str)):
            raise ProgrammingError(
                f"a message's body is bytes or text, and not {type(body).__name__}, and nothing was sent: json.dumps() "
                "makes text of most else"
            )
        least, most = self._key_lengths
        if key is not None and not (isinstance(key, str) and least <= len(key) <= most):
            lengths = "" if most == inf else f" of {least} to {most} characters"
            raise ProgrammingError(f"a message's key is text{lengths}, and nothing was sent")
        if not (
            isinstance(headers, Mapping) and all(isinstance(each, str) for pair in headers.items() for each in pair)
        ):
            raise ProgrammingError("a message's headers are texts by names, and nothing was sent")
        if self._own_header in headers:
            raise ProgrammingError(
                f"the header {self._own_header} is txpool's own, which has the message's id, and nothing was sent: "
                "give it another name"
            )
        if not (isinstance(delay, int | float) and 0 <= delay <= _LONGEST_DELAY):
            raise ProgrammingError(
                "a message's delay is a number of seconds, of a hundred years at most, and nothing was sent"
            )
        try:
            data = body.encode() if isinstance(body, str) else None if body is None else bytes(body)
        except UnicodeEncodeError as error:
            raise ProgrammingError(
                f"a message's body is no text of UTF-8, and nothing was sent: {described(error)}"
            ) from error
        made = str(uuid.uuid4())
        sent = Outgoing(made, data, key, dict(headers), float(delay))
        ambient = current()
        if ambient is None:
            if (parents := forked_within()) is not None:
                raise ProgrammingError(
                    f"send() to {self.name} in a process that was forked within {parents}, which is its parent's "
                    "alone. Nothing was sent: it would be sent at once, whatever becomes of that. Write `with "
                    "txpool.transaction():` around it"
                )
            with transaction() as own:
                self._send(_traced(sent, own))
            return made
        try:
            self._send(_traced(sent, ambient))
        except BaseException as error:
            if not isinstance(error, Exception):  # it may have been sent
                ambient.set_rollback_only(error)
            raise
        return made

    def receive(self, max_messages: int = 1, timeout: float = 0) -> list[ReceivedMessage]:
        """Receive up to so many messages within the ambient transaction: they are taken once that has committed.

        Waits up to `timeout` seconds for the first. If the transaction rolls back, they are received again. Errors:
        ProgrammingError outside a transaction, for arguments that are none, or if another thread is receiving; the
        transaction's and the broker's. With an error, the transaction rolls back.
        """
        ambient = current()
        if ambient is None:
            raise ProgrammingError(
                f"receive() from {self.name} outside a transaction, and nothing was received: a message is taken when "
                "its transaction commits. Write `with txpool.transaction():` around it"
            )
        ambient.require_active()
        require_numbers("receive()", max_messages, timeout)
        try:
            received = self._receive(ambient, max_messages, timeout)
            link(ambient, received)
            return received
        except BaseException as error:
            ambient.set_rollback_only(error)  # it may have taken some, which nobody has got
            raise

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """For a session that one thread at a time may receive from. ProgrammingError if another does."""
        if not self._receiving.acquire(False):
            raise ProgrammingError(
                f"{self.name}: another thread receives, and one at a time does. Nothing was received"
            )
        try:
            yield
        finally:
            self._receiving.release()

    @abstractmethod
    def _send(self, sent: Outgoing) -> None:
        """Send within the ambient transaction."""

    @abstractmethod
    def _receive(self, ambient: Transaction, most: int, timeout: float) -> list[ReceivedMessage]: ...

    @contextmanager
    def _cursor(self) -> Iterator[Any]:
        """A cursor in the datasource, which has the tables then."""
        source = self.datasource
        tables_of(source).ensure(source)
        with closing(source.connect()) as connection:
            yield connection.cursor()

    # -- for the loop of a consumer -----------------------------------------------------------------------------

    @abstractmethod
    def wait(self, timeout: float) -> bool:
        """Wait outside any transaction until there may be something to receive; False if there is not."""

    def has_read_all(self) -> bool:
        """Whether wait() has told that there is nothing to receive now, and not only that nothing has come yet."""
        return True

    @abstractmethod
    def take_one(self) -> ReceivedMessage | None:
        """Take the next message within the ambient transaction, by itself. None if there is none that nobody has.

        It may stay if all its tries have failed: then it is to be parked.
        """

    def why_unreadable(self, message: ReceivedMessage) -> str:
        """Why what was taken is no message that can be received; empty if it is one."""
        return ""

    def _tried(self, message: ReceivedMessage) -> Tried | None:
        """What counts its tries; None if the broker does so."""
        return None

    @contextmanager
    def counting(self, message: ReceivedMessage) -> Iterator[int]:
        """How many tries of a message that was taken have begun, and not ended. Behind the block one more has begun.

        That is written durably, outside the ambient transaction. If the block raises, none begins.
        """
        tried = self._tried(message)
        if tried is None:
            yield 0
            return
        tables = tables_of(self.datasource)
        with tables.apart(self.datasource) as cursor, closing(self.datasource.connect()) as connection:
            yield tables.tries(cursor, tried)
            tables.begin_try(cursor, tried, connection.cursor())

    def end_tries(self, message: ReceivedMessage) -> None:
        """Write durably that all tries that have begun have ended: the message's work is done."""
        if (tried := self._tried(message)) is not None:
            tables = tables_of(self.datasource)
            with tables.apart(self.datasource) as cursor:
                tables.forget_tries(cursor, tried)

    def give_back(self, message: ReceivedMessage, others: int) -> None:
        """Write durably that a try does not count, which has begun beside so many others, or was to begin."""
        if (tried := self._tried(message)) is not None:
            tables = tables_of(self.datasource)
            with tables.apart(self.datasource) as cursor:
                tables.take_back(cursor, tried, others)

    def in_vain(self, messages: Sequence[ReceivedMessage]) -> None:
        """Note that these were received, and neither done nor tried: a batch has failed, or there was an outage."""
        return

    @abstractmethod
    def failed(self, message: ReceivedMessage, error: str, delay: float, *, is_open: bool) -> None:
        """Write durably that a try has failed, and why; `is_open` if it has begun, and not ended.

        The message is received again after `delay` seconds at the earliest.
        """

    @abstractmethod
    def park(self, message: ReceivedMessage, error: str) -> str:
        """Move the message into the queue of parked ones, and go on behind it, in one transaction.

        Returns where it is parked; empty if it had been taken already.
        """

    def parked(self) -> tuple[int, float | None]:
        """How many messages are parked, and the age of the oldest in seconds."""

        def state() -> tuple[int, float | None]:
            with self._cursor() as cursor:
                return tables_of(self.datasource).state(cursor, self.parking)

        return apart(state)


def looked(look: Callable[[], T], timeout: float, pause: float) -> T:
    """What a look finds; if that is nothing, it looks again, for so many seconds, with a pause between two looks."""
    deadline = time.monotonic() + timeout
    while True:
        found = look()
        left = deadline - time.monotonic()
        if found or left <= 0:
            return found
        time.sleep(min(pause, left))


def require_numbers(what: str, most: int, seconds: float) -> None:
    """ProgrammingError unless these are a number of messages, and a time to wait."""
    if not (isinstance(most, int) and most > 0 and isinstance(seconds, int | float) and not isnan(seconds)):
        raise ProgrammingError(
            f"{what} takes a number of messages from 1 on, and a number of seconds, and not {most!r} and {seconds!r}. "
            "Nothing was received"
        )


def ambient_transaction() -> Transaction:
    """The ambient transaction. ProgrammingError outside one."""
    found = current()
    if found is None:
        raise ProgrammingError("outside a transaction: nothing was done")
    return found


def _traced(sent: Outgoing, ambient: Transaction) -> Outgoing:
    """The message with its place in the transaction's trace, in W3C's form, unless it has one or nothing is traced."""
    traceparent = "" if ambient.trace is None else ambient.trace.traceparent
    return sent._replace(headers={TRACEPARENT: traceparent, **sent.headers}) if traceparent else sent


def link(ambient: Transaction, received: Sequence[ReceivedMessage]) -> None:
    """Link the transaction's span to those that the messages were sent in."""
    if ambient.trace is not None:
        ambient.trace.link([each.headers[TRACEPARENT] for each in received if TRACEPARENT in each.headers])


def apart(work: Callable[[], T], *, read_only: bool = True) -> T:
    """Do work in a transaction of its own, whatever the ambient one is."""
    return transactional("requires_new", read_only=True if read_only else None)(work)()


def database_of(source: Source, path: Path | None, key: str) -> DataSource:
    """The datasource that a session's file names. ConfigurationError if it names none."""
    if path is None:
        raise source.settings.properties.error(key, f"is missing: write {key} = orders.properties")
    found = find(path)
    tables_of(found)
    return found


def session(target: str | Path | Source | MessageSession) -> MessageSession:
    """The session that a file describes, or its registered name: the same object each time. Thread-safe.

    Errors: ConfigurationError; NotSupportedError if it has no messages, as a database has none.
    """
    if isinstance(target, MessageSession):
        return target
    source = find_source(target)
    part = source.resource_manager.session
    if part is None:
        raise NotSupportedError(
            f"{source.name} is in {source.resource_manager.database}, and has no messages: name a file with "
            "driver = sql-queue, or another broker's. Nothing was done"
        )
    made: MessageSession = source.kept("session", lambda: resolve_name(part)(source))
    return made
