"""Nodes and hosts that share the log, and processes that fork or die."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING

import pytest

from recovery import RecoveryManager
from tests.integration.log.tables import Opener, Spawn, decided, fences
from tests.support.children import said, tell
from tests.support.log_places import LogPlace
from txpool.errors import LogError
from txpool.log import IncarnationState, SqlLog
from txpool.xid import split_gtrid

if TYPE_CHECKING:
    from tests.conftest import Databases


def test_nodes_share_a_log_and_each_recovers_its_own_or_those_it_is_asked_to(opener: Opener, spawn: Spawn) -> None:
    first = spawn("say(log.incarnation, decide(1)); heard()", "etl-1")
    second = spawn("say(log.incarnation, decide(1)); heard()", "etl-2")
    (one, of_one), (two, of_two) = said(first), said(second)
    own, both, every = opener("etl-1"), opener("etl-3", nodes=["etl-1", "etl-2"]), opener("etl-3", nodes="*")
    assert own.incarnations() == {one: IncarnationState.ALIVE}
    assert opener("etl-3").incarnations() == {}
    assert both.incarnations() == every.incarnations() == {one: IncarnationState.ALIVE, two: IncarnationState.ALIVE}
    assert (own.nodes(), both.nodes()) == ({"etl-1"}, {"etl-1", "etl-2"})  # type: ignore[comparison-overlap]
    assert every.nodes() == {"etl-1", "etl-2", "etl-3"}, "those that have registered, and its own"
    assert set(own.decisions()) == {of_one, of_two}
    with pytest.raises(LogError, match="not ours to recover: its branches are left alone"):
        own.fence(two)
    assert not own.is_fenced(two)
    every.fence(two)
    assert both.incarnations() == {one: IncarnationState.ALIVE, two: IncarnationState.FENCED}


def test_a_coordinator_that_is_killed_is_seen_dead_from_another_host(
    place: LogPlace, opener: Opener, spawn: Spawn
) -> None:
    process = spawn("say(log.incarnation, decide(1)); heard()", "etl-2")
    name, gtrid = said(process)
    log = opener("etl-1", nodes=["etl-2"])
    assert log.incarnations() == {name: IncarnationState.ALIVE}
    process.send_signal(signal.SIGKILL)
    process.wait()
    place.await_lease(name)
    assert log.incarnations() == {name: IncarnationState.DEAD}
    log.fence(name)
    assert log.incarnations() == {name: IncarnationState.FENCED}
    assert set(log.decisions()) == {gtrid}


@pytest.mark.parametrize(("point", "committed"), [("coordinator.prepared", False), ("coordinator.decided", True)])
def test_recovery_on_another_host_ends_what_a_killed_coordinator_left(
    databases: Databases, place: LogPlace, opener: Opener, spawn: Spawn, point: str, committed: bool
) -> None:
    for name in ("one", "two"):
        databases.execute(name, "CREATE TABLE t (id integer PRIMARY KEY)")
    process = spawn(f"""
        import txpool
        data, password = {databases.url("one")[:-3]!r}, {databases.server.password!r}
        from txpool import failpoints
        secret = os.environ["LOG_PASSWORD"]
        txpool.configure(node_name=node, log_url=url, log_password=secret)
        failpoints.arm("{point}", "kill")
        with txpool.transaction() as transaction:
            for name in ("one", "two"):
                source = txpool.DataSource(name=name, driver="psycopg", url=data + name, password=password)
                source.connect().cursor().execute("INSERT INTO t VALUES (1)")
            say(transaction.gtrid)
    """)
    (gtrid,) = said(process)
    assert process.wait() == -signal.SIGKILL
    place.await_lease(split_gtrid(gtrid).incarnation)
    assert len(databases.prepared()) == 2
    sources = [databases.datasource(name) for name in ("one", "two")]
    RecoveryManager(log=opener(), datasources=sources, backoff=0).scan()
    for source in sources:
        assert databases.rows(source.name, "SELECT id FROM t") == ([(1,)] if committed else [])
        source.close()
    assert databases.prepared() == []
    assert decided(place) == set()
    assert fences(place)[split_gtrid(gtrid).incarnation] > 0


def test_39_a_forked_child_leaves_its_parents_lease_and_takes_a_name_of_its_own(
    place: LogPlace, log: SqlLog, spawn: Spawn
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
    assert log.incarnations() == {parent: IncarnationState.ALIVE, child: IncarnationState.ALIVE}
    process.send_signal(signal.SIGKILL)
    process.wait()
    place.await_lease(parent)  # though the child outlives it
    assert log.incarnations() == {parent: IncarnationState.DEAD, child: IncarnationState.ALIVE}
    tell(process, "go")
    assert {second, third, *said(process)} < decided(place)


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
    assert log.incarnations() == {name: IncarnationState.ALIVE}
    assert set(log.decisions()) == {first, second}
