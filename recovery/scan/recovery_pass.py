"""One pass's work on branches: the only place where recovery commits or rolls anything back."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Protocol, runtime_checkable

from recovery.scan import saved
from recovery.scan.datasources import ListedBranch, RecoveryDatasources
from recovery.scan.report import Ended, LeftAlone, ScanRecorder
from recovery.scan.snapshot import OTHER_DATABASE, Snapshot
from txpool import failpoints, tracing
from txpool.log.base import DecisionLog, Heuristic, SideRecord
from txpool.resources.base import BranchOutcome, BranchRecord, ResourceManager
from txpool.tm.annotations import NOTE, TRACEPARENT

_ASKED_AGAIN = "or refused it; it is asked again"


@runtime_checkable
class ExplainsFailure(Protocol):
    """A resource manager that says why a branch's commit or rollback had no answer."""

    def why_not(self, record: BranchRecord) -> str: ...


def _explanation(manager: ResourceManager, record: BranchRecord) -> str:
    return manager.why_not(record) if isinstance(manager, ExplainsFailure) else ""


class RecoveryPass:
    """What the modules of one pass work with: the evidence, the means, and the account of what they do."""

    def __init__(
        self, snapshot: Snapshot, log: DecisionLog, datasources: RecoveryDatasources, recorder: ScanRecorder
    ) -> None:
        self.snapshot = snapshot
        self.log = log
        self.datasources = datasources
        self.recorder = recorder
        #: How each database has ended its part, by gtrid and datasource.
        self._outcomes: dict[str, dict[str, str]] = {}
        #: Transactions with a heuristic outcome.
        self._with_heuristics = {heuristic.gtrid for heuristic in snapshot.heuristics}

    def commit(self, record: BranchRecord, why: str) -> bool:
        """Commit a branch that a decision names; whether its database has answered, so that it needs no record."""
        manager = self._manager_of(record)
        if manager is None:
            return False
        if failpoints.armed:
            failpoints.hit("recovery.branch")
        outcome = self._in_trace("commit", record, manager.commit)
        if outcome is BranchOutcome.UNKNOWN:
            self._leave_named_alone(
                record,
                f"{record.datasource} gave no answer to its commit, {_ASKED_AGAIN}",
                _explanation(manager, record),
            )
            return False
        ends = self._outcomes.setdefault(record.xid.gtrid, {})
        if ends.get(record.datasource, BranchOutcome.COMMITTED.value) == BranchOutcome.COMMITTED.value:
            ends[record.datasource] = outcome.value  # of a Spark write's many branches, the one that differs
        if outcome is BranchOutcome.ROLLED_BACK or (outcome is BranchOutcome.LOST and record.evidence):
            self._record_heuristic(record, "commit", outcome)
        elif self.snapshot.was_listed(record):
            self.recorder.record_commit(Ended(record.xid.joined, record.datasource, why))
        # LOST without evidence is enough: it voted before it was decided, so what is absent was committed before.
        return True

    def roll_back(self, branch: ListedBranch, why: str) -> None:
        """Roll a listed branch back, which its transaction's decision, or the lack of one, allows."""
        if failpoints.armed:
            failpoints.hit("recovery.branch")
        manager = self.datasources.managers[branch.datasource]
        outcome = self._in_trace("rollback", branch.record, manager.rollback)
        if outcome is BranchOutcome.UNKNOWN:
            words = _explanation(manager, branch.record)
            self._leave_named_alone(
                branch.record, f"{branch.datasource} gave no answer to its rollback, {_ASKED_AGAIN}", words
            )
        elif outcome is BranchOutcome.COMMITTED:
            self._record_heuristic(branch.record, "rollback", outcome)
        elif outcome is BranchOutcome.ROLLED_BACK:
            self.recorder.record_rollback(Ended(branch.xid.joined, branch.datasource, why))
        # LOST: another recoverer, or a person, was faster; the next listing lacks it.

    def carry_out(self, gtrid: str, named: tuple[BranchRecord, ...], why: str) -> bool:
        """Commit the named branches and roll the losers back; whether every named branch has answered."""
        answers = [self.commit(record, why) for record in named]
        ends = self._outcomes.pop(gtrid, {})
        if gtrid in self._with_heuristics:
            saved.save_ends(self.log, gtrid, ends)
        names = {record.xid for record in named}
        for branch in self.snapshot.listed_branches(gtrid):
            if branch.xid not in names:
                self.roll_back(branch, "the decision does not name it")
        return all(answers)

    def leave_alone(self, branch: ListedBranch, reason: str, *, alarm: bool = True) -> None:
        """Write down that a listed branch is not touched, and why."""
        gtrid = branch.xid.gtrid
        self.recorder.record_left_alone(LeftAlone(gtrid, branch.xid.joined, branch.datasource, reason, alarm))

    def leave_all_alone(self, gtrid: str, reason: str, *, alarm: bool = True) -> None:
        """The same for all of a transaction, whether anything of it is listed or not."""
        branches = self.snapshot.listed_branches(gtrid)
        for branch in branches:
            self.leave_alone(branch, reason, alarm=alarm)
        if not branches:
            self.recorder.record_left_alone(LeftAlone(gtrid, "", "", reason, alarm))

    def _in_trace(self, verb: str, record: BranchRecord, act: Callable[[BranchRecord], BranchOutcome]) -> BranchOutcome:
        """End a branch; where traces are made, in that of its transaction."""
        if tracing.tracer is None:
            return act(record)
        traceparent = self.snapshot.annotations(record.xid.gtrid)[TRACEPARENT]
        return tracing.tracer.recover(verb, record, traceparent, act)

    def _manager_of(self, record: BranchRecord) -> ResourceManager | None:
        """The manager that can speak for the branch; None, with the reason written down, where there is none."""
        site = self.snapshot.datasource_of(record)
        name = site or record.datasource
        if site is None:
            reason = self.snapshot.unanswered.get(name)
            self._leave_named_alone(
                record,
                f"{name} has not answered; the decision to commit is kept"
                if reason
                else f"{name} is no datasource of this configuration; the decision to commit is kept",
            )
            return None
        there = self.snapshot.other_database(record)
        if there:
            self._leave_named_alone(
                record,
                f"{name} {OTHER_DATABASE}: it was {record.identity}, and this is {there} (a server's system "
                "identifier, and the oid of a database there). Correct its url, or this user's rights; the decision to "
                "commit is kept",
            )
            return None
        return self.datasources.managers[name]

    def _leave_named_alone(self, record: BranchRecord, reason: str, error: str = "") -> None:
        left = LeftAlone(record.xid.gtrid, record.xid.joined, record.datasource, reason, error=error)
        self.recorder.record_left_alone(left)

    def _record_heuristic(self, record: BranchRecord, decided: str, outcome: BranchOutcome) -> None:
        if any(
            (known.gtrid, known.bqual) == (record.xid.gtrid, record.xid.bqual) for known in self.snapshot.heuristics
        ):
            return
        found = Heuristic(record.xid.gtrid, record.xid.bqual, record.datasource, decided, outcome.value, time.time())
        note = self.snapshot.annotations(found.gtrid)[NOTE]
        if note:  # it is to outlive its decision, as the outcome does
            self.log.put_record(SideRecord(NOTE, found.gtrid, note, found.noted))
        self.log.record_heuristic(found)
        self._with_heuristics.add(found.gtrid)
        self.recorder.record_heuristic(found)
