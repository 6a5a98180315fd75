"""A decision log in memory, for tests: several logs over one `MemoryDisk` stand for several processes of a node."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable
from dataclasses import dataclass, field

from txpool import failpoints
from txpool.errors import LogError
from txpool.locks import Lock
from txpool.log.base import Decision, Heuristic, IncarnationState, SideRecord, resolution_of
from txpool.log.formats import FORMAT
from txpool.log.locations import INCARNATION, LocationNotes
from txpool.log.timeouts import TimeoutNotes
from txpool.resources.base import BranchRecord, Refused, Resolution
from txpool.xid import new_incarnation, split_gtrid


@dataclass
class MemoryDisk:
    """What the processes of a node share; a test may set an incarnation's state."""

    node: str
    #: None is an abort record, and a text the note of a last resource.
    outcomes: dict[str, Decision | str | None] = field(default_factory=dict)
    states: dict[str, IncarnationState] = field(default_factory=dict)
    finished: set[str] = field(default_factory=set)
    pointers: dict[str, str] = field(default_factory=dict)
    heuristics: dict[tuple[str, str], Heuristic] = field(default_factory=dict)
    expired: set[str] = field(default_factory=set)
    side_records: dict[tuple[str, str], SideRecord] = field(default_factory=dict)
    lock: Lock = field(default_factory=Lock, repr=False)


class MemoryLog(LocationNotes, TimeoutNotes):
    """A DecisionLog over a MemoryDisk, as one process sees it. Thread-safe."""

    def __init__(self, disk: MemoryDisk, *, node: str) -> None:
        if node != disk.node:
            raise LogError(f"the decision log belongs to node {disk.node!r}, and node.name is {node!r}")
        self._disk = disk
        self._incarnation = ""
        self._noted = set()
        self._timeouts = {}
        self._pid = os.getpid()

    @property
    def node(self) -> str:
        return self._disk.node

    @property
    def incarnation(self) -> str:
        with self._disk.lock:
            forked = self._pid != os.getpid()
            if forked or self._disk.states.get(self._incarnation, IncarnationState.FENCED) is IncarnationState.FENCED:
                self._incarnation, self._pid = new_incarnation(), os.getpid()
                self._disk.states[self._incarnation] = IncarnationState.ALIVE
                self._disk.side_records[INCARNATION, self._incarnation] = SideRecord(
                    INCARNATION, self._incarnation, FORMAT, time.time()
                )
                self._noted = set()
            return self._incarnation

    @property
    def every_node(self) -> bool:
        return False

    def nodes(self) -> frozenset[str]:
        return frozenset({self.node})

    def record(self, gtrid: str, branches: Iterable[BranchRecord]) -> None:
        if failpoints.armed:
            failpoints.hit("log.record")
        with self._disk.lock:
            if isinstance(self._disk.outcomes.get(gtrid), Decision):
                raise LogError(f"{gtrid} is decided already, and commits")
            self._require_undecided(gtrid)
            self._disk.outcomes[gtrid] = Decision(gtrid, tuple(branches), time.time())
        if failpoints.armed:
            failpoints.hit("log.recorded")

    def abort(self, gtrid: str) -> Resolution:
        if failpoints.armed:
            failpoints.hit("log.abort")
        with self._disk.lock:
            met = self._disk.outcomes.setdefault(gtrid, None)
        return resolution_of(None if met is None else "{" if isinstance(met, str) else "[")

    def abort_noted(self, gtrid: str) -> Resolution:
        with self._disk.lock:
            if isinstance(self._disk.outcomes.get(gtrid), str):
                self._disk.outcomes[gtrid] = None
        return self.abort(gtrid)

    def note_last(self, gtrid: str, datasource: str) -> None:
        if failpoints.armed:
            failpoints.hit("log.last")
        with self._disk.lock:
            if isinstance(self._disk.outcomes.get(gtrid), Decision):
                raise LogError(f"{gtrid} is decided already, and commits")
            self._require_undecided(gtrid)
            self._disk.outcomes[gtrid] = datasource

    def last_resources(self) -> dict[str, str]:
        with self._disk.lock:
            outcomes = self._disk.outcomes.copy()
        return {gtrid: kept for gtrid, kept in outcomes.items() if isinstance(kept, str)}

    def forget(self, gtrid: str) -> None:
        with self._disk.lock:
            if self._disk.outcomes.get(gtrid) is not None:
                del self._disk.outcomes[gtrid]

    def flush(self) -> None:
        """Does nothing: forgetting is not lazy here."""

    def point(self, gtrid: str, datasource: str) -> None:
        with self._disk.lock:
            self._require_undecided(gtrid)
            if self._disk.pointers.setdefault(gtrid, datasource) != datasource:
                raise Refused(f"{gtrid} cannot be decided by {datasource}: {self._disk.pointers[gtrid]} decides it")

    def fence(self, incarnation: str) -> None:
        with self._disk.lock:
            if incarnation not in {*self._disk.states, *self._disk.expired}:
                raise LogError(f"incarnation {incarnation} was never registered: its branches are left alone")
            self._disk.expired.discard(incarnation)
            self._disk.states[incarnation] = IncarnationState.FENCED

    def is_fenced(self, incarnation: str) -> bool:
        with self._disk.lock:
            return self._disk.states.get(incarnation) is IncarnationState.FENCED or incarnation in self._disk.expired

    def finish(self, gtrid: str) -> None:
        if failpoints.armed:
            failpoints.hit("log.finish")
        with self._disk.lock:
            self._disk.finished.add(gtrid)

    def finished(self) -> set[str]:
        with self._disk.lock:
            return set(self._disk.finished)

    def decisions(self) -> dict[str, Decision]:
        with self._disk.lock:
            outcomes = self._disk.outcomes.copy()
        return {gtrid: kept for gtrid, kept in outcomes.items() if isinstance(kept, Decision)}

    def aborted(self) -> set[str]:
        with self._disk.lock:
            outcomes = self._disk.outcomes.copy()
        return {gtrid for gtrid, kept in outcomes.items() if kept is None}

    def pointers(self) -> dict[str, str]:
        with self._disk.lock:
            return dict(self._disk.pointers)

    def incarnations(self) -> dict[str, IncarnationState]:
        with self._disk.lock:
            return dict(self._disk.states)

    def record_heuristic(self, *heuristics: Heuristic) -> None:
        with self._disk.lock:
            for each in heuristics:
                self._disk.heuristics.setdefault((each.gtrid, each.bqual), each)

    def heuristics(self) -> list[Heuristic]:
        with self._disk.lock:
            return [kept for _, kept in sorted(self._disk.heuristics.items())]

    def dismiss_heuristics(self, gtrid: str, bqual: str | None = None) -> None:
        with self._disk.lock:
            for kept in {bqual} if bqual is not None else {bqual for _, bqual in self._disk.heuristics}:
                self._disk.heuristics.pop((gtrid, kept), None)

    def purge(self, gtrids: Iterable[str]) -> None:
        with self._disk.lock:
            for gtrid in gtrids:
                self._disk.outcomes.pop(gtrid, None)
                self._disk.finished.discard(gtrid)
                self._disk.pointers.pop(gtrid, None)

    def expire(self, incarnations: Iterable[str]) -> None:
        with self._disk.lock:
            for name in incarnations:
                self._expire(name)

    def _expire(self, name: str) -> None:
        if self._disk.states.get(name) is IncarnationState.FENCED:
            del self._disk.states[name]
            self._disk.expired.add(name)
            self._disk.side_records.pop((INCARNATION, name), None)

    def expired(self, incarnations: Iterable[str] | None = None) -> set[str]:
        with self._disk.lock:
            return self._disk.expired.intersection(self._disk.expired if incarnations is None else incarnations)

    def put_record(self, *records: SideRecord) -> None:
        with self._disk.lock:
            for each in records:
                self._disk.side_records[each.kind, each.name] = each

    def side_records(self, kind: str) -> list[SideRecord]:
        with self._disk.lock:
            records = list(self._disk.side_records.values())
        found = [record for record in records if record.kind == kind]
        return sorted(found, key=lambda record: (record.recorded_at, record.name))

    def delete_records(self, kind: str, names: Iterable[str]) -> None:
        with self._disk.lock:
            for name in names:
                self._disk.side_records.pop((kind, name), None)

    def delete_unchanged(self, records: Iterable[SideRecord]) -> None:
        with self._disk.lock:
            for record in records:
                self._delete_unchanged(record)

    def _delete_unchanged(self, record: SideRecord) -> None:
        kept = self._disk.side_records.get((record.kind, record.name))
        if kept is not None and kept.recorded_at == record.recorded_at:
            del self._disk.side_records[record.kind, record.name]

    def close(self) -> None:
        """Give the incarnation up, as a process does that ends."""
        with self._disk.lock:
            if self._disk.states.get(self._incarnation) is IncarnationState.ALIVE:
                self._disk.states[self._incarnation] = IncarnationState.DEAD
            self._incarnation = ""

    def _require_undecided(self, gtrid: str) -> None:
        """Refused if the gtrid is decided or aborted, or its incarnation is fenced or not registered here."""
        if not isinstance(self._disk.outcomes.get(gtrid, ""), str):
            raise Refused(f"{gtrid} was not decided, and rolls back: it is decided or aborted already")
        incarnation = split_gtrid(gtrid).incarnation
        if self._disk.states.get(incarnation, IncarnationState.FENCED) is IncarnationState.FENCED:
            raise Refused(f"{gtrid} was not decided, and rolls back: incarnation {incarnation} is fenced or unknown")
