"""What the databases themselves list of one Spark write; asked by the driver, and by a task that is a retry."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import dataclass

from txpool.datasource import DataSource
from txpool.errors import ConfigurationError
from txpool.resources.base import BranchOutcome, BranchRecord
from txpool.spark.commit.attempts import Attempt, attempts_of
from txpool.xid import tag_of

logger = logging.getLogger("txpool")


@dataclass(frozen=True, slots=True)
class PreparedAttempts:
    """The attempts of one write, as far as the databases could be reached."""

    attempts: dict[int, Attempt]
    #: The server's own identity, by datasource.
    identities: dict[str, str]
    #: Why a datasource could not be asked.
    unreached: dict[str, Exception]


def list_attempts(datasources: Iterable[DataSource], *, gtrid: str, write: int) -> PreparedAttempts:
    """Ask every datasource for the prepared branches of the write. Raises nothing of what goes wrong with one."""
    records: list[BranchRecord] = []
    identities: dict[str, str] = {}
    unreached: dict[str, Exception] = {}
    for datasource in datasources:
        tag = tag_of(datasource.name)
        try:
            manager = datasource.branch_recovery(recovery=False)
            identity = identities[datasource.name] = manager.identity()
            # A name alone is a claim: to adopt what somebody else has prepared would be to lose the rows.
            xids = [branch.xid for branch in manager.recover() if branch.prepared_by(()) and not branch.elsewhere]
        except Exception as error:
            unreached[datasource.name] = error
            continue
        # Two names may stand for one database: each lists its own branches only.
        records += [BranchRecord(xid, datasource.name, identity) for xid in xids if xid.tag == tag]
    return PreparedAttempts(attempts_of(records, gtrid=gtrid, write=write), identities, unreached)


def require_same_server(record: BranchRecord, listing: PreparedAttempts) -> None:
    """ConfigurationError where a task has prepared a branch in another server than the driver asks."""
    here = listing.identities[record.datasource]
    if record.identity and here and record.identity != here:  # a server may hide its identity from a role
        raise ConfigurationError(
            f"{record.xid.gtrid}: datasource {record.datasource} is one server for the tasks ({record.identity}) and "
            f"another for the driver ({here}): give both the same url. The transaction rolls back, and "
            "nothing that was done within it stays"
        )


def roll_back(attempts: Iterable[Attempt], datasources: Iterable[DataSource]) -> None:
    """Roll back attempts that can never win; what cannot be reached is left to recovery."""
    by_name = {datasource.name: datasource for datasource in datasources}
    for attempt in attempts:
        for record in attempt.records:
            try:
                manager = by_name[record.datasource].branch_recovery(recovery=False)
                answer = manager.rollback(record)
            except Exception as error:
                logger.warning("%s: recovery will roll it back: %s", record.xid.joined, error)
            else:
                if answer is not BranchOutcome.ROLLED_BACK:
                    logger.warning("%s: its rollback was answered %r", record.xid.joined, answer.value)
