"""flush, resize, suspend_pool and resume_pool by code, and a pool that is off, on a real server."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from typing import TYPE_CHECKING, Any

import psycopg
import pytest

import txpool
from tests.support.waiting import until
from txpool.datasource import DataSource
from txpool.errors import ConfigurationError
from txpool.tm.demarcation.block import transaction

if TYPE_CHECKING:
    from tests.conftest import Databases
    from tests.integration.pool.conftest import OpenSource

RUNNING = "select count(*) from pg_stat_activity where datname = 'one' and query ~ '^select pg_sleep'"


def sessions(databases: Databases) -> set[int]:
    query = "select pid from pg_stat_activity where datname = 'one' and application_name = 'pooled'"
    return {pid for (pid,) in databases.rows("two", query)}


def pid_of(connection: Any) -> int:
    return int(connection.execute("select pg_backend_pid()").fetchone()[0])


@pytest.fixture
def three(source: OpenSource) -> DataSource:
    return source(pool_max_size=3, driver_application_name="pooled")


def gone(databases: Databases, *pids: int) -> None:
    until(lambda: not sessions(databases) & set(pids))


@pytest.mark.parametrize("how", ["idle", "graceful", "all"])
def test_flush(three: DataSource, databases: Databases, how: Any) -> None:
    held, other = three.connect(), three.connect()
    kept, idle = pid_of(held), pid_of(other)
    held.commit()
    other.close()
    three.flush(how)
    gone(databases, idle)
    assert pid_of(held) == kept, "what is taken goes on"
    held.close()
    if how == "idle":
        assert sessions(databases) == {kept}
    else:
        gone(databases, kept)
    with closing(three.connect()) as again:
        assert (pid_of(again) == kept) is (how == "idle")


def test_flush_all_cancels_what_plain_connections_execute_and_nothing_in_a_transaction(
    three: DataSource, databases: Databases
) -> None:
    def plain() -> None:
        with closing(three.connect()) as connection:
            connection.execute("select pg_sleep(60)")

    def enlisted() -> str:
        with transaction():
            three.connect().execute("insert into t values (1, 'enlisted')")
            three.connect().execute("select pg_sleep(2)")
        return "committed"

    with ThreadPoolExecutor(2) as threads:
        one, two = threads.submit(plain), threads.submit(enlisted)
        until(lambda: databases.rows("two", RUNNING) == [(2,)])
        pids = sessions(databases)
        three.flush("all")
        with pytest.raises(psycopg.errors.QueryCanceled):
            one.result(60)
        assert two.result(60) == "committed"
    assert databases.rows("one", "select v from t") == [("enlisted",)]
    gone(databases, *pids)
    assert three.statistics().size == 0


def test_flush_all_cancels_a_connection_that_has_been_in_a_transaction_and_is_plain_again(
    source: OpenSource, databases: Databases
) -> None:
    datasource = source(pool_max_size=1, driver_application_name="pooled")
    with closing(datasource.connect()) as connection, ThreadPoolExecutor(1) as threads:
        with transaction():
            connection.execute("insert into t values (1, 'joined')")
        sleeping = threads.submit(connection.execute, "select pg_sleep(20)")
        until(lambda: databases.rows("two", RUNNING) == [(1,)])
        datasource.flush("all")
        with pytest.raises(psycopg.errors.QueryCanceled):
            sleeping.result(60)


def test_flush_all_leaves_a_connection_alone_before_its_user_has_it(source: OpenSource) -> None:
    """It may be for a transaction."""
    cancelled: list[Any] = []
    flushed: list[bool] = []

    class Flushing(txpool.PoolListener):
        def taken(self, pool: str, connection: Any) -> None:
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(datasource.driver_adapter, "cancel", lambda raw, _: cancelled.append(raw))
                datasource.flush("all")
            flushed.append(True)

    datasource = source(pool_max_size=1, listeners=[Flushing()])
    with transaction():
        datasource.connect().execute("insert into t values (1, 'a')")
    assert flushed
    assert not cancelled


def test_a_transaction_that_was_enlisted_before_the_suspension_goes_on_to_its_end(
    three: DataSource, databases: Databases
) -> None:
    with transaction():
        connection = three.connect()
        connection.execute("insert into t values (1, 'a')")
        three.suspend_pool()
        assert three.statistics().suspended
        three.connect().execute("insert into t values (2, 'b')")  # the same branch
        connection.execute("insert into t values (3, 'c')")
    assert databases.rows("one", "select count(*) from t") == [(3,)]
    with pytest.raises(txpool.PoolTimeout, match=r"resume_pool\(\)"):
        three.connect(timeout=0.01)
    with pytest.raises(txpool.PoolTimeout), transaction():
        three.connect(timeout=0.01)
    three.resume_pool()
    three.connect().close()


def test_resize(three: DataSource, databases: Databases) -> None:
    held = [three.connect() for _ in range(3)]
    three.resize(0, 1)
    for connection in held:
        connection.close()
    assert three.statistics().size == 1
    three.resize(2, 4)
    three.pool.wait_ready()
    assert len(sessions(databases)) == 2
    for sizes in ((3, 2), (-1, 2), (0, 0)):
        with pytest.raises(ConfigurationError, match="do not fit"):
            three.resize(*sizes)


def test_flush_with_another_word(three: DataSource) -> None:
    with pytest.raises(ConfigurationError, match=r"flush\('now'\): write one of all, idle, graceful"):
        three.flush("now")  # type: ignore[arg-type]


def test_off_a_session_lasts_from_connect_to_close(source: OpenSource, databases: Databases) -> None:
    datasource = source(pool_enabled=False, pool_max_size=2, driver_application_name="pooled")
    with closing(datasource.connect()) as connection:
        first = pid_of(connection)
        connection.execute("insert into t values (1)")  # and never committed
    gone(databases, first)
    with closing(datasource.connect()) as connection:
        second = pid_of(connection)
        assert second != first
    gone(databases, second)
    assert databases.rows("one", "select * from t") == []
    two = datasource, source(name="two", url=databases.url("two"), pool_enabled=False)
    with transaction():
        for number, each in enumerate(two):
            each.connect().execute("create table of_both ()")
            assert each.statistics().taken == 1, number
    for each in two:
        assert each.statistics().size == 0
    for name in ("one", "two"):
        assert databases.rows(name, "select to_regclass('of_both') is not null") == [(True,)]
    assert databases.prepared() == []


def test_off_with_a_minimum(source: OpenSource) -> None:
    with pytest.raises(ConfigurationError, match=r"pool\.min-size = '1' has no use: pool\.enabled = false keeps no"):
        source(pool_enabled=False, pool_min_size=1)
    with pytest.raises(ConfigurationError, match="does not fit"):
        source(pool_enabled=False).resize(1, 2)


def test_listeners_of_a_datasource(source: OpenSource) -> None:
    class Heard(txpool.PoolListener):
        def __init__(self) -> None:
            self.pids: list[int] = []

        def connection_opened(self, pool: str, connection: Any, seconds: float) -> None:
            assert pool == "one"
            assert seconds > 0
            self.pids.append(connection.info.backend_pid)

    first, later = Heard(), Heard()
    datasource = source(listeners=[first], pool_max_size=1)
    datasource.add_listener(later)
    with closing(datasource.connect()) as connection:
        assert first.pids == later.pids == [pid_of(connection)]
    datasource.remove_listener(later)
    datasource.flush()
    datasource.connect().close()
    assert (len(first.pids), len(later.pids)) == (2, 1)
