"""The session of `driver = jms`: messages in branches of a broker by JMS, also those that are received."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, closing, contextmanager
from dataclasses import dataclass
from itertools import islice
from math import inf
from typing import TYPE_CHECKING, Any, cast

from txpool.config.secrets import ValueSource
from txpool.errors import NotSupportedError, OperationalError, chain, described
from txpool.messages.session import MessageSession, ReceivedMessage, ambient_transaction, apart, looked
from txpool.resources.jdbc.dbapi.errors import ConnectionLost, call
from txpool.resources.jdbc.dbapi.errors import Error as JavaError
from txpool.resources.jms.connection import ERROR, ID, JmsConnection, anew, body_of
from txpool.resources.jms.manager import MANAGER, NO_RIGHT
from txpool.resources.messages.tables import Outgoing, readable, take_id
from txpool.tm.demarcation.block import transaction

if TYPE_CHECKING:
    from txpool.datasource import DataSource, Source
    from txpool.tm.transaction import Transaction

_NAME = re.compile(
    r"(?!JMS|__?AMQ|(?i:null|true|false|not|and|or|between|like|in|is|escape)$)[A-Za-z_$][\w$]*", re.ASCII
)
#: Of those whose senders have given them no id.
_UNNAMED = "JMSMessageID is null"
#: What says that a property of a message is no text.
_NO_TEXT = "jakarta.jms.MessageFormatException"
_POLL = 0.1
#: Without the key: a stock broker takes a message for a dead letter, or drops it, at its tenth delivery.
_MOST_TRIES = 7
_BROWSED = 1000


@dataclass(frozen=True, slots=True)
class _UnreadableMessage(ReceivedMessage):
    """A message that cannot be received."""

    why: str = ""


class JmsSession(MessageSession):
    """Sends to a queue or a topic, and receives from a queue."""

    _own_header = ID

    def __init__(self, source: Source) -> None:
        super().__init__(source)
        self._queue, self._topic = source.settings.queue, source.settings.topic
        if source.settings.properties.entry("parking.after").source is ValueSource.DEFAULT:
            self.parking_after = _MOST_TRIES
        #: By id: when a message that has failed here may be tried again, by the monotonic clock.
        self._later: dict[str, float] = {}
        #: By id: how many deliveries have proven nothing against a message. The broker counts them all.
        self._no_tries: dict[str, int] = {}
        self._may_not_send = False  #: To the queue that it receives from.

    @property
    def datasource(self) -> DataSource:
        return cast("DataSource", self.source)  # the broker itself keeps what is to be remembered

    def _send(self, sent: Outgoing) -> None:
        if sent.key is not None:
            raise NotSupportedError(f"{self.name}: JMS has no keys. Nothing was sent; a header can have it")
        for name, value in sent.headers.items():
            if not _NAME.fullmatch(name):
                raise NotSupportedError(
                    f"{self.name}: JMS has no header {name!r}: a header's name is one of Java's, and none of JMS's own "
                    "words. Nothing was sent"
                )
            try:
                value.encode()
            except UnicodeEncodeError:
                raise NotSupportedError(f"the header {name} is no text that JMS can keep. Nothing was sent") from None
        with self._branch() as raw:
            target = raw.topic(self._topic) if self._topic is not None else raw.queue(self._from(), sends=True)
            until = ambient_transaction().deadlines.before_decision()
            patience = inf if until is None else max(0.1, until - time.monotonic())
            raw.send(target, raw.message(sent), delay=sent.delay, patience=patience)

    @contextmanager
    def _branch(self) -> Iterator[JmsConnection]:
        """The session of the ambient transaction's branch. An error within it is a vote to roll back."""
        part = ambient_transaction().enlist_datasource(self.source)
        with part.lock:  # what another thread sent before START, or behind END, would be in no branch
            raw = part.pooled.begun()
            try:
                yield raw
            except BaseException as error:
                raw.failed = error
                if isinstance(error, JavaError) and raw.lost:
                    raise ConnectionLost(str(error)) from error
                raise

    def _from(self) -> str:
        if self._queue is None:
            raise NotSupportedError(
                f"{self.name}: it is a topic, from which JMS receives by a queue of its own. Nothing was received: "
                f"write queue = {self._topic}::SUBSCRIPTION, of a queue that broker.xml has there"
            )
        return self._queue

    # -- receiving ----------------------------------------------------------------------------------------------

    def _receive(self, ambient: Transaction, most: int, timeout: float) -> list[ReceivedMessage]:
        deadline = time.monotonic() + timeout
        queue, taken = self._from(), list[ReceivedMessage]()
        with self._alone(), self._branch() as raw, raw.receiving(raw.queue(queue)) as consumer:
            while len(taken) < most:
                left = deadline - time.monotonic()
                found = raw.receive(consumer, 0 if taken else left)
                if found is not None:
                    taken.append(self._message(raw, found))
                elif taken or left <= 0:
                    break
                else:
                    ambient.require_active()
        return taken

    def _message(self, raw: JmsConnection, found: Any) -> ReceivedMessage:
        """The message. NotSupportedError if it is none that can be received."""
        try:
            names = [str(name) for name in found.getPropertyNames() if not str(name).startswith(("JMS", "_AMQ"))]
            values = {name: call(found.getStringProperty, name) for name in names}
            headers = {name: "" if value is None else str(value) for name, value in values.items()}
            body = body_of(found, self.name)
        except (JavaError, UnicodeError) as error:
            if isinstance(error, JavaError) and error.java_class != _NO_TEXT:
                raise
            raise NotSupportedError(f"{self.name}: a message is no text that can be read: {described(error)}") from None
        place = _place(found)
        made = take_id(headers, ID, place if _is_named(place) else f"{raw.identity}-{place}")
        tries = self._tries(found, place)
        return ReceivedMessage(body, None, headers, made, int(found.getJMSTimestamp()) / 1000, place, tries)

    def _tries(self, found: Any, place: str) -> int:
        return max(0, int(found.getIntProperty("JMSXDeliveryCount")) - 1 - self._no_tries.get(place, 0))

    # -- for the loop of a consumer -----------------------------------------------------------------------------

    def _apart(self) -> AbstractContextManager[JmsConnection]:
        """A session outside any branch."""
        return MANAGER.sessions(self.source).lent()

    def _next(self) -> ReceivedMessage | None:
        """The first message that can be tried now; it stays."""
        now = time.monotonic()
        self._later = {place: until for place, until in self._later.items() if until > now}
        waits = False  # one without an id, which no selector tells from those behind it
        with self._apart() as raw:
            for found in islice(raw.browse(raw.queue(self._from())), _BROWSED):
                place = _place(found)
                if place not in self._later and (_is_named(place) or not waits):
                    return self._begun(raw, found, place)
                waits = waits or not _is_named(place)
        return None

    def _begun(self, raw: JmsConnection, found: Any, place: str) -> ReceivedMessage:
        try:
            return self._message(raw, found)
        except NotSupportedError as error:
            tries = self._tries(found, place)
            return _UnreadableMessage(
                None, None, {}, place, int(found.getJMSTimestamp()) / 1000, place, tries, str(error)
            )

    def wait(self, timeout: float) -> bool:
        return looked(self._next, timeout, _POLL) is not None

    def take_one(self) -> ReceivedMessage | None:
        message = self._next()
        if message is None or message.tries >= self.parking_after:
            return message
        if message.tries + self._no_tries.get(message.place, 0) >= max(1, self.parking_after - 1):
            if self._may_not_send:
                raise OperationalError(
                    f"{self.name}: message {message.id} was received several times in outages, and stays where it is, "
                    "untried: the broker makes a dead letter of what is received more often, or drops it. Let this "
                    "user send there, so that it can be sent anew, and start the consumer again"
                )
            try:
                self._no_tries |= apart(lambda: self._send_anew(message), read_only=False)
            except Exception as error:
                self.in_vain([message])
                self._may_not_send = any(
                    getattr(each, "java_class", "") == NO_RIGHT for each in chain(error, contexts=False)
                )
                raise
            return self.take_one()
        with self._branch() as raw, self._taken(raw, message) as found:
            return None if found is None else self._begun(raw, found, message.place)

    def _send_anew(self, message: ReceivedMessage) -> dict[str, int]:
        """Send it to the end of its queue, in its place; returns what `_no_tries` has of it there.

        The broker counts what an outage rolls back, too. There it begins anew.
        """
        with self._branch() as raw:
            queue = raw.queue(self._from(), sends=True)
            with closing(raw.browse(queue, _selector(message))) as browsed:  # a large body is read from there
                made = next(browsed, None)
                if made is None:
                    return {}
                until, priority = int(made.getJMSExpiration()) / 1000, int(made.getJMSPriority())
                live = max(0.001, until - time.time()) if until else 0
                # First: if that fails at once, the message was not received once more.
                raw.send(queue, anew(made, message.id), live=live, priority=priority)
            with self._taken(raw, message) as found:
                if found is None:
                    raise OperationalError(f"{self.name}: another consumer has taken message {message.id}")
                return {_place(made): -self._tries(found, message.place)}

    def why_unreadable(self, message: ReceivedMessage) -> str:
        return message.why if isinstance(message, _UnreadableMessage) else ""

    @contextmanager
    def _taken(self, raw: JmsConnection, message: ReceivedMessage) -> Iterator[Any]:
        """The message, which is received; None if it is gone. A large body can be read in the block alone."""
        with raw.receiving(raw.queue(self._from()), _selector(message)) as consumer:
            found = raw.receive(consumer, 0)
            if found is not None and _place(found) != message.place:
                raise OperationalError(
                    f"{self.name}: another consumer has taken message {message.id}. Nothing was received"
                )
            yield found

    def in_vain(self, messages: Sequence[ReceivedMessage]) -> None:
        for each in messages:
            self._no_tries[each.place] = self._no_tries.pop(each.place, 0) + 1
            if len(self._no_tries) > _BROWSED:
                del self._no_tries[next(iter(self._no_tries))]  # the one that was the longest without

    def failed(self, message: ReceivedMessage, error: str, delay: float, *, is_open: bool) -> None:
        self._later[message.place] = time.monotonic() + delay

    def park(self, message: ReceivedMessage, error: str) -> str:
        with self._apart() as raw:
            raw.create_queue(self.parking)
        with transaction(), self._branch() as raw, self._taken(raw, message) as found:
            if found is not None:
                raw.send(raw.queue(self.parking), self._to_park(raw, found, message, error))
        return "" if found is None else self.parking

    def _to_park(self, raw: JmsConnection, found: Any, message: ReceivedMessage, error: str) -> Any:
        headers: Mapping[str, str] = {**message.headers, ERROR: readable(error)}
        try:
            self._message(raw, found)
            return raw.message(Outgoing(message.id, message.body, None, headers, 0))
        except NotSupportedError:
            return found  # as it is

    def parked(self) -> tuple[int, float | None]:
        with self._apart() as raw:
            return raw.look(self.parking)[:2]


def _place(found: Any) -> str:
    """By what the session finds a message again: JMS's id, or its number in the broker if its sender has given none."""
    made = found.getJMSMessageID()
    return str(found.getCoreMessage().getMessageID()) if made is None else str(made)


def _selector(message: ReceivedMessage) -> str:
    return f"JMSMessageID = '{message.place}'" if _is_named(message.place) else _UNNAMED


def _is_named(place: str) -> bool:
    return place.startswith("ID:")
