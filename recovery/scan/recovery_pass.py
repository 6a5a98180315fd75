"""RecoveryPass: commits and rolls back branches, and records the outcome. Nothing else in recovery ends a branch."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any

from recovery.scan import saved
from recovery.scan.datasources.datasources import ListedBranch, RecoveryDatasources
from recovery.scan.phase_two import AskedBranch, BranchEnds, wait_for
from recovery.scan.report import Ended, LeftAlone, ScanRecorder
from recovery.scan.snapshot import OTHER_DATABASE, Snapshot
from recovery.scan.windows import Window, windows
from txpool import failpoints, tracing
from txpool.config.secrets import describe_error
from txpool.log.base import DecisionLog, Heuristic, SideRecord
from txpool.resources.base import BranchOutcome, BranchRecord, forget_ends, remembers_end
from txpool.resources.recovery_access import BranchRecovery, LackOfRight, optional
from txpool.tm.commit.annotations import NOTE, TRACEPARENT
from txpool.tm.commit.gone import judged_absent, judged_without_row
from txpool.tm.commit.progress import PhaseTwoProgress

_ASKED_AGAIN = "or refused it; recovery asks again"


def _explanation(manager: BranchRecovery, record: BranchRecord) -> str:
    explain = optional(manager, "why_not")
    found: str = "" if explain is None else explain(record)
    return found


class RecoveryPass:
    """What the modules of one pass share: the snapshot, the log, the datasources, and the recorder of what is done.

    The modules run for one window of the snapshot after the other, of which `window` is the current one.
    """

    def __init__(
        self, snapshot: Snapshot, log: DecisionLog, datasources: RecoveryDatasources, recorder: ScanRecorder
    ) -> None:
        #: All that the pass has read.
        self.whole = snapshot
        self.window = Window(snapshot)
        #: Whether no window follows.
        self.is_last = True
        #: By module: what it keeps from one window to the next.
        self.kept: dict[object, Any] = {}
        self.log = log
        self.datasources = datasources
        self.recorder = recorder
        #: How many of the branches that it ends have ended.
        self.progress = PhaseTwoProgress("recovery")
        self._ends = BranchEnds(datasources.managers, datasources.asking, self.progress)
        #: How each database has ended its branches, by gtrid and datasource.
        self._outcomes: dict[str, dict[str, str]] = {}
        #: Transactions with a heuristic outcome, and the branches that have one.
        self._with_heuristics = {heuristic.gtrid for heuristic in snapshot.heuristics}
        self._known = {(heuristic.gtrid, heuristic.bqual) for heuristic in snapshot.heuristics}
        #: What `settle` writes.
        self._unwritten: list[Heuristic] = []
        self._unsaved: dict[str, dict[str, str]] = {}

    @property
    def snapshot(self) -> Snapshot:
        """What the pass has read of the transactions of the current window."""
        return self.window.snapshot

    def each_window(self) -> Iterator[None]:
        """Go through the windows of the snapshot."""
        following: Window | None = None
        for window in windows(self.whole):
            if following is None and window.snapshot is not self.whole:
                self.expect(self.whole.decided_branches())
            if following is not None:
                self.window, self.is_last = following, False
                yield
            following = window
        if following is not None:
            self.window, self.is_last = following, True
            yield

    def expect(self, count: int) -> None:
        """Count so many branches among those that are to end, before they are begun."""
        self._ends.expect(count)

    def close(self) -> None:
        """Close the connections of the pass. A branch without an answer is left to the next one."""
        self._ends.close()
        self.progress.clear()
        try:
            self.settle()
        except Exception as error:
            self.recorder.record_failure("the heuristic outcomes", describe_error(error))

    def settle(self) -> None:
        """Write the heuristic outcomes of decided transactions. Before that, none of their decisions is forgotten.

        They are written together: on a disk, to write one takes as long as to write a thousand.
        """
        if self._unwritten:
            self._keep(*self._unwritten)
            self._unwritten = []
        if self._unsaved:
            saved.save_ends(self.log, self._unsaved)
            self._unsaved = {}

    def start_commit(self, record: BranchRecord, why: str) -> Callable[[], bool]:
        """Start to commit a branch that a decision names.

        Returns what waits for the answer, and tells whether its database has answered. The decision must be kept until
        every database has answered.
        """
        name = self._leads_to(record)
        if name is None:
            return lambda: False
        if failpoints.armed:
            failpoints.hit("recovery.branch")
        branch = self._ends.branch(name, record)
        branch.start_commit()
        return partial(self._finish_commit, name, branch, why)

    def _finish_commit(self, name: str, branch: AskedBranch, why: str) -> bool:
        record = branch.record
        outcome = self._in_trace("commit", record, lambda: self._judged(name, record, branch.await_commit()))
        if outcome is BranchOutcome.UNKNOWN:
            self._leave_named_alone(
                record,
                f"{record.datasource} gave no answer to its commit, {_ASKED_AGAIN}",
                branch.why_unknown or _explanation(self.datasources.managers[name], record),
            )
            return False
        ends = self._outcomes.setdefault(record.xid.gtrid, {})
        if ends.get(record.datasource, BranchOutcome.COMMITTED.value) == BranchOutcome.COMMITTED.value:
            ends[record.datasource] = outcome.value  # a Spark write has many branches there: keep the one that differs
        if outcome is not BranchOutcome.COMMITTED:
            # One that was prepared until this command has ended by itself: its database may tell that only once.
            told_once = remembers_end(branch) or self.snapshot.was_listed(record)
            self._record_heuristic(record, "commit", outcome, at_once=told_once)
            forget_ends([branch])
        elif self.snapshot.was_listed(record):
            self.recorder.record_commit(Ended(record.xid.joined, record.datasource, why))
        return True

    def _judged(self, name: str, record: BranchRecord, outcome: BranchOutcome) -> BranchOutcome:
        """The outcome of a commit, also of a branch that is gone."""
        if outcome is BranchOutcome.NO_ROW:
            return judged_without_row(record, partial(self._is_decided, record.xid.gtrid), self.log.heuristics)
        if outcome is not BranchOutcome.ABSENT:
            return outcome
        there, heuristics = self.snapshot.listings[name].identity, self.snapshot.heuristics
        return judged_absent(record, BranchOutcome.COMMITTED, ended_by_another=True, there=there, heuristics=heuristics)

    def _is_decided(self, gtrid: str) -> bool:
        """Whether the decision is still there."""
        name = self.snapshot.marked_by(gtrid)
        table = None if name is None else self.datasources.table(name, self.snapshot.identity_of(gtrid))
        if table is None:
            return gtrid in self.log.decisions()
        return any(row.gtrid == gtrid and row.committed for row in table.read())

    def start_rollback(self, branch: ListedBranch, why: str) -> Callable[[], None]:
        """Start to roll back a listed branch. The caller has made sure that no decision commits it.

        Returns what waits for the answer.
        """
        if failpoints.armed:
            failpoints.hit("recovery.branch")
        started = self._ends.branch(branch.datasource, branch.record)
        started.start_rollback()
        return partial(self._finish_rollback, branch, started, why)

    def _finish_rollback(self, listed: ListedBranch, branch: AskedBranch, why: str) -> None:
        outcome = self._in_trace("rollback", branch.record, branch.await_rollback)
        if outcome is BranchOutcome.UNKNOWN:
            words = branch.why_unknown or _explanation(self.datasources.managers[listed.datasource], branch.record)
            self._leave_named_alone(
                branch.record, f"{listed.datasource} gave no answer to its rollback, {_ASKED_AGAIN}", words
            )
        elif outcome is BranchOutcome.ROLLED_BACK:
            self.recorder.record_rollback(Ended(listed.xid.joined, listed.datasource, why))
        elif outcome is BranchOutcome.COMMITTED or remembers_end(branch):
            self._record_heuristic(branch.record, "rollback", outcome)
            forget_ends([branch])
        # ABSENT or LOST: another recovery manager or a person has ended it; the next listing will not show it.

    def carry_out(self, gtrid: str, named: tuple[BranchRecord, ...], why: str) -> Callable[[], bool]:
        """Start to carry out a decision: commit the branches that it names, and roll back the transaction's others.

        Returns what waits for the answers, and tells whether the databases of all named branches have answered.
        """
        commits = [self.start_commit(record, why) for record in named]
        names = {record.xid for record in named}
        rollbacks = [
            self.start_rollback(branch, "the decision does not name it")
            for branch in self.snapshot.listed_branches(gtrid)
            if branch.xid not in names
        ]
        ends: list[Callable[[], bool | None]] = [partial(self._carried_out, gtrid, commits), *rollbacks]
        return lambda: wait_for(ends)[0] is True

    def _carried_out(self, gtrid: str, commits: Iterable[Callable[[], bool]]) -> bool:
        answers = wait_for(commits)
        ends = self._outcomes.pop(gtrid, {})
        if gtrid in self._with_heuristics:
            self._unsaved[gtrid] = ends
        return all(answers)

    def leave_alone(self, branch: ListedBranch, reason: str, *, alarm: bool = True) -> None:
        """Record that a listed branch is left alone, and why."""
        gtrid = branch.xid.gtrid
        self.recorder.record_left_alone(LeftAlone(gtrid, branch.xid.joined, branch.datasource, reason, alarm))

    def leave_all_alone(self, gtrid: str, reason: str, *, alarm: bool = True) -> None:
        """Record that a transaction is left alone: each of its listed branches, or the gtrid if none is listed."""
        branches = self.snapshot.listed_branches(gtrid)
        for branch in branches:
            self.leave_alone(branch, reason, alarm=alarm)
        if not branches:
            self.recorder.record_left_alone(LeftAlone(gtrid, "", "", reason, alarm))

    def _in_trace(self, verb: str, record: BranchRecord, act: Callable[[], BranchOutcome]) -> BranchOutcome:
        """Await a branch's end, within the trace of its transaction if tracing is on."""
        if tracing.tracer is None:
            return act()
        traceparent = self.snapshot.annotations(record.xid.gtrid)[TRACEPARENT]
        return tracing.tracer.recover(verb, record, traceparent, lambda _: act())

    def _leads_to(self, record: BranchRecord) -> str | None:
        """The datasource that leads to the branch's database; if there is none, None, and the reason is recorded."""
        found = self.snapshot.datasource_of(record)
        name = found or record.datasource
        if found is None:
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
                f"{name} {OTHER_DATABASE}: that was {record.identity}, and this is {there} (a server's system "
                "identifier and the oid of a database on it). Correct its url, or this user's rights; the decision to "
                "commit is kept",
            )
            return None
        return name

    def _leave_named_alone(self, record: BranchRecord, reason: str, error: str = "") -> None:
        gid, lacks = record.xid.joined, isinstance(error, LackOfRight)
        left = LeftAlone(record.xid.gtrid, gid, record.datasource, reason, error=error, lacks_right=lacks)
        self.recorder.record_left_alone(left)

    def _record_heuristic(
        self, record: BranchRecord, decided: str, outcome: BranchOutcome, *, at_once: bool = True
    ) -> None:
        gtrid, bqual = record.xid
        if (gtrid, bqual) in self._known:
            return
        found = Heuristic(gtrid, bqual, record.datasource, decided, outcome.value, time.time())
        if at_once:
            self._keep(found)
        else:
            self._with_heuristics.add(gtrid)
            self._unwritten.append(found)

    def tell_of_last_resource(self, gtrid: str, datasource: str) -> None:
        """Record that the last resource may have committed what is about to roll back; nothing shows whether it has."""
        if gtrid not in self._with_heuristics:
            self._keep(Heuristic(gtrid, "", datasource, "rollback", BranchOutcome.LOST.value, time.time()))

    def take_back_last_resource(self, gtrid: str) -> None:
        """Delete what was recorded of the last resource, since the decision has landed after all."""
        if gtrid in self._with_heuristics and any(
            each.gtrid == gtrid and not each.bqual and each.decided == "rollback" for each in self.snapshot.heuristics
        ):
            self.log.dismiss_heuristics(gtrid, "")

    def _keep(self, *found: Heuristic) -> None:
        # The decision, which has the note, will be deleted before the heuristic outcome is.
        noted = {each.gtrid: each.noted for each in found}
        notes = [(gtrid, self.snapshot.annotations(gtrid)[NOTE], when) for gtrid, when in noted.items()]
        records = [SideRecord(NOTE, gtrid, note, when) for gtrid, note, when in notes if note]
        if records:
            self.log.put_record(*records)
        self.log.record_heuristic(*found)
        for each in found:
            self._with_heuristics.add(each.gtrid)
            self.recorder.record_heuristic(each)
