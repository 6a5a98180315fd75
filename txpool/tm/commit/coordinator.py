"""The two-phase commit protocol: no clock, no thread, and no I/O of its own.

A `Coordinator` drives one transaction through the phases below. Each phase is one method; which phase follows when one
raises is one table. So an error, a KeyboardInterrupt or an async cancellation is handled in one place. Before the
decision it leads to rollback; after the decision it never does. While the decision is being written it leads to
RESOLVE, which finds out by an abort record whether the decision was made.

::

    PREPARE ──> DECIDE ──> COMMIT ──> COMPLETE ──> FORGET ──> ENDED
       │  │       │ ?        ▲           ▲
       │  │       ▼          │           │
       │  │    RESOLVE ──────┤           │
       │  │       │  └──> IN DOUBT       │
       │  └───────┴──> ROLLBACK ─────────┘
       └──> ONE PHASE (a single branch that is not prepared)

PREPARE first finds the branches that have only read (`readers.py`): they take no part in the protocol, and end after
the others.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from time import time

from txpool import failpoints
from txpool.errors import described
from txpool.log.base import DecisionLog, Heuristic
from txpool.resources.base import (
    Branch,
    BranchOutcome,
    DecisionStore,
    MarkedBranch,
    OpenBranch,
    Participant,
    PrepareVote,
    Refused,
    Resolution,
    forget_ends,
)
from txpool.resources.marked import branch_rows
from txpool.tm.commit.annotations import with_annotations
from txpool.tm.commit.gone import judged_absent, judged_without_row
from txpool.tm.commit.heuristics import outcome_of, record_heuristics
from txpool.tm.commit.one_phase import commit_participant
from txpool.tm.commit.phase import (
    COMMIT,
    COMPLETE,
    DECIDE,
    ENDED,
    FORGET,
    IN_DOUBT,
    ONE_PHASE,
    PREPARE,
    RESOLVE,
    ROLLBACK,
    Phase,
)
from txpool.tm.commit.readers import Readers, checks_of
from txpool.tm.commit.request import COMMITTED, CommitRequest, Outcome, Result
from txpool.tm.commit.split_phase import await_each, start_each
from txpool.xid import all_name, make_pointer, make_xid, split_gtrid

logger = logging.getLogger("txpool")

# As names of their own: see `txpool.tm.commit.phase`.
_COMMITTED, _ROLLED_BACK, _UNKNOWN = BranchOutcome.COMMITTED, BranchOutcome.ROLLED_BACK, BranchOutcome.UNKNOWN
_YES = PrepareVote.COMMIT
_ABSENT, _LOST, _NO_ROW = BranchOutcome.ABSENT, BranchOutcome.LOST, BranchOutcome.NO_ROW


class Coordinator:
    """One transaction's run through the protocol. Used by one thread at a time.

    `phase_listener` is called with each phase as it begins, and with the one in which the run ends.
    """

    _aborted = False  #: There is an abort record, or a tombstone.
    _noted = False  #: The log may have a note of the last resource.

    def __init__(
        self, request: CommitRequest, log: DecisionLog | None, phase_listener: Callable[[Phase], object] | None = None
    ) -> None:
        self.phase = PREPARE
        self._phase_listener = phase_listener
        self._request = request
        self._log = log
        self._branches: list[OpenBranch] = [b for b in request.branches if b is not None and not b.idle]
        self._marked = request.marked if request.marked is not None and not request.marked.idle else None
        self._last = request.last if request.last is not None and not request.last.idle else None
        self._last_outcome: BranchOutcome | None = None
        #: The branches that have only read; None if there is none.
        self._readers: Readers | None = None
        #: The log may have a pointer to the marked datasource.
        self._pointed = False
        #: The decision, as the outcome that every branch should have: COMMITTED or ROLLED_BACK.
        self._decided = _COMMITTED
        #: Phase two has begun: `_outcomes` has its branches, and the result its outcome.
        self._phase_two_begun = False
        #: COMPLETE has begun again after an interrupt.
        self._completing_again = False
        #: Every branch has ended as decided.
        self._unanimous = True
        #: The phase in which the log is told of the end.
        self._left = FORGET
        self._prepared: list[Branch] = []  #: The branches that have voted to commit.
        #: How each branch of phase two ended; UNKNOWN until it has answered.
        self._outcomes: dict[Branch | MarkedBranch, BranchOutcome] = {}
        self._result = Result(COMMITTED, request.gtrid)

    @property
    def gtrid(self) -> str:
        return self._request.gtrid

    def commit(self) -> Result:
        """Take the transaction to its end; the result is never an exception."""
        return self._run(PREPARE)

    def rollback(self) -> Result:
        """Roll every branch back; the result is never an exception."""
        return self._run(ROLLBACK)

    def retry(self) -> Result:
        """Try again what failed: to resolve a transaction that is in doubt, or to tell the log that it has ended.

        Nothing, if it has ended: to resolve it once more could find its decision forgotten.
        """
        if self._result.complete:
            return self._result
        return self._run(self._left if self._result.unreported else RESOLVE)

    def go_on(self, interrupt: BaseException) -> Result:
        """Take the transaction to its end, as `commit` or `rollback` would have, but for an interrupt in their callers.

        If it has ended already, the interrupt is the result's.
        """
        if _STEPS[self.phase] is None:
            self._result.interrupt = interrupt
        else:
            self._choose_next(interrupt)
        return self._run(self.phase)

    def _run(self, phase: Phase) -> Result:
        self.phase = phase
        try:
            self._advance()
        except BaseException as error:  # an interrupt, while the failure of a phase was handled
            self._choose_next(error)
            self._advance()
        if self.phase is IN_DOUBT:
            self._result.outcome = Outcome.IN_DOUBT
        if self._readers is not None:
            self._readers.roll_back()  # those that have not committed
            self._result.interrupt = self._readers.interrupt or self._result.interrupt
        if self._phase_listener is not None:
            try:
                self._notify_listener(self._phase_listener)
            except BaseException as error:  # an interrupt as it begins
                self._result.interrupt = error
        return self._result

    def _advance(self) -> None:
        """Take the transaction from phase to phase until it has ended, or nobody can tell."""
        while True:
            try:  # around the inner loop, since an interrupt may also come between two phases
                while True:  # not `while` with a condition: see tests/unit/test_interrupts.py
                    step = _STEPS[self.phase]
                    if step is None:
                        return
                    if self._phase_listener is not None:
                        self._notify_listener(self._phase_listener)
                    step(self)
            except BaseException as error:
                self._choose_next(error)

    def _choose_next(self, error: BaseException) -> None:
        """Choose the phase that follows a failure of this one."""
        self._keep_error(error)
        if self.phase in (COMMIT, ROLLBACK) and not self._phase_two_begun:
            return  # an interrupt came before phase two sent anything: begin the phase again
        if self.phase is COMPLETE:
            self._left, self._result.unreported = COMPLETE, self._log is not None
            if not self._completing_again:
                self._completing_again = True
                return
        unsent = self.phase is ONE_PHASE and self._result.resolvable
        self.phase = ROLLBACK if unsent else _AFTER_FAILURE[self.phase]

    def _notify_listener(self, listener: Callable[[Phase], object]) -> None:
        """Call the phase listener. An exception from it changes nothing of the protocol."""
        try:
            listener(self.phase)
        except BaseException as error:
            self._log_failure(error)

    def _keep_error(self, error: BaseException) -> None:
        if self._result.cause is None:
            self._result.cause = error
        if not isinstance(error, Exception):
            self._result.interrupt = error

    # -- the phases ---------------------------------------------------------------------------------------------

    def _prepare(self) -> None:
        if failpoints.armed:
            failpoints.hit("coordinator.begin")
        request = self._request
        participants = self._unprepared()
        if request.adopted or len(participants) > 1:
            participants = self._set_readers_apart(participants)
        if not request.adopted and len(participants) < 2 and not any(map(_needs_decision, participants)):
            self._require_not_rollback_only()
            self.phase = ONE_PHASE
            return
        log, branches = self._required_log(), self._branches
        self._name_branches(log)
        if self._last is not None:
            self._noted = True
            log.note_last(request.gtrid, self._last.datasource)
        if self._marked is not None:
            self._mark(self._marked)
        for branch in branches:
            branch.start_prepare()
        if failpoints.armed:
            failpoints.hit("coordinator.preparing")
        for branch in branches:
            if branch.await_prepare() is _YES:
                self._prepared.append(branch)
        if failpoints.armed:
            failpoints.hit("coordinator.prepared")
        if self._readers is not None:
            self._readers.require_alive()
        self._require_not_rollback_only()
        self.phase = DECIDE

    def _name_branches(self, log: DecisionLog) -> None:
        """Give each branch its name, and note in the log where it will prepare, and within which timeout."""
        decider, identity = (self._marked.datasource, self._marked.identity()) if self._marked else (None, "")
        request = self._request
        for place, branch in enumerate(request.branches):
            if branch in self._branches:
                branch.name(make_xid(request.gtrid, place, branch.datasource, decider, identity))
                log.note_location(branch.location)
        if self._branches:
            log.note_timeout(request.gtrid, request.timeout)

    def _unprepared(self) -> list[Participant]:
        """The participants that have executed something and are not prepared."""
        participants: list[Participant] = [*self._branches]
        if self._marked is not None:
            participants.append(self._marked)
        if self._last is not None:
            participants.append(self._last)
        return participants

    def _set_readers_apart(self, participants: list[Participant]) -> list[Participant]:
        """Leave those that have only read to `Readers`; returns the others."""
        checks = checks_of(participants)
        if checks:
            self._readers = readers = Readers()
            readers.find(checks)
            self._branches = [branch for branch in self._branches if branch not in readers]
            if self._marked is not None and self._marked in readers:
                self._marked = None
            if self._last is not None and self._last in readers:
                self._last = None
            participants = self._unprepared()
        if failpoints.armed:
            failpoints.hit("readers.apart")
        return participants

    def _require_not_rollback_only(self) -> None:
        """Raise the rollback cause, if there is one: this is the last moment at which it counts."""
        cause = self._request.rollback_cause()
        if cause is not None:
            raise cause

    def _mark(self, marked: MarkedBranch) -> None:
        """Write the marked row. It names every branch, and its INSERT is answered before any PREPARE is sent."""
        records = [b.record for b in (*self._branches, *self._request.adopted)]
        if records:
            self._required_log().note_decider(marked.location)
        if not all_name(marked.datasource, marked.identity(), [record.xid for record in records]):
            # Some were named earlier, and say that the log decides: only a pointer tells recovery otherwise.
            self._pointed = True
            self._required_log().point(self._request.gtrid, make_pointer(marked.datasource, marked.identity()))
        marked.mark(self._request.gtrid, records)
        if self._pointed and self._fenced():
            raise Refused("recovery has fenced this process while it wrote the marked row")
        if failpoints.armed:
            failpoints.hit("coordinator.marked")

    def _one_phase(self) -> None:
        participant = next(iter(self._unprepared()), None)
        if participant is not None:
            commit_participant(participant, self._result)
            if self._result.outcome is Outcome.IN_DOUBT:
                self.phase = IN_DOUBT
                return
        # First of all what follows, since an interrupt before it leaves an outcome that the log cannot resolve.
        self._finish_undecided()
        self._result.resolvable = True
        if self._readers is not None and self._result.outcome is COMMITTED:
            self._readers.commit()

    def _decide(self) -> None:
        voted = [*self._request.adopted, *self._prepared]
        if self._last is not None and not self._commit_last(self._last):
            self.phase = ROLLBACK
            return
        if self._marked is None and not voted:
            self._finish_undecided()
            return
        records = [b.record for b in voted]
        if self._request.annotations:
            records = with_annotations(records, self._request.annotations)
        try:
            self._decision_store().record(self._request.gtrid, records)
        except Refused as refusal:
            self._keep_error(refusal)
            self.phase = ROLLBACK
            return
        self.phase = COMMIT

    def _finish_undecided(self) -> None:
        """No decision was logged. Late branches may still appear: then write a finished mark, and recovery may roll
        them back.
        """
        self._result.unreported = self._request.late_branches
        if self._noted:
            self._required_log().forget(self._request.gtrid)
        self.phase = FORGET if self._result.unreported else ENDED

    def _commit_last(self, last: OpenBranch) -> bool:
        """Whether the last resource has committed. If that is unknown, the others roll back: a heuristic hazard.

        The fence is read once all others have prepared: recovery lets go of the note if a listing after its fence
        has none of them.
        """
        if self._noted and (self._fenced() or self.gtrid not in self._required_log().last_resources()):
            self._keep_error(Refused("recovery has fenced this process, or a person has rolled the transaction back"))
            return False
        self._last_outcome = _LOST
        outcome = last.commit_one_phase()
        self._last_outcome = _LOST if outcome is _UNKNOWN else outcome
        self._result.cause = getattr(last, "failure", None)
        return outcome is _COMMITTED

    def _resolve(self) -> None:
        """Write an abort record under the decision's key. It finds the decision, or prevents it for ever.

        Reading would not tell: a decision that is still on its way may land after the read.
        """
        resolution = self._decision_store().abort(self._request.gtrid)
        if resolution is Resolution.NOTED:
            resolution = self._resolve_noted(self._required_log())
        if resolution is Resolution.COMMITTED:
            self.phase = COMMIT
        elif self._fenced():
            # Recovery may have found the decision, completed it and forgotten it before our abort record was written.
            self.phase = IN_DOUBT
        else:
            self._aborted = True
            self.phase = ROLLBACK

    def _resolve_noted(self, log: DecisionLog) -> Resolution:
        """Write the abort record in the place of the last resource's note."""
        gtrid = self._request.gtrid
        told = self._tell_of_last(log, _LOST)  # whatever it has ended as: recovery may have completed the decision
        resolution = log.abort_noted(gtrid)
        if told and resolution is Resolution.COMMITTED:  # the decision has landed meanwhile
            log.dismiss_heuristics(gtrid, "")
        return resolution

    def _tell_of_last(self, log: DecisionLog, outcome: BranchOutcome) -> bool:
        """Record this outcome of the last resource before anything else rolls back; False if it has not committed.

        Its note would tell of it only once this process has ended.
        """
        last = self._last
        if last is None or self._last_outcome is None or self._last_outcome is _ROLLED_BACK:
            return False
        log.record_heuristic(Heuristic(self._request.gtrid, "", last.datasource, "rollback", outcome.value, time()))
        return True

    def _commit(self) -> None:
        self._result.outcome = COMMITTED
        branches = [*self._request.adopted, *self._prepared]
        for branch in branches:
            self._outcomes[branch] = _UNKNOWN
        self._phase_two_begun = True
        if failpoints.armed:
            failpoints.hit("coordinator.decided")
        failed = self._log_failure
        started = start_each(branches, _COMMITTED, failed)
        if failpoints.armed:
            failpoints.hit("coordinator.committing")
        await_each(started, _COMMITTED, self._outcomes, failed, self._request.progress)
        if self._marked is not None:
            self._outcomes[self._marked] = _COMMITTED
        if self._last is not None:
            self._outcomes[self._last] = _COMMITTED
        if failpoints.armed:
            failpoints.hit("coordinator.committed")
        if self._readers is not None:
            self._readers.commit()  # after the others, since a NOTIFY announces data that must be visible by then
        self.phase = COMPLETE

    def _roll_back(self) -> None:
        self._result.outcome = Outcome.ROLLED_BACK
        branches = [*self._branches, *self._request.adopted]
        if self._last is not None and self._last_outcome is None:
            branches.append(self._last)
        self._outcomes = dict.fromkeys(branches, _UNKNOWN)
        if self._last is not None and self._last_outcome is not None:
            self._outcomes[self._last] = self._last_outcome
            try:
                self._tell_of_last(self._required_log(), self._last_outcome)
            except BaseException as error:  # FORGET tries it again, and the caller is told all the same
                self._log_failure(error)
        self._phase_two_begun = True
        if failpoints.armed:
            failpoints.hit("coordinator.rolling-back")
        if self._marked is not None:
            self._outcomes[self._marked] = _UNKNOWN
            try:
                self._outcomes[self._marked] = self._marked.rollback()
            except BaseException as error:
                self._log_failure(error)
        started = start_each(branches, _ROLLED_BACK, self._log_failure)
        if self._readers is not None:
            self._readers.roll_back()
        await_each(started, _ROLLED_BACK, self._outcomes, self._log_failure, self._request.progress)
        self.phase = COMPLETE

    def _complete(self) -> None:
        committed = self._result.outcome is COMMITTED
        self._decided = decided = _COMMITTED if committed else _ROLLED_BACK
        found = self._result.branch_outcomes
        self._unanimous = True
        for branch, answer in self._outcomes.items():
            outcome = answer
            if answer is not decided:
                if answer is _ABSENT or answer is _NO_ROW:
                    outcome = self._outcomes[branch] = self._judged(branch, answer)  # type: ignore[arg-type]
                if outcome is not decided:
                    self._unanimous = False
            if found.setdefault(branch.datasource, outcome) is decided:  # perhaps of another branch there
                found[branch.datasource] = outcome
        if not self._unanimous:
            self._result.outcome = outcome_of(decided, self._outcomes.values())
        self._left, self._result.unreported = FORGET, self._log is not None
        self.phase = FORGET if self._result.unreported else ENDED

    def _forget(self) -> None:
        """Forget the decision if every branch has ended as decided; else write a finished mark.

        While this process lives, recovery leaves a gtrid alone that has no finished mark: so writing it is tried again
        after a failure.
        """
        log, decided = self._required_log(), self._decided
        if not self._unanimous:
            settled = (decided, _UNKNOWN)
            heuristics = {branch: outcome for branch, outcome in self._outcomes.items() if outcome not in settled}
            if heuristics:
                record_heuristics(log, self._request, self._result, decided, heuristics, prepared=self._prepared)
                self._result.recorded = True
        if self._noted and decided is _ROLLED_BACK:
            self._forget_note(log)
        if self._request.late_branches or not self._unanimous:
            log.finish(self._request.gtrid)
        else:
            if self._pointed:
                self._forget_pointed(log)
            elif decided is _COMMITTED:
                self._decision_store().forget(self._request.gtrid)
            if branch_rows.in_use and decided is _COMMITTED:
                purge = log.purge if self._marked is None else self._marked.purge
                branch_rows.forget_rows((*self._request.adopted, *self._prepared), purge)
        self._result.unreported = False
        self.phase = ENDED
        if not self._unanimous:  # last: what is not reached here, recovery is told of again
            forget_ends(branch for branch, outcome in self._outcomes.items() if outcome is not _UNKNOWN)

    def _forget_note(self, log: DecisionLog) -> None:
        """Every branch is to roll back, and how the last resource has ended is known, or recorded.

        The note goes before a finished mark comes, or recovery would tell of the last resource once more.
        """
        if self._unanimous and not self._request.late_branches:
            log.forget(self._request.gtrid)
        else:
            log.abort_noted(self._request.gtrid)

    def _forget_pointed(self, log: DecisionLog) -> None:
        """Forget the decision of the marked branch, and the pointer to it in the log."""
        if self._decided is _COMMITTED and self._marked is not None:
            self._marked.forget_pointed(self._request.gtrid, log.purge)
        else:
            log.purge([self._request.gtrid])  # every branch has rolled back: nobody asks for a decision any more

    # -- steps of the phases ------------------------------------------------------------------------------------

    def _log_failure(self, error: BaseException) -> None:
        if not isinstance(error, Exception):
            self._result.interrupt = error
        gtrid = self._request.gtrid
        logger.warning("%s: %s: %s", gtrid, self.phase.value, described(error), extra={"gtrid": gtrid})

    def _fenced(self) -> bool:
        return self._required_log().is_fenced(split_gtrid(self._request.gtrid).incarnation)

    def _judged(self, branch: Branch, answer: BranchOutcome) -> BranchOutcome:
        """The outcome of a branch that is gone, which no marked one is.

        LOST if it cannot be found out whether recovery has ended it.
        """
        try:
            if answer is _ABSENT:
                return judged_absent(branch.record, self._decided, ended_by_another=self._left_to_recovery())
            return judged_without_row(branch.record, self._still_decided, self._required_log().heuristics)
        except BaseException as error:
            self._log_failure(error)
            return _LOST

    def _left_to_recovery(self) -> bool:
        """Whether recovery may have ended its branches as decided: it is fenced, or was kept from deciding for ever."""
        if self._fenced():
            return True
        return self._decided is _ROLLED_BACK and (self._aborted or self.gtrid in self._required_log().aborted())

    def _still_decided(self) -> bool:
        """Whether the decision is there: recovery may have ended every branch, forgotten it, and deleted the rows."""
        if not self._fenced():
            return True
        if self._marked is not None:
            return self._marked.is_decided(self.gtrid)
        return self.gtrid in self._required_log().decisions()

    def _decision_store(self) -> DecisionStore:
        return self._marked or self._log or self._required_log()

    def _required_log(self) -> DecisionLog:
        if self._log is None:
            raise Refused("no decision log is configured")
        return self._log


def _needs_decision(participant: Participant) -> bool:
    return getattr(participant, "needs_decision", False)


#: The step of each phase; None if the run ends.
_STEPS: dict[Phase, Callable[[Coordinator], None] | None] = {
    PREPARE: Coordinator._prepare,
    ONE_PHASE: Coordinator._one_phase,
    DECIDE: Coordinator._decide,
    RESOLVE: Coordinator._resolve,
    COMMIT: Coordinator._commit,
    ROLLBACK: Coordinator._roll_back,
    COMPLETE: Coordinator._complete,
    FORGET: Coordinator._forget,
    ENDED: None,
    IN_DOUBT: None,
}

#: Which phase follows when one raises. After the decision none leads to rollback.
_AFTER_FAILURE = {
    PREPARE: ROLLBACK,
    ONE_PHASE: IN_DOUBT,
    DECIDE: RESOLVE,
    RESOLVE: IN_DOUBT,
    COMMIT: COMPLETE,
    ROLLBACK: COMPLETE,
    COMPLETE: ENDED,
    FORGET: ENDED,
    ENDED: ENDED,
    IN_DOUBT: IN_DOUBT,
}
