"""Listeners: what they are told, in which order, and that they cannot break the pool."""

from __future__ import annotations

import inspect
import logging
import sqlite3
from collections.abc import Callable
from typing import Any

import pytest

from tests.models.pool import PoolDatabase, Raw, pool_of, use
from tests.support.waiting import until
from txpool.errors import ConfigurationError, PoolTimeout
from txpool.pool import Pool, PoolListener

EVENTS = tuple(name for name, _ in inspect.getmembers(PoolListener, inspect.isfunction))


class Heard(PoolListener):
    """Notes everything, and whether the pool's lock was held meanwhile."""

    def __init__(self) -> None:
        self.events: list[tuple[str, tuple[Any, ...]]] = []
        self.pool: Pool[Raw] | None = None
        self.locked: list[str] = []
        self.fault: BaseException | None = None

    def note(self, event: str, args: tuple[Any, ...]) -> None:
        self.events.append((event, args))
        if self.pool is not None and self.pool.state.lock._is_owned():  # type: ignore[attr-defined]
            self.locked.append(event)
        if self.fault is not None:
            raise self.fault

    @property
    def names(self) -> list[str]:
        return [event for event, _ in self.events]


def _noting(event: str) -> Callable[..., None]:
    def method(self: Heard, *args: Any) -> None:
        assert args[0] == "orders"
        self.note(event, args[1:])

    return method


for _event in EVENTS:
    setattr(Heard, _event, _noting(_event))


def listened(pool: Pool[Raw]) -> Heard:
    heard = Heard()
    heard.pool = pool
    pool.add_listener(heard)
    return heard


def test_the_base_class_does_nothing_and_says_what_each_method_is_for() -> None:
    listener = PoolListener()
    for event in EVENTS:
        method = getattr(PoolListener, event)
        assert method.__doc__
        count = len(inspect.signature(method).parameters) - 1
        assert getattr(listener, event)(*["orders", None, None, None][:count]) is None
    assert len(EVENTS) == 11


def test_the_life_of_a_connection(database: PoolDatabase) -> None:
    with pool_of(database, check_bypass=0) as pool:
        heard = listened(pool)
        use(pool)
        use(pool)
        pool.discard(pool.take())
    use_once = ["taken", "given_back"]
    assert heard.names == [
        *["connection_opened", *use_once],
        *["checked", *use_once],
        *["checked", *use_once, "connection_closed"],
    ]
    assert not heard.locked
    raw = heard.events[0][1][0]
    assert all(args[0] is raw for _, args in heard.events)


def test_what_goes_wrong(database: PoolDatabase) -> None:
    with pool_of(database, check_bypass=0, max_size=1, max_wait=0.01, check_timeout=1) as pool:
        heard = listened(pool)
        database.down = "away"
        with pytest.raises(sqlite3.OperationalError):
            pool.take()
        database.down = None
        use(pool)
        database.kill(*pool.state.idle)
        held = pool.take()
        with pytest.raises(PoolTimeout) as caught:
            pool.take()
        database.reset_cleans = False
        held.raw.execute("begin")
        pool.give_back(held)
        names = ["connect_failed", "connection_opened", "taken", "given_back", "check_failed", "connection_closed"]
        names += ["connection_opened", "taken", "timeout", "given_back", "reset_failed", "connection_closed"]
        assert heard.names == names
        assert heard.events[8][1] == (caught.value,)
        assert not heard.locked


def test_a_leak_and_one_that_was_lost(database: PoolDatabase) -> None:
    with pool_of(database, leak_threshold=0.05) as pool:
        heard = listened(pool)
        pooled = pool.take()
        until(lambda: "leak" in heard.names)
        (_, (raw, seconds, holder)) = next(each for each in heard.events if each[0] == "leak")
        assert raw is pooled.raw
        assert seconds >= 0.05
        assert "test_a_leak_and_one_that_was_lost" in holder
        del pooled
        until(lambda: "connection_closed" in heard.names)
        assert heard.names.index("lost") < heard.names.index("connection_closed")
        heard.events.clear()


@pytest.mark.parametrize("event", ["connection_opened", "taken", "given_back", "checked", "connection_closed"])
def test_an_exception_of_a_listener_is_logged_and_changes_nothing(
    database: PoolDatabase, event: str, caplog: pytest.LogCaptureFixture
) -> None:
    class Bad(PoolListener):
        pass

    def fail(*_: Any) -> None:
        raise ValueError("a bug of the listener")

    setattr(Bad, event, fail)
    with pool_of(database, check_bypass=0, max_size=1, max_wait=5) as pool, caplog.at_level(logging.ERROR):
        pool.add_listener(Bad())
        heard = listened(pool)
        for _ in range(3):
            use(pool)
        pool.discard(pool.take())
        assert pool.statistics().size == 0
        assert heard.names.count("taken") == 4, "the others are told all the same"
    assert f"{event} of a listener failed" in caplog.text


@pytest.mark.parametrize("event", ["connection_opened", "taken", "given_back", "checked", "connection_closed"])
@pytest.mark.parametrize("fault", [KeyboardInterrupt, SystemExit])
def test_an_interrupt_in_a_listener_loses_no_connection(
    database: PoolDatabase, event: str, fault: type[BaseException]
) -> None:
    class Interrupted(PoolListener):
        armed = False

    def strike(self: Interrupted, *_: Any) -> None:
        if self.armed:
            self.armed = False
            raise fault

    setattr(Interrupted, event, strike)
    with pool_of(database, check_bypass=0, max_size=1, max_wait=5) as pool:
        listener = Interrupted()
        pool.add_listener(listener)
        if event != "connection_opened":
            use(pool)
        listener.armed = True
        with pytest.raises(fault):
            pool.discard(pool.take()) if event == "connection_closed" else use(pool)
        assert not listener.armed
        assert pool.statistics().size == 0, "its connection is closed"
        use(pool)
    assert not database.live


@pytest.mark.parametrize("fault", [KeyboardInterrupt, SystemExit, ValueError])
def test_nothing_ends_the_pools_own_thread(database: PoolDatabase, fault: type[BaseException]) -> None:
    with pool_of(database, min_size=1, keepalive=0.02) as pool:
        heard = listened(pool)
        heard.fault = fault("of a listener")
        until(lambda: heard.names.count("checked") > 2)
        heard.fault = None
        use(pool)


def test_they_come_and_go(database: PoolDatabase) -> None:
    with pool_of(database) as pool:
        heard = listened(pool)
        pool.add_listener(heard)
        use(pool)
        assert heard.names == ["connection_opened", "taken", "given_back"], "each is told once"
        pool.remove_listener(heard)
        pool.remove_listener(heard)
        use(pool)
        assert len(heard.events) == 3
        assert not pool.listeners
    with pytest.raises(
        ConfigurationError, match=r"a function is no listener.*derive its class from txpool\.PoolListener"
    ):
        pool.add_listener(lambda: None)  # type: ignore[arg-type]


def test_one_that_takes_itself_off_while_it_is_told(database: PoolDatabase) -> None:
    class Once(PoolListener):
        count = 0

        def taken(self, pool: str, connection: Any) -> None:
            self.count += 1
            it.remove_listener(self)

    with pool_of(database) as it:
        once = Once()
        it.add_listener(once)
        heard = listened(it)
        use(it)
        use(it)
        assert once.count == 1
        assert heard.names.count("taken") == 2


def test_a_finaliser_inside_the_pools_lock_tells_after_it(database: PoolDatabase) -> None:
    with pool_of(database) as pool:
        heard = listened(pool)
        pooled = pool.take()
        with pool.state.lock:
            pool.give_back(pooled)
            assert "given_back" not in heard.names
        pool.state.run_deferred()
        assert "given_back" in heard.names
        assert not heard.locked
