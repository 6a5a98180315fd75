"""Before a job: what dead processes have left prepared in its datasources is ended. Its tasks would wait for the locks.

Tasks never recover: they cannot write to the log.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from contextvars import Context

from txpool.datasource import DataSource
from txpool.errors import described
from txpool.idempotency.on_demand import recover
from txpool.log.base import DecisionLog
from txpool.resources.base import Role

logger = logging.getLogger("txpool")


def settle_earlier_runs(log: DecisionLog | None, datasources: Iterable[DataSource]) -> None:
    """One scan over those that can prepare, for this node and those of `recovery.nodes`.

    Recovery's filters and its suspension count; its log says what it leaves alone, and why. An error is logged: the job
    may go on, and perhaps waits.
    """
    able = [each for each in datasources if each.role is Role.PREPARED]
    if log is None or not able:
        return
    try:
        Context().run(recover, able)  # it is no part of the transaction
    except Exception as error:
        logger.warning(
            "what earlier runs have left in %s could not be looked for before the job, which may wait for it: %s",
            ", ".join(each.name for each in able),
            described(error),
        )
