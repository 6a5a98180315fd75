"""One scan for a process that cannot go on before an earlier run of its own work has ended. txpool calls it by name."""

from __future__ import annotations

from collections.abc import Iterable

from recovery.manager import RecoveryManager
from recovery.scan.datasources import RecoverableDatasource
from txpool.log.base import DecisionLog


def scan_now(log: DecisionLog, datasources: Iterable[RecoverableDatasource]) -> None:
    """Scan once over these datasources; what it finds is in the log of recovery. Errors: LogError."""
    RecoveryManager(log=log, datasources=datasources, backoff=0).scan()
