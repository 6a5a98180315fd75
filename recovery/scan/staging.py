"""Staging tables that dead drivers have left: dropped once nobody can move their rows any more.

That is after the fence of their process, which refuses its decision, and where a marked database decides, or still
might, after the tombstone too, which refuses its commit. A driver that lives on all the same then finds no rows, and
counts them.
"""

from __future__ import annotations

import logging

from recovery.scan.modules import tombstone
from recovery.scan.recovery_pass import RecoveryPass
from recovery.scan.report import describe_error
from recovery.scan.snapshot import CoordinatorState, Snapshot
from txpool.resources.base import StagingTable

logger = logging.getLogger("txpool.recovery")


class StagingModule:
    """Runs behind the modules that end branches: those hold locks on what they have moved."""

    name = "staging"

    def run(self, work: RecoveryPass) -> None:
        for datasource, tables in work.snapshot.staged.items():
            for table in tables:
                if work.snapshot.ended(table.gtrid) and not _has_prepared_branch(work, datasource, table.gtrid):
                    try:
                        self._drop(work, datasource, table)
                    except Exception as error:
                        work.recorder.fail(f"staging table {table.name} in {datasource}", describe_error(error))

    def _drop(self, work: RecoveryPass, datasource: str, table: StagingTable) -> None:
        if datasource in work.datasources.tables and _may_commit(work.snapshot, datasource, table.gtrid):
            tombstone(work, datasource, table.gtrid)
        work.datasources.stagings[datasource].drop(table)
        logger.info("%s: its staging table in %s was dropped", table.gtrid, datasource)


def _may_commit(evidence: Snapshot, datasource: str, gtrid: str) -> bool:
    """Whether a commit that decides it may still land there: never beside a decision, or for who has let go of it."""
    undecided = gtrid not in evidence.decisions and evidence.marked_by(gtrid) in (None, datasource)
    return undecided and evidence.coordinator_state(gtrid) is CoordinatorState.FENCED


def _has_prepared_branch(work: RecoveryPass, datasource: str, gtrid: str) -> bool:
    """Whether a prepared branch still has its locks there, as one does that the next pass ends."""
    if datasource not in work.datasources.managers or not work.snapshot.listed(gtrid):
        return False
    now = work.datasources.listing(datasource)
    return any(branch.xid.gtrid == gtrid and work.snapshot.is_believed(branch) for branch in now.branches)
