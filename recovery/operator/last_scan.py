"""LastScan: the result of the last scan, kept in memory for the status page, the metrics and the alarms."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from operator import attrgetter
from typing import Any

from recovery.operator.alarms import Alarms
from recovery.operator.listing import InDoubt, in_doubt
from recovery.operator.next_step import OVER
from recovery.operator.packing import Tally, order, packer
from recovery.scan.datasources.datasources import RecoverableDatasource, RecoveryDatasources
from recovery.scan.outboxes import OutboxStatus
from recovery.scan.report import AlarmKind, ScanReport
from recovery.scan.saved import SavedDetails
from recovery.scan.slots import slots
from recovery.scan.snapshot import Snapshot
from recovery.scan.windows import Window, windows
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
    #: Very many are packed (`txpool.packed`).
    in_doubt: Sequence[InDoubt]
    datasources: tuple[DatasourceStatus, ...]
    #: Whether every datasource has answered, and every database in which our nodes prepare was reached.
    complete: bool = True
    outboxes: tuple[OutboxStatus, ...] = ()
    #: Of `in_doubt`, if they were counted already.
    counted: Tally | None = None

    @property
    def tally(self) -> Tally:
        """The counts of what is in doubt."""
        return self.counted or Tally().count(self.in_doubt)

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
        slots_by_name = slots(datasources, snapshot.listings) if self.alarms.watching else {}
        found, tally, prepared = packer(), Tally(), Counter[str]()
        self.alarms.begin()
        for window in windows(replace(snapshot, heuristics=heuristics)):
            part = window.snapshot
            over = {*window.part_of(report.forgotten, str)}.difference(each.gtrid for each in heuristics)
            left = _still_in_doubt(in_doubt(part, datasources, saved, over=over), report, window)
            left = self.alarms.look_at(part, left)
            found.extend(left)
            tally.count(left)
            prepared.update(it.datasource for each in left for it in each.branches if it.state == "prepared")
        self.alarms.end(snapshot, slots_by_name, report.left_alone)
        remaining = found.packed()
        if isinstance(remaining, tuple) and window.after is not None:  # each window was sorted by itself
            remaining = tuple(sorted(remaining, key=order))
        statuses = [_datasource_status(each, snapshot, prepared[each.name], slots_by_name) for each in configured]
        report = replace(report, alarms=self.alarms.standing)
        complete = not (snapshot.unanswered or snapshot.unreached)
        before = self.standing
        self.standing = replace(
            before,
            overview=Overview(
                time.time(), seconds, passes, report, remaining, tuple(statuses), complete, outboxes, tally
            ),
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
        tally = overview.tally
        yield Sample(catalogue.HEURISTICS, (), tally.heuristic)
        if overview.complete:  # otherwise the age is unknown: no sample
            since = max(time.time() - overview.at, _LEAST_AGE_SECONDS)
            oldest = tally.oldest_of_ours
            yield Sample(catalogue.OLDEST, (), 0.0 if oldest is None else oldest + since)
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


def _still_in_doubt(found: Iterable[InDoubt], report: ScanReport, window: Window) -> list[InDoubt]:
    """What the scan has left in doubt: what its last pass has read, without the branches that it has ended.

    The heuristic outcomes that it has found are added. What it has forgotten is left out already.
    """
    ended = {
        branch.gid
        for branches in (report.committed, report.rolled_back)
        for branch in window.part_of(branches, attrgetter("gtrid"))
    }
    fresh_of: dict[str, list[Heuristic]] = {}
    for heuristic in report.heuristics:
        fresh_of.setdefault(heuristic.gtrid, []).append(heuristic)
    left = []
    for each in found:
        fresh = fresh_of.get(each.gtrid, ())
        states = {f"{it.gtrid}:{it.bqual}": f"ended {it.ended}" for it in fresh}
        branches = tuple(
            replace(branch, state=states[branch.gid]) if branch.gid in states else branch
            for branch in each.branches
            if branch.gid not in ended
        )
        heuristics = tuple(dict.fromkeys((*each.heuristics, *fresh)))
        if heuristics or branches:
            current = replace(
                each, branches=branches, heuristics=heuristics, attention=each.attention or bool(heuristics)
            )
            left.append(current if current.unresolved else replace(current, next=OVER))
    return sorted(left, key=order)


def _datasource_status(
    datasource: RecoverableDatasource, snapshot: Snapshot, prepared: int, limits: dict[str, PreparedSlots]
) -> DatasourceStatus:
    name, mode = datasource.name, datasource.mode
    if datasource.role not in (Role.PREPARED, Role.MARKED) and name not in snapshot.unanswered:
        return DatasourceStatus(name, mode, None)
    return DatasourceStatus(
        name, mode, name not in snapshot.unanswered, snapshot.unanswered.get(name, ""), prepared, limits.get(name)
    )
