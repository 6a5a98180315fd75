"""StagingModule: drops the staging tables that dead Spark drivers have left, once nobody can move their rows any more.

The fence of the driver's process refuses its decision. If a marked database decides the transaction, or may still do
so, a tombstone refuses its commit. If the driver is alive in spite of its fence, it counts the staged rows before it
moves them, and finds none.
"""

from __future__ import annotations

import logging

from recovery.scan.modules.transactions import tombstone
from recovery.scan.recovery_pass import RecoveryPass
from recovery.scan.snapshot import CoordinatorState, Snapshot
from txpool.config.secrets import describe_error
from txpool.resources.recovery_access import StagingTable

logger = logging.getLogger("txpool.recovery")


class StagingModule:
    """Runs after the modules that end branches, since a prepared branch holds locks on the staging tables."""

    name = "staging"

    def run(self, this_pass: RecoveryPass) -> None:
        for name, why in this_pass.snapshot.unread_staging.items():
            if name not in this_pass.snapshot.unanswered:  # else the listing has said so
                this_pass.recorder.record_failure(f"{self.name} {name}", why)
        for datasource, tables in this_pass.snapshot.staging_tables.items():
            for table in tables:
                if this_pass.snapshot.is_left_to_recovery(table.gtrid):
                    try:
                        if not _has_prepared_branch(this_pass, datasource, table.gtrid):
                            self._drop(this_pass, datasource, table)
                    except Exception as error:
                        this_pass.recorder.record_failure(
                            f"staging table {table.name} in {datasource}", describe_error(error)
                        )

    def _drop(self, this_pass: RecoveryPass, datasource: str, table: StagingTable) -> None:
        if datasource in this_pass.datasources.tables and _may_commit(this_pass.snapshot, datasource, table.gtrid):
            tombstone(this_pass, datasource, table.gtrid)
        this_pass.datasources.stagings[datasource].drop(table)
        logger.info("%s: the staging table of this transaction in %s was dropped", table.gtrid, datasource)


def _may_commit(snapshot: Snapshot, datasource: str, gtrid: str) -> bool:
    """Whether a commit in this datasource may still decide the transaction.

    It cannot if a decision exists, or if the coordinator has finished with the transaction.
    """
    undecided = gtrid not in snapshot.decisions and snapshot.marked_by(gtrid) in (None, datasource)
    return undecided and snapshot.coordinator_state(gtrid) is CoordinatorState.FENCED


def _has_prepared_branch(this_pass: RecoveryPass, datasource: str, gtrid: str) -> bool:
    """Whether a branch of the transaction is still prepared there, and holds its locks until the next pass."""
    if datasource not in this_pass.datasources.managers or not this_pass.snapshot.is_listed(gtrid):
        return False
    listing = this_pass.datasources.listing(datasource)
    return any(branch.xid.gtrid == gtrid and this_pass.snapshot.is_believed(branch) for branch in listing.branches)
