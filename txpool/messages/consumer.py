"""The loop of a consumer: a function gets batches of messages, each within a transaction.

A batch that has failed is done again one message after another, so that one bad message costs the others nothing. Each
such try is counted before the function is called, by the transaction that holds the message, and outside of it: so it
counts also if the process is killed, and no other consumer sees it while the function is at work. For that the first
batch of a process is done one by one, too. What proves nothing against the message is not counted: an outage of a
datasource, a conflict with others, a transaction in doubt. Such a try is given back, durably, while the message is
held. If that cannot be written, it is written before the next one.
"""

from __future__ import annotations

import inspect
import logging
import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from txpool.datasource import known
from txpool.errors import (
    ConfigurationError,
    HeuristicCommit,
    HeuristicHazard,
    HeuristicMixed,
    NotSupportedError,
    ProgrammingError,
    TransactionInDoubt,
    described,
    require_done,
)
from txpool.idempotency.on_demand import recover
from txpool.idempotency.outage import is_outage
from txpool.messages.session import MessageSession, ReceivedMessage, link, require_numbers, session
from txpool.tm.ambient import current
from txpool.tm.demarcation.block import transaction
from txpool.tm.demarcation.functions import require_plain
from txpool.tm.demarcation.retry import doubled
from txpool.tm.manager import get_manager

if TYPE_CHECKING:
    from txpool.datasource import Source
    from txpool.tm.transaction import Transaction

logger = logging.getLogger("txpool.messages")

Work = Callable[[list[ReceivedMessage]], object]
#: The longest wait before a message is tried again, in seconds; the first is one second, and each is twice the last.
_LONGEST_WAIT = 60.0
_PAUSE = 0.05
#: After so many failures in a row that are nobody's fault it goes on otherwise.
_FAILURES = 3
#: What has ended so is never done again by itself.
_NEVER_AGAIN = (HeuristicMixed, HeuristicHazard)


class _AllTried(Exception):
    """All tries of the message have begun, and none is at work."""


@dataclass
class _Try:
    """A try of a message by itself."""

    message: ReceivedMessage
    #: How many others had begun by then, and not ended.
    others: int
    is_open: bool = True


class Consumer:
    """A function that gets batches of messages, each within a transaction. It may be called as a function, too."""

    def __init__(
        self, of: str | Path | Source | MessageSession, function: Work, max_messages: int, poll: float
    ) -> None:
        require_plain(function, "the consumer")
        _require_takes_batch(function)
        require_numbers("a consumer", max_messages, poll)
        self._of, self._function, self._most, self._poll = of, function, max_messages, poll
        #: Tries that do not count, which is still to be written.
        self._owed: list[_Try] = []
        #: By process: what its one run holds.
        self._runs: dict[int, object] = {}
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
        its configuration are raised. Any number of processes may run it. ProgrammingError within a transaction, and if
        another thread runs it.
        """
        source = self.session
        if current() is not None:
            raise ProgrammingError(
                f"the consumer of {source.name} runs within a transaction, and has one of its own for each batch. "
                "Nothing was received: run it outside"
            )
        with self._alone(source):
            return self._loop(source, stopped, once=once)

    @contextmanager
    def _alone(self, source: MessageSession) -> Iterator[None]:
        mine, process = object(), os.getpid()
        try:
            if self._runs.setdefault(process, mine) is not mine:
                raise ProgrammingError(
                    f"the consumer of {source.name} is run by another thread, and one at a time does. Nothing was "
                    "received: let other processes run it"
                )
            yield
        finally:
            if self._runs.get(process) is mine:
                del self._runs[process]

    def _loop(self, source: MessageSession, stopped: Callable[[], bool], *, once: bool) -> int:
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
            except SystemExit as error:
                logger.error("%s: the consumer's function ends the process: %s", source.name, described(error))
                raise
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
        while self._owed:
            source.give_back(self._owed[-1].message, self._owed[-1].others)
            self._owed.pop()

    def _batch(self, source: MessageSession) -> tuple[int, bool, bool]:
        """How many messages were done, whether none has failed, and whether there were none."""
        received: list[ReceivedMessage] = []

        def work(_: Transaction) -> None:
            received.extend(source.receive(self._most))
            if received:
                require_done("the consumer", self._function(received))

        done = 0
        try:
            done, failure = self._attempt(source, work, received)
        finally:
            if not done:
                source.in_vain(received)
        if failure is not None:
            logger.warning("%s: a batch is done again, one message after another: %s", source.name, described(failure))
        return done, failure is None, not received

    def _one(self, source: MessageSession) -> bool | None:
        """Whether the next message was done, by itself; None if there was none."""
        self._give_back(source)
        tries: list[_Try] = []
        taken: list[ReceivedMessage] = []

        def work(ambient: Transaction) -> None:
            message = source.take_one()
            if message is not None:
                taken.append(message)
                with self._counted(source, message, tries):
                    taken[:] = [tries[0].message]
                    link(ambient, taken)
                    if why := source.why_unreadable(message):
                        raise NotSupportedError(why)
                    require_done("the consumer", self._function([*taken]))

        done, failure = 0, None
        try:
            done, failure = self._attempt(source, work, taken)
        except _AllTried:
            self._park(source, taken[0], "no try of it has ended")
            return False
        except KeyboardInterrupt:
            with suppress(Exception):
                self._give_back(source)
            raise
        finally:
            if not done and failure is None:
                source.in_vain(taken)
        if failure is not None and (not tries or tries[0] in self._owed):
            raise failure  # the function has not failed
        if not taken:
            return None
        if failure is not None:
            message, text, number = taken[0], described(failure), taken[0].tries + 1
            if number >= source.parking_after:
                self._park(source, message, text)
            else:
                logger.warning("%s: try %d of message %s has failed: %s", source.name, number, message.id, text)
                delay = doubled(1.0, number - 1, _LONGEST_WAIT)
                source.failed(message, text, delay, is_open=tries[0].is_open)
        return bool(done)

    @contextmanager
    def _counted(self, source: MessageSession, message: ReceivedMessage, tries: list[_Try]) -> Iterator[None]:
        """A try of a message that the ambient transaction holds: it is counted before the block, and ends with it.

        It is added to `tries`. Raises _AllTried if all have begun: who holds the message knows that nobody else is at
        work with it.
        """
        if message.tries >= source.parking_after:
            raise _AllTried
        with source.counting(message) as others:
            if message.tries + others >= source.parking_after:
                raise _AllTried
            begun = _Try(replace(message, tries=message.tries + others), others)
            self._owed.append(begun)  # it may be counted from here on
        tries.append(begun)
        try:
            yield
        except BaseException as error:
            # Who interrupts a process says nothing against the message that it has.
            if isinstance(error, KeyboardInterrupt | TransactionInDoubt) or is_outage(error):
                with suppress(Exception):  # else before the next one
                    self._give_back(source)
            else:
                self._owed.remove(begun)
            raise
        source.end_tries(message)  # who kills the process at the commit may do so for any message
        begun.is_open = False
        self._owed.remove(begun)

    def _attempt(
        self, source: MessageSession, work: Callable[[Transaction], None], messages: Sequence[ReceivedMessage]
    ) -> tuple[int, Exception | None]:
        """How many messages the work has received and done, in one transaction; and the error, if that has rolled back.

        Raises what is no message's fault.
        """
        try:
            with transaction() as ambient:
                ambient.may_be_empty = True
                work(ambient)
        except _AllTried:
            raise
        except (TransactionInDoubt, HeuristicCommit) as error:
            logger.warning("%s: %d messages: %s", source.name, len(messages), described(error))
            return 0, None
        except _NEVER_AGAIN as error:
            logger.error("%s: %d messages were done in part: %s", source.name, len(messages), described(error))
            for message in messages:  # done again, a part of their work would happen twice
                self._park(source, message, f"done in part: {described(error)}")
            return 0, None
        except Exception as error:
            if not is_outage(error):
                return 0, error
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


def _require_takes_batch(function: Work) -> None:
    """ProgrammingError if it cannot be called so: each call would fail, and each message be parked for that."""
    try:
        inspect.signature(function).bind([])
    except (ValueError, NameError):
        return  # it does not tell: it is built in, or its annotations name what only type checkers see
    except TypeError as error:
        raise ProgrammingError(
            f"the consumer {getattr(function, '__qualname__', function)} cannot be called with a list of messages "
            f"({described(error)}). Give a function of one argument, or txpool.consumer(session)(object.method)"
        ) from error


def consumer(
    of: str | Path | Source | MessageSession, *, max_messages: int = 100, poll: float = 1.0
) -> Callable[[Work], Consumer]:
    """Make a function the consumer of a session: it gets a list of up to so many messages, within a transaction.

    `txpool consume module:function` runs it. If it raises, the transaction rolls back, and the messages are received
    again, one by one. `poll` is how many seconds one wait for messages takes, and so how late a stop may be noticed.
    Errors: ProgrammingError for a coroutine function, or a generator: the messages would be lost; for what cannot be
    called with a list; and for numbers that are none.
    """
    if callable(of):
        raise ProgrammingError("a consumer needs a session: write @txpool.consumer(session) above the function")
    return lambda function: Consumer(of, function, max_messages, poll)
