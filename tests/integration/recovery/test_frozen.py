"""A database that hangs after it was reached: recovery finishes the others, names it, and can be ended."""

from __future__ import annotations

import os
import re
import signal
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from recovery.cli import ExitCode
from tests.support.mysql import MySQLServer
from tests.support.mysql_proxy import Fault, MySQLProxy
from tests.support.proxy import NetworkFault, Proxy
from tests.support.recovery_site import BOTH, WRITER, Site, extend, get, until
from tests.support.recovery_site import daemon as running_daemon
from tests.support.waiting import until as wait_until
from txpool.process.exit_codes import TxpoolExitCode

if TYPE_CHECKING:
    from tests.support.mysql import RequireDriver

STEP = "recovery.step-timeout = 5s"
FOREVER = "recovery.step-timeout = 1h"
#: By what the message has: where PostgreSQL freezes.
POSTGRESQL = {"connected": b"pg_control_system", "listing": b"pg_prepared_xacts", "commit": b"commit prepared"}
#: The same of MariaDB.
MARIADB = {"connected": b"set autocommit = 1", "listing": b"xa recover", "commit": b"xa commit"}


@pytest.fixture
def site(tmp_path: Path, databases: Any, mariadb: MySQLServer, monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    """Four databases: one and two of PostgreSQL, shop of MariaDB, and a marked file."""
    mariadb.empty()
    mariadb.execute("create table t (id int) engine=innodb", database="one")
    monkeypatch.setenv("SHOP_PASSWORD", mariadb.password)
    site = Site(tmp_path, databases)
    describe_shop(site, mariadb.url("one"))
    text = site.conf.read_text().replace("ledger.properties", "ledger.properties, shop.properties")
    site.write("recovery", text.strip())
    yield site
    mariadb.empty()


def describe_shop(site: Site, url: str, driver: str = "pymysql") -> None:
    site.write("shop", f"driver = {driver}\nmode = xa\nurl = {url}\npassword = ${{env:SHOP_PASSWORD}}")


@contextmanager
def before_postgresql(site: Site) -> Iterator[Proxy]:
    """A proxy before the database one, for recovery alone."""
    proxy = Proxy(site.databases.server.port)
    try:
        text = (site.folder / "one.properties").read_text()
        site.write("one", text.replace(f":{site.databases.server.port}/", f":{proxy.port}/").strip())
        yield proxy
    finally:
        proxy.close()


@contextmanager
def stopped(server: MySQLServer) -> Iterator[None]:
    """The server's process stands still; its host still takes connections, and acknowledges what is sent."""
    assert server.pid is not None
    os.kill(server.pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(server.pid, signal.SIGCONT)


def leave_two_transactions(site: Site) -> None:
    """One and shop are left decided by the log; two and the marked file by the file."""
    site.killed(WRITER, "one", "shop", failpoints="coordinator.decided=kill")
    site.killed(WRITER, "two", "ledger", failpoints="marked.committed=kill")


def in_shop(server: MySQLServer) -> int:
    return int(server.execute("select count(*) from t", database="one")[0][0])


def assert_all_is_ended(site: Site, mariadb: MySQLServer) -> None:
    assert site.counts() == {"one": 1, "two": 1, "ledger": 1}
    assert in_shop(mariadb) == 1
    assert site.databases.prepared() == []
    assert mariadb.prepared() == []
    assert site.marks() == []
    assert site.kept() == {}


@pytest.mark.costly
@pytest.mark.parametrize("where", ["connecting", *POSTGRESQL])
def test_a_postgresql_that_freezes_holds_up_no_other(site: Site, mariadb: MySQLServer, where: str) -> None:
    leave_two_transactions(site)
    extend(site, STEP)
    with before_postgresql(site) as proxy:
        if where == "connecting":
            proxy.go_dark()
        else:
            proxy.fail_at(POSTGRESQL[where], NetworkFault.BLACK_HOLE)
        manager = site.manager()
        report = manager.scan()
        assert where == "connecting" or proxy.failed.is_set()
        assert site.counts() == {"one": 0, "two": 1, "ledger": 1}
        assert in_shop(mariadb) == 1
        assert len(site.databases.prepared()) == 1
        assert site.marks() == []
        assert set(site.kept()) == {"decisions"}
        unanswered = {*report.unreachable, *(left.datasource for left in report.left_alone)}
        assert unanswered == {"one"}
        wait_until(lambda: not manager.stuck, what="the driver does not end by itself")
        proxy.heal()
        manager.scan()
        manager.close()
    assert_all_is_ended(site, mariadb)


@pytest.mark.costly
@pytest.mark.parametrize("driver", ["pymysql", "mysqlclient"])
@pytest.mark.parametrize("where", ["connecting", *MARIADB])
def test_a_mariadb_that_freezes_holds_up_no_other(
    site: Site, mariadb: MySQLServer, where: str, driver: str, require_driver: RequireDriver
) -> None:
    require_driver(driver)
    leave_two_transactions(site)
    extend(site, STEP)
    proxy = MySQLProxy(mariadb.port)
    try:
        describe_shop(site, mariadb.url("one").replace(f":{mariadb.port}/", f":{proxy.port}/"), driver)
        manager = site.manager()
        if where == "connecting":
            with stopped(mariadb):
                report = manager.scan()
        else:
            proxy.fail_at(MARIADB[where], Fault.SILENT)
            report = manager.scan()
            assert proxy.failed.is_set()
        wait_until(lambda: not manager.stuck, what="the driver does not end by itself")
        assert site.counts() == {"one": 1, "two": 1, "ledger": 1}
        assert in_shop(mariadb) == 0
        assert len(mariadb.prepared()) == 1
        assert site.databases.prepared() == []
        assert set(site.kept()) == {"decisions"}
        assert {*report.unreachable, *(left.datasource for left in report.left_alone)} == {"shop"}
        manager.scan()
        manager.close()
    finally:
        proxy.close()
    assert_all_is_ended(site, mariadb)


@pytest.mark.costly
@pytest.mark.parametrize("command", [("list",), ("show",), ("scan",)], ids=lambda each: each[0])
def test_a_command_answers_and_names_the_frozen_database(
    site: Site, mariadb: MySQLServer, command: tuple[str, ...]
) -> None:
    site.killed(WRITER, "one", "shop", failpoints="coordinator.decided=kill")
    extend(site, STEP)
    (gid,) = site.databases.prepared()
    gtrid = ":".join(gid.split(":")[:4])
    with stopped(mariadb):
        done = site.command(*command, *([gtrid] if command == ("show",) else []))
    assert done.returncode == ExitCode.UNREACHABLE, done.stdout + done.stderr
    assert "shop" in done.stdout + done.stderr
    assert "no answer within 5 s (recovery.step-timeout)" in done.stdout + done.stderr


@pytest.mark.costly
def test_the_check_answers_and_names_the_frozen_database(site: Site, mariadb: MySQLServer) -> None:
    extend(site, STEP)
    with stopped(mariadb):
        checked = site.process("from txpool.cli import app; app(['check', 'recovery.properties'])")
        output, errors = checked.communicate(timeout=600)
    assert checked.returncode == TxpoolExitCode.UNREACHABLE, output + errors
    assert "the server cannot be reached" in output.partition("datasource shop")[2]


@pytest.mark.costly
def test_the_status_page_names_the_frozen_database(site: Site, mariadb: MySQLServer) -> None:
    extend(site, STEP, "status.address = 127.0.0.1:0")
    with stopped(mariadb), running_daemon(site) as (_, url):
        assert "no answer from shop" in get(url)
        assert re.search(r'reachable\{datasource="shop"\} 0', get(f"{url}metrics"))
        assert re.search(r'reachable\{datasource="one"\} 1', get(f"{url}metrics"))


def ended_by_sigterm(site: Site, await_start: Callable[[subprocess.Popen[str]], object]) -> str:
    """What the daemon says that SIGTERM ends, well, once it has come so far."""
    process = site.daemon()
    try:
        await_start(process)
        process.send_signal(signal.SIGTERM)
        said: str = process.communicate(timeout=600)[1]
    finally:
        process.kill()
        process.communicate()
    assert process.returncode == 0, said
    return said


def froze(proxy: Proxy) -> None:
    assert proxy.failed.wait(60)


@pytest.mark.parametrize("driver", ["pymysql", "mysqlclient"])
def test_sigterm_ends_the_daemon_while_mariadb_is_frozen(
    site: Site, mariadb: MySQLServer, driver: str, require_driver: RequireDriver
) -> None:
    require_driver(driver)
    describe_shop(site, mariadb.url("one"), driver)
    extend(site, FOREVER, "status.address = 127.0.0.1:0")
    with stopped(mariadb):
        said = ended_by_sigterm(site, lambda process: until(process, "the status page is at"))
    assert "Traceback" not in said
    assert "recovery has ended" in said


@pytest.mark.parametrize("where", list(POSTGRESQL))
def test_sigterm_ends_the_daemon_while_postgresql_is_frozen(site: Site, where: str) -> None:
    site.killed(WRITER, *BOTH, failpoints="coordinator.decided=kill")
    extend(site, FOREVER)
    with before_postgresql(site) as proxy:
        proxy.fail_at(POSTGRESQL[where], NetworkFault.BLACK_HOLE)
        said = ended_by_sigterm(site, lambda _: froze(proxy))
        assert "recovery has ended" in said
        assert "one" in said.partition("recovery ends after")[2]


@pytest.mark.costly
def test_sigterm_ends_the_daemon_while_the_log_is_frozen(tmp_path: Path, databases: Any) -> None:
    site = Site(tmp_path, databases, store="sql")
    proxy = Proxy(databases.server.port)
    try:
        text = site.conf.read_text().replace(f":{databases.server.port}/", f":{proxy.port}/")
        site.write("recovery", text.strip())
        proxy.fail_at(b"txpool_", NetworkFault.BLACK_HOLE)
        said = ended_by_sigterm(site, lambda _: froze(proxy))
    finally:
        proxy.close()
    assert "the decision log does not answer" in said
