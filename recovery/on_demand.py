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
from txpool.xid import split_gtrid

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
    datasources = list(datasources)
    overview = _scanned(coordinator, log, datasources, backoff)
    return [] if overview is None else _kept_of_the_dead(overview, {each.name for each in datasources})


def why_not_ended(
    coordinator: CoordinatorSettings, log: DecisionLog, datasources: Iterable[RecoverableDatasource], gtrid: str
) -> str:
    """Why a transaction may not have ended everywhere, though it has committed somewhere; empty if it has.

    It has been decided then, and all its branches were prepared. So none is left once all databases in which our nodes
    prepare have answered, and none lists one. Errors: as of `scan`.
    """
    named = split_gtrid(gtrid)
    with _opened(RecoverySettings.load(coordinator.properties), log) as opened:
        if named.incarnation not in opened.incarnations() and not opened.expired({named.incarnation}):
            return (
                "the process that has delivered it wrote into another decision log, or recovery.nodes leaves out its "
                f"node {named.node}: run a relay that has that log and recovers that node"
            )
    overview = _scanned(coordinator, log, datasources, 0)
    if overview is None:
        return "no scan was completed"
    left = next((each for each in overview.in_doubt if each.gtrid == gtrid and each.unresolved), None)
    if left is not None:
        return "; ".join(f"{each.datasource}: {each.state}" for each in left.branches)
    if not overview.complete:
        return f"no answer from {', '.join(overview.report.unreachable) or 'a database that no datasource leads to'}"
    return ""


def _scanned(
    coordinator: CoordinatorSettings,
    log: DecisionLog,
    datasources: Iterable[RecoverableDatasource],
    backoff: float | None,
) -> Overview | None:
    """What one scan has left. Nothing of the file's own datasources and modules: they are for who recovers all."""
    settings = replace(
        RecoverySettings.load(coordinator.properties),
        datasources=(),
        recovery_modules=(),
        recovery_outboxes=(),
        recovery_expiry_interval=None,
    )
    with _opened(settings, log) as opened:
        filters = [each for manager in running_for(opened.node) for each in manager.filters]
        manager = RecoveryManager(settings, log=opened, datasources=datasources, backoff=backoff, filters=filters)
        manager.last_scan.alarms.watching = False
        with closing(manager):
            manager.scan()
            return manager.last_scan.overview


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
