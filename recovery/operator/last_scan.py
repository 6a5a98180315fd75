"""LastScan: the result of the last scan, kept in memory for the status page, the metrics and the alarms."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from recovery.operator.alarms import Alarms
from recovery.operator.listing import InDoubt, in_doubt
from recovery.operator.next_step import OVER
from recovery.scan.datasources.datasources import RecoverableDatasource, RecoveryDatasources
from recovery.scan.outboxes import OutboxStatus
from recovery.scan.report import AlarmKind, ScanReport
from recovery.scan.saved import SavedDetails
from recovery.scan.slots import slots
from recovery.scan.snapshot import Snapshot
from txpool.config.secrets import describe_error
from txpool.config.settings import RecoverySettings
from txpool.log.base import Heuristic
from txpool.metrics import HISTOGRAMS, Sample, catalogue
from txpool.resources.base import Role
from txpool.resources.recovery_access import PreparedSlots
from txpool.tm.commit.progress import PhaseTwoProgress


@dataclass(frozen=True, slots=True)
class DatasourceStatus:
    """A datasource as the last scan has found it. `answered` is None if recovery does not ask it anything."""

    name: str
    mode: str
    answered: bool | None
    #: The error, if it has not answered.
    reason: str = ""
    #: How many of our branches are still prepared there.
    prepared: int = 0
    slots: PreparedSlots | None = None


@dataclass(frozen=True, slots=True)
class Overview:
    """One scan and its result. Immutable. `at` is wall-clock seconds, `seconds` its duration."""

    at: float
    seconds: float
    passes: int
    report: ScanReport
    in_doubt: tuple[InDoubt, ...]
    datasources: tuple[DatasourceStatus, ...]
    #: Whether every datasource has answered, and every database in which our nodes prepare was reached.
    complete: bool = True
    outboxes: tuple[OutboxStatus, ...] = ()

    def as_dict(self) -> dict[str, Any]:
        """What is in doubt, as plain data for JSON."""
        return {"at": self.at, "in_doubt": [asdict(each) for each in self.in_doubt]}

    def outboxes_as_dict(self) -> dict[str, Any]:
        """The outboxes, as plain data for JSON."""
        return {"at": self.at, "outboxes": [asdict(each) for each in self.outboxes]}


@dataclass(frozen=True, slots=True)
class Standing:
    """What is known of the scans at one moment. Immutable, so that all answers of one moment agree."""

    #: None until the first scan is completed.
    overview: Overview | None = None
    #: The error, if the last scan failed as a whole; else empty.
    failure: str = ""
    #: When the last scan was completed; before the first one, when the manager was made. In monotonic seconds.
    completed_at: float = field(default_factory=time.monotonic)
    committed: int = 0
    rolled_back: int = 0
    passes: int = 0
    completed: int = 0
    failed: int = 0

    def unhealthy(self, period: float) -> str:
        """Why recovery does not work, in words; empty if it does. `period` is the manager's, in seconds."""
        if self.failure:
            return f"the last scan failed: {self.failure}"
        seconds = time.monotonic() - self.completed_at
        if seconds > _MISSED_PERIODS * period + _GRACE_SECONDS:
            return f"no scan was completed for {seconds:.0f} s"
        return ""


class LastScan:
    """The overview of a recovery manager's last scan, and its totals. One scan at a time writes, any thread reads.

    `period` tells the manager's period, in seconds.
    """

    def __init__(self, settings: RecoverySettings, period: Callable[[], float] | None = None) -> None:
        self.alarms = Alarms(settings)
        self._period = period or (lambda: settings.recovery_period)
        #: Replaced as a whole.
        self.standing = Standing()
        #: The branches that the pass under way ends; None between two passes.
        self.under_way: PhaseTwoProgress | None = None

    @property
    def overview(self) -> Overview | None:
        """None until the first scan is completed."""
        return self.standing.overview

    @property
    def failure(self) -> str:
        """The error, if the last scan failed as a whole; else empty."""
        return self.standing.failure

    def continue_from(self, former: LastScan) -> None:
        """Take over all that a manager knows that is replaced: its alarms are not logged again, nor is it healthier."""
        self.alarms.continue_from(former.alarms)
        self.standing = former.standing

    def completed(
        self,
        snapshot: Snapshot,
        datasources: RecoveryDatasources,
        report: ScanReport,
        configured: Iterable[RecoverableDatasource],
        *,
        outboxes: tuple[OutboxStatus, ...] = (),
        saved: SavedDetails,
        seconds: float,
        passes: int,
    ) -> ScanReport:
        """Take the result of a scan: the last pass's snapshot, or a read-only one if no pass was made.

        Returns the report with the alarms after this scan.
        """
        heuristics = tuple(dict.fromkeys((*snapshot.heuristics, *report.heuristics)))
        over = frozenset(report.forgotten).difference(each.gtrid for each in heuristics)
        found_in_doubt = in_doubt(replace(snapshot, heuristics=heuristics), datasources, saved, over=over)
        remaining = _still_in_doubt(found_in_doubt, report)
        slots_by_name = slots(datasources, snapshot.listings) if self.alarms.watching else {}
        self.alarms.update(remaining, snapshot, slots_by_name, report.left_alone)
        remaining = tuple(replace(each, age=self.alarms.age(each)) if each.unresolved else each for each in remaining)
        found = [_datasource_status(each, snapshot, remaining, slots_by_name) for each in configured]
        report = replace(report, alarms=self.alarms.standing)
        complete = not (snapshot.unanswered or snapshot.unreached)
        before = self.standing
        self.standing = replace(
            before,
            overview=Overview(time.time(), seconds, passes, report, remaining, tuple(found), complete, outboxes),
            failure="",
            completed_at=time.monotonic(),
            committed=before.committed + len(report.committed),
            rolled_back=before.rolled_back + len(report.rolled_back),
            passes=before.passes + passes,
            completed=before.completed + 1,
        )
        _scan_seconds.observe(seconds)
        return report

    def failed(self, error: Exception) -> None:
        """Note that a scan has failed as a whole. The overview of the scan before it stays."""
        before, self.under_way = self.standing, None
        self.standing = replace(before, failure=describe_error(error), failed=before.failed + 1)

    def unhealthy(self) -> str:
        """Why recovery does not work, in words; empty if it does."""
        return self.standing.unhealthy(self._period())

    def samples(self) -> Iterator[Sample]:
        """Recovery's samples for the metrics."""
        standing = self.standing
        yield Sample(catalogue.HEALTHY, (), int(not standing.unhealthy(self._period())))
        yield Sample(catalogue.SCANS, ("completed",), standing.completed)
        yield Sample(catalogue.SCANS, ("failed",), standing.failed)
        yield Sample(catalogue.PASSES, (), standing.passes)
        yield Sample(catalogue.RECOVERED, ("committed",), standing.committed)
        yield Sample(catalogue.RECOVERED, ("rolled_back",), standing.rolled_back)
        overview = standing.overview
        if overview is None:
            return
        yield Sample(catalogue.LAST_SCAN, (), overview.at)
        yield Sample(catalogue.HEURISTICS, (), sum(bool(each.heuristics) for each in overview.in_doubt))
        if overview.complete:  # otherwise the age is unknown: no sample
            since = max(time.time() - overview.at, _LEAST_AGE_SECONDS)
            ages = [(each.age or 0.0) + since for each in overview.in_doubt if each.unresolved and each.ours]
            yield Sample(catalogue.OLDEST, (), max(ages, default=0.0))
        for kind in AlarmKind:
            yield Sample(
                catalogue.ALARMS, (kind.value,), sum(alarm.kind == kind.value for alarm in overview.report.alarms)
            )
        for datasource in overview.datasources:
            name = (datasource.name,)
            if datasource.answered is not None:
                yield Sample(catalogue.REACHABLE, name, int(datasource.answered))
            if datasource.answered:  # otherwise the number is unknown: no sample
                yield Sample(catalogue.INDOUBT, name, datasource.prepared)
            if datasource.slots is not None:
                yield Sample(catalogue.SLOTS, name, datasource.slots.maximum)
                yield Sample(catalogue.SLOTS_TAKEN, name, datasource.slots.taken)
        yield from _outbox_samples(overview.outboxes, max(time.time() - overview.at, _LEAST_AGE_SECONDS))


def _outbox_samples(outboxes: Iterable[OutboxStatus], since: float) -> Iterator[Sample]:
    """One that could not be read has no samples. The age is counted on since the scan."""
    for outbox in outboxes:
        name = (outbox.datasource,)
        if outbox.parked is not None:
            yield Sample(catalogue.OUTBOX_PARKED, name, outbox.parked)
        if outbox.waiting is not None:
            yield Sample(catalogue.OUTBOX_WAITING, name, outbox.waiting)
            yield Sample(catalogue.OUTBOX_OLDEST, name, 0.0 if outbox.oldest is None else outbox.oldest + since)


#: Recovery does not work once no scan was completed for this many periods and seconds.
_MISSED_PERIODS, _GRACE_SECONDS = 3, 60.0
#: The least age in the metrics of something in doubt: 0 says that nothing is in doubt.
_LEAST_AGE_SECONDS = 0.001
_scan_seconds = HISTOGRAMS[catalogue.SCAN_SECONDS]


def _still_in_doubt(found: Iterable[InDoubt], report: ScanReport) -> tuple[InDoubt, ...]:
    """What the scan has left in doubt: what its last pass has read, without the branches that it has ended.

    The heuristic outcomes that it has found are added. What it has forgotten is left out already.
    """
    ended = {branch.gid for branch in (*report.committed, *report.rolled_back)}
    heuristic_states = {f"{each.gtrid}:{each.bqual}": f"ended {each.ended}" for each in report.heuristics}
    fresh_of: dict[str, list[Heuristic]] = {}
    for heuristic in report.heuristics:
        fresh_of.setdefault(heuristic.gtrid, []).append(heuristic)
    left = []
    for each in found:
        fresh = fresh_of.get(each.gtrid, ())
        branches = tuple(
            replace(branch, state=heuristic_states.get(branch.gid, branch.state))
            for branch in each.branches
            if branch.gid not in ended
        )
        heuristics = tuple(dict.fromkeys((*each.heuristics, *fresh)))
        if heuristics or branches:
            current = replace(
                each, branches=branches, heuristics=heuristics, attention=each.attention or bool(heuristics)
            )
            left.append(current if current.unresolved else replace(current, next=OVER))
    return tuple(sorted(left, key=lambda each: (not each.heuristics, each.foreign, -(each.age or 0.0))))


def _datasource_status(
    datasource: RecoverableDatasource, snapshot: Snapshot, left: Iterable[InDoubt], limits: dict[str, PreparedSlots]
) -> DatasourceStatus:
    name, mode = datasource.name, datasource.mode
    if datasource.role not in (Role.PREPARED, Role.MARKED) and name not in snapshot.unanswered:
        return DatasourceStatus(name, mode, None)
    branches = (branch for each in left for branch in each.branches)
    prepared = sum(branch.datasource == name and branch.state == "prepared" for branch in branches)
    return DatasourceStatus(
        name, mode, name not in snapshot.unanswered, snapshot.unanswered.get(name, ""), prepared, limits.get(name)
    )
