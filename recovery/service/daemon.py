"""`txpool-recovery run`: the recovery manager as a process of its own, ended and reloaded by signals."""

from __future__ import annotations

import logging
import signal
from pathlib import Path

from recovery.manager import RecoveryManager
from recovery.service.status import StatusServer
from txpool.config.settings import RecoverySettings
from txpool.errors import ConfigurationError, Error

logger = logging.getLogger("txpool.recovery")

_END_SIGNALS = (signal.SIGTERM, signal.SIGINT)
_SIGNALS = (*_END_SIGNALS, signal.SIGHUP)


def run(conf: Path) -> None:
    """Scan until SIGTERM or SIGINT; SIGHUP reads the configuration again. ConfigurationError where it is wrong now."""
    # Blocked before any thread starts, so that they arrive here and nowhere else.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
    try:
        running = _RunningManager(conf)
        running.start()
        logger.info("recovery runs with %s: %s", conf, running.manager)
        while (got := signal.Signals(signal.sigwait(_SIGNALS))) not in _END_SIGNALS:
            running = _reloaded(running, conf)
        logger.info("%s: ending once the pass in progress is through", got.name)
        running.close()
        _log_pending(running.manager)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


class _RunningManager:
    """A manager that scans, and its status page where one is configured."""

    def __init__(self, conf: Path) -> None:
        self._settings = RecoverySettings.load(conf)
        self.manager = RecoveryManager(self._settings)
        self._page: StatusServer | None = None

    def start(self) -> None:
        self.manager.start()
        address = self._settings.status_address
        if address is None:
            return
        try:
            self._page = StatusServer(self.manager, address, self._settings.status_token)
        except ConfigurationError as error:
            logger.error("%s; recovery goes on without it", error)
        else:
            logger.info("the status page is at %s", self._page.url)

    def close(self) -> None:
        if self._page is not None:
            self._page.close()
        self.manager.close()


def _reloaded(running: _RunningManager, conf: Path) -> _RunningManager:
    """What the configuration asks for now; where that is wrong, what there was goes on."""
    try:
        fresh = _RunningManager(conf)
    except Error as error:
        logger.error("SIGHUP: %s; recovery goes on with the configuration that it had", error)
        return running
    running.close()
    fresh.manager.last_scan.continue_from(running.manager.last_scan)
    fresh.start()
    logger.info("SIGHUP: recovery runs with %s as it is now: %s", conf, fresh.manager)
    return fresh


def _log_pending(manager: RecoveryManager) -> None:
    report = manager.last_report
    if report is None:
        logger.info("ended; no scan was completed")
        return
    for left in report.left_alone:
        logger.info("still pending: %s %s: %s", left.gid or left.gtrid, left.datasource, left.reason)
    for name in report.unreachable:
        logger.info("still pending: whatever %s holds, which did not answer", name)
    if report.suspended:
        logger.info("ended; %s, and whatever is prepared keeps its locks", report.suspended)
        return
    logger.info("ended; %d still pending, and prepared branches keep their locks", len(report.left_alone))
