"""A transaction killed at every point, then recovery; and recovery killed at each of its own, then recovery again.

One case in five (TXPOOL_CRASH_SEED replays a sample), and all with TXPOOL_CRASH_FULL=1.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.crash import eventually as places
from tests.crash.eventually import Eventually
from tests.crash.evidence import SEED, Count, Evidence
from tests.support.log_places import KINDS, place_of
from tests.support.recovery_site import WRITER, Site
from tests.support.sampling import FULL

BOTH = ("one", "two")
MARKED = ("one", "two", "ledger")
#: Where a transaction is killed, and whether it is decided there.
POINTS = [
    (BOTH, "coordinator.begin", False),
    (BOTH, "coordinator.preparing", False),
    (BOTH, "coordinator.prepared", False),
    (BOTH, "log.record", False),
    (BOTH, "log.recorded", True),
    (BOTH, "coordinator.decided", True),
    (BOTH, "coordinator.committing", True),
    (BOTH, "coordinator.one-committed", True),
    (BOTH, "coordinator.committed", True),
    (MARKED, "marked.row", False),
    (MARKED, "coordinator.marked", False),
    (MARKED, "coordinator.preparing", False),
    (MARKED, "coordinator.prepared", False),
    (MARKED, "marked.commit", False),
    (MARKED, "marked.committed", True),
    (MARKED, "coordinator.one-committed", True),
    (MARKED, "coordinator.committed", True),
]
#: What a recovery finds that is killed itself.
LEFT_BEHIND = [
    (BOTH, "coordinator.prepared", False),
    (BOTH, "coordinator.decided", True),
    (MARKED, "coordinator.prepared", False),
    (MARKED, "marked.committed", True),
]
POINTS_OF_RECOVERY = [
    "recovery.listed",
    "recovery.fenced",
    "recovery.read",
    "recovery.tombstone",
    "recovery.branch",
    "recovery.branch=kill@2",
    "recovery.forget",
    "branch.commit-sent",
    "branch.rollback-sent",
]


@pytest.fixture
def site(request: pytest.FixtureRequest, tmp_path: Path, databases: Any, store: str, eventually: Eventually) -> Site:
    log = place_of(store, request.getfixturevalue) if store in KINDS else None
    site = Site(tmp_path, databases, store=store, log=log)
    eventually.in_the(places.recovery_site(site))
    return site


def assert_ended(site: Site, names: tuple[str, ...], committed: bool) -> None:
    """In every database the same, nothing prepared, nothing kept."""
    assert site.counts() == {name: int(committed and name in names) for name in MARKED}
    assert site.databases.prepared() == []
    assert site.marks() == []
    assert site.kept() == {}


def over_all_stores(cases: Iterable[tuple[Any, ...]], sample: int) -> list[Any]:
    """Each case with its store before it, and an id by which it is found again."""
    every = list(cases)
    chosen = every if FULL else random.Random(SEED).sample(every, sample)
    return [
        pytest.param(store, *case, id="-".join([store, *map(_word, case)]))
        for store, played in (("sqlite", every), ("sql", chosen), ("mariadb", chosen), ("mysql", chosen))
        for case in played
    ]


def _word(value: Any) -> str:
    if isinstance(value, bool):
        return "committed" if value else "undecided"
    return "+".join(value) if isinstance(value, tuple) else str(value)


@pytest.mark.part(5)
@pytest.mark.parametrize(("store", "names", "point", "committed"), over_all_stores(POINTS, 4))
def test_a_killed_transaction_has_one_outcome(
    site: Site, names: tuple[str, ...], point: str, committed: bool, evidence: Evidence
) -> None:
    print(f"seed {SEED}")
    site.killed(WRITER, *names, failpoints=f"{point}=kill")
    report = site.manager().scan()
    assert not report.errors
    assert not report.left_alone
    assert_ended(site, names, committed)
    evidence.hit([point])
    evidence.add(Count.KILLS)


def struck_recoveries() -> Iterator[tuple[Any, ...]]:
    """At each point, the recovery of something decided, and of something undecided."""
    chance = random.Random(SEED)
    for point, committed in itertools.product(POINTS_OF_RECOVERY, (True, False)):
        left = [each for each in LEFT_BEHIND if each[2] is committed]
        yield from ((*each, point) for each in (left if FULL else chance.sample(left, 1)))


@pytest.mark.part(5)
@pytest.mark.parametrize(("store", "names", "crash", "committed", "point"), over_all_stores(struck_recoveries(), 6))
def test_recovery_that_is_killed_goes_on_where_it_was(
    site: Site, names: tuple[str, ...], crash: str, committed: bool, point: str, evidence: Evidence
) -> None:
    print(f"seed {SEED}")
    site.killed(WRITER, *names, failpoints=f"{crash}=kill")
    first = site.command("scan", failpoints=point if "=" in point else f"{point}=kill")
    unreached = {("recovery.tombstone", BOTH), ("recovery.forget", BOTH if not committed else ())}
    never = (point, names) in unreached or point == f"branch.{'rollback' if committed else 'commit'}-sent"
    assert (first.returncode == -9) is not never, first.stderr
    second = site.command("scan")
    assert second.returncode == 0, second.stderr
    assert_ended(site, names, committed)
    evidence.hit([] if never else [point.partition("=")[0]])
    evidence.add(Count.KILLS, 2 - never)
