"""Sessions with `driver = jms` over Artemis: branches that receive and send, the traps of the broker, recovery."""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import sys
import threading
from base64 import urlsafe_b64decode
from collections import deque
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager, suppress
from contextvars import copy_context
from pathlib import Path
from typing import Any

import pytest

import txpool
from recovery.manager import RecoveryManager
from tests.support import preloaded
from tests.support.jms.broker import Artemis
from tests.support.jms.fixtures import create_queues, write_site
from tests.support.message_site import configured
from tests.support.ports import free_ports
from tests.support.shared import node_of, unique
from tests.support.waiting import until
from txpool import failpoints
from txpool.idempotency.outage import is_outage
from txpool.messages import MessageSession, ReceivedMessage
from txpool.resources.base import PrepareVote
from txpool.resources.deadlines import NO_DEADLINES
from txpool.resources.jdbc.databases.by_xa import XaError
from txpool.resources.jms import broker, connection
from txpool.resources.jms.branch import JmsBranch, JmsWork
from txpool.resources.jms.broker import QUEUE
from txpool.resources.jms.connection import JmsConnection
from txpool.resources.jms.driver import JmsDriver
from txpool.resources.jms.manager import MANAGER
from txpool.xid import Xid, make_xid

pytestmark = pytest.mark.slow


class Site:
    def __init__(self, folder: Path, broker: Artemis, queues: tuple[str, str]) -> None:
        self.folder, self.broker, self.queues = folder, broker, queues
        self.inward, self.outward = (txpool.session(folder / f"{name}.properties") for name in ("in", "out"))

    @property
    def sessions(self) -> JmsDriver:
        return MANAGER.sessions(self.outward.source)

    def sql(self, statement: str) -> list[Any]:
        with closing(sqlite3.connect(self.folder / "orders.db", isolation_level=None, timeout=60)) as connection:
            return connection.execute(statement).fetchall()

    def out(self) -> list[str]:
        return self.broker.bodies(self.queues[1])

    def branches(self, raw: JmsConnection) -> list[Xid]:
        """Those of this test's node: other tests use the broker, too."""
        return [each.xid for each in raw.database.listed(raw) if each.xid.node == node_of(self.queues)]

    def listed(self) -> set[str]:
        with closing_session(self.sessions.connect()) as raw:
            return {each.joined for each in self.branches(raw)}

    def reconnect(self) -> None:
        self.broker.kill()
        self.broker.start()


class closing_session:
    def __init__(self, raw: JmsConnection) -> None:
        self.raw = raw

    def __enter__(self) -> JmsConnection:
        return self.raw

    def __exit__(self, *_: object) -> None:
        self.raw.drop()


@contextmanager
def site_over(broker: Artemis, folder: Path) -> Iterator[Site]:
    queues = create_queues(broker)
    write_site(folder, broker, queues)
    with configured(folder):
        made = Site(folder, broker, queues)
        yield made
        with closing_session(made.sessions.connect()) as raw:
            for each in made.branches(raw):
                with suppress(XaError):
                    raw.xa.rollback(java(each))


@pytest.fixture
def site(artemis: Artemis, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    monkeypatch.chdir(tmp_path)
    with site_over(artemis, tmp_path) as made:
        yield made


@pytest.fixture
def own_site(own_artemis: Artemis, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    """Over a broker that the test may kill and change."""
    monkeypatch.chdir(tmp_path)
    with site_over(own_artemis, tmp_path) as made:
        yield made


def java(xid: Xid) -> Any:
    from txpool.resources.jdbc.branches.xid import java_xid

    return java_xid(xid)


def texts(messages: list[ReceivedMessage]) -> list[str]:
    return [each.text for each in messages]


def work(messages: list[ReceivedMessage], outward: MessageSession | None = None) -> None:
    with txpool.connect("orders.properties") as orders:
        for each in messages:
            orders.execute("insert into done values (?)", [each.text])
            if outward is not None:
                outward.send(each.body)


def a_name(number: int = 0) -> Xid:
    """A name as the coordinator gives it to a branch."""
    with txpool.transaction() as ambient:
        ambient.may_be_empty = True
    return make_xid(ambient.gtrid, number, "out")


def begun(site: Site, xid: Xid) -> tuple[JmsWork, JmsBranch]:
    raw = site.sessions.take()
    branch = JmsBranch("out", site.sessions, raw, NO_DEADLINES)
    branch.name(xid)
    return JmsWork(raw), branch


def send(site: Site, work: JmsWork, text: str = "x") -> None:
    from txpool.resources.messages.tables import Outgoing

    raw = work.begun()
    raw.send(raw.queue(site.queues[1]), raw.message(Outgoing("1", text.encode(), None, {}, 0)))


def prepared(site: Site, xid: Xid) -> JmsBranch:
    of, branch = begun(site, xid)
    send(site, of)
    branch.start_prepare()
    assert branch.await_prepare() is PrepareVote.COMMIT
    return branch


@pytest.mark.costly
def test_message_row_message(site: Site) -> None:
    sent = [site.inward.send(text, headers={"h": "€😀"}) for text in ("one", "two")]
    with txpool.transaction():
        found = site.inward.receive(10, timeout=60)
        work(found, site.outward)
        assert site.out() == []
    assert texts(found) == ["one", "two"]
    assert [each.id for each in found] == sent
    assert dict(found[0].headers) == {"h": "€😀"}
    assert site.out() == ["one", "two"]
    assert site.sql("select body from done") == [("one",), ("two",)]
    assert site.listed() == set()
    site.inward.send(None)
    site.inward.send(bytes(range(256)))
    with txpool.transaction():
        assert [each.body for each in site.inward.receive(10, timeout=60)] == [None, bytes(range(256))]


@pytest.mark.costly
def test_large_messages_and_those_of_other_programs(site: Site) -> None:
    large = os.urandom(1_000_000)
    site.inward.send(large, headers={"h": "x" * 10_000})
    opened = site.broker.connect()
    plain = opened.createSession(False, 1)
    producer = plain.createProducer(plain.createQueue(site.queues[0]))
    text = plain.createTextMessage("€😀" * 100_000)
    text.setIntProperty("number", 5)
    text.setStringProperty("none", None)
    producer.send(text)
    with txpool.transaction():
        found = site.inward.receive(10, timeout=60)
    assert [each.body for each in found] == [large, ("€😀" * 100_000).encode()]
    assert found[0].headers == {"h": "x" * 10_000}
    assert found[1].headers == {"number": "5", "none": ""}
    producer.send(plain.createMapMessage())
    opened.close()
    with pytest.raises(txpool.NotSupportedError, match="MapMessage"), txpool.transaction():
        site.inward.receive(10, timeout=60)


def test_a_header_with_the_name_of_txpools_own_is_refused_and_received_ones_can_be_sent_on(site: Site) -> None:
    """Its value was replaced in silence."""
    with txpool.transaction(), pytest.raises(txpool.ProgrammingError, match="header txpool_id is txpool's own"):
        site.outward.send("x", headers={"h": "1", "txpool_id": "mine"})
    sent = site.inward.send("one", headers={"h": "1"})
    opened = site.broker.connect()
    plain = opened.createSession(False, 1)
    for made in ("a\0", "", "theirs"):
        text = plain.createTextMessage(made)
        text.setStringProperty("txpool_id", made)
        plain.createProducer(plain.createQueue(site.queues[0])).send(text)
    opened.close()
    for queue, session in zip(site.queues, (site.inward, site.outward), strict=True):
        with txpool.transaction():
            found = session.receive(10, timeout=60)
            assert [dict(each.headers) for each in found] == [
                {"h": "1"},
                {"txpool_other": "a\0"},
                {"txpool_other": ""},
                {},
            ]
            if queue == site.queues[0]:
                assert (found[0].id, found[3].id) == (sent, "theirs")
                for each in found:
                    site.outward.send(each.body, headers=each.headers)


@pytest.mark.parametrize("body", ["x", "x" * 99_000, "x" * 1_000_000])
def test_headers_that_the_broker_would_refuse_at_the_commit_are_refused_before(site: Site, body: str) -> None:
    """Their record in its journal would be too long: it says so at a commit, which is in doubt then."""
    most = "x" * 49_900  # with the name, and the id with its own, in two bytes each
    site.inward.send(body, headers={"h": most})
    for text in (most + "x" * 100, "x" * 600_000):
        with pytest.raises(txpool.NotSupportedError, match="at most 100,000, with their names"), txpool.transaction():
            site.outward.send(body, headers={"h": text})
    with txpool.transaction():
        (found,) = site.inward.receive(10, timeout=60)
    assert (found.text, dict(found.headers)) == (body, {"h": most})
    assert site.out() == []


def test_a_full_address_that_blocks_its_senders_holds_none_for_ever(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By its own limit, or by the transaction's timeout; what waits there can be received, and then it goes on."""
    full = unique("full.q")
    site.broker.create_queues(full)
    text = (site.folder / "out.properties").read_text()
    (site.folder / "full.properties").write_text(
        text.replace(f"queue = {site.queues[1]}", f"queue = {full}").replace("name = out", "name = full")
    )
    session, sent = txpool.session("full.properties"), 0
    with (
        monkeypatch.context() as patch,
        pytest.raises(txpool.OperationalError, match="its address is full, maybe") as error,
    ):
        patch.setattr(connection, "_PATIENCE", 1.0)
        while sent < 100:
            session.send(b"x" * 50_000)
            sent += 1
    assert is_outage(error.value)
    assert 0 < sent < 100
    with pytest.raises(txpool.TransactionRolledBack), txpool.transaction(timeout=1):
        with txpool.connect("orders.properties") as orders:
            orders.execute("insert into done values ('never')")
        with suppress(txpool.Error):
            session.send(b"x" * 50_000)
    assert site.sql("select * from done") == []
    assert len(site.broker.bodies(full)) == sent
    with txpool.transaction():
        assert len(session.receive(100, timeout=60)) == sent
    session.send("x")
    assert site.broker.bodies(full) == ["x"]


def test_a_full_address_that_fails_is_no_fault_of_a_message(site: Site) -> None:
    full, sent = unique("fails"), 0
    settings = {"maxSizeBytes": 100_000, "pageSizeBytes": 50_000, "addressFullMessagePolicy": "FAIL"}
    site.broker.manage("addAddressSettings", full, json.dumps(settings))
    site.broker.create_queues(full)
    session = session_of(site, "full", queue=full)
    with pytest.raises(txpool.OperationalError, match="its address is full, maybe") as error:
        while sent < 100:
            session.send(b"x" * 50_000)
            sent += 1
    assert is_outage(error.value)
    assert len(site.broker.bodies(full)) == sent
    with txpool.transaction():
        assert len(session.receive(100, timeout=60)) == sent
    session.send("x")
    assert site.broker.bodies(full) == ["x"]


def test_a_rollback_sends_nothing_and_delivers_again(site: Site) -> None:
    site.inward.send("one")
    for tries in range(3):
        with pytest.raises(KeyError), txpool.transaction():
            found = site.inward.receive(10, timeout=60)
            work(found, site.outward)
            raise KeyError
        assert [(each.text, each.tries) for each in found] == [("one", tries)]
    assert site.out() == []
    with pytest.raises(txpool.ProgrammingError, match="outside a transaction"):
        site.inward.receive()


def test_an_idle_session_that_another_thread_takes_first_is_no_error(site: Site) -> None:
    class Emptied(deque[JmsConnection]):
        def __len__(self) -> int:
            return 1

    site.sessions._idle = Emptied()
    with closing_session(site.sessions.take()) as raw:
        raw.ping()


def test_what_two_threads_send_is_in_the_branch(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """A thread that sends while the other one's START is under way waits for that."""
    starts, sent = threading.Event(), threading.Event()
    start = broker.Artemis.start

    def begin(given: broker.Artemis, raw: JmsConnection, xid: Xid) -> None:
        starts.set()
        sent.wait(1)  # the other thread waits for this one
        start(given, raw, xid)

    def send_second() -> None:
        starts.wait()
        site.outward.send("two")
        sent.set()

    monkeypatch.setattr(broker.Artemis, "start", begin)
    with ThreadPoolExecutor(1) as threads:
        with pytest.raises(KeyError), txpool.transaction():
            sending = threads.submit(copy_context().run, send_second)
            site.outward.send("one")
            sending.result()
            raise KeyError
    assert site.out() == []


def test_ten_rollbacks_make_a_dead_letter(site: Site) -> None:
    sent = site.inward.send("dead")
    for _ in range(10):
        with pytest.raises(KeyError), txpool.transaction():
            assert texts(site.inward.receive(1, timeout=60)) == ["dead"]
            raise KeyError
    assert site.broker.bodies(site.queues[0]) == []
    assert (sent, b"dead") in site.broker.browsed("dead")


def test_what_jms_lacks_is_refused(site: Site) -> None:
    for arguments, problem in (
        ({"key": "k"}, "no keys"),
        ({"headers": {"content-type": "x"}}, "no header 'content-type'"),
        ({"headers": {"JMSType": "x"}}, "no header 'JMSType'"),
        ({"headers": {"__AMQ_CID": "x"}}, "no header '__AMQ_CID'"),  # the client hides it from who receives
        ({"headers": {"h": "\udcff"}}, "no text"),
    ):
        with pytest.raises(txpool.NotSupportedError, match=problem):
            site.outward.send("x", **arguments)  # type: ignore[arg-type]
    assert site.out() == []
    site.outward.send("late", delay=3600)
    with txpool.transaction() as ambient:
        ambient.may_be_empty = True
        assert site.outward.receive() == []


def test_a_topic_is_sent_to_and_its_subscription_is_a_queue(site: Site) -> None:
    news, shop = session_of(site, "news", topic="news"), session_of(site, "shop", queue="news::shop")
    news.send("new")
    with txpool.transaction():
        assert texts(shop.receive(2, timeout=60)) == ["new"]
    with pytest.raises(txpool.NotSupportedError, match="news::SUBSCRIPTION"), txpool.transaction():
        news.receive()


def test_whoever_listens_to_a_topic_for_now_keeps_nobody_from_sending_there(site: Site) -> None:
    """Its queue is deleted with it, and not durable: it asks for no more."""
    topic = unique("topic")
    site.broker.manage("createAddress", topic, "MULTICAST")
    session = session_of(site, topic, topic=topic)
    opened = site.broker.connect()
    try:
        plain = opened.createSession(False, 1)
        listener = plain.createConsumer(plain.createTopic(topic))
        sent = session.send("heard")
        assert str(listener.receive(60_000).getStringProperty("txpool_id")) == sent
    finally:
        opened.close()


@pytest.mark.parametrize(
    ("option", "problem"),
    [
        ({"ring-size": 1}, "keeps the last messages alone"),
        ({"last-value": True, "last-value-key": "k"}, "keeps the last message of a key alone"),
        ({"non-destructive": True}, "keeps what was received"),
        ({"enabled": False}, "is disabled"),
        ({"filter-string": "k = 'v'"}, "has a filter"),
    ],
)
def test_a_queue_that_drops_messages_or_gives_them_out_again_is_refused(
    site: Site, option: dict[str, Any], problem: str
) -> None:
    name = unique("odd")
    queue = {"name": name, "address": name, "routing-type": "ANYCAST", "durable": True}
    site.broker.manage("createQueue", json.dumps(queue | option))
    session = session_of(site, name, queue=name)
    with pytest.raises(txpool.ConfigurationError, match=problem):
        session.send("lost")
    if problem != "has a filter":
        with pytest.raises(txpool.ConfigurationError, match=problem), txpool.transaction():
            session.receive()
    else:  # it is one of several, maybe, to each of which its address gives some
        with txpool.transaction():
            assert session.receive() == []
    parking = session_of(site, f"to-{name}", queue=site.queues[0], parking=name)
    site.inward.send("bad")

    with pytest.raises(KeyError), txpool.transaction():
        message = parking.take_one()
        raise KeyError
    assert message is not None
    with pytest.raises(txpool.ConfigurationError, match=problem):
        parking.park(message, "bad")
    assert site.broker.bodies(site.queues[0]) == ["bad"]


def session_of(site: Site, name: str, **keys: str) -> MessageSession:
    """Another session, with other keys than `out`."""
    text = (site.folder / "out.properties").read_text().replace(f"queue = {site.queues[1]}\n", "")
    if "topic" in keys:
        text = text.replace("parking.after = 2\n", "")
    more = "".join(f"{key} = {value}\n" for key, value in keys.items())
    (site.folder / f"{name}.properties").write_text(text.replace("name = out", f"name = {name}") + more)
    return txpool.session(f"{name}.properties")


def test_a_queue_of_an_address_with_another_name(site: Site) -> None:
    """It is named with its address. By its own name the broker takes messages to it, and drops them."""
    address, queue, other = (unique(each) for each in ("address", "queue", "other"))
    site.broker.manage("createQueue", address, queue, "ANYCAST")
    inward = session_of(site, "named", queue=f"{address}::{queue}", parking=f"{address}::{other}")
    inward.parking_after = 1
    for text in ("one", "bad"):
        inward.send(text)

    def ship(messages: list[ReceivedMessage]) -> None:
        if texts(messages) == ["bad"]:
            raise ValueError("bad")
        work(messages)

    assert txpool.consumer(inward, max_messages=2, poll=1)(ship).run(lambda: inward.parked()[0] == 1) == 1
    assert site.sql("select body from done") == [("one",)]
    assert site.broker.bodies(f"{address}::{other}") == ["bad"]
    for name in (queue, f"{other}::{queue}"):
        wrong = session_of(site, unique("wrong"), queue=name)
        with pytest.raises(txpool.ConfigurationError, match=f"is at the address {address}.*write {address}::{queue}"):
            wrong.send("lost")
        with pytest.raises(txpool.ConfigurationError, match=f"write {address}::{queue}"), txpool.transaction():
            wrong.receive()
    assert site.broker.bodies(f"{address}::{queue}") == []
    settings = session_of(site, "parks", queue=site.queues[1], parking=queue).source.settings
    (found,) = MANAGER.findings(settings, stale_after=1, timeout=None)
    assert f"write {address}::{queue}" in found.found


@pytest.mark.parametrize(("queue", "parking"), [("a::b", "b"), ("b", "a::b"), ("a::b", "a::b"), ("b", "b")])
def test_no_queue_is_parked_in_by_another_name(site: Site, queue: str, parking: str) -> None:
    """A broker has one queue of a name, whatever the address."""
    with pytest.raises(txpool.ConfigurationError, match=r"parking = .* leads back to where it came from"):
        session_of(site, "back", queue=queue, parking=parking)


def test_a_queue_that_the_broker_would_delete_is_refused(site: Site) -> None:
    name = unique("auto")
    text = (site.folder / "out.properties").read_text()
    (site.folder / "auto.properties").write_text(
        text.replace(f"queue = {site.queues[1]}", f"queue = {name}").replace("name = out", "name = auto")
    )
    session = txpool.session("auto.properties")
    with pytest.raises(txpool.ConfigurationError, match=f"no queue {name}"):
        session.send("lost")
    opened = site.broker.connect()
    plain = opened.createSession(False, 1)
    plain.createProducer(plain.createQueue(name)).send(plain.createMessage())  # the broker makes it by itself
    try:
        with pytest.raises(txpool.ConfigurationError, match="is auto-deleted"):
            session.send("lost")
        with pytest.raises(txpool.ConfigurationError, match="is auto-deleted"), txpool.transaction():
            session.receive()
    finally:
        opened.close()


def test_an_idle_session_keeps_nothing_from_others(site: Site) -> None:
    for text in ("one", "two"):
        site.inward.send(text)
    with txpool.transaction():
        assert texts(site.inward.receive(1, timeout=60)) == ["one"]
    opened = site.broker.connect()
    other = opened.createSession(False, 1)
    assert other.createConsumer(other.createQueue(site.queues[0])).receive(30_000) is not None
    opened.close()


def test_a_start_that_was_refused_ends_nobody(site: Site) -> None:
    xid = a_name()
    branch = prepared(site, xid)
    of, other = begun(site, xid)
    with pytest.raises(txpool.Error, match="XAER_DUPID"):
        send(site, of)
    with pytest.raises(txpool.Error, match="a call has failed"):
        send(site, of)
    with pytest.raises(txpool.TransactionRolledBack, match="XAER_DUPID"):
        other.start_prepare()
    other.await_rollback()
    assert site.listed() == {xid.joined}
    branch.start_commit()
    assert branch.await_commit().name == "COMMITTED"
    assert site.out() == ["x"]


def test_a_branch_that_the_broker_has_timed_out_rolls_back(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(broker, "_ACTIVE", 1)
    site.inward.send("one")
    with pytest.raises(txpool.Error), txpool.transaction():
        work(site.inward.receive(1, timeout=60), site.outward)
        until(lambda: site.broker.bodies(site.queues[0]) == ["one"], 60)
        site.outward.send("outside")
    assert site.out() == []
    assert site.listed() == set()
    assert site.sql("select * from done") == []


def test_the_broker_never_times_out_what_is_prepared(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """So a Spark job, whose tasks prepare long before its driver decides, may take as long as it does."""
    monkeypatch.setattr(broker, "_ACTIVE", 1)
    xid = a_name()
    branch = prepared(site, xid)
    site.inward.send("one")
    with pytest.raises(txpool.Error), txpool.transaction():
        site.inward.receive(1, timeout=60)
        until(lambda: site.broker.bodies(site.queues[0]) == ["one"], 60)  # this later one it has timed out
    assert site.listed() == {xid.joined}
    branch.start_commit()
    assert branch.await_commit().name == "COMMITTED"
    assert site.out() == ["x"]


@pytest.mark.costly
def test_what_is_prepared_outlives_its_process_and_the_broker(own_site: Site) -> None:
    killed_at(own_site, "marked.committed")
    own_site.reconnect()
    with closing(RecoveryManager("recovery.properties")) as manager:
        assert manager.scan().heuristics == ()
    assert own_site.out() == ["child"]
    assert own_site.listed() == set()


def test_an_operators_rollback_is_told_and_forgotten(site: Site) -> None:
    killed_at(site, "marked.committed")
    lines = [str(each).split("base64: ")[1].split()[0] for each in site.broker.manage("listPreparedTransactions")]
    (encoded,) = (each for each in lines if node_of(site.queues).encode() in urlsafe_b64decode(each))
    assert site.broker.manage("rollbackPreparedTransaction", encoded)
    assert len(site.listed()) == 1
    with closing(RecoveryManager("recovery.properties")) as manager:
        (heuristic,) = manager.scan().heuristics
        assert (heuristic.decided, heuristic.ended) == ("commit", "rolled back")
        assert manager.scan().heuristics == ()
    assert site.listed() == set()
    assert site.out() == []


@pytest.mark.costly
@pytest.mark.parametrize("kept", [True, False])
def test_by_its_generation_a_commit_whose_answer_was_lost_is_no_hazard(own_site: Site, *, kept: bool) -> None:
    killed_at(own_site, "coordinator.committed", ends=True)
    if not kept:  # as after a failover to a broker that was restored
        with closing_session(own_site.sessions.connect()) as raw:
            selector = "txpool_kind = 'generation'"
            with raw.receiving(raw.queue(QUEUE), selector) as consumer:
                while consumer.receiveNoWait() is not None:
                    pass
    with closing(RecoveryManager("recovery.properties")) as manager:
        heuristics = manager.scan().heuristics
    assert len(heuristics) == (0 if kept else 1)
    assert own_site.out() == ["child"]


CHILD = """
import txpool
txpool.configure("txpool.properties")
with txpool.transaction():
    with txpool.connect("orders.properties") as orders:
        orders.execute("insert into done values ('child')")
    txpool.session("out.properties").send("child")
"""


def killed_at(site: Site, point: str, *, ends: bool = False) -> None:
    environment = os.environ | {"TXPOOL_FAILPOINTS": f"{point}=kill"}
    child = preloaded.run("-c", CHILD, cwd=site.folder, env=environment)
    assert child.returncode == -signal.SIGKILL, child.stderr
    assert ends or len(site.listed()) == 1


@pytest.mark.parametrize("trusted", [True, False])
@pytest.mark.parametrize("decided", [True, False])
def test_recovery_ends_what_a_dead_process_has_left(site: Site, *, decided: bool, trusted: bool) -> None:
    write_site(site.folder, site.broker, site.queues, trusted=trusted)
    killed_at(site, "marked.committed" if decided else "coordinator.prepared")
    with closing(RecoveryManager("recovery.properties")) as manager:
        report = manager.scan()
    assert report.unreachable == report.errors == {}
    assert report.heuristics == ()
    if decided or trusted:
        assert site.out() == ["child"] * decided
        assert site.listed() == set()
    else:  # nobody proves that it is ours: it is listed
        assert [each.kind for each in report.alarms] == ["foreign"]
        assert len(site.listed()) == 1
    assert site.sql("select body from done") == [("child",)] * decided


def test_a_forged_branch_is_listed_and_never_ended(site: Site) -> None:
    write_site(site.folder, site.broker, site.queues, trusted=False)
    killed_at(site, "marked.committed")
    (ours,) = site.listed()
    with closing_session(site.sessions.connect()) as raw:
        (listed,) = site.branches(raw)
    forged = make_xid(listed.gtrid, 7, "out")
    prepared(site, forged)
    assert site.listed() == {ours, forged.joined}
    with closing(RecoveryManager("recovery.properties")) as manager:
        for _ in range(2):
            report = manager.scan()
            assert report.heuristics == ()
            assert [each.kind for each in report.alarms] == ["foreign"]
    assert site.listed() == {forged.joined}
    assert site.out() == ["child"]


def test_a_forged_identity_hides_nothing(site: Site) -> None:
    """Even if a browser comes to it first."""
    killed_at(site, "marked.committed")
    opened = site.broker.connect()
    try:
        plain = opened.createSession(False, 1)
        producer = plain.createProducer(plain.createQueue(QUEUE))
        producer.setPriority(9)
        producer.setTimeToLive(60_000)
        forged = plain.createMessage()
        forged.setStringProperty("txpool_kind", "identity")
        forged.setStringProperty("txpool_id", "mallory")
        producer.send(forged)
        with closing(RecoveryManager("recovery.properties")) as manager:
            report = manager.scan()
        assert report.alarms == ()
        assert (site.listed(), site.out()) == (set(), ["child"])
        consumer = plain.createConsumer(plain.createQueue(QUEUE), "txpool_id = 'mallory'")
        assert consumer.receive(60_000) is not None
    finally:
        opened.close()


POINTS = (
    "coordinator.preparing",
    "coordinator.prepared",
    "branch.prepare-sent",
    "branch.commit-sent",
    "coordinator.committing",
    "coordinator.committed",
    "coordinator.begin",
)


@pytest.mark.parametrize("point", POINTS)
def test_an_interrupt_leaves_nothing(site: Site, point: str) -> None:
    site.inward.send("one")
    with failpoints.arming(point, "interrupt"), suppress(KeyboardInterrupt), txpool.transaction():
        work(site.inward.receive(1, timeout=60), site.outward)
    assert txpool.current() is None
    with closing(RecoveryManager("recovery.properties")) as manager:
        assert manager.scan().heuristics == ()
    done = len(site.sql("select * from done"))
    until(lambda: not site.listed(), 60)
    assert (len(site.out()), len(site.broker.bodies(site.queues[0]))) == (done, 1 - done)
    with txpool.transaction():
        work(site.inward.receive(1, timeout=1), site.outward)


def test_a_consumer_parks_the_culprit_alone(site: Site) -> None:
    site.inward.parking = f"parked-{site.queues[0]}"
    for text in ("one", "bad", "two", "three"):
        site.inward.send(text)

    @txpool.consumer(site.inward, max_messages=2, poll=5)
    def ship(messages: list[ReceivedMessage]) -> None:
        work(messages, site.outward)
        if "bad" in texts(messages):
            raise ValueError("bad\0")

    assert ship.run(lambda: site.inward.parked()[0] == 1 and len(site.sql("select * from done")) == 3) == 3
    assert site.out() == ["one", "two", "three"]
    assert site.broker.bodies(site.inward.parking) == ["bad"]


@pytest.mark.parametrize("left", [0, 1])
def test_a_message_is_tried_so_often_and_no_more(site: Site, left: int) -> None:
    """Also if tries before have not ended, as those of a process that was killed."""
    site.inward.parking, site.inward.parking_after = f"parked-{site.queues[0]}", 2
    site.inward.send("bad")
    for _ in range(left):
        with pytest.raises(KeyError), txpool.transaction():
            assert site.inward.take_one() is not None
            raise KeyError
    tries: list[int] = []

    @txpool.consumer(site.inward, poll=0.1)
    def ship(messages: list[ReceivedMessage]) -> None:
        tries.append(messages[0].tries)
        raise ValueError

    assert ship.run(lambda: site.inward.parked()[0] == 1) == 0
    assert tries == [0, 1][left:]
    assert site.broker.bodies(site.inward.parking) == ["bad"]


def test_what_proves_nothing_against_a_message_is_no_try_of_it(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """The broker counts each delivery: those of batches that have failed, and of outages, too."""
    monkeypatch.setattr(sys.modules["txpool.messages.consumer"], "_LONGEST_WAIT", 0.01)
    site.inward.parking, site.inward.parking_after = f"parked-{site.queues[0]}", 2
    site.inward.send("first")
    left, done = [txpool.PoolTimeout, ValueError, *[txpool.PoolTimeout] * 3], list[str]()

    @txpool.consumer(site.inward, max_messages=1, poll=0.1)
    def ship(messages: list[ReceivedMessage]) -> None:
        if done and left:  # the first is a batch by now
            raise left.pop(0)
        done.extend(texts(messages))
        if len(done) == 1:
            site.inward.send("good")

    assert ship.run(lambda: len(done) == 2 or site.inward.parked()[0] > 0) == 2
    assert (done, left) == (["first", "good"], [])


def test_a_consumer_takes_large_messages_and_parks_them(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of over 100 KiB: the body of what one by one was taken could not be read, and the broker took all away."""
    monkeypatch.setattr(sys.modules["txpool.messages.consumer"], "_LONGEST_WAIT", 0.01)
    site.inward.parking, site.inward.parking_after = f"parked-{site.queues[0]}", 2
    large, bad, calls, done = os.urandom(1_000_000), os.urandom(200_000), list[int](), list[Any]()
    site.inward.send(large)
    site.inward.send(bad)

    @txpool.consumer(site.inward, max_messages=1, poll=0.1)
    def ship(messages: list[ReceivedMessage]) -> None:
        calls.append(len(messages))
        if len(calls) < 15:  # it is sent anew meanwhile
            raise txpool.PoolTimeout("none is free")
        if messages[0].body == bad:
            raise ValueError("bad")
        done.extend(each.body for each in messages)

    ship.run(lambda: len(site.broker.browsed(site.queues[0])) == 0)
    assert done == [large]
    assert [body for _, body in site.broker.browsed(site.inward.parking)] == [bad]


def test_no_outage_makes_a_dead_letter(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """The broker counts each delivery, and took the message away behind ten of them: an outage of two minutes."""
    monkeypatch.setattr(sys.modules["txpool.messages.consumer"], "_LONGEST_WAIT", 0.01)
    site.inward.parking, site.inward.parking_after = f"parked-{site.queues[0]}", 3
    opened = site.broker.connect()
    plain = opened.createSession(False, 1)
    one = plain.createTextMessage("one")
    one.setIntProperty("number", 5)
    one.setStringProperty("_AMQ_DUPL_ID", "1")  # as the relay sends it: with that the broker drops a second one
    one.setJMSCorrelationID("c")
    producer = plain.createProducer(plain.createQueue(site.queues[0]))
    producer.setPriority(7)
    producer.setTimeToLive(3_600_000)
    producer.send(one)
    got = list[tuple[str, int, str]]()

    @txpool.consumer(site.inward, poll=0.1)
    def ship(messages: list[ReceivedMessage]) -> None:
        got.extend((each.id, each.tries, each.headers["number"]) for each in messages)
        raise ValueError if len(got) == 2 else txpool.PoolTimeout("none is free")

    ship.run(lambda: len(got) == 25 or not [*browse(plain, site.queues[0])])
    (sent,) = browsed = [*browse(plain, site.queues[0])]
    assert {each for each, _, _ in got} == {str(one.getJMSMessageID())}
    assert [count for _, count, _ in got] == [0] * 2 + [1] * 23
    assert [str(each.getText()) for each in browsed] == ["one"]
    assert (sent.getIntProperty("number"), sent.getJMSCorrelationID(), sent.getJMSPriority()) == (5, "c", 7)
    assert abs(sent.getJMSExpiration() - one.getJMSExpiration()) < 60_000
    opened.close()


def browse(plain: Any, queue: str) -> Iterator[Any]:
    found = plain.createBrowser(plain.createQueue(queue)).getEnumeration()
    while found.hasMoreElements():
        yield found.nextElement()


@pytest.mark.costly
def test_what_the_broker_counts_as_tries_of_a_message(own_site: Site) -> None:
    """As the page says: each time that somebody has received it, and has not committed that."""
    site, (queue, _) = own_site, own_site.queues
    site.inward.send("one")
    site.inward.send("behind")

    def by_another_program(mode: int, end: str) -> None:
        opened = site.broker.connect()
        session = opened.createSession(mode == 0, mode)
        assert session.createConsumer(session.createQueue(queue)).receive(60_000) is not None
        if end:
            getattr(session, end)()
        opened.close()

    def by_a_transaction(point: str) -> None:
        with suppress(txpool.Error), failpoints.arming(point, "raise"), txpool.transaction():
            assert texts(site.inward.receive(1, timeout=60)) == ["one"]
            site.outward.send("two")

    transacted, acknowledged = 0, 2
    for done in (
        lambda: by_a_transaction("coordinator.begin"),
        lambda: by_a_transaction("coordinator.prepared"),
        lambda: by_another_program(transacted, "rollback"),
        lambda: by_another_program(transacted, ""),
        lambda: by_another_program(acknowledged, ""),
    ):
        before = tries(site)
        done()
        until(lambda before=before: tries(site) == [before[0] + 1, 0])  # type: ignore[misc]
    site.reconnect()
    assert tries(site) == [5, 0]
    with pytest.raises(txpool.Error), txpool.transaction():
        assert texts(site.inward.receive(1, timeout=60)) == ["one"]
        site.reconnect()
    assert tries(site) == [5, 0]


def tries(site: Site) -> list[int]:
    return [int(found) for found, _ in site.broker.browsed(site.queues[0], "JMSXDeliveryCount")]


def test_messages_that_their_senders_have_given_no_id(site: Site) -> None:
    """As JMS allows: each has one of its own, the same each time."""
    site.inward.parking = f"parked-{site.queues[0]}"
    opened = site.broker.connect()
    plain = opened.createSession(False, 1)
    producer = plain.createProducer(plain.createQueue(site.queues[0]))
    producer.setDisableMessageID(True)
    for text in ("one", "bad", "two"):
        producer.send(plain.createTextMessage(text))
    opened.close()
    with pytest.raises(KeyError), txpool.transaction():
        ids = [each.id for each in site.inward.receive(10, timeout=60)]
        raise KeyError
    assert len({*ids}) == 3
    again = list[str]()

    @txpool.consumer(site.inward, max_messages=2, poll=5)
    def ship(messages: list[ReceivedMessage]) -> None:
        again.extend(each.id for each in messages)
        work(messages, site.outward)
        if "bad" in texts(messages):
            raise ValueError("bad")

    assert ship.run(lambda: site.inward.parked()[0] == 1 and len(site.sql("select * from done")) == 2) == 2
    assert [*dict.fromkeys(again)] == ids
    assert site.out() == ["one", "two"]
    assert site.broker.bodies(site.inward.parking) == ["bad"]


def test_a_consumer_parks_what_it_cannot_read_as_it_is(site: Site) -> None:
    """Whoever may send to a queue does not stop its consumer."""
    from jpype import JArray, JByte, JChar, JString

    site.inward.parking = f"parked-{site.queues[0]}"
    opened = site.broker.connect()
    plain = opened.createSession(False, 1)
    producer = plain.createProducer(plain.createQueue(site.queues[0]))
    entries = plain.createMapMessage()
    entries.setString("k", "kept")
    producer.send(entries)
    producer.send(plain.createTextMessage(JString(JArray(JChar)("\ud800"))))
    odd = plain.createTextMessage("odd")
    odd.getCoreMessage().putBytesProperty("p", JArray(JByte)([1, 2]))
    producer.send(odd)
    site.inward.send("one")

    @txpool.consumer(site.inward, poll=5)
    def ship(messages: list[ReceivedMessage]) -> None:
        work(messages, site.outward)

    assert ship.run(lambda: site.inward.parked()[0] == 3 and len(site.sql("select * from done")) == 1) == 1
    browser = plain.createBrowser(plain.createQueue(site.inward.parking)).getEnumeration()
    assert browser.nextElement().getString("k") == "kept"
    opened.close()


@pytest.mark.costly
def test_an_outage_of_the_broker_is_no_try_of_a_message(own_site: Site) -> None:
    text = (own_site.folder / "out.properties").read_text()
    (own_site.folder / "gone.properties").write_text(
        text.replace(str(own_site.broker.port), str(free_ports(1)[0])).replace("name = out", "name = gone")
    )
    with pytest.raises(txpool.OperationalError) as unreachable, txpool.transaction():
        txpool.session("gone.properties").send("x")
    assert is_outage(unreachable.value)
    (own_site.folder / "small.properties").write_text(
        text.replace("name = out", "name = small") + "driver.minLargeMessageSize = 500\n"
    )
    with pytest.raises(txpool.OperationalError, match="Header size") as refused, txpool.transaction():
        txpool.session("small.properties").send(b"x" * 1_000, headers={"h": "x" * 1_000})
    assert not is_outage(refused.value)
    errors = []
    with pytest.raises(txpool.TransactionRolledBack), txpool.transaction():
        own_site.outward.send("x")
        own_site.reconnect()
        for _ in range(2):
            with pytest.raises(txpool.OperationalError) as lost:
                own_site.outward.send("y")
            errors.append(lost.value)
    assert [is_outage(each) for each in errors] == [True, True]
    assert own_site.out() == []


@pytest.mark.costly
def test_the_commands_know_it(site: Site) -> None:
    done = preloaded.run("-m", "txpool", "check", "in.properties", cwd=site.folder, env=dict(os.environ))
    assert "answers, and keeps what is prepared" in done.stdout, done.stderr
    site.inward.parking = f"{site.queues[0]}-parked"
    text = (site.folder / "in.properties").read_text()
    (site.folder / "in.properties").write_text(f"{text}parking = {site.inward.parking}\n")
    for each in ("bad", "worse", "good"):
        site.inward.send(each)

    @txpool.consumer(site.inward, max_messages=1)
    def ship(messages: list[ReceivedMessage]) -> None:
        raise txpool.HeuristicMixed(messages[0].text)  # which parks it at once

    ship.run(lambda: site.inward.parked()[0] == 2)
    found = RecoveryManager("recovery.properties").outboxes()
    told = {each.datasource: (each.waiting, each.parked, each.last_error, each.kind) for each in found}
    error = "done in part: HeuristicMixed: worse"
    assert told == {"in": (1, 2, error, "session"), "out": (0, 0, None, "session")}


@pytest.mark.costly
def test_the_kit(site: Site) -> None:
    (site.folder / "kit.properties").write_text((site.folder / "out.properties").read_text())
    command = ["-m", "txpool", "check", "--conformance", "kit.properties"]
    done = preloaded.run(*command, cwd=site.folder, env=dict(os.environ), timeout=900)
    print(done.stdout, done.stderr)
    assert done.returncode == 0
