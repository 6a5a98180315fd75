"""TransactionManager: the ambient transaction of a thread or task, and one process's place in the decision log.

The ambient transaction lives in a ContextVar: an asyncio task inherits the one that its creator had, a new thread
starts with none. Whoever began a transaction ends it. A forked child has none, and an incarnation of its own.
"""

from __future__ import annotations

import atexit
import itertools
import logging
import os
import threading
from collections.abc import Callable
from contextvars import ContextVar, Token
from time import monotonic
from typing import Any

from txpool.coordinator import Coordinator
from txpool.errors import ConfigurationError, ProgrammingError
from txpool.log import open_log
from txpool.log.base import DecisionLog
from txpool.metrics import Sample, add_source
from txpool.metrics.catalogue import UNSETTLED
from txpool.patience import Patience
from txpool.settings import CoordinatorSettings
from txpool.settler import Settler
from txpool.timers import Timers
from txpool.transaction import Status, Transaction
from txpool.xid import make_gtrid, new_incarnation

logger = logging.getLogger("txpool")

_ambient: ContextVar[Transaction | None] = ContextVar("txpool.transaction", default=None)

#: What `current` returns, without the price of a Python call; a function that a user ships to Spark can refer to
#: `current`, and to this it could not.
ambient: Callable[[], Transaction | None] = _ambient.get


#: Told in the thread itself what its ambient transaction is now, or None (Spark's jobs carry it to their tasks).
ambient_listeners: list[Callable[[Transaction | None], object]] = []


def current() -> Transaction | None:
    """The ambient transaction of this thread or task, or None."""
    return _ambient.get()


def make_ambient(transaction: Transaction | None) -> Token[Transaction | None]:
    """Make it the ambient transaction of this thread or task; the token is for `restore_ambient`."""
    token = _ambient.set(transaction)
    if ambient_listeners:
        try:
            for tell in ambient_listeners:
                tell(transaction)
        except BaseException:  # an interrupt: nobody has the token, and so nobody would end what is ambient
            _ambient.reset(token)
            raise
    return token


def restore_ambient(token: Token[Transaction | None]) -> None:
    """Make the ambient transaction what it was before."""
    _ambient.reset(token)
    for tell in ambient_listeners:
        tell(_ambient.get())


def renew_ambient(transaction: Transaction, token: Token[Transaction | None]) -> Token[Transaction | None]:
    """Make it ambient as it was when it got the token; the new one takes that one's place. ValueError elsewhere."""
    _ambient.reset(token)
    return _ambient.set(transaction)


class TransactionManager:
    """Begins transactions under one node's name. Thread-safe."""

    def __init__(self, settings: CoordinatorSettings) -> None:
        self.settings = settings
        #: Called with each new transaction (observers register their callbacks so).
        self.on_begin: list[Callable[[Transaction], object]] = []
        self._numbers = itertools.count(1)
        self._log: DecisionLog | None = None
        self._opening = threading.Lock()
        #: Names transactions where no log is configured: those have one branch, and are never prepared.
        self._unlogged = new_incarnation()
        self._timers = Timers()
        self._settler = Settler()
        #: That of a transaction without a timeout.
        self._patience = Patience(None, settings.transaction_phase_two_wait)

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
        return self._log

    @property
    def in_doubt(self) -> int:
        """How many of this process's transactions are in doubt, and still being asked for."""
        return self._settler.pending

    def new_gtrid(self) -> str:
        """The name of a transaction that may begin later."""
        log = self.log
        incarnation = self._unlogged if log is None else log.incarnation
        return make_gtrid(self.settings.node_name or "unnamed", incarnation, next(self._numbers))

    def new_transaction(self, timeout: float | None = None, gtrid: str | None = None) -> Transaction:
        """A transaction that is nobody's ambient one yet; `timeout` in seconds, or the configured one.

        `gtrid` is one of `new_gtrid`: its record is refused where its process was taken for dead meanwhile.
        """
        if gtrid is None:
            gtrid = self.new_gtrid()
        seconds = self.settings.transaction_timeout if timeout is None else timeout
        patience = self._patience
        if seconds is not None:
            patience = Patience(monotonic() + seconds, self.settings.transaction_phase_two_wait)
        transaction = Transaction(gtrid, self.log, self._settle_later, patience)
        if seconds is not None:
            timer = self._timers.after(seconds, lambda: transaction.expire(seconds))
            transaction.after_completion(lambda _: timer.cancel())
        for begun in self.on_begin:
            begun(transaction)
        return transaction

    def _settle_later(self, transaction: Transaction, coordinator: Coordinator) -> None:
        self._settler.add(coordinator, transaction.settled)

    def close(self) -> None:
        """Stop settling, write what was lazily forgotten, and give the incarnation up."""
        self._settler.close()
        if self._log is not None:
            self._log.close()
            self._log = None

    def _after_fork_in_child(self) -> None:
        # Threads and locks of the parent's do not live here; the log looks after itself.
        self._opening = threading.Lock()
        self._unlogged = new_incarnation()
        self._timers = Timers()
        self._settler = Settler()


# -- the process's own manager, and the functions over it ---------------------------------------------------------

_manager: TransactionManager | None = None
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
    transaction = get_manager().new_transaction(timeout)
    make_ambient(transaction)
    return transaction


def commit() -> None:
    """Commit the ambient transaction. Errors: as Transaction.commit; ProgrammingError where a block will end it."""
    transaction = _ended_here("commit")
    try:
        transaction.commit()
    finally:
        make_ambient(None)


def rollback() -> None:
    """Roll the ambient transaction back. Errors: as Transaction.rollback."""
    transaction = _ended_here("roll back")
    try:
        transaction.rollback()
    finally:
        make_ambient(None)


def suspend() -> Transaction | None:
    """Leave the ambient transaction, which stays active; give it to resume() to go on in it."""
    transaction = current()
    make_ambient(None)
    return transaction


def resume(transaction: Transaction | None) -> None:
    """Make a suspended transaction the ambient one again; None where there was none."""
    active = current()
    if active is not None and not active.ended and active is not transaction:
        raise ProgrammingError(f"{active.gtrid} is active here: end or suspend it before another is resumed")
    if transaction is not None and transaction.ended:
        transaction.require_active()
    make_ambient(transaction)


def status() -> Status | None:
    """The ambient transaction's status, or None without one."""
    transaction = current()
    return None if transaction is None else transaction.status


def _ended_here(verb: str) -> Transaction:
    transaction = current()
    if transaction is None:
        raise ProgrammingError(f"there is no transaction to {verb}: begin() one first")
    transaction.require_unscoped()
    return transaction


def _after_fork_in_child() -> None:
    global _configuring
    _configuring = threading.RLock()
    _ambient.set(None)
    if _manager is not None:
        _manager._after_fork_in_child()


def _close_at_exit() -> None:
    left = current()
    if left is not None and not left.ended:
        logger.warning("%s was begun, and the program ends without an end to it: all of it rolls back", left.gtrid)
    if _manager is not None:
        _manager.close()


def _samples() -> list[Sample]:
    return [Sample(UNSETTLED, (), 0 if _manager is None else _manager.in_doubt)]


add_source(_samples)
os.register_at_fork(after_in_child=_after_fork_in_child)
# What was lazily forgotten is written, and the incarnation given up, so that recovery has nothing to wait for.
atexit.register(_close_at_exit)
