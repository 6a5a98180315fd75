"""Scans for work that cannot go on before an earlier run has ended. txpool calls these functions by name."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import closing

from recovery.manager import RecoveryManager, running_for
from recovery.scan.datasources import RecoverableDatasource
from txpool.log.base import DecisionLog


def scan_now(log: DecisionLog, datasources: Iterable[RecoverableDatasource]) -> None:
    """Scan once over these datasources; what it finds is in the log of recovery. Errors: LogError."""
    RecoveryManager(log=log, datasources=datasources, backoff=0).scan()


def wake(node: str) -> bool:
    """Let the managers whose threads recover that node in this process scan now. False if there is none."""
    managers = running_for(node)
    for each in managers:
        each.scan_soon()
    return bool(managers)


def scan(log: DecisionLog, datasources: Iterable[RecoverableDatasource]) -> None:
    """As `scan_now`, with the back-off between its two passes."""
    with closing(RecoveryManager(log=log, datasources=datasources)) as manager:
        manager.scan()
