"""The loop of a consumer: a function gets batches of messages, each within a transaction.

A batch that has failed is done again one message after another, so that one bad message costs the others nothing. Each
such try is counted before it begins, in a transaction of its own: so it counts also if the process is killed. For that
the first batch of a process is done one by one, too. What proves nothing against the message is not counted: an outage
of a datasource, a conflict with others, a transaction in doubt. Such a try is given back, durably, before the next one.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from txpool.datasource import known
from txpool.errors import (
    ConfigurationError,
    HeuristicCommit,
    HeuristicHazard,
    HeuristicMixed,
    TransactionInDoubt,
    described,
    require_done,
)
from txpool.idempotency.on_demand import recover
from txpool.idempotency.outage import is_outage
from txpool.messages.session import MessageSession, ReceivedMessage, link, session
from txpool.tm.demarcation.block import transaction
from txpool.tm.demarcation.functions import require_plain
from txpool.tm.demarcation.retry import doubled
from txpool.tm.manager import get_manager

if TYPE_CHECKING:
    from txpool.datasource import Source

logger = logging.getLogger("txpool.messages")

Work = Callable[[list[ReceivedMessage]], object]
#: The longest wait before a message is tried again, in seconds; the first is one second, and each is twice the last.
_LONGEST_WAIT = 60.0
_PAUSE = 0.05
#: For how many seconds the consumer that began a message's last try may yet take it, before another one parks it.
_GRACE = 1.0
#: After so many failures in a row that are nobody's fault it goes on otherwise.
_FAILURES = 3
#: What has ended so is never done again by itself.
_NEVER_AGAIN = (HeuristicMixed, HeuristicHazard)


class Consumer:
    """A function that gets batches of messages, each within a transaction. It may be called as a function, too."""

    def __init__(
        self, of: str | Path | Source | MessageSession, function: Work, max_messages: int, poll: float
    ) -> None:
        require_plain(function, "the consumer")
        self._of, self._function, self._most, self._poll = of, function, max_messages, poll
        #: Messages whose last try does not count, which is still to be written.
        self._owed: list[ReceivedMessage] = []
        #: The id of the message that the last look has found, if all its tries had begun.
        self._full: str | None = None
        self.__doc__ = function.__doc__

    def __call__(self, messages: list[ReceivedMessage]) -> object:
        return self._function(messages)

    @property
    def session(self) -> MessageSession:
        """Its session. Errors: as `txpool.session`."""
        return session(self._of)

    def run(self, stopped: Callable[[], bool] = lambda: False, *, once: bool = False) -> int:
        """Receive and do batches until `stopped()` is true, which is asked between batches; returns how many messages.

        With `once` it ends when there is nothing to receive now. Errors of a batch are logged, and it goes on; those of
        its configuration are raised. Used by one thread; any number of processes may run it.
        """
        source = self.session
        self._recover()
        done, singly, failures = 0, self._most, 0
        while not stopped():
            try:
                if not source.wait(0 if once else self._poll):
                    if once and source.has_read_all():
                        break
                    continue
                if singly:
                    one = self._one(source)
                    done += bool(one)
                    singly = 0 if one is None else singly - 1 if one else self._most
                else:
                    count, right, empty = self._batch(source)
                    done, singly = done + count, 0 if right else self._most
                    if right and empty:  # other consumers have what there is
                        if once and source.has_read_all():
                            break
                        time.sleep(_PAUSE)
                failures = 0
            except Exception as error:
                failures += 1
                with suppress(Exception):  # else before the next one
                    self._give_back(source)
                logger.error("%s: nothing can be done now: %s", source.name, described(error))
                if (once and failures > _FAILURES) or isinstance(error, ConfigurationError):
                    raise
                if failures > _FAILURES:  # a batch may meet others each time
                    singly = self._most
                until = time.monotonic() + doubled(0.1, failures, _LONGEST_WAIT)
                while not stopped() and (left := until - time.monotonic()) > 0:
                    time.sleep(min(1.0, left))
        return done

    def _give_back(self, source: MessageSession) -> None:
        self._owed = [each for each in self._owed if not source.give_back(each)]

    def _batch(self, source: MessageSession) -> tuple[int, bool, bool]:
        """How many messages were done, whether none has failed, and whether there were none."""
        received: list[ReceivedMessage] = []

        def receive() -> list[ReceivedMessage]:
            received.extend(source.receive(self._most))
            return received

        done, failure = self._attempt(source, receive)
        if failure is not None:
            logger.warning("%s: a batch is done again, one message after another: %s", source.name, described(failure))
        return done, failure is None, not received

    def _one(self, source: MessageSession) -> bool | None:
        """Whether the next message was done, by itself; None if there was none."""
        self._give_back(source)
        message = source.begin_one()
        if message is None:
            return None
        seen, self._full = self._full, None
        if message.tries >= source.parking_after:
            if seen == message.id:
                self._park(source, message, "no try of it has ended")
            else:
                self._full = message.id
                self._owed.append(message)  # this look is none
                time.sleep(_GRACE)
            return False
        taken: list[ReceivedMessage] = []

        def receive() -> list[ReceivedMessage]:
            taken.extend([message] if source.receive_one(message) else [])
            return taken

        done, failure = self._attempt(source, receive, [message])
        if failure is None and not taken and message not in self._owed:  # another consumer was faster
            self._owed.append(message)
        if failure is not None:
            text, tries = described(failure), message.tries + 1
            if tries >= source.parking_after:
                self._park(source, message, text)
            else:
                logger.warning("%s: try %d of message %s has failed: %s", source.name, tries, message.id, text)
                source.failed(message, text, doubled(1.0, tries - 1, _LONGEST_WAIT))
        return bool(done)

    def _attempt(
        self,
        source: MessageSession,
        receive: Callable[[], list[ReceivedMessage]],
        counted: Sequence[ReceivedMessage] = (),
    ) -> tuple[int, Exception | None]:
        """How many messages were done, in one transaction; and the error, if that has rolled back.

        `counted` are those of which a try has begun. Raises what is no message's fault.
        """
        messages: list[ReceivedMessage] = []
        try:
            with transaction() as ambient:
                ambient.may_be_empty = True
                messages += receive()
                link(ambient, messages if counted else [])  # a session's receive() does so itself
                if messages:
                    require_done("the consumer", self._function(messages))
        except (TransactionInDoubt, HeuristicCommit) as error:
            logger.warning("%s: %d messages: %s", source.name, len(messages), described(error))
            self._owed += counted if isinstance(error, TransactionInDoubt) else ()
            return 0, None
        except _NEVER_AGAIN as error:
            logger.error("%s: %d messages were done in part: %s", source.name, len(messages), described(error))
            for message in messages:  # done again, a part of their work would happen twice
                self._park(source, message, f"done in part: {described(error)}")
            return 0, None
        except Exception as error:
            if not is_outage(error):
                return 0, error
            self._owed += counted
            raise
        except KeyboardInterrupt:  # somebody stops the process, whatever the message is
            self._owed += counted
            with suppress(Exception):
                self._give_back(source)
            raise
        if ambient.unanswered:
            self._recover()
        return len(messages), None

    def _park(self, source: MessageSession, message: ReceivedMessage, error: str) -> None:
        if where := source.park(message, error):
            logger.error("%s: message %s is parked in %s: %s", source.name, message.id, where, error)

    def _recover(self) -> None:
        """End what a consumer that is dead has left prepared: its messages are held until then."""
        try:
            if get_manager().log is not None:
                recover([*known().values(), self.session.datasource])
        except Exception as error:
            logger.warning("%s: recovery could not be run here: %s", self.session.name, described(error))


def consumer(
    of: str | Path | Source | MessageSession, *, max_messages: int = 100, poll: float = 1.0
) -> Callable[[Work], Consumer]:
    """Make a function the consumer of a session: it gets a list of up to so many messages, within a transaction.

    `txpool consume module:function` runs it. If it raises, the transaction rolls back, and the messages are received
    again, one by one. `poll` is how many seconds one wait for messages takes, and so how late a stop may be noticed.
    Errors: ProgrammingError for a coroutine function, or a generator: the messages would be lost.
    """
    return lambda function: Consumer(of, function, max_messages, poll)
