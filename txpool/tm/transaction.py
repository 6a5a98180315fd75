"""One global transaction: its status, the datasources enlisted in it, its callbacks, and how it ends.

A `Transaction` collects what takes part; its `Coordinator` commits or rolls back. The thread or task that began it ends
it. Other threads may work in it meanwhile, and are serialised on each connection.
"""

from __future__ import annotations

import logging
import os
import threading
from _thread import LockType
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import Token
from math import inf
from typing import TYPE_CHECKING, Any

from txpool.characteristics import UNSPECIFIED
from txpool.errors import ProgrammingError, TransactionRolledBack, TransactionTimeout, described
from txpool.locks import RLock
from txpool.log.base import DecisionLog
from txpool.metrics import instruments
from txpool.resources.base import LAST, MARKED, PREPARED, Branch, Participant
from txpool.resources.deadlines import NO_DEADLINES, Deadlines
from txpool.tm import dropped, own, statistics
from txpool.tm.ambient import left_behind
from txpool.tm.commit.annotations import checked_note, decision_annotations
from txpool.tm.commit.coordinator import Coordinator
from txpool.tm.commit.one_phase import commit_alone
from txpool.tm.commit.phase import PREPARE
from txpool.tm.commit.request import COMMITTED, IN_DOUBT, CommitRequest, Outcome, Result
from txpool.tm.enlistment_rules import require_adoptable, require_atomic, require_begins_as, require_same
from txpool.tm.outcome import no_more_work, raise_outcome, rolled_back
from txpool.tm.status import ACTIVE, COMMITTING, MARKED_ROLLBACK, OPEN, STATUS_OF, UNDER_WAY, Status
from txpool.tm.synchronizations import Synchronizations, call_logging_errors
from txpool.xid import Xid, make_xid

if TYPE_CHECKING:
    from txpool.datasource import DataSource
    from txpool.dbapi.enlistment import Enlistment
    from txpool.resources.resource import Resource
    from txpool.tm.extent import Extent
    from txpool.tracing import Trace

logger = logging.getLogger("txpool")


class Transaction:
    """A global transaction. Its attributes may be read from any thread; the thread or task that began it ends it."""

    abandoned = False  #: Nobody may work in it any more, since its block or its last reference is gone: it rolls back.
    rolling_back: LockType | None = None  #: Held until a thread has rolled it back, which was abandoned.
    token: Token[Transaction | None] | None = None  #: By which its block has made it ambient.
    suspended: Transaction | None = None  #: The one that its block has suspended.
    timeout: float = inf  #: In seconds; `inf` where it has none.
    _cancels: tuple[Callable[[], object], ...] = ()

    def __init__(
        self,
        gtrid: str,
        log: DecisionLog | None,
        resolve_later: Callable[[Transaction, Coordinator], object],
        deadlines: Deadlines = NO_DEADLINES,
    ) -> None:
        self.gtrid = gtrid  #: Its name, with which the names of its branches begin.
        self.origin: dropped.Origin | None = None  #: Where it was begun.
        self.block: object = None  #: A reference to the block that will end it, until that has been left.
        self.extent: Extent | None = None  #: Where that block is.
        self.unanswered: Sequence[str] = ()  #: Once it has ended: the datasources that recovery will finish.
        #: A `with transaction()` block, a decorated function or a Spark task will end it.
        self.scoped = False
        #: Its spans, where it is traced.
        self.trace: Trace | None = None
        #: How its branches begin, over what their datasources have.
        self.characteristics = UNSPECIFIED
        #: The name that its sessions have on the server meanwhile; empty where they keep their own.
        self.label = ""
        #: What other modules keep for as long as the transaction lives, by keys of their own.
        self.values: dict[Any, Any] = {}
        #: Until when it waits for its databases.
        self.deadlines = deadlines
        self._log = log
        self._resolve_later = resolve_later
        self._pid = os.getpid()
        # Reentrant, since a finaliser may run anywhere, and that of a handle may mark the transaction rollback-only.
        self._lock = RLock()
        self._enlisted: dict[str, Enlistment] = {}
        self._adopted: list[Branch] = []
        self._unprepared = False  #: Something may take part that does not prepare.
        self._late_branches = False
        self._deferring = 0  #: How many threads are in `defer_commit`.
        self._rollback_cause: BaseException | None = None
        #: The decision is being made: a rollback cause that comes now changes nothing.
        self._deciding = False
        self._note = ""
        self._synchronizations: Synchronizations | None = None
        self.status = ACTIVE  #: How far it is: a `Status`.
        statistics.begun()

    def __del__(self) -> None:
        try:
            left = self.status in OPEN
        except AttributeError:  # an interrupt came before it was made
            return
        if left:
            dropped.roll_back_abandoned(self)
        elif self._enlisted:  # an interrupt has kept its connections from being given back
            dropped.parts.pop(id(self), None)
            for enlistment in self._enlisted.values():
                enlistment.release_left(dropped=True)

    def __repr__(self) -> str:
        enlisted = f": {', '.join(self._enlisted)}" if self._enlisted else ""
        return f"<Transaction {self.gtrid} {self.status.value}{enlisted}>"

    @property
    def active(self) -> bool:
        """True while work may be done in it."""
        return self.status is Status.ACTIVE

    @property
    def ended(self) -> bool:
        """True once commit, rollback or a subordinate's prepare has begun: no work can be done in it any more."""
        return self.status not in OPEN

    @property
    def rollback_cause(self) -> BaseException | None:
        """Why it can only roll back; None while it may commit."""
        return self._rollback_cause

    @property
    def log(self) -> DecisionLog | None:
        """The decision log that it began with; None where none is configured."""
        return self._log

    @property
    def note(self) -> str:
        """A line of text for people, kept with its decision. Setting anything else is a ProgrammingError."""
        return self._note

    @note.setter
    def note(self, note: str) -> None:
        self._note = checked_note(note)

    def left_behind(self, _: object = None) -> None:
        """The last reference to its block is gone, and nobody has left that. May be called in a finaliser."""
        left_behind(self)

    # -- while it is active -------------------------------------------------------------------------------------

    def enlist(self, resource: Resource) -> Any:
        """Let a resource of your own take part; returns its work here, what `Resource.begin` has returned.

        It is the same each time. Databases need no such call: their connections join by themselves. Errors: as
        `require_active`, the resource's own, and ProgrammingError where the transaction would not stay atomic with it.
        """
        return own.enlist(self, resource)

    def enlist_datasource(self, datasource: DataSource, timeout: float | None = None) -> Enlistment:
        """The datasource's enlistment in this transaction, which has one for each datasource.

        `timeout` is how many seconds to wait for a connection. Errors: as `require_active`, and ProgrammingError where
        the transaction would not stay atomic with this datasource.
        """
        enlistment = self._enlisted.get(datasource.name)
        if enlistment is None:
            with self._lock:
                if self.status is not ACTIVE:
                    self.require_active()
                enlistment = self._enlisted.get(datasource.name)
                if enlistment is None:
                    # Datasources that prepare, and a log: these can always join.
                    if datasource.role is not PREPARED or self._log is None or self._unprepared:
                        self._require_atomic(datasource)
                        self._unprepared = True
                    if self.characteristics is not UNSPECIFIED:
                        require_begins_as(self.gtrid, datasource, self.characteristics)
                    if not self._enlisted:
                        dropped.parts[id(self)] = self._enlisted, self._adopted
                    enlistment = self._enlisted[datasource.name] = datasource.enlistment_class(datasource, self)
        elif self.status is not ACTIVE:
            self.require_active()
        if enlistment.datasource is not datasource:
            require_same(self.gtrid, enlistment.datasource, datasource)
        if enlistment.pooled is None:
            if self.trace is not None:
                self.trace.enlisting(datasource)
            enlistment.open(self, timeout)
        return enlistment

    def enlistment_in(self, datasource: str) -> Enlistment | None:
        """The enlistment of the datasource of that name; None where that takes no part, or is not opened yet."""
        enlistment = self._enlisted.get(datasource)
        return None if enlistment is None or enlistment.pooled is None else enlistment

    def _require_atomic(self, datasource: DataSource) -> None:
        """Raise where the transaction would not stay atomic with this datasource; nothing has changed then."""
        if self._enlisted or self._adopted:
            require_atomic(
                self.gtrid, self.datasources, datasource, adopted=bool(self._adopted), logged=self._log is not None
            )

    def early_name(self, datasource: str) -> Xid:
        """The name of a branch that must have one before its first statement.

        Its number is its place of enlistment. Who will decide is not known yet: the name says the log.
        """
        return make_xid(self.gtrid, list(self._enlisted).index(datasource), datasource)

    @property
    def datasources(self) -> list[DataSource]:
        """The datasources that take part in it."""
        return [enlistment.datasource for enlistment in self._enlisted.values()]

    @property
    def holds(self) -> str:
        """The connections and prepared branches that it holds, for people; empty where it holds none."""
        return dropped.describe_parts(list(self._enlisted), len(self._adopted))

    def works_in(self, name: str) -> bool:
        """Whether the datasource of that name takes part in it."""
        return name in self._enlisted

    def require_active(self) -> None:
        """Return where work may be done in it. Errors: TransactionTimeout, or ProgrammingError with the reason."""
        if self.status is ACTIVE:
            return
        dropped.require_not_abandoned(self)
        if self.status is not Status.MARKED_ROLLBACK:
            raise no_more_work(self.gtrid, self.status, None)
        if isinstance(self._rollback_cause, TransactionTimeout):
            raise self._rollback_cause
        raise no_more_work(self.gtrid, self.status, self._rollback_cause) from self._rollback_cause

    def adopt(self, branches: Sequence[Branch], *, late_branches: bool) -> None:
        """Take over branches that subordinates have prepared: they commit or roll back with this transaction.

        It takes them also where it is marked rollback-only, and rolls them back then. `late_branches` says that others
        of this gtrid may still appear prepared.
        """
        with self._lock:
            if self.ended:
                self.require_active()
            require_adoptable(self.gtrid, self.datasources, logged=self._log is not None)
            self._adopted.extend(branches)
            dropped.parts[id(self)] = self._enlisted, self._adopted
            self._late_branches = self._late_branches or late_branches

    @contextmanager
    def defer_commit(self) -> Iterator[None]:
        """For another thread than the one that ends it: a commit that begins within the block rolls back.

        So what the thread does in several steps is never committed by half.
        """
        with self._lock:
            self.require_active()
            self._deferring += 1
        try:
            yield
        finally:
            with self._lock:
                self._deferring -= 1

    def set_rollback_only(self, reason: BaseException | None = None) -> None:
        """From now on it can only roll back. After the decision this changes nothing. From any thread."""
        with self._lock:
            # While it is committing, the coordinator asks for the rollback cause once more just before the decision.
            if (
                self.status in (Status.ACTIVE, Status.COMMITTING)
                and self._rollback_cause is None
                and not self._deciding
            ):
                self._rollback_cause = reason or rolled_back(self.gtrid, "it was marked rollback-only")
            if self.status is Status.ACTIVE:
                self.status = Status.MARKED_ROLLBACK

    def _begin_decision(self) -> BaseException | None:
        """The rollback cause; where there is none, no later one counts.

        It needs no lock: this sets `_deciding` before it looks for a cause, and `expire` sets the cause before it looks
        at `_deciding`. So a timeout is heard here, or cancels nothing.
        """
        self._deciding = True
        if self._deferring and self._rollback_cause is None:
            self._rollback_cause = rolled_back(self.gtrid, "another thread was still adding work to it")
        cause = self._rollback_cause
        if cause is not None:
            self._deciding = False
        return cause

    def expire(self, seconds: float) -> None:
        """Its timeout of so many seconds has passed: mark it rollback-only, and cancel what executes, a PREPARE too.

        Never acts after the decision.
        """
        error = TransactionTimeout(
            f"{self.gtrid} took longer than its timeout of {seconds:g} s; what was done within it rolls back",
            gtrid=self.gtrid,
        )
        self.set_rollback_only(error)
        # `_release` takes this lock, too, where nothing was decided: so each enlistment is marked unreusable before its
        # release, or not cancelled.
        with self._lock:
            if self._deciding or self.status not in (Status.MARKED_ROLLBACK, Status.COMMITTING):
                return
            enlistments = self._enlistments()
            for enlistment in enlistments:
                enlistment.mark_unreusable()
        # From here on it can only roll back: a cancel that arrives late cannot cancel the decision or phase two.
        for enlistment in enlistments:
            threading.Thread(target=enlistment.cancel, name="txpool-cancel", daemon=True).start()
        for cancel in self._cancels:
            call_logging_errors(cancel)

    def before_completion(self, callback: Callable[[], object], *, interposed: bool = False) -> None:
        """Call before commit (not before rollback); interposed ones come last. An exception forces rollback."""
        self._own_synchronizations().add_before(callback, interposed=interposed)

    def after_completion(self, callback: Callable[[Status], object]) -> None:
        """Call with the final status, the last registered first; its errors are logged."""
        self._own_synchronizations().add_after(callback)

    def _own_synchronizations(self) -> Synchronizations:
        if self._synchronizations is None:
            self._synchronizations = Synchronizations()
        return self._synchronizations

    def on_cancel(self, callback: Callable[[], object]) -> None:
        """Call, from another thread, when the timeout expires (a Spark job group is cancelled so)."""
        self._cancels += (callback,)

    # -- its end ------------------------------------------------------------------------------------------------

    def commit(self) -> None:
        """Commit everywhere. Errors: TransactionRolledBack, TransactionTimeout, TransactionInDoubt, HeuristicError.

        ProgrammingError where a block, or a decorated function, will end it.
        """
        self._require_open()
        self.require_unscoped()
        self.end_commit()

    def rollback(self) -> None:
        """Roll back everywhere. Errors: HeuristicError where a branch had committed by itself.

        ProgrammingError where a block, or a decorated function, will end it.
        """
        self._require_open()
        self.require_unscoped()
        self.end_rollback()

    def end_commit(self) -> None:
        """commit(), for the block that owns this transaction."""
        if self._synchronizations is not None:
            self._require_open()
            try:
                self._call_before_completion()
            except BaseException as error:
                self._end(committing=False)
                if not isinstance(error, Exception):
                    raise
                raise rolled_back(self.gtrid, f"a before_completion callback failed: {described(error)}") from error
        if self._rollback_cause is not None:
            self.end_rollback()
            if isinstance(self._rollback_cause, TransactionRolledBack):
                raise self._rollback_cause
            cause = described(self._rollback_cause)
            raise rolled_back(self.gtrid, f"an inner block failed: {cause}") from self._rollback_cause
        result = self._end(committing=True)
        if result.outcome is COMMITTED and result.interrupt is None:
            return
        if (
            self._rollback_cause is not None
            and result.outcome is Outcome.ROLLED_BACK
            and result.cause is not self._rollback_cause
        ):
            # The rollback cause tells more than the error of a statement or PREPARE that was cancelled for it.
            self._rollback_cause.__cause__, result.cause = result.cause, self._rollback_cause
        raise_outcome(result, wanted=COMMITTED)

    def end_rollback(self) -> None:
        """rollback(), for the block that owns this transaction, and for transactions that were dropped."""
        result = self._end(committing=False)
        if result.cause is None:
            result.cause = self._rollback_cause
        raise_outcome(result, wanted=Outcome.ROLLED_BACK)

    def require_unscoped(self) -> None:
        """ProgrammingError where a block or decorated function will end it."""
        if self.scoped:
            raise ProgrammingError(
                f"{self.gtrid} ends with its `with transaction()` block or decorated function: leave the block to "
                "commit, raise or call set_rollback_only() to roll back"
            )

    def resolved(self, result: Result) -> None:
        """Take the outcome that was found after it had been in doubt."""
        statistics.resolved(result.outcome, self.trace)
        self.status = STATUS_OF[result.outcome]

    @property
    def of_parent_process(self) -> bool:
        """Whether this is a forked child, and the parent process began it."""
        return os.getpid() != self._pid

    def _require_open(self) -> None:
        if self.of_parent_process:
            raise ProgrammingError(f"{self.gtrid} is the parent process's: only that can end it. Nothing was done")
        if self.ended:
            self.require_active()

    def _call_before_completion(self) -> None:
        if self._synchronizations is not None:
            self._synchronizations.call_before(lambda: self._rollback_cause is not None)

    def _end(self, *, committing: bool) -> Result:  # noqa: PLR0912, PLR0915 - each call costs every commit
        if os.getpid() != self._pid:
            self._require_open()
        trace, alone, coordinator, begun = self.trace, None, None, False
        try:
            with self._lock:
                if self.status not in OPEN:
                    self.require_active()
                self.status, begun = COMMITTING if committing else Status.ROLLING_BACK, True
            listener = None if trace is None and not instruments.armed else statistics.phase_listener(trace)
            if committing and listener is None and len(self._enlisted) == 1:
                result = Result(COMMITTED, self.gtrid)
                alone = self._only_participant()
            if alone is None:
                coordinator = Coordinator(self._commit_request(), self._log, listener)
                result = coordinator.commit() if committing else coordinator.rollback()
            else:
                commit_alone(alone, result, self._begin_decision)
        except BaseException as error:
            if not begun:
                raise
            if coordinator is not None and coordinator.phase is not PREPARE:
                result = coordinator.go_on(error)
            elif alone is None or (result.resolvable and not result.branch_outcomes):  # nothing was decided
                if not committing:
                    self._reopen()
                    raise
                cause = error
                try:
                    self.status = MARKED_ROLLBACK  # at once: an interrupt would leave it as it is
                    result = self._end(committing=False)
                except BaseException as interrupt:
                    if self.status not in UNDER_WAY:
                        raise
                    cause = interrupt
                    self.status = MARKED_ROLLBACK
                    result = self._end(committing=False)
                result.cause = cause
                if not isinstance(cause, Exception):
                    result.interrupt = cause
                return result
            result.interrupt = error  # it came behind the COMMIT, whose answer stays
        try:
            statistics.ended[result.outcome]()
            if coordinator is not None or result.outcome is IN_DOUBT:
                self.unanswered = result.pending
            self.status = STATUS_OF[result.outcome]
            if trace is not None:
                trace.ended(result, self._note, committing=committing, rollback_cause=self._rollback_cause)
            if coordinator is not None and not result.complete and result.resolvable:
                self._resolve_later(self, coordinator)
            self._release(result)
            if self._synchronizations is not None:
                in_callbacks = self._synchronizations.call_after(self.status)
                result.interrupt = result.interrupt or in_callbacks
        except BaseException as interrupt:  # the outcome stands
            result.interrupt = result.interrupt or interrupt
            self._settle(result, coordinator)
        return result

    def _settle(self, result: Result, coordinator: Coordinator | None) -> None:
        """Do what an interrupt behind the outcome has left undone; what was done before changes nothing."""
        self.unanswered = result.pending
        self.status = STATUS_OF[result.outcome]
        if coordinator is not None and not result.complete and result.resolvable:
            self._resolve_later(self, coordinator)
        self._release(result)
        if self._synchronizations is not None:
            self._synchronizations.call_after(self.status)

    def _reopen(self) -> None:
        """Take back that its end has begun, before anything was sent: it can still be rolled back."""
        with self._lock:
            self.status = Status.ACTIVE if self._rollback_cause is None else Status.MARKED_ROLLBACK

    def _enlistments(self) -> list[Enlistment]:
        """Those that are opened: a copy, since other threads may enlist datasources, and end it, meanwhile."""
        return [each for each in list(self._enlisted.values()) if each.pooled is not None]

    def _only_participant(self) -> Participant | None:
        """The branch that is all of the transaction; None where there may be others."""
        (enlistment,) = self._enlisted.values()
        if self._adopted or self._late_branches or enlistment.pooled is None or enlistment.needs_decision:
            return None
        return enlistment.settled_branch()

    def _commit_request(self) -> CommitRequest:
        branches, marked, last = [], None, None
        for enlistment in [*self._enlisted.values()]:
            branch: Any = None
            if enlistment.pooled is not None:
                branch = enlistment.settled_branch()
                role = branch.role
                if role is MARKED:
                    marked, branch = branch, None
                elif role is LAST:
                    last, branch = branch, None
            branches.append(branch)
        annotations = None
        if self._note or self.trace is not None:
            annotations = decision_annotations(self._note, "" if self.trace is None else self.trace.traceparent)
        return CommitRequest(
            self.gtrid,
            branches,
            self._adopted,
            marked,
            last,
            self._late_branches,
            self._begin_decision,
            annotations,
            self.timeout,
        )

    def _release(self, result: Result) -> None:
        """Give the connections back. What an interrupt keeps back, `Enlistment.release_left` finds."""
        if not self._deciding:
            with self._lock:  # `expire` may still mark the enlistments
                pass
        enlisted, in_doubt = self._enlisted, result.outcome is IN_DOUBT
        for name, enlistment in enlisted.items():
            if enlistment.pooled is not None:
                try:
                    unknown = in_doubt or name in self.unanswered
                    enlistment.release(self.status, reusable=not unknown)
                except BaseException as error:
                    if isinstance(error, Exception):
                        logger.warning("%s: giving back a connection of %s failed", self.gtrid, name, exc_info=True)
                    else:  # raised once the others are given back
                        result.interrupt = result.interrupt or error
                    enlistment.release(self.status, reusable=False)
        self._enlisted = {}
        if enlisted or self._adopted:
            dropped.parts.pop(id(self), None)

    def release(self, enlistment: Enlistment) -> None:
        """It has ended: give this connection back. Where its branch's outcome is unknown, it is not reused."""
        unknown = self.status is Status.IN_DOUBT or enlistment.datasource.name in self.unanswered
        enlistment.release(self.status, reusable=not unknown)
