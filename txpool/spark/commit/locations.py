"""Where a job's tasks prepare: noted in the log by the driver before the job, since no task can write there."""

from __future__ import annotations

import logging
from collections.abc import Iterable

from txpool.datasource import DataSource
from txpool.errors import LogError
from txpool.log.base import DecisionLog
from txpool.resources.base import LocationKey, Role

logger = logging.getLogger("txpool")

#: Seconds that a datasource is waited for which the job may never use.
_PATIENCE = 5.0


def note_locations(
    log: DecisionLog | None, needed: Iterable[DataSource], possible: Iterable[DataSource] = ()
) -> frozenset[LocationKey]:
    """Note those that prepare, and return where: tasks prepare nowhere else.

    One of the `possible` ones that does not answer is left out. Errors: LogError, the driver's own for a needed one.
    """
    places: set[LocationKey] = set()
    if log is None:
        return frozenset()
    needed = [*needed]
    for datasource in (each for each in (*needed, *possible) if each.role is Role.PREPARED):
        try:
            site = datasource.prepare_location(None if datasource in needed else _PATIENCE)
            log.note_location(site)
        except LogError:
            raise
        except Exception as error:
            if datasource in needed:
                raise
            logger.info("tasks cannot prepare in %s, which does not answer the driver: %s", datasource.name, error)
        else:
            places.add(site.key)
    return frozenset(places)
