"""TransactionManager: the ambient transaction of a thread or task, and one process's place in the decision log.

The ambient transaction lives in a ContextVar: an asyncio task inherits the one that its creator had, a new thread
starts with none. Whoever began a transaction ends it. A forked child has none, and an incarnation of its own.
"""

from __future__ import annotations

import atexit
import itertools
import logging
import os
import sys
import threading
from collections.abc import Callable, Collection
from contextvars import ContextVar, Token
from functools import partial
from time import monotonic
from typing import Any
from weakref import ref

from txpool import tracing
from txpool.config.settings import CoordinatorSettings
from txpool.errors import ConfigurationError, ProgrammingError
from txpool.finishing import LIMIT, PendingWork, finish, ready
from txpool.jobs.properties import publish
from txpool.log import open_log
from txpool.log.base import DecisionLog
from txpool.metrics import Sample, add_source
from txpool.metrics.catalogue import UNSETTLED
from txpool.resources import cleanup
from txpool.resources.deadlines import Deadlines
from txpool.tm import dropped
from txpool.tm.coordinator import Coordinator
from txpool.tm.required import refuse_beginning_in_task, suspended
from txpool.tm.resolver import Resolver
from txpool.tm.timers import Timers
from txpool.tm.transaction import Status, Transaction
from txpool.xid import make_gtrid, new_incarnation

logger = logging.getLogger("txpool")

#: Seconds of closing that what is in doubt may take, so that there is time for the rest.
_RESOLVE_TIME = 2.0

_ambient: ContextVar[Transaction | None] = ContextVar("txpool.transaction", default=None)

#: What `current` returns, without the price of a Python call; a function that a user ships to Spark can refer to
#: `current`, and to this it could not.
ambient: Callable[[], Transaction | None] = _ambient.get


#: Called with each new transaction: the process's, whichever manager it has by then.
observers: list[Callable[[Transaction], object]] = []


def current() -> Transaction | None:
    """The ambient transaction of this thread or task, or None."""
    return _ambient.get()


def make_ambient(transaction: Transaction | None) -> Token[Transaction | None]:
    """Make it the ambient transaction of this thread or task; the token is for `restore_ambient`."""
    token = _ambient.set(transaction)
    if "pyspark" in sys.modules:
        try:
            publish(transaction)
        except BaseException:  # an interrupt: nobody has the token, and so nobody would end what is ambient
            _ambient.reset(token)
            raise
    return token


def restore_ambient(token: Token[Transaction | None]) -> None:
    """Make the ambient transaction what it was before."""
    left = _ambient.get()
    _ambient.reset(token)
    if "pyspark" in sys.modules:
        publish(_ambient.get(), left)


def renew_ambient(transaction: Transaction, token: Token[Transaction | None]) -> Token[Transaction | None]:
    """Make it ambient as it was when it got the token; the new one takes that one's place. ValueError elsewhere."""
    _ambient.reset(token)
    return _ambient.set(transaction)


class TransactionManager:
    """Begins transactions under one node's name. Thread-safe."""

    def __init__(self, settings: CoordinatorSettings) -> None:
        self.settings = settings
        self._numbers = itertools.count(1)
        self._log: DecisionLog | None = None
        self._opening = threading.Lock()
        #: Names transactions where no log is configured: those have one branch, and are never prepared.
        self._unlogged = new_incarnation()
        self._timers = Timers()
        self._resolver = Resolver()
        #: That of a transaction without a timeout.
        self._phase_two_wait = Deadlines(None, settings.transaction_phase_two_wait)

    @property
    def log(self) -> DecisionLog | None:
        """The decision log, opened on first use; None where none is configured. Errors: LogError."""
        if self._log is None and self.settings.log_url is not None:
            if self.settings.node_name is None:
                raise ConfigurationError("log.url is set and node.name is not: write `node.name = my-service-1`")
            with self._opening:
                if self._log is None:
                    self._log = open_log(
                        self.settings.log_url,
                        node=self.settings.node_name,
                        create=self.settings.log_create,
                        user=self.settings.log_user,
                        password=self.settings.log_password,
                    )
                    self._will_close()
        return self._log

    @property
    def in_doubt(self) -> int:
        """How many of this process's transactions are in doubt, and still being asked for."""
        return self._resolver.pending

    def new_gtrid(self) -> str:
        """The name of a transaction that may begin later."""
        log = self.log
        if log is not None and self not in _open:
            self._will_close()
        incarnation = self._unlogged if log is None else log.incarnation
        return make_gtrid(self.settings.node_name or "unnamed", incarnation, next(self._numbers))

    def new_transaction(
        self, timeout: float | None = None, gtrid: str | None = None, traceparent: str = ""
    ) -> Transaction:
        """A transaction that is nobody's ambient one yet; `timeout` in seconds, or the configured one.

        `gtrid` is one of `new_gtrid`: its record is refused where its process was taken for dead meanwhile. A trace of
        it goes on where `traceparent` says, or else within what is current here.
        """
        if gtrid is None:
            gtrid = self.new_gtrid()
        seconds = self.settings.transaction_timeout if timeout is None else timeout
        patience = self._phase_two_wait
        if seconds is not None:
            patience = Deadlines(monotonic() + seconds, self.settings.transaction_phase_two_wait)
        transaction = Transaction(gtrid, self.log, self._resolve_later, patience)
        if tracing.tracer is not None:
            transaction.trace = tracing.tracer.transaction(gtrid, traceparent)
        if seconds is not None:
            self._call_while_open(transaction, seconds, Transaction.expire)
        threshold = self.settings.transaction_leak_threshold
        if threshold is not None:
            self._call_while_open(transaction, threshold, _report_open)
        if _ending:
            transaction.after_completion(lambda _: self.close())
        for attach in observers:
            attach(transaction)
        return transaction

    def _call_while_open(
        self, transaction: Transaction, seconds: float, call: Callable[[Transaction, float], object]
    ) -> None:
        """Call in so many seconds, unless it has ended by then, or was dropped."""
        known = ref(transaction)

        def due() -> None:
            if (still := known()) is not None:
                call(still, seconds)

        timer = self._timers.after(seconds, due)
        transaction.after_completion(lambda _: timer.cancel())

    def _resolve_later(self, transaction: Transaction, coordinator: Coordinator) -> None:
        self._resolver.add(coordinator, transaction.resolved)

    def close(self) -> None:
        """Finish what is pending in this process, and give the incarnation up.

        What is in doubt is asked for once more; rows and decisions that have done their work are deleted. Never
        raises, and takes a few seconds at most: what could not be done is left to recovery, and the log says so.
        """
        _close([self])

    def _will_close(self) -> None:
        """Have all that follows finished when this process ends."""
        ready()
        _open.add(self)
        _close_with_worker()

    def _after_fork_in_child(self) -> None:
        # Threads and locks of the parent's do not live here; the log looks after itself.
        self._opening = threading.Lock()
        self._unlogged = new_incarnation()
        self._timers = Timers()
        self._resolver = Resolver()


# -- the process's own manager, and the functions over it ---------------------------------------------------------

_manager: TransactionManager | None = None
#: Those of this process whose log is open: also one that was replaced while transactions went on in it.
_open: set[TransactionManager] = set()
#: The process has done all this already: a handler that was registered before ours comes after it.
_ending = False
_configuring = threading.RLock()


def get_manager() -> TransactionManager:
    """The process's manager: as configured, or as conf/txpool.properties or TXPOOL_CONF says, or without a log."""
    global _manager
    if _manager is None:
        with _configuring:
            if _manager is None:
                _manager = TransactionManager(CoordinatorSettings.find())
    return _manager


def configure(source: Any = None, /, **options: Any) -> TransactionManager:
    """Set the process's node name, decision log and timeout: from a .properties file, or keyword arguments.

    Keyword arguments are the keys with underscores (`node_name`, `log_url`, `log_password`, `transaction_timeout` …).
    Opens the log, so that a wrong one is an error here. Errors: ConfigurationError, LogError; nothing has changed
    then. Call it once, when the program starts: transactions that are open keep the log they began with.
    """
    global _manager
    manager = TransactionManager(CoordinatorSettings.load(source, **options))
    manager.log  # noqa: B018 - opened now, so that an error shows here
    with _configuring:
        former, _manager = _manager, manager
    if former is not None and current() is None:
        former.close()
    return manager


def begin(timeout: float | None = None) -> Transaction:
    """Begin a transaction and make it the ambient one. Errors: ProgrammingError where there is one already."""
    active = current()
    if active is not None and not active.ended:
        raise ProgrammingError(
            f"{active.gtrid} is active here: end it first, suspend() it, or nest by `with transaction()`"
        )
    dropped.require_not_abandoned(active)
    refuse_beginning_in_task()
    frame = sys._getframe(1)
    origin = frame.f_code, frame.f_lasti
    transaction = get_manager().new_transaction(timeout)
    make_ambient(transaction)
    transaction.origin = origin
    return transaction


def commit() -> None:
    """Commit the ambient transaction. Errors: as Transaction.commit; ProgrammingError where a block will end it."""
    transaction = _ended_here("commit")
    try:
        transaction.commit()
    finally:
        _leave()


def rollback() -> None:
    """Roll the ambient transaction back. Errors: as Transaction.rollback."""
    transaction = _ended_here("roll back")
    try:
        transaction.rollback()
    finally:
        _leave()


def suspend() -> Transaction | None:
    """Leave the ambient transaction, which stays active; give it to resume() to go on in it."""
    transaction = current()
    make_ambient(None)
    if transaction is not None:
        suspended(transaction)
    return transaction


def resume(transaction: Transaction | None) -> None:
    """Make a suspended transaction the ambient one again; None where there was none."""
    active = current()
    if active is not None and not active.ended and active is not transaction:
        raise ProgrammingError(f"{active.gtrid} is active here: end or suspend it before another is resumed")
    if transaction is not None and transaction.ended:
        transaction.require_active()
    make_ambient(transaction)
    suspended(None)


def status() -> Status | None:
    """The ambient transaction's status, or None without one."""
    transaction = current()
    return None if transaction is None else transaction.status


def _report_open(transaction: Transaction, seconds: float) -> None:
    if not transaction.ended:
        logger.warning(
            "%s has been open for longer than transaction.leak-threshold (%g s), and stays so: it was begun at %s, and "
            "holds %s",
            transaction.gtrid,
            seconds,
            dropped.line_of(transaction.origin),
            transaction.holds or "nothing",
        )


def _leave() -> None:
    left = _ambient.get()
    _ambient.set(None)
    if "pyspark" in sys.modules:
        publish(None, left)


def _ended_here(verb: str) -> Transaction:
    transaction = current()
    if transaction is None:
        raise ProgrammingError(f"there is no transaction to {verb}: begin() one first")
    transaction.require_unscoped()
    return transaction


def _after_fork_in_child() -> None:
    global _configuring, _ending
    _ending = False
    _configuring = threading.RLock()
    _ambient.set(None)
    managers = _open | {_manager}
    _open.clear()  # what is pending there is the parent's
    for manager in managers:
        if manager is not None:
            manager._after_fork_in_child()


def _close_at_exit() -> None:
    global _ending
    _ending = True
    left = current()
    if left is not None and not left.ended:
        logger.warning(
            "%s was begun, and the program ends without an end to it: what was done within it rolls back. It was begun "
            "at %s",
            left.gtrid,
            dropped.line_of(left.origin),
        )
    started = monotonic()
    try:
        dropped.close(_RESOLVE_TIME)
        _close(_open.copy(), None if left is None or left.ended else left, started)
    except BaseException as error:  # an impatient Ctrl-C
        logger.warning("what is not finished yet is left to recovery: the end was interrupted (%r)", error)


def _close(
    managers: Collection[TransactionManager], left: Transaction | None = None, started: float | None = None
) -> None:
    """Settle first, since that makes more to delete and to forget; and end what was `left` open, with its locks.

    Of these two neither waits for the other: a transaction that a row has decided has no decision in the log.
    """
    started = monotonic() if started is None else started
    for manager in managers:
        manager._resolver.stop()
    if left is not None and cleanup.pending():  # else its connections end it soon enough
        rollback = partial(left.rollback, leaving=True)
        finish([PendingWork(f"{left.gtrid}: its rollback is left to its databases", rollback)], started + _RESOLVE_TIME)
    for manager in managers:
        manager._resolver.close(started + _RESOLVE_TIME)
    pieces = [queue.pending_work() for queue in cleanup.pending()]
    for manager in managers:
        _open.discard(manager)
        log, manager._log = manager._log, None
        if log is not None:
            pieces.append(
                PendingWork(f"the decision log of {log.node}: deleting what is finished is left to recovery", log.close)
            )
    if pieces:
        finish(pieces, started + LIMIT)


def _close_with_worker(_: object = None) -> None:
    """A process of `multiprocessing` that was forked ends without what is registered with atexit."""
    util = sys.modules.get("multiprocessing.util")
    if util is None:
        return
    if sys.modules["multiprocessing.process"].parent_process() is not None:
        util.Finalize(None, _close_at_exit, exitpriority=0)
    else:  # a fork server's loads the program before it is one
        util.register_after_fork(_close_at_exit, _close_with_worker)


def _samples() -> list[Sample]:
    return [Sample(UNSETTLED, (), 0 if _manager is None else _manager.in_doubt)]


add_source(_samples)
os.register_at_fork(after_in_child=_after_fork_in_child)
# What was lazily forgotten is written, and the incarnation given up, so that recovery has nothing to wait for.
atexit.register(_close_at_exit)
