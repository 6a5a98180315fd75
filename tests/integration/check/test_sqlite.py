"""A marked SQLite file that lacks its table, is damaged, locked, or anybody's; and where files stand."""

from __future__ import annotations

import os
import re
import sqlite3
import subprocess
import sys
import tempfile
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from recovery import RecoveryManager
from tests.integration.check.place import checked, execute
from tests.support.repository import ROOT
from txpool.cli import TxpoolExitCode
from txpool.config.settings import RecoverySettings
from txpool.findings import storage
from txpool.resources.postgresql.check import settings as server_settings
from txpool.setup.stores import initialise

if TYPE_CHECKING:
    from tests.conftest import Require


@pytest.fixture
def ledger(tmp_path: Path) -> Path:
    """The file of a marked SQLite datasource that is right; its database is ledger.db beside it."""
    path = tmp_path / "ledger.properties"
    path.write_text("driver = sqlite3\nmode = cmr\nurl = sqlite:///ledger.db\n")
    conf = tmp_path / "recovery.properties"
    conf.write_text("node.name = etl-1\nlog.url = sqlite:///txlog\ndatasources = ledger.properties\n")
    initialise(RecoverySettings.load(conf))
    execute(tmp_path / "ledger.db", "create table accounts (id integer primary key, name text)")
    assert checked(path).bad == []
    return path


# What breaks the file, the topic of the answer, what it says, and whether its advice is a statement of SQL.
DAMAGED = {
    "no table": (["drop table xids"], "table", "there is no table xids"),
    "another product's table": (
        ["drop table xids", "create table xids (xid text primary key, transactionManagerID text, actionuid text)"],
        "table",
        "xids has no column transaction_manager_id, action_uid",
    ),
    "no key": (
        ["alter table xids rename to old", "create table xids as select * from old"],
        "table",
        "xids has no unique key on xid alone",
    ),
    "a key of two columns": (
        [
            "alter table xids rename to old",
            "create table xids as select * from old",
            "create unique index two on xids (xid, kind)",
            "create unique index half on xids (xid) where kind = 'commit'",
        ],
        "table",
        "xids has no unique key on xid alone",
    ),
}


@pytest.mark.parametrize("what", DAMAGED)
def test_a_sqlite_file_without_its_marks(ledger: Path, what: str) -> None:
    breaking, topic, found = DAMAGED[what]
    execute(ledger.with_suffix(".db"), *breaking)
    answer = checked(ledger)
    assert (answer.code, answer.bad) == (TxpoolExitCode.WRONG, [topic])
    (finding,) = answer.about(topic)
    assert finding["found"].startswith(found)
    if "CREATE UNIQUE INDEX" in finding["do"]:
        execute(ledger.with_suffix(".db"), finding["do"])
        assert checked(ledger).bad == []


def test_marks_that_wait(ledger: Path) -> None:
    execute(
        ledger.with_suffix(".db"),
        "insert into xids (xid, transaction_manager_id, action_uid, kind, branches) "
        "values ('txp1:etl-1:abcdefghijkl:1', 'etl-1', 'abcdefghijkl', 'commit', '[]')",
    )
    assert "table xids is right, and holds 1 marks" in checked(ledger).about("marks", "ok")[0]["found"]


def test_a_sqlite_file_that_is_missing_is_not_made(ledger: Path) -> None:
    database = ledger.with_suffix(".db")
    database.unlink()
    answer = checked(ledger)
    assert answer.code == TxpoolExitCode.UNREACHABLE
    assert answer.about("connection")[0]["found"] == f"{database} does not exist"
    assert not database.exists()
    conf = ledger.with_name("recovery.properties")
    assert checked(conf).about("connection")[0]["found"] == f"{database} does not exist"
    assert not database.exists(), "nor by a look for what other logs have left in it"


def test_recovery_makes_no_sqlite_file_that_is_missing(ledger: Path) -> None:
    database = ledger.with_suffix(".db")
    database.unlink()
    report = RecoveryManager(ledger.with_name("recovery.properties")).scan()
    assert f"{database} is no file, and recovery makes none" in report.unreachable["ledger"]
    assert not database.exists()


def test_a_sqlite_file_that_is_damaged(ledger: Path) -> None:
    database = ledger.with_suffix(".db")
    whole = database.read_bytes()
    database.write_bytes(b"not a database, but long enough to be one" * 200)
    (nothing,) = checked(ledger).about("damage", "wrong")
    assert "file is not a database" in nothing["found"]
    with closing(sqlite3.connect(":memory:")) as connection:
        connection.deserialize(whole)
        (page,) = connection.execute("select rootpage from sqlite_master where name = 'xids'").fetchone()
    size = int.from_bytes(whole[16:18], "big")
    database.write_bytes(whole[: (page - 1) * size] + os.urandom(size) + whole[page * size :])
    answer = checked(ledger)
    assert answer.code == TxpoolExitCode.WRONG
    assert "damage" in answer.bad


def test_a_sqlite_file_that_somebody_writes(ledger: Path) -> None:
    with closing(sqlite3.connect(ledger.with_suffix(".db"), isolation_level=None)) as other:
        other.execute("begin immediate")
        answer = checked(ledger)
    assert (answer.code, answer.bad) == (TxpoolExitCode.WARNING, ["lock"])
    assert checked(ledger).bad == []


#: What makes a process obey the modes of files: root without the rights by which it passes them over. It is no other
#: user, who might not be allowed to read the package.
AS_OWNER = [] if os.geteuid() else ["setpriv", "--bounding-set=-dac_override,-dac_read_search", "--"]


def test_files_that_may_not_be_written_or_looked_at() -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        folder.chmod(0o755)
        path = folder / "ledger.properties"
        path.write_text("driver = sqlite3\nmode = local\nurl = sqlite:///ledger.db\n")
        execute(folder / "ledger.db", "create table accounts (id integer primary key)")
        (folder / "ledger.db").chmod(0o444)
        (folder / "locked").mkdir(mode=0o000)
        log = folder / "txpool.properties"
        log.write_text("node.name = etl-1\nlog.url = sqlite:///locked/txlog\n")
        source = (
            "import sys; from pathlib import Path; from txpool.check import check\n"
            "for path in sys.argv[1:]:\n"
            "    for section in check(Path(path)).sections:\n"
            "        for finding in section.findings: print(*finding.lines())"
        )
        done = subprocess.run(
            [*AS_OWNER, sys.executable, "-c", source, str(path), str(log)],
            cwd=ROOT,
            env=os.environ | {"PYTHONPATH": str(ROOT)},
            capture_output=True,
            text=True,
            check=True,
        )
    assert f"wrong:   {folder}/ledger.db cannot be written: attempt to write a readonly database" in done.stdout
    assert f"chmod u+rw {folder}/ledger.db" in done.stdout
    assert re.search(rf"wrong:   uid \d+ may not read {folder}/locked/txlog/log.db", done.stdout)


def test_a_sqlite_file_that_everybody_may_write(ledger: Path) -> None:
    ledger.with_suffix(".db").chmod(0o666)
    answer = checked(ledger)
    assert (answer.code, answer.bad) == (TxpoolExitCode.WARNING, ["permissions"])
    assert answer.about("permissions")[0]["do"] == f"chmod o-w {ledger.with_suffix('.db')}"


def test_where_files_stand(require: Require) -> None:
    memory = Path("/dev/shm")
    require(memory.is_dir() and storage.file_system(memory) == "tmpfs", "a file system in memory at /dev/shm")
    with tempfile.TemporaryDirectory(dir=memory) as name:
        found = list(storage.storage_findings("the log", Path(name)))
    assert found[0].found == "the log is in memory (tmpfs)"
    assert [f.severity.value for f in storage.file_system_findings("the log", "nfs4")] == ["wrong"]
    assert [f.severity.value for f in storage.file_system_findings("the log", "ext4")] == []
    assert "99 MB are free" in next(storage.free_space_findings("the log", 99 << 20)).found
    assert server_settings.clock(-90.0).found == "its clock is 90 s behind ours"
