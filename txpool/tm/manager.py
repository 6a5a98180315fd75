"""TransactionManager: begins transactions under one node's name, and owns this process's place in the decision log.

`get_manager` returns the process's own, and `configure` replaces it.
"""

from __future__ import annotations

import itertools
import logging
import os
from collections.abc import Callable
from functools import partial
from time import monotonic
from typing import Any, cast
from weakref import ref

from txpool import loops, tracing
from txpool.config.settings import CoordinatorSettings
from txpool.errors import ConfigurationError
from txpool.locks import DeadlineLock, Lock, RLock
from txpool.log import open_log
from txpool.log.base import DecisionLog
from txpool.metrics import Sample, add_source
from txpool.metrics.catalogue import UNSETTLED
from txpool.process.finishing import PendingWork
from txpool.resources.deadlines import Deadlines, WaitForOthers
from txpool.sql.characteristics import UNSPECIFIED, Characteristics
from txpool.tm import closing
from txpool.tm.ambient import current
from txpool.tm.background.resolver import Resolver
from txpool.tm.background.timers import Timers
from txpool.tm.commit.coordinator import Coordinator
from txpool.tm.completion import dropped
from txpool.tm.transaction import Transaction
from txpool.xid import make_gtrid, new_incarnation

logger = logging.getLogger("txpool")

#: Called with each new transaction of this process, whichever manager began it.
observers: list[Callable[[Transaction], object]] = []
#: Called by configure() with its settings, before they are in force: an error is that of configure().
when_configured: list[Callable[[CoordinatorSettings], object]] = []


class TransactionManager:
    """Begins transactions under one node's name. Thread-safe."""

    def __init__(self, settings: CoordinatorSettings) -> None:
        self.settings = settings
        self._numbers = itertools.count(1)
        self._log: DecisionLog | None = None
        self._opening = Lock()
        #: Stands in gtrids for the incarnation if no log is configured. No branch of such a gtrid is prepared.
        self._unlogged = new_incarnation()
        self._timers = Timers()
        self._resolver = Resolver()
        #: The deadlines of a transaction without a timeout.
        self._phase_two_wait = Deadlines(None, settings.transaction_phase_two_wait)

    @property
    def log(self) -> DecisionLog | None:
        """The decision log, opened on first use; None if none is configured. Errors: LogError."""
        if self._log is None and self.settings.log_url is not None:
            if self.settings.node_name is None:
                raise ConfigurationError("log.url is set and node.name is not: write `node.name = my-service-1`")
            if loops.used and (call := loops.current()) is not None:  # no lock is held while a task waits
                return call.in_thread(lambda: self.log)
            with self._opening:
                if self._log is None:
                    self._log = open_log(
                        self.settings.log_url,
                        node=self.settings.node_name,
                        create=self.settings.log_create,
                        user=self.settings.log_user,
                        password=self.settings.log_password,
                    )
                    closing.close_at_exit(self)
        return self._log

    @property
    def in_doubt(self) -> int:
        """How many of its transactions are in doubt and still tried by its resolver."""
        return self._resolver.pending

    def new_gtrid(self) -> str:
        """A new gtrid, for a transaction that may begin later."""
        log = self._log or self.log
        if log is not None and self not in closing.open_managers:
            closing.close_at_exit(self)
        incarnation = self._unlogged if log is None else log.incarnation
        return make_gtrid(self.settings.node_name or "unnamed", incarnation, next(self._numbers))

    def new_transaction(
        self,
        timeout: float | None = None,
        gtrid: str | None = None,
        traceparent: str = "",
        characteristics: Characteristics = UNSPECIFIED,
    ) -> Transaction:
        """A transaction that is not ambient anywhere yet; `timeout` in seconds, default the configured one.

        `gtrid` is one that `new_gtrid` returned: its decision is refused if recovery has fenced that process since.
        Its trace continues `traceparent`, or without one the span that is current here.
        """
        if gtrid is None:
            gtrid = self.new_gtrid()
        seconds = self.settings.transaction_timeout if timeout is None else timeout
        deadlines = self._phase_two_wait
        if seconds is not None:
            deadlines = Deadlines(monotonic() + seconds, self.settings.transaction_phase_two_wait)
        transaction = Transaction(gtrid, self._log or self.log, self._resolve_later, deadlines)
        if characteristics is not UNSPECIFIED:
            transaction.characteristics = characteristics
        if loops.used and (call := loops.current()) is not None:
            call.adopt(transaction)
        if tracing.tracer is not None:
            transaction.trace = tracing.tracer.transaction(gtrid, traceparent)
        if seconds is not None:
            self._expire_in(transaction, seconds)
        threshold = self.settings.transaction_leak_threshold
        if threshold is not None:
            self._call_while_open(transaction, threshold, _report_open)
        if closing.exiting:
            transaction.after_completion(lambda _: self.close())
        if observers:
            for attach in observers[:]:  # one may stop observing as it is called
                attach(transaction)
        return transaction

    def limit(self, transaction: Transaction, seconds: float, why: str) -> None:
        """Give a transaction that has no timeout one, from now on; `why` follows it in errors."""
        transaction.why_timeout = why
        transaction.deadlines = Deadlines(monotonic() + seconds, self.settings.transaction_phase_two_wait)
        self._expire_in(transaction, seconds)

    def _expire_in(self, transaction: Transaction, seconds: float) -> None:
        transaction.timeout = seconds
        if not transaction.in_loop:
            transaction.new_lock = cast(Any, partial(DeadlineLock, WaitForOthers(transaction)))
        self._call_while_open(transaction, seconds, Transaction.expire)

    def _call_while_open(
        self, transaction: Transaction, seconds: float, call: Callable[[Transaction, float], object]
    ) -> None:
        """Call with the transaction in so many seconds, unless it has ended by then, or was dropped."""
        reference = ref(transaction)

        def due() -> None:
            if (open_transaction := reference()) is not None:
                call(open_transaction, seconds)

        timer = self._timers.after(seconds, due)
        transaction.after_completion(lambda _: timer.cancel())

    def _resolve_later(self, transaction: Transaction, coordinator: Coordinator) -> None:
        self._resolver.add(coordinator, transaction.resolved)

    def close(self) -> None:
        """Finish what is pending in this process, and give the incarnation up.

        Transactions in doubt are tried once more; marked rows and decisions that are no longer needed are deleted.
        Never raises, and takes a few seconds at most: what could not be done is left to recovery, and logged.
        """
        closing.close([self])

    def stop_resolving(self) -> None:
        """Let the resolver try each transaction in doubt once more, and end. Returns at once."""
        self._resolver.stop()

    def close_resolver(self, until: float) -> None:
        """Wait for the resolver's end, at most until that time of the monotonic clock."""
        self._resolver.close(until)

    def detach_log(self) -> PendingWork | None:
        """The work of closing its log, which a later transaction opens again; None if none is open."""
        log, self._log = self._log, None
        if log is None:
            return None
        return PendingWork(f"the decision log of {log.node}: deleting what is finished is left to recovery", log.close)

    def reset_after_fork(self) -> None:
        """Threads and locks of the parent's do not live in a forked child. The log sees to itself."""
        self._opening = Lock()
        self._unlogged = new_incarnation()
        self._timers = Timers()
        self._resolver = Resolver()


# -- the process's own manager ------------------------------------------------------------------------------------

_manager: TransactionManager | None = None
_configuring = RLock()


def get_manager() -> TransactionManager:
    """The process's manager. Without configure() it is as TXPOOL_CONF or conf/txpool.properties says, if any."""
    global _manager
    if _manager is None:
        with _configuring:
            if _manager is None:
                _manager = TransactionManager(CoordinatorSettings.find())
    return _manager


def settings_in_force() -> CoordinatorSettings:
    """The settings of the process's manager, or those that it would have. ConfigurationError."""
    return CoordinatorSettings.find() if _manager is None else _manager.settings


def configure(source: Any = None, /, **options: Any) -> TransactionManager:
    """Set the process's node name, decision log and timeout: from a .properties file, or keyword arguments.

    Keyword arguments are the keys with underscores (`node_name`, `log_url`, `log_password`, `transaction_timeout` …).
    Opens the log, so that a wrong one is an error here. Errors: ConfigurationError, LogError; nothing has changed
    then. Call it once, when the program starts: transactions that are open keep the log they began with.
    """
    return put_in_force(CoordinatorSettings.load(source, **options))


def put_in_force(settings: CoordinatorSettings) -> TransactionManager:
    """As `configure`, by settings that are read already."""
    global _manager
    manager = TransactionManager(settings)
    manager.log  # noqa: B018 - opened now, so that an error shows here
    try:
        for call in when_configured:
            call(manager.settings)
    except BaseException:
        manager.close()
        raise
    with _configuring:
        previous, _manager = _manager, manager
    if previous is not None and current() is None:
        previous.close()
    return manager


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


def _after_fork_in_child() -> None:
    global _configuring
    _configuring = RLock()
    inherited = closing.forget_all() | {_manager}  # what is pending in them is the parent's
    for manager in inherited:
        if manager is not None:
            manager.reset_after_fork()


def _samples() -> list[Sample]:
    return [Sample(UNSETTLED, (), 0 if _manager is None else _manager.in_doubt)]


add_source(_samples)
os.register_at_fork(after_in_child=_after_fork_in_child)
