"""connect() with a connection string in the place of a file."""

from __future__ import annotations

import os
import pickle
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

import psycopg
import pytest

import txpool
from recovery import RecoveryManager
from txpool.datasource import find
from txpool.errors import ConfigurationError

if TYPE_CHECKING:
    from tests.conftest import Databases

CRASH = """
import sys, txpool
txpool.configure(node_name="tests", log_url=sys.argv[1], log_create=True)
with txpool.transaction():
    for dsn in sys.argv[2:]:
        txpool.connect(dsn).execute("insert into t values (1)")
"""


@pytest.fixture
def url(databases: Databases) -> str:
    return databases.url("one").replace("@", f":{databases.server.password}@")


def test_a_url_and_what_libpq_takes(databases: Databases, url: str) -> None:
    for dsn in (url, databases.dsn("one"), f"txpool:{url}"):
        with closing(txpool.connect(dsn)) as connection:
            datasource = connection.datasource
            assert connection.execute("select current_database()").fetchone() == ("one",)
        assert datasource is find(dsn)
        assert (datasource.name[:4], datasource.mode) == ("one-", "xa")
        assert databases.server.password not in repr(datasource) + repr(datasource.settings)
        datasource.close()
        assert find(dsn) is not datasource
        find(dsn).close()


def test_a_reference_in_what_libpq_takes(databases: Databases, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever characters the password has, which a url would have to encode."""
    password = "it's 1/@%: a"
    monkeypatch.setenv("TESTS_PASSWORD", password)
    monkeypatch.setenv("TESTS_USER", "with_reference")
    with psycopg.connect(databases.dsn("one"), autocommit=True) as admin:
        admin.execute(psycopg.sql.SQL("create role with_reference login password {}").format(password))
        try:
            parameters = psycopg.conninfo.conninfo_to_dict(databases.dsn("one"))
            parameters |= {"user": "${env:TESTS_USER}", "password": "${env:TESTS_PASSWORD}"}
            datasource = find(psycopg.conninfo.make_conninfo(**parameters))
            with closing(datasource), closing(datasource.connect()) as connection:
                assert connection.execute("select current_user").fetchone() == ("with_reference",)
                assert password not in repr(datasource.settings)
                assert pickle.loads(pickle.dumps(datasource)).name == datasource.name
        finally:
            admin.execute("drop role with_reference")


def test_two_databases_in_a_transaction(databases: Databases, url: str) -> None:
    dsns = [url, databases.dsn("two")]
    for name in ("one", "two"):
        databases.execute(name, "create table t (id integer)")
    with pytest.raises(ZeroDivisionError), txpool.transaction():
        for dsn in dsns:
            txpool.connect(dsn).execute("insert into t values (1)")
        _ = 1 / 0
    with txpool.transaction():
        for dsn in dsns:
            txpool.connect(dsn).execute("insert into t values (2)")
    assert databases.rows("one", "select id from t") == databases.rows("two", "select id from t") == [(2,)]
    for dsn in dsns:
        find(dsn).close()


def test_a_crash_is_recovered_by_the_files_of_the_same_databases(
    databases: Databases, url: str, tmp_path: Path
) -> None:
    for name in ("one", "two"):
        databases.execute(name, "create table t (id integer)")
        (tmp_path / f"{name}.properties").write_text(
            f"driver = psycopg\nurl = {databases.url(name)}\npassword = ${{env:TESTS_PASSWORD}}\n"
        )
    log = f"sqlite:///{tmp_path}/log"
    environment = os.environ | {"TXPOOL_FAILPOINTS": "coordinator.decided=kill"}
    command = [sys.executable, "-c", CRASH, log, url, databases.dsn("two")]
    assert subprocess.run(command, check=False, env=environment).returncode == -9
    assert len(databases.prepared()) == 2
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TESTS_PASSWORD", databases.server.password)
        conf = tmp_path / "recovery.properties"
        conf.write_text(
            f"node.name = tests\nlog.url = {log}\nrecovery.backoff = 0\ndatasources = one.properties, two.properties\n"
        )
        manager = RecoveryManager(conf)
        manager.scan()
        manager.stop()
    assert databases.prepared() == []
    assert databases.rows("one", "select id from t") == databases.rows("two", "select id from t") == [(1,)]


def test_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with closing(txpool.connect("sqlite:///orders.db")) as connection:
        connection.execute("create table t (id integer)")
        connection.commit()
        assert connection.datasource.mode == "local"
    first = find("sqlite:///orders.db")
    assert find(f"sqlite:///{tmp_path}/orders.db").url == first.url
    (tmp_path / "other").mkdir()
    monkeypatch.chdir(tmp_path / "other")
    assert find("sqlite:///orders.db").url != first.url  # a relative path is the working directory's
    with closing(sqlite3.connect(tmp_path / "orders.db")) as raw:
        assert raw.execute("select count(*) from t").fetchall() == [(0,)]


def test_only_a_path_depends_on_the_working_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A program that changes it does not leave a pool of the same server behind in each folder."""
    servers = "postgresql://h/db", "host=h dbname=db"
    file = "postgresql://app:${file:password}@h/db"
    Path(tmp_path / "password").write_text("one")
    Path(tmp_path / "password").chmod(0o600)
    monkeypatch.chdir(tmp_path)
    before = [find(dsn) for dsn in servers]
    one = find(file)
    (tmp_path / "other").mkdir()
    monkeypatch.chdir(tmp_path / "other")
    assert [find(dsn) for dsn in servers] == before
    Path("password").write_text("two")
    Path("password").chmod(0o600)
    two = find(file)
    assert [each.settings.password.reveal() for each in (one, two)] == ["one", "two"]  # type: ignore[union-attr]
    for datasource in (*before, one, two):
        datasource.close()


def test_a_file_in_the_place_of_the_connection_string_comes_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("dbname=orders").write_text("name = orders\ndriver = psycopg\nurl = postgresql://h/db\n")
    with closing(find("dbname=orders")) as datasource:
        assert datasource.url == "postgresql://h/db"


def test_a_wrong_password_and_a_wrong_string_show_no_password(databases: Databases, url: str) -> None:
    wrong = url.replace(databases.server.password, "hunter2hunter2")
    with pytest.raises(psycopg.OperationalError, match="password authentication failed") as caught:
        txpool.connect(wrong)
    assert "hunter2" not in str(caught.value)
    for dsn in (
        "postgresql://a:hunter2@b@c/d",
        "host=h pass=hunter2",
        "password=hunter2 host",
        "oracle://a:hunter2@h/d",
    ):
        with pytest.raises(ConfigurationError) as refused:
            find(dsn)
        assert "hunter2" not in everything(refused.value)


def test_a_password_does_not_travel(url: str) -> None:
    with closing(find(url)) as datasource, pytest.raises(ConfigurationError, match="write it as \\$"):
        pickle.dumps(datasource)


def everything(error: BaseException | None) -> str:
    texts = []
    while error is not None:
        texts += [str(error), repr(error)]
        error = error.__cause__ or error.__context__
    return "\n".join(texts)
