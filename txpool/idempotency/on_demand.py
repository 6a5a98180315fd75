"""Asks recovery to scan for work that cannot go on before an earlier run has ended. Tasks never ask.

By name: recovery imports txpool, and txpool does not import recovery.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pkgutil import resolve_name

from txpool.datasource import Source
from txpool.log.base import IncarnationState
from txpool.resources.base import Role
from txpool.tm.manager import get_manager


def recover(datasources: Iterable[Source], *, backoff: float | None = 0) -> list[str]:
    """One scan over these datasources. It ends what processes have left that are dead.

    The nodes are this process's own and those of its `recovery.nodes`; its filters and the suspension count. `backoff`
    is the seconds between the scan's two passes; None takes the configured value. Returns what dead processes have
    prepared there, and a filter or the suspension leaves alone, each with the reason. Errors: LogError, and those of
    the configuration.
    """
    manager = get_manager()
    able = {each.name: each for each in datasources if each.role in (Role.PREPARED, Role.MARKED)}
    left: list[str] = resolve_name("recovery.on_demand:scan")(manager.settings, manager.log, able.values(), backoff)
    return left


def why_not_ended(gtrid: str, datasources: Iterable[Source]) -> str:
    """Why a transaction may not have ended in each of its datasources, though it has committed in one; empty if it has.

    It scans as `recover`. Errors: as of `recover`.
    """
    manager = get_manager()
    if manager.log is None:
        return "this process has no decision log"
    able = {each.name: each for each in datasources if each.role in (Role.PREPARED, Role.MARKED)}
    found: str = resolve_name("recovery.on_demand:why_not_ended")(manager.settings, manager.log, able.values(), gtrid)
    return found


def incarnations() -> Mapping[str, IncarnationState]:
    """The processes of the nodes that this one recovers. Errors: as of `recover`."""
    manager = get_manager()
    if manager.log is None:
        return {}
    found: Mapping[str, IncarnationState] = resolve_name("recovery.on_demand:incarnations")(
        manager.settings, manager.log
    )
    return found


def wake(node: str) -> bool:
    """Let the managers whose threads recover that node in this process scan now. False if there is none."""
    found: bool = resolve_name("recovery.on_demand:wake")(node)
    return found
