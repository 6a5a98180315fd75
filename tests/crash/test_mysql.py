"""MariaDB and MySQL beside PostgreSQL: killed and raised at every failpoint, and recovered by the command.

Half of the combinations, others with each seed (TXPOOL_CRASH_SEED); all with TXPOOL_CRASH_FULL=1.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.conftest import Databases
from tests.crash import eventually as places
from tests.crash.eventually import Eventually
from tests.crash.folder_site import KILLED
from tests.crash.mysql_site import FILE, MARIADB, MARKED, MYSQL, POSTGRESQL, Site
from tests.crash.test_failpoints_sweep import IN_ANY, IN_THE_LOG, IN_THE_MARK
from tests.support.mysql import MySQLServer

if TYPE_CHECKING:
    from tests.support.mysql import RequireDriver

SHAPES = [(POSTGRESQL, MARIADB), (MARIADB, MYSQL), (POSTGRESQL, MARIADB, MYSQL)]
SHAPES += [(POSTGRESQL, name) for name in MARKED]
# The names of MariaDB's and MySQL's branches say that the log decides: a pointer says otherwise.
SHAPES += [(MARIADB, FILE), (MYSQL, "maria-ledger"), (POSTGRESQL, MARIADB, "mysql-ledger")]


@pytest.fixture
def site(
    tmp_path: Path,
    databases: Databases,
    mariadb: MySQLServer,
    mysql8: MySQLServer,
    require_driver: RequireDriver,
    eventually: Eventually,
) -> Site:
    require_driver("mysqlclient")
    site = Site(tmp_path, databases, mariadb, mysql8)
    eventually.in_the(places.folder_site(site, databases, [mariadb, mysql8]))
    return site


@pytest.mark.part(3)
@pytest.mark.parametrize("names", SHAPES, ids="+".join)
def test_every_point(site: Site, names: tuple[str, ...]) -> None:
    scenarios = []
    marked = names[-1].endswith("ledger")
    for before, point, committed in (*IN_ANY, *(IN_THE_MARK if marked else IN_THE_LOG)):
        for nth in range(1, len(names) + (not marked) if point.startswith("branch.") else 2):
            for action in ("kill", "raise"):
                armed = f"{before}, {point}={action}@{nth}".removeprefix(", ")
                scenarios.append((armed, committed, action))
    found = site.survive((names, scenarios))
    assert {name: site.rows(name) for name in names} == found


@pytest.mark.costly
@pytest.mark.parametrize("mode", ["fast", "immediate"])
@pytest.mark.parametrize(("point", "committed"), [("coordinator.prepared", False), ("coordinator.decided", True)])
def test_the_servers_restart_before_recovery(site: Site, mode: str, point: str, committed: bool) -> None:
    names = (POSTGRESQL, MARIADB, MYSQL)
    assert site.play([(1, names, f"{point}=kill")]) == [KILLED]
    for server in site.servers.values():
        server.restart(mode)
    assert len(site.prepared()) == 3
    scanned = site.scan()
    assert scanned.returncode == 0, scanned.stdout + scanned.stderr
    assert [site.rows(name) for name in names] == [[1] if committed else []] * 3
    assert site.prepared() == []


@pytest.mark.costly
def test_recovery_while_a_server_is_away(site: Site) -> None:
    names = (POSTGRESQL, MARIADB, MYSQL)
    assert site.play([(1, names, "coordinator.decided=kill")]) == [KILLED]
    site.servers[MARIADB].stop("immediate")
    away = site.scan()
    assert away.returncode != 0
    assert site.rows(POSTGRESQL) == site.rows(MYSQL) == [1]
    site.servers[MARIADB].start()
    back = site.scan()
    assert back.returncode == 0, back.stdout + back.stderr
    assert [site.rows(name) for name in names] == [[1]] * 3
    assert site.prepared() == []
