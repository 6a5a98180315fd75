"""The metrics of this process's pools; the numbers of pools with the same name are added."""

from __future__ import annotations

from collections.abc import Iterator

from txpool.metrics import Sample, add_source, catalogue
from txpool.pool.numbers.registry import all_statistics

#: A metric family, the values of its labels after the pool's name, and the field of PoolStatistics.
_NUMBERS = (
    (catalogue.CONNECTIONS, ("idle",), "idle"),
    (catalogue.CONNECTIONS, ("used",), "taken"),
    (catalogue.CONNECTIONS_MAX, (), "max_size"),
    (catalogue.IDLE_MAX, (), "max_size"),
    (catalogue.IDLE_MIN, (), "min_size"),
    (catalogue.PENDING, (), "waiting"),
    (catalogue.TIMEOUTS, (), "timeouts"),
    (catalogue.TAKES, (), "takes"),
    (catalogue.CREATED, (), "created"),
    (catalogue.CLOSED, (), "destroyed"),
    (catalogue.FAILURES, ("connect",), "connect_failures"),
    (catalogue.FAILURES, ("check",), "check_failures"),
    (catalogue.FAILURES, ("reset",), "reset_failures"),
    (catalogue.LEAKS, (), "leaks"),
    (catalogue.LOST, (), "lost"),
)
#: A closed pool opens no connection, and keeps none.
_LIMITS = frozenset({"max_size", "min_size"})


def _samples() -> Iterator[Sample]:
    found = all_statistics()
    for family, labels, field in _NUMBERS:
        totals: dict[str, int] = {}
        for numbers in found:
            number = 0 if numbers.closed and field in _LIMITS else getattr(numbers, field)
            totals[numbers.name] = totals.get(numbers.name, 0) + number
        for name, total in totals.items():
            yield Sample(family, (name, *labels), total)


add_source(_samples)
