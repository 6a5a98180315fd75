"""`txpool-recovery run`: a recovery manager as a process of its own, which signals end and reload."""

from __future__ import annotations

import logging
import signal
import sys
import threading
from contextlib import suppress
from os import _exit as end_process
from pathlib import Path

from recovery.manager import RecoveryManager
from recovery.service.status import StatusServer
from txpool.config.settings import RecoverySettings
from txpool.errors import ConfigurationError, Error

logger = logging.getLogger("txpool.recovery")

_END_SIGNALS = (signal.SIGTERM, signal.SIGINT)
_SIGNALS = (*_END_SIGNALS, signal.SIGHUP)
#: Seconds for which the daemon waits for the pass in progress at its end, whatever hangs.
_END_SECONDS = 4.0


def run(conf: Path) -> None:
    """Scan until SIGTERM or SIGINT; SIGHUP reads the configuration again.

    It ends within five seconds, whatever hangs: what has no answer by then is left as it is, and the next recovery
    finds it. Errors: ConfigurationError if the configuration is wrong at the start.
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
        ended = running.close_in_time()
        _log_pending(running.manager)
        if not ended or running.manager.stuck:
            _end_at_once()
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
            self._page = StatusServer(
                self.manager, address, self._settings.status_token, public=self._settings.status_public
            )
        except ConfigurationError as error:
            logger.error("%s; recovery goes on without it", error)
        else:
            logger.info("the status page is at %s", self._page.url)

    def close_in_time(self) -> bool:
        """Close, but wait only for some seconds; whether it has been closed by then."""
        closing = threading.Thread(target=self._close, name="txpool-recovery-end", daemon=True)
        closing.start()
        closing.join(_END_SECONDS)
        if closing.is_alive():
            logger.warning(
                "the pass in progress has not ended within %g s, and is left: the decision log does not answer, or a "
                "datasource cannot be closed",
                _END_SECONDS,
            )
        return not closing.is_alive()

    def _close(self) -> None:
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
    running.close_in_time()
    replacement.manager.last_scan.continue_from(running.manager.last_scan)
    replacement.start()
    logger.info("SIGHUP: recovery runs with %s as it is now: %s", conf, replacement.manager)
    return replacement


def _end_at_once() -> None:
    """End the process, though a thread waits in a driver: the interpreter's own end might wait for it."""
    logging.shutdown()
    for stream in (sys.stdout, sys.stderr):
        with suppress(Exception):
            stream.flush()
    end_process(0)


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
