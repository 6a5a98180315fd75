"""The limits of databases on prepared transactions."""

from __future__ import annotations

import logging
from collections.abc import Iterable

from recovery.scan.datasources.datasources import RecoveryDatasources
from txpool.config.secrets import describe_error
from txpool.resources.recovery_access import PreparedSlots, optional

logger = logging.getLogger("txpool.recovery")


def slots(datasources: RecoveryDatasources, names: Iterable[str]) -> dict[str, PreparedSlots]:
    """The prepared slots of those named datasources that have a limit and answer."""
    found: dict[str, PreparedSlots] = {}
    for name in names:
        ask = optional(datasources.managers[name], "slots")
        if ask is not None:
            try:
                found[name] = datasources.asking.start(name, ask)()
            except Exception as error:
                logger.debug("%s does not tell its slots: %s", name, describe_error(error))
    return found
