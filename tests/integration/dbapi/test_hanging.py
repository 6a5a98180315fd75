"""Sessions hang, in a server process that is stopped or behind a network that swallows: no borrower hangs with them."""

from __future__ import annotations

import os
import queue
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psycopg
import pytest

import txpool
from tests.support.proxy import NetworkFault, Proxy
from txpool.datasource import DataSource
from txpool.dbapi.connection import Connection
from txpool.errors import PoolTimeout

if TYPE_CHECKING:
    from tests.conftest import Databases

Stopper = Callable[[int], None]
Maker = Callable[..., DataSource]
#: Seconds until something that ought to have come by itself is given up.
_TIMEOUT = 30
_SIZE = 3


@pytest.fixture
def stop() -> Iterator[Stopper]:
    """`stop(pid)`: that process of the server stands still, until the test is over."""
    stopped: list[int] = []

    def stop(pid: int) -> None:
        os.kill(pid, signal.SIGSTOP)
        stopped.append(pid)

    yield stop
    for pid in stopped:
        go_on(pid)


def go_on(pid: int) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGCONT)


@pytest.fixture
def proxy(databases: Databases) -> Iterator[Proxy]:
    with closing(Proxy(databases.server.port)) as proxy:
        yield proxy


@pytest.fixture
def make(databases: Databases) -> Iterator[Maker]:
    """A datasource whose idle connections are always looked at."""
    databases.execute("one", "create table t (id integer primary key, v text)")
    made: list[DataSource] = []

    def make(port: int = databases.server.port, **options: Any) -> DataSource:
        url = databases.url("one").replace(f":{databases.server.port}/", f":{port}/")
        settings: dict[str, Any] = {"pool_max_size": _SIZE, "pool_max_wait": "10", "pool_check_timeout": "300ms"}
        settings |= {"pool_check_bypass": "0", "password": databases.server.password} | options
        made.append(DataSource(**{"name": "one", "driver": "psycopg", "url": url} | settings))
        return made[-1]

    yield make
    for datasource in made:
        datasource.close()


def within(work: Callable[[], Any]) -> Any:
    """What the work returns or raises, within the test's timeout."""
    ended: queue.Queue[tuple[Any, BaseException | None]] = queue.Queue()

    def run() -> None:
        try:
            ended.put((work(), None))
        except BaseException as error:
            ended.put((None, error))

    threading.Thread(target=run, daemon=True).start()
    value, error = ended.get(timeout=_TIMEOUT)
    if error is not None:
        raise error
    return value


@contextmanager
def borrowed(datasource: DataSource, count: int = _SIZE) -> Iterator[list[Connection]]:
    """So many connections at once."""
    held: list[Connection] = []
    try:
        for _ in range(count):
            held.append(within(datasource.connect))
        yield held
    finally:
        for connection in held:
            connection.close()


def filled(datasource: DataSource, count: int = _SIZE) -> list[int]:
    """The server processes of so many idle connections, the one that is handed out next first."""
    with borrowed(datasource, count) as held:
        pids = [connection.info.backend_pid for connection in held]
    return pids[::-1]


def assert_whole(datasource: DataSource) -> None:
    """As many connections as ever can be had, and each answers for itself."""
    with borrowed(datasource) as held:
        for number, connection in enumerate(held):
            assert within(connection.execute(f"select {number}").fetchone) == (number,)
    assert datasource.statistics().size == _SIZE


def pid_of(connection: Connection) -> int:
    ((pid,),) = connection.execute("select pg_backend_pid()").fetchall()
    assert isinstance(pid, int)
    return pid


def connected_pid(datasource: DataSource) -> int:
    with datasource.connect() as connection:
        return pid_of(connection)


def parent_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def test_one_session_that_stands_still_is_dropped_for_the_next_idle_one(make: Maker, stop: Stopper) -> None:
    datasource = make()
    first, second, third = filled(datasource)
    stop(first)
    assert within(lambda: connected_pid(datasource)) == second
    assert (datasource.statistics().check_failures, datasource.statistics().size) == (1, 2)
    assert_whole(datasource)
    with borrowed(datasource) as held:
        pids = {pid_of(connection) for connection in held}
    assert {second, third} < pids
    assert first not in pids


def test_where_all_stand_still_a_fresh_one_is_opened(make: Maker, stop: Stopper, databases: Databases) -> None:
    datasource = make()
    stopped = filled(datasource)
    for pid in stopped:
        stop(pid)
    assert within(lambda: connected_pid(datasource)) not in stopped
    assert_whole(datasource)
    assert datasource.statistics().check_failures == _SIZE
    # Once they go on they find that nobody is there any more.
    for pid in stopped:
        go_on(pid)
    query = "select 1 from pg_stat_activity where pid = any(%s)"
    for _ in range(1000):
        if not databases.rows("two", query, [stopped]):
            return
        time.sleep(0.01)
    raise AssertionError("the server still keeps sessions that were dropped")


def test_a_server_that_stands_still_as_a_whole_ends_the_wait(make: Maker, stop: Stopper) -> None:
    datasource = make(pool_max_wait="2")
    stopped = filled(datasource)
    server = parent_of(stopped[0])
    for pid in (server, *stopped):
        stop(pid)
    with pytest.raises(
        PoolTimeout, match=r"within 2 s .*\n  \d idle connections? did not answer in time: dropped"
    ) as told:
        within(datasource.connect)
    assert "ConnectionTimeout" not in str(told.value)
    assert datasource.statistics().timeouts == 1
    for pid in (server, *stopped):
        go_on(pid)
    assert_whole(datasource)


@pytest.mark.costly
def test_a_network_that_swallows_ends_the_wait_and_takes_no_place_with_it(make: Maker, proxy: Proxy) -> None:
    datasource = make(proxy.port, pool_max_wait="2")
    filled(datasource)
    proxy.go_dark()
    for _ in range(3):
        with pytest.raises(PoolTimeout, match=r"no connection that works was found within 2 s .*0 of 3 are in use"):
            within(datasource.connect)
    assert (datasource.statistics().timeouts, datasource.statistics().check_failures) == (3, _SIZE)
    assert datasource.statistics().size == 0
    proxy.heal()
    assert_whole(datasource)


def test_a_network_that_has_forgotten_what_was_idle_costs_nobody_the_wait(make: Maker, proxy: Proxy) -> None:
    """As a firewall does to what it has not seen for a while: what exists hangs, and what is new goes through."""
    datasource = make(proxy.port, pool_max_size=20, pool_max_wait="4", pool_check_timeout="5")
    filled(datasource, 20)
    proxy.go_dark()
    proxy._dark = False
    with within(datasource.connect) as connection:
        assert connection.execute("select 1").fetchone() == (1,)


def test_a_server_that_lets_in_and_then_says_nothing_ends_the_wait(make: Maker, proxy: Proxy) -> None:
    datasource = make(proxy.port, pool_max_wait="1")
    proxy.fail_at(b"pg_control_system", NetworkFault.BLACK_HOLE)
    with pytest.raises(PoolTimeout, match="the last attempt to connect failed with ReplyTimeout"):
        within(datasource.connect)
    assert proxy.failed.wait(60)
    proxy.heal()
    assert_whole(datasource)


def test_who_waits_is_handed_one_that_stands_still(make: Maker, stop: Stopper) -> None:
    datasource = make(pool_max_size=1)
    held = datasource.pool.take()
    pid = held.raw.info.backend_pid
    served: queue.Queue[int] = queue.Queue()
    threading.Thread(target=lambda: served.put(connected_pid(datasource)), daemon=True).start()
    while not datasource.statistics().waiting:
        pass
    stop(pid)
    datasource.pool.give_back(held)
    assert served.get(timeout=_TIMEOUT) != pid
    assert datasource.statistics().size == 1


@pytest.mark.parametrize("left", ["insert into t values (1, 'lost')", "set work_mem = '1MB'"], ids=["work", "SET"])
def test_giving_back_does_not_wait_for_a_session_that_stands_still(
    make: Maker, stop: Stopper, databases: Databases, left: str
) -> None:
    datasource = make()
    connection = datasource.connect()
    pid = pid_of(connection)
    connection.execute(left)
    if left.startswith("set"):
        connection.commit()
    stop(pid)
    within(connection.close)
    assert (datasource.statistics().reset_failures, datasource.statistics().size) == (1, 0)
    assert_whole(datasource)
    go_on(pid)
    assert databases.rows("one", "select * from t") == []


def test_a_check_of_all_drops_those_that_stand_still(make: Maker, stop: Stopper) -> None:
    datasource = make()
    first, _, third = filled(datasource)
    stop(first)
    stop(third)
    within(datasource.pool.check)
    assert (datasource.statistics().check_failures, datasource.statistics().idle) == (2, 1)
    assert_whole(datasource)


def test_within_the_bypass_nothing_is_looked_at(make: Maker, stop: Stopper) -> None:
    datasource = make(pool_check_bypass="1h")
    first, *_ = filled(datasource)
    stop(first)
    connection = within(datasource.connect)
    assert connection.info.backend_pid == first
    assert datasource.statistics().check_failures == 0
    within(connection.close)


def test_a_transaction_goes_on_with_the_next(make: Maker, stop: Stopper, databases: Databases) -> None:
    datasource = make()
    for pid in filled(datasource)[:2]:
        stop(pid)

    def work() -> None:
        with txpool.transaction():
            txpool.connect(datasource).execute("insert into t values (1, 'kept')")

    within(work)
    assert databases.rows("one", "select * from t") == [(1, "kept")]
    assert databases.prepared() == []
    assert_whole(datasource)


def test_a_transaction_that_gets_none_rolls_back(make: Maker, proxy: Proxy, databases: Databases) -> None:
    reached = make()
    lost = make(proxy.port, name="lost", pool_max_wait="1")
    filled(lost, 2)
    proxy.go_dark()

    def work() -> None:
        with txpool.transaction():
            txpool.connect(reached).execute("insert into t values (1, 'lost')")
            txpool.connect(lost).execute("insert into t values (2, 'lost')")

    with pytest.raises(PoolTimeout, match="did not answer in time: dropped"):
        within(work)
    assert databases.rows("one", "select * from t") == []
    assert databases.prepared() == []


def test_an_interrupted_look_loses_no_place(make: Maker, stop: Stopper) -> None:
    """A signal strikes while the borrower waits for the answer."""
    datasource = make(pool_max_size=1, pool_check_timeout="60", pool_max_wait="600")
    (pid,) = filled(datasource, 1)
    stop(pid)
    main = threading.main_thread().ident
    assert main is not None
    timer = threading.Timer(0.3, signal.pthread_kill, [main, signal.SIGINT])
    timer.start()
    with pytest.raises(KeyboardInterrupt):
        datasource.connect()
    timer.join()
    assert datasource.statistics().size == 0
    with within(datasource.connect) as connection:
        assert pid_of(connection) != pid


def test_closing_does_not_wait_however_much_is_still_to_be_sent(make: Maker, stop: Stopper) -> None:
    datasource = make()
    held = datasource.pool.take()
    stop(held.raw.info.backend_pid)
    held.raw.pgconn.send_query(b"select '" + b"x" * 30_000_000 + b"'")
    assert held.raw.pgconn.flush() == 1
    within(lambda: datasource.pool.discard(held))
    assert datasource.statistics().size == 0


def test_all_the_hosts_of_a_url_share_the_time(databases: Databases, proxy: Proxy) -> None:
    proxy.go_dark()
    hosts = ",".join([f"127.0.0.1:{proxy.port}"] * 20)
    url = databases.url("one").replace(f"127.0.0.1:{databases.server.port}", hosts)
    options: dict[str, Any] = {"password": databases.server.password, "pool_max_wait": "1"}
    with (
        DataSource(name="one", driver="psycopg", url=url, **options) as datasource,
        pytest.raises(PoolTimeout, match="timeout") as told,
    ):
        within(datasource.connect)
    assert isinstance(told.value.__cause__, psycopg.OperationalError)
