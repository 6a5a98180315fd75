"""What an operator may do by hand: only what stays safe whatever the transaction's process does meanwhile."""

from __future__ import annotations

from collections.abc import Callable

from recovery.scan import expiry, saved
from recovery.scan.datasources import RecoveryDatasources
from recovery.scan.modules import ResolvedMark, delete_finished, finish_branches, tombstone
from recovery.scan.reading import take_snapshot
from recovery.scan.recovery_pass import RecoveryPass
from recovery.scan.report import ScanRecorder
from recovery.scan.snapshot import CoordinatorState, Snapshot
from txpool.errors import OperationalError, ProgrammingError
from txpool.log.base import DecisionLog
from txpool.resources.base import MarkedRow, Resolution
from txpool.tm.annotations import NOTE
from txpool.xid import split_gtrid

Act = Callable[[DecisionLog, RecoveryDatasources, ScanRecorder, str], None]


def checked(gtrid: str) -> str:
    """The gtrid, if it is one of ours; ProgrammingError."""
    try:
        split_gtrid(gtrid)
    except ValueError as error:
        raise ProgrammingError(str(error)) from error
    return gtrid


def commit(log: DecisionLog, sites: RecoveryDatasources, account: ScanRecorder, gtrid: str) -> None:
    """Commit what is decided; refused where it is not, or where its own living process does so."""
    work = _work(log, sites, account, gtrid)
    evidence = work.snapshot
    _require_open(evidence, gtrid)
    _require_undisputed(evidence, gtrid)
    row = evidence.row(gtrid)
    marked = evidence.marked_by(gtrid)
    if not (row is not None and row.committed) and (marked is not None or gtrid not in evidence.decisions):
        raise ProgrammingError(f"{gtrid} is not decided to commit, so it cannot be committed by hand: nothing was done")
    if evidence.coordinator_state(gtrid) is CoordinatorState.ALIVE:
        raise ProgrammingError(f"{gtrid} is decided, and its own living process commits it: nothing was done")
    if marked is not None:
        row = _asked(work, marked, gtrid)
        met = finish_branches(work, marked, row) if row.committed else ResolvedMark(marked, row, answered=True)
        if _is_over(evidence, gtrid):
            delete_finished(work, [met])
        if not row.committed:
            raise _gone(marked, gtrid)
        return
    # It meets the decision, and makes that durable: what a dead process wrote can be read, and may vanish.
    if log.abort(gtrid) is not Resolution.COMMITTED:
        raise _gone("the log", gtrid)
    answered = work.settle(gtrid, evidence.decisions[gtrid].branches, "decided in the log, by hand")
    if answered and _is_over(evidence, gtrid) and evidence.coordinator_state(gtrid) is not CoordinatorState.FINISHED:
        log.purge([gtrid])
        account.forget([gtrid])


def rollback(log: DecisionLog, sites: RecoveryDatasources, account: ScanRecorder, gtrid: str) -> None:
    """Take the transaction's key, so that nobody can commit it any more, and roll its branches back."""
    before = _work(log, sites, account, gtrid).snapshot
    _require_open(before, gtrid)
    _require_undisputed(before, gtrid)
    if before.marked_by(gtrid) is None and log.abort(gtrid) is Resolution.COMMITTED:
        raise _decided(gtrid)
    # What was prepared, or pointed to a marked datasource, before the key was taken is seen now.
    work = _work(log, sites, account, gtrid)
    _require_undisputed(work.snapshot, gtrid)
    marked = work.snapshot.marked_by(gtrid)
    if marked is None:
        for branch in work.snapshot.listed_branches(gtrid):
            work.roll_back(branch, "by hand")
        return
    row = _asked(work, marked, gtrid)
    if row.committed:
        raise _decided(gtrid)
    met = finish_branches(work, marked, row)
    if _is_over(work.snapshot, gtrid):
        delete_finished(work, [met])


def forget(log: DecisionLog, sites: RecoveryDatasources, gtrid: str) -> int:
    """Dismiss the heuristic outcomes of a transaction that is over, expired ones too; how many there were."""
    evidence = take_snapshot(log, sites, fence=False)
    _require_ours(evidence, gtrid)
    count = sum(heuristic.gtrid == gtrid for heuristic in evidence.heuristics)
    if count and (evidence.listed(gtrid) or gtrid in evidence.decisions or evidence.row(gtrid) is not None):
        raise ProgrammingError(
            f"{gtrid} is not over, so a pass would find its heuristic outcome again: nothing was done. Forget it once "
            "every branch has ended, as `txpool-recovery show` tells"
        )
    if count and evidence.silent:
        raise OperationalError(
            f"{', '.join(evidence.silent)} did not answer, so nobody can tell whether {gtrid} is over: nothing was "
            "done. Its heuristic outcome is kept: forget it once every datasource answers"
        )
    if count:
        log.dismiss_heuristics(gtrid)
    count += expiry.dismiss(log, gtrid)
    saved.forget_ends(log, gtrid)
    if gtrid in evidence.notes:
        log.delete_records(NOTE, [gtrid])
    if not count:
        raise ProgrammingError(f"no heuristic outcome of {gtrid} is kept: nothing was done")
    return count


def forget_datasource(log: DecisionLog, sites: RecoveryDatasources, name: str, lives: Callable[[str], bool]) -> int:
    """Retire the notes that our nodes prepare in a datasource, where nothing of theirs can be there; how many."""
    notes = [note for note in log.locations() if note.location.datasource == name]
    if not notes:
        known = ", ".join(sorted({note.location.datasource for note in log.locations()})) or "none"
        raise ProgrammingError(f"the log has no note of a datasource {name} (it knows {known}): nothing was done")
    for node in sorted({note.node for note in notes}):
        if lives(node):
            raise ProgrammingError(
                f"a process of node {node} lives, and may prepare in {name} at any moment: nothing was done. End it"
            )
    evidence = take_snapshot(log, sites, fence=False)
    if name in evidence.silent:
        raise OperationalError(f"{name} did not answer, so nobody can tell what is prepared there: nothing was done")
    listed = [branch for gtrid in evidence.gtrids for branch in evidence.listed_branches(gtrid)]
    there = [
        branch
        for branch in (*listed, *evidence.elsewhere)
        if any(note.is_of(branch.identity, branch.datasource) for note in notes)
    ]
    if there:
        raise ProgrammingError(
            f"{there[0].xid.joined} is prepared in {name}: nothing was done. Recovery ends it once it leads there"
        )
    log.retire_locations(notes)
    return len(notes)


def _is_open(evidence: Snapshot, gtrid: str) -> bool:
    """Whether anything but heuristic outcomes is kept or listed of a transaction."""
    records = (evidence.decisions, evidence.pointers, evidence.finished, evidence.aborted, *evidence.rows.values())
    return evidence.listed(gtrid) or any(gtrid in each for each in records)


def _is_over(evidence: Snapshot, gtrid: str) -> bool:
    """Whether its process can do nothing about it any more: one that is only taken for dead may still write."""
    return evidence.coordinator_state(gtrid) not in (CoordinatorState.ALIVE, CoordinatorState.DEAD)


def _work(log: DecisionLog, sites: RecoveryDatasources, account: ScanRecorder, gtrid: str) -> RecoveryPass:
    evidence = take_snapshot(log, sites)
    for name, reason in evidence.silent.items():
        account.silent(name, reason)
    _require_known(evidence, gtrid)
    return RecoveryPass(evidence, log, sites, account)


def _asked(work: RecoveryPass, marked: str, gtrid: str) -> MarkedRow:
    try:
        return tombstone(work, marked, gtrid)
    except Exception as error:
        raise OperationalError(
            f"{marked}, which decides {gtrid}, could not be asked: {error}. Nothing was done, and nothing is lost: its "
            "own process may be at it; try again when that has ended, or when the database answers"
        ) from error


def _require_ours(evidence: Snapshot, gtrid: str) -> None:
    if evidence.coordinator_state(gtrid) is CoordinatorState.OTHER_NODE:
        node = split_gtrid(gtrid).node
        ours = ", ".join(sorted(evidence.nodes))
        raise ProgrammingError(
            f"{gtrid} belongs to node {node}, and this recovers {ours}: nothing was done. Its own recovery ends it, or "
            f"one whose recovery.nodes names it"
        )


def _require_known(evidence: Snapshot, gtrid: str) -> None:
    _require_ours(evidence, gtrid)
    if gtrid not in evidence.gtrids:
        silent = f" ({', '.join(evidence.silent)} did not answer)" if evidence.silent else ""
        raise ProgrammingError(f"nothing is known of {gtrid}{silent}: nothing was done")


def _require_open(evidence: Snapshot, gtrid: str) -> None:
    if not _is_open(evidence, gtrid):
        raise ProgrammingError(
            f"{gtrid} is over, and what is kept of it is its heuristic outcome: nothing was done. Repair by hand what "
            f"`txpool-recovery show {gtrid}` says, then `txpool-recovery forget {gtrid}`"
        )


def _require_undisputed(evidence: Snapshot, gtrid: str) -> None:
    disputed = evidence.disputed(gtrid)
    if disputed:
        raise ProgrammingError(
            f"the branches of {gtrid} name different deciders ({disputed}), and the log says neither: nothing was "
            f"done. See whose they are by `txpool-recovery show {gtrid}`, and end in the database what is not ours"
        )


def _decided(gtrid: str) -> ProgrammingError:
    return ProgrammingError(f"{gtrid} is decided to commit, so it cannot be rolled back: nothing was done")


def _gone(where: str, gtrid: str) -> ProgrammingError:
    return ProgrammingError(
        f"{where} had its decision, and has it no more: somebody else has ended {gtrid} meanwhile, and nothing was "
        f"done. `txpool-recovery show {gtrid}` tells what is left of it"
    )
