"""Snapshot: what one pass has read, and the questions that it answers about branches and transactions.

Which branches are ours, what state a transaction's coordinator is in, and which datasource or log decides it. A
snapshot is taken by `reading.take_snapshot`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from functools import cached_property
from math import inf

from recovery.scan.datasources.datasources import ListedBranch, Listing
from txpool.log.base import Decision, Heuristic, IncarnationState
from txpool.log.locations import LocationNote
from txpool.resources.base import BranchRecord
from txpool.resources.recovery_access import MarkedRow, StagingTable
from txpool.tm.commit.annotations import NOTE, annotations_in, printable
from txpool.xid import Xid, split_gtrid, split_pointer

#: How many seconds longer than its timeout a transaction stays prepared before its process counts as one that hangs.
MARGIN_SECONDS = 10.0
#: The state of a branch whose datasource has another url now, in words.
OTHER_DATABASE = "leads to another database than the one it was prepared in"


class CoordinatorState(Enum):
    """The state of the process that coordinates a transaction: it says what recovery may do."""

    FENCED = "its process is dead and fenced"
    DEAD = "its process is dead and not fenced yet"
    FINISHED = "its process is alive and has finished with it"
    ABORTED = "the log has an abort record, so its process can never decide it"
    ALIVE = "its process is alive and has not finished with it"
    UNKNOWN = "its incarnation is unknown to this log"
    OTHER_NODE = "it belongs to another node"


_LEFT_TO_RECOVERY = frozenset({CoordinatorState.FENCED, CoordinatorState.FINISHED, CoordinatorState.ABORTED})


@dataclass(frozen=True)
class Snapshot:
    """What a pass has read from the log and the datasources. Immutable."""

    #: The nodes that are ours to recover.
    nodes: frozenset[str]
    #: By datasource: every branch that is prepared there under a name of ours, whoever prepared it.
    listings: Mapping[str, Listing]
    #: The datasources that have not answered, with their errors.
    unanswered: Mapping[str, str]
    incarnations: Mapping[str, IncarnationState]
    #: The incarnations whose fence is durable. A pass that acts has written each of these fences itself.
    fenced: frozenset[str]
    #: The gtrids that have a finished mark.
    finished: frozenset[str]
    #: By gtrid: the marked datasource that decides it, as the log's pointer says.
    pointers: Mapping[str, str]
    #: By gtrid: the decision in the log.
    decisions: Mapping[str, Decision]
    #: The gtrids that have an abort record.
    aborted: frozenset[str]
    #: By marked datasource and gtrid: the committed rows and the tombstones.
    rows: Mapping[str, Mapping[str, MarkedRow]]
    #: The names of the marked datasources by their tags.
    tags: Mapping[str, str]
    #: Whether all nodes are ours, those that the log does not know included.
    every_node: bool = False
    heuristics: tuple[Heuristic, ...] = ()
    #: By gtrid, if no decision was made yet: the last resource, which commits before the decision.
    last_resources: Mapping[str, str] = field(default_factory=dict)
    #: By incarnation: the largest timeout that any of its transactions has had, in seconds; `inf` if there was none.
    timeouts: Mapping[str, float] = field(default_factory=dict)
    #: By gtrid: for how many seconds scans have seen it in doubt. Not every database tells an age.
    seen_for: Mapping[str, float] = field(default_factory=dict)
    #: recovery.overdue-rollback, in seconds; None: what is overdue is never rolled back.
    overdue_rollback: float | None = None
    #: By gtrid: the program's note of a transaction that has, or had, a heuristic outcome.
    notes: Mapping[str, str] = field(default_factory=dict)
    #: By datasource.
    staging_tables: Mapping[str, Sequence[StagingTable]] = field(default_factory=dict)
    #: By datasource: the branches whose rows say that they have committed.
    branch_rows: Mapping[str, Sequence[Xid]] = field(default_factory=dict)
    #: The errors of their tables that could not be read, by datasource.
    unread_rows: Mapping[str, str] = field(default_factory=dict)
    #: The incarnations that could not be fenced, with the errors.
    unfenced: Mapping[str, str] = field(default_factory=dict)
    #: Whether a branch is ours by its owner.
    is_ours: Callable[[ListedBranch], bool] = lambda _: True
    #: Noted databases that are not configured, and were reached by a noted file: its path.
    unconfigured: Mapping[LocationNote, str] = field(default_factory=dict)
    #: Noted databases that are not configured, and were not reached: the reason.
    unreached: Mapping[LocationNote, str] = field(default_factory=dict)
    #: The identities of databases that some datasource without a known identity may lead to.
    unidentified: frozenset[str] = frozenset()
    #: Incarnations of this log under whose names somebody else has prepared.
    claimed_incarnations: frozenset[str] = frozenset()
    #: The errors of datasources whose staging tables could not be read.
    unread_staging: Mapping[str, str] = field(default_factory=dict)

    # -- branches -----------------------------------------------------------------------------------------------

    def is_believed(self, branch: ListedBranch) -> bool:
        """Whether a listed branch belongs to its transaction: its owner is ours, or a decision names it."""
        return self.is_ours(branch) or self._is_named(branch)

    def _is_named(self, branch: ListedBranch) -> bool:
        """Whether a decision or a committed row names the branch, in the database where it is prepared."""
        identity = self._named_branches.get(branch.xid)
        return identity is not None and same_identity(identity, branch.identity)

    @cached_property
    def _named_branches(self) -> dict[Xid, str]:
        """The branches that decisions and rows name, with the identity of the database that each was prepared in."""
        rows = (row for rows in self.rows.values() for row in rows.values())
        named = {record.xid: record.identity for row in rows for record in row.branches}
        return named | {each.xid: each.identity for decision in self.decisions.values() for each in decision.branches}

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
        """Branches that somebody else has prepared under names of ours: recovery never ends them or waits for them."""
        return self._ours_and_foreign[1]

    @cached_property
    def elsewhere(self) -> Sequence[ListedBranch]:
        """Branches of our nodes in databases of the same servers that no datasource leads to."""
        reached = {listing.identity for listing in self.listings.values()} | self.unidentified
        found = {
            (branch.identity, branch.xid): branch
            for listing in self.listings.values()
            for branch in listing.elsewhere
            if branch.identity not in reached and branch.named.node in self.nodes and self.is_ours(branch)
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
        """The branches of `elsewhere`, and those of `foreign`, that have this gtrid."""
        return self._unreachable_or_foreign.get(gtrid, ((), ()))

    @property
    def claimed_gtrids(self) -> Iterable[str]:
        """The gtrids of the branches of `elsewhere` and `foreign`."""
        return self._unreachable_or_foreign

    def listed_branches(self, gtrid: str) -> Sequence[ListedBranch]:
        """The branches of a transaction that were prepared when the pass began."""
        return self._ours.get(gtrid, ())

    def is_listed(self, gtrid: str) -> bool:
        """Whether any branch of a transaction was prepared when the pass began."""
        return gtrid in self._ours

    def was_listed(self, record: BranchRecord) -> bool:
        """Whether this branch was prepared when the pass began."""
        return record.xid in self._listed_xids

    @cached_property
    def _listed_xids(self) -> frozenset[Xid]:
        return frozenset(branch.xid for branches in self._ours.values() for branch in branches)

    def datasource_of(self, record: BranchRecord) -> str | None:
        """The datasource that leads to the database of a branch today; None if none that answers does.

        If no datasource leads there, the datasource of the recorded name is returned: see `other_database`.
        """
        name = record.datasource
        listing = self.listings.get(name)
        if listing is not None and same_identity(record.identity, listing.identity):
            return name
        same = (other for other, each in self.listings.items() if record.identity and each.identity == record.identity)
        return next(same, name if listing is not None else None)

    def other_database(self, record: BranchRecord) -> str:
        """The identity of the database that its datasource leads to, if the branch is in another; else empty."""
        identity = self.listings[self.datasource_of(record) or record.datasource].identity
        if record.identity in ("", identity):
            return ""
        if not identity and self.was_listed(record):
            return ""
        return identity or "a server that does not tell its identity"

    # -- transactions -------------------------------------------------------------------------------------------

    @cached_property
    def gtrids(self) -> Collection[str]:
        """Every transaction that anything is known of, sorted. Its `in` is fast."""
        recorded: Iterable[Iterable[str]] = (self.finished, self.pointers, self.decisions, self.aborted)
        others = self.last_resources, (each.gtrid for each in self.heuristics)
        return dict.fromkeys(sorted(set(self._ours).union(*recorded, *self.rows.values(), *others)))

    def heuristics_of(self, gtrid: str) -> Sequence[Heuristic]:
        """The heuristic outcomes of a transaction's branches."""
        return self._heuristics_of.get(gtrid, ())

    @cached_property
    def _heuristics_of(self) -> dict[str, list[Heuristic]]:
        found: dict[str, list[Heuristic]] = {}
        for each in self.heuristics:
            found.setdefault(each.gtrid, []).append(each)
        return found

    def coordinator_state(self, gtrid: str) -> CoordinatorState:
        """The state of the process that coordinates a transaction."""
        found = self._states.get(gtrid)
        if found is None:
            found = self._states[gtrid] = self._state(gtrid)
        return found

    @cached_property
    def _states(self) -> dict[str, CoordinatorState]:
        return {}  # filled as it is asked

    def _state(self, gtrid: str) -> CoordinatorState:
        named = split_gtrid(gtrid)
        state = self.incarnations.get(named.incarnation)
        if named.node not in self.nodes:
            return CoordinatorState.OTHER_NODE
        if named.incarnation in self.fenced:
            return CoordinatorState.FENCED
        if gtrid in self.finished:
            return CoordinatorState.FINISHED
        if state is None:
            return CoordinatorState.UNKNOWN
        # If the log decides, an abort record is final. It was read before the pointers: none can come after it.
        if gtrid in self.aborted and self.marked_by(gtrid) is None and not self.disputed(gtrid):
            return CoordinatorState.ABORTED
        return CoordinatorState.ALIVE if state is IncarnationState.ALIVE else CoordinatorState.DEAD

    def is_left_to_recovery(self, gtrid: str) -> bool:
        """Whether the coordinator will do nothing more with a transaction, so that recovery may end it."""
        return self.coordinator_state(gtrid) in _LEFT_TO_RECOVERY

    def decided_branches(self) -> int:
        """About how many branches a pass commits since the log has decided them. It promises nothing."""
        left = (each for each in self.decisions.values() if self._state(each.gtrid) in _LEFT_TO_RECOVERY)
        return sum(self.datasource_of(record) is not None for each in left for record in each.branches)

    def timeout(self, gtrid: str) -> float:
        """The largest timeout that any transaction of its process has had, in seconds; `inf` if that is not known."""
        return self.timeouts.get(split_gtrid(gtrid).incarnation, inf)

    def overdue_by(self, gtrid: str) -> float:
        """For how many seconds longer than `timeout` a living process has left it prepared; `-inf` if none has.

        It tells only when to look: no outcome depends on it.
        """
        if not self.is_listed(gtrid) or self.coordinator_state(gtrid) is not CoordinatorState.ALIVE:
            return -inf
        return max(self._prepared_for.get(gtrid, 0.0), self.seen_for.get(gtrid, 0.0)) - self.timeout(gtrid)

    def has_age(self, gtrid: str) -> bool:
        """Whether a database tells for how long a branch of it has been prepared."""
        return any(branch.age is not None for branch in self.listed_branches(gtrid))

    @cached_property
    def _prepared_for(self) -> dict[str, float]:
        """By gtrid: for how many seconds a branch of it has been prepared."""
        found = self._ours.items()
        return {gtrid: max((branch.age or 0.0 for branch in branches), default=0.0) for gtrid, branches in found}

    def hangs(self, gtrid: str) -> bool:
        """Whether its process lives, and has left it prepared for longer than any of its transactions may take."""
        return self.overdue_by(gtrid) > MARGIN_SECONDS

    def last_resource(self, gtrid: str) -> str:
        """The last resource that may have committed, though nothing was decided; empty if there is none.

        A coordinator that has written a finished mark has told itself how that has ended.
        """
        return "" if gtrid in self.decisions or gtrid in self.finished else self.last_resources.get(gtrid, "")

    def may_end_overdue(self, gtrid: str) -> bool:
        """Whether recovery may take the key of a transaction that its living process has not ended, once it is time."""
        allowed = self.overdue_rollback is not None and self.timeout(gtrid) < inf
        return allowed and gtrid not in self.decisions and not (self.last_resource(gtrid) or self.disputed(gtrid))

    def marked_by(self, gtrid: str) -> str | None:
        """The marked datasource that decides a transaction, or None if the log decides it.

        A datasource that is not configured is given by its tag. The first of these that exists says who decides: a
        decision in the log, the log's pointer, a committed row, the names of the branches (if they agree: see
        `disputed`), a tombstone.
        """
        if gtrid in self.decisions:
            return None
        if gtrid in self.pointers:
            return split_pointer(self.pointers[gtrid])[0]
        with_row = [name for name, rows in self.rows.items() if gtrid in rows]
        committed = next((name for name in with_row if self.rows[name][gtrid].committed), None)
        if committed is not None:
            return committed
        if self.disputed(gtrid):
            return None
        named = next((xid.decider for xid in self._named_deciders(gtrid).values()), None)
        if named is not None:
            return self.tags.get(named, named)
        # A tombstone comes last: it prevents a commit in its own database only.
        return next(iter(with_row), None)

    def disputed(self, gtrid: str) -> str:
        """The deciders that its branches name, if they differ and no decision, pointer or row decides; else empty."""
        if gtrid in self.decisions or gtrid in self.pointers:
            return ""
        if any(rows[gtrid].committed for rows in self.rows.values() if gtrid in rows):
            return ""
        named = self._named_deciders(gtrid)
        return ", ".join(sorted(named)) if len(named) > 1 else ""

    def _named_deciders(self, gtrid: str) -> Mapping[str, Xid]:
        """By decider: one branch whose name says that this decider decides the transaction."""
        return self._all_named_deciders.get(gtrid, {})

    @cached_property
    def _all_named_deciders(self) -> dict[str, dict[str, Xid]]:
        # Cached: a Spark write has thousands of branches, and the filters vote on each of them.
        found = self._ours.items()
        return {gtrid: {branch.xid.decided_by: branch.xid for branch in branches} for gtrid, branches in found}

    def identity_of(self, gtrid: str) -> str:
        """The identity of the deciding table of marks, by the pointer or else by the branches' names; or empty."""
        if gtrid in self.pointers:
            return split_pointer(self.pointers[gtrid])[1]
        return next((branch.xid.identity for branch in self.listed_branches(gtrid) if branch.xid.identity), "")

    def row(self, gtrid: str) -> MarkedRow | None:
        """The row or tombstone that the deciding datasource has. Reading it resolves nothing: the modules do."""
        return self.rows.get(self.marked_by(gtrid) or "", {}).get(gtrid)

    def annotations(self, gtrid: str) -> Mapping[str, str]:
        """The note for people and the trace context that the decision carries; empty texts if it has none."""
        row, decision = self.row(gtrid), self.decisions.get(gtrid)
        found = annotations_in(row.branches if row is not None else decision.branches if decision is not None else ())
        return found if found[NOTE] else found | {NOTE: printable(self.notes.get(gtrid, ""))}


def same_identity(identity: str, other: str) -> bool:
    """Whether two identities of databases may be the same; an unknown identity (empty) may be any."""
    return not identity or not other or identity == other
