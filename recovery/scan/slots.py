"""The limits of databases on prepared transactions."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import Protocol, runtime_checkable

from recovery.scan.datasources import RecoveryDatasources
from txpool.config.secrets import describe_error
from txpool.resources.recovery_access import PreparedSlots

logger = logging.getLogger("txpool.recovery")


@runtime_checkable
class LimitedSlots(Protocol):
    """A resource manager whose database limits the number of prepared transactions."""

    def slots(self) -> PreparedSlots: ...


def slots(datasources: RecoveryDatasources, names: Iterable[str]) -> dict[str, PreparedSlots]:
    """The prepared slots of those named datasources that have a limit and answer."""
    found: dict[str, PreparedSlots] = {}
    for name in names:
        manager = datasources.managers[name]
        if isinstance(manager, LimitedSlots):
            try:
                found[name] = datasources.asking.start(name, manager.slots)()
            except Exception as error:
                logger.debug("%s does not tell its slots: %s", name, describe_error(error))
    return found
