"""A datasource made in code: its login is noted, and recovery reaches it by that if its own file allows it."""

from __future__ import annotations

import json
import signal
import socket
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest

from recovery.cli import ExitCode
from tests.support.jdbc import Jars
from tests.support.mysql import MySQLServer
from tests.support.recovery_site import PASSWORD, Site, extend, lines_until
from tests.support.waiting import until
from txpool.datasource import DataSource
from txpool.resources.marked.xids import Xids

pytestmark = pytest.mark.part(2)

PREPARED, DECIDED = "coordinator.prepared=kill", "coordinator.decided=kill"
SHOP_PASSWORD = "TXPOOL_TEST_SHOP_PASSWORD"  # the name of a variable

_WRITER = """
    import os, sys
    import psycopg
    import txpool

    txpool.configure("txpool.properties")
    url, secret = sys.argv[1:]
    with txpool.transaction():
        txpool.connect("one.properties").cursor().execute("insert into t values (1)")
        {made}.cursor().execute("insert into t values (1)")
"""
#: How a program may write it.
MADE = {
    "datasource": "txpool.DataSource('two', driver='psycopg', url=url, password=f'${{env:{secret}}}').connect()",
    "in the url": "txpool.connect(url.replace('@', f':${{env:{secret}}}@'))",
    "conninfo": "txpool.connect(psycopg.conninfo.make_conninfo(url, password=f'${{env:{secret}}}'))",
    "inline": "txpool.DataSource('two', driver='psycopg', url=url, password=os.environ[secret]).connect()",
    "rows": "txpool.DataSource('two', driver='psycopg', url=url, password=f'${{env:{secret}}}', "
    "xa_evidence='row').connect()",
    "mariadb": "txpool.DataSource('shop', driver='pymysql', url=url, password=f'${{env:{secret}}}').connect()",
}


def writer(made: str) -> str:
    return _WRITER.replace("{made}", MADE[made])


@pytest.fixture
def site(site: Site) -> Site:
    """Recovery's file knows one and ledger only."""
    (site.folder / "two.properties").unlink()
    site.write(
        "recovery", site.conf.read_text().replace("one.properties, two.properties, ", "one.properties, ").strip()
    )
    return site


@pytest.fixture
def shop(site: Site, mariadb: MySQLServer, monkeypatch: pytest.MonkeyPatch) -> Iterator[MySQLServer]:
    mariadb.empty()
    mariadb.execute("create table t (id int) engine=innodb", database="one")
    monkeypatch.setenv(SHOP_PASSWORD, mariadb.password)
    yield mariadb
    mariadb.empty()


def allowed(site: Site, database: str = "two", variable: str = PASSWORD) -> str:
    user, server = str(site.databases.url(database)).split("@")
    return f"{user}:${{env:{variable}}}@{server}"


def alarms(scan: Any) -> dict[str, str]:
    assert scan.stdout, scan.stderr
    return {alarm["subject"]: alarm["text"] for alarm in json.loads(scan.stdout)["alarms"]}


@contextmanager
def in_log(site: Site) -> Iterator[sqlite3.Connection]:
    with closing(sqlite3.connect(site.folder / "txlog" / "log.db")) as log, log:
        yield log


def logins(site: Site) -> list[str]:
    with in_log(site) as log:
        return [json.loads(text)["login"] for (text,) in log.execute("select text from memos where kind = 'login'")]


@pytest.mark.parametrize("made", ["datasource", "in the url", "conninfo"])
@pytest.mark.parametrize(("failpoint", "rows"), [(PREPARED, 0), (DECIDED, 1)])
def test_its_branch_is_ended_by_the_login_that_the_file_allows(
    site: Site, made: str, failpoint: str, rows: int
) -> None:
    site.killed(writer(made), site.databases.url("two"), PASSWORD, failpoints=failpoint)
    assert logins(site) == [allowed(site)], "with the reference, and without the password"
    refused = site.command("scan", "--json")
    assert refused.returncode == ExitCode.UNCONFIGURED
    ((name, text),) = alarms(refused).items()
    assert name.startswith("two")
    line = f"recovery.noted = {allowed(site)}"
    assert line in text
    listed = site.command("list", columns=2000)
    assert listed.returncode == ExitCode.UNCONFIGURED
    assert line in listed.stderr
    assert len([gid for gid in site.databases.prepared() if ":two" in gid]) == 1, "left alone"
    extend(site, line)
    scan = site.command("scan", "--json")
    assert scan.returncode == ExitCode.OK, scan.stdout + scan.stderr
    assert site.databases.prepared() == []
    assert site.counts() == {"one": rows, "two": rows, "ledger": 0}
    assert site.kept() == {}
    assert site.databases.server.password not in refused.stdout + listed.stderr + listed.stdout + scan.stdout


@pytest.mark.parametrize(("failpoint", "rows"), [(PREPARED, 0), (DECIDED, 1)])
def test_one_whose_branches_write_rows_leaves_none(site: Site, failpoint: str, rows: int) -> None:
    with DataSource("two", driver="psycopg", url=site.databases.url("two"), password=f"${{env:{PASSWORD}}}") as two:
        Xids("two", two.driver_adapter, "txpool_branches", key_length=160).create()
    site.killed(writer("rows"), site.databases.url("two"), PASSWORD, failpoints=failpoint)
    assert logins(site) == [f"{allowed(site)} with rows"]
    assert f"recovery.noted = {allowed(site)}. " in alarms(site.command("scan", "--json"))["two"]
    extend(site, f"recovery.noted = {allowed(site)}")
    assert site.command("scan").returncode == ExitCode.OK
    assert site.counts() == {"one": rows, "two": rows, "ledger": 0}
    assert site.command("scan").returncode == ExitCode.OK
    assert site.databases.rows("two", "select count(*) from txpool_branches where kind = 'commit'") == [(0,)]
    assert site.kept() == {}


@pytest.mark.parametrize(("failpoint", "rows"), [("coordinator.prepared=kill", 0), ("marked.committed=kill", 1)])
def test_a_marked_one_that_decides_is_asked_by_the_login_that_the_file_allows(
    site: Site, failpoint: str, rows: int
) -> None:
    url = site.databases.url("two")
    with DataSource("two", driver="psycopg", mode="cmr", url=url, password=f"${{env:{PASSWORD}}}") as two:
        Xids("two", two.driver_adapter, "xids").create()
    made = MADE["datasource"].replace("url=url", "url=url, mode='cmr'")
    site.killed(_WRITER.replace("{made}", made), url, PASSWORD, failpoints=failpoint)
    refused = site.command("scan")
    assert f"recovery.noted = {allowed(site)}" in refused.stdout + refused.stderr
    assert len(site.databases.prepared()) == 1, "left alone"
    extend(site, f"recovery.noted = {allowed(site)}")
    scan = site.command("scan")
    assert scan.returncode == ExitCode.OK, scan.stdout + scan.stderr
    assert site.databases.prepared() == []
    assert site.counts() == {"one": rows, "two": rows, "ledger": 0}


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["postgresql", "mariadb"])
@pytest.mark.parametrize(("failpoint", "rows"), [(PREPARED, 0), (DECIDED, 1)])
def test_one_over_jdbc_is_reached_without_java(
    site: Site, jdbc_jars: Jars, request: pytest.FixtureRequest, kind: str, failpoint: str, rows: int
) -> None:
    server, secret, url = site.databases.server, PASSWORD, site.databases.url("two")
    if kind == "mariadb":
        server, secret = request.getfixturevalue("shop"), SHOP_PASSWORD
        url = server.url("one")
    place = url.partition("@")[2]
    made = (
        f"txpool.DataSource('two', driver='jdbc', url='jdbc:{kind}://{place}', user='{server.user}', "
        f"password='${{env:{secret}}}', jdbc_classpath='{','.join(getattr(jdbc_jars, kind))}').connect()"
    )
    site.killed(_WRITER.replace("{made}", made), url, secret, failpoints=failpoint)
    login = url.replace("@", f":${{env:{secret}}}@")
    assert logins(site) == [login], "no class, and no class path"
    assert f"recovery.noted = {login}" in alarms(site.command("scan", "--json"))["two"]
    extend(site, f"recovery.noted = {login}")
    scan = site.command("scan")
    assert scan.returncode == ExitCode.OK, scan.stdout + scan.stderr
    if kind == "mariadb":
        assert server.prepared() == []
        assert server.execute("select count(*) from t", database="one") == [(rows,)]
    else:
        assert site.counts()["two"] == rows
    assert site.databases.prepared() == []
    assert site.counts()["one"] == rows
    assert site.kept() == {}


def test_without_a_reference_the_files_own_holds(site: Site) -> None:
    site.killed(writer("inline"), site.databases.url("two"), PASSWORD, failpoints=DECIDED)
    (login,) = logins(site)
    assert site.databases.server.password not in login
    text = alarms(site.command("scan", "--json"))["two"]
    assert f"recovery.noted = {login}. It names no reference to a password" in text
    extend(site, f"recovery.noted = {allowed(site)}")
    assert site.command("scan").returncode == ExitCode.OK
    assert site.counts() == {"one": 1, "two": 1, "ledger": 0}


@pytest.mark.parametrize(("failpoint", "rows"), [(PREPARED, 0), (DECIDED, 1)])
def test_a_branch_of_mariadb_is_ended_by_a_login_for_any_database(
    site: Site, shop: MySQLServer, failpoint: str, rows: int
) -> None:
    site.killed(writer("mariadb"), shop.url("one"), SHOP_PASSWORD, failpoints=failpoint)
    login = shop.url("one").replace("@", f":${{env:{SHOP_PASSWORD}}}@")
    assert logins(site) == [login]
    assert f"recovery.noted = {login}" in alarms(site.command("scan", "--json"))["shop"]
    assert len(shop.prepared()) == 1
    other = "postgresql://app@db.example:5432/orders?sslmode=verify-full"
    extend(site, f"recovery.noted = {other}, {login.removesuffix('/one')}/*?charset=utf8mb4")
    scan = site.command("scan")
    assert scan.returncode == ExitCode.OK, scan.stdout + scan.stderr
    assert shop.prepared() == []
    assert shop.execute("select count(*) from t", database="one") == [(rows,)]
    assert site.counts()["one"] == rows


def test_the_daemon_names_the_line_and_ends_the_branches_once_it_is_written(site: Site, shop: MySQLServer) -> None:
    site.killed(writer("datasource"), site.databases.url("two"), PASSWORD, failpoints=DECIDED)
    site.killed(writer("mariadb"), shop.url("one"), SHOP_PASSWORD, failpoints=DECIDED)
    lines = [allowed(site), shop.url("one").replace("@", f":${{env:{SHOP_PASSWORD}}}@")]
    extend(site, "status.address = 127.0.0.1:0")
    process = site.daemon()
    try:
        lines_until(process, *(f"recovery.noted = {line}" for line in lines))
        assert len(site.databases.prepared()) == len(shop.prepared()) == 1
        extend(site, f"recovery.noted = {', '.join(lines)}")
        process.send_signal(signal.SIGHUP)
        until(lambda: site.databases.prepared() == [] and not shop.prepared() and site.kept() == {})
        assert process.poll() is None
    finally:
        process.kill()
        process.communicate()
    assert site.counts() == {"one": 2, "two": 1, "ledger": 0}
    assert shop.execute("select count(*) from t", database="one") == [(1,)]


# -- a note is a claim ----------------------------------------------------------------------------------------------


@pytest.fixture
def attacker() -> Iterator[socket.socket]:
    """A server of somebody else's: whoever connects to it is seen."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        listener.settimeout(0)
        yield listener


def forge(site: Site, login: str) -> None:
    """Whoever may write into the log has changed the login."""
    with in_log(site) as log:
        log.execute("update memos set text = ? where kind = 'login'", [json.dumps({"format": "1", "login": login})])


def followed(attacker: socket.socket) -> bool:
    try:
        attacker.accept()
    except BlockingIOError:
        return False
    return True


FORGED = {
    "another host": "postgresql://{user}:${{env:{variable}}}@127.0.0.1:{theirs}/two",
    "another reference": "postgresql://{user}:${{env:PATH}}@127.0.0.1:{port}/two",
    "a file": "postgresql://{user}:${{file:/etc/hostname}}@127.0.0.1:{port}/two",
    "another user": "postgresql://postgres:${{env:{variable}}}@127.0.0.1:{port}/two",
    "another database": "postgresql://{user}:${{env:{variable}}}@127.0.0.1:{port}/postgres",
    "a function": "postgresql://{user}@127.0.0.1:{port}/two by os:getcwd",
    "two hosts": "postgresql://{user}:${{env:{variable}}}@127.0.0.1:{theirs},127.0.0.1:{port}/two",
    "a host in the database": "postgresql://{user}:${{env:{variable}}}@127.0.0.1:{port}/host%3D127.0.0.1%20port%3D{theirs}",
    "a parameter": "postgresql://{user}:${{env:{variable}}}@127.0.0.1:{port}/two?hostaddr=127.0.0.1&port={theirs}",
    "weaker TLS": "postgresql://{user}:${{env:{variable}}}@127.0.0.1:{port}/two?sslmode=disable",
    "a socket": "postgresql://{user}:${{env:{variable}}}@%2Ftmp:{port}/two",
    "a service": "postgresql:///two?service=theirs&user={user}",
    "MariaDB": "mysql://{user}:${{env:{variable}}}@127.0.0.1:{theirs}/two",
    "no url": "\x1b[2Jnothing",
}


@pytest.mark.parametrize("forged", FORGED)
def test_a_forged_note_is_not_followed(site: Site, attacker: socket.socket, forged: str) -> None:
    site.killed(writer("datasource"), site.databases.url("two"), PASSWORD, failpoints=DECIDED)
    extend(site, f"recovery.noted = {allowed(site)}")
    server = site.databases.server
    login = FORGED[forged].format(
        user=server.user, variable=PASSWORD, port=server.port, theirs=attacker.getsockname()[1]
    )
    forge(site, login)
    scan = site.command("scan", "--json")
    assert scan.returncode == ExitCode.UNCONFIGURED, scan.stdout + scan.stderr
    assert not followed(attacker)
    assert "\x1b" not in scan.stdout + scan.stderr
    assert "configured in code" in alarms(scan)["two"]
    assert site.counts()["two"] == 0
    assert len(site.databases.prepared()) == 1
    assert server.password not in scan.stdout + scan.stderr


def test_a_note_that_leads_to_another_database_than_it_says_is_refused(site: Site) -> None:
    site.killed(writer("datasource"), site.databases.url("two"), PASSWORD, failpoints=DECIDED)
    extend(site, f"recovery.noted = {allowed(site).removesuffix('/two')}/*")
    forge(site, allowed(site, "one"))
    scan = site.command("scan", "--json")
    assert "the noted login leads elsewhere now" in alarms(scan)["two"]
    assert site.counts()["two"] == 0


def test_its_name_does_not_choose_whose_variables_hold(
    site: Site, attacker: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Recovery's user of another datasource would be sent to a host that is allowed for this one."""
    site.killed(writer("datasource"), site.databases.url("two"), PASSWORD, failpoints=DECIDED)
    extend(site, f"recovery.noted = {allowed(site)}")
    monkeypatch.setenv("TXPOOL_DS_TWO_RECOVERY_USER", "nobody")
    monkeypatch.setenv("TXPOOL_DS_TWO_RECOVERY_PASSWORD", "of another database")
    monkeypatch.setenv("TXPOOL_DS_TWO_DRIVER_HOST", "127.0.0.1")
    monkeypatch.setenv("TXPOOL_DS_TWO_DRIVER_PORT", str(attacker.getsockname()[1]))
    assert site.command("scan").returncode == ExitCode.OK
    assert not followed(attacker)
    assert site.counts()["two"] == 1


def test_forget_takes_the_login_along(site: Site) -> None:
    site.killed(writer("datasource"), site.databases.url("two"), PASSWORD, failpoints=PREPARED)
    extend(site, f"recovery.noted = {allowed(site)}")
    assert site.command("scan").returncode == ExitCode.OK
    assert site.command("forget", "--datasource", "two", "--yes").returncode == ExitCode.OK
    assert logins(site) == []


def test_a_datasource_of_a_file_has_no_login(site: Site) -> None:
    site.write("two", f"driver = psycopg\nurl = {site.databases.url('two')}\npassword = ${{env:{PASSWORD}}}")
    made = writer("datasource").replace(MADE["datasource"], "txpool.connect('two.properties')")
    site.killed(made, "", "", failpoints=PREPARED)
    assert logins(site) == []


def test_files_of_secrets_are_noted_with_their_whole_path(site: Site) -> None:
    secret = site.folder / "secret"
    secret.write_text(site.databases.server.password)
    Path.chmod(secret, 0o600)
    made = writer("datasource").replace("${{env:{secret}}}", "${{file:secret}}")
    site.killed(made, site.databases.url("two"), PASSWORD, failpoints=DECIDED)
    assert logins(site) == [allowed(site).replace(f"${{env:{PASSWORD}}}", f"${{file:{secret}}}")]
    extend(site, f"recovery.noted = {allowed(site).replace(f'${{env:{PASSWORD}}}', '${file:secret}')}")
    assert site.command("scan").returncode == ExitCode.OK
    assert site.counts()["two"] == 1
