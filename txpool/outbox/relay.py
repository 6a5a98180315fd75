"""The relay: it calls a function with each message, and deletes the message in the function's own transaction.

What the function does in datasources happens once therefore: it commits with the deletion, or neither does. What it
does elsewhere happens at least once. How often a delivery has begun is written before it begins, in a transaction of
its own: so it counts also if the process is killed. Nothing is delivered before an earlier message of its key is gone.

If other datasources take part in a delivery, its transaction does not delete the message, but writes its gtrid there.
The message is deleted once every branch has ended: a crash may cut phase two off between them, and the next message of
the key would be applied before this one. Who finds such a row asks the log and the databases, and never the clock.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from enum import Enum, auto
from typing import TYPE_CHECKING

from txpool.datasource import known
from txpool.errors import HeuristicError, OperationalError, TransactionInDoubt, described, require_done
from txpool.idempotency.on_demand import recover, why_not_ended
from txpool.idempotency.outage import is_outage
from txpool.outbox.message import Message
from txpool.outbox.relays.broker import BrokerOutage
from txpool.resources.messages.tables import readable
from txpool.resources.outbox import OutboxTable, Row
from txpool.tm.demarcation.block import transaction
from txpool.tm.demarcation.functions import require_plain
from txpool.tm.demarcation.retry import doubled
from txpool.tm.manager import get_manager

if TYPE_CHECKING:
    from txpool.datasource import DataSource
    from txpool.tm.transaction import Transaction

logger = logging.getLogger("txpool.outbox")

#: How many messages are looked at together.
WINDOW = 1000
#: The longest wait before a message is tried again, in seconds; the first is one second, and each is twice the last.
_LONGEST_WAIT = 60.0
#: Between two looks whether a delivery has ended.
_FIRST_WAIT = 1.0


class DeliveryOutcome(Enum):
    """What has become of a message that a relay looked at."""

    GONE = auto()  #: delivered, here or by another relay
    ENDED = auto()  #: delivered before, and deleted now
    PARKED = auto()
    WAITS = auto()  #: held by another transaction, in doubt, or to be tried again later


class _Taken(OperationalError):
    """Another relay has taken the message meanwhile."""


class Relay:
    """A relay of one outbox. Used by one thread; any number of processes may have one."""

    def __init__(self, source: DataSource, table: OutboxTable, deliver: Callable[[Message], object]) -> None:
        require_plain(deliver, "the function that delivers,")
        self._source, self._table, self._deliver = source, table, deliver
        settings = source.settings
        self._most, self._poll, self._skip_parked = (
            settings.outbox_attempts,
            settings.outbox_poll,
            settings.outbox_skip_parked,
        )
        #: When to try messages again that have failed here, by their numbers.
        self._again: dict[int, float] = {}
        #: Why messages that are delivered cannot be deleted yet, as last logged, by their numbers.
        self._why: dict[int, str] = {}
        #: Deliveries that do not count, until that is written: the attempt and its error, by the messages' numbers.
        self._owed: dict[int, tuple[int, str]] = {}

    def run(self, stopped: Callable[[], bool] = lambda: False) -> None:
        """Deliver until `stopped()` is true, which is asked between messages. Errors are logged, and it goes on.

        Another process's messages are found by looking, every outbox.poll: no database can notify of a message whose
        transaction prepares.
        """
        said = ""
        while not stopped():
            try:
                with self._table.alone(self._source) as may:
                    says = "messages are delivered" if may else "another relay delivers, and this one waits"
                    if says != said:
                        logger.info("outbox of %s: %s", self._source.name, says)
                        said = says
                        self._recover()
                    while may and not stopped():
                        if not self.deliver_some(stopped):
                            time.sleep(self._poll)
            except Exception as error:
                logger.error("outbox of %s: nothing can be delivered now: %s", self._source.name, described(error))
            if not stopped():
                time.sleep(self._poll)

    def deliver_all(self) -> int:
        """Deliver what can be delivered now; returns how many messages were.

        Errors: ProgrammingError if there is no table, or an earlier version's; the outbox's database's own.
        """
        delivered = 0
        with self._table.alone(self._source) as may:
            self._recover()
            while may and (some := self.deliver_some()):
                delivered += some
        return delivered

    def deliver_some(self, stopped: Callable[[], bool] = lambda: False) -> int:
        """Deliver the first messages that can be delivered now; returns how many were."""
        now = time.monotonic()
        self._again = {number: at for number, at in self._again.items() if at > now}
        self._give_back()
        behind: set[str] = set()  # the keys whose messages wait for one before them
        delivered = after = 0
        while not delivered and not stopped():
            with transaction(read_only=True), self._table.opened(self._source) as cursor:
                window = self._table.window(cursor, after, WINDOW)
            for number, key, parked, delivered_by in window:
                after = number
                if stopped():
                    break
                if key in behind:
                    continue
                if delivered_by is not None:
                    outcome = self._end(number, delivered_by)
                else:
                    outcome = DeliveryOutcome.PARKED if parked else self._attempt(number)
                delivered += outcome is DeliveryOutcome.GONE
                if outcome is DeliveryOutcome.WAITS or (outcome is DeliveryOutcome.PARKED and not self._skip_parked):
                    behind.update([key] if key is not None else [])
            if len(window) < WINDOW:
                break
        return delivered

    # -- one message --------------------------------------------------------------------------------------------

    def _attempt(self, number: int) -> DeliveryOutcome:
        if number in self._again:
            return DeliveryOutcome.WAITS
        begun = self._begin(number)
        return begun if isinstance(begun, DeliveryOutcome) else self._call(number, begun, begun.attempts + 1)

    def _call(self, number: int, begun: Row, attempt: int) -> DeliveryOutcome:
        try:
            message = Message.of(begun, attempt)  # of a text that is none, this one has failed
            with transaction() as delivery:
                if delivery.trace is not None and message.traceparent is not None:
                    delivery.trace.link([message.traceparent])
                self._hold(number, attempt)
                require_done("the function that delivers", self._deliver(message))
                alone = self._is_alone(delivery)
                self._take_away(number, attempt, None if alone else delivery.gtrid)
        except _Taken:
            return DeliveryOutcome.WAITS
        except (TransactionInDoubt, HeuristicError) as error:  # it may have committed
            logger.warning("outbox of %s: message %s: %s", self._source.name, begun.id, described(error))
            if isinstance(error, TransactionInDoubt):
                self._owed[number] = attempt, readable(described(error))
            return DeliveryOutcome.WAITS
        except Exception as error:
            return self._failed(number, begun, attempt, error)
        if not alone and not delivery.unanswered:
            self._delete_delivered(number, delivery.gtrid)
        elif not alone and self._end(number, delivery.gtrid) is DeliveryOutcome.WAITS:
            return DeliveryOutcome.WAITS
        return DeliveryOutcome.GONE

    def _is_alone(self, delivery: Transaction) -> bool:
        """Whether nothing but the outbox's datasource takes part, and no callback can let another one do so yet."""
        others = [each for each in delivery.datasources if each.name != self._source.name]
        return not others and not delivery.may_be_empty

    def _end(self, number: int, gtrid: str) -> DeliveryOutcome:
        """Delete a message that this transaction has delivered, if that has ended in all its datasources."""
        if number in self._again:
            return DeliveryOutcome.WAITS
        try:
            why = why_not_ended(gtrid, [*known().values(), self._source])
        except Exception as error:
            why = f"that cannot be found out now: {described(error)}"
        if why:
            self._again[number] = time.monotonic() + _FIRST_WAIT
            if self._why.get(number) != why:
                logger.info(
                    "outbox of %s: a delivery has not ended, and its key waits. %s: %s", self._source.name, gtrid, why
                )
                if len(self._why) >= WINDOW:  # others may have deleted those messages
                    self._why.clear()
                self._why[number] = why
            return DeliveryOutcome.WAITS
        self._why.pop(number, None)
        self._delete_delivered(number, gtrid)
        return DeliveryOutcome.ENDED

    def _begin(self, number: int) -> Row | DeliveryOutcome:
        """Count one more delivery. Returns the message as it was before, or what has become of it."""
        with transaction(), self._table.opened(self._source) as cursor:
            found = self._table.read(cursor, number)
            if found is None:
                return DeliveryOutcome.WAITS if self._table.exists(cursor, number) else DeliveryOutcome.GONE
            if found.delivered_by is not None:
                return DeliveryOutcome.WAITS
            if found.parked:
                return DeliveryOutcome.PARKED
            if found.attempts >= self._most:  # the last one has not ended, as if the message killed its relay
                self._table.fail(cursor, number, found.attempts, "no delivery of it has ended", parked=True)
                return DeliveryOutcome.PARKED
            self._table.count(cursor, number, found.attempts)
        return found

    def _hold(self, number: int, attempt: int) -> None:
        """Keep other relays from the message until the transaction has ended; _Taken if one has it."""
        if not self._table.locks_rows:
            return  # there is no other, and a read would keep everybody else from writing
        with self._table.opened(self._source) as cursor:
            found = self._table.read(cursor, number)
        if found is None or found.attempts != attempt:
            raise _Taken(f"message {number} is with another relay")

    def _take_away(self, number: int, attempt: int, gtrid: str | None) -> None:
        """Within the delivery: delete the message, or write that this transaction has delivered it."""
        with self._table.opened(self._source) as cursor:
            if gtrid is None:
                is_ours = self._table.delete(cursor, number, attempt)
            else:
                is_ours = self._table.set_delivered(cursor, number, attempt, gtrid)
        if not is_ours:
            raise _Taken(f"message {number} was with another relay")

    def _delete_delivered(self, number: int, gtrid: str) -> None:
        with transaction(), self._table.opened(self._source) as cursor:
            self._table.delete_delivered(cursor, number, gtrid)

    def _failed(self, number: int, row: Row, attempt: int, error: Exception) -> DeliveryOutcome:
        text = readable(described(error))
        counts = not is_outage(error) and not isinstance(error, BrokerOutage)
        parked = counts and attempt >= self._most
        logger.warning(
            "outbox of %s: delivery %d of message %s%s has failed, and its transaction has rolled back. %s: %s",
            self._source.name,
            attempt,
            row.id,
            "" if row.key is None else f" (key {row.key})",
            "It is parked, until `txpool outbox retry`"
            if parked
            else f"It is tried again{'' if counts else ', and this one does not count'}",
            text,
        )
        self._again[number] = time.monotonic() + doubled(1.0, attempt - 1, _LONGEST_WAIT)
        if not counts:
            self._owed[number] = attempt, text
            self._give_back()
            if isinstance(error, BrokerOutage) and error.of_all:  # all others would wait for the broker, too
                raise error
            return DeliveryOutcome.WAITS
        with transaction(), self._table.opened(self._source) as cursor:
            written = self._table.fail(cursor, number, attempt, text, parked=parked)
        return DeliveryOutcome.PARKED if parked and written else DeliveryOutcome.WAITS

    def _give_back(self) -> None:
        """Write of deliveries that they do not count. Errors: the database's own; what is left stays."""
        for number, (attempt, text) in [*self._owed.items()]:
            with transaction(), self._table.opened(self._source) as cursor:
                found = self._table.read(cursor, number)
                held = found is None and self._table.exists(cursor, number)
                if found is not None:  # it may be begun again, or delivered
                    self._table.fail(cursor, number, attempt, text, parked=found.parked, counts=False)
            if not held:
                del self._owed[number]

    def _recover(self) -> None:
        """End what a relay that is dead has left prepared: its message is before all others of its key."""
        try:
            if get_manager().log is not None:
                recover([*known().values(), self._source])
        except Exception as error:
            logger.warning("outbox of %s: recovery could not be run here: %s", self._source.name, described(error))
