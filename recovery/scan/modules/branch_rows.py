"""Deletes the rows of branches that nobody will ask for: `xa.evidence = row`."""

from __future__ import annotations

from recovery.scan.recovery_pass import RecoveryPass
from recovery.scan.snapshot import Snapshot
from txpool import failpoints
from txpool.config.secrets import describe_error
from txpool.xid import Xid


class BranchRowsModule:
    """Deletes rows of transactions that their processes have left, and of which no decision is there any more.

    The rows were read before the decisions. So whoever still has the decision in hand, and finds no row, finds the
    decision gone when it looks again: it does not take the branch for rolled back.
    """

    name = "rows"

    def run(self, this_pass: RecoveryPass) -> None:
        snapshot = this_pass.snapshot
        for name, why in snapshot.unread_rows.items():
            if name not in snapshot.unanswered:  # else the listing has said so
                this_pass.recorder.record_failure(f"{self.name} {name}", why)
        if snapshot.unanswered.keys() & this_pass.datasources.tables.keys():
            return  # a table of marks that has not answered may have the decision
        for name, xids in snapshot.branch_rows.items():
            needless = [xid.joined for xid in xids if _is_needless(snapshot, xid)]
            if not needless:
                continue
            if failpoints.armed:
                failpoints.hit("recovery.forget")
            try:
                this_pass.datasources.row_tables[name].delete(needless)
            except Exception as error:
                this_pass.recorder.record_failure(f"{self.name} {name}", describe_error(error))


def _is_needless(snapshot: Snapshot, xid: Xid) -> bool:
    gtrid = xid.gtrid
    decided = gtrid in snapshot.decisions or gtrid in snapshot.pointers
    marked = any(gtrid in rows for rows in snapshot.rows.values())
    unknown = xid.decider is not None and xid.decider not in snapshot.tags
    return not (decided or marked or unknown) and snapshot.is_left_to_recovery(gtrid)
