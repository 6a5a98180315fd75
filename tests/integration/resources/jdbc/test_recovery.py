"""Recovery by the daemon, which has a JVM inside, and what `txpool check` says of the drivers' traps."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.conftest import Databases
from tests.support.jdbc_places import JdbcPlaces
from tests.support.repository import ROOT
from txpool.check import check
from txpool.datasource import DataSource
from txpool.errors import ConfigurationError

if TYPE_CHECKING:
    from txpool.findings.finding import Finding

LOG = "node.name = etl-1\nlog.url = sqlite:///txlog\nlog.create = true\n"
PROGRAM = """
import txpool
from txpool import failpoints

txpool.configure("txpool.properties")
failpoints.arm("coordinator.decided", "kill")
with txpool.transaction():
    for name, one in (("orders", "%s"), ("postgresql", "?")):
        txpool.connect(f"{name}.properties").cursor().execute(f"insert into t (id) values ({one})", (1,))
"""


@pytest.mark.costly
def test_the_daemon_ends_cleanly_with_a_jvm_inside(
    jdbc_places: JdbcPlaces, databases: Databases, tmp_path: Path
) -> None:
    databases.execute("one", "create table t (id int)")
    databases.execute("two", "create table t (id int)")
    jdbc_places.file("postgresql", url=f"jdbc:postgresql://127.0.0.1:{databases.server.port}/two")
    orders = f"driver = psycopg\nurl = {databases.url('one')}\npassword = ${{env:PG}}\n"
    (tmp_path / "orders.properties").write_text(orders)
    (tmp_path / "txpool.properties").write_text(LOG)
    files = "datasources = orders.properties, postgresql.properties\nrecovery.backoff = 0\nrecovery.period = 3600\n"
    (tmp_path / "recovery.properties").write_text(LOG + files)
    environment = os.environ | {"PYTHONPATH": str(ROOT), "PG": databases.server.password}
    killed = subprocess.run([sys.executable, "-c", PROGRAM], cwd=tmp_path, env=environment, check=False)
    assert killed.returncode == -9
    assert len(databases.prepared()) == 2
    daemon = subprocess.Popen(
        [sys.executable, "-m", "recovery", "run", "--conf", "recovery.properties"],
        cwd=tmp_path,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        until = time.monotonic() + 600
        while databases.prepared() and time.monotonic() < until:
            time.sleep(0.1)
        daemon.terminate()
        output, _ = daemon.communicate(timeout=600)
    finally:
        daemon.kill()
    assert databases.prepared() == []
    assert databases.rows("one", "select id from t") == databases.rows("two", "select id from t") == [(1,)]
    assert daemon.returncode == 0, output
    assert "Traceback" not in output


def found(file: Path) -> dict[str, Finding]:
    (section,) = check(file).sections
    return {each.topic: each for each in section.findings}


@pytest.mark.parametrize("kind", ["h2", "derby", "postgresql", "mariadb"])
def test_check_knows_the_traps(jdbc_places: JdbcPlaces, kind: str) -> None:
    jdbc_places.settings(kind)
    findings = found(jdbc_places.file(kind))
    assert findings["version"].severity.value == "ok"
    assert findings["prepared"].severity.value == "ok"
    if kind == "h2":
        assert "that is refused" in findings["silent-commits"].found
        assert "open in one process at a time" in findings["one-process"].found
        accepting = found(jdbc_places.file(kind, **{"h2.accept": "silent-commits"}))
        assert accepting["silent-commits"].severity.value == "warning"


def test_an_unknown_setter_names_the_nearest(jdbc_places: JdbcPlaces) -> None:
    for line, says in (
        ("databseName", "did you mean databaseName?"),
        ("maximumPoolSize", "that is HikariCP's"),
        ("loginTimeout", "loginTimeout is no int"),
    ):
        source = DataSource.from_settings(jdbc_places.settings("derby", name=line, **{line: "hunter2"}))
        with source, pytest.raises(ConfigurationError) as raised:
            source.connect()
        assert says in str(raised.value)
        assert "hunter2" not in str(raised.value)


def test_all_unknown_setters_are_told_at_once(jdbc_places: JdbcPlaces) -> None:
    keys = {"maxLifetime": "-1", "idleTimeout": "600000", "databseName": "x"}
    source = DataSource.from_settings(jdbc_places.settings("derby", **keys))
    with source, pytest.raises(ConfigurationError) as raised:
        source.connect()
    shown = str(raised.value)
    assert "maxLifetime: that is HikariCP's, in milliseconds; write pool.max-lifetime = none" in shown
    assert "write pool.idle-timeout = 600000ms" in shown
    assert "did you mean databaseName?" in shown


def test_only_an_administrator_of_h2_prepares(jdbc_places: JdbcPlaces) -> None:
    """Anybody else would list nothing, and the end of a branch of another session would be refused."""
    source = jdbc_places.open("h2")
    jdbc_places.execute(source, "create user app password 'change me'")
    with (
        DataSource.from_settings(jdbc_places.settings("h2", name="app", User="app", Password="change me")) as app,
        pytest.raises(ConfigurationError, match="only an administrator of the database"),
    ):
        app.connect()
