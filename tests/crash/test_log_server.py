"""The decision log's own server crashes, stays away, or is behind a network that fails as the decision is written.

It keeps nothing but the log (apart), or the databases of the transaction as well (together). A sample, and all with
TXPOOL_CRASH_FULL=1.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import closing

import psycopg
import pytest

from tests.crash.evidence import Count, Evidence
from tests.crash.lost_messages import DECIDING, IMPATIENT, Statement, attempt_with_fault
from tests.crash.site import DONE, LOG, MYSQL_STORES, SERVER_STORES, UNDONE, UNKNOWN, CrashSite
from tests.support.mysql import MySQLServer
from tests.support.proxy import NetworkFault, Proxy
from txpool import failpoints
from txpool.demo.server import EmbeddedPostgres
from txpool.errors import LogError
from txpool.xid import PREFIX

SAMPLE = 6
PLAIN = ("one", "two")
LEDGER = ("one", "two", "ledger")
DECISION = Statement(PREFIX.encode(), PLAIN)


@pytest.fixture(params=SERVER_STORES)
def store(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def where() -> str:
    """Whether the log is `apart` from the databases or `together` with them."""
    return "together"


@pytest.fixture
def log_server(request: pytest.FixtureRequest, store: str, where: str) -> EmbeddedPostgres | MySQLServer:
    """One of MariaDB or MySQL is always apart."""
    postgresql = "log_only_server" if where == "apart" else "victim"
    found: EmbeddedPostgres | MySQLServer = request.getfixturevalue(MYSQL_STORES.get(store, postgresql))
    return found


@pytest.fixture
def proxy(world: CrashSite, store: str) -> Iterator[Proxy]:
    """Between the transactions and their log."""
    mysql = store in MYSQL_STORES
    proxy = Proxy(world.log_server.port, mysql=mysql)
    options = "&".join(f"{key}={value}" for key, value in IMPATIENT.items()) + "&ssl_disabled=true" * mysql
    world.describe_log(port=proxy.port, options=f"?connect_timeout=2&{options}")
    yield proxy
    proxy.close()


# -- the network --------------------------------------------------------------------------------------------------

#: What happens to the decision on its way; what the caller is told, and how it ends in truth. An abort record meets
#: the decision, or takes its place, as soon as the log can be asked again: until then it is in doubt.
ON_ITS_WAY = {**DECIDING, NetworkFault.LATE: (UNDONE, False)}
STRIKES = [pytest.param(how, *expected, id=how.name) for how, expected in ON_ITS_WAY.items()]


@pytest.mark.parametrize(("how", "said", "committed"), STRIKES)
def test_the_network_fails_under_the_decision(
    world: CrashSite, proxy: Proxy, how: NetworkFault, said: str, committed: bool, evidence: Evidence
) -> None:
    with world.coordinator() as manager:
        assert attempt_with_fault(world, proxy, DECISION, how) == said
        assert len(world.prepared()) == (len(PLAIN) if said == UNKNOWN else 0)
        proxy.repair(how)
        world.wait_until_resolved(manager)
        # Nothing waits for recovery, nor for the end of the process.
        assert world.prepared() == []
        assert world.holders(1) == (set(PLAIN) if committed else set())
    world.wait_for_sessions()
    assert not world.scan().errors
    assert world.assert_settled(1, PLAIN, said) is committed
    evidence.add(Count.NETWORK_FAULTS)


@pytest.mark.costly
@pytest.mark.parametrize(("how", "said", "committed"), STRIKES)
def test_a_process_dies_before_its_log_is_reached_again(
    world: CrashSite, proxy: Proxy, how: NetworkFault, said: str, committed: bool, evidence: Evidence
) -> None:
    """Recovery has a way of its own to the log; a decision that arrives behind its fence decides nothing."""
    with world.coordinator():
        assert attempt_with_fault(world, proxy, DECISION, how) == said
    assert not world.scan().errors
    assert world.prepared() == []
    assert world.holders(1) == (set(PLAIN) if committed else set())
    proxy.repair(how)
    world.wait_for_sessions()
    world.scan()
    assert world.assert_settled(1, PLAIN, said) is committed
    evidence.add(Count.NETWORK_FAULTS)


# -- the server ---------------------------------------------------------------------------------------------------

#: Where it goes away, and what the caller is told. A log that cannot be reached has certainly written nothing; a
#: mark decides without it.
AWAY = {
    PLAIN: {
        "coordinator.begin": UNDONE,
        "coordinator.prepared": UNDONE,
        "log.record": UNDONE,
        "log.recorded": DONE,
        "coordinator.decided": DONE,
        "branch.commit-sent": DONE,
    },
    LEDGER: {"coordinator.prepared": DONE, "marked.commit": DONE, "marked.committed": DONE},
}


@pytest.mark.parametrize("where", ["apart"])
@pytest.mark.parametrize(
    ("names", "point", "said"),
    [
        pytest.param(names, point, said, id=f"{names[-1]}-{point}")
        for names, points in AWAY.items()
        for point, said in points.items()
    ],
)
def test_it_stays_away(world: CrashSite, names: tuple[str, ...], point: str, said: str, evidence: Evidence) -> None:
    """The databases end as they were told, and wait for no log; recovery without one does nothing."""
    with world.coordinator() as manager:
        world.attempt(0, *names)
        failpoints.arm(point, lambda: world.log_server.stop("immediate"))
        assert world.attempt(1, *names) == said
        failpoints.disarm()
        assert world.prepared() == []
        assert world.holders(1) == (set(names) if said == DONE else set())
        with pytest.raises(LogError):
            world.scan()
        assert world.attempt(2, *PLAIN) == UNDONE
        world.log_server.start()
        world.wait_until_resolved(manager)
        assert world.attempt(3, *names) == DONE
    assert not world.scan().errors
    world.assert_settled(1, names, said)
    world.assert_settled(3, names, DONE)
    evidence.hit([point])
    evidence.add(Count.KILLS)


#: As above, where its server has the databases, too: whether it comes back at once, and what the caller is told.
TOGETHER = {
    "coordinator.begin": (UNDONE, UNDONE),
    "coordinator.prepared": (UNDONE, DONE),
    "log.record": (UNDONE, DONE),
    "log.recorded": (DONE, DONE),
    "coordinator.decided": (DONE, DONE),
    "branch.commit-sent": (DONE, DONE),
}


@pytest.mark.parametrize("store", ["sql"], indirect=True)
@pytest.mark.parametrize("back", [False, True], ids=["away", "back"])
@pytest.mark.parametrize("point", TOGETHER)
def test_it_crashes_with_the_databases(world: CrashSite, point: str, back: bool, evidence: Evidence) -> None:
    said = TOGETHER[point][back]
    crash = world.server.restart if back else world.server.stop
    with world.coordinator():
        world.attempt(0, *PLAIN)
        failpoints.arm(point, lambda: crash("immediate"))
        assert world.attempt(1, *PLAIN) == said
        failpoints.disarm()
    world.server.start()
    world.wait_for_sessions()
    assert not world.scan().errors
    assert world.assert_settled(1, PLAIN, said) is (said == DONE)
    evidence.hit([point])
    evidence.add(Count.KILLS)


@pytest.mark.costly
@pytest.mark.parametrize("where", ["apart", "together"])
def test_it_crashes_under_the_decision(world: CrashSite, where: str, evidence: Evidence) -> None:
    """The decision was on its way, and cannot be asked for: in doubt, and rolled back once the server is there."""
    with world.coordinator() as manager:
        world.attempt(0, *PLAIN)
        crash = threading.Thread(target=_crash_under_a_decision, args=(world, held := threading.Event()))

        def wait_for_the_lock() -> None:
            crash.start()
            held.wait()

        failpoints.arm("log.record", wait_for_the_lock)
        assert world.attempt(1, *PLAIN) == UNKNOWN
        failpoints.disarm()
        crash.join()
        if where == "apart":
            assert len(world.prepared()) == len(PLAIN)
        world.log_server.start()
        world.wait_until_resolved(manager)
        assert world.prepared() == []
    assert not world.scan().errors
    assert world.assert_settled(1, PLAIN, UNKNOWN) is False
    evidence.hit(["log.record"])
    evidence.add(Count.KILLS)


def _crash_under_a_decision(world: CrashSite, held: threading.Event) -> None:
    """Hold the decisions, and crash their server as soon as one waits for that."""
    if isinstance(world.log_server, MySQLServer):
        with world.log_server.connect(LOG, autocommit=False) as holding, holding.cursor() as cursor:
            cursor.execute("select name from txpool_incarnations for update")
            held.set()
            waiting = "select 1 from information_schema.innodb_trx where trx_state = 'LOCK WAIT'"
            while not world.log_server.execute(waiting):
                time.sleep(0.11)  # InnoDB shows its transactions no more often
            world.log_server.stop("immediate")
        return
    with closing(psycopg.connect(world.log_server.dsn(LOG))) as other:
        other.execute("lock table txpool_decisions in share mode")
        held.set()
        other.execute(
            "do $$ begin while not exists (select from pg_locks where not granted) "
            "loop perform pg_sleep(0.005); end loop; end $$"
        )
        world.log_server.stop("immediate")
