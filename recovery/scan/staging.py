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
from txpool.resources.postgresql.staging import StagingTable

logger = logging.getLogger("txpool.recovery")


class StagingModule:
    """Runs behind the modules that end branches: those hold locks on what they have moved."""

    name = "staging"

    def run(self, this_pass: RecoveryPass) -> None:
        for datasource, tables in this_pass.snapshot.staging_tables.items():
            for table in tables:
                if this_pass.snapshot.is_left_to_recovery(table.gtrid) and not _has_prepared_branch(
                    this_pass, datasource, table.gtrid
                ):
                    try:
                        self._drop(this_pass, datasource, table)
                    except Exception as error:
                        this_pass.recorder.record_failure(
                            f"staging table {table.name} in {datasource}", describe_error(error)
                        )

    def _drop(self, this_pass: RecoveryPass, datasource: str, table: StagingTable) -> None:
        if datasource in this_pass.datasources.tables and _may_commit(this_pass.snapshot, datasource, table.gtrid):
            tombstone(this_pass, datasource, table.gtrid)
        this_pass.datasources.stagings[datasource].drop(table)
        logger.info("%s: its staging table in %s was dropped", table.gtrid, datasource)


def _may_commit(snapshot: Snapshot, datasource: str, gtrid: str) -> bool:
    """Whether a commit that decides it may still land there: never beside a decision, or for who has let go of it."""
    undecided = gtrid not in snapshot.decisions and snapshot.marked_by(gtrid) in (None, datasource)
    return undecided and snapshot.coordinator_state(gtrid) is CoordinatorState.FENCED


def _has_prepared_branch(this_pass: RecoveryPass, datasource: str, gtrid: str) -> bool:
    """Whether a prepared branch still has its locks there, as one does that the next pass ends."""
    if datasource not in this_pass.datasources.managers or not this_pass.snapshot.is_listed(gtrid):
        return False
    now = this_pass.datasources.listing(datasource)
    return any(branch.xid.gtrid == gtrid and this_pass.snapshot.is_believed(branch) for branch in now.branches)
