"""Asks recovery to end what dead processes have prepared, and statements of this process wait for."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from time import monotonic
from typing import Final

from txpool.datasource import known
from txpool.idempotency.on_demand import incarnations, recover, wake
from txpool.log.base import IncarnationState
from txpool.waits.statement import WaitingStatement

logger = logging.getLogger("txpool.waits")

#: Seconds before recovery is asked again about the same transaction: a filter, or a suspension, may have it left alone.
_PAUSE: Final = 60.0
_DEAD: Final = (IncarnationState.DEAD, IncarnationState.FENCED)


class Settling:
    """Asks once in a while about each transaction. Used by one thread."""

    def __init__(self) -> None:
        #: By gtrid, when recovery was asked, by the monotonic clock.
        self._asked: dict[str, float] = {}

    def settle(self, waits: Iterable[WaitingStatement]) -> None:
        """Have an ordinary scan made, with its back-off, if a process is dead that this one recovers.

        By the recovery manager that runs in this process, else here. Errors: LogError, and those of the configuration.
        """
        now = monotonic()
        self._asked = {gtrid: at for gtrid, at in self._asked.items() if now < at + _PAUSE}
        sources, dead = {each.name: each for each in known().values()}, list[str]()
        states = incarnations()
        for wait in waits:
            sources[wait.source.name] = wait.source
            for xid in wait.xids:
                state = states.get(xid.incarnation)
                if xid.gtrid in self._asked or state is IncarnationState.ALIVE:
                    continue
                if wake(xid.node):
                    self._asked[xid.gtrid] = now
                    logger.info("%s: the recovery manager of this process is asked for a scan", xid.gtrid)
                elif state in _DEAD:
                    self._asked[xid.gtrid] = now
                    dead.append(xid.gtrid)
        if dead:
            logger.warning("%s: its process is dead, and a scan is made here", ", ".join(dead))
            recover(sources.values(), backoff=None)
