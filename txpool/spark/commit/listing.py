"""Lists the prepared branches of one Spark write in its databases, and rolls back the ones that are not needed.

The driver uses it, and each task that is a retry.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final

from txpool.datasource import Source
from txpool.errors import ConfigurationError, described
from txpool.resources.base import BranchOutcome, BranchRecord
from txpool.resources.recovery_access import connected
from txpool.spark.commit.attempts import Attempt, attempts_of
from txpool.xid import tag_of

logger = logging.getLogger("txpool")

NO_SESSIONS: Final[Mapping[str, Any]] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class PreparedAttempts:
    """The prepared attempts of one write in the databases that answered."""

    attempts: dict[int, Attempt]
    #: The identity of each server, by datasource.
    identities: dict[str, str]
    #: The error of each datasource that did not answer.
    unreachable: dict[str, Exception]


def list_attempts(
    datasources: Iterable[Source], *, gtrid: str, write: int, sessions: Mapping[str, Any] = NO_SESSIONS
) -> PreparedAttempts:
    """List the prepared branches of the write in every datasource. Returns the error of a datasource; raises none.

    `sessions` are the datasources' own that are open already, by name.
    """
    records: list[BranchRecord] = []
    identities: dict[str, str] = {}
    unreached: dict[str, Exception] = {}
    for datasource in datasources:
        tag = tag_of(datasource.name)
        try:
            access, session = datasource.branch_recovery(recovery=False), sessions.get(datasource.name)
            with connected(access, session) as manager:
                identity = identities[datasource.name] = manager.identity()
                prepared = manager.recover()
            # Anybody can prepare under such a name. To adopt a branch that is not ours would be to lose the rows.
            ours = [branch for branch in prepared if branch.prepared_by(()) and not branch.elsewhere]
        except Exception as error:
            unreached[datasource.name] = error
            continue
        # Two datasources may be the same database: each lists its own branches only.
        records += [
            BranchRecord(each.xid, datasource.name, identity, each.evidence) for each in ours if each.xid.tag == tag
        ]
    return PreparedAttempts(attempts_of(records, gtrid=gtrid, write=write), identities, unreached)


def require_same_server(record: BranchRecord, listing: PreparedAttempts) -> None:
    """ConfigurationError if a task has prepared a branch in another server than the one the driver connects to."""
    here = listing.identities[record.datasource]
    if record.identity and here and record.identity != here:  # a server may hide its identity from a role
        raise ConfigurationError(
            f"{record.xid.gtrid}: datasource {record.datasource} is one server for the tasks ({record.identity}) and "
            f"another for the driver ({here}): give both the same url. The transaction rolls back, and "
            "nothing that was done within it stays"
        )


def roll_back(attempts: Iterable[Attempt], datasources: Iterable[Source]) -> None:
    """Roll back attempts that cannot be chosen any more. What cannot be reached is left to recovery."""
    by_name = {datasource.name: datasource for datasource in datasources}
    for attempt in attempts:
        for record in attempt.records:
            try:
                manager = by_name[record.datasource].branch_recovery(recovery=False)
                outcome = manager.rollback(record)
            except Exception as error:
                logger.warning(
                    "%s: the branch could not be rolled back, recovery will do it: %s",
                    record.xid.joined,
                    described(error),
                )
            else:
                if outcome is not BranchOutcome.ROLLED_BACK:
                    logger.warning("%s: the rollback of the branch ended as %r", record.xid.joined, outcome.value)
