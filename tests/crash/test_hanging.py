"""Servers that hang, while their host still answers for them: whoever commits is told in time, and nothing is torn."""

from __future__ import annotations

import os
import queue
import signal
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import psycopg
import pytest

from tests.crash.site import APPLICATION, DONE, UNDONE, CrashSite
from tests.support.proxy import NetworkFault, Proxy
from txpool import failpoints

PLAIN = ("one", "two")
LEDGER = ("one", "two", "ledger")
BOOK = ("one", "two", "book")
#: Seconds until something that ought to have come by itself is given up.
_TIMEOUT = 30

#: What waits in PREPARE, or where it is alone in COMMIT, for whoever holds the advisory lock.
_DEFERRED = """
    create function deferred() returns trigger language plpgsql as $$
        begin perform pg_advisory_xact_lock(1); return null; end $$;
    create constraint trigger deferred after insert on t deferrable initially deferred for each row
        execute function deferred()
"""

Stopper = Callable[[str], None]


@pytest.fixture
def stop(world: CrashSite) -> Iterator[Stopper]:
    """`stop("one")`: the server processes of that database's sessions stand still, until the test is over."""
    stopped: list[int] = []

    def stop(name: str) -> None:
        query = "select pid from pg_stat_activity where datname = %s and application_name = %s"
        for (pid,) in world.session("two").execute(query, [name, APPLICATION]).fetchall():
            os.kill(pid, signal.SIGSTOP)
            stopped.append(pid)
        assert stopped

    yield stop
    for pid in stopped:
        os.kill(pid, signal.SIGCONT)
    world.wait_for_sessions()


def configure(world: CrashSite, line: str) -> None:
    path = world.folder / "txpool.properties"
    path.write_text(f"{path.read_text()}\n{line}\n")


def attempt(world: CrashSite, number: int, *names: str) -> str:
    """What the caller is told, within the test's timeout."""
    telling: queue.Queue[str] = queue.Queue()
    threading.Thread(target=lambda: telling.put(world.attempt(number, *names)), daemon=True).start()
    return telling.get(timeout=_TIMEOUT)


@pytest.mark.parametrize("names", [PLAIN, LEDGER, BOOK], ids=["log", "ledger", "book"])
def test_the_timeout_cancels_a_prepare_that_waits(world: CrashSite, names: tuple[str, ...]) -> None:
    configure(world, "transaction.timeout = 700ms")
    world.session("one").execute(_DEFERRED)
    with psycopg.connect(world.server.dsn("one")) as other, world.coordinator():
        other.execute("select pg_advisory_lock(1)")
        failpoints.arm("coordinator.preparing", "count")
        assert attempt(world, 1, *names) == UNDONE
        assert failpoints.reached("coordinator.preparing") == 1
        assert world.session("one").execute("select pid from pg_locks where not granted").fetchall() == []
        assert world.prepared() == []
    world.scan()
    world.assert_settled(1, names, UNDONE)


def test_the_timeout_never_cancels_what_decides(world: CrashSite) -> None:
    """The only COMMIT of a transaction is its decision: it waits as long as it must, and is told as it ends."""
    configure(world, "transaction.timeout = 500ms")
    world.session("one").execute(_DEFERRED)
    with psycopg.connect(world.server.dsn("one")) as other, world.coordinator(), ThreadPoolExecutor(1) as pool:
        other.execute("select pg_advisory_lock(1)")
        telling = pool.submit(world.attempt, 1, "one")
        with pytest.raises(TimeoutError):
            telling.result(1.5)
        other.execute("select pg_advisory_unlock(1)")
        assert telling.result(_TIMEOUT) == DONE
    assert world.holders(1) == {"one"}


@pytest.mark.costly
@pytest.mark.parametrize("how", [NetworkFault.BLACK_HOLE, NetworkFault.DEAF], ids=lambda how: how.name)
@pytest.mark.parametrize(
    ("needle", "names", "said"),
    [
        (b"prepare transaction", ("one", "two"), UNDONE),
        (b"insert into public.xids", ("book", "one", "two"), UNDONE),
        (b"commit prepared", ("one", "two"), DONE),
        (b"commit prepared", ("one", "two", "book"), DONE),
    ],
    ids=["PREPARE", "row", "COMMIT-PREPARED", "marked-COMMIT-PREPARED"],
)
def test_commit_ends_within_the_timeout_where_no_packet_comes_back(
    world: CrashSite, needle: bytes, names: tuple[str, ...], said: str, how: NetworkFault
) -> None:
    """Nothing in the driver's settings notices, and neither a cancel nor a fresh connection gets through."""
    proxy = Proxy(world.server.port)
    world.describe(names[0], port=proxy.port, more="cmr.immediate-cleanup = true" if names[0] == "book" else "")
    configure(world, "transaction.timeout = 3s")
    try:
        with world.coordinator():
            assert world.attempt(0, *names) == DONE
            proxy.fail_at(needle, how)
            assert attempt(world, 1, *names) == said
            assert proxy.failed.wait(60)
            proxy.heal()
            world.scan()
            assert world.prepared() == []
            assert world.holders(1) == (set(names) if said == DONE else set())
    finally:
        proxy.close()
    world.wait_for_sessions()
    world.scan()
    world.assert_settled(1, names, said)


@pytest.mark.parametrize(
    "limit", ["transaction.timeout = 1s", "transaction.phase-two-wait = 1s"], ids=["timeout", "phase-two-wait"]
)
@pytest.mark.parametrize(
    ("point", "names", "said"),
    [
        ("coordinator.decided", PLAIN, DONE),
        ("coordinator.decided", LEDGER, DONE),
        ("coordinator.decided", BOOK, DONE),
        ("coordinator.prepared", PLAIN, UNDONE),
    ],
    ids=["log", "ledger", "book", "rollback"],
)
def test_a_session_that_stands_still_in_phase_two_is_left_to_recovery(
    world: CrashSite, stop: Stopper, point: str, names: tuple[str, ...], said: str, limit: str
) -> None:
    """The caller is told the outcome, and recovery makes it whole while that process lives and the session hangs."""
    configure(world, limit)
    with world.coordinator():

        def stop_sessions() -> None:
            stop("one")
            if said == UNDONE:
                raise failpoints.Failpoint(point)

        failpoints.arm(point, stop_sessions)
        assert attempt(world, 1, *names) == said
        failpoints.disarm()
        assert len(world.prepared()) == 1
        assert world.holders(1) == (set(names) - {"one"} if said == DONE else set())
        world.scan()
        assert world.prepared() == []
        assert world.holders(1) == (set(names) if said == DONE else set())
    world.scan()
    world.assert_settled(1, names, said)


def test_a_session_that_stands_still_in_prepare_votes_to_roll_back(world: CrashSite, stop: Stopper) -> None:
    """And what it prepares once it goes on is swept."""
    configure(world, "transaction.timeout = 1s")
    with world.coordinator():
        failpoints.arm("coordinator.begin", lambda: stop("one"))
        assert attempt(world, 1, *PLAIN) == UNDONE
        failpoints.disarm()
    assert world.holders(1) == set()


def test_the_pool_never_gives_out_a_connection_that_was_cancelled(world: CrashSite) -> None:
    """The server may hear of the cancel late, and would stop somebody else's statement."""
    configure(world, "transaction.timeout = 700ms")
    world.session("one").execute(_DEFERRED)
    query = f"select pid from pg_stat_activity where datname = 'one' and application_name = '{APPLICATION}'"
    pids: list[tuple[int]] = []
    with psycopg.connect(world.server.dsn("one")) as other, world.coordinator():
        other.execute("select pg_advisory_lock(1)")
        for number, said in ((1, UNDONE), (2, DONE)):
            failpoints.arm("coordinator.begin", lambda: pids.extend(world.session("one").execute(query).fetchall()))
            assert attempt(world, number, *PLAIN) == said
            failpoints.disarm()
            other.execute("select pg_advisory_unlock_all()")
    assert len(pids) == 2
    assert pids[0] != pids[1]
