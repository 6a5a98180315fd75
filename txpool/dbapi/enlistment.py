"""One datasource's part in one transaction: the physical connection that all its handles share until the end."""

from __future__ import annotations

import logging
from _thread import get_ident
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from time import monotonic
from typing import TYPE_CHECKING, Any, cast
from weakref import ref

from txpool.characteristics import UNSPECIFIED
from txpool.dbapi.open_results import OpenResults, close_open
from txpool.dbapi.overrides import NO_ATTRIBUTES, SessionOverrides
from txpool.dbapi.refusals import (
    ended_by_sql,
    fixed_by_transaction,
    not_ambient_here,
    of_another_transaction,
    of_dropped_transaction,
    of_parent_process,
    would_end,
)
from txpool.dbapi.savepoints import Savepoints
from txpool.errors import Error, described, translate, translated
from txpool.locks import RLock
from txpool.pool import Pooled
from txpool.tm.status import ACTIVE, UNDER_WAY, Status

if TYPE_CHECKING:
    from txpool.characteristics import Characteristics
    from txpool.datasource import DataSource
    from txpool.dbapi.handle import Handle
    from txpool.resources.base import MarkedBranch, OpenBranch
    from txpool.tm.transaction import Transaction

logger = logging.getLogger("txpool")

NO_MODES: frozenset[str] = frozenset()
_CANCEL_AGAIN = 1.0


class Enlistment:
    """One datasource's part in one transaction. Thread-safe: every use of the physical connection holds `lock`.

    The lock is taken by `with`, and not by acquire(): an interrupt that comes behind that would leave it held.

    A thread may use it where its transaction is ambient, and a thread other than the one that opened it also where no
    transaction is ambient. So a thread where another transaction is ambient is refused, and the one that opened it
    once it has suspended the transaction.
    """

    #: It is used once; a physical connection of the pool again and again.
    uses = 1
    #: It may commit in one phase where it is alone.
    needs_decision = False

    __slots__ = (
        "_driver",
        "_ending",
        "_fresh",
        "_held",
        "_status",
        "_thread",
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
        "overrides",
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

    def __init__(self, datasource: DataSource, transaction: Transaction) -> None:
        self.datasource = datasource
        #: A weak reference to its transaction, which refers to it: returns None once that was dropped.
        self.owner = ref(transaction)
        self.gtrid = transaction.gtrid
        self.lock = RLock()
        #: The physical connection; None until `open` has taken it. It stays after the end.
        self.pooled: Pooled[Any] | None = None
        self.raw: Any = None
        #: With managed.commit = join.
        self.savepoints: Savepoints | None = None
        #: The attributes that handles have overridden; None where none has.
        self.overrides: SessionOverrides | None = None
        #: The attributes of its connection that the transaction has set, and that no handle may change.
        self.fixed_modes: frozenset[str] = NO_MODES
        #: In a pipeline, where the connection's state is not known before the pipeline's end.
        self.in_pipeline = False
        self.ended = False
        self._unreusable = False
        #: No local transaction was open before the statement that executes now, or comes next.
        self._fresh = True

    # -- for the transaction ------------------------------------------------------------------------------------

    def open(self, transaction: Transaction, timeout: float | None) -> None:
        """Take the physical connection, unless another thread has; wait `timeout` seconds for it."""
        datasource = self.datasource
        with self.lock:
            if self.pooled is not None:
                return
            pooled, branch = datasource.begin_branch(transaction, timeout)
            try:
                thread, modes, savepoints = get_ident(), NO_MODES, None
                results: OpenResults = set()
                held = [pooled]
                if transaction.characteristics is not UNSPECIFIED:
                    modes = fixed_modes(transaction.characteristics)
                if datasource.joins_commits:
                    savepoints = Savepoints(partial(datasource.driver_adapter.execute, pooled.raw))
                if datasource.names_early:
                    cast("OpenBranch", branch).name(transaction.early_name(datasource.name))
                ending = datasource.ending
                if ending is None and (sql := datasource.resource_manager.sql_of(pooled.raw)) is not None:
                    ending = sql.ending
            except BaseException:
                datasource.pool.discard(pooled)
                raise
            if self.pooled is not None:  # a finaliser in this thread was faster
                datasource.pool.give_back(pooled)
                return
            # No function is called up to the last line: a finaliser in it might open this, too.
            self._driver, self._thread, self._ending = datasource.driver_adapter, thread, ending
            self.branch, self.raw, self.fixed_modes, self.savepoints = branch, pooled.raw, modes, savepoints
            self.cursors = pooled.results = results
            self._held, self._use = held, pooled.uses
            pooled.gtrid, pooled.since = self.gtrid, 0.0
            self.pooled = pooled
            if transaction.status is not ACTIVE and transaction.status not in UNDER_WAY:
                # It has ended since this began, and may have taken this for one that is not opened.
                self.release(transaction.status, reusable=False)
                transaction.require_active()

    def settled_branch(self) -> OpenBranch | MarkedBranch:
        """Its branch, once what another thread does on the connection has ended; nothing new can begin there."""
        with self.lock:
            return self.branch

    def mark_unreusable(self) -> None:
        """Destroy the connection at `release`: a cancel is on its way, and may reach it late. No I/O."""
        self._unreusable = True

    def cancel(self) -> None:
        """Cancel what executes on it. From any thread; never raises; returns once nothing executes any more.

        A cancel that is there before its statement does nothing: so it is sent until the statement has ended.
        """
        self._driver.cancel(self.raw)
        while not self.lock.acquire(timeout=_CANCEL_AGAIN):
            if self.ended:
                return
            self._driver.cancel(self.raw)
        self.lock.release()

    def release(self, status: Status, *, reusable: bool) -> None:
        """The transaction has ended with this status: give the connection back, or destroy it if not `reusable`.

        Nobody uses it any more: `settled_branch` has waited for the last use, and none begins behind it. It may be
        called again, also where an interrupt has come meanwhile, and gives the connection back once.
        """
        self._status = status
        self.ended = True
        try:
            pooled = self._held.pop()
        except IndexError:  # `open` releases it as well, where the transaction has ended meanwhile
            return
        except BaseException:  # an interrupt comes behind a call
            self._unreusable = True
            self._held.append(self.pooled)  # type: ignore[arg-type]
            raise
        try:
            if self.cursors or self.overrides is not None:
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

    def release_left(self, *, dropped: bool = False) -> None:
        """Give the connection back where the transaction has ended, or was `dropped`, and an interrupt has kept it."""
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
        """The physical connection's: None where this is a forked child, and it is the parent's."""
        return None if self.pooled is None else self.pooled.pool_state

    # -- for its handles ----------------------------------------------------------------------------------------

    def require_here(self, ambient: Transaction | None) -> None:
        """Raise where this thread, in which `ambient` is another transaction or None, may not use it."""
        if self.pool_state is None:
            raise of_parent_process(self.datasource.name, self.gtrid)
        if ambient is not None:
            raise of_another_transaction(self.datasource.name, self.gtrid, ambient.gtrid)
        if get_ident() == self._thread:
            raise not_ambient_here(self.datasource.name, self.gtrid)

    def begin_use(self, handle: Handle) -> Transaction:
        """Under the lock: raise where no work may be done, and set what this handle has overridden."""
        transaction = self.owner()
        if transaction is None:
            raise of_dropped_transaction(self.datasource.name, self.gtrid)
        if transaction.status is not ACTIVE:
            transaction.require_active()
        state = handle.handle_state
        if state is not None or self.overrides is not None:
            self._override(NO_ATTRIBUTES if state is None else state.attributes)
        return transaction

    def _override(self, attributes: Mapping[str, Any]) -> None:
        if self.overrides is not None or attributes is not NO_ATTRIBUTES:
            self.own_overrides().apply(attributes)

    def own_overrides(self) -> SessionOverrides:
        """What handles have overridden on its connection; restored at the transaction's end."""
        if self.overrides is None:
            self.overrides = SessionOverrides(self.raw)
        return self.overrides

    def without_fixed(self, modes: Mapping[str, Any]) -> Mapping[str, Any]:
        """A handle's own modes, without those that the transaction has set."""
        return {name: value for name, value in modes.items() if name not in self.fixed_modes}

    def require_not_fixed(self, name: str, value: object) -> None:
        """ProgrammingError where a handle would change what the transaction has set."""
        if name in self.fixed_modes and value != getattr(self.raw, name):
            raise fixed_by_transaction(name, value, self.gtrid)

    def start(self, handle: Handle, statement: Any = None, *, executes: bool = False) -> bool:
        """Before a statement, under the lock; the caller must `finish` or `failed` it, unless this raises.

        ProgrammingError if the statement, as the user gave it, would surely end the transaction: nothing was sent.
        Where it returns true, a statement that `executes` by the driver's execute() has to do so by `execute_first`.
        """
        first = False
        try:
            transaction = self.begin_use(handle)
            ending = self._ending
            if statement is not None and ending is not None:
                command = ending[statement if type(statement) is str else handle.text_of_statement(statement)]
                if command:
                    raise would_end(command, self.datasource.name, self.gtrid)
            if self._fresh:
                # A label and a savepoint come between BEGIN and the statement.
                apart = transaction.label or self.savepoints is not None
                first = executes and not apart and self.datasource.begins_with is not None
                self._fresh = first or not self._driver.begin(self.raw, transaction.label)
            elif self.in_pipeline:
                self._require_not_ended()
            if self.savepoints is not None:
                self.savepoints.open(handle)
            self.pooled.since = monotonic()  # type: ignore[union-attr]
        except BaseException as error:
            translate(error)
            raise
        return first

    def execute_first(self, raw_cursor: Any, statement: Any, args: tuple[Any, ...], options: dict[str, Any]) -> None:
        """Execute the statement that begins the transaction."""
        self._fresh = False  # behind an interrupt, too
        try:
            if self.datasource.begins_with.execute_first(self.raw, raw_cursor, statement, args, options):  # type: ignore[union-attr]
                return
            self._driver.begin(self.raw)
        except BaseException:
            self._fresh = not self._driver.dialect.in_transaction(self.raw)
            raise
        raw_cursor.execute(statement, *args, **options)  # if it has ended the transaction, that is not fresh again

    def _require_not_ended(self) -> None:
        """In a pipeline only the next statement sees that the user's own SQL has ended the transaction."""
        if self._driver.is_open(self.raw) and not self._driver.dialect.in_transaction(self.raw):
            raise self.ended_by_sql("commit")

    def finish(self, raw_cursor: Any) -> None:
        """After a statement: raise where it was the user's own COMMIT or ROLLBACK."""
        self._fresh = False
        command = None if self.in_pipeline else self._driver.ended_by(self.raw, raw_cursor)
        self.pooled.since = 0.0  # type: ignore[union-attr]
        if command is not None:
            raise self.ended_by_sql(command)

    def failed(self, raw_cursor: Any, error: BaseException) -> None:
        """After a statement that failed, and may have followed the user's own COMMIT in one message."""
        translate(error)
        self._driver.note_failure(self.raw, raw_cursor, error)
        if self._fresh and not self._driver.reached_server(error):
            self.pooled.since = 0.0  # type: ignore[union-attr]
        else:
            self.finish(raw_cursor)

    @contextmanager
    def entered(self, handle: Handle) -> Iterator[None]:
        """Lock around a block that executes no statement."""
        with self.lock:
            self.begin_use(handle)
            with translated():
                yield

    @contextmanager
    def started(self, handle: Handle, statement: Any = None, *, reads: bool = False) -> Iterator[None]:
        """Lock around a block that executes without a cursor of ours. ProgrammingError as `start`.

        Whether the user's own SQL has ended the transaction is seen by the connection's state before and after it. With
        `reads` true, the block executes nothing that writes.
        """
        with self.lock:
            self.start(handle, statement)
            if not reads:
                self._driver.dialect.note_write(self.raw)
            fresh = self._fresh
            try:
                with translated():
                    yield
            except Exception as error:
                self._driver.note_failure(self.raw, None, error)
                raise
            finally:
                over = not handle.has_work(self.raw) and self._driver.is_open(self.raw)
                fresh = fresh and self._fresh  # a statement in a pipeline has begun it, too
                self._fresh = fresh and over
                self.pooled.since = 0.0  # type: ignore[union-attr]
                if over and not fresh and not self.in_pipeline:
                    raise self.ended_by_sql("commit")

    def ended_by_sql(self, command: str) -> Error:
        """The user's own SQL has ended the local transaction: the error that says so."""
        error = ended_by_sql(command, self.datasource.name, self.gtrid)
        self.branch.ended_by_sql(command)
        transaction = self.owner()
        if transaction is not None:  # one that was dropped rolls back anyway
            transaction.set_rollback_only(error)
        return error


def fixed_modes(characteristics: Characteristics) -> frozenset[str]:
    """The attributes, by the names that drivers have for them, that a transaction's own characteristics determine."""
    isolation = () if characteristics.isolation is None else ("isolation_level",)
    return frozenset(isolation if characteristics.read_only is None else (*isolation, "read_only"))
