"""No connection is lost: interrupts, exceptions at any moment, timeouts, kills, and ten thousand faults."""

from __future__ import annotations

import ctypes
import os
import random
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from typing import TYPE_CHECKING

import psycopg
import pytest

import txpool
from tests.integration.pool.sessions import kill, nothing_is_lost, sessions
from txpool.datasource import DataSource
from txpool.tm.demarcation.block import transaction

if TYPE_CHECKING:
    from tests.conftest import Databases

BORROWS = 10_000


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


@pytest.mark.costly
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
        thread.join(60)
        assert not thread.is_alive()
    assert struck["struck"] > 30
    del thread, threads, victim
    nothing_is_lost(datasource, databases, 3)


@pytest.mark.costly
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


@pytest.mark.costly
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
