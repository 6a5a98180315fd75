"""What the last scan has left, kept for people and machines to look at: who looks asks no database."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, replace
from typing import Any

from recovery.operator.alarms import Alarms
from recovery.operator.listing import OVER, InDoubt, in_doubt
from recovery.scan.datasources import RecoverableDatasource, RecoveryDatasources
from recovery.scan.report import AlarmKind, ScanReport, describe_error
from recovery.scan.saved import SavedDetails
from recovery.scan.slots import slots
from recovery.scan.snapshot import Snapshot
from txpool.config.settings import RecoverySettings
from txpool.metrics import HISTOGRAMS, Sample, catalogue
from txpool.resources.base import PreparedSlots


@dataclass(frozen=True, slots=True)
class DatasourceStatus:
    """A datasource, as the last scan has found it: `answered` is None where recovery has nothing to ask of it."""

    name: str
    mode: str
    answered: bool | None
    #: What came instead of an answer.
    reason: str = ""
    #: How many of our branches it still holds prepared.
    prepared: int = 0
    slots: PreparedSlots | None = None


@dataclass(frozen=True, slots=True)
class Overview:
    """One scan, and what it has left. Immutable. Times are wall-clock seconds."""

    at: float
    seconds: float
    passes: int
    report: ScanReport
    in_doubt: tuple[InDoubt, ...]
    datasources: tuple[DatasourceStatus, ...]
    #: Whether every datasource has answered, and every database that a node of ours prepares in was reached.
    complete: bool = True

    def as_dict(self) -> dict[str, Any]:
        """What is in doubt, as plain data for JSON."""
        return {"at": self.at, "in_doubt": [asdict(each) for each in self.in_doubt]}


class LastScan:
    """Keeps the overview of one recovery manager. Written by one scan at a time, read from any thread."""

    def __init__(self, settings: RecoverySettings) -> None:
        self.alarms = Alarms(settings)
        self.totals = {"committed": 0, "rolled_back": 0, "passes": 0, "completed": 0, "failed": 0}
        self._completed_at = time.monotonic()
        #: None before the first scan is completed.
        self.overview: Overview | None = None
        #: Why the last scan has failed as a whole; empty where it was completed.
        self.failure = ""

    def continue_from(self, former: LastScan) -> None:
        """Go on where the watch of a manager that this one's replaces has ended: an alarm that stands is no news."""
        self.alarms.continue_from(former.alarms)
        self.totals = former.totals
        self.overview = former.overview

    def completed(
        self,
        snapshot: Snapshot,
        datasources: RecoveryDatasources,
        report: ScanReport,
        configured: Iterable[RecoverableDatasource],
        *,
        saved: SavedDetails,
        seconds: float,
        passes: int,
    ) -> ScanReport:
        """A scan has ended: `evidence` is what its last pass has read, or what was read where it made none.

        Returns the report with the alarms that stand now.
        """
        noted = tuple(dict.fromkeys((*snapshot.heuristics, *report.heuristics)))
        remaining = _still_in_doubt(in_doubt(replace(snapshot, heuristics=noted), datasources, saved), report)
        slots_by_name = slots(datasources, snapshot.listings)
        self.alarms.update(remaining, snapshot, slots_by_name)
        remaining = tuple(replace(each, age=self.alarms.age(each)) if each.unresolved else each for each in remaining)
        found = [_datasource_status(each, snapshot, remaining, slots_by_name) for each in configured]
        report = replace(report, alarms=self.alarms.standing)
        complete = not (snapshot.unanswered or snapshot.unreached)
        self.overview = Overview(time.time(), seconds, passes, report, remaining, tuple(found), complete)
        self.failure = ""
        self._completed_at = time.monotonic()
        self.totals["committed"] += len(report.committed)
        self.totals["rolled_back"] += len(report.rolled_back)
        self.totals["passes"] += passes
        self.totals["completed"] += 1
        _scan_seconds.observe(seconds)
        return report

    def failed(self, error: Exception) -> None:
        """A scan has failed as a whole: what the one before has left stays what is known."""
        self.failure = describe_error(error)
        self.totals["failed"] += 1

    @property
    def seconds_since_scan(self) -> float:
        """Seconds since the last scan was completed, or since there is a manager."""
        return time.monotonic() - self._completed_at

    def samples(self) -> Iterator[Sample]:
        """The numbers of recovery, for those who read metrics."""
        for result in ("completed", "failed"):
            yield Sample(catalogue.SCANS, (result,), self.totals[result])
        yield Sample(catalogue.PASSES, (), self.totals["passes"])
        for outcome in ("committed", "rolled_back"):
            yield Sample(catalogue.RECOVERED, (outcome,), self.totals[outcome])
        seen = self.overview
        if seen is None:
            return
        yield Sample(catalogue.LAST_SCAN, (), seen.at)
        yield Sample(catalogue.HEURISTICS, (), sum(bool(each.heuristics) for each in seen.in_doubt))
        if seen.complete:  # else nobody knows, and a number would say that somebody does
            since = max(time.time() - seen.at, _LEAST_AGE_SECONDS)
            ages = [(each.age or 0.0) + since for each in seen.in_doubt if each.unresolved and each.ours]
            yield Sample(catalogue.OLDEST, (), max(ages, default=0.0))
        for kind in AlarmKind:
            yield Sample(catalogue.ALARMS, (kind.value,), sum(alarm.kind == kind.value for alarm in seen.report.alarms))
        for site in seen.datasources:
            name = (site.name,)
            if site.answered is not None:
                yield Sample(catalogue.REACHABLE, name, int(site.answered))
            if site.answered:  # else nobody knows, and 0 would say that it is over
                yield Sample(catalogue.INDOUBT, name, site.prepared)
            if site.slots is not None:
                yield Sample(catalogue.SLOTS, name, site.slots.maximum)
                yield Sample(catalogue.SLOTS_TAKEN, name, site.slots.taken)


#: Seconds that something in doubt has been that for, at least: 0 is for nothing.
_LEAST_AGE_SECONDS = 0.001
_scan_seconds = HISTOGRAMS[catalogue.SCAN_SECONDS]


def _still_in_doubt(found: Iterable[InDoubt], report: ScanReport) -> tuple[InDoubt, ...]:
    """What the last pass has read, less what it has ended since, and more what it has found to have ended otherwise."""
    ended = {branch.gid for branch in (*report.committed, *report.rolled_back)}
    otherwise = {f"{each.gtrid}:{each.bqual}": f"ended {each.ended}" for each in report.heuristics}
    left = []
    for each in found:
        noted = tuple(heuristic for heuristic in report.heuristics if heuristic.gtrid == each.gtrid)
        branches = tuple(
            replace(branch, state=otherwise.get(branch.gid, branch.state))
            for branch in each.branches
            if branch.gid not in ended
        )
        heuristics = tuple(dict.fromkeys((*each.heuristics, *noted)))
        if heuristics or (branches and each.gtrid not in report.forgotten):
            now = replace(each, branches=branches, heuristics=heuristics, attention=each.attention or bool(heuristics))
            left.append(now if now.unresolved else replace(now, next=OVER))
    return tuple(sorted(left, key=lambda each: (not each.heuristics, each.foreign, -(each.age or 0.0))))


def _datasource_status(
    datasource: RecoverableDatasource, snapshot: Snapshot, left: Iterable[InDoubt], limits: dict[str, PreparedSlots]
) -> DatasourceStatus:
    name, mode = datasource.name, datasource.mode
    if mode not in ("xa", "cmr") and name not in snapshot.unanswered:
        return DatasourceStatus(name, mode, None)
    branches = (branch for each in left for branch in each.branches)
    prepared = sum(branch.datasource == name and branch.state == "prepared" for branch in branches)
    return DatasourceStatus(
        name, mode, name not in snapshot.unanswered, snapshot.unanswered.get(name, ""), prepared, limits.get(name)
    )
