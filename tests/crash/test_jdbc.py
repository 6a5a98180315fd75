"""Databases over JDBC: killed and raised at every failpoint, and recovered by the command; and servers that are killed.

By default each pair is killed once at some points, and all share a recovery. TXPOOL_TEST_EVERY_JDBC_POINT=1 is for
all of it: each point, an error there, too, each branch of a pair, and H2.
"""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.conftest import Databases
from tests.crash import eventually as places
from tests.crash.eventually import Eventually
from tests.crash.evidence import Count, Evidence
from tests.crash.folder_site import KILLED, Scenario
from tests.crash.jdbc_site import (
    DERBY,
    EVERY_POINT,
    FILE,
    H2,
    H2_LEDGER,
    H2_SERVED,
    MARIADB_JDBC,
    POSTGRESQL,
    POSTGRESQL_JDBC,
    JdbcSite,
)
from tests.crash.test_failpoints_sweep import IN_ANY, IN_THE_LOG, IN_THE_MARK
from tests.support.mysql import MySQLServer

if TYPE_CHECKING:
    from tests.support.jdbc import Jars

PAIRS = [(POSTGRESQL, DERBY), (MARIADB_JDBC, FILE), (POSTGRESQL, POSTGRESQL_JDBC), (POSTGRESQL, H2_LEDGER)]
if EVERY_POINT:
    PAIRS.append((POSTGRESQL, H2))
#: The points that are killed at by default, once each.
BY_DEFAULT = {"branch.prepare-sent", "coordinator.decided", "branch.commit-sent", "marked.commit", "marked.committed"}


@pytest.fixture
def make_site(
    tmp_path: Path, databases: Databases, mariadb: MySQLServer, jdbc_jars: Jars, eventually: Eventually
) -> Iterator[Callable[..., JdbcSite]]:
    with ExitStack() as made:

        def make(*names: str, **options: int) -> JdbcSite:
            site = JdbcSite(tmp_path, databases, mariadb, jdbc_jars, names, **options)
            made.callback(site.close)
            eventually.in_the(places.folder_site(site, databases, [mariadb]))
            return site

        yield make


def scenarios(pair: Sequence[str]) -> list[Scenario]:
    marked = pair[-1].endswith("ledger")
    found: list[Scenario] = []
    for before, point, committed in (*IN_ANY, *(IN_THE_MARK if marked else IN_THE_LOG)):
        if not EVERY_POINT and point not in BY_DEFAULT:
            continue
        branches = len(pair) - marked if EVERY_POINT and point.startswith("branch.") else 1
        for nth in range(1, branches + 1):
            for action in ("kill", "raise") if EVERY_POINT else ("kill",):
                found.append((f"{before}, {point}={action}@{nth}".removeprefix(", "), committed, action))
    return found


@pytest.mark.costly
@pytest.mark.parametrize("pairs", [[pair] for pair in PAIRS] if EVERY_POINT else [PAIRS])
def test_every_point(make_site: Callable[..., JdbcSite], pairs: list[tuple[str, ...]], evidence: Evidence) -> None:
    """By default all pairs share one recovery."""
    groups = [(pair, scenarios(pair)) for pair in pairs]
    make_site(*dict.fromkeys(name for pair in pairs for name in pair)).survive(*groups)
    evidence.add(Count.KILLS, sum(action == "kill" for _, some in groups for _, _, action in some))


@pytest.mark.costly
def test_the_servers_are_killed_before_recovery(make_site: Callable[..., JdbcSite]) -> None:
    site = make_site(POSTGRESQL_JDBC, MARIADB_JDBC)
    orders = enumerate(("coordinator.prepared=kill", "coordinator.decided=kill"), 1)
    assert site.play([(number, site.names, point) for number, point in orders]) == [KILLED, KILLED]
    site.databases.server.restart("immediate")
    site.mariadb.stop("immediate")
    assert len(site.databases.prepared()) == 2
    away = site.scan()
    assert away.returncode != 0
    assert site.rows(POSTGRESQL_JDBC) == [2], "what is reached is ended, and the rest waits"
    site.mariadb.start()
    back = site.scan()
    assert back.returncode == 0, back.stdout + back.stderr
    assert site.rows(POSTGRESQL_JDBC) == site.rows(MARIADB_JDBC) == [2]
    assert site.prepared() == []


@pytest.mark.skipif(not EVERY_POINT, reason="TXPOOL_TEST_EVERY_JDBC_POINT=1")
def test_two_recoveries_at_once_reach_h2_over_tcp(
    make_site: Callable[..., JdbcSite], tmp_path: Path, jdbc_jars: Jars
) -> None:
    """Each ends what the other does. It holds a row meanwhile: H2 does not survive both."""
    command = ["java", "-cp", *jdbc_jars.h2, "org.h2.tools.Server", "-tcp", "-tcpPort", "0", "-ifNotExists"]
    with subprocess.Popen([*command, "-baseDir", str(tmp_path)], stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout is not None
            port = int(server.stdout.readline().partition("localhost:")[2].split()[0])
            names = (POSTGRESQL, H2_SERVED)
            site = make_site(*names, h2_port=port)
            numbers = range(1, 13)
            points = ("coordinator.prepared=kill", "coordinator.decided=kill")
            ends = site.play([(number, names, points[number % 2]) for number in numbers])
            assert ends == [KILLED] * len(numbers)
            for scan in [site.begin_scan() for _ in range(3)]:
                said, _ = scan.communicate(timeout=600)
                assert "heuristic" not in said.lower(), said
            scanned = site.scan()
            assert scanned.returncode == 0, scanned.stdout + scanned.stderr
            assert site.prepared() == []
            assert site.rows(POSTGRESQL) == site.rows(H2_SERVED) == [number for number in numbers if number % 2]
            again = site.scan()
            assert again.returncode == 0, again.stdout + again.stderr
            assert site.kept() == {}
            site.close()
        finally:
            server.kill()
