"""The datasources of one pass: their branches, tables of marks and staging tables."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Protocol, runtime_checkable

from txpool.config.secrets import describe_error
from txpool.errors import ConfigurationError
from txpool.log.locations import LocationNote
from txpool.resources.base import BranchRecord, Role
from txpool.resources.recovery_access import (
    BranchRecovery,
    MarkedRow,
    PreparedBranch,
    StagingArea,
    StagingTable,
    XidsTable,
)
from txpool.xid import Gtrid, Xid, split_gtrid, tag_of


class RecoverableDatasource(Protocol):
    """What recovery needs of a datasource: the branches if it prepares, the table of marks if it is marked."""

    @property
    def name(self) -> str: ...

    @property
    def mode(self) -> str: ...

    @property
    def role(self) -> Role: ...

    def branch_recovery(self) -> BranchRecovery: ...

    def xids_table(self, *, nodes: Collection[str], lock_timeout: float) -> XidsTable:
        """The table of marks, limited to these nodes' marks. It waits for a lock at most `lock_timeout` seconds."""


@runtime_checkable
class StagingDatasource(Protocol):
    """A datasource in which Spark's tasks may have staged rows."""

    def staging(self, *, lock_timeout: float) -> StagingArea | None:
        """Its staging tables; None if its kind of database has none. A drop waits at most `lock_timeout` seconds."""


class BranchRowsTable(Protocol):
    """A table of the rows that branches have written: `txpool.resources.branch_rows`."""

    def xids(self) -> list[Xid]:
        """The branches that have rows."""

    def delete(self, gtrids: Iterable[str]) -> None:
        """Delete the rows of these branches, by their whole names."""


@runtime_checkable
class RowsDatasource(Protocol):
    """A datasource whose branches may write rows."""

    def branch_rows(self, *, nodes: Collection[str], lock_timeout: float) -> BranchRowsTable | None:
        """The table of their rows; None if they write none."""


class OtherDatasources(Protocol):
    """Finds datasources that recovery was not configured with."""

    def find(self, note: LocationNote) -> tuple[RecoverableDatasource, str]:
        """A datasource that leads to the noted database, and the path of its file.

        The path is empty if recovery did not open the datasource itself. Raises if no trusted datasource leads there.
        """

    def marked(self, name: str) -> RecoverableDatasource | None:
        """A marked datasource that this process has opened, by its name or tag; None if there is none."""


@dataclass(frozen=True, slots=True)
class ListedBranch:
    """A prepared branch, and the datasource that listed it. Its name does not prove whose it is."""

    xid: Xid
    datasource: str
    identity: str
    age: float | None = None
    #: The role that prepared it; None if the server does not tell.
    owner: str | None = None
    #: See `PreparedBranch.roles`.
    roles: frozenset[str] | None = None
    #: The name of its database, if that is another one of the same server.
    database: str = ""
    #: The parts of its gtrid, which a pass asks for again and again.
    named: Gtrid = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "named", split_gtrid(self.xid.gtrid))

    @property
    def record(self) -> BranchRecord:
        return BranchRecord(self.xid, self.datasource, self.identity)

    def prepared_by(self, logins: Collection[str]) -> bool:
        """Whether one of these login roles may have prepared it."""
        return self.roles is None or not self.roles.isdisjoint(logins)


@dataclass(frozen=True, slots=True)
class Listing:
    """A datasource's answer: the identity of its database, and the branches prepared in it."""

    identity: str
    branches: tuple[ListedBranch, ...]
    #: The branches prepared in other databases of its server: see `identity` and `database` of each.
    elsewhere: tuple[ListedBranch, ...] = ()


class RecoveryDatasources:
    """The configured datasources, and those that the log's notes and this process add.

    Used for one pass, by one thread.
    """

    def __init__(
        self,
        datasources: Iterable[RecoverableDatasource],
        *,
        nodes: Collection[str],
        lock_timeout: float,
        others: OtherDatasources | None = None,
    ) -> None:
        #: The nodes that are ours to recover.
        self.nodes = frozenset(nodes)
        self.managers: dict[str, BranchRecovery] = {}
        self.tables: dict[str, XidsTable] = {}
        self.stagings: dict[str, StagingArea] = {}
        self.row_tables: dict[str, BranchRowsTable] = {}
        self._lock_timeout = lock_timeout
        self._others = others
        self._failed: dict[str, str] = {}
        #: Noted databases that are not configured, and were reached by a noted file: its path.
        self.unconfigured: dict[LocationNote, str] = {}
        #: Noted databases that are not configured, and were not reached: the reason.
        self.unreached: dict[LocationNote, str] = {}
        for datasource in datasources:
            try:
                self._add(datasource, datasource.name)
            except Exception as error:
                self._failed[datasource.name] = describe_error(error)
        self.tags = {tag_of(name): name for name in self.tables}

    def _add(self, datasource: RecoverableDatasource, name: str) -> None:
        if datasource.role is Role.PREPARED:
            self.managers[name] = datasource.branch_recovery()
            if isinstance(datasource, RowsDatasource):
                table = datasource.branch_rows(nodes=self.nodes, lock_timeout=self._lock_timeout)
                if table is not None:
                    self.row_tables[name] = table
        elif datasource.role is Role.MARKED:
            self.tables[name] = datasource.xids_table(nodes=self.nodes, lock_timeout=self._lock_timeout)
        staging = (
            datasource.staging(lock_timeout=self._lock_timeout) if isinstance(datasource, StagingDatasource) else None
        )
        if staging is not None:
            self.stagings[name] = staging

    def table(self, name: str, identity: str) -> XidsTable | None:
        """The table of marks of a datasource, by its name or tag.

        A datasource that is not configured, and that this process has opened, serves only where the table's identity
        is known: the table requires it then. By a name alone, another database would decide.
        """
        if name not in self.tables and identity and self._others is not None:
            datasource = self._others.marked(name)
            if datasource is not None:
                name = datasource.name
                self._add(datasource, name)
        return self.tables.get(name)

    def listings(self, notes: Iterable[LocationNote] = ()) -> tuple[dict[str, Listing], dict[str, str]]:
        """What is prepared in every datasource that answers, and the errors of those that do not.

        If two datasources lead to one database, each branch is listed once, in the datasource that can end it. A noted
        database that is not configured is found by its note: `unconfigured` and `unreached` tell with what result.
        """
        found: dict[str, Listing] = {}
        unanswered = dict(self._failed)
        for name in self.managers:
            self._list(name, found, unanswered)
        self.unconfigured, self.unreached = {}, {}
        for note in notes:
            listed = any(note.is_of(each.identity, name) for name, each in found.items())
            if listed or note.location.datasource in unanswered:  # the unanswered one may lead there, and is reported
                continue
            try:
                name = self._find(note)
            except Exception as error:
                self.unreached[note] = describe_error(error)
            else:
                self._list(name, found, unanswered)
        return found, unanswered

    def _list(self, name: str, found: dict[str, Listing], unanswered: dict[str, str]) -> None:
        try:
            listing = self.listing(name)
        except Exception as error:
            unanswered[name] = describe_error(error)
            return
        listed_elsewhere: set[Xid] = set()
        for other, each in found.items():
            if listing.identity and each.identity == listing.identity:
                known = {branch.xid: branch for branch in each.branches}
                both = (branch for branch in listing.branches if branch.xid in known)
                suits_here = {branch.xid for branch in both if _suitability(branch) > _suitability(known[branch.xid])}
                found[other] = _without(each, suits_here)
                listed_elsewhere |= known.keys() - suits_here
        found[name] = _without(listing, listed_elsewhere)

    def listing(self, name: str) -> Listing:
        """What is prepared in one datasource now. Raises if it does not answer."""
        manager = self.managers[name]
        identity = manager.identity()
        prepared = manager.recover()
        here = (_listed_branch(branch, name, identity) for branch in prepared if not branch.elsewhere)
        elsewhere = (_listed_branch(branch, name, branch.elsewhere) for branch in prepared if branch.elsewhere)
        return Listing(identity, tuple(here), tuple(elsewhere))

    def _find(self, note: LocationNote) -> str:
        """Add the datasource that leads to a noted database, and return its name. Raises if there is none."""
        if self._others is None:
            raise ConfigurationError("no datasource of this configuration leads there")
        datasource, file = self._others.find(note)
        name = datasource.name
        if name in self.managers:  # a datasource of this name leads to another database
            name = f"{name} in {note.location.identity}"
        self._add(datasource, name)
        if file:
            self.unconfigured[note] = file
        return name

    def logins(self, name: str) -> frozenset[str]:
        """The roles that sessions of a datasource log in as, by its configuration. Asks its database."""
        return self.managers[name].logins()

    def staging_tables(self) -> dict[str, Sequence[StagingTable]]:
        """The staging tables of every datasource that answers. The listings report the datasources that do not."""
        found: dict[str, Sequence[StagingTable]] = {}
        for name, staging in self.stagings.items():
            with suppress(Exception):
                found[name] = staging.tables()
        return found

    def branch_rows(self) -> tuple[dict[str, Sequence[Xid]], dict[str, str]]:
        """The branches that have rows, by datasource, and the errors of tables that could not be read."""
        found: dict[str, Sequence[Xid]] = {}
        failed: dict[str, str] = {}
        for name, table in self.row_tables.items():
            try:
                found[name] = table.xids()
            except Exception as error:
                failed[name] = describe_error(error)
        return found, failed

    def rows(self) -> tuple[dict[str, dict[str, MarkedRow]], dict[str, str]]:
        """The rows and tombstones of every marked datasource that answers, and the errors of those that do not."""
        found: dict[str, dict[str, MarkedRow]] = {}
        unanswered: dict[str, str] = {}
        for name, table in self.tables.items():
            try:
                found[name] = {row.gtrid: row for row in table.read()}
            except Exception as error:
                unanswered[name] = describe_error(error)
        return found, unanswered


def _suitability(branch: ListedBranch) -> tuple[bool, bool]:
    """How suitable a datasource is to end a branch that it lists: its login role counts first, then its name."""
    return branch.roles is None, branch.xid.tag == tag_of(branch.datasource)


def _without(listing: Listing, xids: Collection[Xid]) -> Listing:
    return replace(listing, branches=tuple(each for each in listing.branches if each.xid not in xids))


def _listed_branch(branch: PreparedBranch, datasource: str, identity: str) -> ListedBranch:
    return ListedBranch(branch.xid, datasource, identity, branch.age, branch.owner, branch.roles, branch.database)
