"""What the drivers tell of a raw connection, held against what the database does."""

from __future__ import annotations

import socket
import sqlite3
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psycopg
import pytest
from psycopg.rows import dict_row

from txpool.config.secrets import Secret
from txpool.config.settings import DataSourceSettings
from txpool.errors import ConfigurationError, OperationalError
from txpool.resources.driver.making import make_driver

if TYPE_CHECKING:
    from tests.conftest import Databases


@pytest.fixture
def pg(databases: Databases) -> Any:
    databases.execute("one", "create table work (id int)")
    settings = DataSourceSettings.load(
        name="one", driver="psycopg", url=databases.url("one"), password=Secret(databases.server.password)
    )
    return make_driver(settings)


@pytest.fixture
def raw(pg: Any) -> Iterator[Any]:
    raw = pg.connect()
    yield raw
    raw.close()


def sqlite_driver(path: Path, mode: str = "local", **options: Any) -> Any:
    return make_driver(
        DataSourceSettings.load(name="lite", driver="sqlite3", mode=mode, url=f"sqlite:///{path}", **options)
    )


@pytest.fixture
def lite(tmp_path: Path) -> Any:
    driver = sqlite_driver(tmp_path / "a.db")
    raw = driver.connect()
    raw.execute("create table work (id integer primary key)")
    raw.close()
    return driver


def test_psycopg_connection_is_clean_only_when_nothing_is_left_of_its_user(pg: Any, raw: Any) -> None:
    assert pg.is_clean(raw)
    raw.execute("select 1")
    assert not pg.is_clean(raw)
    raw.rollback()
    assert pg.is_clean(raw)
    raw.row_factory = dict_row
    assert not pg.is_clean(raw)
    pg.reset(raw)
    raw.isolation_level = psycopg.IsolationLevel.SERIALIZABLE
    assert not pg.is_clean(raw)
    pg.reset(raw)
    raw.autocommit = True
    assert not pg.is_clean(raw)
    pg.reset(raw)
    assert pg.is_clean(raw)
    assert raw.execute("show transaction_isolation").fetchone() == ("read committed",)
    raw.close()
    assert not pg.is_clean(raw)


def test_psycopg_session_that_executed_set_is_restored(pg: Any, raw: Any) -> None:
    for statement in ("set search_path = elsewhere", "select 1; set role pg_monitor", "listen changes"):
        cursor = raw.execute(statement)
        assert pg.ended_by(raw, cursor) is None
        raw.commit()
        assert not pg.is_clean(raw), statement
        pg.reset(raw)
        assert pg.is_clean(raw)
    found = raw.execute("select current_setting('search_path'), current_user = session_user").fetchone()
    assert found == ('"$user", public', True)
    assert raw.execute("select count(*) from pg_listening_channels()").fetchone() == (0,)


def test_psycopg_prepared_statements_survive_a_reset(pg: Any, raw: Any) -> None:
    for _ in range(3):
        raw.execute("select %s::int", [1], prepare=True)
        pg.ended_by(raw, raw.execute("set work_mem = '1MB'"))
        raw.commit()
        pg.reset(raw)
    assert raw.execute("select %s::int", [2], prepare=True).fetchone() == (2,)


def test_psycopg_ping_tells_the_dead(pg: Any, raw: Any, databases: Databases) -> None:
    pg.ping(raw)
    assert pg.is_clean(raw)
    databases.rows("one", "select pg_terminate_backend(%s, 5000)", [raw.info.backend_pid])
    with pytest.raises(OperationalError):
        pg.ping(raw)
    assert not pg.is_clean(raw)


def test_psycopg_cancel_stops_a_statement_and_never_raises(pg: Any, raw: Any, databases: Databases) -> None:
    failures: list[BaseException] = []

    def sleep() -> None:
        try:
            raw.execute("select pg_sleep(600)")
        except psycopg.errors.QueryCanceled as error:
            failures.append(error)

    thread = threading.Thread(target=sleep)
    thread.start()
    while not databases.rows("one", "select 1 from pg_stat_activity where query like 'select pg_sleep(600)'"):
        pass
    pg.cancel(raw)
    thread.join(60)
    assert len(failures) == 1
    raw.close()
    pg.cancel(raw)


@pytest.mark.parametrize("own", [{}, {"driver_connect_timeout": "-1"}], ids=["none of its own", "unlimited"])
def test_psycopg_connects_not_for_ever_where_no_time_is_left(own: dict[str, Any]) -> None:
    with ThreadPoolExecutor(1) as pool, socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"postgresql://me@127.0.0.1:{silent.getsockname()[1]}/db"
        driver = make_driver(DataSourceSettings.load(name="silent", driver="psycopg", url=url, **own))
        connecting = pool.submit(driver.connect, -0.2)
        with pytest.raises(OperationalError, match="timeout"):
            connecting.result(60)


def test_psycopg_identity_is_the_servers_own(pg: Any, raw: Any, databases: Databases) -> None:
    ((system,),) = databases.rows("two", "select system_identifier::text from pg_control_system()")
    ((database,),) = databases.rows("two", "select oid::text from pg_database where datname = 'one'")
    assert raw.identity == f"{system}/{database}"
    assert raw.timeline == "00000001"


@pytest.mark.parametrize(
    ("statement", "ended"),
    [
        ("insert into work values (2)", None),
        ("select 1; select 2", None),
        ("savepoint a; insert into work values (2); rollback to savepoint a", None),
        ("rollback to a", None),
        ("rollback to savepoint a", None),
        ("release a", None),
        ("begin", None),
        ("commit", "commit"),
        ("end", "commit"),
        ("/* it is over */ commit", "commit"),
        ("commit; begin", "commit"),
        ("commit and chain", "commit"),
        ("rollback", "rollback"),
        ("abort", "rollback"),
        ("rollback and chain", "rollback"),
        ("rollback; begin", "rollback"),
        ("rollback; insert into work values (2)", "commit"),
        ("prepare transaction 'mine'", "commit"),
    ],
)
def test_psycopg_ended_by(pg: Any, raw: Any, databases: Databases, statement: str, ended: str | None) -> None:
    raw.execute("savepoint a")
    raw.execute("insert into work values (1)")
    raw.add_notice_handler(lambda _notice: None)
    assert pg.ended_by(raw, raw.execute(statement)) == ended
    held_by_user = "prepare" in statement
    if ended is None:
        raw.commit()
    else:
        raw.rollback()
        wanted = ended == "commit" and not held_by_user
        assert bool(databases.rows("one", "select id from work")) == wanted


def test_psycopg_begins_as_is_set_on_the_connection(pg: Any, raw: Any) -> None:
    asked = (
        "select current_setting('transaction_' || name) from unnest(array['isolation', 'read_only', 'deferrable']) name"
    )
    assert pg.begin(raw, "it's") is True
    assert raw.execute("show application_name").fetchone() == ("it's",)
    assert raw.execute(asked).fetchall() == [("read committed",), ("off",), ("off",)]
    assert pg.begin(raw) is True  # a second time it sends nothing: a BEGIN would draw a warning
    raw.rollback()
    raw.isolation_level, raw.read_only, raw.deferrable = psycopg.IsolationLevel.SERIALIZABLE, True, True
    pg.begin(raw)
    assert raw.execute(asked).fetchall() == [("serializable",), ("on",), ("on",)]
    raw.rollback()
    pg.reset(raw)
    pg.begin(raw)
    assert raw.execute(asked).fetchall() == [("read committed",), ("off",), ("off",)]


def test_psycopg_commit_that_the_database_answers_by_rollback_is_a_rollback(pg: Any, raw: Any) -> None:
    with pytest.raises(psycopg.errors.UndefinedTable):
        raw.execute("select * from nowhere")
    assert pg.ended_by(raw, raw.execute("commit")) == "rollback"


def test_psycopg_prepared_statement_that_ends_the_transaction_is_seen(pg: Any, raw: Any) -> None:
    raw.execute("insert into work values (1)")
    assert pg.ended_by(raw, raw.execute("rollback and chain", prepare=True)) == "rollback"


def test_psycopg_executemany_that_commits_is_seen(pg: Any, raw: Any) -> None:
    cursor = raw.cursor()
    cursor.executemany("insert into work values (%s)", [(1,), (2,)])
    assert pg.ended_by(raw, cursor) is None
    cursor.executemany("commit", [()])
    assert pg.ended_by(raw, cursor) == "commit"


def test_psycopg_error_behind_the_users_own_commit_is_a_commit(pg: Any, raw: Any, databases: Databases) -> None:
    raw.execute("insert into work values (1)")
    cursor = raw.cursor()
    with pytest.raises(psycopg.errors.DivisionByZero):
        cursor.execute("commit; select 1 / 0")
    assert pg.ended_by(raw, cursor) == "commit"
    assert databases.rows("one", "select id from work") == [(1,)]


def test_sqlite_begin_takes_the_write_lock(lite: Any) -> None:
    raw, other = lite.connect(), lite.connect()
    lite.begin(raw)
    other.execute("pragma busy_timeout = 0")
    with pytest.raises(sqlite3.OperationalError, match="locked"):
        lite.begin(other)
    lite.begin(raw)
    raw.rollback()
    lite.begin(other)
    assert other.in_transaction
    raw.close()
    other.close()


@pytest.mark.parametrize(("statement", "ended"), [("commit", "commit"), ("rollback", "rollback"), ("select 1", None)])
def test_sqlite_ended_by(lite: Any, statement: str, ended: str | None) -> None:
    raw, reader = lite.connect(), lite.connect()
    for number in (1, 2):
        lite.begin(raw)
        raw.execute("insert into work values (?)", [number])
        assert lite.ended_by(raw, raw.execute(statement)) == ended
        if ended:
            seen = reader.execute("select count(*) from work where id = ?", [number]).fetchone()
            assert seen == (1 if ended == "commit" else 0,)
        raw.commit()
    raw.close()
    reader.close()


def test_sqlite_conflict_that_rolls_back_is_a_rollback(lite: Any) -> None:
    raw = lite.connect()
    lite.begin(raw)
    raw.execute("insert into work values (1)")
    with pytest.raises(sqlite3.IntegrityError):
        raw.execute("insert or rollback into work values (1)")
    assert lite.ended_by(raw, raw.cursor()) == "rollback"
    raw.close()


def test_sqlite_reset_and_clean(lite: Any) -> None:
    raw = lite.connect()
    assert lite.is_clean(raw)
    raw.execute("insert into work values (1)")
    assert not lite.is_clean(raw)
    raw.row_factory = sqlite3.Row
    lite.reset(raw)
    assert lite.is_clean(raw)
    raw.isolation_level = None  # in the middle of a transaction, sqlite3 would commit it
    assert not lite.is_clean(raw)
    lite.reset(raw)
    assert raw.execute("select * from work").fetchall() == []
    lite.close(raw)
    assert not lite.is_clean(raw)
    with pytest.raises(sqlite3.ProgrammingError):
        lite.ping(raw)
    lite.cancel(raw)


@pytest.mark.parametrize(("journal", "level"), [("wal", 2), ("delete", 3), ("truncate", 3)])
def test_sqlite_marked_connection_is_durable(tmp_path: Path, journal: str, level: int) -> None:
    path = tmp_path / "m.db"
    with sqlite3.connect(path) as first:
        first.execute(f"pragma journal_mode = {journal}")
    first.close()
    driver = sqlite_driver(path, mode="cmr")
    raw = driver.connect()
    raw.execute(f"pragma journal_mode = {journal}")
    driver.reset(raw)
    assert raw.execute("pragma synchronous").fetchone() == (level,)
    raw.execute("pragma synchronous = off")
    driver.reset(raw)
    assert raw.execute("pragma synchronous").fetchone() == (level,)
    raw.close()


def test_sqlite_options_are_typed_and_checked(tmp_path: Path) -> None:
    raw = sqlite_driver(tmp_path / "a.db", driver_timeout="0.25").connect()
    assert raw.execute("pragma busy_timeout").fetchone() == (250,)
    raw.close()
    with pytest.raises(ConfigurationError, match=r"driver\.timeout"):
        sqlite_driver(tmp_path / "a.db", driver_timeout="soon").connect()
    with pytest.raises(ConfigurationError, match=r"driver\.isolation_level"):
        sqlite_driver(tmp_path / "a.db", driver_isolation_level="none").connect()
