"""Scans for work that cannot go on before an earlier run has ended. `txpool.idempotency` calls these by name."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import closing

from recovery.manager import RecoveryManager, running_for
from recovery.scan.datasources import RecoverableDatasource
from txpool.log.base import DecisionLog


def scan(log: DecisionLog, datasources: Iterable[RecoverableDatasource], backoff: float | None) -> None:
    """Scan once over these datasources; what it finds is in the log of recovery. Errors: LogError."""
    with closing(RecoveryManager(log=log, datasources=datasources, backoff=backoff)) as manager:
        manager.scan()


def wake(node: str) -> bool:
    """Let the managers whose threads recover that node in this process scan now. False if there is none."""
    managers = running_for(node)
    for each in managers:
        each.scan_soon()
    return bool(managers)
