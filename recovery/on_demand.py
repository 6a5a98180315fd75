"""Scans for work that cannot go on before an earlier run has ended. `txpool.idempotency` calls these by name."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import replace

from recovery.by_hand import open_recovered_log
from recovery.manager import RecoveryManager, running_for
from recovery.operator.last_scan import Overview
from recovery.scan.datasources.datasources import RecoverableDatasource
from recovery.scan.snapshot import CoordinatorState
from txpool.config.settings import CoordinatorSettings, RecoverySettings
from txpool.config.url import is_server
from txpool.log.base import DecisionLog, IncarnationState

_DEAD = (CoordinatorState.DEAD.value, CoordinatorState.FENCED.value)


def scan(
    coordinator: CoordinatorSettings,
    log: DecisionLog,
    datasources: Iterable[RecoverableDatasource],
    backoff: float | None,
) -> list[str]:
    """Scan once over these datasources, as the process's own file says: its nodes, filters and logins count.

    Returns what dead processes have prepared there, and a filter or a suspension leaves alone, each with the reason.
    What is left alone for another reason is logged. Errors: LogError, and those of the configuration.
    """
    # The file's own datasources and modules are for the process that recovers all.
    settings = replace(
        RecoverySettings.load(coordinator.properties),
        datasources=(),
        recovery_modules=(),
        recovery_expiry_interval=None,
    )
    datasources = list(datasources)
    with _opened(settings, log) as opened:
        filters = [each for manager in running_for(opened.node) for each in manager.filters]
        manager = RecoveryManager(settings, log=opened, datasources=datasources, backoff=backoff, filters=filters)
        manager.last_scan.alarms.logged = False
        with closing(manager):
            manager.scan()
            overview = manager.last_scan.overview
    return [] if overview is None else _kept_of_the_dead(overview, {each.name for each in datasources})


def incarnations(coordinator: CoordinatorSettings, log: DecisionLog) -> Mapping[str, IncarnationState]:
    """The incarnations of the nodes that this process recovers, with their states. Errors: as of `scan`."""
    with _opened(RecoverySettings.load(coordinator.properties), log) as opened:
        return opened.incarnations()


def wake(node: str) -> bool:
    """Let the managers whose threads recover that node in this process scan now. False if there is none."""
    managers = running_for(node)
    for each in managers:
        each.scan_soon()
    return bool(managers)


@contextmanager
def _opened(settings: RecoverySettings, log: DecisionLog) -> Iterator[DecisionLog]:
    """The log as it knows the nodes of `recovery.nodes`; a coordinator's own knows one node, and so does a folder."""
    if not settings.recovery_nodes or not is_server(settings.log_url or ""):
        yield log
        return
    with closing(open_recovered_log(settings)) as opened:
        yield opened


def _kept_of_the_dead(overview: Overview, names: set[str]) -> list[str]:
    found, report = [], overview.report
    for each in overview.in_doubt:
        held = sorted({it.datasource for it in each.branches if it.state == "prepared"} & names)
        # A filter's vote raises no alarm. What does, such as a datasource without an answer, may end by itself.
        voted = dict.fromkeys(it.reason for it in report.left_alone if it.gtrid == each.gtrid and not it.alarm)
        why = report.suspended or "; ".join(voted)
        if held and each.standing in _DEAD and why:
            found.append(f"{each.gtrid} in {', '.join(held)} ({why})")
    return found
