"""A relay is killed in phase two of a delivery over two servers: no other relay overtakes that message of the key.

A server may be restarted meanwhile: MariaDB forgets the locks of a prepared transaction then, but not what it changed.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import pytest

import txpool
from tests.conftest import Databases
from tests.crash import eventually as places
from tests.crash.eventually import Eventually
from tests.crash.evidence import Count, Evidence
from tests.support import preloaded
from tests.support.mysql import MySQLServer
from tests.support.waiting import until
from txpool import DataSource, Outbox
from txpool.outbox import Message
from txpool.outbox import relay as relays

#: Delivers until it is killed.
RELAY = """
import txpool
txpool.configure("txpool.properties")

def deliver(message):
    with txpool.connect("ledger.properties") as ledger:
        ledger.cursor().execute("insert into applied values (%s)", [message.payload])

txpool.Outbox("orders.properties").relay(deliver).deliver_all()
"""

#: Sends, with work in the other server, until it is killed.
SENDER = """
import txpool
txpool.configure("txpool.properties")
with txpool.transaction():
    txpool.Outbox("orders.properties").send("1", key="k")
    with txpool.connect("ledger.properties") as ledger:
        ledger.cursor().execute("insert into applied values ('0')")
"""


class CutOff:
    """An outbox in one kind of server, what is delivered in the other, and a relay of this process's own."""

    def __init__(self, folder: Path, databases: Databases, mariadb: MySQLServer, kind: str) -> None:
        self.folder, self.databases, self.mariadb, self.kind = folder, databases, mariadb, kind
        mariadb.empty()
        postgresql = f"driver = psycopg\nurl = {databases.url('one')}\npassword = {databases.server.password}"
        maria = f"driver = pymysql\nmode = xa\nurl = {mariadb.url('one')}\npassword = {mariadb.password}"
        files = (
            {"orders": postgresql, "ledger": maria} if kind == "postgresql" else {"orders": maria, "ledger": postgresql}
        )
        files["txpool"] = "node.name = etl-1\nlog.url = sqlite:///txlog\nlog.create = true"
        recovery = "recovery.backoff = 0\ndatasources = orders.properties, ledger.properties"
        files["recovery"] = files["txpool"].replace("log.create = true", recovery)
        for name, text in files.items():
            path = folder / f"{name}.properties"
            path.write_text(f"{text}\n")
            path.chmod(0o600)
        self.server("ledger", "create table applied (payload varchar(10))")
        txpool.configure(folder / "txpool.properties")
        self.orders, self.ledger = (
            DataSource.from_properties(folder / f"{each}.properties") for each in ("orders", "ledger")
        )
        self.outbox = Outbox(self.orders)
        self.outbox.create()
        #: By each message that was delivered here: what was visible then.
        self.seen: dict[str, list[str]] = {}
        self.relay = self.outbox.relay(self.deliver)
        self.relay.deliver_all()

    def server(self, name: str, statement: str) -> list[tuple[Any, ...]]:
        """Execute over the server's own driver."""
        if (name == "orders") is (self.kind == "mariadb"):
            return self.mariadb.execute(statement, database="one")
        if not statement.startswith("select"):
            self.databases.execute("one", statement)
            return []
        return self.databases.rows("one", statement)

    def applied(self) -> list[str]:
        return sorted(payload for (payload,) in self.server("ledger", "select payload from applied"))

    def deliver(self, message: Message) -> None:
        self.seen[str(message.payload)] = self.applied()
        with closing(self.ledger.connect()) as ledger:
            ledger.cursor().execute("insert into applied values (%s)", [message.payload])

    def kill_a_relay(self, failpoint: str) -> None:
        """Send two messages of a key, and kill the relay of another process while it delivers the first one."""
        with txpool.transaction():
            for each in ("1", "2"):
                self.outbox.send(each, key="k")
        self.kill(RELAY, failpoint)
        if failpoint == "branch.commit-sent":  # what it has sent outlives it for a moment
            table = "txpool_spark.outbox" if self.kind == "postgresql" else "txpool_outbox"
            until(lambda: self.server("orders", f"select 1 from {table} where delivered_by is not null"))

    def kill(self, program: str, failpoint: str) -> None:
        """Run it in a process of its own, which ends there."""
        environment = os.environ | {"TXPOOL_FAILPOINTS": f"{failpoint}=kill"}
        done = preloaded.run("-c", program, cwd=self.folder, env=environment)
        assert done.returncode == -9, done.stderr


@pytest.fixture(params=["postgresql", "mariadb"])
def cut_off(
    request: pytest.FixtureRequest,
    tmp_path: Path,
    databases: Databases,
    mariadb: MySQLServer,
    monkeypatch: pytest.MonkeyPatch,
    eventually: Eventually,
) -> Iterator[CutOff]:
    monkeypatch.setattr(relays, "_FIRST_WAIT", 0.0)
    place = CutOff(tmp_path, databases, mariadb, request.param)
    dsns = [databases.dsn(name) for name in ("one", "two")]
    eventually.in_the(places.of_files(tmp_path / "recovery.properties", dsns=dsns, servers=[mariadb]))
    try:
        yield place
    finally:
        mariadb.start()
        for each in (place.orders, place.ledger):
            each.close()
        txpool.configure()


def test_between_the_two_commits(cut_off: CutOff, evidence: Evidence) -> None:
    """The outbox's branch has committed, the other one is prepared, and this relay has begun before that."""
    cut_off.kill_a_relay("branch.commit-sent")
    until(lambda: (cut_off.relay.deliver_some(), cut_off.applied() == ["1", "2"])[1])
    assert cut_off.seen == {"2": ["1"]}
    assert (cut_off.outbox.state().waiting, cut_off.databases.prepared(), cut_off.mariadb.names()) == (0, [], [])
    evidence.add(Count.KILLS, 1)


def test_while_a_server_is_down(cut_off: CutOff, evidence: Evidence) -> None:
    """The later message waits for as long as nobody knows whether the earlier one has ended everywhere."""
    cut_off.kill_a_relay("branch.commit-sent")
    cut_off.mariadb.stop("immediate")
    for _ in range(3):
        try:
            assert cut_off.relay.deliver_some() == 0
        except txpool.OperationalError:
            assert cut_off.kind == "mariadb"  # the outbox itself is there
    assert cut_off.seen == {}
    cut_off.mariadb.start()
    until(lambda: _delivers(cut_off))
    assert cut_off.seen == {"2": ["1"]}
    assert cut_off.outbox.state().waiting == 0
    evidence.add(Count.KILLS, 2)


def _delivers(cut_off: CutOff) -> bool:
    """Whether all is delivered; connections that the stop has cut off are replaced."""
    with suppress(txpool.OperationalError):
        cut_off.relay.deliver_some()
    return cut_off.applied() == ["1", "2"]


def test_both_are_prepared_and_a_server_is_restarted(cut_off: CutOff, evidence: Evidence) -> None:
    cut_off.kill_a_relay("coordinator.decided")
    cut_off.mariadb.restart("immediate")
    for _ in range(3):
        try:
            assert cut_off.relay.deliver_some() == 0
        except txpool.OperationalError:
            assert cut_off.kind == "mariadb"
    assert cut_off.seen == {}, "it has overtaken what is prepared"
    cut_off.relay.deliver_all()  # which recovers first
    until(lambda: _delivers(cut_off))
    assert cut_off.seen == {"2": ["1"]}
    assert (cut_off.databases.prepared(), cut_off.mariadb.names()) == ([], [])
    evidence.add(Count.KILLS, 2)


@pytest.mark.costly
def test_a_sender_is_prepared_and_its_server_is_restarted(cut_off: CutOff, evidence: Evidence) -> None:
    """Who sends under its key then waits for it, and so cannot be delivered before it."""
    cut_off.kill(SENDER, "coordinator.decided")
    if cut_off.kind == "mariadb":
        cut_off.mariadb.restart("immediate")
        cut_off.orders.flush()
    wait = "innodb_lock_wait_timeout = 1" if cut_off.kind == "mariadb" else "lock_timeout = '1s'"
    with pytest.raises(txpool.OperationalError, match=r"(?i)lock"), txpool.transaction():
        with closing(cut_off.orders.connect()) as orders:
            orders.cursor().execute(f"set {wait}")
        cut_off.outbox.send("2", key="k")
    cut_off.relay.deliver_all()  # which recovers first
    with txpool.transaction():
        cut_off.outbox.send("2", key="k")
    until(lambda: (cut_off.relay.deliver_some(), cut_off.applied() == ["0", "1", "2"])[1])
    assert cut_off.seen == {"1": ["0"], "2": ["0", "1"]}
    evidence.add(Count.KILLS, 2)
