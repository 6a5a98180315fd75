"""A resource manager that another package brings, found by its entry point, beside PostgreSQL in one transaction."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import Databases
from tests.support.repository import ROOT
from txpool.resource_managers import BUILT_IN

PASSWORD = "TXPOOL_TEST_OUTSIDE"  # the name of a variable
WRITER = """
import sys
import txpool

txpool.configure("txpool.properties")
cursors = [txpool.connect(f"{name}.properties").cursor() for name in ("one", "two")]
with txpool.transaction():
    for cursor in cursors:
        cursor.execute("insert into t values (%s)", [int(sys.argv[1])])
    if "fail" in sys.argv:
        cursor.execute("insert into nowhere values (1)")
print("committed")
"""


PLAIN = """
import txpool
connection = txpool.connect("two.properties")
datasource = connection.datasource
cursor = connection.cursor()
cursor.execute("select 1 as a, 'x'::varchar as b")
assert [txpool.STRING == code for _, code, *_ in cursor.description] == [False, True]
assert hasattr(cursor, "callproc") and not hasattr(cursor, "nextset") and not hasattr(cursor, "lastrowid")
connection.rollback()

def refused(kind, use):
    try:
        use()
    except kind as error:
        return str(error)
    raise AssertionError("not refused")

connection.tpc_begin(connection.xid(0, "mine", ""))
cursor.execute("insert into t values (1)")
connection.tpc_prepare()
with txpool.transaction():
    assert "open work of its own" in refused(txpool.ProgrammingError, lambda: cursor.execute("select 1"))
connection.tpc_commit()
connection.commit()
assert "of txpool's own" in refused(
    txpool.ProgrammingError, lambda: connection.tpc_begin(connection.xid(0, "txp1:node:abcdefghijkl:1", "0:two:L"))
)
with txpool.transaction():
    assert "prepares" in refused(txpool.NotSupportedError, connection.tpc_recover)
connection.close()
assert datasource.statistics().size == 0  # nobody knows whether its reset ends what tpc_begin() has begun
assert "closed" in refused(txpool.InterfaceError, connection.cursor)
assert not hasattr(connection, "nonsense")
with txpool.transaction(isolation="serializable") as tx:
    assert f"two cannot join {tx.gtrid}" in refused(txpool.ProgrammingError, lambda: txpool.connect("two.properties"))
options = {"name": "x", "driver": "pg8000", "mode": "local", "url": datasource.url}
assert "PostgreSQL over pg8000" in refused(
    txpool.ConfigurationError, lambda: txpool.DataSource(**options, transaction_read_only=True)
)
print("done")
"""


class Outside:
    """A folder with a configuration, and a package beside it that brings the driver pg8000."""

    def __init__(self, folder: Path, databases: Databases) -> None:
        self.folder = folder
        self.databases = databases
        packages = folder / "packages"
        metadata = packages / "over_pg8000-1.0.dist-info"
        metadata.mkdir(parents=True)
        shutil.copy(Path(__file__).with_name("over_pg8000.py"), packages)
        (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: over-pg8000\nVersion: 1.0\n")
        (metadata / "entry_points.txt").write_text("[txpool.resource_managers]\npg8000 = over_pg8000:MANAGER\n")
        secret = f"password = ${{env:{PASSWORD}}}"
        for name in ("one", "two"):
            databases.execute(name, "create table t (id int)")
        self.write("one", f"driver = psycopg\nurl = {databases.url('one')}\n{secret}")
        url = databases.url("two").replace("postgresql://", "pg8000://")
        self.write("two", f"driver = pg8000\nurl = {url}\n{secret}")
        self.write("txpool", "node.name = etl-1\nlog.url = sqlite:///txlog\nlog.create = true")
        self.write(
            "recovery",
            "node.name = etl-1\nlog.url = sqlite:///txlog\nrecovery.backoff = 0\n"
            "datasources = one.properties, two.properties",
        )

    def write(self, name: str, text: str) -> None:
        (self.folder / f"{name}.properties").write_text(f"{text}\n")

    def run(self, *arguments: str, failpoints: str = "") -> subprocess.CompletedProcess[str]:
        environment = os.environ | {
            "PYTHONPATH": os.pathsep.join((str(ROOT), str(self.folder / "packages"))),
            "TXPOOL_FAILPOINTS": failpoints,
            PASSWORD: self.databases.server.password,
        }
        return subprocess.run(
            [sys.executable, *arguments],
            cwd=self.folder,
            env=environment,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )

    def rows(self) -> tuple[list[int], list[int]]:
        one, two = (self.databases.rows(name, "select id from t order by id") for name in ("one", "two"))
        return [row for (row,) in one], [row for (row,) in two]


@pytest.fixture
def outside(tmp_path: Path, databases: Databases) -> Outside:
    return Outside(tmp_path, databases)


def test_it_takes_part_with_postgresql(outside: Outside) -> None:
    done = outside.run("-c", WRITER, "1")
    assert done.stdout == "committed\n", done.stderr
    failed = outside.run("-c", WRITER, "2", "fail")
    assert failed.returncode == 1
    assert "nowhere" in failed.stderr
    assert outside.rows() == ([1], [1])
    assert outside.databases.prepared() == []


def test_one_that_was_written_for_b2d6ccd_takes_part_with_a_warning(outside: Outside) -> None:
    module = outside.folder / "packages" / "over_pg8000.py"
    text = module.read_text().replace("resources.database import Database", "resources.manager import ResourceManager")
    module.write_text(text.replace("OverPg8000(Database)", "OverPg8000(ResourceManager)"))
    done = outside.run("-W", "default::DeprecationWarning", "-c", WRITER, "1")
    assert done.stdout == "committed\n", done.stderr
    assert "OverPg8000 is deprecated" in done.stderr
    assert "derive it from txpool.resource.Database" in done.stderr
    assert outside.rows() == ([1], [1])


# It blocks, so that its COMMIT PREPARED has been answered where PostgreSQL's has only been sent.
@pytest.mark.parametrize(
    ("point", "left", "rows"),
    [("coordinator.prepared", 2, []), ("coordinator.decided", 2, [3]), ("coordinator.one-committed", 0, [3])],
)
def test_it_is_recovered(outside: Outside, point: str, left: int, rows: list[int]) -> None:
    killed = outside.run("-c", WRITER, "3", failpoints=f"{point}=kill")
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    assert len(outside.databases.prepared()) == left
    scanned = outside.run("-m", "recovery", "scan", "--conf", "recovery.properties")
    assert scanned.returncode == 0, scanned.stdout + scanned.stderr
    assert outside.rows() == (rows, rows)
    assert outside.databases.prepared() == []


@pytest.mark.costly
def test_what_it_says_is_heard(outside: Outside) -> None:
    checked = outside.run("-m", "txpool", "check", "two.properties")
    assert "PostgreSQL over pg8000 answers" in checked.stdout, checked.stdout + checked.stderr
    outside.write("three", "driver = oracle\nurl = oracle://a/b")
    refused = outside.run("-m", "txpool", "check", "three.properties")
    assert " or ".join([*BUILT_IN, "pg8000"]) in refused.stdout
    outside.write("four", "driver = pg8000\nmode = cmr\nurl = pg8000://a/b")
    refused = outside.run("-m", "txpool", "check", "four.properties")
    assert "Write mode = xa or local" in refused.stdout
    outside.write("five", "driver = pg8000\nurl = pg8000://u:secret-word@a/b?sslmode=on")
    refused = outside.run("-m", "txpool", "check", "five.properties")
    assert "has a parameter that PostgreSQL over pg8000 does not know" in refused.stdout
    assert "secret-word" not in refused.stdout + refused.stderr


def test_its_errors_are_findings(outside: Outside) -> None:
    outside.databases.server.stop()
    try:
        checked = outside.run("-m", "txpool", "check", "two.properties")
    finally:
        outside.databases.server.start()
    assert "Traceback" not in checked.stderr, checked.stderr
    assert "the check ended early" in checked.stdout


def test_its_password_in_the_url_is_taken_out(outside: Outside) -> None:
    url = outside.databases.url("two").replace("postgresql://", "pg8000://")
    scheme, _, rest = url.partition("://")
    user, _, where = rest.partition("@")
    outside.write("two", f"driver = pg8000\nurl = {scheme}://{user}:${{env:{PASSWORD}}}@{where}")
    done = outside.run("-c", WRITER, "4")
    assert done.stdout == "committed\n", done.stderr
    assert outside.rows() == ([4], [4])


def test_its_plain_connection(outside: Outside) -> None:
    done = outside.run("-c", PLAIN)
    assert done.stdout == "done\n", done.stderr
    assert outside.rows() == ([], [1])
    assert outside.databases.prepared() == []
