"""What a killed process leaves beside DuckDB: the file's mark decides, once that process has ended, or within it."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import Any

import duckdb
import pytest

import txpool
from recovery import RecoveryManager
from tests.integration.check.place import checked
from tests.support.recovery_site import BOTH, WRITER, Site
from txpool.cli import TxpoolExitCode
from txpool.config.settings import RecoverySettings
from txpool.datasource import DataSource
from txpool.setup.stores import initialise

POINTS = {"coordinator.prepared": 0, "marked.commit": 0, "marked.committed": 1, "coordinator.one-committed": 1}


@pytest.fixture
def site(tmp_path: Path, databases: Any) -> Site:
    site = Site(tmp_path, databases)
    site.write("ducks", "driver = duckdb\nmode = cmr\nurl = duckdb:///ducks.duckdb")
    text = site.conf.read_text().replace("ledger.properties", "ducks.properties")
    site.write("recovery", text)
    with closing(duckdb.connect(str(tmp_path / "ducks.duckdb"))) as connection:
        connection.execute("create table t (id int)")
    initialise(RecoverySettings.load(site.conf))
    return site


def count(site: Site) -> int:
    with closing(duckdb.connect(str(site.folder / "ducks.duckdb"))) as connection:
        return int(connection.execute("select count(*) from t").fetchall()[0][0])


@pytest.mark.costly
def test_a_process_that_is_killed(site: Site) -> None:
    expected = 0
    for point, written in POINTS.items():
        site.killed(WRITER, *BOTH, "ducks", failpoints=f"{point}=kill")
        with closing(site.manager()) as manager:
            report = manager.scan()
        expected += written
        assert not report.unreachable
        assert (count(site), site.counts()["one"], site.counts()["two"]) == (expected,) * 3, point
        assert site.databases.prepared() == []
    with closing(duckdb.connect(str(site.folder / "ducks.duckdb"))) as connection:
        assert connection.execute("select xid from xids where kind = 'commit'").fetchall() == []


def test_while_another_process_has_the_file(site: Site) -> None:
    """Nothing is decided meanwhile, and recovery and the check say why."""
    process = site.process(WRITER, *BOTH, "ducks", failpoints="coordinator.decided=hang")
    try:
        while len(site.databases.prepared()) < len(BOTH):
            assert process.poll() is None
        with closing(site.manager()) as manager:
            report = manager.scan()
        assert "another process has" in report.unreachable["ducks"]
        assert "Recovery reaches the file once that process has ended, or within it" in report.unreachable["ducks"]
        answer = checked(site.folder / "ducks.properties")
        assert (answer.code, answer.bad) == (TxpoolExitCode.WARNING, ["lock"])
    finally:
        process.kill()
        process.communicate()
    with closing(site.manager()) as manager:
        manager.scan()
    assert (count(site), site.counts()["one"]) == (1, 1)


def test_within_the_process_that_has_the_file(site: Site) -> None:
    txpool.configure(site.folder / "txpool.properties")
    try:
        with DataSource.from_properties(site.folder / "ducks.properties") as ducks, closing(ducks.connect()) as held:
            held.execute("insert into t values (1)")
            with closing(RecoveryManager(site.conf)) as manager:
                assert not manager.scan().unreachable
    finally:
        txpool.configure()


def test_the_check_of_a_file(site: Site) -> None:
    file = site.folder / "ducks.properties"
    assert checked(file).bad == []
    assert "table xids is right, and holds no marks" in checked(file).about("marks", "ok")[0]["found"]
    with closing(duckdb.connect(str(site.folder / "ducks.duckdb"))) as connection:
        connection.execute("create table right_one as select * from xids")
        connection.execute("drop table xids")
    assert "there is no table xids" in checked(file).about("table")[0]["found"]
    with closing(duckdb.connect(str(site.folder / "ducks.duckdb"))) as connection:
        connection.execute("create table xids as select * from right_one")
    (wrong,) = checked(file).about("table")
    assert "xids has no unique key on xid alone" in wrong["found"]
    with closing(duckdb.connect(str(site.folder / "ducks.duckdb"))) as connection:
        connection.execute(wrong["do"])
    assert checked(file).bad == []
    (site.folder / "ducks.duckdb").unlink()
    answer = checked(file)
    assert (answer.code, "does not exist" in answer.about("connection")[0]["found"]) == (
        TxpoolExitCode.UNREACHABLE,
        True,
    )
    with closing(site.manager()) as manager:
        assert "is no file, and recovery makes none" in manager.scan().unreachable["ducks"]
