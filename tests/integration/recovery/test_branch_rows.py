"""`xa.evidence = row`: how a branch has ended that is gone, on servers that tell it, and on those that do not."""

from __future__ import annotations

import os
import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psycopg
import pymysql
import pytest

import txpool
from recovery.manager import RecoveryManager
from tests.integration.check.place import checked
from tests.support import preloaded
from tests.support.mysql import MySQLServer, literal
from txpool import failpoints
from txpool.config.settings import DataSourceSettings, RecoverySettings
from txpool.resources.driver.making import make_driver
from txpool.resources.marked.branch_rows import BranchRows
from txpool.setup.stores import initialise
from txpool.tm.manager import get_manager
from txpool.xid import make_gtrid, make_xid, split_gtrid

if TYPE_CHECKING:
    from tests.conftest import Databases

pytestmark = pytest.mark.part(2)

NAMES = ("pg", "maria")
PASSWORDS = {"pg": "TXPOOL_TEST_PG_PASSWORD", "maria": "TXPOOL_TEST_MARIA_PASSWORD"}
#: A process that is killed at a failpoint of its transaction; the number is its row.
_KILLED = """
import os, sys
import txpool
from txpool import failpoints
folder, point, number = sys.argv[1:]
txpool.configure(folder + "/txpool.properties")
failpoints.arm(point, lambda: os.kill(os.getpid(), 9))
with txpool.transaction():
    for name in ("pg", "maria"):
        txpool.connect(f"{folder}/{name}.properties").cursor().execute(f"insert into work values ({number})")
"""


class Site:
    """PostgreSQL and MariaDB, whose branches write rows; a log, and recovery."""

    def __init__(self, folder: Path, databases: Databases, mariadb: MySQLServer) -> None:
        self.folder, self.databases, self.server = folder, databases, mariadb
        databases.execute("one", "create table work (id int primary key)")
        mariadb.execute("create table work (id int primary key) engine=innodb", database="one")
        urls = {"pg": ("psycopg", databases.url("one")), "maria": ("pymysql", mariadb.url("one"))}
        for name, (driver, url) in urls.items():
            text = f"driver = {driver}\nurl = {url}\npassword = ${{env:{PASSWORDS[name]}}}\nxa.evidence = row\n"
            (folder / f"{name}.properties").write_text(text)
        log = f"node.name = tests\nlog.url = sqlite:///{folder}/log\nlog.create = true\n"
        (folder / "txpool.properties").write_text(log)
        self.conf = folder / "recovery.properties"
        self.conf.write_text(f"{log}recovery.backoff = 0\ndatasources = pg.properties, maria.properties\n")

    def insert(self, number: int) -> None:
        for name in NAMES:
            txpool.connect(self.folder / f"{name}.properties").cursor().execute(f"insert into work values ({number})")

    def killed(self, point: str, number: int) -> None:
        """Run a process up to this point of its transaction."""
        command = ("-c", _KILLED, str(self.folder), point, str(number))
        assert preloaded.run(*command, cwd=self.folder, env=os.environ).returncode == -9

    def read(self, query: str) -> list[list[Any]]:
        """The first columns that a query finds in either database."""
        found = [self.databases.rows("one", query), self.server.execute(query, database="one")]  # type: ignore[arg-type]
        return [[row[0] for row in rows] for rows in found]

    def landed(self) -> list[list[int]]:
        return self.read("select id from work order by id")

    def rows(self) -> list[int]:
        """How many rows of branches either database has."""
        return [len(each) for each in self.read("select xid from txpool_branches where kind = 'commit'")]

    def prepared(self) -> list[str]:
        return [*self.databases.prepared(), *self.server.names()]

    def by_hand(self, name: str, verb: str) -> None:
        """What an administrator does to the one branch that is prepared there."""
        if name == "pg":
            (gid,) = self.databases.prepared()
            with psycopg.connect(self.databases.dsn("one"), autocommit=True) as connection:
                connection.execute(psycopg.sql.SQL("{} prepared {}").format(psycopg.sql.SQL(verb), gid))  # type: ignore[arg-type]
            return
        self.kill_sessions()
        ((form, length, _, data),) = self.server.prepared()
        until = time.monotonic() + 600
        while True:
            try:
                self.server.execute(f"xa {verb} {literal(data, length)}, {form}")
            except pymysql.Error:
                assert time.monotonic() < until
                time.sleep(0.05)
            else:
                return

    def kill_sessions(self) -> None:
        """While the session that has prepared a branch of MariaDB is connected, nobody else ends the branch."""
        query = "select id from information_schema.processlist where id <> connection_id() and db = 'one'"
        for (session,) in self.server.execute(query):
            with suppress(pymysql.Error):
                self.server.execute(f"kill {session}")

    def add_ledger(self) -> None:
        """A marked datasource, which decides."""
        text = f"driver = sqlite3\nurl = sqlite:///{self.folder}/ledger.db\nmode = cmr\n"
        (self.folder / "ledger.properties").write_text(text)
        self.conf.write_text(self.conf.read_text().replace("maria.properties", "maria.properties, ledger.properties"))
        initialise(RecoverySettings.load(self.conf))
        with closing(sqlite3.connect(self.folder / "ledger.db")) as ledger:
            ledger.execute("create table work (id int primary key)")

    def insert_in_ledger(self, number: int) -> None:
        txpool.connect(self.folder / "ledger.properties").cursor().execute(f"insert into work values ({number})")

    def scan(self) -> dict[str, str]:
        """How databases have ended otherwise, as one scan of recovery finds it."""
        return {each.datasource: each.ended for each in RecoveryManager(self.conf).scan().heuristics}


@pytest.fixture
def site(tmp_path: Path, databases: Databases, mariadb: MySQLServer, monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    monkeypatch.setenv(PASSWORDS["pg"], databases.server.password)
    monkeypatch.setenv(PASSWORDS["maria"], mariadb.password)
    mariadb.empty()
    site = Site(tmp_path, databases, mariadb)
    steps = initialise(RecoverySettings.load(site.conf))
    assert [step.text for step in steps[1:]] == [
        f"datasource {name}: the table txpool_branches was created" for name in NAMES
    ]
    txpool.configure(tmp_path / "txpool.properties")
    try:
        yield site
    finally:
        failpoints.disarm()
        for name in NAMES:
            txpool.DataSource.from_properties(tmp_path / f"{name}.properties").close()
        txpool.configure()


def end_at(point: str, act: Callable[[], object]) -> None:
    """Arm a failpoint, which acts once."""

    def once() -> None:
        failpoints.disarm()
        act()

    failpoints.arm(point, once)


def test_each_branch_has_a_row_until_its_decision_is_forgotten(site: Site) -> None:
    for number in range(3):
        with txpool.transaction():
            site.insert(number)
    assert (site.landed(), site.rows()) == ([[0, 1, 2]] * 2, [3, 3])
    assert site.scan() == {}
    assert site.rows() == [3, 3], "the process is alive, and deletes them itself"
    for name in NAMES:
        txpool.DataSource.from_properties(site.folder / f"{name}.properties").close()
    assert site.rows() == [0, 0]


@pytest.mark.parametrize("name", NAMES)
def test_a_rollback_by_hand_before_the_commit_is_told(site: Site, name: str) -> None:
    end_at("coordinator.decided", lambda: site.by_hand(name, "rollback"))
    with pytest.raises(txpool.HeuristicMixed), txpool.transaction():
        site.insert(1)
    kept = {"pg": [[], [1]], "maria": [[1], []]}[name]
    assert (site.landed(), site.prepared()) == (kept, [])
    assert site.scan() == {}, "it is recorded already"


@pytest.mark.parametrize("name", NAMES)
def test_a_commit_by_hand_before_the_commit_is_none(site: Site, name: str) -> None:
    end_at("coordinator.decided", lambda: site.by_hand(name, "commit"))
    with txpool.transaction():
        site.insert(1)
    assert (site.landed(), site.prepared(), site.scan()) == ([[1], [1]], [], {})


@pytest.mark.parametrize("name", NAMES)
def test_a_commit_by_hand_before_the_rollback_is_told(site: Site, name: str) -> None:
    def commit_and_fail() -> None:
        site.by_hand(name, "commit")
        raise OSError("before the decision")

    end_at("coordinator.prepared", commit_and_fail)
    with pytest.raises(txpool.HeuristicMixed), txpool.transaction():
        site.insert(1)
    assert site.landed() == {"pg": [[1], []], "maria": [[], [1]]}[name]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("verb", ["commit", "rollback"])
def test_what_was_done_by_hand_before_recovery_came(site: Site, name: str, verb: str) -> None:
    site.killed("coordinator.decided", 1)
    site.by_hand(name, verb)
    assert site.scan() == ({name: "rolled back"} if verb == "rollback" else {})
    assert site.landed() == ([[1], [1]] if verb == "commit" else {"pg": [[], [1]], "maria": [[1], []]}[name])
    assert (site.scan(), site.prepared()) == ({}, [])


def test_recovery_deletes_the_rows_of_the_dead_and_no_others(site: Site) -> None:
    with txpool.transaction():
        site.insert(1)
    site.killed("coordinator.committed", 2)
    site.killed("coordinator.decided", 3)
    assert site.rows() == [2, 2]
    assert site.scan() == {}
    assert site.scan() == {}
    assert (site.landed(), site.rows()) == ([[1, 2, 3]] * 2, [1, 1])


def test_no_row_is_no_rollback_where_another_recovery_has_deleted_it(site: Site) -> None:
    """It has committed, forgotten the decision and deleted the rows, while this one still has the decision in hand."""
    site.killed("coordinator.decided", 1)

    def finish_first() -> None:
        assert [site.scan() for _ in range(3)] == [{}, {}, {}]
        assert (site.landed(), site.rows()) == ([[1], [1]], [0, 0])

    end_at("recovery.read", finish_first)
    assert site.scan() == {}


def test_a_row_is_deleted_after_its_decision_and_not_before(site: Site) -> None:
    """The log forgets lazily: what a killed process has not written yet, recovery finds decided, and asks for rows."""

    def decisions() -> int:
        with closing(sqlite3.connect(site.folder / "log" / "log.db")) as log:
            return int(log.execute("select count(*) from decisions where branches is not null").fetchone()[0])

    with txpool.transaction():
        site.insert(1)
    assert (decisions(), site.rows()) == (1, [1, 1])
    txpool.DataSource.from_properties(site.folder / "pg.properties").close()
    assert (decisions(), site.rows()) == (0, [0, 1])


@pytest.mark.parametrize("name", NAMES)
def test_without_the_table_nothing_is_prepared(site: Site, name: str) -> None:
    with txpool.transaction():
        site.insert(1)
    if name == "pg":
        site.databases.execute("one", "drop table txpool_branches")
    else:
        site.server.execute("drop table txpool_branches", database="one")
    with pytest.raises(txpool.Error), txpool.transaction():
        site.insert(2)
    assert (site.landed(), site.prepared()) == ([[1], [1]], [])
    txpool.DataSource.from_properties(site.folder / f"{name}.properties").close()
    missing = "no table txpool_branches, which holds the rows"
    with pytest.raises(txpool.ConfigurationError, match=missing), txpool.transaction():
        site.insert(3)


def test_a_table_that_was_made_anew_proves_nothing(site: Site) -> None:
    def replace() -> None:
        site.by_hand("maria", "rollback")
        site.server.execute("drop table txpool_branches", database="one")
        initialise(RecoverySettings.load(site.conf))

    end_at("coordinator.decided", replace)
    with pytest.raises(txpool.HeuristicHazard), txpool.transaction():
        site.insert(1)
    with txpool.transaction():
        site.insert(2)
    txpool.DataSource.from_properties(site.folder / "maria.properties").close()
    assert site.rows()[1] == 0, "rows of the new table are deleted as well"


def test_rows_that_recovery_cannot_read_are_an_error_of_its_scan(site: Site) -> None:
    site.server.execute("drop table txpool_branches", database="one")
    ((step, error),) = RecoveryManager(site.conf).scan().errors.items()
    assert step == "rows maria"
    assert "txpool_branches" in error


def test_the_check_asks_for_the_table_and_its_grants(site: Site) -> None:
    def found(name: str, topic: str) -> list[tuple[str, str]]:
        about = checked(site.folder / f"{name}.properties").about(topic)
        return [(each["severity"], each["do"]) for each in about]

    assert [found(name, "rows") for name in NAMES] == [[("ok", "")]] * 2
    site.databases.execute("one", "grant insert on txpool_branches to public")
    (forgeable,) = (do for _, do in found("pg", "grants") if "txpool_branches" in do)
    assert "REVOKE" in forgeable
    site.server.execute("create user few@'%' identified by 'few'", "grant select on one.* to few@'%'")
    file = site.folder / "maria.properties"
    text = file.read_text()
    file.write_text(text.replace("txpool@", "few@").replace(f"${{env:{PASSWORDS['maria']}}}", "few"))
    file.chmod(0o600)
    ((severity, do),) = [each for each in found("maria", "privileges") if "txpool_branches" in each[1]]
    assert (severity, do) == (
        "wrong",
        "GRANT SELECT, INSERT, DELETE ON `one`.`txpool_branches` TO 'few'@'%';",
    )
    file.write_text(f"{text}recovery.user = few\nrecovery.password = few\n")
    grants = [do for _, do in found("maria", "privileges") if "txpool_branches" in do]
    assert grants == ["GRANT SELECT, DELETE ON `one`.`txpool_branches` TO 'few'@'%';"]
    file.write_text(text)
    for name in NAMES:
        file = site.folder / f"{name}.properties"
        file.write_text(f"{file.read_text()}xa.evidence.table = elsewhere\n")
        assert [severity for severity, _ in found(name, "table")] == ["wrong"]


def test_where_no_branch_prepares_the_key_is_refused() -> None:
    options: dict[str, Any] = {"name": "x", "driver": "pymysql", "url": "mysql://x@localhost/x"}
    with pytest.raises(txpool.ConfigurationError, match=r"xa\.evidence.* is no use: mode = cmr prepares nothing"):
        DataSourceSettings.load(**options, mode="cmr", xa_evidence="row")


def test_rows_are_deleted_while_another_branch_is_prepared(mariadb: MySQLServer) -> None:
    """For many keys at once a server reads the whole table, and waits for the row that is not committed yet."""
    server = mariadb
    server.empty()
    options = {"name": "rows", "driver": "pymysql", "url": server.url("one"), "xa_evidence": "row"}
    driver = make_driver(DataSourceSettings.load(**options, password=server.password))
    rows = BranchRows("rows", driver, "txpool_branches", lock_timeout=1)  # type: ignore[arg-type]
    rows.create()
    xids = [make_xid(make_gtrid("tests", "a" * 12, number), 0, "rows") for number in range(9)]
    other = make_xid(make_gtrid("tests", "a" * 12, 9), 0, "rows")
    server.execute(*map(rows.insert, xids), database="one")
    server.execute("xa start 'other'", rows.insert(other), "xa end 'other'", "xa prepare 'other'", database="one")
    try:
        rows.delete([xid.joined for xid in xids])
    finally:
        server.execute("xa rollback 'other'")
    assert rows.xids() == []


def fence() -> None:
    """Fence this process, as recovery does with one that has lost its lease."""
    manager, transaction = get_manager(), txpool.current()
    assert manager.log is not None
    assert transaction is not None
    manager.log.fence(split_gtrid(transaction.gtrid).incarnation)


def test_a_fenced_process_tells_what_recovery_has_found(site: Site) -> None:
    """Recovery has met a rollback by hand, committed the other branch, and forgotten the decision."""

    def overtaken() -> None:
        site.by_hand("pg", "rollback")
        site.kill_sessions()
        fence()
        assert site.scan() == {"pg": "rolled back"}
        assert site.landed() == [[], [1]]

    end_at("coordinator.decided", overtaken)
    with pytest.raises(txpool.HeuristicMixed), txpool.transaction():
        site.insert(1)


def test_where_a_mark_decides_that_is_still_there_recovery_has_not_completed(site: Site) -> None:
    site.add_ledger()

    def rolled_back() -> None:
        site.by_hand("pg", "rollback")
        fence()

    end_at("coordinator.decided", rolled_back)
    with pytest.raises(txpool.HeuristicMixed), txpool.transaction():
        site.insert(1)
        site.insert_in_ledger(1)
    assert site.landed() == [[], [1]]


def test_where_a_mark_decides_its_process_deletes_the_rows_after_it(site: Site) -> None:
    site.add_ledger()

    def marks() -> int:
        with closing(sqlite3.connect(site.folder / "ledger.db")) as ledger:
            return int(ledger.execute("select count(*) from xids where kind = 'commit'").fetchone()[0])

    for number in range(2):
        with txpool.transaction():
            site.insert(number)
            site.insert_in_ledger(number)
    assert (marks(), site.rows()) == (1, [2, 2])
    txpool.DataSource.from_properties(site.folder / "pg.properties").close()
    assert (marks(), site.rows()) == (0, [0, 2])


def test_a_temporary_table_that_hides_the_table_is_refused(site: Site) -> None:
    with pytest.raises(txpool.TransactionRolledBack, match="a temporary table hides"), txpool.transaction():
        site.insert(1)
        cursor = txpool.connect(site.folder / "maria.properties").cursor()
        cursor.execute("create temporary table txpool_branches as select * from txpool_branches")
    assert (site.landed(), site.prepared()) == ([[], []], [])
