"""MariaDB and MySQL show that a statement waits for a prepared branch, but not for which."""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING

import pytest

import txpool
from tests.integration.waits.waiting import configure, execute, left_by_a_dead_process, reports, said
from tests.support.mysql import MySQLServer
from tests.support.recovery_site import Site
from tests.support.running import running
from tests.support.waiting import until

if TYPE_CHECKING:
    from tests.support.mysql import RequireDriver

INSERT = "insert into t values (1)"


@pytest.fixture(params=["mariadb", "mysql8"])
def server(request: pytest.FixtureRequest) -> MySQLServer:
    server: MySQLServer = request.getfixturevalue(request.param)
    return server


@pytest.fixture(params=["pymysql", "mysqlclient"])
def shop(
    request: pytest.FixtureRequest,
    watched: Site,
    server: MySQLServer,
    require_driver: RequireDriver,
    monkeypatch: pytest.MonkeyPatch,
) -> Site:
    """Beside the databases of PostgreSQL there is `shop`, with such a table."""
    require_driver(request.param)
    server.empty()
    server.execute("create table t (id int primary key) engine=innodb", database="one")
    monkeypatch.setenv("SHOP_PASSWORD", server.password)
    describe(watched, request.param, server.url("one"))
    return watched


def describe(site: Site, driver: str, url: str) -> None:
    site.write("shop", f"driver = {driver}\nmode = xa\nurl = {url}\npassword = ${{env:SHOP_PASSWORD}}")
    text = site.conf.read_text()
    if "shop" not in text:
        site.write("recovery", text.replace("ledger.properties", "ledger.properties, shop.properties").strip())


def test_the_candidates_are_named_and_recovery_is_asked(shop: Site, caplog: pytest.LogCaptureFixture) -> None:
    gtrid = left_by_a_dead_process(shop, "one", "shop")
    with running(lambda: execute(INSERT, "shop")) as done:
        until(lambda: reports(caplog))
        done.result(60)
    (report,) = reports(caplog)
    assert report.startswith("shop: a statement of ")
    assert f"Candidates: {gtrid} (process {gtrid.split(':')[2]} of node etl-1)" in report
    assert f"{gtrid}: its process is dead, and a scan is made here" in caplog.text


def test_who_waits_behind_another_is_reported_too(
    shop: Site, server: MySQLServer, caplog: pytest.LogCaptureFixture
) -> None:
    configure("etl-2")
    gtrid = left_by_a_dead_process(shop, "one", "shop")
    locking = "select * from t where id = 1 for update"
    with running(lambda: execute(locking, "shop")), running(lambda: execute(locking, "shop")):
        until(lambda: len(reports(caplog)) == 2)
        assert shop.command("scan").returncode == 0
    assert all(gtrid in report for report in reports(caplog))


def test_nothing_is_said_of_a_statement_that_waits_for_a_session(
    shop: Site, server: MySQLServer, caplog: pytest.LogCaptureFixture, looks: list[int]
) -> None:
    configure("etl-2")
    left_by_a_dead_process(shop, "one", "shop")
    with server.connect("one", autocommit=False) as session, session.cursor() as cursor:
        cursor.execute("insert into t values (2)")
        with running(lambda: execute("insert into t values (2)", "shop")) as done:
            until(lambda: len(looks) >= 3)
            assert not done.done()
            session.rollback()
    assert said(caplog) == []
    assert shop.command("scan").returncode == 0


def test_another_transaction_of_this_process_is_named(shop: Site, caplog: pytest.LogCaptureFixture) -> None:
    configure("etl-2")
    with ExitStack() as ending:
        holder = ending.enter_context(txpool.transaction())
        execute("insert into t values (2)", "shop")
        with running(lambda: execute("delete from t where id = 2", "shop")) as done:
            until(lambda: reports(caplog))
            ending.close()
            done.result(60)
    (report,) = reports(caplog)
    assert f"waits for a lock of {holder.gtrid}, of this process" in report


@pytest.fixture
def plain(shop: Site, server: MySQLServer) -> str:
    """The datasource `plain`, whose account has rights in its own database alone."""
    server.execute(f"create user plain@'%' identified by '{server.password}'", "grant all on one.* to plain@'%'")
    text = (shop.folder / "shop.properties").read_text().replace(f"{server.user}@", "plain@")
    shop.write("plain", text.replace("mode = xa", "mode = local"))
    return "plain"


def test_an_account_that_may_not_see_who_waits_is_told_nothing(
    shop: Site, plain: str, caplog: pytest.LogCaptureFixture, looks: list[int]
) -> None:
    """Without the privilege PROCESS."""
    configure("etl-2")
    left_by_a_dead_process(shop, "one", "shop")
    with running(lambda: execute(INSERT, plain)) as done:
        until(lambda: len(looks) >= 3)
        assert not done.done()
        assert shop.command("scan").returncode == 0
        done.result(60)
    assert said(caplog) == []


def test_the_privileges_that_the_page_names_are_enough(
    shop: Site, server: MySQLServer, plain: str, caplog: pytest.LogCaptureFixture
) -> None:
    configure("etl-2")
    server.execute("grant process on *.* to plain@'%'")
    if not server.is_mariadb:
        server.execute(
            "grant select on performance_schema.data_lock_waits to plain@'%'",
            "grant xa_recover_admin on *.* to plain@'%'",
        )
    gtrid = left_by_a_dead_process(shop, "one", "shop")
    with running(lambda: execute(INSERT, plain)):
        until(lambda: reports(caplog))
        assert shop.command("scan").returncode == 0
    (report,) = reports(caplog)
    assert f"Candidates: {gtrid} " in report
