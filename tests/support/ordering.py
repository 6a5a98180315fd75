"""The order of the tests. Each process of a run begins with a share of them in a row, and takes others' at its end."""

from __future__ import annotations

import os

import pytest

from tests.support.marking import OWN_SPARK

#: Fixtures of brokers. One that tests kill is a process's own, and takes some ten seconds of CPU to start; over JMS a
#: JVM is started in the process.
_BROKERS = ("own_artemis", "artemis", "broker", "own_kafka", "kafka")


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What takes long comes first, since at the end no process is to wait for another's last test.

    One process begins with all that share a Spark, which takes long to start and to get warm, another with all that
    start a Spark of their own, and a third with all others that are slow: first those of brokers.
    """
    of_brokers: list[pytest.Item] = []
    shared: list[pytest.Item] = []
    own: list[pytest.Item] = []
    slow: list[pytest.Item] = []
    rest: list[pytest.Item] = []
    for item in items:
        fixtures = set(getattr(item, "fixturenames", ()))
        if fixtures.intersection(_BROKERS):
            of_brokers.append(item)
        elif fixtures & OWN_SPARK and "spark" not in fixtures:
            own.append(item)
        elif item.get_closest_marker("spark"):
            shared.append(item)
        else:
            (slow if item.get_closest_marker("slow") else rest).append(item)
    of_brokers.sort(key=lambda item: next(each for each in _BROKERS if each in item.fixturenames))  # type: ignore[attr-defined]
    slow = of_brokers + slow
    processes = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
    begins = [shared, own, slow] if processes > 2 else [shared + own + slow]
    share = len(items) // processes
    items.clear()
    for begin in begins:
        room = max(0, share - len(begin))
        items += [*begin, *rest[:room]]
        del rest[:room]
    items += rest
