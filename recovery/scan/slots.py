"""How many transactions a database can hold prepared, where that has a limit."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import Protocol, runtime_checkable

from recovery.scan.datasources import RecoveryDatasources
from recovery.scan.report import describe_error
from txpool.resources.base import PreparedSlots

logger = logging.getLogger("txpool.recovery")


@runtime_checkable
class LimitedSlots(Protocol):
    """A resource manager whose database can hold so many prepared transactions, and no more."""

    def slots(self) -> PreparedSlots: ...


def slots(datasources: RecoveryDatasources, names: Iterable[str]) -> dict[str, PreparedSlots]:
    """Those of the datasources named that have a limit, and tell it."""
    found: dict[str, PreparedSlots] = {}
    for name in names:
        manager = datasources.managers[name]
        if isinstance(manager, LimitedSlots):
            try:
                found[name] = manager.slots()
            except Exception as error:
                logger.debug("%s does not tell its slots: %s", name, describe_error(error))
    return found
