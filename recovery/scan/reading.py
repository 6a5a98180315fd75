"""Reads the snapshot of one pass, in the only order that is safe.

1. The prepared branches of every datasource, the staging tables, and the rows of branches that have committed.
2. The incarnations; the dead ones are fenced.
3. The finished marks.
4. Abort records, then pointers, which are refused after them. Notes of last resources, then decisions, which take their
   places. Marked rows.

In any other order, recovery may commit in one database what it rolls back in another, and a second pass does not help.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Set
from itertools import chain
from types import MappingProxyType

from recovery.scan.datasources.datasources import ListedBranch, Listing, RecoveryDatasources
from recovery.scan.owners import BranchOwners
from recovery.scan.snapshot import Snapshot
from txpool import failpoints
from txpool.config.secrets import describe_error
from txpool.errors import LogError, described
from txpool.log.base import DecisionLog, IncarnationState
from txpool.log.locations import LocationNote
from txpool.tm.commit.annotations import NOTE
from txpool.xid import split_gtrid

#: The datasource, the node and the incarnation of a branch.
_Place = tuple[str, str, str]


def take_snapshot(
    log: DecisionLog,
    datasources: RecoveryDatasources,
    *,
    fence: bool = True,
    seen_for: Mapping[str, float] = MappingProxyType({}),
    overdue_rollback: float | None = None,
) -> Snapshot:
    """Read the log and every datasource, in order. Without `fence`, nothing is written: never act on such a snapshot.

    `seen_for` and `overdue_rollback`: see `Snapshot`.

    Errors: LogError if the log cannot be read. A datasource that fails is listed in `unanswered`.
    """
    listings, unanswered = datasources.listings(log.locations(), log.deciders())
    staging_tables, unread_staging = datasources.staging_tables()
    branch_rows, unread_rows = datasources.branch_rows()
    if failpoints.armed:
        failpoints.hit("recovery.listed")
    # The notes are read after the listing: a node writes its note before it prepares there.
    notes = log.locations()
    owners = BranchOwners(notes, log.incarnations_noting(), datasources.logins)
    incarnations = log.incarnations()
    #: By whether they are ours: the datasources, nodes and incarnations of the branches.
    ours, others = set[_Place](), set[_Place]()
    for branch in (branch for listing in listings.values() for branch in listing.branches):
        place = branch.datasource, branch.named.node, branch.named.incarnation
        (ours if owners.is_ours(branch) else others).add(place)
    if log.every_node:
        # A log that was restored or replaced does not know the nodes that have used the former one.
        datasources.add_nodes({node for _, node, _ in ours})
    listed = {incarnation for _, _, incarnation in ours}
    for name in owners.failed:
        # Nobody can tell whose the branches of this datasource are, so it counts as unanswered.
        del listings[name]
    unanswered |= owners.failed
    listed |= {split_gtrid(xid.gtrid).incarnation for xids in branch_rows.values() for xid in xids}
    listed |= {split_gtrid(table.gtrid).incarnation for tables in staging_tables.values() for table in tables}
    incarnations |= _expired(log, listed - incarnations.keys())
    fences = _Fences(log) if fence else None
    if fences is not None:
        fences.build(
            name
            for name, state in incarnations.items()
            if state is IncarnationState.DEAD or (state is IncarnationState.FENCED and name in listed)
        )
    if failpoints.armed:
        failpoints.hit("recovery.fenced")
    finished = log.finished()
    aborted, last_resources = log.aborted(), log.last_resources()
    pointers, decisions = log.pointers(), log.decisions()
    rows, without_rows = datasources.rows()
    heuristics, timeouts = log.heuristics(), log.timeouts()
    program_notes = {record.name: record.text for record in log.side_records(NOTE)}
    try:
        named = {split_gtrid(each)[:2] for each in chain(finished, last_resources, pointers, decisions, aborted)}
        if log.every_node:
            datasources.add_nodes({node for node, _ in named})
        named.update(split_gtrid(each)[:2] for each in chain.from_iterable(rows.values()))
    except ValueError as error:
        raise LogError(
            f"the log is damaged, or a later txpool has written it: {described(error)}. Nothing was done"
        ) from error
    recorded = {incarnation for _, incarnation in named}
    incarnations |= _expired(log, recorded - incarnations.keys())
    fenced = frozenset(name for name, state in incarnations.items() if state is IncarnationState.FENCED)
    if fences is not None:
        # Another process may have begun to write a fence that can be read and is not durable yet.
        fences.build(recorded & fenced)
        fenced = frozenset(fences.built)
    if failpoints.armed:
        failpoints.hit("recovery.read")

    def is_ours(branch: ListedBranch) -> bool:
        return branch.named.node not in datasources.nodes or owners.is_ours(branch)

    foreign = {incarnation for name, node, incarnation in others if name in listings and node in datasources.nodes}
    without_identity = {name for name, listing in listings.items() if not listing.identity}
    return Snapshot(
        nodes=datasources.nodes,
        listings=listings,
        unanswered=unanswered | without_rows,
        incarnations=incarnations,
        fenced=fenced,
        finished=frozenset(finished),
        pointers=pointers,
        decisions=decisions,
        aborted=frozenset(aborted),
        rows=rows,
        tags=datasources.tags,
        every_node=log.every_node,
        heuristics=tuple(heuristics),
        last_resources=last_resources,
        timeouts=timeouts,
        seen_for=seen_for,
        overdue_rollback=overdue_rollback,
        notes=program_notes,
        staging_tables=staging_tables,
        unread_staging=unread_staging,
        branch_rows=branch_rows,
        unread_rows=unread_rows,
        unfenced={} if fences is None else fences.failed,
        is_ours=is_ours,
        unconfigured=dict(datasources.unconfigured),
        unreached=dict(datasources.unreached),
        unidentified=_unidentified(notes, listings, {*unanswered, *without_rows, *without_identity}),
        claimed_incarnations=frozenset(foreign & incarnations.keys() | (log.expired(foreign) if foreign else set())),
    )


def _unidentified(
    notes: Iterable[LocationNote], listings: Mapping[str, Listing], without_identity: Set[str]
) -> frozenset[str]:
    """The databases that a datasource of `without_identity` may lead to.

    These are the databases that a note gives for such a datasource, and those that no note mentions.
    """
    if not without_identity:
        return frozenset()
    datasources: dict[str, set[str]] = {}
    for note in notes:
        datasources.setdefault(note.location.identity, set()).add(note.location.datasource)
    identities = {branch.identity for listing in listings.values() for branch in listing.elsewhere}
    return frozenset(each for each in identities if each not in datasources or datasources[each] & without_identity)


def _expired(log: DecisionLog, unregistered: set[str]) -> dict[str, IncarnationState]:
    """The incarnations that have left the registry since they expired; all of them are fenced."""
    return dict.fromkeys(log.expired(unregistered), IncarnationState.FENCED) if unregistered else {}


class _Fences:
    """The durable fences of one pass, each written once."""

    def __init__(self, log: DecisionLog) -> None:
        self._log = log
        self.built: set[str] = set()
        #: By incarnation: why its fence could not be written.
        self.failed: dict[str, str] = {}

    def build(self, incarnations: Iterable[str]) -> None:
        for name in incarnations:
            if name in self.built:
                continue
            try:
                self._log.fence(name)
            except Exception as error:
                self.failed[name] = describe_error(error)
            else:
                self.built.add(name)
