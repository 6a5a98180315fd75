"""RecoveryManager: one scan on demand, or periodic scans in a thread."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable
from contextlib import closing
from functools import partial
from pathlib import Path
from weakref import WeakSet

from recovery.by_hand import OperatorCommands
from recovery.operator import suspension
from recovery.operator.last_scan import LastScan
from recovery.plugins import instances, named_modules, require_own_file
from recovery.scan import outboxes, saved
from recovery.scan.datasources.asking import AskedByWorkers, Asking
from recovery.scan.datasources.configured import ConfiguredDatasources
from recovery.scan.datasources.datasources import RecoverableDatasource
from recovery.scan.datasources.discovered import DiscoveredDatasources
from recovery.scan.datasources.workers import Workers
from recovery.scan.modules.branch_rows import BranchRowsModule
from recovery.scan.modules.expiry import SCANNERS, Expiry, ExpiryScanner
from recovery.scan.modules.orphans import FILTERS, OrphanFilter, all_filters
from recovery.scan.modules.overdue import OverdueModule
from recovery.scan.modules.own_module import OwnModule, RecoveryModule
from recovery.scan.modules.staging import StagingModule
from recovery.scan.modules.transactions import DecidedModule, MarkedModule, Module, OrphanModule
from recovery.scan.recovery_pass import RecoveryPass
from recovery.scan.report import RepeatFilter, ScanRecorder, ScanReport
from txpool import metrics
from txpool.config.secrets import describe_error
from txpool.config.settings import RecoverySettings
from txpool.errors import described
from txpool.locks import Lock
from txpool.log.base import DecisionLog

logger = logging.getLogger("txpool.recovery")

_started: WeakSet[RecoveryManager] = WeakSet()


class RecoveryManager(OperatorCommands):
    """Recovers the transactions of its node, or of `recovery.nodes`. Give it a file, or a log and datasources.

    Thread-safe. With a configuration, each scan opens the log and closes it afterwards. `period` is the seconds from
    the end of one scan to the next, `backoff` the seconds between its two passes; None takes the configured value.
    `datasources`, `filters`, `scanners` and `modules` are used in addition to those that the file names. A given
    datasource takes the place of the file's with the same name and url. ConfigurationError if two of one name have
    different urls.
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
        modules: Iterable[RecoveryModule] = (),
    ) -> None:
        settings = conf if isinstance(conf, RecoverySettings) else RecoverySettings.load(conf)
        if log is None and (settings.node_name is None or settings.log_url is None):
            missing = "node.name" if settings.node_name is None else "log.url"
            raise settings.properties.error(missing, "is missing: recovery needs the coordinator's value")
        self._settings = settings
        self._log = log
        given = None if datasources is None else list(datasources)
        # Without a file, those that are given are all: a variable adds none.
        paths = () if conf is None and given is not None else settings.datasources
        self._configured = ConfiguredDatasources(given or (), paths)
        outboxes.require_known(settings.recovery_outboxes, self._configured.all)
        #: Seconds from the end of one scan to the next.
        self.period = settings.recovery_period if period is None else period
        self._backoff = settings.recovery_backoff if backoff is None else backoff
        values, named = settings.properties, settings.recovery_orphan_filters
        #: What votes on orphans.
        self.filters = all_filters([*instances(values, "recovery.orphan-filters", named, FILTERS, "vote"), *filters])
        chosen = settings.recovery_expiry_scanners
        self._expiry = Expiry(
            settings.recovery_expiry_interval or None,
            [*instances(values, "recovery.expiry.scanners", chosen, SCANNERS, "expires"), *scanners],
            skip_first=settings.recovery_expiry_skip_first,
        )
        self._modules = [
            *named_modules(values, "recovery.modules", settings.recovery_modules),
            *(OwnModule(type(each).__qualname__, partial(_itself, each)) for each in modules),
        ]
        self._workers = Workers(settings.recovery_step_timeout)
        self._asking: Callable[[], Asking] = partial(AskedByWorkers, self._workers)
        if any(each.login.function for each in settings.recovery_noted):
            require_own_file(values, "recovery.noted")
        self._discovered = DiscoveredDatasources(settings.recovery_noted, self._configured.was_removed)
        self._repeats = RepeatFilter()
        self._scan_lock = Lock()
        self._start_lock = Lock()
        self._stop_event = threading.Event()
        self._wake_event = threading.Event()
        #: The result of the last scan, with its alarms.
        self.last_scan = LastScan(settings, lambda: self.period)
        self._thread: threading.Thread | None = None
        self._last_report: ScanReport | None = None
        self.unanswered = {}
        self.unconfigured = {}

    def __repr__(self) -> str:
        names = ", ".join(datasource.name for datasource in self._configured.all)
        return f"<RecoveryManager of {self.described_nodes}: {names}, every {self.period:g} s>"

    @property
    def described_nodes(self) -> str:
        """The nodes that it recovers, in words."""
        node = self._settings.node_name if self._log is None else self._log.node
        nodes = ", ".join(self._settings.recovery_nodes) or node
        return "every node" if nodes == "*" else f"node {nodes}"

    @property
    def last_report(self) -> ScanReport | None:
        """The report of the last scan; None before the first."""
        return self._last_report

    # -- scans --------------------------------------------------------------------------------------------------

    def scan(self) -> ScanReport:
        """Make one scan of one or two passes, now. Scans of several threads run one after the other.

        Errors: LogError if the log cannot be opened or read; nothing was done then. A later failure is in the report,
        and the other steps were still done.
        """
        with self._scan_lock, self._opened() as log:
            recorder = ScanRecorder(self._repeats)
            orphans = OrphanModule(self.filters)
            ending = (MarkedModule(), DecidedModule(), orphans, OverdueModule(self.filters, orphans))
            modules: tuple[Module, ...] = (*ending, StagingModule(), BranchRowsModule(), self._expiry, *self._modules)
            began, passes = time.monotonic(), list[RecoveryPass]()
            if _may_begin_pass(log, recorder):
                passes.append(self._run_pass(log, recorder, modules))
                if (
                    orphans.has_candidates
                    and not self._stop_event.wait(self._backoff)
                    and _may_begin_pass(log, recorder)
                ):
                    passes.append(self._run_pass(log, recorder, modules))
            self._repeats.end_scan()
            # The last pass's datasources also include those that it found by the log's notes.
            datasources = passes[-1].datasources if passes else self._recovery_datasources(log)
            snapshot = passes[-1].whole if passes else self._snapshot(log, datasources, fence=False)
            seconds = time.monotonic() - began
            report = recorder.report()
            if passes:
                saved.save_errors(log, {left.gid: left.error for left in report.left_alone if left.error})
            self._last_report = self.last_scan.completed(
                snapshot,
                datasources,
                report,
                datasources.configured,
                outboxes=outboxes.outboxes(datasources, self._settings.recovery_outboxes),
                saved=saved.read(log),
                seconds=seconds,
                passes=len(passes),
            )
            if passes:
                saved.save_seen(log, self.last_scan.alarms.seen_without_age)
            return self._last_report

    def _run_pass(self, log: DecisionLog, recorder: ScanRecorder, modules: Iterable[Module]) -> RecoveryPass:
        recorder.begin_pass()
        datasources = self._recovery_datasources(log)
        this_pass = RecoveryPass(self._snapshot(log, datasources), log, datasources, recorder)
        self.last_scan.under_way = this_pass.progress
        for name, reason in this_pass.snapshot.unanswered.items():
            recorder.record_unanswered(name, reason)
        for name, reason in this_pass.snapshot.unfenced.items():
            recorder.record_failure(f"the fence of {name}", reason)
        with closing(this_pass):
            for _ in this_pass.each_window():
                for module in modules:
                    try:
                        module.run(this_pass)
                    except Exception as error:
                        recorder.record_failure(f"module {module.name}", describe_error(error))
                recorder.end_window()
        self.last_scan.under_way = None
        return this_pass

    # -- the thread ---------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Start a daemon thread that scans now and after each period; does nothing if it runs already."""
        with self._start_lock:
            if self._thread is None:
                metrics.add_source(self.last_scan.samples)
                self._thread = threading.Thread(target=self._run, name="txpool-recovery", daemon=True)
                self._thread.start()
                _started.add(self)

    def runs_for(self, node: str) -> bool:
        """Whether its thread runs, and recovers that node."""
        thread, own = self._thread, self._settings.node_name if self._log is None else self._log.node
        nodes = self._settings.recovery_nodes or (own,)
        return thread is not None and thread.is_alive() and (node in nodes or "*" in nodes)

    def scan_soon(self) -> None:
        """Make the thread scan now instead of at the end of its period; returns at once."""
        self._wake_event.set()

    def stop(self) -> None:
        """End the thread, and wait until the pass in progress has ended. The manager can be started again.

        A datasource that has not answered a second later counts as one that has not answered.
        """
        with self._start_lock:
            if self._thread is not None:
                self._stop_event.set()
                self._wake_event.set()
                self._workers.hurry()
                self._thread.join()
                self._thread = None
                _started.discard(self)
                self._workers.resume()
                self._stop_event.clear()
                self._wake_event.clear()
                metrics.remove_source(self.last_scan.samples)

    @property
    def stuck(self) -> list[str]:
        """The datasources that recovery has stopped waiting for, and in whose drivers a thread still waits."""
        return self._workers.stuck

    def _run(self) -> None:
        while True:
            try:
                logger.debug("scan: %s", self.scan())
            except Exception as error:
                self.last_scan.failed(error)
                self._repeats.warn(f"the scan failed, the next one is in {self.period:g} s: {described(error)}")
                self._repeats.end_scan()
            self._wake_event.wait(self.period)
            self._wake_event.clear()
            if self._stop_event.is_set():
                return

    # -- its datasources ----------------------------------------------------------------------------------------

    def add_datasource(self, datasource: RecoverableDatasource | str | Path) -> None:
        """Recover this datasource, too, or that of a file, from the next pass on.

        It takes the place of one with the same name and url. One of a file is closed by the manager. ConfigurationError
        if it has the name of another one with a different url.
        """
        self._configured.add(datasource)

    def remove_datasource(self, name: str) -> None:
        """Recover this datasource no more, from the next pass on, until it is added again.

        The pass in progress goes on with it. Branches that are prepared there then keep their locks. The scans raise
        the alarm `unconfigured` for as long as the log has noted that our nodes prepare there. ProgrammingError if
        there is none of this name, or no other one.
        """
        self._configured.remove(name)

    def close(self) -> None:
        """Stop, and close the datasources that the manager has opened."""
        self.stop()
        self._configured.close()
        self._discovered.close()


def _itself(module: RecoveryModule) -> RecoveryModule:
    return module


def running_for(node: str) -> list[RecoveryManager]:
    """The managers of this process whose threads run, and recover that node."""
    return [each for each in list(_started) if each.runs_for(node)]


def _may_begin_pass(log: DecisionLog, recorder: ScanRecorder) -> bool:
    """Whether recovery is not suspended now; a suspension is recorded."""
    found = suspension.suspension(log)
    if found is not None:
        recorder.record_suspension(str(found))
    return found is None
