"""Tests of which the seed chooses some: of a test with the mark `part(n)` one case in n runs, over each log's store.

With `part(n, each=("world",))` it is one in n for each value of these parameters, too. Of the other tests with the mark
`costly`, and of those that start a Spark of their own, one in ten runs; and none with the mark `long`. Of what is left,
one in two with the marks `crash` or `slow` runs.
Others run with each seed (TXPOOL_CRASH_SEED), and all with TXPOOL_CRASH_FULL=1, or where a test is named by its id.
With TXPOOL_ONE_IN=n, one in n of all these runs: in a second environment, they look for what differs there.
"""

from __future__ import annotations

import os
import random
from collections import defaultdict
from collections.abc import Iterable
from typing import TypeVar

import pytest

from tests.crash.evidence import SEED, evidence_of

T = TypeVar("T")

#: Of the tests that are costly, one in so many runs.
COSTLY = 10
#: Of the others that kill something, or take long, one in so many.
SLOW = 2
#: Of all that is left, one in so many.
ONE_IN = int(os.environ.get("TXPOOL_ONE_IN", "1"))

FULL = os.environ.get("TXPOOL_CRASH_FULL") == "1"


@pytest.hookimpl(trylast=True)  # of what is left of all others
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if in_full(config):
        return
    cases: dict[tuple[object, ...], list[pytest.Item]] = defaultdict(list)
    costly: list[pytest.Item] = []
    slow: list[pytest.Item] = []
    long = [item for item in items if item.get_closest_marker("long")]
    for item in items:
        part = item.get_closest_marker("part")
        if part is not None and isinstance(item, pytest.Function) and hasattr(item, "callspec"):
            alike = [item.callspec.params.get(name) for name in ("store", *part.kwargs.get("each", ()))]
            cases[part.args[0], item.module.__name__, item.originalname, *alike].append(item)
        elif item.get_closest_marker("costly") and item not in long:
            costly.append(item)
        elif any(map(item.get_closest_marker, ("crash", "slow"))) and item not in long:
            slow.append(item)
    samples = [(found, -(-len(found) // part)) for (part, *_), found in cases.items()]
    samples += [(found, -(-len(found) // some)) for found, some in ((costly, COSTLY), (slow, SLOW))]
    leave_out(config, items, [*samples, (long, 0)])
    leave_out(config, items, [([*items], -(-len(items) // ONE_IN))])


def in_full(config: pytest.Config) -> bool:
    """Whether nothing is left out."""
    return FULL or any("::" in argument for argument in config.args)


def chosen(cases: Iterable[T], some: int) -> list[T]:
    """By default so many of them, by the seed; with TXPOOL_CRASH_FULL=1 all."""
    found = list(cases)
    return found if FULL or len(found) <= some else random.Random(SEED).sample(found, some)


def leave_out(
    config: pytest.Config, items: list[pytest.Item], samples: Iterable[tuple[list[pytest.Item], int]]
) -> None:
    """Of each of these lists, run so many."""
    chance = random.Random(SEED)
    left: set[pytest.Item] = set()
    for found, count in samples:
        left.update({*found} - {*chance.sample(found, min(count, len(found)))})
    if left:
        config.hook.pytest_deselected(items=[*left])
        items[:] = [item for item in items if item not in left]
        evidence_of(config).sampled = True
