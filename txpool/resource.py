"""The protocols of a resource manager, and the parts of a resource of your own (docs/how-to/your-own-resource.md).

`Resource` and `Work` are all that most need. A resource that works in several steps, or names its branches early,
writes the protocols themselves, from `OpenBranch` to `BranchRecovery`; a DB-API database writes a `ResourceManager`.
"""

from __future__ import annotations

from pathlib import Path

from txpool.datasource import Source, find_source
from txpool.errors import ConfigurationError
from txpool.process.durable import create_file, generation_in, identity_in, sync
from txpool.resources.base import (
    Branch,
    BranchOutcome,
    BranchRecord,
    OpenBranch,
    Participant,
    PrepareLocation,
    PrepareVote,
    ReadOnlyCheck,
    Refused,
    RemembersEnd,
    Role,
)
from txpool.resources.blocking import BlockingBranch
from txpool.resources.database import Database
from txpool.resources.deadlines import Deadlines
from txpool.resources.driver.dialect import Dialect
from txpool.resources.driver.driver import Driver
from txpool.resources.driver.local import LocalTransaction
from txpool.resources.driver.marks import Marks
from txpool.resources.manager import PhaseTwo, ResourceManager
from txpool.resources.own.manager import OwnResources
from txpool.resources.own.resource import Resource, Work
from txpool.resources.parts import DsnPart, LogPart, SparkPart, SQLAlchemyPart
from txpool.resources.recovery_access import BranchRecovery, PreparedBranch, SharedPhaseTwo
from txpool.xid import Xid, parse


def find(target: str | Path | Source) -> Resource:
    """The resource that a file describes, or a registered datasource: the same object each time. ConfigurationError."""
    datasource = find_source(target)
    manager = datasource.resource_manager
    if not isinstance(manager, OwnResources):
        raise ConfigurationError(
            f"datasource {datasource.name} is in {manager.database}, whose connections join transactions by "
            "themselves: txpool.connect() gives one"
        )
    return manager.resource_of(datasource)


__all__ = [
    "BlockingBranch",
    "Branch",
    "BranchOutcome",
    "BranchRecord",
    "BranchRecovery",
    "Database",
    "Deadlines",
    "Dialect",
    "Driver",
    "DsnPart",
    "LocalTransaction",
    "LogPart",
    "Marks",
    "OpenBranch",
    "Participant",
    "PhaseTwo",
    "PrepareLocation",
    "PrepareVote",
    "PreparedBranch",
    "ReadOnlyCheck",
    "Refused",
    "RemembersEnd",
    "Resource",
    "ResourceManager",
    "Role",
    "SQLAlchemyPart",
    "SharedPhaseTwo",
    "SparkPart",
    "Work",
    "Xid",
    "create_file",
    "find",
    "generation_in",
    "identity_in",
    "parse",
    "sync",
]
