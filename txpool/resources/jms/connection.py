"""A session of a JMS broker, as branches over JDBC use a connection: its XAResource, and the state of its branch."""

from __future__ import annotations

import time
from collections.abc import Generator, Iterator
from contextlib import contextmanager, suppress
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

from txpool.errors import ConfigurationError, NotSupportedError, OperationalError, described
from txpool.resources.base import PrepareLocation, Refused
from txpool.resources.jdbc.dbapi.errors import ConnectionLost, call
from txpool.tm.background.timers import Timer, Timers

if TYPE_CHECKING:
    from txpool.resources.jdbc.jvm.jvm import Classes
    from txpool.resources.messages.tables import Outgoing
    from txpool.xid import Xid

#: The properties with the id that a session of txpool's gives to a message, and why a message is parked.
ID: Final = "txpool_id"
ERROR: Final = "txpool_error"
_CORE: Final = "org.apache.activemq.artemis.api.core"
_SLICE: Final = 1.0
_AUTO_ACKNOWLEDGE: Final = 1
#: For how many seconds a call waits at most that has no timeout of the client's: a send, and the look for a message.
_PATIENCE: Final = 30.0
_FULL: Final = (
    "the broker did not take a message, or not in time: its address is full, maybe (address-full-policy): then receive "
    "what is there; or its disk is (max-disk-usage): then make room there"
)
#: The number of the error of an address that is full, and fails.
_FAILS: Final = "AMQ219058"
_SILENT: Final = "the broker did not say in time whether there is a message: it, or the network, has stalled"
#: How many bytes the headers of a message have at most, in UTF-16. A broker's journal takes no record that is longer
#: than its buffer, 490 KiB of a stock broker. It says so at the branch's end: a one-phase commit is in doubt then.
_MOST_HEADERS: Final = 100_000

#: How many messages of a queue are looked at, to tell of them.
_LOOKED_AT: Final = 100

_timers = Timers()


class JmsConnection:
    """One connection, and the one session on it. Used by one thread at a time.

    A session for branches awaits no answer to a send. Without `branches` each send is answered, and there is no XA.
    """

    database: Any = None
    identity = generation = role = ""
    location: PrepareLocation
    xid: Xid | None = None
    java_xid: Any = None
    #: A branch was begun and has not ended; its START, and its END, was answered.
    started = start_answered = xa_ended = False
    #: A call for its branch has failed: so it votes to roll back.
    failed: BaseException | None = None
    autocommit = True
    broken = False
    _waiting: Timer | None = None  #: When the call gives up that is under way.
    # What only connections of databases can be.
    begun = in_transaction = ended_unseen = may_have_committed = holds_branch = False

    def __init__(self, name: str, classes: Classes, connection: Any, *, branches: bool = True) -> None:
        self.name, self.classes, self._connection = name, classes, connection
        if branches:
            self.session = call(connection.createXASession)
            self.xa = call(self.session.getXAResource)
        else:
            self.session = call(connection.createSession, False, _AUTO_ACKNOWLEDGE)
        self.core = call(self.session.getCoreSession)
        call(connection.start)

    @property
    def lost(self) -> bool:
        return self.broken or bool(call(self.core.isClosed))

    def __del__(self) -> None:
        self.drop()

    def drop(self) -> None:
        """Close it: a branch that is not prepared rolls back, and its messages can be received again."""
        self.broken = True
        opened, self._connection = getattr(self, "_connection", None), None
        if opened is not None:
            with suppress(Exception):
                call(opened.close)

    abort = drop

    def ping(self, timeout: float | None = None) -> None:
        call(self.core.addressQuery, self._simple("txpool"))

    def require_no_failure(self) -> None:
        """`Refused` if a call for its branch has failed."""
        if self.failed is not None:
            raise Refused(f"a call of it had failed: {described(self.failed)}") from self.failed

    def left(self) -> None:
        """Note that its branch has ended."""
        self.started = self.start_answered = self.xa_ended = False
        self.java_xid = self.failed = self._waiting = None

    # -- queues -------------------------------------------------------------------------------------------------

    def _simple(self, text: str) -> Any:
        return call(self.classes.load(f"{_CORE}.SimpleString").of, text)

    def exists(self, queue: str, *, sends: bool = False) -> bool:
        """Whether there is such a queue. ConfigurationError if it would lose messages, or give them out again.

        With `sends`, also if it does not take all that are sent there.
        """
        found = call(self.core.queueQuery, self._simple(queue.rpartition("::")[2]))
        if not found.isExists():
            return False
        self._require_kept(queue, found, sends=sends)
        return True

    def _require_kept(self, queue: str, found: Any, *, sends: bool = False) -> None:
        address, _, name = queue.rpartition("::")
        at = str(found.getAddress())
        if at != (address or name):
            raise ConfigurationError(
                f"datasource {self.name}: the queue {name} is at the address {at}, and the broker drops what is sent "
                f"to {queue}. Nothing was done: write {at}::{name}"
            )
        killed = "a broker that is killed would lose what is prepared there, and call it committed"
        dropped = "the broker would drop messages there, and say nothing"
        enabled, ring = found.isEnabled(), found.getRingSize()
        problems = {
            "is auto-deleted": (found.isAutoDelete(), killed),
            "purges without consumers": (found.isPurgeOnNoConsumers(), killed),
            "is not durable": (not found.isDurable(), killed),
            "is disabled": (enabled is not None and not enabled, dropped),
            "keeps the last messages alone (ring-size)": (ring is not None and int(ring) >= 0, dropped),
            "keeps the last message of a key alone (last-value)": (found.isLastValue(), dropped),
            "has a filter": (sends and found.getFilterString() is not None, dropped),
            "keeps what was received (non-destructive)": (
                found.isNonDestructive(),
                "each would be done again for ever",
            ),
        }
        for problem, (has, why) in problems.items():
            if has:
                raise ConfigurationError(
                    f"datasource {self.name}: the queue {queue} {problem}: {why}. Nothing was done. Configure the "
                    "queue in broker.xml"
                )

    def queue(self, name: str, *, sends: bool = False) -> Any:
        """The queue, as JMS has it. ConfigurationError if there is none, and as `exists`."""
        if not self.exists(name, sends=sends):
            raise ConfigurationError(
                f"datasource {self.name}: the broker has no queue {name}, and nothing was done: configure it in "
                "broker.xml, since one that the broker makes by itself is deleted by itself"
            )
        return call(self.session.createQueue, name)

    def topic(self, name: str) -> Any:
        """The topic, as JMS has it. ConfigurationError if there is none, or if a durable queue of it loses messages."""
        found = call(self.core.addressQuery, self._simple(name))
        if not found.isExists():
            raise ConfigurationError(
                f"datasource {self.name}: the broker has no address {name}, and nothing was done: configure it in "
                "broker.xml, with a queue for each who subscribes"
            )
        for each in found.getQueueNames():
            queue = call(self.core.queueQuery, each)
            if queue.isDurable():  # else whoever has it asks for no more
                self._require_kept(f"{name.partition('::')[0]}::{each}", queue)
        return call(self.session.createTopic, name)

    def create_queue(self, name: str) -> None:
        """Create the queue, if it is not there, so that the broker never deletes it by itself."""
        if self.exists(name, sends=True):
            return
        made = call(self.classes.load(f"{_CORE}.QueueConfiguration").of, name)
        made.setRoutingType(self.classes.load(f"{_CORE}.RoutingType").ANYCAST)
        made.setDurable(True).setAutoDelete(False)
        try:
            call(self.core.createQueue, made)
        except Exception:
            if not self.exists(name):  # else another process has created it
                raise

    def count(self, queue: str) -> int:
        return int(call(self.core.queueQuery, self._simple(queue)).getMessageCount())

    def look(self, queue: str) -> tuple[int, float | None, str | None]:
        """How many messages are there, the age of the first in seconds, and why one of the last was parked."""
        if not self.exists(queue):
            return 0, None, None
        first = last = None
        for last in islice(self.browse(self.queue(queue)), _LOOKED_AT):
            first = last if first is None else first
        age = None if first is None else max(0.0, time.time() - int(first.getJMSTimestamp()) / 1000)
        error = None if last is None else last.getStringProperty(ERROR)
        return self.count(queue), age, None if error is None else str(error)

    # -- messages -----------------------------------------------------------------------------------------------

    def message(self, sent: Outgoing) -> Any:
        """A message of JMS's. NotSupportedError if its headers are too long."""
        headers = {**sent.headers, ID: sent.id}
        size = sum(len(f"{name}{value}".encode("utf-16-le", "surrogatepass")) for name, value in headers.items())
        if size > _MOST_HEADERS:
            raise NotSupportedError(
                f"{self.name}: a message's headers have {size:,} bytes in UTF-16, and over JMS they have at most "
                f"{_MOST_HEADERS:,}, with their names. Nothing was sent; the body has no such limit"
            )
        if sent.body is None:
            made = call(self.session.createMessage)
        else:
            from jpype import JArray, JByte

            made = call(self.session.createBytesMessage)
            call(made.writeBytes, JArray(JByte)(sent.body))
        for name, value in headers.items():
            call(made.setStringProperty, name, value)
        return made

    def send(
        self,
        destination: Any,
        message: Any,
        *,
        delay: float = 0,
        live: float = 0,
        priority: int = 4,
        patience: float = _PATIENCE,
    ) -> None:
        """Send it, in the branch that is open; without one it is there at once. `live` is in seconds, 0 for ever.

        ConnectionLost if the broker does not take it for so many seconds: then the connection is closed.
        """
        producer = call(self.session.createProducer, destination)
        try:
            call(producer.setDeliveryDelay, int(delay * 1000))
            call(producer.setTimeToLive, int(live * 1000))
            call(producer.setPriority, priority)
            self._bounded(patience, _FULL, producer.send, message)
        finally:
            if not self.broken:
                call(producer.close)

    def _bounded(self, patience: float, problem: str, method: Any, *args: Any) -> Any:
        """Call a method of the client's that may wait for ever. ConnectionLost, with the problem, after `patience`."""
        self._waiting = timer = _timers.after(min(patience, _PATIENCE), lambda: self._give_up(timer))
        try:
            found = call(method, *args)
        except Exception as error:
            if _FAILS in str(error):  # as if it had blocked: no message is the reason
                self.drop()
            raise (self._too_late(problem) if self.broken else error) from None
        finally:
            timer.cancel()
        if self.broken:
            raise self._too_late(problem)
        return found

    def _give_up(self, timer: Timer) -> None:
        """Close the connection without asking the broker, which would be one more wait."""
        if self._waiting is timer:  # else it has ended, and an interrupt has kept it from the cancel
            self.broken = True
            call(self.core.getSessionFactory().cleanup)

    def _too_late(self, problem: str) -> ConnectionLost:
        return ConnectionLost(
            f"datasource {self.name}: {problem}. Its session was closed. Once the broker sees that, it rolls back the "
            "session's branch: what that has received can be received again"
        )

    @contextmanager
    def receiving(self, queue: Any, selector: str | None = None) -> Iterator[Any]:
        """A consumer, which has taken nothing but what was received once it is closed."""
        consumer = call(self.session.createConsumer, queue, selector)
        try:
            yield consumer
        finally:
            call(consumer.close)

    def receive(self, consumer: Any, timeout: float) -> Any:
        """The next message; None if there is none in so many seconds, of which it waits one at most.

        Then the client asks the broker once more, and waits for that answer for ever. Errors: as `send`.
        """
        wait = int(min(timeout, _SLICE) * 1000)
        if wait > 0:
            return self._bounded(_PATIENCE, _SILENT, consumer.receive, wait)
        return self._bounded(_PATIENCE, _SILENT, consumer.receiveNoWait)

    def browse(self, queue: Any, selector: str | None = None) -> Generator[Any, None, None]:
        """The messages that can be received now, which stay. Errors: as `receive`."""
        browser = call(self.session.createBrowser, queue, selector)
        try:
            found = call(browser.getEnumeration)
            while self._bounded(_PATIENCE, _SILENT, found.hasMoreElements):
                yield call(found.nextElement)
        finally:
            call(browser.close)


def anew(message: Any, made: str) -> Any:
    """A received message, of whatever kind, as it can be sent again: with this id, and what its sender has written."""
    kept = {
        name: call(message.getObjectProperty, name)
        for name in map(str, message.getPropertyNames())
        if name.startswith("JMSXGroup") or not name.startswith(("JMS", "_AMQ"))  # the broker's: one drops what it knows
    }
    call(message.clearProperties)
    for name, value in {**kept, ID: made}.items():
        call(message.setObjectProperty, name, value)
    return message


def body_of(message: Any, name: str) -> bytes | None:
    """A message's body. NotSupportedError for a kind that has neither text nor bytes."""
    kinds = {str(each.getSimpleName()) for each in message.getClass().getInterfaces()}
    if "TextMessage" in kinds:
        text = call(message.getText)
        return None if text is None else str(text).encode("utf-8", "surrogateescape")
    if "BytesMessage" in kinds:
        from jpype import JArray, JByte

        size = int(call(message.getBodyLength))
        data = JArray(JByte)(size)
        if size and int(call(message.readBytes, data)) != size:
            raise OperationalError(f"{name}: the body of a message could not be read. It stays in its queue")
        return bytes(memoryview(data).cast("B")) if size else b""
    if kinds & {"MapMessage", "ObjectMessage", "StreamMessage"}:
        raise NotSupportedError(
            f"{name}: a message is {' '.join(sorted(kinds))}, and only bytes and texts are received. It was not"
        )
    return None
