"""What a pass does with its evidence, in order: what is marked, what is decided, what is orphaned.

Everything here may be done again, by another recoverer too, and changes nothing then.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Protocol, TypeVar

from recovery.scan.datasources import ListedBranch
from recovery.scan.orphans import OrphanFilter, Vote, poll
from recovery.scan.recovery_pass import RecoveryPass
from recovery.scan.report import describe_error
from recovery.scan.snapshot import CoordinatorState, Snapshot, same_identity
from txpool import failpoints
from txpool.errors import ConfigurationError, OperationalError
from txpool.resources.base import MarkedRow
from txpool.xid import Xid

T = TypeVar("T")


class Module(Protocol):
    """One module of a pass; `name` is what a failure of it is called by."""

    name: str

    def run(self, this_pass: RecoveryPass) -> None: ...


class MarkedModule:
    """Transactions that a marked datasource decides: a tombstone under their key meets the row, or takes its place."""

    name = "marked"

    def run(self, this_pass: RecoveryPass) -> None:
        steps = (_run_step(this_pass, self.name, gtrid, self._resolve) for gtrid in this_pass.snapshot.gtrids)
        met = [found for found in steps if found is not None]
        if met:
            delete_finished(this_pass, met)

    def _resolve(self, this_pass: RecoveryPass, gtrid: str) -> ResolvedMark | None:
        name = this_pass.snapshot.marked_by(gtrid)
        if name is None or not _needs_tombstone(this_pass.snapshot, gtrid):
            _report_kept(this_pass, gtrid, f"its row in {name} is kept")
            return None
        try:
            row = tombstone(this_pass, name, gtrid)
        except Exception as error:
            this_pass.leave_all_alone(gtrid, f"{name} decides it, and has not answered: {error}")
            return None
        return finish_branches(this_pass, name, row)


@dataclass(frozen=True, slots=True)
class ResolvedMark:
    """What a tombstone has met, and whether every branch that a row names has answered."""

    datasource: str
    row: MarkedRow
    answered: bool


def tombstone(this_pass: RecoveryPass, datasource: str, gtrid: str) -> MarkedRow:
    """Establish durably how the marked datasource has decided; any error leaves it undecided."""
    table = this_pass.datasources.table(datasource)
    if table is None:
        raise ConfigurationError("it is no marked datasource (mode=cmr) of this configuration: name its file")
    if datasource in this_pass.snapshot.unanswered:
        raise OperationalError(this_pass.snapshot.unanswered[datasource])
    if failpoints.armed:
        failpoints.hit("recovery.tombstone")
    return table.tombstone(gtrid, this_pass.snapshot.identity_of(gtrid))


def finish_branches(this_pass: RecoveryPass, datasource: str, row: MarkedRow) -> ResolvedMark:
    """Do in the other databases what the row or the tombstone says."""
    if row.committed:
        answered = this_pass.carry_out(row.gtrid, row.branches, f"committed in {datasource}, which decides it")
        return ResolvedMark(datasource, row, answered)
    for branch in this_pass.snapshot.listed_branches(row.gtrid):
        this_pass.roll_back(branch, f"not committed in {datasource}, which decides it, and never will be")
    return ResolvedMark(datasource, row, True)


def delete_finished(this_pass: RecoveryPass, resolved: Iterable[ResolvedMark]) -> None:
    """Delete the rows whose branches have all answered, as a listing shows that is taken after their answers."""
    later, silent = this_pass.datasources.listings()
    listed: dict[str, list[ListedBranch]] = {}
    for branch in (branch for listing in later.values() for branch in listing.branches):
        listed.setdefault(branch.xid.gtrid, []).append(branch)
    answered = later.keys(), not silent
    gone = [each for each in resolved if each.answered and _has_ended(this_pass.snapshot, each.row, listed, *answered)]
    if not gone:
        return
    if failpoints.armed:
        failpoints.hit("recovery.forget")
    for name, table in this_pass.datasources.tables.items():
        keys = [each.row.gtrid for each in gone if each.datasource == name]
        if keys:
            table.delete(keys)
            this_pass.recorder.record_forgotten(keys)
    # A pointer outlives the row that it points to: without it, the log would be taken to decide.
    snapshot = this_pass.snapshot
    fenced = {each.row.gtrid for each in gone if snapshot.coordinator_state(each.row.gtrid) is CoordinatorState.FENCED}
    kept = fenced.intersection({*snapshot.pointers, *snapshot.finished, *snapshot.aborted})
    if kept:
        this_pass.log.purge(kept)


def _needs_tombstone(snapshot: Snapshot, gtrid: str) -> bool:
    """Whether a tombstone is due; a finished transaction's pointer alone is kept until its process is fenced."""
    if not snapshot.is_left_to_recovery(gtrid):
        return False
    pointed = gtrid in snapshot.pointers and snapshot.coordinator_state(gtrid) is CoordinatorState.FENCED
    return pointed or snapshot.is_listed(gtrid) or snapshot.row(gtrid) is not None


def _has_ended(
    snapshot: Snapshot,
    row: MarkedRow,
    later: Mapping[str, Sequence[ListedBranch]],
    answering: Set[str | None],
    everybody: bool,
) -> bool:
    """Whether no branch of it is in a later listing, by gtrid, and all have answered who could tell of one."""
    # A tombstone names nobody, so everybody must have answered.
    answered = {snapshot.datasource_of(each) for each in row.branches} <= answering if row.committed else everybody
    named = {record.xid: record.identity for record in row.branches}
    # Under the very name, in another database than the row says, it is none of those.
    return answered and not any(
        snapshot.is_believed(branch) or (branch.xid in named and same_identity(named[branch.xid], branch.identity))
        for branch in later.get(row.gtrid, ())
    )


class DecidedModule:
    """Transactions that the log has decided: the named branches commit, and losers roll back."""

    name = "decided"

    def run(self, this_pass: RecoveryPass) -> None:
        answered = [
            gtrid for gtrid in this_pass.snapshot.decisions if _run_step(this_pass, self.name, gtrid, self._finish)
        ]
        if not answered:
            return
        if failpoints.armed:
            failpoints.hit("recovery.forget")
        fenced = [gtrid for gtrid in answered if this_pass.snapshot.coordinator_state(gtrid) is CoordinatorState.FENCED]
        for gtrid in set(answered).difference(fenced):
            # Its finished mark stays for as long as its process lives: a branch of it may still appear.
            this_pass.log.forget(gtrid)
        this_pass.log.purge(fenced)  # and writes what is lazily forgotten
        this_pass.recorder.record_forgotten(answered)

    def _finish(self, this_pass: RecoveryPass, gtrid: str) -> bool:
        snapshot = this_pass.snapshot
        if snapshot.marked_by(gtrid) is not None:
            return False
        if not snapshot.is_left_to_recovery(gtrid):
            _report_kept(this_pass, gtrid, "it is decided to commit, and that is kept")
            return False
        return this_pass.carry_out(gtrid, snapshot.decisions[gtrid].branches, "decided in the log")


class OrphanModule:
    """Branches that nothing stands for: what a pass has found and the next one still sees is rolled back."""

    name = "orphans"

    def __init__(self, filters: Iterable[OrphanFilter], candidates: Iterable[Xid] = ()) -> None:
        self._filters = tuple(filters)
        #: What the pass before would have rolled back.
        self._candidates = set(candidates)

    @property
    def has_candidates(self) -> bool:
        """Whether there is anything for a second pass to look at."""
        return bool(self._candidates)

    def run(self, this_pass: RecoveryPass) -> None:
        before, self._candidates = self._candidates, set()
        for gtrid in filter(this_pass.snapshot.is_listed, this_pass.snapshot.gtrids):
            _run_step(this_pass, self.name, gtrid, lambda this_pass, gtrid: self._decide(this_pass, gtrid, before))
        self._sweep(this_pass)

    def _decide(self, this_pass: RecoveryPass, gtrid: str, before: set[Xid]) -> None:
        for branch in this_pass.snapshot.listed_branches(gtrid):
            ballot = poll(self._filters, this_pass.snapshot, branch.xid)
            if ballot.vote is Vote.ROLLBACK and branch.xid in before:
                this_pass.roll_back(branch, ballot.reason)
            elif ballot.vote is Vote.ROLLBACK:
                self._candidates.add(branch.xid)
                this_pass.leave_alone(branch, "the next pass rolls it back", alarm=False)
            elif not this_pass.snapshot.is_left_to_recovery(gtrid) or not _is_decided_elsewhere(
                this_pass.snapshot, gtrid
            ):
                this_pass.leave_alone(branch, ballot.reason, alarm=ballot.alarm)

    def _sweep(self, this_pass: RecoveryPass) -> None:
        """Drop the marks and abort records of fenced incarnations: the fence says the same for ever."""
        snapshot = this_pass.snapshot
        kept = {*snapshot.finished, *snapshot.aborted} - {*snapshot.decisions, *snapshot.pointers}
        done = [
            gtrid
            for gtrid in sorted(kept)
            if snapshot.coordinator_state(gtrid) is CoordinatorState.FENCED and not snapshot.is_listed(gtrid)
        ]
        if done:
            this_pass.log.purge(done)
            this_pass.recorder.record_forgotten(done)


def _is_decided_elsewhere(snapshot: Snapshot, gtrid: str) -> bool:
    """Whether another module has its say, and its words."""
    return gtrid in snapshot.decisions or snapshot.marked_by(gtrid) is not None


def _report_kept(this_pass: RecoveryPass, gtrid: str, what: str) -> None:
    """Say that a decision without listed branches stays, where nobody living will end it."""
    snapshot = this_pass.snapshot
    standing = snapshot.coordinator_state(gtrid)
    decided = gtrid in snapshot.decisions or snapshot.row(gtrid) is not None
    if standing in (CoordinatorState.DEAD, CoordinatorState.UNKNOWN) and decided and not snapshot.is_listed(gtrid):
        this_pass.leave_all_alone(gtrid, f"{what}: {standing.value}")


def _run_step(this_pass: RecoveryPass, name: str, gtrid: str, step: Callable[[RecoveryPass, str], T]) -> T | None:
    """One transaction's part of a module: what fails there stops neither the module nor the others."""
    try:
        return step(this_pass, gtrid)
    except Exception as error:
        this_pass.recorder.record_failure(f"{name} {gtrid}", describe_error(error))
        return None
