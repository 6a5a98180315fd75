"""How a transaction ends: commit, rollback, a timeout, and what an interrupt on the way changes."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Sequence
from math import inf
from time import monotonic
from typing import TYPE_CHECKING, Any

from txpool import loops
from txpool.errors import ProgrammingError, TransactionRolledBack, TransactionTimeout, described
from txpool.locks import RLock
from txpool.log.base import DecisionLog
from txpool.metrics import instruments
from txpool.resources.base import LAST, MARKED, Branch, Participant
from txpool.tm.background import statistics
from txpool.tm.commit.annotations import decision_annotations
from txpool.tm.commit.coordinator import Coordinator
from txpool.tm.commit.one_phase import commit_alone
from txpool.tm.commit.phase import PREPARE
from txpool.tm.commit.progress import MANY, PhaseTwoProgress
from txpool.tm.commit.request import COMMITTED, IN_DOUBT, CommitRequest, Outcome, Result
from txpool.tm.completion import dropped, joined
from txpool.tm.completion.empty import warn_of_empty
from txpool.tm.completion.outcome import no_more_work, raise_outcome, rolled_back
from txpool.tm.completion.status import ACTIVE, COMMITTING, MARKED_ROLLBACK, OPEN, STATUS_OF, UNDER_WAY, Status
from txpool.tm.completion.synchronizations import Synchronizations, call_logging_errors

if TYPE_CHECKING:
    from txpool.tm.enlistment import Part
    from txpool.tracing import Trace

logger = logging.getLogger("txpool")


class Completion:
    """The end of a transaction. `Transaction` adds what takes part, and sets the attributes."""

    gtrid: str
    status: Status
    unanswered: Sequence[str]
    scoped: bool
    trace: Trace | None
    origin: dropped.Origin | None
    may_be_empty = True  #: Nothing need take part in it: none of a block's, or one with callbacks or a Spark job.
    abandoned = False  #: Nobody may work in it any more, since its block or its last reference is gone: it rolls back.
    timeout: float = inf  #: In seconds; `inf` if it has none.
    why_timeout = ""  #: Who has given it that timeout, for errors; empty if its own code or configuration has.
    decide_before: float | None = None  #: When one that has prepared may end by itself, by the monotonic clock.
    in_loop = False  #: A task of an event loop has begun it.
    awaits = False  #: Synchronous calls of its tasks are refused.
    _cancels: tuple[Callable[[], object], ...] = ()
    values: dict[Any, Any]
    _log: DecisionLog | None
    _resolve_later: Callable[[Any, Coordinator], object]
    _pid: int
    _lock: RLock
    _enlisted: dict[str, Part]
    _adopted: list[Branch]
    _late_branches: bool
    _deferring: int
    _rollback_cause: BaseException | None
    _deciding: bool
    _note: str
    _synchronizations: Synchronizations | None

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

    def require_active(self) -> None:
        """Return if work may be done in it. Errors: TransactionTimeout, or ProgrammingError with the reason."""
        if self.status is ACTIVE:
            return
        dropped.require_not_abandoned(self)
        if self.status is not Status.MARKED_ROLLBACK:
            raise no_more_work(self.gtrid, self.status, None)
        if isinstance(self._rollback_cause, TransactionTimeout):
            raise self._rollback_cause
        raise no_more_work(self.gtrid, self.status, self._rollback_cause) from self._rollback_cause

    def set_rollback_only(self, reason: BaseException | None = None) -> None:
        """From now on it can only roll back. After the decision this changes nothing. From any thread."""
        with self._lock:
            # While it is committing, the coordinator asks for the rollback cause once more just before the decision.
            undecided = self.status in (Status.ACTIVE, Status.COMMITTING) and not self._deciding
            if undecided and self._rollback_cause is None:
                self._rollback_cause = reason or rolled_back(self.gtrid, "it was marked rollback-only")
            if self.status is Status.ACTIVE:
                self.status = Status.MARKED_ROLLBACK

    def _begin_decision(self) -> BaseException | None:
        """The rollback cause; if there is none, no later one counts.

        It needs no lock: this sets `_deciding` before it looks for a cause, and `expire` sets the cause before it looks
        at `_deciding`. So a timeout is heard here, or cancels nothing.
        """
        self._deciding = True
        problem = joined.why_open(self, self._deferring) if self._deferring or self.values else ""
        if self.decide_before is not None and monotonic() > self.decide_before:
            problem = "its prepared branch may be ended by its server before recovery could commit it"
        if problem and self._rollback_cause is None:
            self._rollback_cause = rolled_back(self.gtrid, problem)
        cause = self._rollback_cause
        self._deciding = cause is None
        return cause

    def expire(self, seconds: float) -> None:
        """Its timeout of so many seconds has passed: mark it rollback-only, and cancel what executes, a PREPARE too.

        Never acts after the decision.
        """
        error = TransactionTimeout(
            f"{self.gtrid} took longer than its timeout of {seconds:g} s{self.why_timeout}; what was done "
            "within it rolls back",
            gtrid=self.gtrid,
        )
        self.set_rollback_only(error)
        # `_release` takes this lock, too, if nothing was decided: so each enlistment is marked unreusable before its
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

    def commit(self) -> None:
        """Commit everywhere. Errors: TransactionRolledBack, TransactionTimeout, TransactionInDoubt, HeuristicError.

        ProgrammingError if a block, or a decorated function, will end it.
        """
        self._require_open()
        self.require_unscoped()
        self.end_commit()

    def rollback(self) -> None:
        """Roll back everywhere. Errors: HeuristicError if a branch had committed by itself.

        ProgrammingError if a block, or a decorated function, will end it.
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
        empty = not self._enlisted
        result = self._end(committing=True)
        if result.outcome is COMMITTED and result.interrupt is None:
            if empty and not self.may_be_empty and self.origin is not None:
                warn_of_empty(self.origin)
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
        """ProgrammingError if a block or decorated function will end it."""
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
        if loops.used and (call := loops.current()) is not None and not self._waits_in_loop():
            return call.in_thread(lambda: self._end(committing=committing))
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
                try:
                    result = coordinator.go_on(error)
                except BaseException as interrupt:
                    result = coordinator.go_on(interrupt)
            elif alone is None or (result.resolvable and not result.branch_outcomes):  # nothing was decided
                if not committing:
                    # Nothing is called here. Since it was rolling back, no other thread has changed the cause.
                    self.status = ACTIVE if self._rollback_cause is None else MARKED_ROLLBACK
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
            try:
                self._settle(result, coordinator)
            except BaseException:  # a second one: those whom it concerns are told all the same
                self._settle(result, coordinator)
        return result

    def _waits_in_loop(self) -> bool:
        """Whether all that takes part can wait in an event loop."""
        enlisted = [*self._enlisted.values()]
        return not self._adopted and all(getattr(each.datasource, "waits_in_loop", False) for each in enlisted)

    def _settle(self, result: Result, coordinator: Coordinator | None) -> None:
        """Do what an interrupt behind the outcome has left undone; what was done before changes nothing."""
        self.unanswered = result.pending
        self.status = STATUS_OF[result.outcome]
        if coordinator is not None and not result.complete and result.resolvable:
            self._resolve_later(self, coordinator)
        self._release(result)
        if self._synchronizations is not None:
            self._synchronizations.call_after(self.status)

    def _only_participant(self) -> Participant | None:
        """The branch that is all of the transaction; None if there may be others."""
        (enlistment,) = self._enlisted.values()
        if self._adopted or self._late_branches or enlistment.pooled is None or enlistment.needs_decision:
            return None
        branch: Participant = enlistment.settled_branch()
        return branch

    def _commit_request(self) -> CommitRequest:
        branches, marked, last = [], None, None
        for enlistment in [*self._enlisted.values()]:
            branch: Any = None
            if enlistment.pooled is not None:
                branch = enlistment.settled_branch()
                role = None if branch is None else branch.role
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
            PhaseTwoProgress(self.gtrid) if len(self._adopted) >= MANY else None,
        )

    def _release(self, result: Result) -> None:
        """Give the connections back. What an interrupt keeps back, `Part.release_left` finds."""
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

    def release(self, enlistment: Part) -> None:
        """It has ended: give this connection back. If its branch's outcome is unknown, it is not reused."""
        unknown = self.status is Status.IN_DOUBT or enlistment.datasource.name in self.unanswered
        enlistment.release(self.status, reusable=not unknown)

    def _enlistments(self) -> list[Part]:
        """Those that are opened: a copy, since other threads may enlist datasources, and end it, meanwhile."""
        return [each for each in list(self._enlisted.values()) if each.pooled is not None]
