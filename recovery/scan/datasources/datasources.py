"""The datasources of one pass: their branches, tables of marks and staging tables."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Protocol

from recovery.scan.datasources.asking import (
    AskedInTurn,
    AskedRows,
    AskedStaging,
    AskedTable,
    Asking,
    BranchRowsTable,
    collect,
)
from txpool.config.secrets import describe_error
from txpool.errors import ConfigurationError
from txpool.log.locations import LocationNote
from txpool.packed import Packer, Plain, between
from txpool.resources.base import BranchRecord, Role
from txpool.resources.recovery_access import (
    BranchRecovery,
    MarkedRow,
    PreparedBranch,
    StagingArea,
    StagingTable,
    XidsTable,
    connected,
    each_prepared,
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

    def staging(self, *, lock_timeout: float) -> StagingArea | None:
        """What Spark's tasks have staged; None if its kind has nothing. A drop waits at most `lock_timeout` seconds."""

    def branch_rows(self, *, nodes: Collection[str], lock_timeout: float) -> BranchRowsTable | None:
        """The table of its branches' rows; None if they write none."""


class OtherDatasources(Protocol):
    """Finds datasources that recovery was not configured with. Thread-safe."""

    def find(self, note: LocationNote) -> tuple[RecoverableDatasource, str]:
        """A datasource that leads to the noted database, and the path of its file.

        The path is empty if recovery did not open the datasource itself. Raises if no trusted datasource leads there.
        """

    def marked(self, name: str, notes: Iterable[LocationNote]) -> RecoverableDatasource | None:
        """A marked datasource, by its name or tag: one that this process has opened, or else that of one of the notes.

        None if there is neither. Raises if a noted file is not trusted, or describes something else now.
        """


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
    #: Very many are packed (`txpool.packed`), by their gtrids.
    branches: Sequence[ListedBranch]
    #: The branches prepared in other databases of its server: see `identity` and `database` of each.
    elsewhere: Sequence[ListedBranch] = ()

    def between(self, after: str | None, last: str | None) -> Listing:
        """The branches of the transactions that follow `after`, up to `last`; None has no end on that side."""
        parts = (tuple(between(each, after, last, _gtrid_of)) for each in (self.branches, self.elsewhere))
        return Listing(self.identity, *parts)


class RecoveryDatasources:
    """The configured datasources, and those that the log's notes and this process add.

    Used for one pass, by one thread. All of them are asked at the same time, each within its time: `asking`.
    """

    def __init__(
        self,
        datasources: Iterable[RecoverableDatasource],
        *,
        nodes: Collection[str],
        lock_timeout: float,
        others: OtherDatasources | None = None,
        asking: Asking | None = None,
    ) -> None:
        self.asking: Asking = asking or AskedInTurn()
        #: Those that were configured when the pass began.
        self.configured = tuple(datasources)
        #: The nodes that are ours to recover.
        self.nodes = frozenset(nodes)
        self.managers: dict[str, BranchRecovery] = {}
        self.tables: dict[str, AskedTable] = {}
        self.stagings: dict[str, AskedStaging] = {}
        self.row_tables: dict[str, AskedRows] = {}
        self._lock_timeout = lock_timeout
        self._marked: dict[str, RecoverableDatasource] = {}
        self._others = others
        #: The notes of marked datasources that decide.
        self._deciders: tuple[LocationNote, ...] = ()
        self._failed: dict[str, str] = {}
        #: By datasource: what waits for its staging tables, and for the rows of its branches.
        self._staged: dict[str, Callable[[], Sequence[StagingTable]]] = {}
        self._rows: dict[str, Callable[[], Sequence[Xid]]] = {}
        #: Noted databases that are not configured, and were reached by a noted file: its path.
        self.unconfigured: dict[LocationNote, str] = {}
        #: Noted databases that are not configured, and were not reached: the reason.
        self.unreached: dict[LocationNote, str] = {}
        for datasource in self.configured:
            try:
                self._add(datasource, datasource.name)
            except Exception as error:
                self._failed[datasource.name] = describe_error(error)
        self.tags = {tag_of(name): name for name in self.tables}

    def _add(self, datasource: RecoverableDatasource, name: str) -> None:
        if datasource.role is Role.PREPARED:
            self.managers[name] = datasource.branch_recovery()
            table = datasource.branch_rows(nodes=self.nodes, lock_timeout=self._lock_timeout)
            if table is not None:
                self.row_tables[name] = AskedRows(self.asking, name, table)
        elif datasource.role is Role.MARKED:
            self._marked[name] = datasource
            self._add_table(name, datasource)
        staging = datasource.staging(lock_timeout=self._lock_timeout)
        if staging is not None:
            self.stagings[name] = AskedStaging(self.asking, name, staging)

    def add_nodes(self, nodes: Collection[str]) -> None:
        """Take these nodes for ours, too: their marks are ours to delete."""
        if self.nodes.issuperset(nodes):
            return
        self.nodes = self.nodes.union(nodes)
        for name, datasource in self._marked.items():
            self._add_table(name, datasource)

    def _add_table(self, name: str, datasource: RecoverableDatasource) -> None:
        table = datasource.xids_table(nodes=self.nodes, lock_timeout=self._lock_timeout)
        self.tables[name] = AskedTable(self.asking, name, table)

    def table(self, name: str, identity: str) -> AskedTable | None:
        """The table of marks of a datasource, by its name or tag.

        A datasource that is not configured, and that this process has opened or the log has noted, serves only if the
        table's identity is known: the table requires it then. By a name alone, another database would decide. Raises
        if a noted file is not trusted.
        """
        if name not in self.tables and identity and self._others is not None:
            notes = (note for note in self._deciders if note.location.identity == identity)
            datasource = self._others.marked(name, notes)
            if datasource is not None:
                name = datasource.name
                self._add(datasource, name)
        return self.tables.get(name)

    def listings(
        self, notes: Iterable[LocationNote] = (), deciders: Iterable[LocationNote] = ()
    ) -> tuple[dict[str, Listing], dict[str, str]]:
        """What is prepared in every datasource that answers, and the errors of those that do not.

        If two datasources lead to one database, each branch is listed once, in the datasource that can end it. A noted
        database that is not configured is found by its note: `unconfigured` and `unreached` tell with what result.
        """
        found: dict[str, Listing] = {}
        self._deciders = tuple(deciders) or self._deciders
        started = {name: self.asking.start(name, partial(self._ask, name)) for name in self.managers}
        self._start_side_queries()
        answers, errors = collect(started)
        unanswered = self._failed | errors
        for name, listing in answers.items():
            _add_listing(name, listing, found)
        self.unconfigured, self.unreached = {}, {}
        searches = {note: self._search(note) for note in notes if not _is_answered_for(note, found, unanswered)}
        for note, search in searches.items():
            if _is_answered_for(note, found, unanswered):  # another node's note has led there
                continue
            try:
                name = self._add_found(note, *search())
            except Exception as error:
                self.unreached[note] = describe_error(error)
                continue
            try:
                _add_listing(name, self.listing(name), found)
            except Exception as error:
                unanswered[name] = describe_error(error)
        return found, unanswered

    def listing(self, name: str) -> Listing:
        """What is prepared in one datasource now. Raises if it does not answer."""
        return self.asking.start(name, partial(self._ask, name))()

    def _ask(self, name: str) -> Listing:
        with connected(self.managers[name]) as manager:
            identity = manager.identity()
            here, elsewhere = _packer(), _packer()
            for branch in each_prepared(manager):
                found = _listed_branch(branch, name, branch.elsewhere or identity)
                (elsewhere if branch.elsewhere else here).add(found)
        return Listing(identity, here.packed(), elsewhere.packed())

    def _search(self, note: LocationNote) -> Callable[[], tuple[RecoverableDatasource, str]]:
        """Start to look for the datasource that leads to a noted database. What waits raises if there is none."""
        where = f"note {note.location.datasource} {note.location.identity}"
        return self.asking.start(where, partial(self._find, note))

    def _find(self, note: LocationNote) -> tuple[RecoverableDatasource, str]:
        if self._others is None:
            raise ConfigurationError("no datasource of this configuration leads there")
        return self._others.find(note)

    def _add_found(self, note: LocationNote, datasource: RecoverableDatasource, file: str) -> str:
        """Add a datasource that a note has led to, and return its name here."""
        name = datasource.name
        if name in self.managers:  # a datasource of this name leads to another database
            name = f"{name} in {note.location.identity}"
        self._add(datasource, name)
        if file:
            self.unconfigured[note] = file
        return name

    def logins(self, name: str) -> frozenset[str]:
        """The roles that sessions of a datasource log in as, by its configuration. Asks its database."""
        return self.asking.start(name, self.managers[name].logins)()

    def _start_side_queries(self) -> None:
        """Start to ask for staging tables and rows, behind the listing: one that hangs costs its time only once."""
        for name, area in self.stagings.items():
            if name not in self._staged:
                self._staged[name] = area.start_tables()
        for name, table in self.row_tables.items():
            if name not in self._rows:
                self._rows[name] = table.start_xids()

    def staging_tables(self) -> tuple[dict[str, Sequence[StagingTable]], dict[str, str]]:
        """The staging tables, by datasource, and the errors of those that could not be read."""
        self._start_side_queries()
        return collect(self._staged)

    def branch_rows(self) -> tuple[dict[str, Sequence[Xid]], dict[str, str]]:
        """The branches that have rows, by datasource, and the errors of tables that could not be read."""
        self._start_side_queries()
        return collect(self._rows)

    def rows(self) -> tuple[dict[str, dict[str, MarkedRow]], dict[str, str]]:
        """The rows and tombstones of every marked datasource that answers, and the errors of those that do not."""
        answers, unanswered = collect({name: table.start_read() for name, table in self.tables.items()})
        return {name: {row.gtrid: row for row in rows} for name, rows in answers.items()}, unanswered


def _is_answered_for(note: LocationNote, found: Mapping[str, Listing], unanswered: Mapping[str, str]) -> bool:
    """Whether a datasource has answered that leads to the noted database, or one has not that may lead there."""
    listed = any(note.is_of(each.identity, name) for name, each in found.items())
    return listed or note.location.datasource in unanswered  # the unanswered one is reported


def _add_listing(name: str, listing: Listing, found: dict[str, Listing]) -> None:
    """Add a listing to those of other datasources, so that each branch is in one of them."""
    listed_elsewhere: set[Xid] = set()
    for other, each in found.items():
        if listing.identity and each.identity == listing.identity:
            known = {branch.xid: branch for branch in each.branches}
            both = (branch for branch in listing.branches if branch.xid in known)
            suits_here = {branch.xid for branch in both if _suitability(branch) > _suitability(known[branch.xid])}
            found[other] = _without(each, suits_here)
            listed_elsewhere |= known.keys() - suits_here
    found[name] = _without(listing, listed_elsewhere)


def _suitability(branch: ListedBranch) -> tuple[bool, bool]:
    """How suitable a datasource is to end a branch that it lists: its login role counts first, then its name."""
    return branch.roles is None, branch.xid.tag == tag_of(branch.datasource)


def _without(listing: Listing, xids: Collection[Xid]) -> Listing:
    if not xids:
        return listing
    left = _packer()
    left.extend(each for each in listing.branches if each.xid not in xids)
    return replace(listing, branches=left.packed())


def _listed_branch(branch: PreparedBranch, datasource: str, identity: str) -> ListedBranch:
    return ListedBranch(branch.xid, datasource, identity, branch.age, branch.owner, branch.roles, branch.database)


def _gtrid_of(branch: ListedBranch) -> str:
    return branch.xid.gtrid


def _packer() -> Packer[ListedBranch]:
    return Packer(_pack, _unpack)


def _pack(branch: ListedBranch) -> Plain:
    return *branch.xid, branch.datasource, branch.identity, branch.age, branch.owner, branch.roles, branch.database


def _unpack(plain: Plain) -> ListedBranch:
    gtrid, bqual, *rest = plain
    return ListedBranch(Xid(gtrid, bqual), *rest)
