"""What one pass has read, gathered in the only order that is safe.

First the prepared branches of every datasource; then who lives, and the fence of who does not; then the finished
marks; then pointers, decisions, abort records and marked rows. Any other order commits in one database what it rolls
back in another, and a second pass does not help.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from functools import cached_property

from recovery.scan.datasources import ListedBranch, Listing
from txpool.log.base import Decision, Heuristic, IncarnationState
from txpool.log.locations import LocationNote
from txpool.resources.base import BranchRecord, MarkedRow
from txpool.resources.postgresql.staging import StagingTable
from txpool.tm.annotations import NOTE, annotations_in, printable
from txpool.xid import Xid, split_gtrid, split_pointer

#: What is wrong with a datasource whose url was changed, in words.
OTHER_DATABASE = "leads to another database than the one it was prepared in"


class CoordinatorState(Enum):
    """What recovery may do with a transaction, as far as its process is concerned."""

    FENCED = "its process is dead, and fenced"
    DEAD = "its process is dead, and not fenced yet"
    FINISHED = "its process lives, and has let go of it"
    ALIVE = "its process lives, and has not let go of it"
    UNKNOWN = "its incarnation is unknown to this log"
    OTHER_NODE = "it is another node's"


@dataclass(frozen=True)
class Snapshot:
    """What a pass knows. Immutable once gathered; `silent` names the datasources that have not answered."""

    #: Those that are ours to recover.
    nodes: frozenset[str]
    #: By datasource: all that is prepared there under a name of ours, whoever prepared it.
    listings: Mapping[str, Listing]
    unanswered: Mapping[str, str]
    incarnations: Mapping[str, IncarnationState]
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
    #: The notes of transactions that have, or had, heuristic outcomes.
    notes: Mapping[str, str] = field(default_factory=dict)
    #: The staging tables in each datasource.
    staging_tables: Mapping[str, Sequence[StagingTable]] = field(default_factory=dict)
    #: What could not be fenced, and why.
    unfenced: Mapping[str, str] = field(default_factory=dict)
    #: Whether a branch counts by its owner.
    is_ours: Callable[[ListedBranch], bool] = lambda _: True
    #: Noted databases that the configuration does not lead to: the file that did, or why none has.
    unconfigured: Mapping[LocationNote, str] = field(default_factory=dict)
    unreached: Mapping[LocationNote, str] = field(default_factory=dict)
    #: Databases that a datasource may lead to which has not answered, or not told its identity.
    unidentified: frozenset[str] = frozenset()
    #: The incarnations under whose names somebody else has prepared, and that this log knows.
    claimed_incarnations: frozenset[str] = frozenset()

    # -- branches -----------------------------------------------------------------------------------------------

    def is_believed(self, branch: ListedBranch) -> bool:
        """Whether a listed branch may be believed: by its owner, or since a decision names it."""
        return self.is_ours(branch) or self._is_named(branch)

    def _is_named(self, branch: ListedBranch) -> bool:
        """Whether a decision names it, in the log or in a committed row, and its server does not say otherwise."""
        identity = self._named_branches.get(branch.xid)
        return identity is not None and same_identity(identity, branch.identity)

    @cached_property
    def _named_branches(self) -> dict[Xid, str]:
        """The branches that decisions name, with the identity of the database that each was prepared in."""
        rows = (row for rows in self.rows.values() for row in rows.values())
        named = {record.xid: record.identity for row in rows for record in row.branches}
        return named | {it.xid: it.identity for decision in self.decisions.values() for it in decision.branches}

    @cached_property
    def _ours_and_foreign(self) -> tuple[dict[str, list[ListedBranch]], list[ListedBranch]]:
        ours: dict[str, list[ListedBranch]] = {}
        foreign: list[ListedBranch] = []
        for listing in self.listings.values():
            for branch in listing.branches:
                if self.is_believed(branch):
                    ours.setdefault(branch.xid.gtrid, []).append(branch)
                else:
                    foreign.append(branch)
        return ours, foreign

    @property
    def _ours(self) -> dict[str, list[ListedBranch]]:
        return self._ours_and_foreign[0]

    @property
    def foreign(self) -> Sequence[ListedBranch]:
        """Branches under names of ours that somebody else has prepared: never ended, and never a reason to wait."""
        return self._ours_and_foreign[1]

    @cached_property
    def elsewhere(self) -> Sequence[ListedBranch]:
        """Branches of our nodes in other databases of the servers, which no datasource leads to."""
        reached = {listing.identity for listing in self.listings.values()} | self.unidentified
        found = {
            (branch.identity, branch.xid): branch
            for listing in self.listings.values()
            for branch in listing.elsewhere
            if branch.identity not in reached and branch.xid.node in self.nodes and self.is_ours(branch)
        }
        return tuple(found.values())

    @cached_property
    def _unreachable_or_foreign(self) -> dict[str, tuple[list[ListedBranch], list[ListedBranch]]]:
        found: dict[str, tuple[list[ListedBranch], list[ListedBranch]]] = {}
        for which, branches in enumerate((self.elsewhere, self.foreign)):
            for branch in branches:
                found.setdefault(branch.xid.gtrid, ([], []))[which].append(branch)
        return found

    def unreachable_or_foreign(self, gtrid: str) -> tuple[Sequence[ListedBranch], Sequence[ListedBranch]]:
        """Under a transaction's name: what no datasource leads to, and what somebody else has prepared."""
        return self._unreachable_or_foreign.get(gtrid, ((), ()))

    @property
    def claimed_gtrids(self) -> Iterable[str]:
        """Transactions under whose names there are such branches."""
        return self._unreachable_or_foreign

    def listed_branches(self, gtrid: str) -> Sequence[ListedBranch]:
        """The listed branches of a transaction."""
        return self._ours.get(gtrid, ())

    def is_listed(self, gtrid: str) -> bool:
        """Whether any branch of it was prepared anywhere when the pass began."""
        return gtrid in self._ours

    def was_listed(self, record: BranchRecord) -> bool:
        """Whether that branch was prepared when the pass began."""
        return record.xid in self._listed_xids

    @cached_property
    def _listed_xids(self) -> frozenset[Xid]:
        return frozenset(branch.xid for branches in self._ours.values() for branch in branches)

    def datasource_of(self, record: BranchRecord) -> str | None:
        """The datasource that leads to the database of a branch today, whatever it is called; None where none answers.

        One of its name that leads elsewhere is the answer, too, where there is no better: see `strayed`.
        """
        name = record.datasource
        listing = self.listings.get(name)
        if listing is not None and same_identity(record.identity, listing.identity):
            return name
        same = (other for other, each in self.listings.items() if record.identity and each.identity == record.identity)
        return next(same, name if listing is not None else None)

    def other_database(self, record: BranchRecord) -> str:
        """Where its datasource leads today, if not to the database that the branch was prepared in; or empty."""
        here = self.listings[self.datasource_of(record) or record.datasource].identity
        if record.identity in ("", here):
            return ""
        if not here and self.was_listed(record):
            return ""
        return here or "a server that does not tell its identity"

    # -- transactions -------------------------------------------------------------------------------------------

    @cached_property
    def gtrids(self) -> Collection[str]:
        """Every transaction that anything is known of, in order; whether one is among them is asked of a dict."""
        kept: Iterable[Iterable[str]] = (self.finished, self.pointers, self.decisions, self.aborted)
        noted = (heuristic.gtrid for heuristic in self.heuristics)
        return dict.fromkeys(sorted(set(self._ours).union(*kept, *self.rows.values(), noted)))

    def coordinator_state(self, gtrid: str) -> CoordinatorState:
        """Whose it is, and whether that process can still decide it."""
        named = split_gtrid(gtrid)
        life = self.incarnations.get(named.incarnation)
        if named.node not in self.nodes:
            return CoordinatorState.OTHER_NODE
        if named.incarnation in self.fenced:
            return CoordinatorState.FENCED
        if gtrid in self.finished:
            return CoordinatorState.FINISHED
        if life is None:
            return CoordinatorState.UNKNOWN
        return CoordinatorState.ALIVE if life is IncarnationState.ALIVE else CoordinatorState.DEAD

    def is_left_to_recovery(self, gtrid: str) -> bool:
        """Whether nobody but recovery will do anything with it any more."""
        return self.coordinator_state(gtrid) in (CoordinatorState.FENCED, CoordinatorState.FINISHED)

    def marked_by(self, gtrid: str) -> str | None:
        """The marked datasource that alone decides it (its tag, where none is configured here), or None: the log.

        A decision in the log outranks all else, then comes the log's pointer, then a committed row. Only where there is
        none of these do the names of its branches say it, and then all of them the same: see `disputed`.
        """
        if gtrid in self.decisions:
            return None
        if gtrid in self.pointers:
            return split_pointer(self.pointers[gtrid])[0]
        kept = [name for name, rows in self.rows.items() if gtrid in rows]
        committed = next((name for name in kept if self.rows[name][gtrid].committed), None)
        if committed is not None:
            return committed
        if self.disputed(gtrid):
            return None
        named = next((xid.decider for xid in self._named_deciders(gtrid).values()), None)
        if named is not None:
            return self.tags.get(named, named)
        # A tombstone refuses a commit in its own database: who decides in another, or in the log, it does not bind.
        return next(iter(kept), None)

    def disputed(self, gtrid: str) -> str:
        """The deciders that its branches name, where they differ and nothing outranks them; or empty."""
        if gtrid in self.decisions or gtrid in self.pointers:
            return ""
        if any(rows[gtrid].committed for rows in self.rows.values() if gtrid in rows):
            return ""
        named = self._named_deciders(gtrid)
        return ", ".join(sorted(named)) if len(named) > 1 else ""

    def _named_deciders(self, gtrid: str) -> Mapping[str, Xid]:
        """Who decides it by the names of its branches: one of them for each of the answers."""
        return self._all_named_deciders.get(gtrid, {})

    @cached_property
    def _all_named_deciders(self) -> dict[str, dict[str, Xid]]:
        # Once for all: a Spark write has thousands of branches, and each of them is voted on.
        found = self._ours.items()
        return {gtrid: {branch.xid.decided_by: branch.xid for branch in branches} for gtrid, branches in found}

    def identity_of(self, gtrid: str) -> str:
        """The identity of the table of marks that decides it, as its pointer or its branches say it; or empty."""
        if gtrid in self.pointers:
            return split_pointer(self.pointers[gtrid])[1]
        return next((branch.xid.identity for branch in self.listed_branches(gtrid) if branch.xid.identity), "")

    def row(self, gtrid: str) -> MarkedRow | None:
        """Its row or tombstone in the datasource that decides it, as it was read: nothing is resolved by that."""
        return self.rows.get(self.marked_by(gtrid) or "", {}).get(gtrid)

    def annotations(self, gtrid: str) -> Mapping[str, str]:
        """What its decision says of it for people and for traces; empty texts where it says nothing."""
        row, decision = self.row(gtrid), self.decisions.get(gtrid)
        found = annotations_in(row.branches if row is not None else decision.branches if decision is not None else ())
        return found if found[NOTE] else found | {NOTE: printable(self.notes.get(gtrid, ""))}


def same_identity(identity: str, other: str) -> bool:
    """Where either is not told, there is nothing to compare."""
    return not identity or not other or identity == other
