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

    def run(self, work: RecoveryPass) -> None: ...


class MarkedModule:
    """Transactions that a marked datasource decides: a tombstone under their key meets the row, or takes its place."""

    name = "marked"

    def run(self, work: RecoveryPass) -> None:
        steps = (_guarded(work, self.name, gtrid, self._resolve) for gtrid in work.snapshot.gtrids)
        met = [found for found in steps if found is not None]
        if met:
            delete_finished(work, met)

    def _resolve(self, work: RecoveryPass, gtrid: str) -> ResolvedMark | None:
        name = work.snapshot.marked_by(gtrid)
        if name is None or not _is_to_do(work.snapshot, gtrid):
            _note_kept(work, gtrid, f"its row in {name} is kept")
            return None
        try:
            row = tombstone(work, name, gtrid)
        except Exception as error:
            work.leave_all(gtrid, f"{name} decides it, and has not answered: {error}")
            return None
        return finish_branches(work, name, row)


@dataclass(frozen=True, slots=True)
class ResolvedMark:
    """What a tombstone has met, and whether every branch that a row names has answered."""

    datasource: str
    row: MarkedRow
    answered: bool


def tombstone(work: RecoveryPass, datasource: str, gtrid: str) -> MarkedRow:
    """Establish durably how the marked datasource has decided; any error leaves it undecided."""
    table = work.datasources.table(datasource)
    if table is None:
        raise ConfigurationError("it is no marked datasource (mode=cmr) of this configuration: name its file")
    if datasource in work.snapshot.silent:
        raise OperationalError(work.snapshot.silent[datasource])
    if failpoints.armed:
        failpoints.hit("recovery.tombstone")
    return table.tombstone(gtrid, work.snapshot.identity_of(gtrid))


def finish_branches(work: RecoveryPass, datasource: str, row: MarkedRow) -> ResolvedMark:
    """Do in the other databases what the row or the tombstone says."""
    if row.committed:
        answered = work.settle(row.gtrid, row.branches, f"committed in {datasource}, which decides it")
        return ResolvedMark(datasource, row, answered)
    for branch in work.snapshot.listed_branches(row.gtrid):
        work.roll_back(branch, f"not committed in {datasource}, which decides it, and never will be")
    return ResolvedMark(datasource, row, True)


def delete_finished(work: RecoveryPass, met: Iterable[ResolvedMark]) -> None:
    """Delete the rows whose branches have all answered, as a listing shows that is taken after their answers."""
    later, silent = work.datasources.listings()
    listed: dict[str, list[ListedBranch]] = {}
    for branch in (branch for listing in later.values() for branch in listing.branches):
        listed.setdefault(branch.xid.gtrid, []).append(branch)
    answered = later.keys(), not silent
    gone = [each for each in met if each.answered and _is_gone(work.snapshot, each.row, listed, *answered)]
    if not gone:
        return
    if failpoints.armed:
        failpoints.hit("recovery.forget")
    for name, table in work.datasources.tables.items():
        keys = [each.row.gtrid for each in gone if each.datasource == name]
        if keys:
            table.delete(keys)
            work.recorder.forget(keys)
    # A pointer outlives the row that it points to: without it, the log would be taken to decide.
    evidence = work.snapshot
    fenced = {each.row.gtrid for each in gone if evidence.coordinator_state(each.row.gtrid) is CoordinatorState.FENCED}
    kept = fenced.intersection({*evidence.pointers, *evidence.finished, *evidence.aborted})
    if kept:
        work.log.purge(kept)


def _is_to_do(evidence: Snapshot, gtrid: str) -> bool:
    """Whether a tombstone is due; a finished transaction's pointer alone is kept until its process is fenced."""
    if not evidence.ended(gtrid):
        return False
    pointed = gtrid in evidence.pointers and evidence.coordinator_state(gtrid) is CoordinatorState.FENCED
    return pointed or evidence.listed(gtrid) or evidence.row(gtrid) is not None


def _is_gone(
    evidence: Snapshot,
    row: MarkedRow,
    later: Mapping[str, Sequence[ListedBranch]],
    answering: Set[str | None],
    everybody: bool,
) -> bool:
    """Whether no branch of it is in a later listing, by gtrid, and all have answered who could tell of one."""
    # A tombstone names nobody, so everybody must have answered.
    answered = {evidence.datasource_of(each) for each in row.branches} <= answering if row.committed else everybody
    named = {record.xid: record.identity for record in row.branches}
    # Under the very name, in another database than the row says, it is none of those.
    return answered and not any(
        evidence.is_believed(branch) or (branch.xid in named and same_identity(named[branch.xid], branch.identity))
        for branch in later.get(row.gtrid, ())
    )


class DecidedModule:
    """Transactions that the log has decided: the named branches commit, and losers roll back."""

    name = "decided"

    def run(self, work: RecoveryPass) -> None:
        answered = [gtrid for gtrid in work.snapshot.decisions if _guarded(work, self.name, gtrid, self._finish)]
        if not answered:
            return
        if failpoints.armed:
            failpoints.hit("recovery.forget")
        fenced = [gtrid for gtrid in answered if work.snapshot.coordinator_state(gtrid) is CoordinatorState.FENCED]
        for gtrid in set(answered).difference(fenced):
            # Its finished mark stays for as long as its process lives: a branch of it may still appear.
            work.log.forget(gtrid)
        work.log.purge(fenced)  # and writes what is lazily forgotten
        work.recorder.forget(answered)

    def _finish(self, work: RecoveryPass, gtrid: str) -> bool:
        evidence = work.snapshot
        if evidence.marked_by(gtrid) is not None:
            return False
        if not evidence.ended(gtrid):
            _note_kept(work, gtrid, "it is decided to commit, and that is kept")
            return False
        return work.settle(gtrid, evidence.decisions[gtrid].branches, "decided in the log")


class OrphanModule:
    """Branches that nothing stands for: what a pass has found and the next one still sees is rolled back."""

    name = "orphans"

    def __init__(self, filters: Iterable[OrphanFilter], candidates: Iterable[Xid] = ()) -> None:
        self._filters = tuple(filters)
        #: What the pass before would have rolled back.
        self._candidates = set(candidates)

    @property
    def waiting(self) -> bool:
        """Whether there is anything for a second pass to look at."""
        return bool(self._candidates)

    def run(self, work: RecoveryPass) -> None:
        before, self._candidates = self._candidates, set()
        for gtrid in filter(work.snapshot.listed, work.snapshot.gtrids):
            _guarded(work, self.name, gtrid, lambda work, gtrid: self._decide(work, gtrid, before))
        self._sweep(work)

    def _decide(self, work: RecoveryPass, gtrid: str, before: set[Xid]) -> None:
        for branch in work.snapshot.listed_branches(gtrid):
            ballot = poll(self._filters, work.snapshot, branch.xid)
            if ballot.vote is Vote.ROLLBACK and branch.xid in before:
                work.roll_back(branch, ballot.reason)
            elif ballot.vote is Vote.ROLLBACK:
                self._candidates.add(branch.xid)
                work.leave(branch, "the next pass rolls it back", alarm=False)
            elif not work.snapshot.ended(gtrid) or not _is_decided_elsewhere(work.snapshot, gtrid):
                work.leave(branch, ballot.reason, alarm=ballot.alarm)

    def _sweep(self, work: RecoveryPass) -> None:
        """Drop the marks and abort records of fenced incarnations: the fence says the same for ever."""
        evidence = work.snapshot
        kept = {*evidence.finished, *evidence.aborted} - {*evidence.decisions, *evidence.pointers}
        done = [
            gtrid
            for gtrid in sorted(kept)
            if evidence.coordinator_state(gtrid) is CoordinatorState.FENCED and not evidence.listed(gtrid)
        ]
        if done:
            work.log.purge(done)
            work.recorder.forget(done)


def _is_decided_elsewhere(evidence: Snapshot, gtrid: str) -> bool:
    """Whether another module has its say, and its words."""
    return gtrid in evidence.decisions or evidence.marked_by(gtrid) is not None


def _note_kept(work: RecoveryPass, gtrid: str, what: str) -> None:
    """Say that a decision without listed branches stays, where nobody living will end it."""
    evidence = work.snapshot
    standing = evidence.coordinator_state(gtrid)
    decided = gtrid in evidence.decisions or evidence.row(gtrid) is not None
    if standing in (CoordinatorState.DEAD, CoordinatorState.UNKNOWN) and decided and not evidence.listed(gtrid):
        work.leave_all(gtrid, f"{what}: {standing.value}")


def _guarded(work: RecoveryPass, name: str, gtrid: str, step: Callable[[RecoveryPass, str], T]) -> T | None:
    """One transaction's part of a module: what fails there stops neither the module nor the others."""
    try:
        return step(work, gtrid)
    except Exception as error:
        work.recorder.fail(f"{name} {gtrid}", describe_error(error))
        return None
