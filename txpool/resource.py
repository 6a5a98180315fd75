"""The protocols of a resource manager, and the parts of a resource of your own (docs/how-to/your-own-resource.md).

`Resource` and `Work` are all that most need. A resource that works in several steps, or names its branches early,
writes the protocols themselves, from `OpenBranch` to `BranchRecovery`; a DB-API database writes a `ResourceManager`.
"""

from __future__ import annotations

from pathlib import Path
from weakref import WeakKeyDictionary

from txpool.datasource import DataSource
from txpool.datasource import find as find_datasource
from txpool.errors import ConfigurationError
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
from txpool.resources.deadlines import Deadlines
from txpool.resources.dialect import Dialect
from txpool.resources.driver import Driver
from txpool.resources.durable import create_file, generation_in, identity_in, sync
from txpool.resources.local import LocalTransaction
from txpool.resources.manager import PhaseTwo, ResourceManager
from txpool.resources.marks import Marks
from txpool.resources.own.manager import OwnResources
from txpool.resources.recovery_access import BranchRecovery, PreparedBranch, SharedPhaseTwo
from txpool.resources.resource import Resource, Work
from txpool.xid import Xid, parse

_made: WeakKeyDictionary[DataSource, Resource] = WeakKeyDictionary()


def find(target: str | Path | DataSource) -> Resource:
    """The resource that a file describes, or a registered datasource: the same object each time. ConfigurationError."""
    datasource = find_datasource(target)
    manager = datasource.resource_manager
    if not isinstance(manager, OwnResources):
        raise ConfigurationError(
            f"datasource {datasource.name} is in {manager.database}, whose connections join transactions by "
            "themselves: txpool.connect() gives one"
        )
    resource = _made.get(datasource)
    if resource is None:
        resource = _made.setdefault(datasource, manager.resource(datasource.settings))
    return resource


__all__ = [
    "Branch",
    "BranchOutcome",
    "BranchRecord",
    "BranchRecovery",
    "Deadlines",
    "Dialect",
    "Driver",
    "LocalTransaction",
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
    "SharedPhaseTwo",
    "Work",
    "Xid",
    "create_file",
    "find",
    "generation_in",
    "identity_in",
    "parse",
    "sync",
]
