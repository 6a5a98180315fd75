"""The file of Narayana's transactional driver, as its documents print it: in a transaction, and recovered."""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.conftest import Databases
from tests.support.repository import ROOT

if TYPE_CHECKING:
    from tests.support.jdbc import Jars

SEED = """\
# implementation of XADataSource
xaDataSourceClassName=org.h2.jdbcx.JdbcDataSource
# properties which will be invoked on dynamically created XADataSource as setters.
# For example there will be call
# JdbcDataSource.setURL("jdbc:h2:mem:test1;DB_CLOSE_DELAY=-1")
URL=jdbc:h2:mem:test1;DB_CLOSE_DELAY=-1
User=sa
Password=sa
"""
PROGRAM = """
import sqlite3, sys
import txpool
from txpool import failpoints

txpool.configure("txpool.properties")
with txpool.connect("ds.properties") as connection:
    connection.cursor().execute("create table test (number int, name varchar(20))")
for number in (43, 44):
    try:
        with txpool.transaction():
            txpool.connect("ds.properties").cursor().execute("insert into test values (?, ?)", (number, "Narayana"))
            txpool.connect("ledger.properties").cursor().execute("insert into t values (?)", (number,))
            txpool.connect("orders.properties").cursor().execute("insert into t values (%s)", (number,))
            if number == 44:
                raise ZeroDivisionError
    except ZeroDivisionError:
        pass
cursor = txpool.connect("ds.properties").cursor()
cursor.execute("select number, name from test")
print(cursor.fetchall(), flush=True)
if sys.argv[1:]:
    failpoints.arm(sys.argv[1], "kill")
    with txpool.transaction():
        txpool.connect("ds.properties").cursor().execute("insert into test values (?, ?)", (45, "Narayana"))
        txpool.connect("orders.properties").cursor().execute("insert into t values (%s)", (45,))
"""


class Place:
    """A folder with the seed's file, a ledger in SQLite and orders in PostgreSQL."""

    def __init__(self, folder: Path, databases: Databases, jars: Jars) -> None:
        self.folder = folder
        self.databases = databases
        databases.execute("one", "create table t (id int)")
        with closing(sqlite3.connect(folder / "ledger.db")) as file:
            file.execute("create table t (id int)")
        log = "node.name = etl-1\nlog.url = sqlite:///txlog\nlog.create = true\n"
        files = {
            "ds": SEED,
            "ledger": "driver = sqlite3\nmode = cmr\nurl = sqlite:///ledger.db\n",
            "orders": f"driver = psycopg\nurl = {databases.url('one')}\npassword = ${{env:PG}}\n",
            "txpool": log,
            "recovery": f"{log}recovery.backoff = 0\n"
            "datasources = ds.properties, ledger.properties, orders.properties\n",
        }
        for name, text in files.items():
            (folder / f"{name}.properties").write_text(text)
        # Narayana's file says nothing of jars: they are on Java's own class path.
        self.environment = os.environ | {
            "PYTHONPATH": str(ROOT),
            "PG": databases.server.password,
            "CLASSPATH": os.pathsep.join(jars.h2),
        }

    def run(self, *command: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, *command],
            cwd=self.folder,
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )

    def ids(self) -> tuple[list[int], list[int]]:
        with closing(sqlite3.connect(self.folder / "ledger.db")) as file:
            ledger = [number for (number,) in file.execute("select id from t")]
        return ledger, [number for (number,) in self.databases.rows("one", "select id from t order by id")]


@pytest.fixture
def place(tmp_path: Path, databases: Databases, jdbc_jars: Jars) -> Place:
    place = Place(tmp_path, databases, jdbc_jars)
    made = place.run("-m", "recovery", "init", "--conf", "recovery.properties")
    assert made.returncode == 0, made.stdout + made.stderr
    return place


@pytest.mark.costly
def test_the_seeds_file_as_it_is(place: Place) -> None:
    done = place.run("-c", PROGRAM)
    assert done.stdout.splitlines() == ["[(43, 'Narayana')]"], done.stderr
    assert done.returncode == 0, done.stderr
    assert place.ids() == ([43], [43])
    assert place.databases.prepared() == []


@pytest.mark.costly
def test_it_is_recovered(place: Place) -> None:
    """The other databases get the decision. The seed's own is in a process's memory: its part is gone with that."""
    killed = place.run("-c", PROGRAM, "coordinator.decided")
    assert killed.returncode == -9, killed.stderr
    assert len(place.databases.prepared()) == 1
    scanned = place.run("-m", "recovery", "scan", "--conf", "recovery.properties")
    assert place.ids() == ([43], [43, 45]), scanned.stdout + scanned.stderr
    assert place.databases.prepared() == []
    assert scanned.returncode != 0, "people are told of it"
    assert "ds leads to another database than the one it was prepared in" in " ".join(scanned.stdout.split())
