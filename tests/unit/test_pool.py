"""The pool, over real SQLite connections that can be told to fail.

The names of the tests are psycopg_pool's where the behaviour is one that its users know.
"""

from __future__ import annotations

import gc
import logging
import random
import signal
import sqlite3
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from pathlib import Path
from threading import Event, Thread

import pytest

from txpool.errors import ConfigurationError, PoolClosed, PoolTimeout, ProgrammingError
from txpool.pool import Pool, Pooled

Raw = sqlite3.Connection


class Database:
    """A connector to an SQLite file, and the switches that break it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.live: set[Raw] = set()
        self.most_live = 0
        self.connects = 0
        self.pings = 0
        self.resets = 0
        self.down: str | None = None
        self.fault: type[BaseException] = sqlite3.OperationalError
        self.reset_cleans = True
        self.gate = Event()
        self.gate.set()
        self.connecting = threading.Semaphore(0)
        self._lock = threading.Lock()

    def connect(self) -> Raw:
        self.connecting.release()
        with self._lock:
            self.connects += 1
        assert self.gate.wait(20)
        if self.down is not None:
            raise self.fault(self.down)
        raw = sqlite3.connect(self.path, check_same_thread=False, isolation_level=None)
        with self._lock:
            self.live.add(raw)
            self.most_live = max(self.most_live, len(self.live))
        return raw

    def is_clean(self, raw: Raw) -> bool:
        return raw in self.live and not raw.in_transaction

    def reset(self, raw: Raw) -> None:
        with self._lock:
            self.resets += 1
        if self.reset_cleans:
            raw.execute("select 1")
            raw.rollback()
            raw.execute("pragma cache_size = -2000")

    def ping(self, raw: Raw) -> None:
        with self._lock:
            self.pings += 1
        raw.execute("select 1").fetchone()

    def close(self, raw: Raw) -> None:
        with self._lock:
            self.live.discard(raw)
        raw.close()

    def kill(self, *pooled: Pooled[Raw]) -> None:
        """What a server's restart does to a client: the connection is dead, and the pool has not been told."""
        for each in pooled:
            each.raw.close()


@pytest.fixture
def database(tmp_path: Path) -> Iterator[Database]:
    database = Database(tmp_path / "one.db")
    with closing(database.connect()) as raw:
        raw.execute("create table t (x)")
    database.live.clear()
    database.connects = database.most_live = 0
    database.connecting = threading.Semaphore(0)
    yield database
    database.gate.set()
    gc.collect()
    assert not database.live, "connections are left open"


@pytest.fixture
def interrupt() -> Iterator[Callable[[], None]]:
    """Strike the main thread with a real SIGINT, even where the tests run with that ignored."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    main = threading.main_thread().ident
    assert main is not None
    yield lambda: signal.pthread_kill(main, signal.SIGINT)
    signal.signal(signal.SIGINT, before)


@contextmanager
def pool_of(database: Database, **options: float) -> Iterator[Pool[Raw]]:
    with closing(Pool[Raw](database, name="orders", **options)) as pool:  # type: ignore[arg-type]
        yield pool


def until(condition: Callable[[], object]) -> None:
    """Wait for what another thread is about to do."""
    deadline = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline, "it never happened"
        time.sleep(0.001)


def waiting(pool: Pool[Raw]) -> int:
    return pool.statistics().waiting


def maintenance_of(name: str) -> list[Thread]:
    return [thread for thread in threading.enumerate() if thread.name == f"txpool-pool-{name}"]


def use(pool: Pool[Raw]) -> None:
    pool.give_back(pool.take())


# --- taking and giving back


def test_last_in_first_out(database: Database) -> None:
    with pool_of(database) as pool:
        first, second = pool.take(), pool.take()
        pool.give_back(first)
        pool.give_back(second)
        assert pool.take() is second
        assert pool.take() is first
        pool.give_back(first)
        pool.give_back(second)


def test_connects_only_when_needed(database: Database) -> None:
    with pool_of(database) as pool:
        assert database.connects == 0
        for _ in range(10):
            use(pool)
        assert database.connects == 1


def test_queue(database: Database) -> None:
    """Those who wait are served in the order of asking."""
    served: list[int] = []
    with pool_of(database, max_size=1) as pool:
        held = pool.take()

        def work(number: int) -> None:
            pooled = pool.take()
            served.append(number)
            pool.give_back(pooled)

        with ThreadPoolExecutor(8) as threads:
            for number in range(8):
                threads.submit(work, number)
                until(lambda: waiting(pool) == number + 1)  # noqa: B023
            pool.give_back(held)
        assert served == list(range(8))
        assert database.connects == 1


def test_nobody_overtakes_a_waiter(database: Database) -> None:
    """Who gives back and takes again at once queues behind the one who waits."""
    with pool_of(database, max_size=1) as pool, ThreadPoolExecutor(1) as threads:
        held = pool.take()
        other = threads.submit(pool.take)
        until(lambda: waiting(pool))
        pool.give_back(held)
        with pytest.raises(PoolTimeout):
            pool.take(timeout=0)
        pool.give_back(other.result())


def test_queue_timeout(database: Database) -> None:
    with pool_of(database, max_size=1, max_wait=0.01) as pool:
        held = pool.take()
        with pytest.raises(PoolTimeout):
            pool.take()
        pool.give_back(held)
        use(pool)
        assert pool.statistics().timeouts == 1


def test_queue_timeout_override(database: Database) -> None:
    with pool_of(database, max_size=1, max_wait=3600) as pool:
        held = pool.take()
        with pytest.raises(PoolTimeout, match=r"within 0\.01 s"):
            pool.take(timeout=0.01)
        pool.give_back(held)


def test_infinite_wait(database: Database) -> None:
    with pool_of(database, max_size=1, max_wait=float("inf")) as pool, ThreadPoolExecutor(1) as threads:
        held = pool.take()
        other = threads.submit(pool.take)
        until(lambda: waiting(pool))
        pool.give_back(held)
        pool.give_back(other.result())


def test_timeout_says_who_holds(database: Database) -> None:
    with pool_of(database, max_size=2, leak_threshold=3600) as pool:
        mine = pool.take()
        theirs: list[Pooled[Raw]] = []
        thread = Thread(target=lambda: theirs.append(pool.take()), name="nightly-import")
        thread.start()
        thread.join()
        with pytest.raises(PoolTimeout) as caught:
            pool.take(timeout=0)
        text = str(caught.value)
        assert "'orders'" in text
        assert "2 of 2 are in use" in text
        assert "thread 'nightly-import' (which has ended)" in text
        assert "(this one) for" in text
        assert "test_timeout_says_who_holds" in text, "the stack where it was taken"
        assert "/txpool/pool/" not in text, "the stack begins outside the pool"
        pool.give_back(mine)
        pool.give_back(theirs[0])


def test_dead_client(database: Database) -> None:
    """One who has timed out takes no part any more."""
    with pool_of(database, max_size=1) as pool, ThreadPoolExecutor(2) as threads:
        held = pool.take()
        impatient = threads.submit(pool.take, 0.01)
        assert isinstance(impatient.exception(), PoolTimeout)
        patient = threads.submit(pool.take)
        until(lambda: waiting(pool))
        pool.give_back(held)
        pool.give_back(patient.result(20))


def test_cancellation_in_queue(database: Database, interrupt: Callable[[], None]) -> None:
    """An interrupt while waiting leaves the queue, and the next gets the connection."""
    with pool_of(database, max_size=1) as pool, ThreadPoolExecutor(2) as threads:
        held = pool.take()

        def interrupt_the_wait() -> None:
            until(lambda: waiting(pool))
            interrupt()

        interrupter = threads.submit(interrupt_the_wait)
        with pytest.raises(KeyboardInterrupt):
            pool.take()
        interrupter.result()
        assert waiting(pool) == 0
        other = threads.submit(pool.take)
        until(lambda: waiting(pool))
        pool.give_back(held)
        pool.give_back(other.result(20))


@pytest.mark.parametrize("way", ["timed out", "interrupted"])
def test_connection_not_lost(database: Database, interrupt: Callable[[], None], way: str) -> None:
    """The interrupt, or the end of the wait, may meet the hand-over itself."""
    ended: Counter[str] = Counter()
    with pool_of(database, max_size=1) as pool, ThreadPoolExecutor(1) as threads:
        for _ in range(60):
            held = pool.take(timeout=20)

            def hand_over(held: Pooled[Raw]) -> None:
                time.sleep(0.002)
                if way == "interrupted":
                    interrupt()
                pool.give_back(held)

            giver = threads.submit(hand_over, held)
            del held
            try:
                pool.give_back(pool.take(timeout=0.002 if way == "timed out" else 20))
                ended["served"] += 1
                if way == "interrupted":
                    time.sleep(20)
            except (KeyboardInterrupt, PoolTimeout) as error:
                ended[type(error).__name__] += 1
            giver.result(20)
            until(lambda: pool.statistics().taken == 0)
            assert waiting(pool) == 0
        pool.give_back(pool.take(timeout=20))
        assert database.most_live == 1
    print(ended)
    assert ended["PoolTimeout" if way == "timed out" else "KeyboardInterrupt"]


def test_interrupt_while_connecting(database: Database) -> None:
    """The place of a connect that was interrupted is free again."""
    with pool_of(database, max_size=1) as pool:
        database.down, database.fault = "^C", KeyboardInterrupt
        with pytest.raises(KeyboardInterrupt):
            pool.take()
        database.down = None
        pool.give_back(pool.take(timeout=0))


def test_putconn_wrong_pool(database: Database) -> None:
    with pool_of(database) as pool, pool_of(database) as other:
        pooled = pool.take()
        with pytest.raises(ProgrammingError, match="not from this pool"):
            other.give_back(pooled)
        with pytest.raises(ProgrammingError, match="not from this pool"):
            other.discard(pooled)
        pool.give_back(pooled)


def test_given_back_twice(database: Database) -> None:
    with pool_of(database) as pool:
        pooled = pool.take()
        pool.give_back(pooled)
        with pytest.raises(ProgrammingError, match="already"):
            pool.give_back(pooled)
        with pytest.raises(ProgrammingError, match="already"):
            pool.discard(pooled)
        assert pool.take() is pooled
        assert pool.take() is not pooled
        assert pool.statistics().taken == 2


def test_dropped_connection_frees_its_place(database: Database, caplog: pytest.LogCaptureFixture) -> None:
    """Whoever forgets a connection does not make the pool smaller."""
    with pool_of(database, max_size=1, max_wait=20) as pool:
        pool.take()
        use(pool)
        assert "dropped without being closed" in caplog.text
        assert pool.statistics().lost == 1
        assert database.most_live == 1


# --- what is given back in a bad state


def test_intrans_rollback(database: Database) -> None:
    with pool_of(database, max_size=1) as pool:
        pooled = pool.take()
        pooled.raw.execute("begin")
        pooled.raw.execute("insert into t values (1)")
        pool.give_back(pooled)
        assert pool.take() is pooled
        assert pooled.raw.execute("select count(*) from t").fetchone() == (0,)
        pool.give_back(pooled)
        assert database.resets == 1


def test_clean_is_not_reset(database: Database) -> None:
    with pool_of(database) as pool:
        use(pool)
        assert database.resets == 0


def test_reset(database: Database) -> None:
    """Session attributes that were changed are restored, once."""
    with pool_of(database, max_size=1) as pool:
        pooled = pool.take()
        pooled.raw.execute("pragma cache_size = -64")
        pooled.dirty = True
        pool.give_back(pooled)
        use(pool)
        assert database.resets == 1
        assert pooled.raw.execute("pragma cache_size").fetchone() == (-2000,)


def test_reset_badstate(database: Database, caplog: pytest.LogCaptureFixture) -> None:
    """A reset that leaves a transaction open has not cleaned anything."""
    database.reset_cleans = False
    with pool_of(database, max_size=1) as pool:
        pooled = pool.take()
        pooled.raw.execute("begin")
        pool.give_back(pooled)
        assert pool.statistics().reset_failures == 1
        assert pool.take(timeout=0).raw is not pooled.raw
        assert database.most_live == 1
    assert "not clean after the reset" in caplog.text


def test_reset_broken(database: Database, caplog: pytest.LogCaptureFixture) -> None:
    with pool_of(database, max_size=1) as pool:
        pooled = pool.take()
        database.kill(pooled)
        pooled.dirty = True
        pool.give_back(pooled)
        pool.give_back(pool.take(timeout=0))
        assert database.connects == 2
    assert "could not be reset: ProgrammingError" in caplog.text


def test_interrupt_while_resetting(database: Database) -> None:
    class Interrupted(Database):
        def reset(self, raw: Raw) -> None:
            raise KeyboardInterrupt

    interrupted = Interrupted(database.path)
    with pool_of(interrupted, max_size=1) as pool:
        pooled = pool.take()
        pooled.raw.execute("begin")
        with pytest.raises(KeyboardInterrupt):
            pool.give_back(pooled)
        pool.give_back(pool.take(timeout=0))
    assert not interrupted.live


def test_broken_is_replaced_for_a_waiter(database: Database) -> None:
    with pool_of(database, max_size=1) as pool, ThreadPoolExecutor(1) as threads:
        pooled = pool.take()
        other = threads.submit(pool.take)
        until(lambda: waiting(pool))
        pool.discard(pooled)
        assert other.result(20).raw is not pooled.raw
        pool.give_back(other.result())
        assert database.most_live == 1


# --- connecting, and failing to


def test_connect_error_is_the_drivers(database: Database) -> None:
    """A wrong password says so, and at once."""
    database.down = "wrong password"
    with pool_of(database, max_wait=3600) as pool:
        for _ in range(30):
            with pytest.raises(sqlite3.OperationalError, match="wrong password"):
                pool.take()
        assert pool.statistics().connect_failures == 30
        assert pool.statistics().size == 0


def test_connect_error_reaches_everybody_who_waits(database: Database) -> None:
    """The place of a connect that failed goes to the next, who learns the reason as well."""
    database.gate.clear()
    with pool_of(database, max_size=1, max_wait=3600) as pool, ThreadPoolExecutor(5) as threads:
        results = [threads.submit(pool.take) for _ in range(5)]
        until(lambda: waiting(pool) == 4)
        database.down = "no such role"
        database.gate.set()
        assert [str(result.exception(20)) for result in results] == ["no such role"] * 5


def test_timeout_tells_the_connect_error(database: Database) -> None:
    database.down = "no such role"
    with pool_of(database, max_size=1) as pool, ThreadPoolExecutor(1) as threads:
        with pytest.raises(sqlite3.OperationalError):
            pool.take()
        database.gate.clear()
        slow = threads.submit(pool.take)
        until(lambda: database.connects == 2)
        with pytest.raises(PoolTimeout) as caught:
            pool.take(timeout=0.01)
        assert "1 being opened" in str(caught.value)
        assert "OperationalError: no such role" in str(caught.value)
        database.gate.set()
        assert slow.exception(20) is not None


def test_reconnect(database: Database) -> None:
    """A connection that died while idle is replaced before anybody sees it."""
    with pool_of(database, max_size=1, check_bypass=0) as pool:
        pooled = pool.take()
        pool.give_back(pooled)
        database.kill(pooled)
        again = pool.take()
        assert again.raw.execute("select 1").fetchone() == (1,)
        pool.give_back(again)
        assert pool.statistics().check_failures == 1
        assert pool.statistics().destroyed == 1
        assert database.most_live == 1


def test_reconnect_failure(database: Database) -> None:
    """While the database is away everybody hears it; when it is back all is as before."""
    with pool_of(database, max_size=2, check_bypass=0) as pool:
        pair = [pool.take(), pool.take()]
        for pooled in pair:
            pool.give_back(pooled)
        database.kill(*pair)
        database.down = "the database is away"
        for _ in range(5):
            with pytest.raises(sqlite3.OperationalError, match="away"):
                pool.take()
        database.down = None
        use(pool)
        assert pool.failure is None


def test_check_bypass(database: Database) -> None:
    """One that was used a moment ago is not asked whether it is alive."""
    with pool_of(database, check_bypass=3600) as pool:
        use(pool)
        use(pool)
        assert database.pings == 0
    with pool_of(database, check_bypass=0) as pool:
        use(pool)
        use(pool)
        assert database.pings == 1


def test_check_backoff(database: Database, caplog: pytest.LogCaptureFixture) -> None:
    """The background tries again, less and less often, and says so."""
    database.down = "starting up"
    with pool_of(database, min_size=2) as pool:
        until(lambda: database.connects >= 3)
        assert pool.statistics().size <= 1
        database.down = None
        pool.wait_ready(20)
        assert pool.statistics().idle == 2
    delays = [record.args[3] for record in caplog.records if "next attempt" in record.getMessage()]  # type: ignore[index]
    assert delays[:3] == [0.1, 0.2, 0.4]


def test_reconnect_of_a_user_ends_the_backoff(database: Database) -> None:
    database.down = "starting up"
    with pool_of(database, min_size=2) as pool:
        until(lambda: pool.statistics().connect_failures)
        pool._maintenance._backoff, pool._maintenance._retry_at = 3600.0, time.monotonic() + 3600
        database.down = None
        use(pool)
        pool.wait_ready(20)


def test_failed_background_connect_leaves_room(database: Database) -> None:
    """While the background connects in the only place, a user waits for it, and then sees the reason himself."""
    database.gate.clear()
    database.down = "wrong password"
    with pool_of(database, min_size=1, max_size=1, max_wait=3600) as pool, ThreadPoolExecutor(1) as threads:
        assert database.connecting.acquire(timeout=20)
        user = threads.submit(pool.take)
        until(lambda: waiting(pool))
        database.gate.set()
        assert str(user.exception(20)) == "wrong password"


# --- size


def test_concurrent_filling(database: Database) -> None:
    """Connects do not wait for one another: no lock is held over them."""
    database.gate.clear()
    with pool_of(database, max_size=5) as pool, ThreadPoolExecutor(5) as threads:
        results = [threads.submit(pool.take) for _ in range(5)]
        for _ in range(5):
            assert database.connecting.acquire(timeout=20)
        database.gate.set()
        for result in results:
            pool.give_back(result.result(20))
        assert len(database.live) == 5


def test_giving_back_while_another_connects(database: Database) -> None:
    with pool_of(database, max_size=2) as pool, ThreadPoolExecutor(1) as threads:
        pooled = pool.take()
        database.gate.clear()
        slow = threads.submit(pool.take)
        until(lambda: database.connects == 2)
        pool.give_back(pooled)
        assert pool.take(timeout=0) is pooled
        pool.give_back(pooled)
        database.gate.set()
        pool.give_back(slow.result(20))


def test_min_size_and_wait_ready(database: Database) -> None:
    with pool_of(database, min_size=4) as pool:
        pool.wait_ready(20)
        assert pool.statistics().idle == 4
        assert database.connects == 4


def test_wait_ready_timeout(database: Database) -> None:
    database.down = "wrong password"
    with pool_of(database, min_size=1) as pool:
        until(lambda: pool.statistics().connect_failures)
        with pytest.raises(PoolTimeout, match=r"1 connections were not open.*wrong password"):
            pool.wait_ready(0.01)


def test_refill_on_check(database: Database) -> None:
    with pool_of(database, min_size=3) as pool:
        pool.wait_ready(20)
        dead, alive, _ = three = [pool.take() for _ in range(3)]
        for pooled in three:
            pool.give_back(pooled)
        database.kill(dead)
        pool.check()
        pool.wait_ready(20)
        assert pool.statistics().check_failures == 1
        assert alive in pool.exchange.idle
        assert dead not in pool.exchange.idle


def test_broken_is_replaced_in_the_background(database: Database) -> None:
    with pool_of(database, min_size=1) as pool:
        pool.discard(pool.take())
        until(lambda: pool.statistics().idle == 1)


def test_grow_and_shrink(database: Database) -> None:
    """Under load it grows to the maximum; unused it falls back to the minimum."""
    with pool_of(database, min_size=2, max_size=5, idle_timeout=0.05) as pool:
        five = [pool.take() for _ in range(5)]
        for pooled in five:
            pool.give_back(pooled)
        until(lambda: len(database.live) == 2)
        assert pool.statistics().idle == 2
        assert database.most_live == 5


def test_idle_timeout_off(database: Database) -> None:
    with pool_of(database, idle_timeout=0, max_lifetime=0) as pool:
        pooled = pool.take()
        pool.give_back(pooled)
        assert pool.idle_timeout == pooled.expires == float("inf")
        assert pool._maintenance._tend(pool) is None, "nothing will ever be due"


def test_spike(database: Database) -> None:
    """Many at once are served by few connections."""
    with pool_of(database, max_size=3) as pool, ThreadPoolExecutor(20) as threads:
        for done in [threads.submit(use, pool) for _ in range(200)]:
            done.result(20)
        assert database.most_live <= 3


def test_max_lifetime(database: Database) -> None:
    with pool_of(database, max_size=1, max_lifetime=0.02) as pool:
        pooled = pool.take()
        time.sleep(0.03)
        pool.give_back(pooled)
        assert pooled.raw not in database.live
        idle = pool.take()
        pool.give_back(idle)
        until(lambda: idle.raw not in database.live)


def test_expired_is_not_handed_out(database: Database) -> None:
    with pool_of(database, max_size=1) as pool:
        pooled = pool.take()
        pool.give_back(pooled)
        pooled.expires = time.monotonic()
        assert pool.take().raw is not pooled.raw
        assert database.most_live == 1


def test_jitter(database: Database) -> None:
    with pool_of(database, max_size=50, max_lifetime=1000) as pool:
        many = [pool.take() for _ in range(50)]
        now = time.monotonic()
        lifetimes = [pooled.expires - now for pooled in many]
        assert 960 < min(lifetimes) < max(lifetimes) <= 1000
        assert max(lifetimes) - min(lifetimes) > 5
        for pooled in many:
            pool.give_back(pooled)


def test_resize(database: Database) -> None:
    with pool_of(database, max_size=2) as pool, ThreadPoolExecutor(1) as threads:
        held = [pool.take(), pool.take()]
        third = threads.submit(pool.take)
        until(lambda: waiting(pool))
        pool.resize(0, 3)
        held.append(third.result(20))
        idle = held.pop()
        pool.give_back(idle)
        pool.resize(0, 1)
        assert idle.raw not in database.live, "too many, and idle"
        last, first = held
        pool.give_back(first)
        assert first.raw not in database.live, "too many, and given back"
        pool.give_back(last)
        assert database.live == {last.raw}
        pool.resize(2, 2)
        pool.wait_ready(20)
        assert len(database.live) == 2


def test_resize_below_waiters(database: Database) -> None:
    """Who waits while the pool shrinks is served within the new size."""
    with pool_of(database, max_size=2) as pool, ThreadPoolExecutor(1) as threads:
        first, second = pool.take(), pool.take()
        third = threads.submit(pool.take)
        until(lambda: waiting(pool))
        pool.resize(0, 1)
        pool.give_back(first)
        assert waiting(pool) == 1
        pool.give_back(second)
        assert third.result(20) is second
        pool.give_back(second)


@pytest.mark.parametrize(("min_size", "max_size"), [(-1, 1), (2, 1), (0, 0)])
def test_bad_size(database: Database, min_size: int, max_size: int) -> None:
    with pytest.raises(ConfigurationError, match="orders"):
        Pool(database, name="orders", min_size=min_size, max_size=max_size)
    with pool_of(database) as pool, pytest.raises(ConfigurationError):
        pool.resize(min_size, max_size)


def test_drain(database: Database) -> None:
    with pool_of(database, min_size=2, max_size=3) as pool:
        pool.wait_ready(20)
        held, idle = pool.take(), pool.take()
        pool.give_back(idle)
        pool.drain()
        assert idle.raw not in database.live
        assert held.raw in database.live
        pool.give_back(held)
        assert held.raw not in database.live
        pool.wait_ready(20)
        assert len(database.live) == 2


def test_uniform_use(database: Database) -> None:
    """With hand-over in order, no thread gets more turns than another by more than a few."""
    with pool_of(database, max_size=2) as pool:
        turns: Counter[int] = Counter()
        stop, start = Event(), threading.Barrier(8)

        def work(number: int) -> None:
            start.wait()
            while not stop.is_set():
                pooled = pool.take()
                turns[number] += 1
                stop.wait(0.001)
                pool.give_back(pooled)
                if turns[number] == 50:
                    stop.set()

        with ThreadPoolExecutor(8) as threads:
            for done in [threads.submit(work, number) for number in range(8)]:
                done.result()
        assert min(turns.values()) >= 0.8 * max(turns.values()), turns


# --- closing


def test_closed_getconn(database: Database) -> None:
    with pool_of(database) as pool:
        use(pool)
        pool.close()
        pool.close()
        for attempt in (pool.take, pool.wait_ready):
            with pytest.raises(PoolClosed, match="orders"):
                attempt()
        assert not database.live


def test_closed_queue(database: Database) -> None:
    with pool_of(database, max_size=1, max_wait=3600) as pool, ThreadPoolExecutor(3) as threads:
        held = pool.take()
        results = [threads.submit(pool.take) for _ in range(3)]
        until(lambda: waiting(pool) == 3)
        pool.close()
        assert [type(result.exception(20)) for result in results] == [PoolClosed] * 3
        pool.give_back(held)


def test_close_connection_on_pool_close(database: Database) -> None:
    """Idle ones are closed now, taken ones work on and are closed when they come back."""
    with pool_of(database) as pool:
        held, idle = pool.take(), pool.take()
        pool.give_back(idle)
        pool.close()
        assert database.live == {held.raw}
        assert held.raw.execute("select 1").fetchone() == (1,)
        pool.give_back(held)
        assert not database.live


def test_close_while_connecting(database: Database) -> None:
    """A connection that arrives after the close is closed, not handed out."""
    database.gate.clear()
    with pool_of(database) as pool, ThreadPoolExecutor(1) as threads:
        late = threads.submit(pool.take)
        assert database.connecting.acquire(timeout=20)
        pool.close()
        database.gate.set()
        assert isinstance(late.exception(20), PoolClosed)
        assert not database.live


def test_close_ends_the_thread(database: Database) -> None:
    with closing(Pool(database, name="ends", min_size=1)) as pool:
        pool.wait_ready(20)
        assert len(maintenance_of("ends")) == 1
    assert not maintenance_of("ends")


def test_no_thread_without_need(database: Database) -> None:
    with closing(Pool(database, name="idle")):
        assert not maintenance_of("idle")


def test_del_stops_threads(database: Database) -> None:
    """A pool that is forgotten ends its thread and closes its connections, without the collector's help."""
    gc.disable()
    try:
        pool = Pool(database, name="forgotten", min_size=2)
        pool.wait_ready(20)
        (thread,) = maintenance_of("forgotten")
        del pool
        thread.join(20)
        assert not thread.is_alive()
        assert not database.live
    finally:
        gc.enable()


def test_thread_does_not_inherit_the_context(database: Database) -> None:
    from contextvars import ContextVar

    ambient: ContextVar[str] = ContextVar("ambient")
    seen: list[str] = []

    class Looking(Database):
        def connect(self) -> Raw:
            seen.append(ambient.get("nothing"))
            return super().connect()

    ambient.set("a transaction")
    looking = Looking(database.path)
    with pool_of(looking, min_size=1) as pool:
        pool.wait_ready(20)
    assert seen == ["nothing"]


# --- leaks and numbers


def test_leak_report(database: Database, caplog: pytest.LogCaptureFixture) -> None:
    """Once for each leak, with the stack of the taker."""
    with pool_of(database, leak_threshold=0.02) as pool:
        pooled = pool.take()
        until(lambda: any(record.levelno == logging.WARNING for record in caplog.records))
        (record,) = [record for record in caplog.records if record.levelno == logging.WARNING]
        assert pool.statistics().leaks == 1
        assert record.name == "txpool.pool"
        assert "'MainThread'" in record.getMessage()
        assert "test_leak_report" in record.getMessage()
        time.sleep(0.05)
        assert pool.statistics().leaks == 1
        pool.give_back(pooled)
        again = pool.take()
        until(lambda: pool.statistics().leaks == 2)
        pool.give_back(again)


def test_stats_usage(database: Database) -> None:
    with pool_of(database, max_size=1) as pool, ThreadPoolExecutor(1) as threads:
        held = pool.take()
        other = threads.submit(pool.take)
        until(lambda: waiting(pool))
        numbers = pool.statistics()
        assert (numbers.size, numbers.taken, numbers.idle, numbers.waiting) == (1, 1, 0, 1)
        time.sleep(0.02)
        pool.give_back(held)
        pool.discard(other.result(20))
        numbers = pool.statistics()
        assert (numbers.takes, numbers.waits, numbers.created, numbers.destroyed) == (2, 1, 1, 1)
        assert numbers.wait_seconds >= 0.02
        assert numbers.use_seconds >= 0.02
        assert (numbers.size, numbers.taken, numbers.idle, numbers.waiting) == (0, 0, 0, 0)
        assert repr(pool) == "<Pool 'orders' 0 idle, 0 taken of at most 1, 0 waiting>"


# --- all at once


@pytest.mark.parametrize("round_", range(3))
def test_stress(database: Database, round_: int) -> None:
    """Never more than the cap, never two holders, nothing lost; whatever threads do and whatever breaks."""
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    dice = random.Random(seed)
    cap = dice.randint(1, 5)
    holders: dict[Raw, int] = {}
    outcomes: Counter[str] = Counter()

    def work(number: int, dice: random.Random) -> None:
        for _ in range(150):
            luck = dice.random()
            try:
                pooled = pool.take(timeout=0 if luck < 0.1 else 0.001 if luck < 0.2 else 20)
            except (PoolTimeout, sqlite3.OperationalError) as error:
                outcomes[type(error).__name__] += 1
                continue
            assert holders.setdefault(pooled.raw, number) == number, "two hold the same connection"
            assert pooled.raw.execute("select 1").fetchone() == (1,)
            if dice.random() < 0.3:
                time.sleep(dice.random() / 1000)
            luck = dice.random()
            if luck < 0.05:
                pooled.raw.execute("begin")
            elif luck < 0.1:
                database.kill(pooled)
                pooled.dirty = True
            elif luck < 0.13:
                database.down = None if database.down else "away"
            del holders[pooled.raw]
            if luck <= 0.94:
                pool.give_back(pooled)
            elif luck <= 0.97:
                pool.discard(pooled)
            del pooled  # and above: dropped without a word
            if luck > 0.99:
                pool.drain()

    bypass = dice.choice([0.0, 0.5])
    with pool_of(database, min_size=dice.randint(0, 1), max_size=cap, check_bypass=bypass, idle_timeout=0.01) as pool:
        with ThreadPoolExecutor(12) as threads:
            for done in [threads.submit(work, n, random.Random(dice.random())) for n in range(12)]:
                done.result()
        database.down = None
        until(lambda: pool.statistics().taken == 0)
        everything = [pool.take(timeout=20) for _ in range(cap)]
        assert len({pooled.raw for pooled in everything}) == cap, "all places are there"
        with pytest.raises(PoolTimeout):
            pool.take(timeout=0)
        for pooled in everything:
            pool.give_back(pooled)
        assert database.most_live <= cap
        assert waiting(pool) == 0
    assert not database.live
