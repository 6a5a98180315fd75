"""Asks recovery to scan for work that cannot go on before an earlier run has ended. Tasks never ask.

By name: recovery imports txpool, and txpool does not import recovery.
"""

from __future__ import annotations

from collections.abc import Iterable
from pkgutil import resolve_name

from txpool.datasource import DataSource
from txpool.resources.base import Role
from txpool.tm.manager import get_manager


def recover(datasources: Iterable[DataSource], *, backoff: float | None = 0) -> None:
    """One scan over these datasources. It ends what processes have left that are dead.

    `backoff` is the seconds between its two passes; None takes the configured value. Errors: LogError, and those of the
    configuration.
    """
    able = {each.name: each for each in datasources if each.role in (Role.PREPARED, Role.MARKED)}
    resolve_name("recovery.on_demand:scan")(get_manager().log, able.values(), backoff)


def wake(node: str) -> bool:
    """Let the managers whose threads recover that node in this process scan now. False if there is none."""
    found: bool = resolve_name("recovery.on_demand:wake")(node)
    return found
