"""The configured datasources, as recovery sees them: what prepares, what is marked, and what does not answer."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from contextlib import suppress
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from recovery.report import told
from txpool.resources.base import BranchRecord, MarkedRow, PreparedBranch, ResourceManager, XidsTable
from txpool.resources.staging import Staging, StagingTable
from txpool.xid import Xid, tag_of


class Recoverable(Protocol):
    """What recovery needs of a datasource: `mode` xa has a resource manager, cmr a table of marks, others neither."""

    @property
    def name(self) -> str: ...

    @property
    def mode(self) -> str: ...

    def resource_manager(self) -> ResourceManager: ...

    def xids_table(self, *, nodes: Collection[str], lock_timeout: float) -> XidsTable:
        """Deletes marks of these nodes only; waits for a lock no longer than that (seconds)."""


@runtime_checkable
class Stages(Protocol):
    """A datasource in which Spark's tasks may have staged rows."""

    def staging(self, *, lock_timeout: float) -> Staging | None:
        """Its staging tables; None where its kind has none. To drop one waits for locks no longer than that."""


@dataclass(frozen=True, slots=True)
class Seen:
    """A prepared branch, in the datasource that listed it."""

    xid: Xid
    datasource: str
    identity: str
    age: float | None = None

    @property
    def record(self) -> BranchRecord:
        return BranchRecord(self.xid, self.datasource, self.identity)


@dataclass(frozen=True, slots=True)
class Listing:
    """A datasource's answer: who it is, and what it holds prepared."""

    identity: str
    branches: tuple[Seen, ...]

    def holds(self, gtrid: str) -> bool:
        return any(branch.xid.gtrid == gtrid for branch in self.branches)


class Sites:
    """The resource managers and tables of marks of one configuration."""

    def __init__(self, datasources: Iterable[Recoverable], *, nodes: Collection[str], lock_timeout: float) -> None:
        #: Those that are ours to recover.
        self.nodes = frozenset(nodes)
        self.managers: dict[str, ResourceManager] = {}
        self.tables: dict[str, XidsTable] = {}
        self.stagings: dict[str, Staging] = {}
        self._broken: dict[str, str] = {}
        for datasource in datasources:
            try:
                if datasource.mode == "xa":
                    self.managers[datasource.name] = datasource.resource_manager()
                elif datasource.mode == "cmr":
                    self.tables[datasource.name] = datasource.xids_table(nodes=self.nodes, lock_timeout=lock_timeout)
                staging = datasource.staging(lock_timeout=lock_timeout) if isinstance(datasource, Stages) else None
                if staging is not None:
                    self.stagings[datasource.name] = staging
            except Exception as error:
                self._broken[datasource.name] = told(error)
        self.tags = {tag_of(name): name for name in self.tables}

    def listings(self) -> tuple[dict[str, Listing], dict[str, str]]:
        """The prepared branches of every datasource that answers, and why the others do not.

        Two datasources may lead to one database: a branch is listed once.
        """
        found: dict[str, Listing] = {}
        silent = dict(self._broken)
        known: set[tuple[str, Xid]] = set()
        for name, manager in self.managers.items():
            try:
                identity = manager.identity()
                prepared = manager.recover()
            except Exception as error:
                silent[name] = told(error)
                continue
            fresh = [branch for branch in prepared if not identity or (identity, branch.xid) not in known]
            known.update((identity, branch.xid) for branch in fresh)
            found[name] = Listing(identity, tuple(_seen(branch, name, identity) for branch in fresh))
        return found, silent

    def staged(self) -> dict[str, list[StagingTable]]:
        """The staging tables of every datasource that answers; one that does not is silent in the listings, too."""
        found: dict[str, list[StagingTable]] = {}
        for name, staging in self.stagings.items():
            with suppress(Exception):
                found[name] = staging.tables()
        return found

    def rows(self) -> tuple[dict[str, dict[str, MarkedRow]], dict[str, str]]:
        """The rows and tombstones of every marked datasource that answers, and why the others do not."""
        found: dict[str, dict[str, MarkedRow]] = {}
        silent: dict[str, str] = {}
        for name, table in self.tables.items():
            try:
                found[name] = {row.gtrid: row for row in table.read()}
            except Exception as error:
                silent[name] = told(error)
        return found, silent


def _seen(branch: PreparedBranch, datasource: str, identity: str) -> Seen:
    return Seen(branch.xid, datasource, identity, branch.age)
