"""What one pass has read, gathered in the only order that is safe.

First the prepared branches of every datasource; then who lives, and the fence of who does not; then the finished
marks; then pointers, decisions, abort records and marked rows. Any other order commits in one database what it rolls
back in another, and a second pass does not help.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from functools import cached_property

from recovery.report import told
from recovery.sites import Listing, Seen, Sites
from txpool import failpoints
from txpool.log.base import Decision, DecisionLog, Heuristic, Life
from txpool.resources.base import BranchRecord, MarkedRow
from txpool.resources.staging import StagingTable
from txpool.xid import split_gtrid, split_pointer

#: What is wrong with a datasource whose url was changed, in words.
STRAYED = "leads to another database than the one it was prepared in"


class Standing(Enum):
    """What recovery may do with a transaction, as far as its process is concerned."""

    FENCED = "its process is dead, and fenced"
    DEAD = "its process is dead, and not fenced yet"
    FINISHED = "its process lives, and has let go of it"
    ALIVE = "its process lives, and has not let go of it"
    UNKNOWN = "its incarnation is unknown to this log"
    FOREIGN = "it is another node's"


@dataclass(frozen=True)
class Evidence:
    """What a pass knows. Immutable once gathered; `silent` names the datasources that have not answered."""

    #: Those that are ours to recover.
    nodes: frozenset[str]
    listings: Mapping[str, Listing]
    silent: Mapping[str, str]
    lives: Mapping[str, Life]
    #: The incarnations that are fenced durably, by this very pass where it acts.
    fenced: frozenset[str]
    finished: frozenset[str]
    pointers: Mapping[str, str]
    decisions: Mapping[str, Decision]
    aborted: frozenset[str]
    #: By marked datasource and gtrid.
    rows: Mapping[str, Mapping[str, MarkedRow]]
    #: The names of the marked datasources by their tags.
    tags: Mapping[str, str]
    heuristics: tuple[Heuristic, ...] = ()
    #: The staging tables in each datasource.
    staged: Mapping[str, Sequence[StagingTable]] = field(default_factory=dict)
    #: What could not be fenced, and why.
    unfenced: Mapping[str, str] = field(default_factory=dict)

    @cached_property
    def _branches(self) -> dict[str, list[Seen]]:
        found: dict[str, list[Seen]] = {}
        for listing in self.listings.values():
            for branch in listing.branches:
                found.setdefault(branch.xid.gtrid, []).append(branch)
        return found

    def seen(self, gtrid: str) -> Sequence[Seen]:
        """The listed branches of a transaction."""
        return self._branches.get(gtrid, ())

    def listed(self, gtrid: str) -> bool:
        """Whether any branch of it was prepared anywhere when the pass began."""
        return gtrid in self._branches

    def was_listed(self, record: BranchRecord) -> bool:
        """Whether that branch was prepared when the pass began."""
        return any(branch.xid == record.xid for branch in self.seen(record.xid.gtrid))

    def strayed(self, record: BranchRecord) -> str:
        """Where its datasource leads today, if not to the database that the branch was prepared in; or empty."""
        here = self.listings[record.datasource].identity
        if record.identity in ("", here):
            return ""
        if not here and self.was_listed(record):
            return ""
        return here or "a server that does not tell its identity"

    @property
    def gtrids(self) -> list[str]:
        """Every transaction that anything is known of."""
        kept: Iterable[Iterable[str]] = (self.finished, self.pointers, self.decisions, self.aborted)
        noted = (heuristic.gtrid for heuristic in self.heuristics)
        return sorted(set(self._branches).union(*kept, *self.rows.values(), noted))

    def standing(self, gtrid: str) -> Standing:
        """Whose it is, and whether that process can still decide it."""
        named = split_gtrid(gtrid)
        life = self.lives.get(named.incarnation)
        if named.node not in self.nodes:
            return Standing.FOREIGN
        if named.incarnation in self.fenced:
            return Standing.FENCED
        if gtrid in self.finished:
            return Standing.FINISHED
        if life is None:
            return Standing.UNKNOWN
        return Standing.ALIVE if life is Life.ALIVE else Standing.DEAD

    def ended(self, gtrid: str) -> bool:
        """Whether nobody but recovery will do anything with it any more."""
        return self.standing(gtrid) in (Standing.FENCED, Standing.FINISHED)

    def marked_by(self, gtrid: str) -> str | None:
        """The marked datasource that alone decides it (its tag, where none is configured here), or None: the log."""
        pointer = self.pointers.get(gtrid)
        if pointer is not None:
            return split_pointer(pointer)[0]
        kept = {name: rows[gtrid] for name, rows in self.rows.items() if gtrid in rows}
        for name, row in kept.items():
            if row.committed:
                return name
        for branch in self.seen(gtrid):
            if branch.xid.decider is not None:
                return self.tags.get(branch.xid.decider, branch.xid.decider)
        # A tombstone refuses a commit in its own database: who decides in another, or in the log, it does not bind.
        return None if gtrid in self.decisions else next(iter(kept), None)

    def identity_of(self, gtrid: str) -> str:
        """The identity of the table of marks that decides it, as its pointer or its branches say it; or empty."""
        if gtrid in self.pointers:
            return split_pointer(self.pointers[gtrid])[1]
        return next((branch.xid.identity for branch in self.seen(gtrid) if branch.xid.identity), "")

    def row(self, gtrid: str) -> MarkedRow | None:
        """Its row or tombstone in the datasource that decides it, as it was read: nothing is resolved by that."""
        return self.rows.get(self.marked_by(gtrid) or "", {}).get(gtrid)


def gather(log: DecisionLog, sites: Sites, *, fence: bool = True) -> Evidence:
    """Read everything, in order. Without `fence` nothing is written: for people to look at, never to act on.

    Errors: LogError where the log cannot be read. A datasource that fails has not answered.
    """
    listings, silent = sites.listings()
    staged = sites.staged()
    if failpoints.armed:
        failpoints.hit("recovery.listed")
    lives = log.incarnations()
    owners = {branch.xid.incarnation for listing in listings.values() for branch in listing.branches}
    owners |= {split_gtrid(table.gtrid).incarnation for tables in staged.values() for table in tables}
    lives |= _expired(log, owners - lives.keys())
    fences = _Fences(log) if fence else None
    if fences is not None:
        fences.build(n for n, life in lives.items() if life is Life.DEAD or (life is Life.FENCED and n in owners))
    if failpoints.armed:
        failpoints.hit("recovery.fenced")
    finished = log.finished()
    pointers, decisions, aborted = log.pointers(), log.decisions(), log.aborted()
    rows, mute = sites.rows()
    heuristics = log.heuristics()
    names = {split_gtrid(g).incarnation for g in {*finished, *pointers, *decisions, *aborted}.union(*rows.values())}
    lives |= _expired(log, names - lives.keys())
    fenced = frozenset(name for name, life in lives.items() if life is Life.FENCED)
    if fences is not None:
        # A fence that somebody else had begun to write is not durable because it can be read, nor is what it fences.
        fences.build(names & fenced)
        fenced = frozenset(fences.built)
    if failpoints.armed:
        failpoints.hit("recovery.read")
    return Evidence(
        nodes=sites.nodes,
        listings=listings,
        silent=silent | mute,
        lives=lives,
        fenced=fenced,
        finished=frozenset(finished),
        pointers=pointers,
        decisions=decisions,
        aborted=frozenset(aborted),
        rows=rows,
        tags=sites.tags,
        heuristics=tuple(heuristics),
        staged=staged,
        unfenced={} if fences is None else fences.failed,
    )


def _expired(log: DecisionLog, strangers: set[str]) -> dict[str, Life]:
    """Those that were fenced long ago and have left the registry: what appears of one brings it back."""
    return dict.fromkeys(log.expired(strangers), Life.FENCED) if strangers else {}


class _Fences:
    """The durable fences of one pass, each written once."""

    def __init__(self, log: DecisionLog) -> None:
        self._log = log
        self.built: set[str] = set()
        self.failed: dict[str, str] = {}

    def build(self, incarnations: Iterable[str]) -> None:
        for name in incarnations:
            if name in self.built:
                continue
            try:
                self._log.fence(name)
            except Exception as error:
                self.failed[name] = told(error)
            else:
                self.built.add(name)
