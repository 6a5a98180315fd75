"""What recovery tells of a last resource whose note stands alone: nothing is prepared, and nothing was decided.

Others may have ended the branches, so that only the note shows that the last resource may have committed.
"""

from __future__ import annotations

from recovery.scan.recovery_pass import RecoveryPass
from recovery.scan.snapshot import CoordinatorState


def tell_of_noted(this_pass: RecoveryPass) -> list[str]:
    """Record the hazard of each such note, if its process is fenced. Returns the gtrids whose notes nobody needs.

    A branch may have been prepared between the listing and the fence. So a note goes once a listing that is taken after
    the fence has no branch of its transaction.
    """
    snapshot = this_pass.snapshot
    fenced = []
    for gtrid in sorted(snapshot.last_resources.keys() - snapshot.decisions.keys()):
        state, last = snapshot.coordinator_state(gtrid), snapshot.last_resource(gtrid)
        if snapshot.is_listed(gtrid):
            continue  # its branches roll back first, which tells of it
        if state is CoordinatorState.FENCED:
            fenced.append(gtrid)
            if last:  # else the process has told itself how that has ended
                this_pass.tell_of_last_resource(gtrid, last)
        elif state in (CoordinatorState.DEAD, CoordinatorState.UNKNOWN) and last:
            this_pass.leave_all_alone(gtrid, f"its last resource {last} may have committed: {state.value}")
    if not fenced or snapshot.unreached:
        return []
    later, unanswered = this_pass.datasources.listings()
    if unanswered:
        return []
    asked = frozenset(fenced)
    branches = (branch for listing in later.values() for branch in listing.branches if branch.xid.gtrid in asked)
    listed = {branch.xid.gtrid for branch in branches if snapshot.is_ours(branch)}
    return [gtrid for gtrid in fenced if gtrid not in listed]
