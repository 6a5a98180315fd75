"""The configured datasources, as recovery sees them: what prepares, what is marked, and what does not answer."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Protocol, runtime_checkable

from recovery.scan.report import describe_error
from txpool.errors import ConfigurationError
from txpool.log.locations import LocationNote
from txpool.resources.base import BranchRecord, MarkedRow, PreparedBranch, ResourceManager, XidsTable
from txpool.resources.postgresql.staging import Staging, StagingTable
from txpool.xid import Xid, tag_of


class RecoverableDatasource(Protocol):
    """What recovery needs of a datasource: `mode` xa has a resource manager, cmr a table of marks, others neither."""

    @property
    def name(self) -> str: ...

    @property
    def mode(self) -> str: ...

    def resource_manager(self) -> ResourceManager: ...

    def xids_table(self, *, nodes: Collection[str], lock_timeout: float) -> XidsTable:
        """Deletes marks of these nodes only; waits for a lock no longer than that (seconds)."""


@runtime_checkable
class StagingDatasource(Protocol):
    """A datasource in which Spark's tasks may have staged rows."""

    def staging(self, *, lock_timeout: float) -> Staging | None:
        """Its staging tables; None where its kind has none. To drop one waits for locks no longer than that."""


class OtherDatasources(Protocol):
    """Datasources beyond those that are configured."""

    def find(self, note: LocationNote) -> tuple[RecoverableDatasource, str]:
        """What leads to the noted database, and the file that it comes from where recovery has opened that by itself.

        Raises where nothing does, or nothing that may be believed.
        """

    def marked(self, name: str) -> RecoverableDatasource | None:
        """A marked datasource that this process has opened, by its name or tag."""


@dataclass(frozen=True, slots=True)
class ListedBranch:
    """A branch that is prepared, in the datasource that listed it: whose it is, its name does not tell."""

    xid: Xid
    datasource: str
    identity: str
    age: float | None = None
    #: As the server tells it; None where it does not.
    owner: str | None = None
    #: As those of a PreparedBranch.
    roles: frozenset[str] | None = None
    #: What people call the database that it is in, where that is another of the same server.
    database: str = ""

    @property
    def record(self) -> BranchRecord:
        return BranchRecord(self.xid, self.datasource, self.identity)

    def prepared_by(self, logins: Collection[str]) -> bool:
        """Whether one of these login roles may have prepared it."""
        return self.roles is None or not self.roles.isdisjoint(logins)


@dataclass(frozen=True, slots=True)
class Listing:
    """A datasource's answer: who it is, and what is prepared in it."""

    identity: str
    branches: tuple[ListedBranch, ...]
    #: What is prepared in other databases of its server, which `identity` and `database` of each tell.
    elsewhere: tuple[ListedBranch, ...] = ()


class RecoveryDatasources:
    """The resource managers and tables of marks of one configuration, and what the log and this process add to it."""

    def __init__(
        self,
        datasources: Iterable[RecoverableDatasource],
        *,
        nodes: Collection[str],
        lock_timeout: float,
        others: OtherDatasources | None = None,
    ) -> None:
        #: Those that are ours to recover.
        self.nodes = frozenset(nodes)
        self.managers: dict[str, ResourceManager] = {}
        self.tables: dict[str, XidsTable] = {}
        self.stagings: dict[str, Staging] = {}
        self._lock_timeout = lock_timeout
        self._others = others
        self._failed: dict[str, str] = {}
        #: Noted databases that nothing configured leads to: the file by which they were reached, or why they were not.
        self.unconfigured: dict[LocationNote, str] = {}
        self.unreached: dict[LocationNote, str] = {}
        for datasource in datasources:
            try:
                self._add(datasource, datasource.name)
            except Exception as error:
                self._failed[datasource.name] = describe_error(error)
        self.tags = {tag_of(name): name for name in self.tables}

    def _add(self, datasource: RecoverableDatasource, name: str) -> None:
        if datasource.mode == "xa":
            self.managers[name] = datasource.resource_manager()
        elif datasource.mode == "cmr":
            self.tables[name] = datasource.xids_table(nodes=self.nodes, lock_timeout=self._lock_timeout)
        staging = (
            datasource.staging(lock_timeout=self._lock_timeout) if isinstance(datasource, StagingDatasource) else None
        )
        if staging is not None:
            self.stagings[name] = staging

    def table(self, name: str) -> XidsTable | None:
        """The marks of a datasource, by its name or tag: a configured one's, or one's that this process has opened."""
        if name not in self.tables and self._others is not None:
            datasource = self._others.marked(name)
            if datasource is not None:
                name = datasource.name
                self._add(datasource, name)
        return self.tables.get(name)

    def listings(self, notes: Iterable[LocationNote] = ()) -> tuple[dict[str, Listing], dict[str, str]]:
        """What is prepared in every datasource that answers, and why the others do not.

        Two datasources may lead to one database: a branch is listed once, for whichever may end it. To a noted database
        that nothing configured leads to, the note may; `strangers` and `unreached` say what came of that.
        """
        found: dict[str, Listing] = {}
        silent = dict(self._failed)
        for name in self.managers:
            self._list(name, found, silent)
        self.unconfigured, self.unreached = {}, {}
        for note in notes:
            there = any(note.is_of(each.identity, configured) for configured, each in found.items())
            if there or note.location.datasource in silent:  # which may be it, and is reported as it is
                continue
            try:
                name = self._find(note)
            except Exception as error:
                self.unreached[note] = describe_error(error)
            else:
                self._list(name, found, silent)
        return found, silent

    def _list(self, name: str, found: dict[str, Listing], silent: dict[str, str]) -> None:
        try:
            listing = self.listing(name)
        except Exception as error:
            silent[name] = describe_error(error)
            return
        taken: set[Xid] = set()
        for other, each in found.items():
            if listing.identity and each.identity == listing.identity:
                known = {branch.xid: branch for branch in each.branches}
                mine = (branch for branch in listing.branches if branch.xid in known)
                better = {branch.xid for branch in mine if _suitability(branch) > _suitability(known[branch.xid])}
                found[other] = _without(each, better)
                taken |= known.keys() - better
        found[name] = _without(listing, taken)

    def listing(self, name: str) -> Listing:
        """What is prepared in one datasource now; raises where it does not answer."""
        manager = self.managers[name]
        identity = manager.identity()
        prepared = manager.recover()
        here = (_listed_branch(branch, name, identity) for branch in prepared if not branch.elsewhere)
        elsewhere = (_listed_branch(branch, name, branch.elsewhere) for branch in prepared if branch.elsewhere)
        return Listing(identity, tuple(here), tuple(elsewhere))

    def _find(self, note: LocationNote) -> str:
        """Make what leads to a noted database one of the sites, and return its name here; raises where nothing does."""
        if self._others is None:
            raise ConfigurationError("no datasource of this configuration leads there")
        datasource, file = self._others.find(note)
        name = datasource.name
        if name in self.managers:  # another database goes by that
            name = f"{name} in {note.location.identity}"
        self._add(datasource, name)
        if file:
            self.unconfigured[note] = file
        return name

    def logins(self, name: str) -> frozenset[str]:
        """Whom sessions of a datasource log in as, by its configuration; asks its database."""
        return self.managers[name].logins()

    def staging_tables(self) -> dict[str, list[StagingTable]]:
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
                silent[name] = describe_error(error)
        return found, silent


def _suitability(branch: ListedBranch) -> tuple[bool, bool]:
    """How well a datasource that lists a branch fits it: its role, or its configuration, and then its name."""
    return branch.roles is None, branch.xid.tag == tag_of(branch.datasource)


def _without(listing: Listing, xids: Collection[Xid]) -> Listing:
    return replace(listing, branches=tuple(each for each in listing.branches if each.xid not in xids))


def _listed_branch(branch: PreparedBranch, datasource: str, identity: str) -> ListedBranch:
    return ListedBranch(branch.xid, datasource, identity, branch.age, branch.owner, branch.roles, branch.database)
