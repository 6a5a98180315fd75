"""A transaction's timeout cancels what it executes, and nothing else."""

from __future__ import annotations

import threading
from contextlib import closing

import psycopg
import pytest

import txpool
from tests.integration.tm.three_databases import ThreeDatabases
from tests.support.waiting import until


def expire_while_it_sleeps(world: ThreeDatabases) -> None:
    """Expire the ambient transaction as its timer does, but only once a session of it sleeps."""
    transaction = txpool.current()
    assert transaction is not None

    def expire() -> None:
        until(lambda: world.databases.rows("two", "select 1 from pg_stat_activity where wait_event = 'PgSleep'"))
        transaction.expire(0.5)

    threading.Thread(target=expire).start()


def test_a_timeout_while_it_prepares_is_told_as_that(world: ThreeDatabases) -> None:
    world.databases.execute(
        "two",
        "create function nap() returns trigger language plpgsql as 'begin perform pg_sleep(600); return null; end'; "
        "create constraint trigger slow after insert on t deferrable initially deferred "
        "for each row execute function nap()",
    )
    with pytest.raises(txpool.TransactionTimeout, match=r"0\.5 s") as raised, txpool.transaction():
        expire_while_it_sleeps(world)
        world.insert(world.one, world.two)
    causes = [raised.value.__cause__, getattr(raised.value.__cause__, "__cause__", None)]
    assert any(isinstance(cause, psycopg.errors.QueryCanceled) for cause in causes)
    assert world.databases.prepared() == []
    assert world.held == (0, 0, 0)


def test_connect_waits_inside_a_transaction_as_long_as_it_is_told(world: ThreeDatabases) -> None:
    with txpool.DataSource(
        "narrow",
        driver="psycopg",
        url=world.one.settings.url,
        password=world.databases.server.password,
        pool_max_size=1,
    ) as narrow:
        held = narrow.connect()
        with pytest.raises(txpool.PoolTimeout, match=r"0\.05 s"), txpool.transaction():
            narrow.connect(timeout=0.05)
        held.close()


def test_a_timeout_cancels_what_is_executing(world: ThreeDatabases) -> None:
    with pytest.raises(txpool.TransactionTimeout) as raised, txpool.transaction():
        expire_while_it_sleeps(world)
        world.insert(world.one)
        with closing(world.two.connect()) as connection:
            connection.cursor().execute("select pg_sleep(600)")
    assert isinstance(raised.value.__cause__, psycopg.errors.QueryCanceled)
    assert world.held == (0, 0, 0)
    world.insert(world.one)


def test_a_cancel_that_comes_before_its_statement_is_sent_again(
    world: ThreeDatabases, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first one is there while the session does nothing, and the server forgets it."""
    driver = world.one.driver_adapter
    cancel, cancelled = driver.cancel, list[object]()

    def too_early(raw: object, timeout: float | None = None) -> None:
        cancelled.append(raw)
        if len(cancelled) > 1:
            cancel(raw, timeout)

    monkeypatch.setattr(type(driver), "cancel", lambda _, raw, timeout=None: too_early(raw, timeout))
    with pytest.raises(txpool.TransactionTimeout) as raised, txpool.transaction():
        expire_while_it_sleeps(world)
        world.insert(world.one)
        with closing(world.one.connect()) as connection:
            connection.cursor().execute("select pg_sleep(600)")
    assert isinstance(raised.value.__cause__, psycopg.errors.QueryCanceled)
    assert len(cancelled) > 1
    assert world.held == (0, 0, 0)


def test_a_cancel_that_comes_late_never_meets_the_next_transaction(world: ThreeDatabases) -> None:
    """Its thread is held back until the connection would have gone to somebody else."""
    late = threading.Event()

    def hold(*_: object) -> None:
        if threading.current_thread().name == "txpool-cancel":
            late.wait()

    threading.setprofile(hold)
    try:
        with pytest.raises(txpool.TransactionTimeout), txpool.transaction() as tx:
            cancelled = world.backend(world.one)
            tx.expire(1.0)
    finally:
        threading.setprofile(None)
    (cancel,) = (thread for thread in threading.enumerate() if thread.name == "txpool-cancel")
    with txpool.transaction():
        assert world.backend(world.one) != cancelled
        late.set()
        cancel.join()


def test_work_after_the_timeout_is_refused_and_never_autocommitted(world: ThreeDatabases) -> None:
    expired = threading.Event()
    with pytest.raises(txpool.TransactionTimeout), txpool.transaction(timeout=0.1) as tx:
        world.insert(world.one)
        tx.on_cancel(expired.set)
        assert expired.wait(60)
        world.insert(world.two)
    assert world.held == (0, 0, 0)
