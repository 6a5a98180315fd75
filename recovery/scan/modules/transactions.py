"""The modules that end transactions: those that a marked datasource decides, those that the log decides, and orphans.

A pass runs them in this order. Every step may be repeated, also by another recovery manager: then it changes nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass
from functools import partial
from operator import attrgetter
from typing import Protocol, TypeVar

from recovery.scan.datasources.datasources import ListedBranch
from recovery.scan.datasources.names import is_called
from recovery.scan.modules.last_resources import tell_of_noted
from recovery.scan.modules.orphans import OrphanFilter, Vote, poll
from recovery.scan.phase_two import wait_for
from recovery.scan.recovery_pass import RecoveryPass
from recovery.scan.snapshot import CoordinatorState, Snapshot, same_identity
from txpool import failpoints
from txpool.config.secrets import describe_error
from txpool.errors import ConfigurationError, OperationalError, described
from txpool.packed import Packer
from txpool.resources.recovery_access import MarkedRow
from txpool.xid import Xid

T = TypeVar("T")


class Module(Protocol):
    """One module of a pass. Its failure is reported under `name`."""

    name: str

    def run(self, this_pass: RecoveryPass) -> None: ...


class MarkedModule:
    """Ends the transactions that a marked datasource decides: a tombstone meets the row, or takes its place."""

    name = "marked"

    def run(self, this_pass: RecoveryPass) -> None:
        resolved: dict[str, ResolvedMark] = this_pass.kept.setdefault(self, {})
        resolved |= run_steps(this_pass, self.name, this_pass.snapshot.gtrids, self._start)
        if resolved and this_pass.is_last:  # one later listing does for all windows
            delete_finished(this_pass, resolved.values())

    def _start(self, this_pass: RecoveryPass, gtrid: str) -> Callable[[], ResolvedMark] | None:
        name = this_pass.snapshot.marked_by(gtrid)
        if name is None or not _needs_tombstone(this_pass.snapshot, gtrid):
            _report_kept(this_pass, gtrid, f"its row in {name} is kept")
            return None
        try:
            row = tombstone(this_pass, name, gtrid)
        except Exception as error:
            this_pass.leave_all_alone(gtrid, f"{name} decides it and has not answered: {described(error)}")
            return None
        return finish_branches(this_pass, name, row)


@dataclass(frozen=True, slots=True)
class ResolvedMark:
    """The row or tombstone that decides a transaction, and whether all branches that it names have answered."""

    datasource: str
    row: MarkedRow
    answered: bool


def tombstone(this_pass: RecoveryPass, datasource: str, gtrid: str) -> MarkedRow:
    """Resolve durably how the marked datasource decides. After an error, the transaction stays undecided."""
    identity = this_pass.snapshot.identity_of(gtrid)
    table = this_pass.datasources.table(datasource, identity)
    if table is None:
        raise ConfigurationError(
            f"{datasource} is no marked datasource (mode=cmr) of this configuration: add its file to `datasources`"
        )
    if datasource in this_pass.snapshot.unanswered:
        raise OperationalError(this_pass.snapshot.unanswered[datasource])
    if failpoints.armed:
        failpoints.hit("recovery.tombstone")
    return table.tombstone(gtrid, identity)


def finish_branches(this_pass: RecoveryPass, datasource: str, row: MarkedRow) -> Callable[[], ResolvedMark]:
    """Start to commit or roll back in the other databases, as the row or the tombstone says.

    Returns what waits for the answers.
    """
    if row.committed:
        carried_out = this_pass.carry_out(row.gtrid, row.branches, f"committed in {datasource}, which decides it")
        return lambda: ResolvedMark(datasource, row, carried_out())
    rolled_back = [
        this_pass.start_rollback(branch, f"not committed in {datasource}, which decides it, and never will be")
        for branch in this_pass.snapshot.listed_branches(row.gtrid)
    ]

    def wait() -> ResolvedMark:
        wait_for(rolled_back)
        return ResolvedMark(datasource, row, True)

    return wait


def delete_finished(this_pass: RecoveryPass, resolved: Iterable[ResolvedMark]) -> None:
    """Delete the rows whose branches have all answered, and are absent from a listing taken after the answers."""
    this_pass.settle()
    snapshot, resolved = this_pass.whole, list(resolved)
    later, unanswered = this_pass.datasources.listings()
    listed: dict[str, list[ListedBranch]] = {each.row.gtrid: [] for each in resolved}
    for branch in (branch for listing in later.values() for branch in listing.branches):
        if branch.xid.gtrid in listed:
            listed[branch.xid.gtrid].append(branch)
    ended = [
        each
        for each in resolved
        if each.answered and _has_ended(snapshot, each.row, listed, later.keys(), not unanswered)
    ]
    if not ended:
        return
    if failpoints.armed:
        failpoints.hit("recovery.forget")
    for name, table in this_pass.datasources.tables.items():
        keys = [each.row.gtrid for each in ended if is_called(each.datasource, name)]
        if keys:
            table.delete(keys)
            this_pass.recorder.record_forgotten(keys)
    # The pointer is deleted after its row: without the pointer, the log would seem to decide the transaction.
    fenced = {each.row.gtrid for each in ended if snapshot.coordinator_state(each.row.gtrid) is CoordinatorState.FENCED}
    kept = snapshot.pointers, snapshot.finished, snapshot.aborted
    recorded = {gtrid for gtrid in fenced if any(gtrid in each for each in kept)}
    if recorded:
        this_pass.log.purge(recorded)


def _needs_tombstone(snapshot: Snapshot, gtrid: str) -> bool:
    """Whether to write a tombstone. If only a pointer is left, that waits until the coordinator is fenced."""
    if not snapshot.is_left_to_recovery(gtrid):
        return False
    pointed = gtrid in snapshot.pointers and snapshot.coordinator_state(gtrid) is CoordinatorState.FENCED
    return pointed or snapshot.is_listed(gtrid) or snapshot.row(gtrid) is not None


def _has_ended(
    snapshot: Snapshot,
    row: MarkedRow,
    later: Mapping[str, Sequence[ListedBranch]],
    answering: Set[str | None],
    all_answered: bool,
) -> bool:
    """Whether the later listing has no branch of a transaction, and every datasource that could list one answered."""
    # A tombstone names no branches, so every datasource must have answered.
    answered = {snapshot.datasource_of(each) for each in row.branches} <= answering if row.committed else all_answered
    named = {record.xid: record.identity for record in row.branches}
    # A branch of the same name in another database than the row says is not the branch that the row names.
    return answered and not any(
        snapshot.is_believed(branch) or (branch.xid in named and same_identity(named[branch.xid], branch.identity))
        for branch in later.get(row.gtrid, ())
    )


class DecidedModule:
    """Ends the transactions that the log has decided: named branches commit, all others roll back."""

    name = "decided"

    def run(self, this_pass: RecoveryPass) -> None:
        ended = run_steps(this_pass, self.name, this_pass.snapshot.decisions, self._start)
        answered = [gtrid for gtrid, all_answered in ended.items() if all_answered]
        if not answered:
            return
        this_pass.settle()
        if failpoints.armed:
            failpoints.hit("recovery.forget")
        fenced = [gtrid for gtrid in answered if this_pass.snapshot.coordinator_state(gtrid) is CoordinatorState.FENCED]
        for gtrid in set(answered).difference(fenced):
            # The finished mark stays as long as the process is alive: a late branch may still appear.
            this_pass.log.forget(gtrid)
        this_pass.log.purge(fenced)  # this also writes the lazy forgets above
        this_pass.recorder.record_forgotten(answered)

    def _start(self, this_pass: RecoveryPass, gtrid: str) -> Callable[[], bool] | None:
        snapshot = this_pass.snapshot
        if snapshot.marked_by(gtrid) is not None:
            return None
        if not snapshot.is_left_to_recovery(gtrid):
            _report_kept(this_pass, gtrid, "its decision to commit is kept")
            return None
        this_pass.take_back_last_resource(gtrid)
        return this_pass.carry_out(gtrid, snapshot.decisions[gtrid].branches, "decided in the log")


class OrphanModule:
    """Rolls back orphans that two passes in a row have found. `candidates` count as found by an earlier pass."""

    name = "orphans"

    def __init__(self, filters: Iterable[OrphanFilter], candidates: Iterable[Xid] = ()) -> None:
        self._filters = tuple(filters)
        #: The orphans that the previous pass has found, or this one has found so far.
        self._candidates = _packer(candidates)

    @property
    def has_candidates(self) -> bool:
        """Whether the last pass has found an orphan that a second pass may roll back."""
        return len(self._candidates) > 0

    def add_candidates(self, xids: Iterable[Xid]) -> None:
        """Let these count as orphans that the last pass has found: the next one may roll them back."""
        self._candidates.extend(xids)

    def run(self, this_pass: RecoveryPass) -> None:
        if self not in this_pass.kept:
            this_pass.kept[self], self._candidates = self._candidates.packed(), _packer()
            if not this_pass.is_last:
                this_pass.expect(len(this_pass.kept[self]))
        before = set(this_pass.window.part_of(this_pass.kept[self], attrgetter("gtrid")))
        listed = filter(this_pass.snapshot.is_listed, this_pass.snapshot.gtrids)
        run_steps(this_pass, self.name, listed, partial(self._start, before))
        self._sweep(this_pass)

    def _start(self, before: set[Xid], this_pass: RecoveryPass, gtrid: str) -> Callable[[], list[None]] | None:
        left = this_pass.snapshot.is_left_to_recovery(gtrid)
        if left and _is_decided_elsewhere(this_pass.snapshot, gtrid):
            return None  # whatever a filter says
        rolled_back = []
        try:
            for branch in this_pass.snapshot.listed_branches(gtrid):
                ballot = poll(self._filters, this_pass.snapshot, branch.xid)
                if ballot.vote is Vote.ROLLBACK and branch.xid in before:
                    last = this_pass.snapshot.last_resource(gtrid)
                    if last:
                        this_pass.tell_of_last_resource(gtrid, last)  # durably, before the first branch rolls back
                    rolled_back.append(this_pass.start_rollback(branch, ballot.reason))
                elif ballot.vote is Vote.ROLLBACK:
                    self._candidates.add(branch.xid)
                    this_pass.leave_alone(branch, "the next pass rolls it back", alarm=False)
                else:
                    this_pass.leave_alone(branch, ballot.reason, alarm=ballot.alarm)
        except Exception:  # a filter's: what was started before it has an outcome all the same
            wait_for(rolled_back)
            raise
        return partial(wait_for, rolled_back)

    def _sweep(self, this_pass: RecoveryPass) -> None:
        """Delete finished marks and abort records of fenced incarnations: the fence refuses their decisions as well."""
        snapshot = this_pass.snapshot
        kept = {*snapshot.decisions, *snapshot.pointers, *snapshot.last_resources}
        recorded = {*snapshot.finished, *snapshot.aborted} - kept
        needless = [
            gtrid
            for gtrid in sorted(recorded)
            if snapshot.coordinator_state(gtrid) is CoordinatorState.FENCED and not snapshot.is_listed(gtrid)
        ]
        needless += tell_of_noted(this_pass)
        if needless:
            this_pass.log.purge(needless)
            this_pass.recorder.record_forgotten(needless)


def _packer(xids: Iterable[Xid] = ()) -> Packer[Xid]:
    packer = Packer[Xid](tuple, lambda plain: Xid(*plain))
    packer.extend(xids)
    return packer


def _is_decided_elsewhere(snapshot: Snapshot, gtrid: str) -> bool:
    """Whether another module ends the transaction, and reports it."""
    return gtrid in snapshot.decisions or snapshot.marked_by(gtrid) is not None


def _report_kept(this_pass: RecoveryPass, gtrid: str, what: str) -> None:
    """Report that a decision's record stays, if no branch is listed and no living process ends it."""
    snapshot = this_pass.snapshot
    state = snapshot.coordinator_state(gtrid)
    decided = gtrid in snapshot.decisions or snapshot.row(gtrid) is not None
    if state in (CoordinatorState.DEAD, CoordinatorState.UNKNOWN) and decided and not snapshot.is_listed(gtrid):
        this_pass.leave_all_alone(gtrid, f"{what}: {state.value}")


def run_steps(
    this_pass: RecoveryPass,
    name: str,
    gtrids: Iterable[str],
    start: Callable[[RecoveryPass, str], Callable[[], T] | None],
) -> dict[str, T]:
    """Start a module's step for each transaction, then wait for what each has started; returns the results by gtrid.

    A failure is recorded, and stops neither the module nor the other transactions.
    """
    started = {
        gtrid: finish
        for gtrid in gtrids
        if (finish := _recorded(this_pass, name, gtrid, partial(start, this_pass, gtrid))) is not None
    }
    finished = {gtrid: _recorded(this_pass, name, gtrid, started.pop(gtrid)) for gtrid in list(started)}
    return {gtrid: result for gtrid, result in finished.items() if result is not None}


def _recorded(this_pass: RecoveryPass, name: str, gtrid: str, step: Callable[[], T]) -> T | None:
    """The step's result; None if it fails, and the failure is recorded."""
    try:
        return step()
    except Exception as error:
        this_pass.recorder.record_failure(f"{name} {gtrid}", describe_error(error))
        return None
