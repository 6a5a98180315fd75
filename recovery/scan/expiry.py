"""Expiry: what has been of no use for long is moved out of sight, and never anything that an outcome could depend on.

A scanner only chooses. What it may choose from is `expirable`, whoever wrote it:

- an incarnation that is fenced, and that nothing kept or listed names. The log remembers it: what it would decide is
  refused as before, and a branch of it that appears late brings it back, fenced;
- a heuristic outcome of a transaction of which nothing else is kept or listed: a note for people, by then;
- an abort record of an incarnation that the registry does not have, asked again behind the record, as an adopted log
  has them: the registry refuses its decisions, with the record or without.

So no decision, pointer, finished mark, marked row or tombstone ever expires, and no vote, decision or answer depends on
what has. Ages are for politeness only: a clock that jumps does no harm.

What has expired is kept without a number of its format, since the version of before the notes reads no other elements.
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
    """Something that may expire: `name` is an incarnation's, or a gtrid."""

    kind: Kind
    name: str

    def __str__(self) -> str:
        return f"{self.kind.value} {self.name}"


@dataclass(frozen=True, slots=True)
class Expired:
    """Something that has expired. `when` is None for an incarnation, `heuristics` are a gtrid's."""

    kind: str
    name: str
    when: float | None = None
    heuristics: tuple[Heuristic, ...] = ()


class ExpiryScanner(Protocol):
    """Chooses what expires. It must not do any I/O."""

    def expires(self, entry: Entry, age: float, interval: float) -> bool:
        """Whether to move it. `age` is for how long scans have seen it of no use, in seconds as the interval is."""


class KindScanner:
    """Chooses all of one kind, after one interval."""

    def __init__(self, kind: Kind) -> None:
        self._kind = kind

    def expires(self, entry: Entry, age: float, interval: float) -> bool:
        return entry.kind is self._kind and age >= interval


#: By their names in a configuration.
SCANNERS: Mapping[str, Callable[[], ExpiryScanner]] = {kind.value: partial(KindScanner, kind) for kind in Kind}


class Expiry:
    """The last module of a pass. `interval` is seconds; None is never.

    With `skip_first`, nothing expires until one interval after this object was made.
    """

    name = "expiry"

    def __init__(self, interval: float | None, scanners: Iterable[ExpiryScanner], *, skip_first: bool = False) -> None:
        self._interval = interval
        self._scanners = tuple(scanners)
        self._not_before = time.monotonic() + (interval or 0.0) if skip_first else 0.0

    def run(self, this_pass: RecoveryPass) -> None:
        """Move what the scanners choose of what may expire, as this pass has seen it."""
        if self._interval is None or this_pass.snapshot.unanswered or time.monotonic() < self._not_before:
            return
        now = time.time()
        since = _unused_since(this_pass.log, _unregistered(this_pass.log, expirable(this_pass.snapshot)), now)
        chosen = [
            entry
            for entry, first in since.items()
            if any(scanner.expires(entry, now - first, self._interval) for scanner in self._scanners)
        ]
        if chosen:
            _expire(this_pass, chosen, now)
            this_pass.recorder.record_expired([str(entry) for entry in chosen])


def expirable(snapshot: Snapshot) -> list[Entry]:
    """All that may expire, as far as the datasources have answered."""
    kept = {*snapshot.decisions, *snapshot.pointers, *snapshot.finished}.union(*snapshot.rows.values())
    kept.update(filter(snapshot.is_listed, snapshot.gtrids))
    named = {split_gtrid(gtrid).incarnation for gtrid in snapshot.gtrids}
    found = [
        Entry(Kind.INCARNATION, name)
        for name, life in snapshot.incarnations.items()
        if life is IncarnationState.FENCED and name not in named
    ]
    noted = dict.fromkeys(heuristic.gtrid for heuristic in snapshot.heuristics)
    found += [
        Entry(Kind.HEURISTIC, gtrid)
        for gtrid in noted
        if gtrid not in kept
        and gtrid not in snapshot.aborted
        and snapshot.coordinator_state(gtrid) is not CoordinatorState.OTHER_NODE
    ]
    found += [
        Entry(Kind.ASSUMED_COMPLETE, gtrid)
        for gtrid in sorted(snapshot.aborted - kept)
        if snapshot.coordinator_state(gtrid) is CoordinatorState.UNKNOWN
    ]
    return found


def expired(log: DecisionLog) -> list[Expired]:
    """What has expired: transactions first, then incarnations. LogError."""
    found: dict[str, Expired] = {}
    for memo in log.side_records(_EXPIRED_KIND):
        kind, gtrid, *rest = unpack(memo)
        before = found.get(gtrid)
        noted = (*(before.heuristics if before else ()), *(Heuristic(*fields) for fields in rest))
        found[gtrid] = Expired(kind, gtrid, memo.recorded_at, noted)
    return [*found.values(), *(Expired(Kind.INCARNATION.value, name) for name in sorted(log.expired()))]


def dismiss_expired(log: DecisionLog, gtrid: str) -> int:
    """Forget what has expired of a transaction; how many heuristic outcomes that were. LogError."""
    names = [memo.name for memo in log.side_records(_EXPIRED_KIND) if unpack(memo)[1] == gtrid]
    count = sum(len(each.heuristics) for each in expired(log) if each.name == gtrid)
    if names:
        log.delete_records(_EXPIRED_KIND, names)
    return count


def _unregistered(log: DecisionLog, entries: list[Entry]) -> list[Entry]:
    """Without the abort records of processes that have registered since the pass looked who lives. LogError."""
    records = {entry for entry in entries if entry.kind is Kind.ASSUMED_COMPLETE}
    known = log.incarnations() if records else {}
    return [entry for entry in entries if entry not in records or split_gtrid(entry.name).incarnation not in known]


def _unused_since(log: DecisionLog, entries: Iterable[Entry], now: float) -> dict[Entry, float]:
    """Since when each has been seen of no use, scan after scan, by this node's recovery; kept for its next scan."""
    memo = next((memo for memo in log.side_records(_SEEN_KIND) if memo.name == log.node), None)
    before: dict[str, float] = unpack(memo) if memo else {}
    since = {entry: before.get(str(entry), now) for entry in entries}
    after = {str(entry): first for entry, first in since.items()}
    if after != before:
        log.put_record(SideRecord(_SEEN_KIND, log.node, pack(**after), now))
    return since


def _expire(this_pass: RecoveryPass, chosen: Iterable[Entry], now: float) -> None:
    """Kept there before it goes from here: a crash in between leaves it in both places until the next scan."""
    log = this_pass.log
    names: dict[Kind, list[str]] = {kind: [] for kind in Kind}
    for entry in chosen:
        names[entry.kind].append(entry.name)
    if names[Kind.INCARNATION]:
        log.expire(names[Kind.INCARNATION])
    for gtrid in names[Kind.ASSUMED_COMPLETE]:
        log.put_record(SideRecord(_EXPIRED_KIND, gtrid, json.dumps([Kind.ASSUMED_COMPLETE.value, gtrid]), now))
    if names[Kind.ASSUMED_COMPLETE]:
        log.purge(names[Kind.ASSUMED_COMPLETE])
    for noted in this_pass.snapshot.heuristics:
        if noted.gtrid in names[Kind.HEURISTIC]:
            text = json.dumps([Kind.HEURISTIC.value, noted.gtrid, astuple(noted)])
            log.put_record(SideRecord(_EXPIRED_KIND, f"{noted.gtrid} {noted.bqual}", text, now))
            log.dismiss_heuristics(noted.gtrid, noted.bqual)
    for gtrid in names[Kind.HEURISTIC]:
        logger.warning(
            "the heuristic outcome of %s was not resolved in time, and has expired. It is kept: see `txpool-recovery "
            "list --expired`, repair by hand, then `txpool-recovery forget`",
            gtrid,
        )
