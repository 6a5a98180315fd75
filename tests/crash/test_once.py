"""Work that has a transaction_id is killed, and run again: it is done exactly once, whatever was in doubt meanwhile.

The rerun comes first and recovery later: where the name is held by what is in doubt, the rerun has that settled.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.crash.evidence import Count, Evidence
from tests.crash.nursery import Nursery
from tests.crash.world import ALREADY, DONE, UNKNOWN, World
from txpool import AlreadyDone, OperationalError, once
from txpool.datasource import find
from txpool.scope import transaction

BOTH, MARKED = ("one", "two"), ("one", "two", "ledger")
#: What the transaction works in, where its name is recorded, where it is killed, and whether it is decided there.
KILLS = (
    (("one",), "one", "coordinator.begin", False),
    (BOTH, "one", "coordinator.begin", False),
    (BOTH, "one", "coordinator.prepared", False),
    (BOTH, "one", "coordinator.decided", True),
    (BOTH, "two", "coordinator.one-committed", True),
    (BOTH, "two", "coordinator.committed", True),
    (MARKED, "two", "coordinator.prepared", False),
    (MARKED, "two", "marked.commit", False),
    (MARKED, "two", "marked.committed", True),
    (MARKED, "ledger", "marked.commit", False),
    (MARKED, "ledger", "marked.committed", True),
    ((*BOTH, "book"), "book", "marked.commit", False),
    ((*BOTH, "book"), "book", "marked.committed", True),
)


@pytest.fixture
def nursery(world: World) -> Iterator[Nursery]:
    nursery = Nursery(world.folder)
    yield nursery
    nursery.close()


def test_killed_and_run_again(world: World, nursery: Nursery, evidence: Evidence) -> None:
    for number, (names, place, point, decided) in enumerate(KILLS):
        killed = nursery.transact(number, names, f"{point}=kill", record_in=place)
        assert killed == {"status": -9}, f"{point} was not reached"
        again = nursery.transact(number, names, "", record_in=place)
        assert again["said"] == (ALREADY if decided else DONE), f"{names}, {place}, {point}"
        assert nursery.transact(number, names, "", record_in=place)["said"] == ALREADY
    nursery.release()
    world.quiet()
    world.scan()
    rows = world.numbers()
    for number, (names, *what) in enumerate(KILLS):
        held = {name: numbers.count(number) for name, numbers in rows.items() if number in numbers}
        assert held == dict.fromkeys(names, 1), f"{names}, {what}"
    world.assert_nothing_is_left()
    evidence.add(Count.KILLS, len(KILLS))


def test_a_run_that_is_in_doubt_and_lives_is_not_doubled(
    world: World, nursery: Nursery, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its name is locked until it is settled: another run is told so, and does nothing."""
    monkeypatch.setattr(once, "_PATIENCE", (100, 100))
    order = {"record_in": "one"}
    lives = nursery.transact(7, BOTH, "log.recorded=raise, log.abort=raise", **order)
    assert lives["said"] == UNKNOWN
    with world.coordinator(), pytest.raises(OperationalError, match="'work-7' is at work now, or is in doubt with a"):
        claim(world)
    assert (world.holders(7), len(world.prepared())) == (set(), 2)
    nursery.release()
    world.quiet()
    with world.coordinator(), pytest.raises(AlreadyDone, match=lives["gtrid"]):
        claim(world)
    world.scan()
    assert world.holders(7) == {*BOTH}
    world.assert_nothing_is_left()


def claim(world: World) -> None:
    for name in BOTH:
        find(world.folder / f"{name}.properties")
    with transaction(transaction_id="work-7", record_in=world.folder / "one.properties"):
        pytest.fail("it must not be done beside the other run")
