"""The log in PostgreSQL: hosts that share it, leases that are lost, orders that locks make. Read by bare psycopg."""

from __future__ import annotations

import itertools
import random
import signal
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import psycopg
import pytest

import txpool
from recovery import RecoveryManager
from tests.integration.children import Child, children, said, tell
from txpool.errors import ConfigurationError, LogError, LogUnknown
from txpool.log import Life, Refused, Settled, SqlLog, adopt_log, open_log
from txpool.log.lease import key_of
from txpool.log.server import LogServer
from txpool.manager import configure
from txpool.resources.base import BranchRecord
from txpool.secret import Secret
from txpool.xid import make_gtrid, make_xid, new_incarnation, split_gtrid

if TYPE_CHECKING:
    from tests.conftest import Databases

NODE = "etl-1"
PROLOGUE = """
import os, signal, sys
from txpool.log import Refused, SqlLog
from txpool.secret import Secret
from txpool.xid import make_gtrid
node, url = sys.argv[1:]
log = SqlLog(url, node=node, create=True, password=Secret("${env:LOG_PASSWORD}"))
def decide(number):
    gtrid = make_gtrid(node, log.incarnation, number)
    log.record(gtrid, [])
    return gtrid
"""

Opener = Callable[..., SqlLog]
Spawn = Callable[..., Child]


@pytest.fixture
def opener(databases: Databases) -> Iterator[Opener]:
    """Opens the log once more, as another process would, on this host or another."""
    opened: list[SqlLog] = []

    def opening(node: str = NODE, **options: Any) -> SqlLog:
        password = Secret(databases.server.password)
        opened.append(SqlLog(databases.url("one"), node=node, create=True, password=password, **options))
        return opened[-1]

    yield opening
    for log in opened:
        log.close()


@pytest.fixture
def log(opener: Opener) -> SqlLog:
    return opener()


@pytest.fixture
def bare(databases: Databases, log: SqlLog) -> Iterator[psycopg.Connection[Any]]:
    """A session beside the log's own, in a transaction of its own."""
    with psycopg.connect(databases.dsn("one")) as connection:
        yield connection


@pytest.fixture
def apart() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor() as threads:
        yield threads


@pytest.fixture
def spawn(databases: Databases, monkeypatch: pytest.MonkeyPatch) -> Iterator[Spawn]:
    """Start a process of a node over the log, as on a host of its own."""
    monkeypatch.setenv("LOG_PASSWORD", databases.server.password)
    with children(PROLOGUE, "\nlog.close()\n") as start:
        yield lambda source, node=NODE: start(source, node, databases.url("one"))


def gtrid_of(log: SqlLog, number: int = 1) -> str:
    return make_gtrid(log.node, log.incarnation, number)


def decided(databases: Databases) -> set[str]:
    return {g for (g,) in databases.rows("one", "SELECT gtrid FROM txpool_decisions WHERE branches IS NOT NULL")}


def fences(databases: Databases) -> dict[str, int]:
    return dict(databases.rows("one", "SELECT name, fenced FROM txpool_incarnations"))


def await_lease(databases: Databases, incarnation: str) -> None:
    """Returns once the server has freed an incarnation's lease: it is taken, and let go again."""
    with psycopg.connect(databases.dsn("one")) as connection:
        connection.execute("SET lock_timeout = '20s'")
        connection.execute("SELECT pg_advisory_xact_lock_shared(%s)", [key_of(incarnation)])


def await_blocked(databases: Databases, sessions: int = 1) -> None:
    """Returns once so many sessions wait for a lock, which no event tells."""
    with psycopg.connect(databases.dsn("one"), autocommit=True) as connection:
        for _ in range(1000):
            query = "SELECT FROM pg_stat_activity WHERE wait_event_type = 'Lock'"
            if len(connection.execute(query).fetchall()) >= sessions:
                return
            time.sleep(0.01)
    raise AssertionError(f"fewer than {sessions} sessions wait for a lock")


def cut_lease(databases: Databases, node: str = NODE) -> None:
    found = databases.rows(
        "one",
        "SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity WHERE application_name = %s",
        [f"txpool lease {node}"],
    )
    assert found == [(True,)]


# -- the log itself ------------------------------------------------------------------------------------------------


def test_a_decision_is_a_row_that_anybody_can_read(databases: Databases, log: SqlLog) -> None:
    gtrid = gtrid_of(log)
    log.record(gtrid, [BranchRecord(make_xid(gtrid, 1, "orders"), "orders", "7412/5", {"xid": "771"})])
    rows = databases.rows("one", "SELECT gtrid, branches FROM txpool_decisions")
    assert rows == [(gtrid, '[["1:orders:L","orders","7412/5",{"xid":"771"}]]')]
    rows = databases.rows("one", "SELECT name, node, fenced FROM txpool_incarnations")
    assert rows == [(log.incarnation, NODE, 0)]


def test_17_a_missing_log_is_an_error_and_is_not_made(databases: Databases) -> None:
    password = Secret(databases.server.password)
    with pytest.raises(LogError, match=r"is missing.*log\.create = true"):
        open_log(databases.url("two"), node=NODE, password=password)
    assert databases.rows("two", "SELECT relname FROM pg_class WHERE relname LIKE 'txpool%%'") == []
    open_log(databases.url("two"), node=NODE, password=password, create=True).close()
    open_log(databases.url("two"), node=NODE, password=password).close()


def test_a_log_that_has_lost_its_meta_table_is_not_made_anew(databases: Databases, log: SqlLog) -> None:
    log.record(gtrid_of(log), [])
    databases.execute("one", "DROP TABLE txpool_meta")
    with pytest.raises(LogError, match="already exists"):
        open_log(databases.url("one"), node=NODE, password=Secret(databases.server.password), create=True)
    assert len(decided(databases)) == 1


def test_many_creators_at_once_make_one_log(databases: Databases, opener: Opener, apart: ThreadPoolExecutor) -> None:
    together = threading.Barrier(6)

    def create(number: int) -> str:
        together.wait()
        return opener(f"etl-{number}").incarnation

    names = set(apart.map(create, range(6)))
    assert set(fences(databases)) == names
    assert len(names) == 6
    assert len(databases.rows("one", "SELECT value FROM txpool_meta WHERE name = 'log'")) == 1


def test_17_a_log_that_was_moved_is_refused_until_it_is_adopted(databases: Databases, opener: Opener) -> None:
    former = opener()
    gtrid = gtrid_of(former)
    former.record(gtrid, [])
    databases.execute("one", "UPDATE txpool_meta SET value = '1234/one' WHERE name = 'server'")
    with pytest.raises(LogError, match=r"made on server 1234/one.*init --adopt"):
        opener()
    url, password = databases.url("one"), Secret(databases.server.password)
    with pytest.raises(LogError, match=f"in use by incarnation {former.incarnation}: nothing done"):
        adopt_log(url, node=NODE, password=password)
    former.close()
    adopt_log(url, node=NODE, password=password)
    log = opener()
    assert log.incarnations() == {}  # so that its branches are left alone
    assert set(log.decisions()) == {gtrid}


def test_a_log_of_another_format_is_refused(databases: Databases, opener: Opener, log: SqlLog) -> None:
    databases.execute("one", "UPDATE txpool_meta SET value = '2' WHERE name = 'format'")
    with pytest.raises(LogError, match="has format 2; this txpool reads format 1"):
        opener()


def test_a_damaged_decision_is_an_error_and_never_absent(databases: Databases, log: SqlLog) -> None:
    log.record(gtrid_of(log), [])
    databases.execute("one", "UPDATE txpool_decisions SET branches = '[[1'")
    with pytest.raises(LogError, match=r"is damaged.*Nothing was done"):
        log.decisions()


@pytest.mark.parametrize("inside", [True, False], ids=["in the url", "as a secret"])
def test_no_error_and_no_text_shows_the_password(databases: Databases, log: SqlLog, inside: bool) -> None:
    url, options = databases.url("one"), {}
    if inside:
        url = url.replace("@", ":hunter2hunter2@")
    else:
        options = {"password": Secret("hunter2hunter2")}
    with pytest.raises(LogError, match="password authentication failed") as caught:
        open_log(url, node=NODE, **options)
    error: BaseException | None = caught.value
    while error is not None:
        assert "hunter2" not in str(error)
        error = error.__cause__ or error.__context__
    good = url.replace("hunter2hunter2", databases.server.password) if inside else databases.url("one")
    opened = SqlLog(good, node=NODE, password=None if inside else Secret(databases.server.password))
    assert opened.incarnation
    assert databases.server.password not in repr(opened) + repr(vars(opened))
    opened.close()


def test_a_url_that_libpq_cannot_read_is_an_error_of_configuration() -> None:
    with pytest.raises(ConfigurationError, match=r"log\.url = postgresql://h/db\?x=1: invalid URI query parameter"):
        open_log("postgresql://h/db?x=1", node=NODE)


def test_a_server_that_is_not_there_is_a_definite_failure(databases: Databases, log: SqlLog) -> None:
    gtrid = gtrid_of(log)
    databases.server.stop()
    try:
        with pytest.raises(Refused, match=f"{gtrid} was not decided, and rolls back.*nothing was written"):
            log.record(gtrid, [])
        with pytest.raises(LogError, match="cannot be used"):
            log.incarnation  # noqa: B018 - the lease is lost, and no other can be had
        log.forget(gtrid)  # recovery does it again
    finally:
        databases.server.start()
    assert decided(databases) == set()


def test_the_session_is_as_the_log_needs_it_whatever_the_database_has_configured(databases: Databases) -> None:
    for setting in (
        "synchronous_commit = off",
        "default_transaction_isolation = 'serializable'",
        "statement_timeout = '1s'",
        "idle_session_timeout = '1s'",
    ):
        databases.execute("one", f"ALTER DATABASE one SET {setting}")  # type: ignore[arg-type]
    server = LogServer(databases.url("one"), password=Secret(databases.server.password), lock_timeout=2.5)
    server.create()

    def shown(name: str) -> Any:
        return raw.execute("SELECT current_setting(%s)", [name]).fetchone()

    with server.connect() as raw:
        assert shown("synchronous_commit") == ("on",)
        assert shown("transaction_isolation") == ("read committed",)
        assert shown("statement_timeout") == ("0",)
        assert shown("idle_session_timeout") == ("0",)
        assert shown("lock_timeout") == ("2500ms",)
        assert [shown(f"tcp_keepalives_{name}") for name in ("idle", "interval", "count")] == [("30",), ("10",), ("3",)]
    databases.execute("one", "ALTER DATABASE one SET synchronous_commit = remote_apply")
    with server.connect() as raw:
        assert shown("synchronous_commit") == ("remote_apply",)
    # How soon the server notices that a coordinator's host has vanished.
    url = databases.url("one") + "?keepalives_idle=7&keepalives_count=2"
    with LogServer(url, password=Secret(databases.server.password)).connect() as raw:
        assert [shown(f"tcp_keepalives_{name}") for name in ("idle", "interval", "count")] == [("7",), ("10",), ("2",)]


def test_what_was_forgotten_goes_in_batches_and_at_close(databases: Databases, log: SqlLog) -> None:
    gtrids = [gtrid_of(log, number) for number in range(101)]
    for gtrid in gtrids:
        log.record(gtrid, [])
    for gtrid in gtrids[:99]:
        log.forget(gtrid)
    assert len(decided(databases)) == 101
    log.forget(gtrids[99])
    assert decided(databases) == {gtrids[100]}
    log.forget(gtrids[100])
    log.close()
    assert decided(databases) == set()
    with pytest.raises(LogError, match="closed"):
        log.abort(gtrids[0])


def test_more_threads_than_connections_decide_each_their_own(
    databases: Databases, log: SqlLog, apart: ThreadPoolExecutor
) -> None:
    gtrids = [gtrid_of(log, number) for number in range(200)]
    list(apart.map(lambda gtrid: log.record(gtrid, []), gtrids))
    assert decided(databases) == set(gtrids)


def test_a_transaction_over_two_databases_decides_in_the_shared_log(databases: Databases) -> None:
    password = databases.server.password
    for name in ("one", "two"):
        databases.execute(name, "CREATE TABLE t (id integer PRIMARY KEY)")  # type: ignore[arg-type]
    manager = configure(node_name=NODE, log_url=databases.url("one"), log_password=Secret(password), log_create=True)
    sources = [
        txpool.DataSource(name=name, driver="psycopg", mode="xa", url=databases.url(name), password=password)
        for name in ("one", "two")
    ]
    try:
        with txpool.transaction() as transaction:
            for source in sources:
                source.connect().cursor().execute("INSERT INTO t VALUES (1)")
        assert decided(databases) == {transaction.gtrid}  # to be forgotten lazily
        assert databases.rows("one", "SELECT id FROM t") == databases.rows("two", "SELECT id FROM t") == [(1,)]
    finally:
        for source in sources:
            source.close()
        manager.close()
    assert decided(databases) == set()
    assert databases.prepared() == []


# -- nodes and hosts -----------------------------------------------------------------------------------------------


def test_nodes_share_a_log_and_each_recovers_its_own_or_those_it_is_asked_to(opener: Opener, spawn: Spawn) -> None:
    first = spawn("say(log.incarnation, decide(1)); heard()", "etl-1")
    second = spawn("say(log.incarnation, decide(1)); heard()", "etl-2")
    (one, of_one), (two, of_two) = said(first), said(second)
    own, both, every = opener("etl-1"), opener("etl-3", nodes=["etl-1", "etl-2"]), opener("etl-3", nodes="*")
    assert own.incarnations() == {one: Life.ALIVE}
    assert opener("etl-3").incarnations() == {}
    assert both.incarnations() == every.incarnations() == {one: Life.ALIVE, two: Life.ALIVE}
    assert (own.nodes(), both.nodes()) == ({"etl-1"}, {"etl-1", "etl-2"})
    assert every.nodes() == {"etl-1", "etl-2", "etl-3"}, "those that have registered, and its own"
    assert set(own.decisions()) == {of_one, of_two}
    with pytest.raises(LogError, match="not ours to recover: its branches are left alone"):
        own.fence(two)
    assert not own.is_fenced(two)
    every.fence(two)
    assert both.incarnations() == {one: Life.ALIVE, two: Life.FENCED}


def test_a_coordinator_that_is_killed_is_seen_dead_from_another_host(
    databases: Databases, opener: Opener, spawn: Spawn
) -> None:
    process = spawn("say(log.incarnation, decide(1)); heard()", "etl-2")
    name, gtrid = said(process)
    log = opener("etl-1", nodes=["etl-2"])
    assert log.incarnations() == {name: Life.ALIVE}
    process.send_signal(signal.SIGKILL)
    process.wait()
    await_lease(databases, name)
    assert log.incarnations() == {name: Life.DEAD}
    log.fence(name)
    assert log.incarnations() == {name: Life.FENCED}
    assert set(log.decisions()) == {gtrid}


@pytest.mark.parametrize(("point", "committed"), [("coordinator.prepared", False), ("coordinator.decided", True)])
def test_recovery_on_another_host_ends_what_a_killed_coordinator_left(
    databases: Databases, opener: Opener, spawn: Spawn, point: str, committed: bool
) -> None:
    for name in ("one", "two"):
        databases.execute(name, "CREATE TABLE t (id integer PRIMARY KEY)")  # type: ignore[arg-type]
    process = spawn(f"""
        import txpool
        from txpool import failpoints
        secret = os.environ["LOG_PASSWORD"]
        txpool.configure(node_name=node, log_url=url, log_password=secret)
        failpoints.arm("{point}", "kill")
        with txpool.transaction() as transaction:
            for name in ("one", "two"):
                source = txpool.DataSource(name=name, driver="psycopg", url=url[:-3] + name, password=secret)
                source.connect().cursor().execute("INSERT INTO t VALUES (1)")
            say(transaction.gtrid)
    """)
    (gtrid,) = said(process)
    assert process.wait() == -signal.SIGKILL
    await_lease(databases, split_gtrid(gtrid).incarnation)
    assert len(databases.prepared()) == 2
    password = databases.server.password
    sources = [
        txpool.DataSource(name=name, driver="psycopg", url=databases.url(name), password=password)
        for name in ("one", "two")
    ]
    RecoveryManager(log=opener(), datasources=sources, backoff=0).scan()
    for source in sources:
        assert databases.rows(source.name, "SELECT id FROM t") == ([(1,)] if committed else [])
        source.close()
    assert databases.prepared() == []
    assert decided(databases) == set()
    assert fences(databases)[split_gtrid(gtrid).incarnation] > 0


def test_two_that_look_at_once_do_not_take_each_other_for_the_owner(
    opener: Opener, log: SqlLog, bare: psycopg.Connection[Any]
) -> None:
    former = opener()
    name = former.incarnation
    assert log.incarnations() == {name: Life.ALIVE}
    former.close()
    bare.execute("SELECT pg_advisory_xact_lock_shared(%s)", [key_of(name)])  # as another that is looking now
    assert log.incarnations() == {name: Life.DEAD}


def test_39_a_forked_child_leaves_its_parents_lease_and_takes_a_name_of_its_own(
    databases: Databases, log: SqlLog, spawn: Spawn
) -> None:
    process = spawn("""
        parent = log.incarnation
        decide(1)
        child = os.fork()
        if child == 0:
            say("child", log.incarnation, decide(2), log.incarnations()[parent].name)
            heard()
            say(decide(3))
            os._exit(0)
        say("parent", parent, decide(3))
        signal.pause()
    """)
    spoken = {words[0]: words[1:] for words in (said(process), said(process))}
    (parent, third), (child, second, life) = spoken["parent"], spoken["child"]
    assert life == "ALIVE"
    assert parent != child
    assert log.incarnations() == {parent: Life.ALIVE, child: Life.ALIVE}
    process.send_signal(signal.SIGKILL)
    process.wait()
    await_lease(databases, parent)  # though the child outlives it
    assert log.incarnations() == {parent: Life.DEAD, child: Life.ALIVE}
    tell(process, "go")
    assert {second, third, *said(process)} < decided(databases)


def test_30_a_forked_child_that_ends_leaves_its_parents_sessions_alone(log: SqlLog, spawn: Spawn) -> None:
    process = spawn("""
        say(log.incarnation, decide(1))
        child = os.fork()
        if child == 0:
            log.close()
            sys.exit(0)
        os.waitpid(child, 0)
        say(log.incarnation, decide(2)); heard()
    """)
    name, first = said(process)
    again, second = said(process)
    assert again == name
    assert log.incarnations() == {name: Life.ALIVE}
    assert set(log.decisions()) == {first, second}


# -- leases --------------------------------------------------------------------------------------------------------


def test_11_who_lost_the_lease_and_was_fenced_is_refused_and_goes_on_under_a_new_name(
    databases: Databases, opener: Opener, log: SqlLog
) -> None:
    old, gtrid, other = log.incarnation, gtrid_of(log), opener()
    cut_lease(databases)
    assert other.incarnations() == {old: Life.DEAD}
    other.fence(old)
    with pytest.raises(Refused, match=f"{gtrid} was not decided, and rolls back.*fenced by recovery"):
        log.record(gtrid, [])
    new = log.incarnation
    again = gtrid_of(log)
    log.record(again, [])
    assert decided(databases) == {again}
    assert other.incarnations() == {old: Life.FENCED, new: Life.ALIVE}


def test_who_lost_the_lease_notices_before_the_next_transaction_and_fences_the_old_name(
    databases: Databases, log: SqlLog
) -> None:
    old, late = log.incarnation, gtrid_of(log, 1)
    log.record(gtrid_of(log, 2), [])
    cut_lease(databases)
    new = log.incarnation
    assert new != old
    assert log.incarnation == new
    assert fences(databases) == {old: 1, new: 0}
    with pytest.raises(Refused):
        log.record(late, [])


def test_a_lost_lease_alone_refuses_nothing(databases: Databases, log: SqlLog) -> None:
    gtrid = gtrid_of(log)
    cut_lease(databases)
    log.record(gtrid, [])
    assert decided(databases) == {gtrid}


def test_threads_that_notice_at_once_take_one_new_name(
    databases: Databases, log: SqlLog, apart: ThreadPoolExecutor
) -> None:
    old = log.incarnation
    cut_lease(databases)
    names = set(apart.map(lambda _: log.incarnation, range(20)))
    assert len(names) == 1
    assert set(fences(databases)) == {old, *names}


def test_22_a_restart_of_the_server_frees_every_lease_and_all_go_on(databases: Databases, opener: Opener) -> None:
    first, second = opener("etl-1"), opener("etl-2", nodes="*")
    old, gtrid = first.incarnation, gtrid_of(first)
    first.record(gtrid, [])
    databases.server.restart("immediate")
    assert second.incarnations() == {old: Life.DEAD}
    assert decided(databases) == {gtrid}
    new = first.incarnation
    assert second.incarnations() == {old: Life.FENCED, new: Life.ALIVE}
    first.record(gtrid_of(first, 2), [])


# -- orders that locks make ----------------------------------------------------------------------------------------


def test_10_a_decision_waits_for_the_fence_in_flight_and_is_refused(
    databases: Databases, log: SqlLog, bare: psycopg.Connection[Any], apart: ThreadPoolExecutor
) -> None:
    gtrid = gtrid_of(log)
    bare.execute("UPDATE txpool_incarnations SET fenced = 1 WHERE name = %s", [log.incarnation])
    deciding = apart.submit(log.record, gtrid, [])
    await_blocked(databases)
    bare.commit()
    with pytest.raises(Refused, match="fenced"):
        deciding.result()
    assert decided(databases) == set()


def test_10_a_decision_that_waited_for_a_fence_that_came_to_nothing_is_made(
    databases: Databases, log: SqlLog, bare: psycopg.Connection[Any], apart: ThreadPoolExecutor
) -> None:
    gtrid = gtrid_of(log)
    bare.execute("UPDATE txpool_incarnations SET fenced = 1 WHERE name = %s", [log.incarnation])
    deciding = apart.submit(log.record, gtrid, [])
    await_blocked(databases)
    bare.rollback()
    deciding.result()
    assert decided(databases) == {gtrid}


def test_10_a_fence_waits_for_the_decision_in_flight_and_then_sees_it(
    databases: Databases, opener: Opener, log: SqlLog, bare: psycopg.Connection[Any], apart: ThreadPoolExecutor
) -> None:
    gtrid, name, other = gtrid_of(log), log.incarnation, opener()
    # Somebody else's row under the same key holds our decision up, when it has locked its incarnation.
    bare.execute("INSERT INTO txpool_decisions VALUES (%s, NULL, 0)", [gtrid])
    deciding = apart.submit(log.record, gtrid, [])
    await_blocked(databases)

    def fence() -> set[str]:
        other.fence(name)
        return set(other.decisions())

    fencing: Future[set[str]] = apart.submit(fence)
    await_blocked(databases, 2)
    assert not fencing.done()
    bare.rollback()
    deciding.result()
    assert fencing.result() == {gtrid}


@pytest.mark.parametrize("lands", [True, False], ids=["it lands", "it does not"])
def test_12_an_abort_record_waits_for_the_decision_in_flight(
    databases: Databases, log: SqlLog, bare: psycopg.Connection[Any], apart: ThreadPoolExecutor, lands: bool
) -> None:
    gtrid = gtrid_of(log)
    bare.execute("INSERT INTO txpool_decisions VALUES (%s, '[]', 0)", [gtrid])
    aborting = apart.submit(log.abort, gtrid)
    await_blocked(databases)
    if lands:
        bare.commit()
    else:
        bare.rollback()
    assert aborting.result() is (Settled.COMMITTED if lands else Settled.ABORTED)
    assert decided(databases) == ({gtrid} if lands else set())


def test_12_what_is_in_flight_for_too_long_cannot_be_known_now(
    databases: Databases, opener: Opener, log: SqlLog, bare: psycopg.Connection[Any]
) -> None:
    gtrid, other = gtrid_of(log), opener(lock_timeout=0.2)
    bare.execute("INSERT INTO txpool_decisions VALUES (%s, '[]', 0)", [gtrid])
    with pytest.raises(LogError, match="lock timeout"):
        other.abort(gtrid)
    bare.commit()
    assert other.abort(gtrid) is Settled.COMMITTED


def test_12_an_abort_record_that_meets_the_decision_writes_before_it_answers(databases: Databases, log: SqlLog) -> None:
    """What was read may have been made by a server that nobody flushed: the write behind it is."""
    gtrid = gtrid_of(log)
    log.record(gtrid, [])
    ((before,),) = databases.rows("one", "SELECT xmin::text FROM txpool_decisions")
    assert log.abort(gtrid) is Settled.COMMITTED
    ((after,),) = databases.rows("one", "SELECT xmin::text FROM txpool_decisions")
    assert before != after


def test_24_each_fence_is_a_write(databases: Databases, log: SqlLog, opener: Opener) -> None:
    name, other = log.incarnation, opener()
    for times in (1, 2, 3):
        other.fence(name)
        assert fences(databases) == {name: times}


def test_8_an_abort_record_waits_for_the_pointer_in_flight(
    databases: Databases, log: SqlLog, bare: psycopg.Connection[Any], apart: ThreadPoolExecutor
) -> None:
    gtrid = gtrid_of(log)
    bare.execute("INSERT INTO txpool_pointers VALUES (%s, 'ledger')", [gtrid])
    pointing = apart.submit(log.point, gtrid, "ledger")
    await_blocked(databases)
    aborting = apart.submit(lambda: (log.abort(gtrid), log.pointers()))
    await_blocked(databases, 2)
    bare.rollback()
    pointing.result()
    assert aborting.result() == (Settled.ABORTED, {gtrid: "ledger"})


def test_8_a_pointer_waits_for_the_abort_record_in_flight_and_is_refused(
    databases: Databases, log: SqlLog, bare: psycopg.Connection[Any], apart: ThreadPoolExecutor
) -> None:
    gtrid = gtrid_of(log)
    bare.execute("INSERT INTO txpool_decisions VALUES (%s, NULL, 0)", [gtrid])
    pointing = apart.submit(log.point, gtrid, "ledger")
    await_blocked(databases)
    bare.commit()
    with pytest.raises(Refused, match="aborted"):
        pointing.result()
    assert databases.rows("one", "SELECT * FROM txpool_pointers") == []


@pytest.mark.parametrize("_round", range(8))
def test_10_after_a_fence_no_decision_appears_that_it_did_not_see(
    databases: Databases, opener: Opener, apart: ThreadPoolExecutor, _round: int
) -> None:
    seed = random.randrange(10**9)
    print(f"seed {seed}")
    chance = random.Random(seed)
    log, other = opener(), opener("etl-2", nodes="*")
    name, numbers = log.incarnation, iter(range(100_000))
    fenced = threading.Event()
    made: list[str] = []

    def decide() -> bool:
        while True:
            gtrid = make_gtrid(NODE, name, next(numbers))
            try:
                log.record(gtrid, [])
            except Refused:
                return fenced.is_set() or other.is_fenced(name)
            made.append(gtrid)

    deciding = [apart.submit(decide) for _ in range(4)]
    time.sleep(chance.uniform(0.0, 0.2))
    other.fence(name)
    seen = decided(databases)
    fenced.set()
    assert all(each.result() for each in deciding)
    assert decided(databases) == seen == set(made)


# -- unknown, and established ---------------------------------------------------------------------------------------


def test_12_a_server_that_crashes_under_the_decision_leaves_it_unknown_until_an_abort_record_wins(
    databases: Databases, log: SqlLog, apart: ThreadPoolExecutor
) -> None:
    gtrid = gtrid_of(log)
    bare = psycopg.connect(databases.dsn("one"))
    bare.execute("SELECT FROM txpool_incarnations FOR UPDATE")
    deciding = apart.submit(log.record, gtrid, [])
    await_blocked(databases)
    databases.server.stop("immediate")
    bare.close()
    with pytest.raises(LogUnknown, match="may or may not be written"):
        deciding.result()
    with pytest.raises(LogError):
        log.abort(gtrid)
    databases.server.start()
    assert log.abort(gtrid) is Settled.ABORTED
    with pytest.raises(Refused):
        log.record(gtrid, [])
    assert databases.rows("one", "SELECT gtrid, branches FROM txpool_decisions") == [(gtrid, None)]


def test_12_a_decision_that_landed_though_its_answer_was_lost_is_met_by_the_abort_record(
    databases: Databases, log: SqlLog, apart: ThreadPoolExecutor
) -> None:
    incarnation = log.incarnation  # registered before there is anything to wait for
    # A commit that waits for a standby that is not there is on disk already.
    databases.execute("one", "ALTER SYSTEM SET synchronous_standby_names = 'nobody'")
    databases.execute("one", "SELECT pg_reload_conf()")
    try:
        waiting = "SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity WHERE wait_event = 'SyncRep'"
        ended: list[tuple[Any, ...]] = []
        for number in itertools.count(1):
            gtrid = make_gtrid(log.node, incarnation, number)
            deciding = apart.submit(log.record, gtrid, [])
            while not deciding.done() and not ended:
                ended = databases.rows("one", waiting)
            if ended:
                break  # the server took its time to hear of the standby; those before this one did not wait
        with pytest.raises(LogUnknown):
            deciding.result()
    finally:
        databases.execute("one", "ALTER SYSTEM RESET synchronous_standby_names")
        databases.execute("one", "SELECT pg_reload_conf()")
    assert log.abort(gtrid) is Settled.COMMITTED
    assert gtrid in decided(databases)


def test_a_connection_that_was_lost_while_idle_is_not_mistaken_for_an_unknown_decision(
    databases: Databases, log: SqlLog
) -> None:
    gtrid = gtrid_of(log)
    databases.rows(
        "one",
        "SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity WHERE application_name = 'txpool log'",
    )
    log.record(gtrid, [])
    assert decided(databases) == {gtrid}


def test_an_interrupt_leaves_the_decision_unknown_and_the_log_usable(
    databases: Databases, spawn: Spawn, bare: psycopg.Connection[Any], log: SqlLog
) -> None:
    process = spawn("""
        gtrid = make_gtrid(node, log.incarnation, 1)
        say("ready"); heard()
        try:
            log.record(gtrid, [])
        except KeyboardInterrupt:
            say("interrupted", log.abort(gtrid).name); heard()
            say(decide(2))
    """)
    assert said(process) == ["ready"]
    bare.execute("SELECT FROM txpool_incarnations FOR UPDATE")
    tell(process, "go")
    await_blocked(databases)
    process.send_signal(signal.SIGINT)
    assert said(process) == ["interrupted", "ABORTED"]
    bare.rollback()
    tell(process, "go")
    assert set(said(process)) == decided(databases) != set()


def test_an_unknown_incarnation_is_left_alone(databases: Databases, log: SqlLog) -> None:
    gtrid = make_gtrid(NODE, new_incarnation(), 1)
    with pytest.raises(Refused, match="not registered"):
        log.record(gtrid, [])
    with pytest.raises(LogError, match="left alone"):
        log.fence(split_gtrid(gtrid).incarnation)
    assert decided(databases) == set()
    assert fences(databases) == {}
