"""Before a job: what dead processes have left prepared in its datasources is ended. Its tasks would wait for the locks.

Tasks never recover: they cannot write to the log.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from contextvars import Context

from txpool.datasource import DataSource
from txpool.errors import OperationalError, described
from txpool.idempotency.on_demand import recover
from txpool.log.base import DecisionLog
from txpool.resources.base import Role

logger = logging.getLogger("txpool")

_MOST_NAMED = 5


def settle_earlier_runs(log: DecisionLog | None, datasources: Iterable[DataSource]) -> None:
    """One scan over those that can prepare, for this node and those of `recovery.nodes`.

    Recovery's filters and its suspension count. OperationalError if they leave alone what a dead process has prepared:
    the job's tasks might wait for its locks for ever. If the scan fails, that is logged, and the job may go on.
    """
    able = [each for each in datasources if each.role is Role.PREPARED]
    if log is None or not able:
        return
    names = ", ".join(each.name for each in able)
    try:
        left = Context().run(recover, able)  # it is no part of the transaction
    except Exception as error:
        logger.warning(
            "what earlier runs have left in %s could not be looked for before the job, which may wait for it: %s",
            names,
            described(error),
        )
        return
    if left:
        more = [f"{len(left) - _MOST_NAMED} more"] if len(left) > _MOST_NAMED else []
        raise OperationalError(
            f"the job was not begun, and nothing was written: dead processes have left branches prepared in {names}, "
            f"recovery leaves them alone, and the job's tasks might wait for their locks for ever: "
            f"{'; '.join([*left[:_MOST_NAMED], *more])}. See `txpool-recovery show GTRID`; run the job again once "
            "they have ended"
        )
