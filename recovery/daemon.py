"""`txpool-recovery run`: the recovery manager as a process of its own, ended and reloaded by signals."""

from __future__ import annotations

import logging
import signal
from pathlib import Path

from recovery.manager import RecoveryManager
from txpool.errors import Error

logger = logging.getLogger("txpool.recovery")

_ENDING = (signal.SIGTERM, signal.SIGINT)
_SIGNALS = (*_ENDING, signal.SIGHUP)


def run(conf: Path) -> None:
    """Scan until SIGTERM or SIGINT; SIGHUP reads the configuration again. ConfigurationError where it is wrong now."""
    # Blocked before any thread starts, so that they arrive here and nowhere else.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
    try:
        manager = _started(conf)
        while (got := signal.Signals(signal.sigwait(_SIGNALS))) not in _ENDING:
            manager = _reloaded(manager, conf)
        logger.info("%s: ending once the pass in progress is through", got.name)
        manager.close()
        _say_pending(manager)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _started(conf: Path) -> RecoveryManager:
    manager = RecoveryManager(conf)
    manager.start()
    logger.info("recovery runs with %s: %s", conf, manager)
    return manager


def _reloaded(manager: RecoveryManager, conf: Path) -> RecoveryManager:
    """The manager of the configuration as it is now; where that is wrong, the one that there was goes on."""
    try:
        fresh = RecoveryManager(conf)
    except Error as error:
        logger.error("SIGHUP: %s; recovery goes on with the configuration that it had", error)
        return manager
    manager.close()
    fresh.start()
    logger.info("SIGHUP: recovery runs with %s as it is now: %s", conf, fresh)
    return fresh


def _say_pending(manager: RecoveryManager) -> None:
    report = manager.last_report
    if report is None:
        logger.info("ended; no scan was completed")
        return
    for left in report.left_alone:
        logger.info("still pending: %s %s: %s", left.gid or left.gtrid, left.datasource, left.reason)
    for name in report.unreachable:
        logger.info("still pending: whatever %s holds, which did not answer", name)
    logger.info("ended; %d still pending, and prepared branches keep their locks", len(report.left_alone))
