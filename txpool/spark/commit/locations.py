"""Writes the log's notes for a job's tasks: where they prepare, and the timeout of their transaction.

The driver does so before the job: tasks cannot write to the log.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping

from txpool.datasource import DataSource
from txpool.errors import LogError, described
from txpool.log.base import DecisionLog
from txpool.resources.base import LocationKey, Role

logger = logging.getLogger("txpool")

#: How long a datasource that the job may never use has to answer.
_POSSIBLE_TIMEOUT_SECONDS = 5.0


def note_locations(
    log: DecisionLog | None,
    needed: Iterable[DataSource],
    possible: Iterable[DataSource] = (),
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
