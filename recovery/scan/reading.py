"""Reads one pass's snapshot, in the only order that is safe.

First the prepared branches of every datasource; then who lives, and the fence of who does not; then the finished
marks; then pointers, decisions, abort records and marked rows. Any other order commits in one database what it rolls
back in another, and a second pass does not help.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Set

from recovery.scan.datasources import ListedBranch, Listing, RecoveryDatasources
from recovery.scan.owners import BranchOwners
from recovery.scan.report import describe_error
from recovery.scan.snapshot import Snapshot
from txpool import failpoints
from txpool.errors import LogError
from txpool.log.base import DecisionLog, IncarnationState
from txpool.log.locations import LocationNote
from txpool.tm.annotations import NOTE
from txpool.xid import split_gtrid


def take_snapshot(log: DecisionLog, sites: RecoveryDatasources, *, fence: bool = True) -> Snapshot:
    """Read everything, in order. Without `fence` nothing is written: for people to look at, never to act on.

    Errors: LogError where the log cannot be read. A datasource that fails has not answered.
    """
    listings, silent = sites.listings(log.locations())
    staged = sites.staged()
    if failpoints.armed:
        failpoints.hit("recovery.listed")
    # Behind the listing, since a note is there before what it is about.
    notes = log.locations()
    owners = BranchOwners(notes, log.incarnations_noting(), sites.logins)
    lives = log.incarnations()
    seen = [branch for listing in listings.values() for branch in listing.branches if owners.is_ours(branch)]
    named = {branch.xid.incarnation for branch in seen}
    for name in owners.failed:
        # Without its word nobody can tell whose its branches are: it has not answered.
        del listings[name]
    silent |= owners.failed
    named |= {split_gtrid(table.gtrid).incarnation for tables in staged.values() for table in tables}
    lives |= _expired(log, named - lives.keys())
    fences = _Fences(log) if fence else None
    if fences is not None:
        fences.build(
            n
            for n, life in lives.items()
            if life is IncarnationState.DEAD or (life is IncarnationState.FENCED and n in named)
        )
    if failpoints.armed:
        failpoints.hit("recovery.fenced")
    finished = log.finished()
    pointers, decisions, aborted = log.pointers(), log.decisions(), log.aborted()
    rows, mute = sites.rows()
    heuristics = log.heuristics()
    kept_notes = {memo.name: memo.text for memo in log.side_records(NOTE)}
    try:
        names = {split_gtrid(g).incarnation for g in {*finished, *pointers, *decisions, *aborted}.union(*rows.values())}
    except ValueError as error:
        raise LogError(f"the log is damaged, or a later txpool has written it: {error}. Nothing was done") from error
    lives |= _expired(log, names - lives.keys())
    fenced = frozenset(name for name, life in lives.items() if life is IncarnationState.FENCED)
    if fences is not None:
        # A fence that somebody else had begun to write is not durable because it can be read, nor is what it fences.
        fences.build(names & fenced)
        fenced = frozenset(fences.built)
    if failpoints.armed:
        failpoints.hit("recovery.read")

    def is_ours(branch: ListedBranch) -> bool:
        return branch.xid.node not in sites.nodes or owners.is_ours(branch)

    foreign = {b.xid.incarnation for each in listings.values() for b in each.branches if not is_ours(b)}
    return Snapshot(
        nodes=sites.nodes,
        listings=listings,
        silent=silent | mute,
        incarnations=lives,
        fenced=fenced,
        finished=frozenset(finished),
        pointers=pointers,
        decisions=decisions,
        aborted=frozenset(aborted),
        rows=rows,
        tags=sites.tags,
        heuristics=tuple(heuristics),
        notes=kept_notes,
        staged=staged,
        unfenced={} if fences is None else fences.failed,
        is_ours=is_ours,
        unconfigured=dict(sites.unconfigured),
        unreached=dict(sites.unreached),
        unidentified=_unidentified(
            notes, listings, {*silent, *mute, *(name for name, each in listings.items() if not each.identity)}
        ),
        claimed=frozenset(foreign & lives.keys() | (log.expired(foreign) if foreign else set())),
    )


def _unidentified(notes: Iterable[LocationNote], listings: Mapping[str, Listing], silent: Set[str]) -> frozenset[str]:
    """The databases that what has not told its own may lead to: those it is noted with, and those without any note."""
    if not silent:
        return frozenset()
    noted: dict[str, set[str]] = {}
    for note in notes:
        noted.setdefault(note.location.identity, set()).add(note.location.datasource)
    seen = {branch.identity for listing in listings.values() for branch in listing.elsewhere}
    return frozenset(each for each in seen if each not in noted or noted[each] & silent)


def _expired(log: DecisionLog, strangers: set[str]) -> dict[str, IncarnationState]:
    """Those that were fenced long ago and have left the registry: what appears of one brings it back."""
    return dict.fromkeys(log.expired(strangers), IncarnationState.FENCED) if strangers else {}


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
                self.failed[name] = describe_error(error)
            else:
                self.built.add(name)
