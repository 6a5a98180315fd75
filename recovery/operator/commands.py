"""The commands that an operator may run by hand. Each is safe whatever the transaction's process does meanwhile."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import closing

from recovery.scan import saved
from recovery.scan.datasources.datasources import RecoveryDatasources
from recovery.scan.modules import expiry
from recovery.scan.modules.transactions import ResolvedMark, delete_finished, finish_branches, tombstone
from recovery.scan.phase_two import wait_for
from recovery.scan.reading import take_snapshot
from recovery.scan.recovery_pass import RecoveryPass
from recovery.scan.report import ScanRecorder
from recovery.scan.snapshot import CoordinatorState, Snapshot
from txpool.errors import OperationalError, ProgrammingError, described
from txpool.log.base import DecisionLog
from txpool.resources.base import Resolution
from txpool.resources.recovery_access import MarkedRow
from txpool.tm.commit.annotations import NOTE
from txpool.xid import split_gtrid

Command = Callable[[DecisionLog, RecoveryDatasources, ScanRecorder, str], None]


def require_gtrid(gtrid: str) -> str:
    """Return the gtrid. Errors: ProgrammingError if it is not one of txpool's."""
    try:
        split_gtrid(gtrid)
    except ValueError as error:
        raise ProgrammingError(
            f"{error}, as txp1:etl-1:…:1 is: `txpool-recovery list` shows those in doubt. Nothing was done"
        ) from error
    return gtrid


def commit(log: DecisionLog, datasources: RecoveryDatasources, recorder: ScanRecorder, gtrid: str) -> None:
    """Commit a transaction that is decided to commit. Refused if it is not, or if its living process does so."""
    with closing(_begin_pass(log, datasources, recorder, gtrid)) as this_pass:
        _commit(this_pass, gtrid)


def _commit(this_pass: RecoveryPass, gtrid: str) -> None:
    snapshot, log = this_pass.snapshot, this_pass.log
    _require_open(snapshot, gtrid)
    _require_undisputed(snapshot, gtrid)
    row = snapshot.row(gtrid)
    marked = snapshot.marked_by(gtrid)
    if not (row is not None and row.committed) and (marked is not None or gtrid not in snapshot.decisions):
        raise _not_decided(snapshot, gtrid, marked)
    if snapshot.coordinator_state(gtrid) is CoordinatorState.ALIVE:
        raise ProgrammingError(
            f"{gtrid} is decided, and its living process commits it: nothing was done. Once that process has ended, "
            "recovery commits it"
        )
    if marked is not None:
        row = _resolve_mark(this_pass, marked, gtrid)
        resolved = (
            finish_branches(this_pass, marked, row)() if row.committed else ResolvedMark(marked, row, answered=True)
        )
        if _coordinator_cannot_act(snapshot, gtrid):
            delete_finished(this_pass, [resolved])
        if not row.committed:
            raise _decision_gone(marked, gtrid)
        return
    # The abort record meets the decision and makes it durable: what a dead process wrote can be read, and may vanish.
    if log.abort(gtrid) is not Resolution.COMMITTED:
        raise _decision_gone("the log", gtrid)
    answered = this_pass.carry_out(gtrid, snapshot.decisions[gtrid].branches, "decided in the log, by hand")()
    if (
        answered
        and _coordinator_cannot_act(snapshot, gtrid)
        and snapshot.coordinator_state(gtrid) is not CoordinatorState.FINISHED
    ):
        this_pass.settle()
        log.purge([gtrid])
        this_pass.recorder.record_forgotten([gtrid])


def rollback(log: DecisionLog, datasources: RecoveryDatasources, recorder: ScanRecorder, gtrid: str) -> None:
    """Take the transaction's key, so that nobody can commit it any more, then roll its branches back."""
    with closing(_begin_pass(log, datasources, recorder, gtrid)) as before:
        _require_open(before.snapshot, gtrid)
        _require_undisputed(before.snapshot, gtrid)
        if before.snapshot.marked_by(gtrid) is None and _abort(before, gtrid) is Resolution.COMMITTED:
            raise _already_decided(gtrid)
    # Another snapshot, since a branch or a pointer may have appeared before the key was taken.
    with closing(_begin_pass(log, datasources, recorder, gtrid)) as this_pass:
        _roll_back(this_pass, gtrid)


def _abort(this_pass: RecoveryPass, gtrid: str) -> Resolution:
    """Write an abort record, also beside a last resource: that may have committed, which is told of then."""
    log = this_pass.log
    resolution = log.abort(gtrid)
    if resolution is Resolution.NOTED:
        this_pass.tell_of_last_resource(gtrid, log.last_resources().get(gtrid, "the last resource"))
        resolution = log.abort_noted(gtrid)
        if resolution is Resolution.COMMITTED:  # its process has decided meanwhile
            log.dismiss_heuristics(gtrid, "")
    return resolution


def _roll_back(this_pass: RecoveryPass, gtrid: str) -> None:
    _require_undisputed(this_pass.snapshot, gtrid)
    marked = this_pass.snapshot.marked_by(gtrid)
    if marked is None:
        wait_for([this_pass.start_rollback(each, "by hand") for each in this_pass.snapshot.listed_branches(gtrid)])
        return
    row = _resolve_mark(this_pass, marked, gtrid)
    if row.committed:
        raise _already_decided(gtrid)
    resolved = finish_branches(this_pass, marked, row)()
    if _coordinator_cannot_act(this_pass.snapshot, gtrid):
        delete_finished(this_pass, [resolved])


def forget(log: DecisionLog, datasources: RecoveryDatasources, gtrid: str) -> int:
    """Dismiss the heuristic outcomes of an ended transaction, expired ones too. Returns how many there were."""
    snapshot = take_snapshot(log, datasources, fence=False)
    _require_ours(snapshot, gtrid)
    count = sum(heuristic.gtrid == gtrid for heuristic in snapshot.heuristics)
    decided = gtrid in snapshot.decisions or snapshot.row(gtrid) is not None
    if count and (decided or snapshot.is_listed(gtrid) or snapshot.last_resource(gtrid)):
        raise ProgrammingError(
            f"{gtrid} has not ended, so a pass would find its heuristic outcome again: nothing was done. Forget it "
            "once `txpool-recovery show` tells that every branch has ended"
        )
    if count and snapshot.unanswered:
        raise OperationalError(
            f"{', '.join(snapshot.unanswered)} did not answer, so nobody can tell whether {gtrid} has ended: nothing "
            "was done. Its heuristic outcome is kept: forget it once every datasource answers"
        )
    if count:
        log.dismiss_heuristics(gtrid)
    count += expiry.dismiss_expired(log, gtrid)
    saved.delete_ends(log, gtrid)
    if gtrid in snapshot.notes:
        log.delete_records(NOTE, [gtrid])
    if not count:
        raise ProgrammingError(f"no heuristic outcome of {gtrid} is kept: nothing was done")
    return count


def forget_datasource(
    log: DecisionLog, datasources: RecoveryDatasources, name: str, is_alive: Callable[[str], bool]
) -> int:
    """Retire the log's notes that our nodes prepare in a datasource. Returns how many there were.

    Refused if a node's process is alive (`is_alive` tells), or if a branch is prepared there. A process may begin, and
    note the datasource again, at any moment of this: its note stays.
    """
    # A process registers, writes its note, and then prepares. So the notes are read first, and a process whose note is
    # among them is asked for, or its branch is listed, after that.
    notes = [note for note in log.locations() if note.location.datasource == name]
    if not notes:
        known = ", ".join(sorted({note.location.datasource for note in log.locations()})) or "none"
        raise ProgrammingError(f"the log has no note of a datasource {name} (it knows {known}): nothing was done")
    nodes = sorted({note.node for note in notes})
    _require_no_process(nodes, name, is_alive)
    snapshot = take_snapshot(log, datasources, fence=False)
    if name in snapshot.unanswered:
        raise OperationalError(f"{name} did not answer, so nobody can tell what is prepared there: nothing was done")
    listed = [branch for gtrid in snapshot.gtrids for branch in snapshot.listed_branches(gtrid)]
    still_there = [
        branch
        for branch in (*listed, *snapshot.elsewhere)
        if any(note.is_of(branch.identity, branch.datasource) for note in notes)
    ]
    if still_there:
        raise ProgrammingError(
            f"branch {still_there[0].xid.joined} is prepared in {name}: nothing was done. Recovery ends the branch "
            "once a configured datasource leads there"
        )
    _require_no_process(nodes, name, is_alive)
    log.retire_locations(notes)
    names = {note.name for note in notes}
    again = [note for note in log.locations() if note.name in names]
    if again:
        raise ProgrammingError(
            f"a process of node {again[0].node} has begun meanwhile, and has noted {name} again: that note was kept. "
            "Run the command again once that process has ended"
        )
    return len(notes)


def _require_no_process(nodes: Iterable[str], name: str, is_alive: Callable[[str], bool]) -> None:
    for node in nodes:
        if is_alive(node):
            raise ProgrammingError(
                f"a process of node {node} is alive and may prepare in {name} at any moment: nothing was done. End "
                "that process first"
            )


def _is_open(snapshot: Snapshot, gtrid: str) -> bool:
    """Whether a transaction has a record other than its heuristic outcomes, or a listed branch."""
    recorded = (snapshot.decisions, snapshot.pointers, snapshot.finished, snapshot.aborted, snapshot.last_resources)
    return snapshot.is_listed(gtrid) or any(gtrid in each for each in (*recorded, *snapshot.rows.values()))


def _coordinator_cannot_act(snapshot: Snapshot, gtrid: str) -> bool:
    """Whether the coordinator can do nothing with a transaction any more.

    A process that is dead and not fenced may be alive after all, and may still write.
    """
    return snapshot.coordinator_state(gtrid) not in (CoordinatorState.ALIVE, CoordinatorState.DEAD)


def _begin_pass(log: DecisionLog, datasources: RecoveryDatasources, recorder: ScanRecorder, gtrid: str) -> RecoveryPass:
    snapshot = take_snapshot(log, datasources)
    for name, reason in snapshot.unanswered.items():
        recorder.record_unanswered(name, reason)
    _require_known(snapshot, gtrid)
    return RecoveryPass(snapshot, log, datasources, recorder)


def _resolve_mark(this_pass: RecoveryPass, marked: str, gtrid: str) -> MarkedRow:
    try:
        return tombstone(this_pass, marked, gtrid)
    except Exception as error:
        raise OperationalError(
            f"{marked}, which decides {gtrid}, could not be asked: {described(error)}. Nothing was done, and nothing "
            "is lost. The transaction's own process may be ending it: try again when it has, or when the "
            "database answers"
        ) from error


def _require_ours(snapshot: Snapshot, gtrid: str) -> None:
    if snapshot.coordinator_state(gtrid) is CoordinatorState.OTHER_NODE:
        node = split_gtrid(gtrid).node
        ours = ", ".join(sorted(snapshot.nodes))
        raise ProgrammingError(
            f"{gtrid} belongs to node {node}, and this recovers {ours}: nothing was done. The recovery of {node} ends "
            f"it, or any recovery whose recovery.nodes names {node}"
        )


def _require_known(snapshot: Snapshot, gtrid: str) -> None:
    _require_ours(snapshot, gtrid)
    if gtrid not in snapshot.gtrids:
        unanswered = f" ({', '.join(snapshot.unanswered)} did not answer)" if snapshot.unanswered else ""
        raise ProgrammingError(f"nothing is known of {gtrid}{unanswered}: nothing was done")


def _require_open(snapshot: Snapshot, gtrid: str) -> None:
    if not _is_open(snapshot, gtrid):
        raise ProgrammingError(
            f"{gtrid} has ended, and only its heuristic outcome is kept: nothing was done. Repair the data as "
            f"`txpool-recovery show {gtrid}` tells, then `txpool-recovery forget {gtrid}`"
        )


def _require_undisputed(snapshot: Snapshot, gtrid: str) -> None:
    disputed = snapshot.disputed(gtrid)
    if disputed:
        raise ProgrammingError(
            f"the branches of {gtrid} name different deciders ({disputed}), and the log names none: nothing was done. "
            f"`txpool-recovery show {gtrid}` lists their owners: end the branches that are not ours in the database"
        )


def _not_decided(snapshot: Snapshot, gtrid: str, marked: str | None) -> ProgrammingError | OperationalError:
    if marked is not None and marked not in snapshot.rows:
        return OperationalError(
            f"{marked}, which decides {gtrid}, was not read, so nobody can tell whether it is decided to commit: "
            "nothing was done. Recovery ends it once that database answers"
        )
    refused = f"{gtrid} is not decided to commit, so it cannot be committed by hand: nothing was done."
    if snapshot.coordinator_state(gtrid) is CoordinatorState.ALIVE:
        return ProgrammingError(f"{refused} Its process is alive, and ends it. Once that has died, recovery does")
    return ProgrammingError(f"{refused} Recovery rolls it back, and so does `txpool-recovery rollback {gtrid}`")


def _already_decided(gtrid: str) -> ProgrammingError:
    return ProgrammingError(
        f"{gtrid} is decided to commit, so it cannot be rolled back: nothing was done. Recovery commits it, and so "
        f"does `txpool-recovery commit {gtrid}`"
    )


def _decision_gone(where: str, gtrid: str) -> ProgrammingError:
    return ProgrammingError(
        f"{where} had the decision of {gtrid}, and has it no more: somebody else has ended the transaction meanwhile, "
        f"and nothing was done. `txpool-recovery show {gtrid}` tells what is left of it"
    )
