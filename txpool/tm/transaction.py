"""One global transaction: its status, the datasources enlisted in it, its callbacks, and how it ends.

A `Transaction` gathers; the `Coordinator` decides. The thread or task that began it ends it; threads that were handed
it may work in it meanwhile, and are serialised on each connection.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from enum import Enum
from typing import TYPE_CHECKING, Any, ParamSpec, cast

from txpool.errors import ProgrammingError, TransactionRolledBack, TransactionTimeout
from txpool.log.base import DecisionLog
from txpool.metrics import instruments
from txpool.resources.base import Branch, BranchOutcome, MarkedBranch, OpenBranch, Role
from txpool.resources.deadlines import NO_DEADLINES, Deadlines
from txpool.tm import dropped, statistics
from txpool.tm.annotations import checked_note, decision_annotations
from txpool.tm.commit_request import CommitRequest, Outcome, Result
from txpool.tm.coordinator import Coordinator
from txpool.tm.enlistment_rules import require_adoptable, require_atomic, require_same
from txpool.tm.outcome import raise_outcome, rolled_back
from txpool.tm.participants import Enlistable, Enlistment, Slot

if TYPE_CHECKING:
    from txpool.tracing import Trace

logger = logging.getLogger("txpool")

P = ParamSpec("P")


class Status(Enum):
    """JTA's statuses of a transaction."""

    ACTIVE = "active"
    MARKED_ROLLBACK = "marked rollback-only"
    COMMITTING = "committing"  #: from the call of commit() on: preparing, deciding, committing
    COMMITTED = "committed"
    ROLLING_BACK = "rolling back"
    ROLLED_BACK = "rolled back"
    PREPARED = "prepared"  #: a subordinate's end: somebody else decides
    IN_DOUBT = "in doubt"
    HEURISTIC = "heuristic"  #: some of it committed and some not, or nobody can say


_OPEN = (Status.ACTIVE, Status.MARKED_ROLLBACK)


class Transaction:
    """A global transaction. Attributes may be read from any thread; ended by the one who began it."""

    label = ""  #: What its sessions are called while they work in it; empty for names of their own.
    origin: dropped.Origin | None = None  #: Where it was begun.
    abandoned = False  #: Nobody can end it any more.
    trace: Trace | None = None  #: Its spans, where it is traced.
    _note = ""

    def __init__(
        self,
        gtrid: str,
        log: DecisionLog | None,
        resolve_later: Callable[[Transaction, Coordinator], object],
        deadlines: Deadlines = NO_DEADLINES,
    ) -> None:
        self.gtrid = gtrid
        self.status = Status.ACTIVE
        #: Values and notes of other rooms that live as long as the transaction, by their own key.
        self.values: dict[Any, Any] = {}
        #: True while a `with transaction()` block, or a decorator, will end it.
        self.scoped = False
        self._log = log
        self._resolve_later = resolve_later
        self._pid = os.getpid()
        # Reentrant: a finaliser that ends a handle may doom it, wherever it strikes.
        self._lock = threading.RLock()
        self._slots: dict[str, Slot] = {}
        self._adopted: list[Branch] = []
        #: How long it waits for its databases.
        self.deadlines = deadlines
        self._late_branches = False
        self._deferring = 0
        self._rollback_cause: BaseException | None = None
        #: Nothing can doom it any more: it is being decided.
        self._deciding = False
        #: Once it has ended: the datasources that have not answered, which recovery will finish.
        self.unanswered: list[str] = []
        self._before: list[Callable[[], object]] = []
        self._interposed: list[Callable[[], object]] = []
        self._after: list[Callable[[Status], object]] = []
        self._cancels: list[Callable[[], object]] = []
        statistics.begun()

    def __del__(self) -> None:
        if self.status in _OPEN:
            dropped.roll_back_abandoned(self)

    def __repr__(self) -> str:
        enlisted = f": {', '.join(self._slots)}" if self._slots else ""
        return f"<Transaction {self.gtrid} {self.status.value}{enlisted}>"

    @property
    def active(self) -> bool:
        """True while work may be done in it."""
        return self.status is Status.ACTIVE

    @property
    def ended(self) -> bool:
        """True once commit, rollback or (a subordinate's) prepare has begun: no work can be done in it any more."""
        return self.status not in _OPEN

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
        """What people know it by; kept with its decision. ProgrammingError where what is set is no line of text."""
        return self._note

    @note.setter
    def note(self, note: str) -> None:
        self._note = checked_note(note)

    # -- while it is active -------------------------------------------------------------------------------------

    def enlist(self, datasource: Enlistable, timeout: float | None = None) -> Any:
        """The datasource's one enlistment in this transaction. Errors: as `require_active`, and a refused part."""
        slot = self._slots.get(datasource.name)
        if slot is None:
            with self._lock:
                self.require_active()
                slot = self._slots.get(datasource.name)
                if slot is None:
                    self._require_atomic(datasource)
                    dropped.hold(self, self._slots, self._adopted)
                    slot = self._slots[datasource.name] = Slot(datasource)
        elif self.status is not Status.ACTIVE:
            self.require_active()
        elif slot.datasource is not datasource:
            require_same(self.gtrid, slot.datasource, datasource)
        return slot.enlistment or slot.open(self, timeout)

    def _require_atomic(self, datasource: Enlistable) -> None:
        """Refuse a part that could not be kept atomic; the transaction is as it was then."""
        if self._slots or self._adopted:
            require_atomic(
                self.gtrid, self.datasources, datasource, adopted=bool(self._adopted), logged=self._log is not None
            )

    @property
    def datasources(self) -> list[Enlistable]:
        """Those that take part in it."""
        return [slot.datasource for slot in self._slots.values()]

    @property
    def holds(self) -> str:
        """What it holds, for people; empty where that is nothing."""
        return dropped.holding(list(self._slots), len(self._adopted))

    def works_in(self, name: str) -> bool:
        """Whether the datasource of that name takes part in it."""
        return name in self._slots

    def enlistment(self, name: str) -> Enlistment | None:
        """The enlistment of the datasource of that name; None where it has none, or has not opened it yet."""
        slot = self._slots.get(name)
        return None if slot is None else slot.enlistment

    def require_active(self) -> None:
        """Raise what somebody who wants to work in this transaction must hear."""
        if self.status is Status.ACTIVE:
            return
        if self.status is Status.MARKED_ROLLBACK:
            if isinstance(self._rollback_cause, TransactionTimeout):
                raise self._rollback_cause
            raise ProgrammingError(
                f"{self.gtrid} is marked rollback-only: it can do nothing but roll back"
            ) from self._rollback_cause
        raise ProgrammingError(f"{self.gtrid} has ended ({self.status.value}): it can take no more work")

    def adopt(self, branches: Sequence[Branch], *, late_branches: bool) -> None:
        """Take over branches that subordinates have prepared: from now on this transaction decides them.

        One that is marked rollback-only takes them, too, and rolls them back.
        """
        with self._lock:
            if self.ended:
                self.require_active()
            require_adoptable(self.gtrid, self.datasources, logged=self._log is not None)
            self._adopted.extend(branches)
            dropped.hold(self, self._slots, self._adopted)
            self._late_branches = self._late_branches or late_branches

    @contextmanager
    def defer_commit(self) -> Iterator[None]:
        """While another thread makes something of several steps a part of it: it does not commit a half of that."""
        with self._lock:
            self.require_active()
            self._deferring += 1
        try:
            yield
        finally:
            with self._lock:
                self._deferring -= 1

    def set_rollback_only(self, reason: BaseException | None = None) -> None:
        """From now on it can only roll back. After the decision this changes nothing."""
        with self._lock:
            # While it is committing, the coordinator asks once more just before the decision.
            if (
                self.status in (Status.ACTIVE, Status.COMMITTING)
                and self._rollback_cause is None
                and not self._deciding
            ):
                self._rollback_cause = reason or rolled_back(self.gtrid, "it was marked rollback-only")
            if self.status is Status.ACTIVE:
                self.status = Status.MARKED_ROLLBACK

    def _begin_decision(self) -> BaseException | None:
        """Why it can only roll back; where there is nothing, it is too late for that from now on."""
        with self._lock:
            if self._deferring and self._rollback_cause is None:
                self._rollback_cause = rolled_back(self.gtrid, "another thread was making something a part of it")
            self._deciding = self._rollback_cause is None
            return self._rollback_cause

    def expire(self, seconds: float) -> None:
        """Its time is up: roll back only, and stop what is executing, a PREPARE too. Never acts after the decision."""
        error = TransactionTimeout(
            f"{self.gtrid} took longer than its timeout of {seconds:g} s; what was done within it rolls back",
            gtrid=self.gtrid,
        )
        self.set_rollback_only(error)
        with self._lock:  # as what releases them takes it: one is doomed before that, or not cancelled at all
            if self._deciding or self.status not in (Status.MARKED_ROLLBACK, Status.COMMITTING):
                return
            doomed = self._enlistments()
            for enlistment in doomed:
                enlistment.mark_unreusable()
        # It can only roll back now: a cancel that comes late never meets the decision, nor what follows from it.
        for enlistment in doomed:
            threading.Thread(target=enlistment.cancel, name="txpool-cancel", daemon=True).start()
        for cancel in self._cancels:
            _quietly(cancel)

    def before_completion(self, callback: Callable[[], object], *, interposed: bool = False) -> None:
        """Call before commit (not before rollback); interposed ones come last. An exception forces rollback."""
        (self._interposed if interposed else self._before).append(callback)

    def after_completion(self, callback: Callable[[Status], object]) -> None:
        """Call with the final status, the last registered first; its errors are logged."""
        self._after.append(callback)

    def on_cancel(self, callback: Callable[[], object]) -> None:
        """Call, from another thread, when the timeout strikes (a Spark job group is cancelled so)."""
        self._cancels.append(callback)

    # -- its end ------------------------------------------------------------------------------------------------

    def commit(self, *, leaving: bool = False) -> None:
        """Commit everywhere. Errors: TransactionRolledBack, TransactionTimeout, TransactionInDoubt, HeuristicError.

        ProgrammingError where a block, or a decorated function, will end it: `leaving` is for that.
        """
        self._require_open()
        if not leaving:
            self.require_unscoped()
        try:
            self._call_before()
        except BaseException as error:
            self._end(committing=False)
            if not isinstance(error, Exception):
                raise
            raise rolled_back(self.gtrid, f"a before_completion callback failed: {error}") from error
        if self._rollback_cause is not None:
            raise_outcome(self._end(committing=False), wanted=Outcome.ROLLED_BACK)
            if isinstance(self._rollback_cause, TransactionRolledBack):
                raise self._rollback_cause
            raise rolled_back(self.gtrid, f"an inner block failed: {self._rollback_cause}") from self._rollback_cause
        result = self._end(committing=True)
        if (
            self._rollback_cause is not None
            and result.outcome is Outcome.ROLLED_BACK
            and result.cause is not self._rollback_cause
        ):
            # What being stopped has looked like is less than why it was stopped.
            self._rollback_cause.__cause__, result.cause = result.cause, self._rollback_cause
        raise_outcome(result, wanted=Outcome.COMMITTED)

    def rollback(self, *, leaving: bool = False) -> None:
        """Roll back everywhere. Errors: as commit, where a block will end it; HeuristicError where a branch had
        committed by itself.
        """
        self._require_open()
        if not leaving:
            self.require_unscoped()
        raise_outcome(self._end(committing=False), wanted=Outcome.ROLLED_BACK)

    def require_unscoped(self) -> None:
        """ProgrammingError where it ends with a block, for whoever would end it before that."""
        if self.scoped:
            raise ProgrammingError(
                f"{self.gtrid} ends with its `with transaction()` block or decorated function: leave the block to "
                "commit, raise or call set_rollback_only() to roll back"
            )

    def resolved(self, result: Result) -> None:
        """Hear how it ended after all, having been in doubt."""
        statistics.resolved(result.outcome, self.trace)
        self.status = _STATUS.get(result.outcome, Status.HEURISTIC)

    @property
    def of_parent_process(self) -> bool:
        """Whether it is the parent process's, after a fork."""
        return os.getpid() != self._pid

    def _require_open(self) -> None:
        if self.of_parent_process:
            raise ProgrammingError(f"{self.gtrid} is the parent process's: only that can end it")
        if self.ended:
            self.require_active()

    def _call_before(self) -> None:
        for callbacks in (self._before, self._interposed):
            for callback in callbacks:  # which may register another, to be called in its turn
                if self._rollback_cause is not None:
                    return
                callback()

    def _end(self, *, committing: bool) -> Result:
        with self._lock:
            self._require_open()
            self.status = Status.COMMITTING if committing else Status.ROLLING_BACK
        try:
            unit = self._commit_request()
        except BaseException:  # it was interrupted while it waited for another thread's statement
            self._reopen()
            if committing:
                self._end(committing=False)
            raise
        trace = self.trace
        watch = None if trace is None and not instruments.armed else statistics.watch(trace)
        coordinator = Coordinator(unit, self._log, watch)
        result = coordinator.commit() if committing else coordinator.rollback()
        statistics.ended(result.outcome)
        self.status = _STATUS.get(result.outcome, Status.HEURISTIC)
        self.unanswered = result.pending
        if trace is not None:
            trace.ended(result, self._note, committing=committing, rollback_cause=self._rollback_cause)
        if not result.complete and result.resolvable:
            self._resolve_later(self, coordinator)
        self._release(result)
        self._call_after()
        return result

    def _reopen(self) -> None:
        """Its end had begun, and nothing of that was sent: it can be rolled back."""
        with self._lock:
            self.status = Status.ACTIVE if self._rollback_cause is None else Status.MARKED_ROLLBACK

    def _enlistments(self) -> list[Enlistment]:
        slots = list(self._slots.values())  # other threads may enlist, and end it, meanwhile
        return [slot.enlistment for slot in slots if slot.enlistment is not None]

    def _commit_request(self) -> CommitRequest:
        unit = CommitRequest(
            self.gtrid, adopted=self._adopted, late_branches=self._late_branches, rollback_cause=self._begin_decision
        )
        if self._note or self.trace is not None:
            unit.annotations = decision_annotations(self._note, "" if self.trace is None else self.trace.traceparent)
        for enlistment in self._enlistments():
            role = enlistment.branch.role
            if role is Role.MARKED:
                unit.marked = cast(MarkedBranch, enlistment.branch)
            elif role is Role.LAST:
                unit.last = cast(OpenBranch, enlistment.branch)
            else:
                unit.branches.append(cast(OpenBranch, enlistment.branch))
        return unit

    def _release(self, result: Result) -> None:
        with self._lock:
            slots, self._slots = self._slots, {}
        if slots or self._adopted:
            dropped.release(self)
        for name, slot in slots.items():
            if slot.enlistment is not None:
                certain = (
                    result.outcome is not Outcome.IN_DOUBT
                    and result.branch_outcomes.get(name) is not BranchOutcome.UNKNOWN
                )
                _quietly(slot.enlistment.release, self.status.value, reusable=certain)

    def _call_after(self) -> None:
        for callback in reversed(self._after):
            _quietly(callback, self.status)


_STATUS = {
    Outcome.COMMITTED: Status.COMMITTED,
    Outcome.ROLLED_BACK: Status.ROLLED_BACK,
    Outcome.IN_DOUBT: Status.IN_DOUBT,
    Outcome.HEURISTIC_ROLLBACK: Status.ROLLED_BACK,
    Outcome.HEURISTIC_COMMIT: Status.COMMITTED,
}


def _quietly(callback: Callable[P, object], *args: P.args, **kwargs: P.kwargs) -> None:
    """Its errors are logged: the outcome stands, whatever a callback thinks of it."""
    try:
        callback(*args, **kwargs)
    except Exception:
        logger.exception("a callback after the end of a transaction failed; the outcome stands")
