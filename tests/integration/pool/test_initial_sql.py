"""pool.initial-sql: each connection of the pool runs it once, and again once its session was reset."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psycopg
import pytest

import txpool
from tests.support.strangers import Strangers
from txpool.config.settings import DataSourceSettings
from txpool.datasource import DataSource
from txpool.errors import ConfigurationError
from txpool.resources.postgresql.session.libpq import LibpqSession
from txpool.tm.demarcation.block import transaction

if TYPE_CHECKING:
    from tests.conftest import Databases
    from tests.integration.pool.conftest import OpenSource


def asked(datasource: DataSource, query: str) -> Any:
    with closing(datasource.connect()) as connection:
        return connection.execute(query).fetchone()[0]


def test_it_is_run_once_for_each_connection(source: OpenSource, databases: Databases) -> None:
    databases.execute("one", "create table runs (pid int default pg_backend_pid())")
    datasource = source(pool_max_size=2, pool_initial_sql="insert into runs default values")
    with closing(datasource.connect()) as one, closing(datasource.connect()) as two:
        pids = {one.info.backend_pid, two.info.backend_pid}
    for _ in range(3):
        datasource.connect().close()
    assert sorted(databases.rows("one", "select pid from runs")) == sorted((pid,) for pid in pids)


@pytest.mark.parametrize(
    "dirt", ["set work_mem to '1MB'", "set search_path to nowhere", "do $$ begin end $$", "create temp table x ()"]
)
@pytest.mark.parametrize("reset", ["auto", "always"])
def test_what_it_has_set_is_set_again_after_a_reset(source: OpenSource, dirt: str, reset: str) -> None:
    datasource = source(
        pool_max_size=1,
        pool_reset=reset,
        pool_initial_sql="set work_mem to '77MB'; set search_path to elsewhere; create temp table mine (n int) -- note",
    )
    with closing(datasource.connect()) as connection:
        pid = connection.info.backend_pid
        connection.execute(dirt)
        connection.commit()
    with closing(datasource.connect()) as connection:
        assert connection.info.backend_pid == pid
        assert connection.execute("show work_mem").fetchone() == ("77MB",)
        assert connection.execute("show search_path").fetchone() == ("elsewhere",)
        assert connection.execute("select to_regclass('x')").fetchone() == (None,)
        assert connection.execute("select count(*) from mine").fetchone() == (0,)
        connection.rollback()


@pytest.mark.parametrize("undoing", ["reset all", "reset work_mem", "discard temp", "drop table mine", "unlisten news"])
def test_what_a_user_has_undone_is_done_again(source: OpenSource, undoing: str) -> None:
    initial = "set work_mem to '77MB'; create temp table mine (n int); listen news"
    datasource = source(pool_max_size=1, pool_initial_sql=initial)
    with closing(datasource.connect()) as connection:
        pid = connection.info.backend_pid
        connection.execute(undoing)
        connection.commit()
    with closing(datasource.connect()) as connection:
        assert connection.info.backend_pid == pid
        assert connection.execute("show work_mem").fetchone() == ("77MB",)
        assert connection.execute("select pg_listening_channels()").fetchall() == [("news",)]
        assert connection.execute("select count(*) from mine").fetchone() == (0,)
        connection.rollback()


def test_the_reset_and_it_are_one_message(source: OpenSource) -> None:
    datasource = source(pool_max_size=1, pool_initial_sql="set work_mem to '77MB'")
    sent = []
    with closing(datasource.connect()) as connection:
        connection.execute("set work_mem to '1MB'")
        connection.commit()
        raw = connection.pooled.raw
        send = LibpqSession.send
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(LibpqSession, "send", lambda self, text: (sent.append(text), send(self, text))[1])
            datasource.driver_adapter.reset(raw)
    assert len(sent) == 1


def test_a_command_that_refuses_others_beside_it(source: OpenSource) -> None:
    """It cannot be in one message with the reset, and is run behind it."""
    datasource = source(pool_max_size=1, pool_initial_sql="discard all")
    with closing(datasource.connect()) as connection:
        pid = connection.info.backend_pid
        connection.execute("set work_mem to '1MB'")
        connection.commit()
    assert asked(datasource, "select pg_backend_pid()") == pid
    assert asked(datasource, "show work_mem") != "1MB"


def test_what_it_leaves_open_is_committed(source: OpenSource, databases: Databases) -> None:
    datasource = source(pool_max_size=1, pool_initial_sql="begin; insert into t values (1, 'initial')")
    with closing(datasource.connect()) as connection:
        assert connection.info.transaction_status == psycopg.pq.TransactionStatus.IDLE
        assert databases.rows("one", "select v from t") == [("initial",)]


def test_its_failure_is_the_drivers_error_and_names_the_datasource(source: OpenSource) -> None:
    datasource = source(pool_initial_sql="select nothing_like_it")
    with pytest.raises(psycopg.errors.UndefinedColumn, match=r"datasource one .*pool\.initial-sql failed: ") as caught:
        datasource.connect()
    assert isinstance(caught.value, txpool.ProgrammingError)
    assert datasource.statistics().size == 0
    others = "select count(*) from pg_stat_activity where datname = 'one' and pid <> pg_backend_pid()"
    assert asked(source(name="plain"), others) == 0


@pytest.mark.parametrize("statement", ["select '${env:KEY}', missing", "select '${env:KEY}'::int", "select '${file:k}"])
def test_no_secret_in_it_is_shown(
    source: OpenSource, statement: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KEY", "hunter2hunter2")
    monkeypatch.chdir(tmp_path)
    Path("k").write_text("hunter2hunter2\n")
    Path("k").chmod(0o600)
    datasource = source(pool_initial_sql=statement)
    with pytest.raises(psycopg.Error, match=r"(?s)pool\.initial-sql failed: .*\*\*\*") as caught:
        datasource.connect()
    shown = [*map(str, (caught.value, caught.value.__cause__, caught.value.__context__)), repr(caught.value)]
    assert "hunter2" not in "".join([*shown, str(datasource.statistics()), repr(datasource.settings)])


def test_no_secret_in_it_is_logged_where_it_fails_at_a_reset(
    source: OpenSource, databases: Databases, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KEY", "hunter2hunter2")
    databases.execute("one", "create table there (id integer)")
    with closing(source(pool_initial_sql="select '${env:KEY}' from there").connect()) as connection:
        connection.execute("set work_mem to '1MB'")
        connection.commit()
        databases.execute("one", "drop table there")
    assert "could not be reset: UndefinedTable: " in caplog.text
    assert "hunter2" not in caplog.text


def test_copy_is_an_error_and_no_endless_loop(source: OpenSource) -> None:
    with pytest.raises(psycopg.ProgrammingError, match=r"pool\.initial-sql failed: COPY"):
        source(pool_initial_sql="copy t from stdin").connect()


def test_it_is_bounded_as_the_connect_is(source: OpenSource) -> None:
    with pytest.raises(txpool.PoolTimeout):
        source(pool_initial_sql="select pg_sleep(60)").connect(timeout=0.2)


def test_a_branch_of_a_role_that_it_takes_on(source: OpenSource, strangers: Strangers, databases: Databases) -> None:
    """PREPARE and COMMIT PREPARED as the role, and recovery, which runs no initial SQL, takes it on by itself."""
    strangers.admin("drop role if exists owner_of_all", "create role owner_of_all", "grant owner_of_all to app")
    strangers.admin("grant all on t to owner_of_all")
    two = source(name="two", url=databases.url("two"), mode="xa")
    databases.execute("two", "create table t (id integer primary key, v text)")
    options: dict[str, Any] = {"url": strangers.url(), "pool_initial_sql": "set role owner_of_all"}
    one = source(**options)
    with transaction():
        one.connect().execute("insert into t values (1, current_user)")
        two.connect().execute("insert into t values (1, 'two')")
    assert databases.rows("one", "select v from t") == [("owner_of_all",)]

    with closing(one.branch_recovery()._driver.connect()) as raw:  # type: ignore[attr-defined]
        assert raw.execute("select current_user").fetchone() == ("app",), "recovery's own connections run none"
    one.close()
    strangers.admin("revoke all on t from owner_of_all", "drop role owner_of_all")


def test_a_table_of_marks_is_not_looked_for_on_a_path_that_recovery_does_not_have() -> None:
    options: dict[str, Any] = {"name": "one", "driver": "psycopg", "mode": "cmr", "url": "postgresql://h/db"}
    options["pool_initial_sql"] = "SET search_path TO app"
    with pytest.raises(ConfigurationError, match=r"recovery would not find .*write cmr\.table = schema\.xids"):
        DataSourceSettings.load(**options)
    DataSourceSettings.load(cmr_table="app.xids", **options)


def test_sqlite(tmp_path: Path) -> None:
    with closing(sqlite3.connect(tmp_path / "one.db")) as raw:
        raw.execute("create table parents (n integer primary key)")
        raw.execute("create table children (parent references parents)")
    options: dict[str, Any] = {"name": "lite", "driver": "sqlite3", "mode": "local", "pool_max_size": 1}
    with DataSource(**options, url=f"sqlite:///{tmp_path}/one.db", pool_initial_sql="pragma foreign_keys = on") as it:
        for _ in range(2):
            with closing(it.connect()) as connection:
                with pytest.raises(sqlite3.IntegrityError, match="FOREIGN KEY"):
                    connection.execute("insert into children values (1)")
                connection.execute("pragma foreign_keys = off")
                connection.row_factory = sqlite3.Row
    failed = pytest.raises(sqlite3.OperationalError, match=r"datasource lite .*pool\.initial-sql failed: ")
    with DataSource(**options, url=f"sqlite:///{tmp_path}/one.db", pool_initial_sql="nonsense") as it, failed:
        it.connect()
