"""A decision log in MariaDB or MySQL: what `txpool check` says of its server, and how it is put right."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.integration.check.place import checked
from tests.support.log_places import KINDS, MySQLPlace, place_of
from txpool.config.settings import RecoverySettings
from txpool.setup.stores import initialise

PASSWORD = "TXPOOL_TEST_LOG_CHECK_PASSWORD"  # the name of a variable


@pytest.fixture(params=KINDS[1:])
def place(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> MySQLPlace:
    found = place_of(request.param, request.getfixturevalue)
    assert isinstance(found, MySQLPlace)
    monkeypatch.setenv(PASSWORD, found.password)
    return found


@pytest.fixture
def conf(place: MySQLPlace, tmp_path: Path) -> Path:
    path = tmp_path / "txpool.properties"
    (tmp_path / "orders.properties").write_text("driver = sqlite3\nurl = sqlite:///orders.db\nmode = local\n")
    path.write_text(f"node.name = etl-1\nlog.url = {place.url()}\nlog.password = ${{env:{PASSWORD}}}\n")
    return path


def test_a_log_is_missing_until_it_is_made(place: MySQLPlace, conf: Path) -> None:
    (finding,) = checked(conf).about("log")
    assert "its tables are not in that database there" in finding["found"]
    assert place.tables("one") == [], "nothing was made"
    initialise(RecoverySettings.load(conf))
    answer = checked(conf)
    assert answer.about("log", "ok")[0]["found"].startswith("the log of node etl-1 is right: 0 living processes")
    assert set(answer.bad) <= {"keepalive"}


def test_settings_that_lose_commits_are_named_with_what_to_do(place: MySQLPlace, conf: Path) -> None:
    initialise(RecoverySettings.load(conf))
    place.execute("one", "set global innodb_flush_log_at_trx_commit = 2")
    try:
        (finding,) = checked(conf).about("durability")
        assert finding["found"] == "innodb_flush_log_at_trx_commit is 2"
        assert finding["do"].startswith("SET GLOBAL innodb_flush_log_at_trx_commit = 1;")
        place.execute("one", finding["do"].partition(";")[0])
        assert checked(conf).about("durability") == []
    finally:
        place.execute("one", "set global innodb_flush_log_at_trx_commit = 1")


def test_how_soon_a_vanished_host_is_noticed(place: MySQLPlace, conf: Path) -> None:
    initialise(RecoverySettings.load(conf))
    (finding,) = checked(conf).about("keepalive", "warning")
    assert "it notices after 131 minutes that a coordinator's host has vanished" in finding["found"]
    if place.kind == "mysql":
        assert finding["do"].startswith("sysctl net.ipv4.tcp_keepalive_time=30")
        return
    place.execute("one", finding["do"].partition(";")[0])
    try:
        (finding,) = checked(conf).about("keepalive", "ok")
        assert finding["found"] == "the server notices within 60 s that a coordinator's host has vanished"
    finally:
        names = ("time", "interval", "probes")
        place.execute("one", "set global " + ", ".join(f"tcp_keepalive_{name} = 0" for name in names))


def test_other_accounts_that_may_write_the_log_are_named(place: MySQLPlace, conf: Path) -> None:
    initialise(RecoverySettings.load(conf))
    assert checked(conf).about("grants") == []
    place.execute("one", "create user mallory identified by 'x'", "grant insert on one.txpool_decisions to mallory")
    (finding,) = checked(conf).about("grants", "warning")
    assert finding["found"] == "other accounts may write the log: 'mallory'@'%'"


def test_a_wrong_password_and_a_server_that_is_not_there(conf: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(PASSWORD, "hunter2hunter2")
    (finding,) = checked(conf).about("connection")
    assert finding["found"].startswith("the log's server refuses the connection")
    assert "hunter2" not in str(finding)
    conf.write_text("node.name = etl-1\nlog.url = mysql://app@127.0.0.1:1/log\n")
    (finding,) = checked(conf).about("connection")
    assert finding["found"].startswith("the log's server cannot be reached")
