"""`txpool-recovery run`: a recovery manager as a process of its own, which signals end and reload."""

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
    """Scan until SIGTERM or SIGINT; SIGHUP reads the configuration again.

    Errors: ConfigurationError if the configuration is wrong at the start.
    """
    # The signals are blocked before any thread starts, so that only `sigwait` below receives them.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
    try:
        running = _RunningManager(conf)
        running.start()
        logger.info("recovery runs with %s: %s", conf, running.manager)
        while (received := signal.Signals(signal.sigwait(_SIGNALS))) not in _END_SIGNALS:
            running = _reloaded(running, conf)
        logger.info("%s: recovery ends after the pass in progress", received.name)
        running.close()
        _log_pending(running.manager)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


class _RunningManager:
    """A recovery manager, with its status page if one is configured."""

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
    """A manager with the configuration as it is now; if that is wrong, the running one goes on."""
    try:
        replacement = _RunningManager(conf)
    except Error as error:
        logger.error("SIGHUP: %s; recovery goes on with the configuration that it had", error)
        return running
    running.close()
    replacement.manager.last_scan.continue_from(running.manager.last_scan)
    replacement.start()
    logger.info("SIGHUP: recovery runs with %s as it is now: %s", conf, replacement.manager)
    return replacement


def _log_pending(manager: RecoveryManager) -> None:
    report, failure = manager.last_report, manager.last_scan.failure
    if failure:  # what an earlier scan has reported may not hold any more
        logger.info(
            "recovery has ended; its last scan failed: %s. What is pending keeps its locks until recovery runs again",
            failure,
        )
        return
    if report is None:
        logger.info("recovery has ended; no scan was completed")
        return
    for left in report.left_alone:
        logger.info("still pending: %s %s: %s", left.gid or left.gtrid, left.datasource, left.reason)
    for name in report.unreachable:
        logger.info("still pending: the branches in %s, which did not answer", name)
    if report.suspended:
        logger.info("recovery has ended; %s, and prepared branches keep their locks", report.suspended)
        return
    if report.left_alone or report.unreachable:
        logger.info("recovery has ended; what is still pending keeps its locks until recovery runs again")
    else:
        logger.info("recovery has ended; its last pass left nothing pending")
