"""RecoveryManager: finishes what crashes have left, one scan at a time, or again and again in a thread."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from recovery.operator import commands, listing, suspension
from recovery.operator.alarms import unconfigured
from recovery.operator.audit import AuditEntry, audit_entries, audited
from recovery.operator.last_scan import LastScan
from recovery.plugins import instances
from recovery.scan import saved
from recovery.scan.datasources import RecoverableDatasource, RecoveryDatasources
from recovery.scan.discovered import DiscoveredDatasources
from recovery.scan.expiry import SCANNERS, Expired, Expiry, ExpiryScanner, expired
from recovery.scan.modules import DecidedModule, MarkedModule, Module, OrphanModule
from recovery.scan.orphans import FILTERS, OrphanFilter, all_filters
from recovery.scan.reading import take_snapshot
from recovery.scan.recovery_pass import RecoveryPass
from recovery.scan.report import RepeatFilter, ScanRecorder, ScanReport, describe_error
from recovery.scan.snapshot import Snapshot
from recovery.scan.staging import StagingModule
from txpool import metrics
from txpool.config.settings import DataSourceSettings, RecoverySettings
from txpool.datasource import DataSource
from txpool.errors import ConfigurationError
from txpool.log import open_log
from txpool.log.base import DecisionLog, IncarnationState

logger = logging.getLogger("txpool.recovery")


class RecoveryManager:
    """Recovers its node's transactions, or those of `recovery.nodes`: give it a file, or a log and datasources.

    Thread-safe. With a configuration, the log is opened for each scan and closed behind it. `period` and `backoff` are
    seconds: from the end of one scan to the next, and between its two passes; None takes the configured ones.
    `filters` and `scanners` have a say beside those that are configured.
    """

    def __init__(
        self,
        conf: str | Path | RecoverySettings | None = None,
        *,
        log: DecisionLog | None = None,
        datasources: Iterable[RecoverableDatasource] | None = None,
        period: float | None = None,
        backoff: float | None = None,
        filters: Iterable[OrphanFilter] = (),
        scanners: Iterable[ExpiryScanner] = (),
    ) -> None:
        settings = conf if isinstance(conf, RecoverySettings) else RecoverySettings.load(conf)
        if log is None and (settings.node_name is None or settings.log_url is None):
            missing = "node.name" if settings.node_name is None else "log.url"
            raise settings.properties.error(missing, "is missing: recovery needs the coordinator's own")
        self._settings = settings
        self._log = log
        # Of its own, whatever the application has open: it is closed with the manager.
        paths = settings.datasources if datasources is None else ()
        # Recovery connects for each question, so its pools keep nothing open.
        self._configured = [DataSource.from_settings(DataSourceSettings.load(path, pool_min_size=0)) for path in paths]
        self._datasources: list[RecoverableDatasource] = [*self._configured, *(datasources or ())]
        if not self._datasources:
            raise ConfigurationError("recovery has no datasource: name their files, datasources = orders.properties")
        #: Seconds from the end of one scan to the next.
        self.period = settings.recovery_period if period is None else period
        self._backoff = settings.recovery_backoff if backoff is None else backoff
        values, named = settings.properties, settings.recovery_orphan_filters
        self._filters = all_filters([*instances(values, "recovery.orphan-filters", named, FILTERS, "vote"), *filters])
        chosen = settings.recovery_expiry_scanners
        self._expiry = Expiry(
            settings.recovery_expiry_interval or None,
            [*instances(values, "recovery.expiry.scanners", chosen, SCANNERS, "expires"), *scanners],
            skip_first=settings.recovery_expiry_skip_first,
        )
        self._discovered = DiscoveredDatasources()
        self._repeats = RepeatFilter()
        self._scan_lock = threading.Lock()
        self._start_lock = threading.Lock()
        self._stop_event = threading.Event()
        self._wake_event = threading.Event()
        #: What the last scan has left, to be looked at.
        self.last_scan = LastScan(settings)
        self._thread: threading.Thread | None = None
        self._last_report: ScanReport | None = None
        #: Which datasources have not answered the last `in_doubt` or `show`, and what came instead.
        self.unanswered: Mapping[str, str] = {}
        #: Databases in which its nodes prepare, and that it was not configured with, as the same has found.
        self.unconfigured: Mapping[str, str] = {}

    def __repr__(self) -> str:
        names = ", ".join(datasource.name for datasource in self._datasources)
        return f"<RecoveryManager of {self.nodes}: {names}, every {self.period:g} s>"

    @property
    def nodes(self) -> str:
        """Which nodes it recovers, in words."""
        node = self._settings.node_name if self._log is None else self._log.node
        nodes = ", ".join(self._settings.recovery_nodes) or node
        return "every node" if nodes == "*" else f"node {nodes}"

    @property
    def last_report(self) -> ScanReport | None:
        """What the last scan has reported; None before the first."""
        return self._last_report

    # -- scans --------------------------------------------------------------------------------------------------

    def scan(self) -> ScanReport:
        """One scan of two passes, now; a second caller waits for the first one's to end.

        Errors: LogError where the log cannot be opened or read; nothing was done then. Whatever fails later is in
        the report, and the rest went on.
        """
        with self._scan_lock, self._opened() as log:
            recorder = ScanRecorder(self._repeats)
            orphans = OrphanModule(self._filters)
            modules: tuple[Module, ...] = (MarkedModule(), DecidedModule(), orphans, StagingModule(), self._expiry)
            begun, passes = time.monotonic(), list[RecoveryPass]()
            if _may_begin_pass(log, recorder):
                passes.append(self._run_pass(log, recorder, modules))
                if (
                    orphans.has_candidates
                    and not self._stop_event.wait(self._backoff)
                    and _may_begin_pass(log, recorder)
                ):
                    passes.append(self._run_pass(log, recorder, modules))
            self._repeats.end_scan()
            # The sites of the last pass, too: they know what it has reached by the notes.
            datasources = passes[-1].datasources if passes else self._recovery_datasources(log)
            snapshot = passes[-1].snapshot if passes else take_snapshot(log, datasources, fence=False)
            seconds = time.monotonic() - begun
            report = recorder.report()
            if passes:
                saved.save_errors(log, {left.gid: left.error for left in report.left_alone if left.error})
            self._last_report = self.last_scan.completed(
                snapshot,
                datasources,
                report,
                self._datasources,
                saved=saved.read(log),
                seconds=seconds,
                passes=len(passes),
            )
            return self._last_report

    def _run_pass(self, log: DecisionLog, recorder: ScanRecorder, modules: Iterable[Module]) -> RecoveryPass:
        recorder.begin_pass()
        datasources = self._recovery_datasources(log)
        this_pass = RecoveryPass(take_snapshot(log, datasources), log, datasources, recorder)
        for name, reason in this_pass.snapshot.unanswered.items():
            recorder.record_unanswered(name, reason)
        for name, reason in this_pass.snapshot.unfenced.items():
            recorder.record_failure(f"the fence of {name}", reason)
        for module in modules:
            try:
                module.run(this_pass)
            except Exception as error:
                recorder.record_failure(f"module {module.name}", describe_error(error))
        return this_pass

    # -- the thread ---------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Scan now, and again after each period, in a daemon thread; does nothing where it runs already."""
        with self._start_lock:
            if self._thread is None:
                metrics.add_source(self.last_scan.samples)
                self._thread = threading.Thread(target=self._run, name="txpool-recovery", daemon=True)
                self._thread.start()

    def scan_soon(self) -> None:
        """Have the thread scan now rather than when its period is over; returns at once."""
        self._wake_event.set()

    def stop(self) -> None:
        """End the thread; returns once the pass in progress is through. It can be started again."""
        with self._start_lock:
            if self._thread is not None:
                self._stop_event.set()
                self._wake_event.set()
                self._thread.join()
                self._thread = None
                self._stop_event.clear()
                self._wake_event.clear()
                metrics.remove_source(self.last_scan.samples)

    def _run(self) -> None:
        while True:
            try:
                logger.debug("scan: %s", self.scan())
            except Exception as error:
                self.last_scan.failed(error)
                self._repeats.warn(f"the scan failed, the next one is in {self.period:g} s: {error}")
                self._repeats.end_scan()
            self._wake_event.wait(self.period)
            self._wake_event.clear()
            if self._stop_event.is_set():
                return

    # -- for people ---------------------------------------------------------------------------------------------

    def in_doubt(self) -> list[listing.InDoubt]:
        """What is in doubt, and what the next scan will do with it; nothing is written. Errors: LogError."""
        with self._opened() as log:
            datasources = self._recovery_datasources(log)
            snapshot = self._read_only_snapshot(log, datasources)
            return listing.in_doubt(snapshot, datasources, saved.read(log))

    def show(self, gtrid: str) -> listing.InDoubt | None:
        """All that is known of one transaction; None where nothing is. Errors: LogError, ProgrammingError."""
        with self._opened() as log:
            datasources = self._recovery_datasources(log)
            noted = [each for found in expired(log) if found.name == gtrid for each in found.heuristics]
            snapshot = self._read_only_snapshot(log, datasources)
            gtrid = commands.require_gtrid(gtrid)
            history = audit_entries(log, gtrid)
            return listing.show(snapshot, datasources, gtrid, expired=noted, history=history, saved=saved.read(log))

    def _read_only_snapshot(self, log: DecisionLog, datasources: RecoveryDatasources) -> Snapshot:
        snapshot = take_snapshot(log, datasources, fence=False)
        self.unanswered = snapshot.unanswered
        self.unconfigured = {alarm.subject: alarm.text for alarm in unconfigured(snapshot)}
        return snapshot

    def expired(self) -> list[Expired]:
        """What has expired, and waits for nobody but people. Errors: LogError."""
        with self._opened() as log:
            return expired(log)

    def commit(self, gtrid: str, reason: str = "") -> ScanReport:
        """Commit now what is decided already. Errors: LogError, ProgrammingError where it is not decided."""
        return self._by_hand("commit", gtrid, reason, commands.commit)

    def rollback(self, gtrid: str, reason: str = "") -> ScanReport:
        """Take the transaction's key and roll it back. Errors: LogError, ProgrammingError where it is decided."""
        return self._by_hand("rollback", gtrid, reason, commands.rollback)

    def forget(self, gtrid: str, reason: str = "") -> int:
        """Dismiss the heuristic outcomes of a transaction that is over; how many there were.

        Errors: LogError, ProgrammingError where there is none, or where it is not over or another node's,
        OperationalError where a datasource does not answer.
        """
        with self._scan_lock, self._opened() as log, audited(log, "forget", commands.require_gtrid(gtrid), reason):
            return commands.forget(log, self._recovery_datasources(log), gtrid)

    def forget_datasource(self, name: str, reason: str = "") -> int:
        """Retire the log's notes that our nodes prepare in a datasource; how many there were.

        Errors: LogError, ProgrammingError where there is none, or where a process of its node lives or a branch is
        listed there, OperationalError where the database does not answer.
        """
        with self._scan_lock, self._opened() as log, audited(log, "forget --datasource", "", f"{name}: {reason}"):
            return commands.forget_datasource(log, self._recovery_datasources(log), name, self._has_living_process)

    def _has_living_process(self, node: str) -> bool:
        """Whether any process of a node lives."""
        with self._opened(node) as log:
            return IncarnationState.ALIVE in log.incarnations().values()

    def _by_hand(self, command: str, gtrid: str, reason: str, act: commands.Command) -> ScanReport:
        with (
            self._scan_lock,
            self._opened() as log,
            audited(log, command, commands.require_gtrid(gtrid), reason) as reports,
        ):
            recorder = ScanRecorder(self._repeats)
            act(log, self._recovery_datasources(log), recorder, gtrid)
            reports.append(recorder.report())
            return reports[0]

    def audit_entries(self) -> list[AuditEntry]:
        """What people have done by hand, oldest first. Errors: LogError."""
        with self._opened() as log:
            return audit_entries(log)

    def suspend(self, reason: str = "") -> suspension.Suspension:
        """Let no pass begin, here and in every recoverer of this node, until `resume`. Errors: LogError."""
        with self._opened() as log:
            return suspension.suspend(log, reason)

    def resume(self, reason: str = "") -> bool:
        """Let recovery go on with its next scan; whether it was suspended. Errors: LogError."""
        with self._opened() as log:
            return suspension.resume(log, reason)

    def suspended(self) -> suspension.Suspension | None:
        """How the recovery of this node is suspended; None where it is not. Errors: LogError."""
        with self._opened() as log:
            return suspension.suspension(log)

    def close(self) -> None:
        """Stop, and close the datasources that came from the configuration."""
        self.stop()
        for datasource in self._configured:
            datasource.close()
        self._discovered.close()

    def _recovery_datasources(self, log: DecisionLog) -> RecoveryDatasources:
        timeout = self._settings.recovery_lock_timeout
        return RecoveryDatasources(self._datasources, nodes=log.nodes(), lock_timeout=timeout, others=self._discovered)

    @contextmanager
    def _opened(self, node: str = "") -> Iterator[DecisionLog]:
        """The log; that of one node alone, where one is named."""
        if self._log is not None:
            yield self._log
            return
        settings = self._settings
        log = open_log(
            settings.log_url or "",
            node=settings.node_name or "",
            nodes=[node] if node else settings.recovery_nodes or None,
            user=settings.log_user,
            password=settings.log_password,
        )
        try:
            yield log
        finally:
            log.close()


def _may_begin_pass(log: DecisionLog, recorder: ScanRecorder) -> bool:
    held = suspension.suspension(log)
    if held is not None:
        recorder.record_suspension(str(held))
    return held is None
