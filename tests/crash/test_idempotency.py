"""Work that has a transaction_id is killed, and run again: it is done exactly once, whatever was in doubt meanwhile.

The rerun comes first and recovery later: where the name is held by what is in doubt, the rerun has that settled.
"""

from __future__ import annotations

import threading
from typing import Any

import pytest

from tests.crash.evidence import Count, Evidence
from tests.crash.fork_server import ForkServer
from tests.crash.site import ALREADY, DONE, CrashSite
from txpool import AlreadyDone, OperationalError, failpoints
from txpool.idempotency import once as idempotency
from txpool.tm.demarcation.block import transaction

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


@pytest.mark.costly
def test_killed_and_run_again(world: CrashSite, fork_server: ForkServer, evidence: Evidence) -> None:
    for number, (names, place, point, decided) in enumerate(KILLS):
        killed = fork_server.transact(number, names, f"{point}=kill", record_in=place)
        assert killed == {"status": -9}, f"{point} was not reached"
        again = fork_server.transact(number, names, "", record_in=place)
        assert again["said"] == (ALREADY if decided else DONE), f"{names}, {place}, {point}"
        assert fork_server.transact(number, names, "", record_in=place)["said"] == ALREADY
    fork_server.release()
    world.wait_for_sessions()
    world.scan()
    rows = world.numbers()
    for number, (names, *what) in enumerate(KILLS):
        held = {name: numbers.count(number) for name, numbers in rows.items() if number in numbers}
        assert held == dict.fromkeys(names, 1), f"{names}, {what}"
    world.assert_nothing_is_left()
    evidence.add(Count.KILLS, len(KILLS))


def test_what_is_prepared_by_a_process_that_lives_is_not_doubled(
    world: CrashSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its name is locked until it has ended: another run is told so, and does nothing; nor does recovery end it."""
    monkeypatch.setattr(idempotency, "_LOCK_TIMEOUTS_MS", (100, 100))
    prepared, go_on = threading.Event(), threading.Event()

    def stay() -> None:
        prepared.set()
        go_on.wait(60)

    with world.coordinator():
        first = threading.Thread(target=world.attempt, args=[7, *BOTH], kwargs={"once": named(world)})
        with failpoints.arming("coordinator.prepared", stay):
            first.start()
            assert prepared.wait(60)
            with pytest.raises(OperationalError, match="'work-7' is at work now, or is in doubt"):
                claim(world)
            assert (world.holders(7), len(world.prepared())) == (set(), 2)
            go_on.set()
            first.join()
        with pytest.raises(AlreadyDone):
            claim(world)
    world.assert_settled(7, BOTH, DONE)


def named(world: CrashSite) -> dict[str, Any]:
    return {"transaction_id": "work-7", "record_in": world.folder / "one.properties"}


def claim(world: CrashSite) -> None:
    with transaction(**named(world)):
        pytest.fail("it must not be done beside the other run")
