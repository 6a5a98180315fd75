"""A statement over JDBC that waits for what a dead process has prepared is reported as one of Python's drivers is."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

import txpool
from tests.integration.waits.waiting import DEFER, configure, execute, left_by_a_dead_process, reports
from tests.support.jdbc_places import JdbcPlaces
from tests.support.recovery_site import BOTH, Site
from tests.support.running import running
from tests.support.waiting import until

if TYPE_CHECKING:
    from tests.support.mysql import MySQLServer

INSERT = "insert into t values (1)"


@pytest.fixture(params=["postgresql", "mariadb"])
def shop(request: pytest.FixtureRequest, watched: Site, jdbc_places: JdbcPlaces) -> str:
    """Beside the databases of psycopg there is `shop`, with such a table; the kind of its database."""
    kind: str = request.param
    url = f"jdbc:postgresql://127.0.0.1:{watched.databases.server.port}/two"
    if kind == "mariadb":
        server: MySQLServer = request.getfixturevalue("mariadb")
        url = f"jdbc:mariadb://127.0.0.1:{server.port}/one"
    watched.write("shop", jdbc_places.lines(kind, url=url))
    if kind == "mariadb":
        server.execute("create table t (id int primary key) engine=innodb", database="one")
    (watched.folder / "shop.properties").chmod(0o600)
    return kind


def test_the_branch_is_named_and_ended(watched: Site, shop: str, caplog: pytest.LogCaptureFixture) -> None:
    gtrid = left_by_a_dead_process(watched, "one", "shop")
    with running(lambda: execute(INSERT, "shop")) as done:
        until(lambda: reports(caplog), what="nothing is said of the statement")
        done.result(120)
    (report,) = reports(caplog)
    assert report.startswith("shop: a statement ")
    assert f"{gtrid} (process " in report
    assert ("Candidates: " in report) == (shop == "mariadb")
    assert f"{gtrid}: its process is dead, and a scan is made here" in caplog.text


@pytest.mark.parametrize("shop", ["postgresql"], indirect=True)
def test_a_commit_that_waits_is_named_too(watched: Site, shop: str, caplog: pytest.LogCaptureFixture) -> None:
    watched.databases.execute("two", DEFER)
    gtrid = left_by_a_dead_process(watched, "one", "shop")
    with running(lambda: execute(INSERT, "shop")) as done:
        until(lambda: reports(caplog), what="nothing is said of it")
        done.result(120)
    (report,) = reports(caplog)
    assert report.startswith("shop: a statement ")
    assert f"{gtrid} (process " in report


def test_nothing_is_said_of_one_that_waits_for_a_session(
    watched: Site, shop: str, caplog: pytest.LogCaptureFixture, looks: list[int]
) -> None:
    configure("etl-2")
    left_by_a_dead_process(watched, *BOTH)
    with txpool.connect("shop.properties") as first:
        first.cursor().execute("insert into t values (2)")
        with running(lambda: execute("insert into t values (2)", "shop")) as done:
            until(lambda: len(looks) > 1)
            assert reports(caplog) == []
            first.rollback()
            done.result(120)
