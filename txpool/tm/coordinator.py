"""The two-phase commit protocol: no clock, no thread, and no I/O of its own.

A `Coordinator` drives one transaction through the phases below. Each phase is one method; what follows when a phase
raises is one table. So an error, a KeyboardInterrupt or an async cancellation is handled in one place: before the
decision it leads to rollback, after it never does, and during it the truth is established first.

::

    PREPARE ──> DECIDE ──> COMMIT ──> COMPLETE ──> LET GO ──> ENDED
       │  │       │ ?        ▲           ▲
       │  │       ▼          │           │
       │  │    ESTABLISH ────┤           │
       │  │       │  └──> IN DOUBT       │
       │  └───────┴──> ROLLBACK ─────────┘
       └──> ONE PHASE (a single branch that is not prepared)

PREPARE first sets those apart that have only read (`readers.py`): they end beside all that.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from enum import Enum
from time import time

from txpool import failpoints
from txpool.log.base import ENDS, DecisionLog, Heuristic, SideRecord
from txpool.log.formats import pack
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
)
from txpool.tm.annotations import NOTE, with_annotations
from txpool.tm.commit_request import CommitRequest, Outcome, Result
from txpool.tm.readers import Readers
from txpool.xid import make_pointer, make_xid, split_gtrid

logger = logging.getLogger("txpool")


class Phase(Enum):
    """Where in the protocol a transaction stands."""

    PREPARE = "prepare"
    ONE_PHASE = "one-phase commit"
    DECIDE = "decide"
    RESOLVE = "establish"
    COMMIT = "commit"
    ROLLBACK = "rollback"
    COMPLETE = "complete"
    FORGET = "let go"
    IN_DOUBT = "in doubt"
    ENDED = "ended"

    __hash__ = object.__hash__  # an Enum's own is a call of Python, and this is looked up at each step


class Coordinator:
    """One transaction's run through the protocol. Used by one thread at a time; `watch` hears each phase begin."""

    def __init__(
        self, request: CommitRequest, log: DecisionLog | None, watch: Callable[[Phase], object] | None = None
    ) -> None:
        self.phase = Phase.PREPARE
        self._watch = watch
        self._request = request
        self._log = log
        self._branches: list[OpenBranch] = [b for b in request.branches if not b.idle]
        self._marked = request.marked if request.marked is not None and not request.marked.idle else None
        self._last = request.last if request.last is not None and not request.last.idle else None
        self._last_outcome: BranchOutcome | None = None
        self._readers = Readers()
        #: What was decided, as every branch should end.
        self._wanted = BranchOutcome.COMMITTED
        self._prepared: list[Branch] = []  #: Those that take part in phase two.
        #: How each branch of phase two ended; UNKNOWN until it has answered.
        self._outcomes: dict[Branch | MarkedBranch, BranchOutcome] = {}
        self._phase_two_begun = False  #: Phase two has: outcome and `_ended` are its own.
        self._result = Result(Outcome.COMMITTED, request.gtrid)

    @property
    def gtrid(self) -> str:
        return self._request.gtrid

    def commit(self) -> Result:
        """Take the transaction to its end; the result is never an exception."""
        return self._run(Phase.PREPARE)

    def rollback(self) -> Result:
        """Roll every branch back; the result is never an exception."""
        return self._run(Phase.ROLLBACK)

    def retry(self) -> Result:
        """Try again what failed: to establish the truth of a transaction in doubt, or to tell the log of its end."""
        return self._run(Phase.FORGET if self._result.unreported else Phase.RESOLVE)

    def _run(self, phase: Phase) -> Result:
        self.phase = phase
        while self.phase not in (Phase.IN_DOUBT, Phase.ENDED):
            try:
                self._observe()
                _STEPS[self.phase](self)
            except BaseException as error:
                self._keep_error(error)
                if self.phase in (Phase.COMMIT, Phase.ROLLBACK) and not self._phase_two_begun:
                    continue  # an interrupt came before all that: nobody was told, and nobody is forgotten
                unsent = self.phase is Phase.ONE_PHASE and self._result.resolvable
                self.phase = Phase.ROLLBACK if unsent else _AFTER_FAILURE[self.phase]
        if self.phase is Phase.IN_DOUBT:
            self._result.outcome = Outcome.IN_DOUBT
        self._readers.roll_back()  # where they have not ended yet
        self._result.interrupt = self._readers.interrupt or self._result.interrupt
        self._observe()
        return self._result

    def _observe(self) -> None:
        """Tell `watch` of the phase: whatever comes out of that changes nothing of the protocol."""
        try:
            if self._watch is not None:
                self._watch(self.phase)
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
        alone = self._unprepared
        if self._request.adopted or len(alone) > 1:
            alone = self._set_readers_apart(alone)
        if not self._request.adopted and len(alone) < 2:
            self._require_not_rollback_only()
            self.phase = Phase.ONE_PHASE
            return
        decider, identity = (self._marked.datasource, self._marked.identity()) if self._marked else (None, "")
        for number, branch in enumerate(self._branches):
            branch.name(make_xid(self._request.gtrid, number, branch.datasource, decider=decider, identity=identity))
        for branch in self._branches:
            self._required_log.note_location(branch.location)
        if self._marked is not None:
            self._mark(self._marked)
        for branch in self._branches:
            branch.start_prepare()
        if failpoints.armed:
            failpoints.hit("coordinator.preparing")
        for branch in self._branches:
            if branch.await_prepare() is PrepareVote.COMMIT:
                self._prepared.append(branch)
        if failpoints.armed:
            failpoints.hit("coordinator.prepared")
        self._readers.require_alive()
        self._require_not_rollback_only()
        self.phase = Phase.DECIDE

    @property
    def _unprepared(self) -> list[Participant]:
        """What has worked here, and has not prepared."""
        return [*self._branches, *filter(None, (self._marked, self._last))]

    def _set_readers_apart(self, parts: list[Participant]) -> list[Participant]:
        """From here on the others are all there is; returns them."""
        self._readers.find(parts)
        self._branches = [branch for branch in self._branches if branch not in self._readers]
        if self._marked is not None and self._marked in self._readers:
            self._marked = None
        if self._last is not None and self._last in self._readers:
            self._last = None
        if failpoints.armed:
            failpoints.hit("readers.apart")
        return self._unprepared

    def _require_not_rollback_only(self) -> None:
        """The last moment for it to be doomed."""
        doom = self._request.rollback_cause()
        if doom is not None:
            raise doom

    def _mark(self, marked: MarkedBranch) -> None:
        """The row lists every branch, and is answered before any PREPARE is sent."""
        if self._request.adopted:
            # They were named, and prepared, when the log was to decide: only a pointer tells recovery otherwise.
            self._required_log.point(self._request.gtrid, make_pointer(marked.datasource, marked.identity()))
        marked.mark(self._request.gtrid, [b.record for b in (*self._branches, *self._request.adopted)])
        if self._request.adopted and self._fenced():
            raise Refused("recovery has fenced this process while it wrote the marked row")
        if failpoints.armed:
            failpoints.hit("coordinator.marked")

    def _one_phase(self) -> None:
        alone = next(iter(self._unprepared), None)
        if alone is not None:
            # An exception out of it is unknown, like a lost reply: the COMMIT may have been executed.
            self._result.resolvable = False
            answer = alone.commit_one_phase()
            self._result.branch_outcomes[alone.datasource] = answer
            self._result.cause = getattr(alone, "failure", None)
            if answer is not BranchOutcome.COMMITTED:
                self._result.outcome = Outcome.ROLLED_BACK
            if answer in (BranchOutcome.UNKNOWN, BranchOutcome.LOST):
                self.phase = Phase.IN_DOUBT
                return
        self._finish_undecided()  # before anything else may be interrupted: nobody asks the log, which knows nothing
        self._result.resolvable = True
        if self._result.outcome is Outcome.COMMITTED:
            self._readers.commit()

    def _decide(self) -> None:
        voted = [*self._request.adopted, *self._prepared]
        if self._last is not None and not self._commit_last(self._last):
            self.phase = Phase.ROLLBACK
            return
        if self._marked is None and not voted:
            self._finish_undecided()
            return
        records = [b.record for b in voted]
        if self._request.annotations:
            records = with_annotations(records, self._request.annotations)
        try:
            self._decision_store.record(self._request.gtrid, records)
        except Refused as refusal:
            self._keep_error(refusal)
            self.phase = Phase.ROLLBACK
            return
        self.phase = Phase.COMMIT

    def _finish_undecided(self) -> None:
        """The log has no word of it, and yet what may appear late is nobody's before it has the finished mark."""
        self._result.unreported = self._request.late_branches
        self.phase = Phase.FORGET if self._result.unreported else Phase.ENDED

    def _commit_last(self, last: OpenBranch) -> bool:
        """Whether the last resource has committed. Where nobody can say, the others roll back and it is a hazard."""
        self._last_outcome = BranchOutcome.LOST
        answer = last.commit_one_phase()
        self._last_outcome = BranchOutcome.LOST if answer is BranchOutcome.UNKNOWN else answer
        self._result.cause = getattr(last, "failure", None)
        return answer is BranchOutcome.COMMITTED

    def _resolve(self) -> None:
        """Looking cannot tell, since the write may still land: an abort record meets it, or takes its place."""
        settled = self._decision_store.abort(self._request.gtrid)
        if settled is Resolution.COMMITTED:
            self.phase = Phase.COMMIT
        elif self._fenced():
            # Recovery may have met the decision, completed it and forgotten it before our abort record came.
            self.phase = Phase.IN_DOUBT
        else:
            self.phase = Phase.ROLLBACK

    def _commit(self) -> None:
        self._result.outcome = Outcome.COMMITTED
        branches = [*self._request.adopted, *self._prepared]
        self._outcomes = dict.fromkeys(branches, BranchOutcome.UNKNOWN)
        self._phase_two_begun = True
        if failpoints.armed:
            failpoints.hit("coordinator.decided")
        started = [branch for branch in branches if self._start(branch.start_commit)]
        if failpoints.armed:
            failpoints.hit("coordinator.committing")
        for branch in started:
            self._outcomes[branch] = self._await(branch.await_commit)
            if failpoints.armed:
                failpoints.hit("coordinator.one-committed")
        if self._marked is not None:
            self._outcomes[self._marked] = BranchOutcome.COMMITTED
        if self._last is not None:
            self._outcomes[self._last] = BranchOutcome.COMMITTED
        if failpoints.armed:
            failpoints.hit("coordinator.committed")
        self._readers.commit()  # not before: a NOTIFY tells of what can be seen
        self.phase = Phase.COMPLETE

    def _roll_back(self) -> None:
        self._result.outcome = Outcome.ROLLED_BACK
        branches = [*self._branches, *self._request.adopted]
        if self._last is not None and self._last_outcome is None:
            branches.append(self._last)
        self._outcomes = dict.fromkeys(branches, BranchOutcome.UNKNOWN)
        if self._last is not None and self._last_outcome is not None:
            self._outcomes[self._last] = self._last_outcome
        self._phase_two_begun = True
        if failpoints.armed:
            failpoints.hit("coordinator.rolling-back")
        if self._marked is not None:
            self._outcomes[self._marked] = self._await(self._marked.rollback)
        started = [branch for branch in branches if self._start(branch.start_rollback)]
        self._readers.roll_back()
        for branch in started:
            self._outcomes[branch] = self._await(branch.await_rollback)
        self.phase = Phase.COMPLETE

    def _complete(self) -> None:
        committed = self._result.outcome is Outcome.COMMITTED
        wanted, against = (BranchOutcome.COMMITTED, BranchOutcome.ROLLED_BACK)[:: 1 if committed else -1]
        self._wanted = wanted
        for branch, answer in self._outcomes.items():
            known = self._result.branch_outcomes.get(branch.datasource, wanted)
            self._result.branch_outcomes[branch.datasource] = answer if known is wanted else known
        ends = self._outcomes.values()
        if BranchOutcome.LOST in ends:
            self._result.outcome = Outcome.HEURISTIC_HAZARD
        elif against in ends and wanted in ends:
            self._result.outcome = Outcome.HEURISTIC_MIXED
        elif against in ends:
            self._result.outcome = Outcome.HEURISTIC_ROLLBACK if committed else Outcome.HEURISTIC_COMMIT
        self._result.unreported = self._log is not None
        self.phase = Phase.FORGET if self._result.unreported else Phase.ENDED

    def _forget(self) -> None:
        """Forget what every branch has answered; leave a finished mark where something is unaccounted for.

        Until the log has it, nobody ends what is unaccounted for while this process lives: a failure is tried again.
        """
        log, wanted = self._required_log, self._wanted
        decided = "commit" if wanted is BranchOutcome.COMMITTED else "rollback"
        otherwise = [
            (each, answer) for each, answer in self._outcomes.items() if answer not in (wanted, BranchOutcome.UNKNOWN)
        ]
        note = (self._request.annotations or {}).get(NOTE)
        if otherwise and note:
            log.put_record(SideRecord(NOTE, self._request.gtrid, note, time()))
        for branch, answer in otherwise:
            log.record_heuristic(self._heuristic(branch, answer, decided))
        if otherwise:
            ends = {name: answer.value for name, answer in self._result.branch_outcomes.items()}
            log.put_record(SideRecord(ENDS, self._request.gtrid, pack(ends=ends), time()))
        if self._request.late_branches or set(self._outcomes.values()) - {wanted}:
            log.finish(self._request.gtrid)
        elif wanted is BranchOutcome.COMMITTED:
            self._decision_store.forget(self._request.gtrid)
        self._result.unreported = False
        self.phase = Phase.ENDED

    # -- their parts --------------------------------------------------------------------------------------------

    def _start(self, step: Callable[[], None]) -> bool:
        """Start one branch's phase two: what cannot be reached now stays for recovery, and stops nobody else."""
        try:
            step()
        except BaseException as error:
            self._log_failure(error)
            return False
        return True

    def _await(self, step: Callable[[], BranchOutcome]) -> BranchOutcome:
        try:
            return step()
        except BaseException as error:
            self._log_failure(error)
            return BranchOutcome.UNKNOWN

    def _log_failure(self, error: BaseException) -> None:
        if not isinstance(error, Exception):
            self._result.interrupt = error
        gtrid = self._request.gtrid
        logger.warning("%s: %s: %s", gtrid, self.phase.value, error, extra={"gtrid": gtrid})

    def _heuristic(self, branch: Branch | MarkedBranch, answer: BranchOutcome, decided: str) -> Heuristic:
        # A marked branch has no name, and one that the user's own SQL ended early was never given one.
        named = branch in self._prepared or branch in self._request.adopted
        bqual = branch.record.xid.bqual if named else ""  # type: ignore[union-attr]
        return Heuristic(self._request.gtrid, bqual, branch.datasource, decided, answer.value)

    def _fenced(self) -> bool:
        return self._required_log.is_fenced(split_gtrid(self._request.gtrid).incarnation)

    @property
    def _decision_store(self) -> DecisionStore:
        return self._marked if self._marked is not None else self._required_log

    @property
    def _required_log(self) -> DecisionLog:
        if self._log is None:
            raise Refused("no decision log is configured")
        return self._log


_STEPS: dict[Phase, Callable[[Coordinator], None]] = {
    Phase.PREPARE: Coordinator._prepare,
    Phase.ONE_PHASE: Coordinator._one_phase,
    Phase.DECIDE: Coordinator._decide,
    Phase.RESOLVE: Coordinator._resolve,
    Phase.COMMIT: Coordinator._commit,
    Phase.ROLLBACK: Coordinator._roll_back,
    Phase.COMPLETE: Coordinator._complete,
    Phase.FORGET: Coordinator._forget,
}

#: What follows when a phase raises. Nothing that happens after the decision leads to rollback.
_AFTER_FAILURE = {
    Phase.PREPARE: Phase.ROLLBACK,
    Phase.ONE_PHASE: Phase.IN_DOUBT,
    Phase.DECIDE: Phase.RESOLVE,
    Phase.RESOLVE: Phase.IN_DOUBT,
    Phase.COMMIT: Phase.COMPLETE,
    Phase.ROLLBACK: Phase.COMPLETE,
    Phase.COMPLETE: Phase.ENDED,
    Phase.FORGET: Phase.ENDED,
    Phase.ENDED: Phase.ENDED,
}
