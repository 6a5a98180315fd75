"""What the next scan will do with a transaction, and why, in words."""

from __future__ import annotations

from collections.abc import Iterable

from recovery.scan.datasources.datasources import RecoveryDatasources
from recovery.scan.snapshot import OTHER_DATABASE, CoordinatorState, Snapshot
from txpool.resources.base import BranchRecord

#: The next step if nothing is left to do.
OVER = "nothing: no branch of it is prepared, as far as the datasources have answered"
#: The next step if the decision is carried out.
DONE = "delete the record of the decision: every branch that it names has ended"
#: The state of a branch that is not prepared any more.
GONE = "not prepared"

_FOREIGN_NEXT = (
    "leave it alone: the role that prepared it is not known to be ours, and no decision names it. The server's "
    "administrator may end it"
)
_ALSO = ". Recovery does so, too, {:g} s beyond that timeout (recovery.overdue-rollback)"
_WHY_LEFT_ALONE = {
    CoordinatorState.OTHER_NODE: "it belongs to another node, whose recovery ends it",
    CoordinatorState.ALIVE: "its process is alive and ends it",
    CoordinatorState.UNKNOWN: "its incarnation is unknown to this log. Recover it with the log that it was "
    "begun with. Only if that log is lost, end it by hand, as the other databases of this gtrid show",
}


def next_step(snapshot: Snapshot, datasources: RecoveryDatasources, gtrid: str) -> str:
    """What the next scan will do with a transaction, and why, in words."""
    state = snapshot.coordinator_state(gtrid)
    if has_nothing_left(snapshot, gtrid):
        _, foreign = snapshot.unreachable_or_foreign(gtrid)
        return _FOREIGN_NEXT if foreign else OVER
    if is_carried_out(snapshot, gtrid):
        return DONE
    reason = _why_left_alone(snapshot, gtrid)
    if reason:
        return f"leave it alone: {reason}"
    action = _action(snapshot, datasources, gtrid)
    return f"fence its dead process, then {action}" if state is CoordinatorState.DEAD else f"{action} ({state.value})"


def _why_left_alone(snapshot: Snapshot, gtrid: str) -> str:
    disputed = snapshot.disputed(gtrid)
    if disputed:
        return f"its branches name different deciders ({disputed}), and the log names none"
    if has_unreachable_branches(snapshot, gtrid) and not (snapshot.is_listed(gtrid) or named_branches(snapshot, gtrid)):
        return (
            "no datasource of this configuration leads to the database where it is prepared: add the datasource's file"
        )
    if snapshot.hangs(gtrid):
        hangs = (
            "its process is alive and has not ended it, and no transaction of that has a timeout above "
            f"{snapshot.timeout(gtrid):g} s. See whether it hangs or is stopped. Once it has ended, recovery "
        )
        if is_decided(snapshot, gtrid):
            return f"{hangs}commits it: it is decided, so nobody can roll it back"
        last = snapshot.last_resource(gtrid)
        return (
            f"{hangs}ends the transaction; `txpool-recovery rollback {gtrid}` does so at once, unless it is decided"
            + (f". Its last resource {last} may have committed: look there before that" if last else "")
            + (_ALSO.format(snapshot.overdue_rollback) if snapshot.may_end_overdue(gtrid) else "")
        )
    return _WHY_LEFT_ALONE.get(snapshot.coordinator_state(gtrid), "")


def _kept_until(snapshot: Snapshot, named: Iterable[BranchRecord]) -> str:
    """How long the decision must be kept beyond the next scan, in words; empty if it need not be."""
    missing = {record.datasource for record in named if snapshot.datasource_of(record) is None}
    elsewhere = {
        record.datasource for record in named if record.datasource not in missing and snapshot.other_database(record)
    }
    until = [f"{', '.join(sorted(missing))} answers"] if missing else []
    until += (
        [f"{', '.join(sorted(elsewhere))} leads to the database that the branch was prepared in"] if elsewhere else []
    )
    return f", and keep the decision until {' and '.join(until)}" if until else ""


def _action(snapshot: Snapshot, datasources: RecoveryDatasources, gtrid: str) -> str:
    marked = snapshot.marked_by(gtrid)
    until = _kept_until(snapshot, named_branches(snapshot, gtrid))
    if marked is None:
        if gtrid in snapshot.decisions:
            return f"commit: it is decided in the log{until}"
        return _undecided(snapshot, gtrid)
    if marked not in datasources.tables:
        return f"leave it alone: {marked} decides it, and is no marked datasource (mode=cmr) of this configuration"
    if marked in snapshot.unanswered:
        return f"leave it alone until {marked}, which decides it, answers"
    row = snapshot.row(gtrid)
    if row is None:
        return f"put a tombstone into {marked}, which decides it, and roll back unless {marked} has committed it"
    return f"commit: it is committed in {marked}{until}" if row.committed else f"roll back: {marked} has a tombstone"


def _undecided(snapshot: Snapshot, gtrid: str) -> str:
    last = snapshot.last_resource(gtrid)
    told = f"tell that its last resource {last} may have committed: nothing shows it" if last else ""
    if told and not snapshot.is_listed(gtrid):
        return f"{told}, and no branch of it is prepared any more"
    return "roll back: it is not decided, and cannot be decided any more" + (f", and {told}" if told else "")


def has_nothing_left(snapshot: Snapshot, gtrid: str) -> bool:
    """Whether nothing is left to do, as far as the datasources have answered."""
    recorded = named_branches(snapshot, gtrid) or gtrid in snapshot.pointers or snapshot.last_resource(gtrid)
    return not (recorded or snapshot.is_listed(gtrid) or has_unreachable_branches(snapshot, gtrid))


def is_carried_out(snapshot: Snapshot, gtrid: str) -> bool:
    """Whether a decision is carried out: its datasources have answered, and no branch that it names is prepared."""
    named = named_branches(snapshot, gtrid)
    if snapshot.is_listed(gtrid) or not named or has_unreachable_branches(snapshot, gtrid):
        return False
    return all(missing_state(snapshot, record) == GONE for record in named)


def has_unreachable_branches(snapshot: Snapshot, gtrid: str) -> bool:
    """Whether a branch of a transaction is prepared in a database that no datasource leads to."""
    return bool(snapshot.unreachable_or_foreign(gtrid)[0])


def is_decided(snapshot: Snapshot, gtrid: str) -> bool:
    """Whether a transaction is decided to commit, in the log or by a row."""
    row = snapshot.row(gtrid)
    return gtrid in snapshot.decisions if row is None else row.committed


def named_branches(snapshot: Snapshot, gtrid: str) -> tuple[BranchRecord, ...]:
    """The branches that the decision of a transaction names."""
    row = snapshot.row(gtrid)
    if row is not None:
        return row.branches
    return snapshot.decisions[gtrid].branches if gtrid in snapshot.decisions else ()


def missing_state(snapshot: Snapshot, record: BranchRecord) -> str:
    """The state of a branch that a decision names and no datasource lists."""
    if snapshot.datasource_of(record) is not None:
        return OTHER_DATABASE if snapshot.other_database(record) else GONE
    return "no answer" if record.datasource in snapshot.unanswered else "not configured"
