"""One datasource's part in one transaction: the physical connection that all its handles share until the end."""

from __future__ import annotations

import logging
from _thread import get_ident
from contextlib import suppress
from functools import partial
from threading import Thread
from time import monotonic
from typing import TYPE_CHECKING, Any, cast
from weakref import ref

from txpool.dbapi.driver_attributes import SessionOverrides
from txpool.dbapi.managed_commit import SavepointStack
from txpool.dbapi.open_results import OpenResults, close_open
from txpool.dbapi.refusals import (
    not_ambient_here,
    of_another_transaction,
    of_parent_process,
)
from txpool.dbapi.statements import EnlistedStatements
from txpool.errors import PoolTimeout, TransactionTimeout, described
from txpool.jobs import spark
from txpool.jobs.properties import publish
from txpool.loops import in_thread
from txpool.pool import Pooled
from txpool.resources.deadlines import HeldByAnother
from txpool.sql.characteristics import UNSPECIFIED
from txpool.tm.ambient import ambient
from txpool.tm.completion.status import ACTIVE, COMMITTING, UNDER_WAY, Status
from txpool.tm.enlistment import Enlists, Part

if TYPE_CHECKING:
    from txpool.dbapi.statements import PooledDatasource
    from txpool.resources.base import MarkedBranch, OpenBranch
    from txpool.sql.characteristics import Characteristics

logger = logging.getLogger("txpool")

NO_MODES: frozenset[str] = frozenset()
_CANCEL_AGAIN = 1.0


class Enlistment(EnlistedStatements, Part):
    """One datasource's part in one transaction. Thread-safe: every use of the physical connection holds `lock`.

    The lock is taken by `with`, and not by acquire(): an interrupt that comes behind that would leave it held.

    A thread may use it if its transaction is ambient, and a thread other than the one that opened it also if no
    transaction is ambient. A thread with another ambient transaction is refused, and so is the one that opened it,
    once it has suspended the transaction.
    """

    #: It is used once; a physical connection of the pool again and again.
    uses = 1
    #: It may commit in one phase if it is alone.
    needs_decision = False
    #: Another task or thread holds the connection, which was closed for the end.
    _closed_under = False
    #: Nobody waits any longer for what executes on the connection: that is closed.
    _given_up = False
    #: Another holds it, and may be about to use it: so what is left of the connection is closed once it lets go.
    _left = False

    __slots__ = (
        "_driver",
        "_held",
        "_status",
        "_thread",
        "_transaction_commands",
        "_unreusable",
        "_use",
        "branch",
        "cursors",
        "datasource",
        "ended",
        "fixed_modes",
        "gtrid",
        "in_pipeline",
        "lock",
        "owner",
        "pooled",
        "raw",
        "savepoints",
    )

    branch: OpenBranch | MarkedBranch
    #: The raw cursors that may hold something open on the connection.
    cursors: OpenResults
    #: The physical connection until it is given back. To pop it is atomic, so that this happens once.
    _held: list[Pooled[Any]]
    #: Which use of the physical connection is this one: while it lasts, the connection was not given back.
    _use: int

    def __init__(self, datasource: PooledDatasource, transaction: Enlists) -> None:
        self.datasource = datasource
        #: A weak reference to its transaction, which refers to it: returns None once that was dropped.
        self.owner = ref(transaction)
        self.gtrid = transaction.gtrid
        self.lock = transaction.new_lock()
        #: The physical connection; None until `open` has taken it. It stays after the end.
        self.pooled: Pooled[Any] | None = None
        self.raw: Any = None
        #: Of the handles whose commits join; None if there was no such handle, nor a block of the driver's own.
        self.savepoints: SavepointStack | None = None
        #: The attributes that handles have overridden; None if none has.
        self.overrides: SessionOverrides | None = None
        #: The attributes of its connection that the transaction has set, and that no handle may change.
        self.fixed_modes: frozenset[str] = NO_MODES
        #: In a pipeline, where the connection's state is not known before the pipeline's end.
        self.in_pipeline = False
        self.ended = False
        self.doing = ""
        self._unreusable = False
        #: No local transaction was open before the statement that executes now, or comes next.
        self._fresh = True

    # -- for the transaction ------------------------------------------------------------------------------------

    def open(self, transaction: Enlists, timeout: float | None) -> None:
        """Take the physical connection, unless another thread has; wait `timeout` seconds for it."""
        datasource = self.datasource
        with self.lock:
            if self.pooled is not None:
                return
            if spark.is_loaded():  # the transaction may have created a Spark session since
                publish(ambient())
            until = transaction.deadlines.before_decision()
            if until is not None:
                timeout = min(datasource.pool.max_wait if timeout is None else timeout, max(until - monotonic(), 0))
            try:
                pooled, branch = datasource.resource_manager.begin(datasource, transaction, timeout)
            except PoolTimeout:
                transaction.require_active()  # else it is the transaction that has timed out
                raise
            try:
                thread, modes, savepoints = get_ident(), NO_MODES, None
                results: OpenResults = set()
                held = [pooled]
                if transaction.characteristics is not UNSPECIFIED:
                    modes = fixed_modes(transaction.characteristics)
                if datasource.joins_commits:
                    savepoints = self._savepoints_on(pooled.raw)
                if datasource.names_early:
                    cast("OpenBranch", branch).name(transaction.early_name(datasource.name))
                commands = datasource.transaction_commands
                if commands is None and (sql := datasource.sql_of(pooled.raw)) is not None:
                    commands = sql.transaction_commands
            except BaseException:
                datasource.pool.discard(pooled)
                raise
            if self.pooled is not None:  # a finaliser in this thread was faster
                datasource.pool.give_back(pooled)
                return
            # No function is called up to the last line: a finaliser in it might open this, too.
            self._driver, self._thread, self._transaction_commands = datasource.driver_adapter, thread, commands
            self.branch, self.raw, self.fixed_modes, self.savepoints = branch, pooled.raw, modes, savepoints
            self.cursors = pooled.results = results
            self._held, self._use = held, pooled.uses
            pooled.gtrid, pooled.since = self.gtrid, 0.0
            self.pooled = pooled
            if transaction.status is not ACTIVE and transaction.status not in UNDER_WAY:
                # It has ended since this began, and may have taken this for one that is not opened.
                self.release(transaction.status, reusable=False)
                transaction.require_active()

    def settled_branch(self) -> OpenBranch | MarkedBranch | None:
        """Its branch, once what another thread does on the connection has ended; nothing new can begin there.

        None if that has lasted for too long: then the connection is closed, and what was done on it rolls back.
        """
        if self._left:  # and an interrupt may have kept a commit from the error
            self._close_under(HeldByAnother(""))
            return None
        try:
            with self.lock:
                self.pooled.completing_since = monotonic()  # type: ignore[union-attr]
                return self.branch
        except HeldByAnother as over:
            self._close_under(over)
            return None

    def _close_under(self, over: HeldByAnother) -> None:
        """Close the connection, which rolls back. A commit raises this error: it rolls back, too."""
        transaction = self.owner()  # None in its own finaliser
        if over.while_idle is None:
            over.args = (
                f"the end of {self.gtrid} has waited until its deadline for {self.doing or 'a statement'}, which holds "
                f"the connection of {self.datasource.name}. That connection is closed, and all rolls back",
            )
        first = not self._closed_under
        if first:
            logger.warning("%s", over)
            cause = None if transaction is None else transaction.rollback_cause
            if isinstance(cause, TransactionTimeout):
                cause.args = (f"{cause}; {over}",)
        self._closed_under = self._given_up = self._unreusable = True
        if over.while_idle is None or not over.while_idle(partial(self._driver.close, self.raw)):
            self._left = True
            if first:
                in_thread(self._driver.cancel, self.raw, _CANCEL_AGAIN)
            self._driver.hang_up(self.raw)
        if transaction is not None and transaction.status is COMMITTING:
            raise over

    def own_savepoints(self) -> SavepointStack:
        """The savepoints on its connection. Under the lock, or before anything uses them."""
        if self.savepoints is None:
            made = self._savepoints_on(self.raw)
            if self.savepoints is None:  # else a finaliser in this thread was faster
                self.savepoints = made
        return self.savepoints

    def _savepoints_on(self, raw: Any) -> SavepointStack:
        return SavepointStack(partial(self.datasource.driver_adapter.execute, raw))

    def mark_unreusable(self) -> None:
        """Destroy the connection at `release`: a cancel is on its way, and may reach it late. No I/O."""
        self._unreusable = True

    def cancel(self) -> None:
        """Cancel what executes on it. From any thread; never raises; returns once nothing executes any more.

        A cancel that is there before its statement does nothing: so it is sent again. If the transaction rolls back,
        and two were of no effect, the connection is closed: the server may not answer at all.
        """
        self._driver.cancel(self.raw)
        again = False
        while not self.lock.acquire(timeout=_CANCEL_AGAIN):
            if self.ended:
                return
            transaction = self.owner()
            if again and transaction is not None and transaction.rollback_cause is not None:
                self._given_up = True
                self._driver.hang_up(self.raw)
            else:
                self._driver.cancel(self.raw)
            again = True
        self.lock.release()

    def release(self, status: Status, *, reusable: bool) -> None:
        """The transaction has ended with this status: give the connection back, or destroy it if not `reusable`.

        Nobody uses it any more: `settled_branch` has waited for the last use, and none begins behind it. It may be
        called again, also if an interrupt has come meanwhile, and gives the connection back once.
        """
        self._status = status
        self.ended = True
        try:
            pooled = self._held.pop()
        except IndexError:  # `open` releases it as well, if the transaction has ended meanwhile
            return
        except BaseException:  # an interrupt comes behind a call
            self._unreusable = True
            self._held.append(self.pooled)  # type: ignore[arg-type]
            raise
        try:
            pooled.completing_since = 0.0
            if self._left:
                Thread(target=self._discard_once_free, args=(pooled,), name="txpool-close", daemon=True).start()
                return
            if (self.cursors or self.overrides is not None) and not self._closed_under:
                with self.lock:
                    reusable = self._restore() and reusable
            # Only now: whoever marks it later finds that it has ended.
            # Behind an interrupt, what a statement that has begun has changed in the session is not noted.
            unreusable = self._unreusable or pooled.since
            is_open = self._driver.is_open(pooled.raw)
            if reusable and not unreusable and is_open:
                self.datasource.pool.give_back(pooled)
            elif pooled.uses == self._use and pooled.on_its_way:  # an interrupt came on its way back
                self.datasource.pool.abandon(pooled)
            elif pooled.uses == self._use and pooled.holder:  # else one came behind that
                self.datasource.pool.discard(pooled, lost=not is_open)
        except BaseException:  # the next call gives it back, if this one has not
            self._unreusable = True
            self._held.append(pooled)
            raise

    def _discard_once_free(self, pooled: Pooled[Any]) -> None:
        while not self.lock.acquire(timeout=_CANCEL_AGAIN):  # without a time it would end at the deadline
            pass
        try:
            if self._driver.is_open(pooled.raw):  # a file's: closed, it would go on as long as a cursor of it lives
                with suppress(Exception):
                    self._driver.reset(pooled.raw, _CANCEL_AGAIN)
            self.datasource.pool.discard(pooled)
        finally:
            self.lock.release()

    def release_left(self, *, dropped: bool = False) -> None:
        """Give the connection back if the transaction has ended, or was `dropped`, and an interrupt has kept it."""
        transaction = self.owner()
        if self.pooled is None:
            return
        if dropped or transaction is None:
            self.release(Status.ROLLED_BACK, reusable=False)
        elif transaction.status not in UNDER_WAY:
            transaction.release(self)

    @property
    def settled(self) -> bool:
        """Under the lock: whether the transaction's end has begun. Then no handle may use the connection any more."""
        transaction = self.owner()
        return self.ended or transaction is None or transaction.ended

    @property
    def how_it_ended(self) -> str:
        """The transaction's status once its end has begun, for messages."""
        if self.ended:
            return self._status.value
        transaction = self.owner()
        return "dropped without its end" if transaction is None else transaction.status.value

    def _restore(self) -> bool:
        """Close what is open on the connection, and restore what was overridden; whether that succeeded."""
        try:
            close_open(self.cursors)
            if self.overrides is not None:
                self.overrides.restore()
        except Exception as error:
            logger.info("%s: a connection could not be restored: %s", self.datasource.name, described(error))
            return False
        return True

    @property
    def pool_state(self) -> object:
        """The physical connection's: None if this is a forked child, and it is the parent's."""
        return None if self.pooled is None else self.pooled.pool_state

    # -- for its handles ----------------------------------------------------------------------------------------

    def require_here(self, ambient: Enlists | None) -> None:
        """Raise if this thread, in which `ambient` is another transaction or None, may not use it."""
        if self.pool_state is None:
            raise of_parent_process(self.datasource.name, self.gtrid)
        if ambient is not None:
            raise of_another_transaction(self.datasource.name, self.gtrid, ambient.gtrid)
        if get_ident() == self._thread:
            raise not_ambient_here(self.datasource.name, self.gtrid)

    def require_in_task(self, ambient: Enlists | None) -> None:
        """Raise if this task is no part of its transaction, which is active: a task's context tells, and no thread."""
        transaction = self.owner()
        if transaction is None or transaction is ambient or transaction.ended or self.ended:
            return
        if ambient is not None:
            raise of_another_transaction(self.datasource.name, self.gtrid, ambient.gtrid)
        raise not_ambient_here(self.datasource.name, self.gtrid)


def fixed_modes(characteristics: Characteristics) -> frozenset[str]:
    """The attributes, by the names that drivers have for them, that a transaction's own characteristics determine."""
    isolation = () if characteristics.isolation is None else ("isolation_level",)
    return frozenset(isolation if characteristics.read_only is None else (*isolation, "read_only"))
