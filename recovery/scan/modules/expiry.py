"""Expiry: moves records out of sight that have been of no use for long, and that no outcome can depend on.

A scanner, built in or a user's, only chooses from what `expirable` gives:

- A fenced incarnation that no record and no listed branch names. The log remembers it: its decisions are refused as
  before, and a late branch brings it back, fenced.
- A heuristic outcome of a transaction that has no decision, pointer or row, and no listed branch. By then it is a note
  for people. A finished mark and an abort record do not keep it: they stay for as long as their process lives.
- An abort record of an incarnation that the registry does not have, such as a record of an adopted log. The registry
  refuses the decisions of such an incarnation, with the record or without it.

So no decision, pointer, finished mark, marked row or tombstone ever expires, and no vote and no decision depends on
what has expired. A clock that jumps does no harm: it only moves records earlier or later.

An expired record is stored without a format number, since versions before the location notes read no other elements.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import astuple, dataclass
from enum import Enum
from functools import partial
from typing import Protocol

from recovery.scan.recovery_pass import RecoveryPass
from recovery.scan.snapshot import CoordinatorState, Snapshot
from txpool.log.base import DecisionLog, Heuristic, IncarnationState, SideRecord
from txpool.log.formats import pack, unpack
from txpool.xid import split_gtrid

logger = logging.getLogger("txpool.recovery")

_SEEN_KIND = "expiry"
_EXPIRED_KIND = "expired"


class Kind(Enum):
    """What can expire."""

    INCARNATION = "incarnation"
    HEURISTIC = "heuristic"
    ASSUMED_COMPLETE = "assumed-complete"


@dataclass(frozen=True, slots=True)
class Entry:
    """Something that may expire. `name` is an incarnation or a gtrid."""

    kind: Kind
    name: str

    def __str__(self) -> str:
        return f"{self.kind.value} {self.name}"


@dataclass(frozen=True, slots=True)
class Expired:
    """Something that has expired. `when` is wall-clock seconds, and None for an incarnation."""

    kind: str
    name: str
    when: float | None = None
    heuristics: tuple[Heuristic, ...] = ()


class ExpiryScanner(Protocol):
    """Chooses which entries expire. It must not do any I/O."""

    def expires(self, entry: Entry, age: float, interval: float) -> bool:
        """Whether the entry expires. `age`: for how long scans have found it of no use. Both are in seconds."""


class KindScanner:
    """Chooses every entry of one kind that is at least one interval old."""

    def __init__(self, kind: Kind) -> None:
        self._kind = kind

    def expires(self, entry: Entry, age: float, interval: float) -> bool:
        return entry.kind is self._kind and age >= interval


#: The built-in scanners, by their names in a configuration.
SCANNERS: Mapping[str, Callable[[], ExpiryScanner]] = {kind.value: partial(KindScanner, kind) for kind in Kind}


class Expiry:
    """The last module of a pass. `interval` is in seconds; None: nothing ever expires.

    With `skip_first`, nothing expires until one interval after this object was made.
    """

    name = "expiry"

    def __init__(self, interval: float | None, scanners: Iterable[ExpiryScanner], *, skip_first: bool = False) -> None:
        self._interval = interval
        self._scanners = tuple(scanners)
        self._not_before = time.monotonic() + (interval or 0.0) if skip_first else 0.0

    def run(self, this_pass: RecoveryPass) -> None:
        """Expire the entries that the scanners choose. Nothing expires if a datasource has not answered this pass."""
        if self._interval is None or this_pass.snapshot.unanswered or time.monotonic() < self._not_before:
            return
        found = this_pass.kept.setdefault(self, Expirable())
        found.look_at(this_pass.snapshot)
        if not this_pass.is_last:
            return
        now = time.time()
        entries = found.entries(this_pass.snapshot)
        unused_since = _unused_since(this_pass.log, _unregistered(this_pass.log, entries), now)
        chosen = [
            entry
            for entry, first in unused_since.items()
            if any(scanner.expires(entry, now - first, self._interval) for scanner in self._scanners)
        ]
        if chosen:
            _expire(this_pass, chosen, now)
            this_pass.recorder.record_expired([str(entry) for entry in chosen])


class Expirable:
    """All entries that may expire, as the windows of a pass show them one after the other."""

    def __init__(self) -> None:
        #: The incarnations of transactions.
        self._named: set[str] = set()
        self._heuristic: list[Entry] = []
        self._complete: list[Entry] = []

    def look_at(self, snapshot: Snapshot) -> None:
        """Find those of the transactions of one window."""
        in_doubt = {*snapshot.decisions, *snapshot.pointers, *snapshot.last_resources}.union(*snapshot.rows.values())
        in_doubt.update(filter(snapshot.is_listed, snapshot.gtrids))
        self._named.update(split_gtrid(gtrid).incarnation for gtrid in snapshot.gtrids)
        self._heuristic += [
            Entry(Kind.HEURISTIC, gtrid)
            for gtrid in dict.fromkeys(each.gtrid for each in snapshot.heuristics)
            if gtrid not in in_doubt and snapshot.coordinator_state(gtrid) is not CoordinatorState.OTHER_NODE
        ]
        self._complete += [
            Entry(Kind.ASSUMED_COMPLETE, gtrid)
            for gtrid in sorted(snapshot.aborted - in_doubt - snapshot.finished)
            if snapshot.coordinator_state(gtrid) is CoordinatorState.UNKNOWN
        ]

    def entries(self, snapshot: Snapshot) -> list[Entry]:
        """Those of all windows, and the incarnations that no transaction names."""
        incarnations = [
            Entry(Kind.INCARNATION, name)
            for name, state in snapshot.incarnations.items()
            if state is IncarnationState.FENCED and name not in self._named
        ]
        return [*incarnations, *self._heuristic, *self._complete]


def expired(log: DecisionLog) -> list[Expired]:
    """What has expired: transactions first, then incarnations. Errors: LogError."""
    found: dict[str, Expired] = {}
    for record in log.side_records(_EXPIRED_KIND):
        kind, gtrid, *rest = unpack(record)
        before = found.get(gtrid)
        heuristics = (*(before.heuristics if before else ()), *(Heuristic(*fields) for fields in rest))
        found[gtrid] = Expired(kind, gtrid, record.recorded_at, heuristics)
    return [*found.values(), *(Expired(Kind.INCARNATION.value, name) for name in sorted(log.expired()))]


def node_of(each: Expired) -> str:
    """The node of a transaction that has expired; empty for an incarnation, of which the log keeps none."""
    return "" if each.kind == Kind.INCARNATION.value else split_gtrid(each.name).node


def dismiss_expired(log: DecisionLog, gtrid: str) -> int:
    """Delete what has expired of a transaction. Returns how many heuristic outcomes that were. Errors: LogError."""
    names = [record.name for record in log.side_records(_EXPIRED_KIND) if unpack(record)[1] == gtrid]
    count = sum(len(each.heuristics) for each in expired(log) if each.name == gtrid)
    if names:
        log.delete_records(_EXPIRED_KIND, names)
    return count


def _unregistered(log: DecisionLog, entries: list[Entry]) -> list[Entry]:
    """The entries without abort records of processes that have registered since the snapshot. Errors: LogError."""
    records = {entry for entry in entries if entry.kind is Kind.ASSUMED_COMPLETE}
    known = log.incarnations() if records else {}
    return [entry for entry in entries if entry not in records or split_gtrid(entry.name).incarnation not in known]


def _unused_since(log: DecisionLog, entries: Iterable[Entry], now: float) -> dict[Entry, float]:
    """Since when each scan of this node's recovery has found an entry of no use; saved in the log."""
    record = next((each for each in log.side_records(_SEEN_KIND) if each.name == log.node), None)
    before: dict[str, float] = unpack(record) if record else {}
    since = {entry: before.get(str(entry), now) for entry in entries}
    after = {str(entry): first for entry, first in since.items()}
    if after != before:
        log.put_record(SideRecord(_SEEN_KIND, log.node, pack(**after), now))
    return since


def _expire(this_pass: RecoveryPass, chosen: Iterable[Entry], now: float) -> None:
    """Move the chosen entries. Each is stored as expired before it is deleted: a crash between both loses nothing."""
    log = this_pass.log
    names: dict[Kind, list[str]] = {kind: [] for kind in Kind}
    for entry in chosen:
        names[entry.kind].append(entry.name)
    if names[Kind.INCARNATION]:
        log.expire(names[Kind.INCARNATION])
        log.retire_timeouts()
    for gtrid in names[Kind.ASSUMED_COMPLETE]:
        log.put_record(SideRecord(_EXPIRED_KIND, gtrid, json.dumps([Kind.ASSUMED_COMPLETE.value, gtrid]), now))
    if names[Kind.ASSUMED_COMPLETE]:
        log.purge(names[Kind.ASSUMED_COMPLETE])
    unresolved = set(names[Kind.HEURISTIC])
    for heuristic in this_pass.whole.heuristics:
        if heuristic.gtrid in unresolved:
            text = json.dumps([Kind.HEURISTIC.value, heuristic.gtrid, astuple(heuristic)])
            log.put_record(SideRecord(_EXPIRED_KIND, f"{heuristic.gtrid} {heuristic.bqual}", text, now))
            log.dismiss_heuristics(heuristic.gtrid, heuristic.bqual)
    for gtrid in names[Kind.HEURISTIC]:
        logger.warning(
            "the heuristic outcome of %s was not resolved in time and has expired. Its record is kept: see "
            "`txpool-recovery list --expired`, repair the data, then `txpool-recovery forget`",
            gtrid,
        )
