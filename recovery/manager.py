"""RecoveryManager: finishes what crashes have left, one scan at a time, or again and again in a thread."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from recovery import byhand, listing
from recovery.evidence import gather
from recovery.modules import DecidedModule, MarkedModule, Module, OrphanModule
from recovery.orphans import IncarnationFilter, NodeFilter, OrphanFilter, TransactionLogFilter
from recovery.report import Account, News, ScanReport, told
from recovery.sites import Recoverable, Sites
from recovery.work import Work
from txpool.datasource import DataSource
from txpool.errors import ConfigurationError
from txpool.log import open_log
from txpool.log.base import DecisionLog
from txpool.settings import DataSourceSettings, RecoverySettings

logger = logging.getLogger("txpool.recovery")


class RecoveryManager:
    """Recovers one node's transactions: give it `recovery.properties`, or a log and datasources. Thread-safe.

    With a configuration, the log is opened for each scan and closed behind it. `period` and `backoff` are seconds:
    from the end of one scan to the next, and between the two passes of a scan; None takes the configured ones.
    """

    def __init__(
        self,
        conf: str | Path | RecoverySettings | None = None,
        *,
        log: DecisionLog | None = None,
        datasources: Iterable[Recoverable] | None = None,
        period: float | None = None,
        backoff: float | None = None,
        filters: Iterable[OrphanFilter] = (),
    ) -> None:
        settings = conf if isinstance(conf, RecoverySettings) else RecoverySettings.load(conf)
        if log is None and (settings.node_name is None or settings.log_url is None):
            missing = "node.name" if settings.node_name is None else "log.url"
            raise settings.properties.error(missing, "is missing: recovery needs the coordinator's own")
        self._settings = settings
        self._log = log
        # Of its own, whatever the application has open: it is closed with the manager.
        paths = settings.datasources if datasources is None else ()
        self._own = [DataSource.from_settings(DataSourceSettings.load(path)) for path in paths]
        self._datasources: list[Recoverable] = [*self._own, *(datasources or ())]
        if not self._datasources:
            raise ConfigurationError("recovery has no datasource: name their files, datasources = orders.properties")
        self._period = settings.recovery_period if period is None else period
        self._backoff = settings.recovery_backoff if backoff is None else backoff
        self._filters = tuple(filters)
        self._news = News()
        self._scanning = threading.Lock()
        self._starting = threading.Lock()
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None
        self._last: ScanReport | None = None

    def __repr__(self) -> str:
        names = ", ".join(datasource.name for datasource in self._datasources)
        node = self._settings.node_name if self._log is None else self._log.node
        return f"<RecoveryManager of node {node}: {names}, every {self._period:g} s>"

    @property
    def last_report(self) -> ScanReport | None:
        """What the last scan has reported; None before the first."""
        return self._last

    # -- scans --------------------------------------------------------------------------------------------------

    def scan(self) -> ScanReport:
        """One scan of two passes, now; a second caller waits for the first one's to end.

        Errors: LogError where the log cannot be opened or read; nothing was done then. Whatever fails later is in
        the report, and the rest went on.
        """
        with self._scanning, self._opened() as log:
            account = Account(self._news)
            orphans = OrphanModule(
                (IncarnationFilter(), TransactionLogFilter(), NodeFilter([log.node]), *self._filters)
            )
            modules: tuple[Module, ...] = (MarkedModule(), DecidedModule(), orphans)
            self._pass(log, account, modules)
            if orphans.waiting and not self._stopping.wait(self._backoff):
                self._pass(log, account, modules)
            self._news.turn()
            self._last = account.report()
            return self._last

    def _pass(self, log: DecisionLog, account: Account, modules: Iterable[Module]) -> None:
        account.begin_pass()
        sites = self._sites(log)
        work = Work(gather(log, sites), log, sites, account)
        for name, reason in work.evidence.silent.items():
            account.silent(name, reason)
        for name, reason in work.evidence.unfenced.items():
            account.fail(f"the fence of {name}", reason)
        for module in modules:
            try:
                module.run(work)
            except Exception as error:
                account.fail(f"module {module.name}", told(error))

    # -- the thread ---------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Scan now, and again after each period, in a daemon thread; does nothing where it runs already."""
        with self._starting:
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="txpool-recovery", daemon=True)
                self._thread.start()

    def stop(self) -> None:
        """End the thread; returns once the pass in progress is through. It can be started again."""
        with self._starting:
            if self._thread is not None:
                self._stopping.set()
                self._thread.join()
                self._thread = None
                self._stopping.clear()

    def _run(self) -> None:
        while True:
            try:
                logger.debug("scan: %s", self.scan())
            except Exception as error:
                self._news.warn(f"the scan failed, the next one is in {self._period:g} s: {error}")
                self._news.turn()
            if self._stopping.wait(self._period):
                return

    # -- for people ---------------------------------------------------------------------------------------------

    def in_doubt(self) -> list[listing.InDoubt]:
        """What is in doubt, and what the next scan will do with it; nothing is written. Errors: LogError."""
        with self._opened() as log:
            sites = self._sites(log)
            return listing.in_doubt(gather(log, sites, fence=False), sites)

    def show(self, gtrid: str) -> listing.InDoubt | None:
        """All that is known of one transaction; None where nothing is. Errors: LogError, ProgrammingError."""
        with self._opened() as log:
            sites = self._sites(log)
            return listing.show(gather(log, sites, fence=False), sites, byhand.checked(gtrid))

    def commit(self, gtrid: str) -> ScanReport:
        """Commit now what is decided already. Errors: LogError, ProgrammingError where it is not decided."""
        return self._by_hand(gtrid, byhand.commit)

    def rollback(self, gtrid: str) -> ScanReport:
        """Take the transaction's key and roll it back. Errors: LogError, ProgrammingError where it is decided."""
        return self._by_hand(gtrid, byhand.rollback)

    def forget(self, gtrid: str) -> int:
        """Dismiss the heuristic outcomes of a transaction; how many there were. Errors: LogError."""
        with self._scanning, self._opened() as log:
            return byhand.forget(log, byhand.checked(gtrid))

    def _by_hand(self, gtrid: str, act: byhand.Act) -> ScanReport:
        with self._scanning, self._opened() as log:
            account = Account(self._news)
            act(log, self._sites(log), account, byhand.checked(gtrid))
            return account.report()

    def close(self) -> None:
        """Stop, and close the datasources that came from the configuration."""
        self.stop()
        for datasource in self._own:
            datasource.close()

    def _sites(self, log: DecisionLog) -> Sites:
        return Sites(self._datasources, node=log.node, lock_timeout=self._settings.recovery_lock_timeout)

    @contextmanager
    def _opened(self) -> Iterator[DecisionLog]:
        if self._log is not None:
            yield self._log
            return
        settings = self._settings
        log = open_log(
            settings.log_url or "",
            node=settings.node_name or "",
            user=settings.log_user,
            password=settings.log_password,
        )
        try:
            yield log
        finally:
            log.close()
