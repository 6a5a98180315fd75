"""Tables of a REST catalog: a process, a recovery or the server is killed at each point, and answers are lost.

The server is a process of its own, and has what it keeps in a file. The tables are read by pyiceberg's own client.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

import txpool
from tests.crash import eventually as places
from tests.crash.eventually import Eventually
from tests.crash.evidence import SEED, Count, Evidence
from tests.crash.struck_jobs import count_places, interrupted
from tests.support.interrupts import codes_of
from tests.support.rest_catalog import RestServer
from tests.support.rest_site import TABLES, BucketSite, RestSite, rest_server_in, rest_site
from tests.support.s3_server import ObjectStore, store_with_a_bucket
from tests.support.sampling import chosen
from txpool import failpoints
from txpool.lake.rest import branch, place, references, snapshots, work

pytestmark = pytest.mark.slow
#: Where a process is killed, and whether that comes after the decision.
POINTS = {
    "lake.journal": False,
    "lake.file": False,
    "lake.file@3": False,
    "lake.synced": False,
    "lake.synced@2": False,
    "lake.noted": False,
    "lake.noted@2": False,
    "lake.referenced": False,
    "lake.referenced@2": False,
    "coordinator.prepared": False,
    "marked.commit": False,
    "marked.committed": True,
    "coordinator.decided": True,
    "lake.table-ended": True,
    "lake.table-ended@2": True,
    "lake.ended": True,
    "coordinator.committed": True,
}
#: And those that only a warehouse in a bucket has.
IN_BUCKETS = {"s3.created": False, "s3.created@3": False}
#: Where a recovery is killed after that, and after which of them; somebody else has appended meanwhile.
IN_RECOVERY = {
    "lake.rebased": ("coordinator.decided", "lake.table-ended"),
    "lake.table-ended": ("coordinator.prepared", "coordinator.decided", "lake.referenced"),
    "lake.ended": ("coordinator.prepared", "coordinator.decided"),
    "lake.sweeping": ("lake.synced", "lake.noted", "coordinator.prepared"),
    "recovery.branch": ("coordinator.prepared", "lake.table-ended"),
}


@pytest.fixture
def store(request: pytest.FixtureRequest) -> Iterator[ObjectStore | None]:
    """Of a warehouse in a bucket. It is there until all that must have ended has been looked at."""
    if getattr(request, "param", "folder") == "folder":
        yield None
        return
    with store_with_a_bucket() as found:
        yield found


@pytest.fixture
def server(tmp_path: Path, store: ObjectStore | None) -> Iterator[RestServer]:
    with rest_server_in(tmp_path, store) as found:
        yield found


@pytest.fixture
def site(tmp_path: Path, server: RestServer, eventually: Eventually) -> Iterator[RestSite]:
    with rest_site(tmp_path, server) as found:
        eventually.in_the(places.of_files(tmp_path / "recovery.properties", marked=["ledger.db"], more=found.left))
        yield found


IN_EACH = pytest.mark.parametrize("store", ["folder", "bucket"], indirect=True)


@pytest.mark.costly
@IN_EACH
def test_a_process_that_is_killed_at_each_point(site: RestSite, evidence: Evidence) -> None:
    outcomes = {**POINTS, **(IN_BUCKETS if isinstance(site, BucketSite) else {})}
    points = chosen(outcomes, 6)
    for number, point in enumerate(points, 1):
        assert site.killed(number, point), point
        if number % 2:
            site.foreign(-number)
        assert site.recovered(number, point) is outcomes[point], f"seed {SEED}: {point}"
    evidence.add(Count.KILLS, len(points))
    evidence.hit({point.partition("@")[0] for point in points})


@pytest.mark.costly
@IN_EACH
def test_a_recovery_that_is_killed_at_each_point(site: RestSite, evidence: Evidence) -> None:
    cases = chosen([(point, at) for point, before in IN_RECOVERY.items() for at in before], 4)
    for number, (point, at) in enumerate(cases, 1):
        assert site.killed(number, at), at
        site.foreign(-number)
        assert site.recovery_killed(point), (point, at)
        site.foreign(-number)
        assert site.recovered(number, f"seed {SEED}: {at}, {point}") is POINTS[at]
    evidence.add(Count.KILLS, 2 * len(cases))
    evidence.hit(point for point, _ in cases)


#: What the body of the commit has that makes a reference, and of the one that ends a branch.
PREPARE, COMMIT = '"ref-name":"txp1:', '"remove-snapshot-ref"'
FAULTS = ["refuse", "fail", "lost-refuse", "lost-fail", "lost-answer"]


@pytest.mark.costly
@pytest.mark.parametrize(("step", "others"), [(PREPARE, False), (COMMIT, False), (COMMIT, True)])
def test_an_answer_that_is_lost_or_wrong_changes_nothing(step: str, others: bool, site: RestSite) -> None:
    """A 409 may say that the first try has landed. Also if others have committed, and it is appended again."""
    for number, fault in enumerate(FAULTS, 1):
        site.server.fault(fault, step)
        with failpoints.arming("coordinator.decided", partial(site.foreign, -number) if others else "count"):
            site.job(number)
        assert not (site.server.folder / "fault").exists(), fault
        assert [*site.left()] == [], fault
        for name in TABLES:
            assert [each for each in site.ids(name) if each > 0] == list(range(1, number + 1)), fault
            assert len(site.ids(name)) == number * (2 if others else 1), fault


@pytest.mark.costly
@pytest.mark.parametrize("fault", ["die-before", "die-after"])
@pytest.mark.parametrize("step", [PREPARE, COMMIT], ids=["prepare", "commit"])
def test_a_server_that_is_killed(step: str, fault: str, site: RestSite) -> None:
    site.job(1)
    site.server.fault(fault, step)
    told: BaseException | None = None
    try:
        site.job(2)
    except txpool.Error as error:
        told = error
    site.server.ended()
    site.server.start()
    site.foreign(-1)
    assert site.recovered(2, f"{fault}, told {told!r}") is (step == COMMIT)
    assert (told is None) is (step == COMMIT), told


CODES = {code for module in (branch, place, references, snapshots, work) for code in codes_of(module)}


@pytest.mark.costly
def test_an_interrupt_at_each_place(site: RestSite) -> None:
    site.job(1)
    count = count_places(partial(site.job, 2), CODES)
    for number, nth in enumerate(chosen(range(1, count + 1), 4), 3):
        told = interrupted(partial(site.job, number), CODES, nth)
        assert txpool.current() is None
        shown = f"seed {SEED}: interrupt at {nth} of {count}, told {told!r}"
        committed = site.recovered(number, shown)
        if told is None:
            assert committed, shown
        elif isinstance(told, txpool.TransactionRolledBack):
            assert not committed, shown
