"""What users of a pool expect of it, on a real server: nothing is lost, everybody is served in turn, nobody rushes."""

from __future__ import annotations

import ctypes
import gc
import os
import random
import signal
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager, nullcontext, suppress
from pathlib import Path
from typing import TYPE_CHECKING

import psycopg
import pytest

import txpool
from tests.support.forking import in_child
from txpool.datasource import DataSource
from txpool.tm.scope import transaction

if TYPE_CHECKING:
    from tests.conftest import Databases
    from tests.integration.pool.conftest import OpenSource

NAME = "pooled"
BORROWS = 10_000


def until(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline, "it never happened"
        time.sleep(0.005)


def sessions(databases: Databases) -> set[int]:
    """The server's sessions that are the pool's."""
    found = databases.rows("two", "select pid from pg_stat_activity where application_name = %s", [NAME])
    return {pid for (pid,) in found}


def kill(databases: Databases, *pids: int) -> None:
    databases.rows("two", "select pg_terminate_backend(pid, 5000) from unnest(%s::int[]) pid", [list(pids)])


def nothing_is_lost(datasource: DataSource, databases: Databases, size: int) -> None:
    """All places can be taken at once, by connections that work; the server has these and no other."""
    until(lambda: not datasource.statistics().taken)
    held = [datasource.connect(timeout=20) for _ in range(size)]
    pids = {connection.execute("select pg_backend_pid()").fetchone()[0] for connection in held}
    assert len(pids) == size
    with pytest.raises(txpool.PoolTimeout):
        datasource.connect(timeout=0)
    for connection in held:
        connection.close()
    # What was interrupted within the driver's own connect is in no place of the pool, and in the collector's hands.
    until(lambda: gc.collect() >= 0 and sessions(databases) == pids)
    assert datasource.statistics().size == size


@pytest.fixture
def pooled(source: OpenSource) -> Callable[..., DataSource]:
    return lambda **options: source(driver_application_name=NAME, **options)


# -- in turn --------------------------------------------------------------------------------------------------------


def test_first_in_first_out_under_load(pooled: Callable[..., DataSource]) -> None:
    datasource = pooled(pool_max_size=2, pool_max_wait=60)
    order: list[int] = []
    turn = threading.Lock()
    with ThreadPoolExecutor(40) as threads:
        held = [datasource.connect() for _ in range(2)]

        def work(number: int) -> None:
            connection = datasource.connect()
            with turn:
                order.append(number)
            connection.execute("select pg_sleep(0.01)")
            connection.close()

        for number in range(40):
            threads.submit(work, number)
            until(lambda number=number: datasource.statistics().waiting == number + 1)  # type: ignore[misc]
        for connection in held:
            connection.close()
    # Two are served at a time, so that two neighbours may change places in this list.
    assert all(abs(place - number) <= 2 for place, number in enumerate(order)), order
    assert sorted(order) == list(range(40))


def test_everybody_has_as_many_turns(pooled: Callable[..., DataSource]) -> None:
    datasource = pooled(pool_max_size=2, pool_max_wait=60)
    turns: Counter[int] = Counter()
    stop = threading.Event()

    def work(number: int) -> None:
        while not stop.is_set():
            with closing(datasource.connect()) as connection:
                connection.execute("select pg_sleep(0.002)")
                turns[number] += 1

    with ThreadPoolExecutor(16) as threads:
        futures = [threads.submit(work, number) for number in range(16)]
        until(lambda: sum(turns.values()) > 600)
        stop.set()
        for future in futures:
            future.result(30)
    assert min(turns.values()) > max(turns.values()) / 2, turns


# -- nothing is lost ------------------------------------------------------------------------------------------------


# An interrupt within a callback of the garbage collection, or of a weak reference, is swallowed there.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
# One that was interrupted within the driver's own connect is closed as it is dropped. psycopg warns of that: as an
# error, the warning would keep the connection.
@pytest.mark.filterwarnings("ignore::ResourceWarning")
def test_no_connection_is_lost_under_interrupts(pooled: Callable[..., DataSource], databases: Databases) -> None:
    """Ctrl-C in the main thread, wherever it strikes."""
    datasource = pooled(pool_max_size=3, pool_max_wait=20, pool_check_bypass="0")
    before = signal.signal(signal.SIGALRM, lambda *_: (_ for _ in ()).throw(KeyboardInterrupt()))
    chance = random.Random(14)
    interrupted = 0
    try:
        for _ in range(300):
            with suppress(KeyboardInterrupt):
                try:
                    signal.setitimer(signal.ITIMER_REAL, chance.uniform(0.0001, 0.004))
                    with closing(datasource.connect()) as connection:
                        connection.execute("select pg_sleep(0.001)")
                        connection.execute("select 1")
                finally:
                    signal.setitimer(signal.ITIMER_REAL, 0)
                continue
            interrupted += 1
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert interrupted > 30
    connection = None
    nothing_is_lost(datasource, databases, 3)


class Struck(BaseException):
    """An exception from outside, as a thread's cancellation is."""


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::ResourceWarning")
def test_no_connection_is_lost_under_asynchronous_exceptions(
    pooled: Callable[..., DataSource], databases: Databases
) -> None:
    datasource = pooled(pool_max_size=3, pool_max_wait=20)
    stop = threading.Event()
    struck: Counter[str] = Counter()

    def use() -> None:
        with closing(datasource.connect()) as connection:
            connection.execute("select pg_sleep(0.001)")

    def work() -> None:
        while True:  # whatever strikes, and wherever: the id of a thread that has ended may be the pool's own thread's
            try:
                while not stop.is_set():
                    with suppress(txpool.Error):
                        use()
                return
            except Struck:
                struck["struck"] += 1

    threads = [threading.Thread(target=work) for _ in range(6)]
    for thread in threads:
        thread.start()
    chance = random.Random(15)
    deadline = time.monotonic() + 5
    while time.monotonic() < deadline:
        time.sleep(0.004)
        victim = chance.choice(threads)
        ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(victim.ident or 0), ctypes.py_object(Struck))
    time.sleep(0.5)  # the last one has struck
    stop.set()
    for thread in threads:
        thread.join(30)
        assert not thread.is_alive()
    assert struck["struck"] > 30
    del thread, threads, victim
    nothing_is_lost(datasource, databases, 3)


@pytest.mark.slow
def test_no_connection_is_lost_under_timeouts_and_kills(
    pooled: Callable[..., DataSource], databases: Databases
) -> None:
    datasource = pooled(pool_max_size=3, pool_check_bypass="0", pool_min_size=1)
    stop = threading.Event()
    outcomes: Counter[str] = Counter()

    def work(seed: int) -> None:
        chance = random.Random(seed)
        while not stop.is_set():
            try:
                with closing(datasource.connect(timeout=chance.choice([0, 0.001, 0.01, 1]))) as connection:
                    connection.execute("select pg_sleep(0.002)")
                outcomes["ok"] += 1
            except txpool.PoolTimeout:
                outcomes["timeout"] += 1
            except psycopg.OperationalError:
                outcomes["killed"] += 1

    with ThreadPoolExecutor(8) as threads:
        futures = [threads.submit(work, seed) for seed in range(8)]
        for _ in range(20):
            time.sleep(0.1)
            kill(databases, *list(sessions(databases))[:2])
        stop.set()
        for future in futures:
            future.result(60)
    assert min(outcomes["ok"], outcomes["timeout"], outcomes["killed"]) > 0, outcomes
    nothing_is_lost(datasource, databases, 3)


#: What goes wrong in one of the steps of a borrow.
FAULTS = (
    *["none"] * 6,
    *["killed before", "killed while idle", "killed in use", "server error", "left open", "left failed", "dirty"],
    *["dropped", "timeout", "transaction", "rolled back", "separate", "flush", "other thread"],
)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::ResourceWarning")
def test_ten_thousand_borrows_with_a_random_fault_in_each_step(
    pooled: Callable[..., DataSource], databases: Databases
) -> None:
    """TXPOOL_SEED=… runs one again."""
    seed = int(os.environ.get("TXPOOL_SEED", "0")) or random.SystemRandom().randrange(1 << 30)
    print(f"TXPOOL_SEED={seed}")
    datasource = pooled(pool_max_size=4, pool_max_wait=30, pool_check_bypass="0", pool_min_size=1)
    numbers = iter(range(BORROWS))
    lock = threading.Lock()
    unexpected: list[BaseException] = []
    seen: Counter[str] = Counter()

    def work(thread: int) -> None:
        chance = random.Random(seed * 100 + thread)
        while True:
            with lock:
                number = next(numbers, None)
            if number is None:
                return
            fault = chance.choice(FAULTS) if chance.random() < 0.5 else "none"
            if fault.startswith("killed") and chance.random() < 0.7:  # each costs a session of the server's
                fault = "none"
            seen[fault] += 1
            try:
                borrow(datasource, databases, fault)
            except (psycopg.OperationalError, txpool.PoolTimeout, txpool.TransactionError):
                pass  # its session was killed, at its COMMIT perhaps; or there was none
            except BaseException as error:
                unexpected.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not unexpected, unexpected[:3]
    assert seen.keys() == set(FAULTS)
    numbers_now = datasource.statistics()
    assert numbers_now.takes >= BORROWS * 0.8
    nothing_is_lost(datasource, databases, 4)
    assert databases.prepared() == []
    assert databases.rows("one", "select count(*) from t where v = 'left'") == [(0,)]


def borrow(datasource: DataSource, databases: Databases, fault: str) -> None:
    match fault:
        case "killed before":
            kill(databases, *list(sessions(databases))[:1])
        case "timeout":
            datasource.connect(timeout=0).close()
            return
        case "transaction" | "rolled back":
            with suppress(ZeroDivisionError), transaction():
                datasource.connect().execute("select 1")
                if fault == "rolled back":
                    raise ZeroDivisionError
            return
        case "separate":
            user, password = databases.server.user, databases.server.password
            datasource.connect(user=user, password=password).close()
            return
        case "flush":
            datasource.flush(random.choice(["idle", "graceful", "all"]))  # type: ignore[arg-type]
    connection = datasource.connect()
    try:
        _, pid = connection.execute("select 1, pg_backend_pid()").fetchone()
        match fault:
            case "killed in use":
                kill(databases, pid)
                connection.execute("select 1")
            case "server error" | "left failed":
                with suppress(psycopg.errors.DivisionByZero):
                    connection.execute("select 1/0")
                if fault == "server error":
                    connection.rollback()
            case "left open":
                connection.execute("insert into t values (%s, 'left')", [random.randrange(1 << 30)])
            case "dirty":
                connection.execute("set work_mem to '1MB'")
                connection.commit()
            case "dropped":
                del connection  # without close()
                return
            case "other thread":
                thread = threading.Thread(target=connection.close)
                thread.start()
                thread.join()
    finally:
        if fault != "dropped":
            connection.close()
    if fault == "killed while idle":
        kill(databases, pid)


# -- what fails is said at once, and nobody rushes ------------------------------------------------------------------


def test_a_wrong_password_is_said_at_once_to_everybody(pooled: Callable[..., DataSource]) -> None:
    datasource = pooled(password="wrong", pool_max_size=2, pool_max_wait=3600)
    with ThreadPoolExecutor(20) as threads:
        results = [threads.submit(datasource.connect) for _ in range(20)]
        for result in results:
            error = result.exception(60)
            assert isinstance(error, psycopg.OperationalError | txpool.OperationalError)
            assert "password authentication failed" in str(error)
            assert "datasource one" in str(error)
            assert str(error).count("datasource one") == 1


@pytest.mark.parametrize("host", ["127.0.0.1:1", "no-such-host.invalid:5432"])
def test_a_wrong_host_is_said_at_once_to_everybody(pooled: Callable[..., DataSource], host: str) -> None:
    datasource = pooled(url=f"postgresql://app@{host}/one", pool_max_size=2, pool_max_wait=3600)
    with ThreadPoolExecutor(20) as threads:
        results = [threads.submit(datasource.connect) for _ in range(20)]
        assert all(isinstance(result.exception(60), psycopg.OperationalError) for result in results)
    assert datasource.statistics().failure


class Away:
    """A port where a server is away: it hangs up on whoever comes, and counts them."""

    def __init__(self) -> None:
        self.came = 0
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=128)
        self.port = self._listener.getsockname()[1]
        threading.Thread(target=self._run, daemon=True).start()

    def _run(self) -> None:
        with suppress(OSError):
            while True:
                connection, _ = self._listener.accept()
                self.came += 1
                time.sleep(0.02)
                connection.close()

    def close(self) -> None:
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()


@contextmanager
def away() -> Iterator[Away]:
    with closing(Away()) as it:
        yield it


def test_thirty_who_wait_do_not_rush_on_a_server_that_is_away(pooled: Callable[..., DataSource]) -> None:
    """As many try as there are places; all hear why."""
    with away() as server, ThreadPoolExecutor(30) as threads:
        datasource = pooled(url=f"postgresql://app@127.0.0.1:{server.port}/one", pool_max_size=4, pool_max_wait=60)
        start = threading.Barrier(30)

        def work() -> None:
            start.wait()
            datasource.connect()

        results = [threads.submit(work) for _ in range(30)]
        assert all(isinstance(result.exception(60), psycopg.OperationalError) for result in results)
        # Who comes only when the first have failed already tries by himself.
        assert server.came < 30, server.came


def test_the_background_backs_off(pooled: Callable[..., DataSource]) -> None:
    with away() as server:
        datasource = pooled(url=f"postgresql://app@127.0.0.1:{server.port}/one", pool_min_size=4, pool_max_size=4)
        time.sleep(3)
        # Attempts after 0, 0.1, 0.3, 0.7, 1.5 and 3.1 seconds; libpq may try an address twice, with and without TLS.
        assert 2 <= server.came <= 12, server.came
        datasource.close()


# -- sizes ----------------------------------------------------------------------------------------------------------


def test_reconnect_after_a_restart_of_the_server(pooled: Callable[..., DataSource], databases: Databases) -> None:
    datasource = pooled(pool_min_size=2, pool_max_size=3, pool_check_bypass="0")
    datasource.pool.wait_ready()
    held = datasource.connect()
    held.execute("select 1")
    databases.server.stop("immediate")
    with pytest.raises(psycopg.OperationalError):
        held.execute("select 1")
    held.close()
    with pytest.raises(psycopg.OperationalError):
        datasource.connect()
    databases.server.start()
    with closing(datasource.connect()) as connection:
        assert connection.execute("select 1").fetchone() == (1,)
    datasource.pool.wait_ready()
    nothing_is_lost(datasource, databases, 3)


def test_grow_spike_and_shrink(pooled: Callable[..., DataSource], databases: Databases) -> None:
    datasource = pooled(pool_min_size=1, pool_max_size=5, pool_idle_timeout="300ms")
    datasource.pool.wait_ready()
    assert len(sessions(databases)) == 1
    with ThreadPoolExecutor(5) as threads:
        barrier = threading.Barrier(5)

        def work() -> None:
            with closing(datasource.connect()) as connection:
                connection.execute("select 1")
                barrier.wait()

        for future in [threads.submit(work) for _ in range(5)]:
            future.result(30)
    assert datasource.statistics().size == 5
    until(lambda: len(sessions(databases)) == 1)
    assert datasource.statistics().size == 1


def test_keepalive_finds_the_dead_and_replaces_them(pooled: Callable[..., DataSource], databases: Databases) -> None:
    datasource = pooled(pool_min_size=2, pool_max_size=4, pool_keepalive="100ms")
    datasource.pool.wait_ready()
    before = sessions(databases)
    kill(databases, *before)
    until(lambda: datasource.statistics().check_failures >= 2)
    until(lambda: len(sessions(databases)) == 2)
    assert not sessions(databases) & before


def test_reset_and_a_reset_that_fails(pooled: Callable[..., DataSource], databases: Databases) -> None:
    datasource = pooled(pool_max_size=1)
    with closing(datasource.connect()) as connection:
        pid = connection.info.backend_pid
        connection.execute("set work_mem to '1MB'")
        connection.commit()
    with closing(datasource.connect()) as connection:
        assert connection.info.backend_pid == pid
        assert connection.execute("show work_mem").fetchone() != ("1MB",)
        connection.execute("set work_mem to '1MB'")
        connection.commit()
        kill(databases, pid)
    assert datasource.statistics().reset_failures == 1
    nothing_is_lost(datasource, databases, 1)


def test_close_with_connections_taken(pooled: Callable[..., DataSource], databases: Databases) -> None:
    datasource = pooled(pool_max_size=2, pool_max_wait=60)
    held = [datasource.connect(), datasource.connect()]
    with ThreadPoolExecutor(1) as threads:
        waiter = threads.submit(datasource.connect)
        until(lambda: datasource.statistics().waiting == 1)
        datasource.close()
        assert isinstance(waiter.exception(30), txpool.PoolClosed)
    assert held[0].execute("select 1").fetchone() == (1,)
    for connection in held:
        connection.close()
    until(lambda: not sessions(databases))
    assert datasource.statistics().closed
    assert not [thread for thread in threading.enumerate() if thread.name == f"txpool-pool-{datasource.name}"]


def test_fork_with_connections_of_all_kinds(pooled: Callable[..., DataSource], databases: Databases) -> None:
    datasource = pooled(pool_max_size=3, pool_keepalive="50ms")
    held = datasource.connect()
    datasource.connect().close()
    separate = datasource.connect(user=databases.server.user, password=databases.server.password)
    before = sessions(databases)
    assert len(before) == 3

    def child() -> None:
        with closing(datasource.connect()) as connection:
            (pid,) = connection.execute("select pg_backend_pid()").fetchone()
        assert pid not in before
        assert datasource.statistics().size == 1
        held.close()
        separate.close()
        datasource.close()

    in_child(child)
    for connection in (held, separate):
        assert connection.execute("select 1").fetchone() == (1,)
        connection.close()
    nothing_is_lost(datasource, databases, 3)


# -- sessions that are killed while they are idle -------------------------------------------------------------------


@pytest.mark.parametrize("enlisted", [True, False])
def test_one_user_at_most_meets_a_session_that_was_just_killed(
    pooled: Callable[..., DataSource], databases: Databases, tmp_path: Path, *, enlisted: bool
) -> None:
    """Nobody asks whether a connection is alive that was just used. Once one was lost, all are asked."""
    txpool.configure(node_name="tests", log_url=f"sqlite:///{tmp_path}/log", log_create=True)
    datasource = pooled(pool_check_bypass="1h")
    databases.execute("one", "create table killed (n int)")
    held = [datasource.connect() for _ in range(3)]
    for connection in held:
        connection.execute("select 1")
        connection.commit()
        connection.close()
    kill(databases, *sessions(databases))
    ended: list[object] = []
    for number in range(3):
        try:
            with transaction() if enlisted else nullcontext(), datasource.connect() as connection:
                connection.execute("insert into killed values (%s)", [number])
        except psycopg.errors.AdminShutdown:
            ended.append("lost")
        else:
            ended.append("done")
    assert ended == ["lost", "done", "done"]
    assert databases.rows("one", "select n from killed order by n") == [(1,), (2,)]
    txpool.configure()
