"""Before a job: the driver notes where its tasks prepare, and ends what dead processes have left prepared there.

Tasks can do neither: they cannot write to the log. What dead processes have left would hold locks for which the tasks
wait.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from contextvars import Context

from txpool.datasource import Source
from txpool.errors import LogError, OperationalError, described
from txpool.idempotency.on_demand import recover
from txpool.log.base import DecisionLog
from txpool.resources.base import LocationKey, Role

logger = logging.getLogger("txpool")

#: How long a datasource that the job may never use has to answer.
_POSSIBLE_TIMEOUT_SECONDS = 5.0
_MOST_NAMED = 5


def note_locations(
    log: DecisionLog | None,
    needed: Iterable[Source],
    possible: Iterable[Source] = (),
    *,
    timeouts: Mapping[str, float],
) -> frozenset[LocationKey]:
    """Note the locations of the datasources that can prepare, and return them; tasks may prepare nowhere else.

    `timeouts` are those of the transactions, by gtrid, of which tasks prepare branches: they are noted, too. A
    `possible` datasource that does not answer is left out. Errors: LogError, and the driver's own for a `needed` one.
    """
    locations: set[LocationKey] = set()
    if log is None:
        return frozenset()
    for gtrid, timeout in timeouts.items():
        log.note_timeout(gtrid, timeout)
    needed = [*needed]
    for datasource in (each for each in (*needed, *possible) if each.role is Role.PREPARED):
        try:
            location = datasource.prepare_location(None if datasource in needed else _POSSIBLE_TIMEOUT_SECONDS)
            log.note_location(location)
        except LogError:
            raise
        except Exception as error:
            if datasource in needed:
                raise
            logger.info(
                "tasks cannot prepare in %s, which does not answer the driver: %s", datasource.name, described(error)
            )
        else:
            locations.add(location.key)
    return frozenset(locations)


def settle_earlier_runs(log: DecisionLog | None, datasources: Iterable[Source]) -> None:
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
