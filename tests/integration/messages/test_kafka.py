"""Sessions with `driver = kafka` over a real broker: sending in branches, positions as rows, recovery."""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from contextvars import copy_context
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from kafka import KafkaAdminClient, KafkaConsumer, KafkaProducer, TopicPartition
from kafka.admin import ConfigResource, ConfigResourceType
from kafka.cluster import ClusterMetadata
from kafka.consumer.fetcher import Fetcher
from kafka.coordinator.consumer import ConsumerCoordinator
from kafka.errors import (
    ClusterAuthorizationFailedError,
    KafkaTimeoutError,
    NodeNotReadyError,
    SaslAuthenticationFailedError,
    TopicAuthorizationFailedError,
    TransactionalIdAuthorizationFailedError,
    UnknownTopicOrPartitionError,
)
from kafka.future import Future
from kafka.net.manager import KafkaConnectionManager

import txpool
from recovery.manager import RecoveryManager
from tests.support import preloaded
from tests.support.kafka.broker import TIMEOUT, Broker, find_classpath
from tests.support.kafka.fixtures import write_site
from tests.support.message_site import configured
from tests.support.shared import node_of, unique
from tests.support.waiting import until
from txpool import failpoints
from txpool.idempotency.outage import is_outage
from txpool.messages import MessageSession, ReceivedMessage
from txpool.resources.base import BranchOutcome, BranchRecord
from txpool.resources.kafka import branch
from txpool.resources.kafka.branch import KafkaWork, end_branch, evidence_of
from txpool.resources.kafka.manager import MANAGER
from txpool.resources.kafka.reader import mend
from txpool.resources.kafka.records import HeaderName, Producer, Record
from txpool.resources.kafka.requests import KafkaRequests
from txpool.xid import parse

if TYPE_CHECKING:
    from tests.conftest import Require

pytestmark = pytest.mark.slow

#: For how many seconds a broker is waited for on a machine that is very busy.
LONG = 300


class Site:
    def __init__(self, folder: Path, broker: Broker, topics: tuple[str, str]) -> None:
        self.folder, self.broker, self.topics = folder, broker, topics
        self.inward, self.outward = (txpool.session(folder / f"{name}.properties") for name in ("in", "out"))
        self.requests = KafkaRequests(broker.address, {})

    def sql(self, statement: str) -> list[Any]:
        with closing(sqlite3.connect(self.folder / "orders.db", isolation_level=None, timeout=LONG)) as connection:
            return connection.execute(statement).fetchall()

    def out(self) -> list[bytes]:
        return [each.value for each in self.broker.committed(self.topics[1])]

    def listed(self) -> list[str]:
        """Those of this test's node: other tests use the broker, too."""
        return self.requests.listed(f"txp1:{node_of(self.topics)}:")

    def again(self) -> MessageSession:
        """The session of a consumer that starts again."""
        self.inward.close()
        self.inward = txpool.session(self.folder / "in.properties")
        return self.inward

    def position(self) -> int:
        rows = f"txpool_message_positions where part >= 0 and topic = '{self.topics[0]}'"
        ((found,),) = self.sql(f"select position from {rows}")
        return int(found)


@pytest.fixture
def site(kafka: Broker, topics: tuple[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    monkeypatch.chdir(tmp_path)
    write_site(tmp_path, kafka, topics)
    with configured(tmp_path):
        made = Site(tmp_path, kafka, topics)
        yield made
        for name in made.listed():
            state = made.requests.state(name, time.monotonic() + LONG)
            assert state is not None
            made.requests.end(state.producer, time.monotonic() + LONG, commit=False)
        made.requests.close()


def texts(messages: list[ReceivedMessage]) -> list[str]:
    return [each.text for each in messages]


def work(messages: list[ReceivedMessage], outward: MessageSession | None = None) -> None:
    with txpool.connect("orders.properties") as orders:
        for each in messages:
            orders.execute("insert into done values (?)", [each.text])
            if outward is not None:
                outward.send(each.body, key=each.key)


def test_message_row_message(site: Site) -> None:
    sent = [site.inward.send(text, key="k", headers={"h": "€"}) for text in ("one", "two")]
    with txpool.transaction():
        found = site.inward.receive(10, timeout=LONG)
        work(found, site.outward)
        assert site.out() == []
    assert texts(found) == ["one", "two"]
    assert [each.id for each in found] == sent
    assert (found[0].key, dict(found[0].headers)) == ("k", {"h": "€"})
    assert site.out() == [b"one", b"two"]
    assert site.sql("select body from done") == [("one",), ("two",)]
    assert site.listed() == []


def test_a_rollback_sends_nothing_and_delivers_again(site: Site) -> None:
    site.inward.send("one")
    for _ in range(2):
        with pytest.raises(KeyError), txpool.transaction():
            found = site.inward.receive(10, timeout=LONG)
            work(found, site.outward)
            raise KeyError
        assert texts(found) == ["one"]
    assert site.out() == []
    with pytest.raises(txpool.ProgrammingError, match="outside a transaction"):
        site.inward.receive()
    with pytest.raises(txpool.NotSupportedError, match="no delay"):
        site.inward.send("late", delay=1)


def test_a_session_that_is_closed_joins_the_group_no_more(site: Site) -> None:
    """A consumer that nobody closes and nobody polls would keep the partition from the others for minutes."""
    closed = site.inward
    closed.send("one")
    site.again()
    with pytest.raises(txpool.InterfaceError, match="makes another"), txpool.transaction():
        closed.receive(1, timeout=1)
    with pytest.raises(txpool.InterfaceError, match="makes another"):
        closed.wait(0)
    with txpool.transaction():
        assert texts(site.inward.receive(1, timeout=LONG)) == ["one"]


def test_the_row_is_the_position_whatever_the_group_says(site: Site) -> None:
    for text in ("one", "two"):
        site.inward.send(text)
    with txpool.transaction():
        work(site.inward.receive(1, timeout=LONG))
    again = site.again()
    with txpool.transaction():
        assert texts(again.receive(10, timeout=LONG)) == ["two"]
        work([])


def test_an_outage_is_no_try(site: Site) -> None:
    site.inward.send("one")
    done: list[str] = []

    @txpool.consumer(site.inward, poll=0.1)
    def work(messages: list[ReceivedMessage]) -> None:
        done.append("")
        if len(done) <= 4:  # twice as often as it is tried
            raise txpool.PoolTimeout("no connection is free")
        done.extend(texts(messages))

    work.run(lambda: bool(done) and done[-1] == "one")
    assert site.inward.parked()[0] == 0
    assert site.sql("select tries from txpool_message_positions where part >= 0") == [(0,)]


def test_a_zombie_commits_nothing(site: Site) -> None:
    site.inward.send("one")
    moved = "update txpool_message_positions set position = position + 1 where part >= 0"
    with pytest.raises(txpool.TransactionRolledBack, match="displaced"), txpool.transaction():
        work(site.inward.receive(1, timeout=LONG), site.outward)
        with txpool.connect("orders.properties") as orders:
            orders.execute(moved)
    assert site.out() == []
    assert site.sql("select body from done") == []
    site.sql(moved)  # as the commit of another consumer does; this one has the message still
    with txpool.transaction() as ambient:
        ambient.may_be_empty = True
        assert site.inward.receive(1, timeout=0.5) == []


def taken(inward: MessageSession, *, counts: bool = False) -> ReceivedMessage:
    """The next message: a transaction has taken it by itself, and rolled back, with a try that counts or not."""
    until(lambda: inward.wait(1), LONG)
    with pytest.raises(KeyError), txpool.transaction():
        message = inward.take_one()
        assert message is not None
        if counts:
            with inward.counting(message):
                pass
        raise KeyError
    return message


def test_tries_that_have_not_ended_count_for_their_message_alone(site: Site) -> None:
    """As those do whose process was killed."""
    site.inward.parking_after = 2
    sent = [site.inward.send(text) for text in ("one", "two")]
    assert [taken(site.inward, counts=True).id for _ in range(2)] == [sent[0]] * 2
    done: list[str] = []
    ship = txpool.consumer(site.inward, poll=5)(lambda messages: done.extend(texts(messages)))
    assert ship.run(lambda: bool(done)) == 1
    assert done == ["two"]
    assert site.sql("select body, error from txpool_messages") == [(b"one", "no try of it has ended")]


def test_what_another_consumer_has_done_is_not_parked(site: Site) -> None:
    site.inward.send("one")
    message = taken(site.inward)
    with txpool.transaction():
        assert texts(site.inward.receive(1, LONG)) == ["one"]
    assert site.inward.park(message, "bad") == ""
    assert site.sql("select count(*) from txpool_messages") == [(0,)]
    assert site.position() == 1


@pytest.mark.costly
def test_a_consumer_parks_the_culprit_alone(site: Site) -> None:
    for text in ("one", "bad", "two", "three"):
        site.inward.send(text)

    @txpool.consumer(site.inward, max_messages=2, poll=5)
    def ship(messages: list[ReceivedMessage]) -> None:
        work(messages, site.outward)
        if "bad" in texts(messages):
            raise ValueError("bad\0")

    assert ship.run(lambda: len(site.sql("select * from done")) == 3) == 3
    assert site.out() == [b"one", b"two", b"three"]
    assert site.sql("select queue, body, error from txpool_messages") == [("in-parked", b"bad", "ValueError: bad?")]


@pytest.mark.costly
@pytest.mark.parametrize("lacks", ["describe", "write"])
def test_a_topic_that_a_user_may_not_write_is_no_messages_fault(
    site: Site, lacks: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All that came was parked for it. The broker tells who may not see a topic that there is none."""
    monkeypatch.setattr(sys.modules["txpool.messages.consumer"], "_LONGEST_WAIT", 0.01)
    site.inward.parking_after, sent, done = 1, site.inward.send("one"), list[str]()
    left = [UnknownTopicOrPartitionError if lacks == "describe" else TopicAuthorizationFailedError] * 5
    name = "_asked" if lacks == "describe" else "_produce"
    act = getattr(KafkaRequests, name)

    def refuse(*given: Any, **named: Any) -> Any:
        if done and left:
            raise left.pop()
        return act(*given, **named)

    monkeypatch.setattr(KafkaRequests, name, refuse)

    @txpool.consumer(site.inward, poll=1)
    def ship(messages: list[ReceivedMessage]) -> None:
        done.extend(each.id for each in messages)
        work(messages, site.outward)

    ship.run(lambda: site.sql("select * from done") != [] or site.inward.parked()[0] > 0)
    assert (left, site.inward.parked()[0], {*done}) == ([], 0, {sent})
    assert site.sql("select body from done") == [("one",)]


@pytest.mark.parametrize("error", [SaslAuthenticationFailedError, TransactionalIdAuthorizationFailedError])
def test_a_user_who_is_refused_is_an_outage(error: type[Exception]) -> None:
    assert is_outage(error())


def test_a_topic_takes_what_is_parked_in_the_positions_transaction(site: Site) -> None:
    parked = f"{site.topics[0]}-parked"
    site.broker.create_topics(parked)
    write_site(site.folder, site.broker, site.topics, more=f"parking.after = 2\nparking = topic:{parked}\n")
    inward = site.again()
    sent = inward.send("bad", key="k", headers={"h": "1"})
    inward.send("one")

    @txpool.consumer(inward, max_messages=2, poll=5)
    def ship(messages: list[ReceivedMessage]) -> None:
        work(messages)
        if "bad" in texts(messages):
            raise ValueError("bad")

    message = taken(inward)
    with failpoints.arming("coordinator.prepared", "raise"), pytest.raises(txpool.Error):
        inward.park(message, "bad")
    assert site.broker.committed(parked) == []
    assert site.position() == 0
    assert ship.run(lambda: len(site.sql("select * from done")) == 1) == 1
    (found,) = site.broker.committed(parked)
    headers = dict(found.headers)
    assert (found.key, found.value, headers["h"], headers["txpool-id"]) == (b"k", b"bad", b"1", sent.encode())
    assert headers["txpool-error"] == b"ValueError: bad"
    with pytest.raises(txpool.NotSupportedError, match="parks in the topic"):
        inward.parked()


@pytest.mark.costly
def test_what_a_topic_does_not_take_is_parked_in_the_table(site: Site) -> None:
    """Compressed it fits into its own topic; txpool sends it as it is."""
    parked = f"{site.topics[0]}-parked"
    site.broker.create_topics(parked)
    write_site(site.folder, site.broker, site.topics, more=f"parking.after = 1\nparking = topic:{parked}\n")
    body = b"x" * 2_000_000
    large = {"compression_type": "gzip", "max_request_size": 4_000_000}
    with closing(KafkaProducer(bootstrap_servers=site.broker.address, **large)) as producer:
        producer.send(site.topics[0], body).get(60)
        producer.send(site.topics[0], b"one").get(60)

    @txpool.consumer(site.again(), poll=5)
    def ship(messages: list[ReceivedMessage]) -> None:
        if messages[0].body == body:
            raise ValueError("bad")
        work(messages)

    assert ship.run(once=True) == 1
    assert site.sql("select queue, body, error from txpool_messages") == [("in-parked", body, "ValueError: bad")]
    assert site.broker.committed(parked) == []


def test_a_lookup_of_the_coordinator_that_never_ends(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """The consumer says so, and connects anew: it waited for ever."""
    monkeypatch.setattr("txpool.messages.kafka_received._LONGEST_LOOKUP", 0.3)
    lookup, stuck = ConsumerCoordinator.lookup_coordinator, list[ConsumerCoordinator]()

    def first_stuck(self: ConsumerCoordinator) -> Future:
        stuck[:] = stuck or [self]
        return Future() if stuck == [self] else lookup(self)

    monkeypatch.setattr(ConsumerCoordinator, "lookup_coordinator", first_stuck)
    with closing(KafkaProducer(bootstrap_servers=site.broker.address)) as producer:
        producer.send(site.topics[0], b"one").get(LONG)
    with pytest.raises(txpool.OperationalError, match="who coordinates the group"), txpool.transaction():
        site.inward.receive(1, LONG)
    assert txpool.consumer(site.inward, poll=1)(work).run(once=True) == 1
    assert len(stuck) == 1


def test_a_join_that_ends_between_two_polls(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """As kafka-python keeps it: who leads the group, and has assigned the partitions, needs no join for them then."""
    assign, wait_for = ConsumerCoordinator._perform_assignment, KafkaConnectionManager.wait_for
    assigned, given_up = Future(), list[Future]()

    def told(self: ConsumerCoordinator, *arguments: Any) -> Any:
        found = assign(self, *arguments)
        assigned.success(None)
        return found

    async def once_too_short(self: KafkaConnectionManager, future: Future, timeout: float | None) -> Any:
        coordinator = site.inward._consumer[1]._coordinator  # type: ignore[attr-defined]
        if future is coordinator._join_task and coordinator._assignment_snapshot == {} and not given_up:
            given_up.append(future)
            await assigned
            raise KafkaTimeoutError
        return await wait_for(self, future, timeout)

    site.inward.send("one")
    with txpool.transaction():
        work(site.inward.receive(1, LONG))
    coordinator = site.inward._consumer[1]._coordinator  # type: ignore[attr-defined]
    monkeypatch.setattr(ConsumerCoordinator, "_perform_assignment", told)
    monkeypatch.setattr(KafkaConnectionManager, "wait_for", once_too_short)
    coordinator._subscription.assign_from_subscribed([])  # as if it had joined before it knew the topic
    coordinator._assignment_snapshot = {}
    until(lambda: site.inward.wait(0.5) or given_up, LONG)
    site.inward.send("two")
    with txpool.transaction():
        work(site.inward.receive(1, LONG))
    assert site.sql("select body from done") == [("one",), ("two",)]
    assert len(given_up) == 1


def test_a_partition_that_was_paused_goes_on(site: Site) -> None:
    """While another one receives all that it has, as kafka-python knows it."""
    both = f"{site.topics[0]}-both"
    site.broker.create_topics(both, partitions=2)
    write_site(site.folder, site.broker, (both, site.topics[1]), more="driver.max_poll_records = 1\n")
    inward = site.again()
    with closing(KafkaProducer(bootstrap_servers=site.broker.address)) as producer:
        for text in ("bad", "two", "three"):
            producer.send(both, text.encode(), partition=0).get(LONG)
        bad = taken(inward)
        inward.failed(bad, "bad", 3600, is_open=False)
        producer.send(both, b"other", partition=1).get(LONG)
    done: list[str] = []
    ship = txpool.consumer(inward, poll=1)(lambda messages: done.extend(texts(messages)))
    assert ship.run(lambda: bool(done)) == 1
    inward._buffers[0].not_before = 0.0  # type: ignore[attr-defined]
    deadline = time.monotonic() + LONG
    ship.run(lambda: len(done) == 4 or time.monotonic() > deadline)
    assert done == ["other", "bad", "two", "three"]


def test_a_consumer_knows_its_topic_before_it_joins(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """One with a `group_instance_id` that did not, and was started again, had no partition for ever."""
    assign, refresh = ConsumerCoordinator._perform_assignment, ClusterMetadata._do_refresh_metadata
    known: list[Any] = []

    def told(self: ConsumerCoordinator, *arguments: Any) -> Any:
        known.append(self._cluster.partitions_for_topic(site.topics[0]))
        return assign(self, *arguments)

    async def late(self: ClusterMetadata, node: Any) -> None:
        if self._topics:
            await self._manager._net.sleep(0.3)
        await refresh(self, node)

    monkeypatch.setattr(ConsumerCoordinator, "_perform_assignment", told)
    monkeypatch.setattr(ClusterMetadata, "_do_refresh_metadata", late)
    site.inward.send("one")
    with txpool.transaction():
        work(site.inward.receive(1, LONG))
    assert known == [{0}]


def slow_joins(monkeypatch: pytest.MonkeyPatch, seconds: float) -> list[float]:
    """Let the broker's answers to joins take so long, as those of a new group do by default. When each has come."""
    join, joined = ConsumerCoordinator._do_join_and_sync_async, list[float]()

    async def slow(self: ConsumerCoordinator) -> Any:
        found = await join(self)
        await self._net.sleep(seconds)
        joined.append(time.monotonic())
        return found

    monkeypatch.setattr(ConsumerCoordinator, "_do_join_and_sync_async", slow)
    return joined


def test_a_receive_that_does_not_wait_joins_the_group(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """Once an hour, say: each was too short for that, and so none received anything."""
    slow_joins(monkeypatch, 0.5)
    site.inward.send("one")
    with txpool.transaction():
        work(site.inward.receive())
    assert site.sql("select body from done") == [("one",)]


def test_the_answer_of_a_join_that_no_poll_waits_for_is_taken(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    joined = slow_joins(monkeypatch, 0.5)
    site.inward.send("one")
    for count in (1, 1):
        site.inward.wait(0)
        until(lambda: len(joined) == count, LONG)
    with txpool.transaction():
        work(site.inward.receive(1, LONG))
    assert len(joined) == 1


def test_an_interrupt_while_the_topic_is_asked_for_leaves_no_thread(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    site.inward.send("one")
    before = threading.active_count()

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr("txpool.resources.kafka.reader._learn", interrupted)
        site.inward.wait(0)
    assert threading.active_count() == before
    with txpool.transaction():
        work(site.inward.receive(1, LONG))


def test_a_fetch_that_never_ends(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """As over a connection whose handshake gets no answer: its consumer waited for ever."""
    monkeypatch.setattr("txpool.messages.kafka_received._LONGEST_STANDSTILL", 0.3)
    handle, stuck = Fetcher._clear_pending_fetch_request, list[Fetcher]()

    def first_stuck(self: Fetcher, *arguments: Any) -> None:
        stuck[:] = stuck or [self]
        if stuck != [self]:
            handle(self, *arguments)

    monkeypatch.setattr(Fetcher, "_clear_pending_fetch_request", first_stuck)
    site.inward.wait(1)
    site.inward.send("one")
    with pytest.raises(txpool.OperationalError, match="ends at 2, and has stood still at 0"), txpool.transaction():
        site.inward.receive(1, LONG)
    assert txpool.consumer(site.inward, poll=1)(work).run(once=True) == 1
    assert len(stuck) == 1


def test_a_client_whose_poll_has_failed_is_renewed(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """As it does each time once its thread has ended by an error."""
    site.inward.send("one")
    site.inward.wait(0)

    def failing(**_: int) -> None:
        raise RuntimeError("the loop has ended")

    monkeypatch.setattr(site.inward._consumer[1], "poll", failing)  # type: ignore[attr-defined]
    assert txpool.consumer(site.inward, poll=1)(work).run(once=True) == 1


def test_a_client_whose_thread_has_ended_is_renewed(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    site.inward.send("one")
    client = MANAGER.requests_of(site.inward.source).client()
    net = client._manager._net

    def failing(_: float | None) -> None:
        raise OSError(9, "bad file descriptor")

    with monkeypatch.context() as patched:
        patched.setattr(net._selector, "select", failing)
        patched.setattr(threading, "excepthook", lambda _: None)
        net.wakeup()
        net._io_thread.join(LONG)
    site.inward.send("two")
    assert [each.value for each in site.broker.committed(site.topics[0])] == [b"one", b"two"]
    net._exception = None
    client.close()


def test_two_threads_that_renew_a_client_have_one(site: Site) -> None:
    """The slower has seen that its thread has ended, and does so no more once the other has renewed it."""
    seen, renewed = threading.Event(), threading.Event()

    class Clients(dict[Any, KafkaAdminClient]):
        def get(self, *key: Any) -> Any:
            found = super().get(*key)
            if threading.current_thread() is not threading.main_thread() and not seen.is_set():
                seen.set()
                renewed.wait(LONG)
            return found

    ended = site.requests.client()
    ended.close()
    ended._manager._net._exception = OSError(9, "bad file descriptor")
    site.requests._clients = Clients(site.requests._clients)
    with ThreadPoolExecutor(1) as threads:
        slower = threads.submit(site.requests.client)
        seen.wait(LONG)
        faster = site.requests.client()
        renewed.set()
        assert slower.result() is faster


def test_what_has_ended_by_itself_can_be_closed(site: Site) -> None:
    site.inward.send("one")
    site.inward.wait(0)
    clients = [MANAGER.requests_of(site.inward.source).client(), site.inward._consumer[1]]  # type: ignore[attr-defined]
    for client in clients:
        client._manager._net._exception = OSError(9, "bad file descriptor")
    site.inward.close()
    for client in clients:
        client._manager._net._exception = None
        client._manager.closed = False
        client._client.close()


def test_keys_of_other_programs_can_be_sent_on(site: Site) -> None:
    keys = [b"", b"k" * 100_000, b"\xff"]
    with closing(KafkaProducer(bootstrap_servers=site.broker.address)) as producer:
        for key in keys:
            producer.send(site.topics[0], b"one", key=key).get(LONG)
    site.inward.parking_after = 1
    assert txpool.consumer(site.inward, poll=1)(lambda messages: work(messages, site.outward)).run(once=True) == 3
    assert [each.key for each in site.broker.committed(site.topics[1])] == keys


def test_a_text_that_is_none_is_refused(site: Site) -> None:
    for arguments in ({"key": "\ud800"}, {"headers": {"h": "\ud800"}}, {"headers": {"\ud800": "h"}}):
        with txpool.transaction(), pytest.raises(txpool.ProgrammingError, match="nothing was sent"):
            site.outward.send("x", **arguments)  # type: ignore[arg-type]
    assert site.out() == []


def test_what_fits_into_a_topic_by_itself_fits_together(site: Site) -> None:
    """A topic's max.message.bytes is the longest batch that it takes."""
    with closing(site.broker.admin()) as admin:
        resource = ConfigResource(ConfigResourceType.TOPIC, site.topics[1], {"max.message.bytes": "50000"})
        admin.alter_configs([resource])
    bodies = [bytes([number]) * size for number, size in enumerate([9_000] * 20 + [49_000, 100])]
    with txpool.transaction():
        work([], site.outward)
        for body in bodies:
            site.outward.send(body)
    assert site.out() == bodies
    with pytest.raises(txpool.TransactionRolledBack, match=f"MessageSizeTooLarge.*{site.topics[1]}"):
        site.outward.send(b"x" * 50_000)
    assert site.out() == bodies
    assert site.listed() == []


@pytest.mark.parametrize(("beside", "sends"), [(0, [900_000]), (3, [900_000, 16_384])])
def test_a_message_that_is_too_long_is_sent_once_by_itself(
    site: Site, monkeypatch: pytest.MonkeyPatch, beside: int, sends: list[int]
) -> None:
    """Shorter batches help only a batch that has others in it."""
    with closing(site.broker.admin()) as admin:
        resource = ConfigResource(ConfigResourceType.TOPIC, site.topics[1], {"max.message.bytes": "50000"})
        admin.alter_configs([resource])
    send, sizes = KafkaRequests.send, list[int]()

    def noted(self: KafkaRequests, *arguments: Any, size: int) -> None:
        sizes.append(size)
        send(self, *arguments, size=size)

    monkeypatch.setattr(KafkaRequests, "send", noted)
    with pytest.raises(txpool.TransactionRolledBack, match=f"MessageSizeTooLarge.*{site.topics[1]}"):
        with txpool.transaction():
            for body in [b"x"] * beside + [b"x" * 50_000]:
                site.outward.send(body)
    assert sizes == sends
    assert site.out() == []


@pytest.mark.parametrize("longest", [100 * 1024 * 1024, 60_000])
def test_no_request_is_longer_than_the_broker_takes(site: Site, monkeypatch: pytest.MonkeyPatch, longest: int) -> None:
    """Else it ends the connection, which seems to be an outage: a consumer would try that message for ever."""
    with closing(site.broker.admin()) as admin:
        admin.create_partitions({site.topics[1]: 4})
    settings, produce, sizes = KafkaRequests.settings, KafkaRequests._produce, list[int]()

    def lowered(self: KafkaRequests, *keys: str, topic: str = "") -> dict[str, str]:
        found = settings(self, *keys, topic=topic)
        assert found.get("socket.request.max.bytes", str(100 * 1024 * 1024)) == str(100 * 1024 * 1024)
        return {**found, "socket.request.max.bytes": str(longest)}

    async def noted(self: KafkaRequests, manager: Any, producer: Producer, batches: Any) -> None:
        sizes.append(sum(map(len, batches.values())))
        await produce(self, manager, producer, batches)

    monkeypatch.setattr(KafkaRequests, "settings", lowered)
    monkeypatch.setattr(KafkaRequests, "_produce", noted)
    with pytest.raises(txpool.TransactionRolledBack, match=f"MessageSizeTooLarge.*{site.topics[1]}") as caught:
        site.outward.send(b"x" * longest)
    assert not is_outage(caught.value)
    assert sizes == []
    with txpool.transaction():
        for _ in range(8):
            site.outward.send(b"y" * 20_000)
    reader = KafkaConsumer(site.topics[1], bootstrap_servers=site.broker.address, auto_offset_reset="earliest")
    with closing(reader):
        assert {len(next(reader).value) for _ in range(8)} == {20_000}
    assert max(sizes) < longest
    assert sum(sizes) > 8 * 20_000


def work_through(site: Site, *texts: str) -> None:
    """Send these, and do all of them in one transaction."""
    for text in texts:
        site.inward.send(text)
    with txpool.transaction():
        found = site.inward.receive(10, timeout=LONG)
        while len(found) < len(texts):
            found += site.inward.receive(10, timeout=LONG)
        work(found)


def create_again(site: Site, *texts: str) -> None:
    """Delete the topic, and create it with these messages."""
    with closing(site.broker.admin()) as admin:
        admin.delete_topics([site.topics[0]])
    site.broker.create_topics(site.topics[0])
    with closing(KafkaProducer(bootstrap_servers=site.broker.address)) as producer:
        for text in texts:
            producer.send(site.topics[0], text.encode()).get(60)


def require_refused(site: Site, says: str) -> None:
    """Nothing is received until the consumer has noticed."""
    deadline = time.monotonic() + LONG
    with pytest.raises(txpool.OperationalError, match=says):
        while time.monotonic() < deadline:
            with txpool.transaction() as ambient:
                ambient.may_be_empty = True
                assert site.inward.receive(10, timeout=1) == []


def test_a_topic_that_was_created_again_loses_nothing_in_silence(site: Site) -> None:
    work_through(site, "one", "two")
    create_again(site, "new")
    site.again()
    require_refused(site, "created again")
    site.sql("delete from txpool_message_positions")
    with txpool.transaction():
        found = site.inward.receive(10, timeout=LONG)
        work(found)
    assert texts(found) == ["new"]


@pytest.mark.parametrize("stopped", [False, True])
def test_a_topic_that_is_created_again_with_more_messages(site: Site, stopped: bool) -> None:
    """While it is consumed, or between two runs: the first ones would be left out."""
    work_through(site, "one", "two")
    create_again(site, *map(str, range(5)))
    if stopped:
        site.again()
    require_refused(site, "was deleted and created again")
    site.sql("delete from txpool_message_positions")
    site.again()
    with txpool.transaction():
        work(site.inward.receive(10, timeout=LONG))
    assert site.sql("select body from done")[2:] == [(str(number),) for number in range(5)]


def test_a_position_that_is_none_is_an_error(site: Site) -> None:
    work_through(site, "one")
    site.sql("update txpool_message_positions set position = -1 where part = 0")
    site.again()
    require_refused(site, "is -1, and the partition ends at")


@pytest.mark.parametrize("stopped", [True, False])
def test_what_was_deleted_before_it_was_received_is_told(
    site: Site, stopped: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """By the topic's retention, as a rule: the consumer went on behind it, and said nothing."""
    work_through(site, "one")
    inward = site.again() if stopped else site.inward
    for text in ("two", "three", "four"):  # each with a marker behind it
        inward.send(text)
    with closing(site.broker.admin()) as admin:
        admin.delete_records({TopicPartition(site.topics[0], 0): 6})
    with txpool.transaction():
        assert texts(inward.receive(10, timeout=LONG)) == ["four"]
    (told,) = [each.getMessage() for each in caplog.records if each.name == "txpool.messages"]
    assert "what is before 6 was deleted" in told


def test_a_header_whose_name_is_no_text_is_received_as_others_are(site: Site) -> None:
    """Whoever may send does not stop the consumer, and none of the batch is lost."""
    strange, plain = HeaderName("h\udcff\udcfe"), [("a", b"1"), ("z", b"3")]
    with closing(KafkaProducer(bootstrap_servers=site.broker.address, linger_ms=5000)) as producer:
        for text in ("one", "strange", "two"):
            producer.send(
                site.topics[0], text.encode(), headers=[*plain, *([(strange, b"2")] if text == "strange" else [])]
            )
        producer.flush(LONG)
    site.inward.parking_after = 1

    @txpool.consumer(site.inward, max_messages=10, poll=1)
    def ship(messages: list[ReceivedMessage]) -> None:
        work(messages)
        for each in messages:
            assert dict(each.headers) == {"a": "1", "z": "3"} | ({strange: "2"} if each.text == "strange" else {})
            site.outward.send(each.body, headers=each.headers)

    assert ship.run(lambda: len(site.sql("select * from done")) == 3) == 3
    reader = KafkaConsumer(site.topics[1], bootstrap_servers=site.broker.address, auto_offset_reset="earliest")
    with closing(reader):
        mend(reader, site.topics[0])
        names = [{name for name, _ in next(reader).headers} for _ in range(3)]
    assert [strange in each for each in names] == [False, True, False]


@pytest.mark.costly
def test_once_does_what_there_is_and_leaves_the_group(site: Site) -> None:
    (site.folder / "shop.py").write_text(
        "import txpool\n\n@txpool.consumer('in.properties', max_messages=2)\ndef ship(messages):\n"
        "    with txpool.connect('orders.properties') as orders:\n        for each in messages:\n"
        "            orders.execute('insert into done values (?)', [each.text])\n"
    )
    file = site.folder / "in.properties"
    file.write_text(file.read_text().replace("driver.group_instance_id", "#"))  # which would stay a member
    for number in range(5):
        site.outward.send(f"other {number}")
        site.inward.send(str(number))
    command = ["-m", "txpool", "consume", "shop:ship", "--once", "--conf", "txpool.properties"]
    done = preloaded.run(*command, cwd=site.folder, env=dict(os.environ))
    assert (done.returncode, done.stdout) == (0, "5 done\n"), done.stderr
    assert site.sql("select body from done") == [(str(number),) for number in range(5)]
    with closing(site.broker.admin()) as admin:
        (group,) = admin.describe_groups([f"shop-{site.topics[0]}"]).values()
    assert group["members"] == []


def test_what_a_thread_sends_at_the_commit_is_sent_or_refused(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    may_send, committed = threading.Event(), threading.Event()
    require_active = KafkaWork.require_active

    def require(given: KafkaWork) -> None:
        require_active(given)
        if threading.current_thread() is not threading.main_thread():
            may_send.set()
            committed.wait(1)  # the commit waits for this thread

    monkeypatch.setattr(KafkaWork, "require_active", require)
    with ThreadPoolExecutor(1) as threads:
        with txpool.transaction():
            site.outward.send("one")
            sending = threads.submit(copy_context().run, site.outward.send, "two")
            assert may_send.wait(LONG)
        committed.set()
        sending.result()
    assert site.out() == [b"one", b"two"]


def test_a_receive_that_does_not_wait_polls_all_the_same(site: Site) -> None:
    site.inward.send("one")
    deadline = time.monotonic() + LONG
    with txpool.transaction():
        while not (found := site.inward.receive()):
            assert time.monotonic() < deadline
        work(found)


@pytest.mark.parametrize("method", ["poll", "position"])
def test_an_interrupt_behind_a_poll_loses_nothing(site: Site, monkeypatch: pytest.MonkeyPatch, method: str) -> None:
    site.inward.send("one")
    with txpool.transaction() as ambient:
        ambient.may_be_empty = True
        site.inward.receive(1, timeout=LONG)
    site.inward.send("two")
    consumer = site.inward._kafka()  # type: ignore[attr-defined]
    called = getattr(consumer, method)
    lost = []

    def interrupted(*given: Any, **arguments: Any) -> Any:
        found = called(*given, **arguments)
        if found and not lost:
            lost.append(found)
            raise KeyboardInterrupt
        return found

    monkeypatch.setattr(consumer, method, interrupted)
    with pytest.raises(KeyboardInterrupt), txpool.transaction() as ambient:
        ambient.may_be_empty = True
        site.inward.receive(10, timeout=LONG)
    received: list[str] = []
    with txpool.transaction():
        while "two" not in received:
            found = site.inward.receive(10, timeout=LONG)
            received += texts(found)
            work(found)
        assert site.inward.receive(10, timeout=0.5) == []
    assert received == ["two"]


def test_a_position_that_a_rebalance_has_set_back_is_put_right(site: Site) -> None:
    work_through(site, "one", "two")
    consumer = site.inward._kafka()  # type: ignore[attr-defined]
    (place,) = consumer.assignment()
    end = consumer.position(place)
    consumer.config["max_poll_records"] = 1
    consumer.seek(place, 0)
    deadline = time.monotonic() + LONG
    while consumer.position(place) == 0:
        assert not site.inward.wait(1)
        assert time.monotonic() < deadline
    assert consumer.position(place) == end


def test_what_waits_for_another_try_fills_no_memory(site: Site) -> None:
    site.inward.send("bad")
    site.inward.failed(taken(site.inward), "bad", 3600, is_open=False)
    site.inward.send("two")
    for _ in range(4):
        assert not site.inward.wait(0.3)
    (buffer,) = site.inward._buffers.values()  # type: ignore[attr-defined]
    assert [each.value for each in buffer.records] == [b"bad"]
    buffer.not_before = 0.0
    with txpool.transaction():
        while "two" not in texts(found := site.inward.receive(10, timeout=LONG)):
            work(found)
        work(found)


@pytest.mark.costly
def test_what_has_a_strange_id_can_be_parked(site: Site) -> None:
    with closing(KafkaProducer(bootstrap_servers=site.broker.address)) as producer:
        headers = [("txpool-id", b"x\0\xff" + b"y" * 2000)]
        producer.send(site.topics[0], b"bad", headers=headers).get(60)

    @txpool.consumer(site.inward, max_messages=2, poll=5)
    def refuse(_: list[ReceivedMessage]) -> None:
        raise ValueError

    refuse.run(lambda: site.inward.parked()[0] == 1)
    ((made, headers_kept),) = site.sql("select id, headers from txpool_messages")
    assert made == f"{site.topics[0]}-0-0"
    assert json.loads(headers_kept) == {"txpool-other": "x\0\udcff" + "y" * 2000}


def test_a_header_with_the_name_of_txpools_own_is_refused_and_received_ones_can_be_sent_on(site: Site) -> None:
    """Its value was replaced in silence."""
    with txpool.transaction(), pytest.raises(txpool.ProgrammingError, match="header txpool-id is txpool's own"):
        site.outward.send("x", headers={"h": "1", "txpool-id": "mine"})
    sent = site.inward.send("one", headers={"h": "1"})
    with closing(KafkaProducer(bootstrap_servers=site.broker.address)) as producer:
        for made in (b"\xff", b"", b"theirs"):
            producer.send(site.topics[0], made, headers=[("txpool-id", made)]).get(LONG)
    received = list[ReceivedMessage]()

    @txpool.consumer(site.inward, poll=1)
    def ship(messages: list[ReceivedMessage]) -> None:
        for each in messages:
            received.append(each)
            site.outward.send(each.body, key=each.key, headers=each.headers)

    assert ship.run(once=True) == 4
    assert [each.id for each in received] == [sent, f"{site.topics[0]}-0-2", f"{site.topics[0]}-0-3", "theirs"]
    found = [dict(each.headers) for each in site.broker.committed(site.topics[1])]
    assert len({each.pop("txpool-id") for each in found} - {b"", b"\xff", b"theirs", sent.encode()}) == 4
    assert found == [{"h": b"1"}, {"txpool-other": b"\xff"}, {"txpool-other": b""}, {}]


def test_a_topic_that_is_not_there_is_said_to_be_missing(site: Site) -> None:
    missing = f"{site.topics[0]}-missing"
    write_site(site.folder, site.broker, (missing, site.topics[1]))
    inward = site.again()
    with pytest.raises(txpool.OperationalError, match=f"no topic {missing}"), txpool.transaction():
        inward.receive()
    with pytest.raises(txpool.OperationalError, match=f"no topic {missing}"):
        txpool.consumer(inward, poll=0.1)(work).run(once=True)
    site.broker.create_topics(missing)
    inward.send("one")
    with txpool.transaction():
        assert texts(inward.receive(timeout=LONG)) == ["one"]


def test_a_topic_that_is_deleted_while_it_is_consumed_is_said_to_be_missing(site: Site) -> None:
    write_site(site.folder, site.broker, site.topics, more="driver.metadata_max_age_ms = 200\n")
    site.again()
    work_through(site, "one")
    with closing(site.broker.admin()) as admin:
        admin.delete_topics([site.topics[0]])
    deadline = time.monotonic() + LONG
    with pytest.raises(txpool.OperationalError, match=r"no topic|or is gone"):
        while time.monotonic() < deadline:
            site.inward.wait(1)


def test_a_consumer_without_a_group_ends_with_an_error(tmp_path: Path) -> None:
    file = tmp_path / "out.properties"
    file.write_text("driver = kafka\nurl = kafka://localhost\ntopic = out\n")
    work = txpool.consumer(file)(lambda _: None)
    with pytest.raises(txpool.ConfigurationError, match="group is missing"):
        work.run()
    work.session.close()


@pytest.mark.parametrize("key", ["auto_offset_reset", "isolation_level", "bootstrap_servers"])
def test_what_must_stay_as_it_is_is_an_error_at_once(tmp_path: Path, key: str) -> None:
    file = tmp_path / "out.properties"
    file.write_text(f"driver = kafka\nurl = kafka://localhost\ntopic = out\ndriver.{key} = latest\n")
    with pytest.raises(txpool.ConfigurationError, match=f"driver.{key} = .* must stay"):
        txpool.session(file)


def test_without_its_client_the_error_names_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "out.properties"
    file.write_text("driver = kafka\nurl = kafka://localhost\ntopic = out\n")
    monkeypatch.setitem(sys.modules, "kafka", None)
    with pytest.raises(txpool.ConfigurationError, match=r"txpool\[kafka\]"):
        txpool.session(file)


def prepared(site: Site, name: str, timeout: float = TIMEOUT / 1000) -> Producer:
    """A transaction that is as a dead process has left it."""
    producer = site.requests.begin(name, timeout, time.monotonic() + LONG)
    site.requests.send(producer, [Record(site.topics[1], 0, None, b"left", ())], time.monotonic() + LONG)
    return producer


def record_of(site: Site, producer: Producer) -> BranchRecord:
    xid = parse(producer.transactional_id)
    assert xid is not None
    return BranchRecord(xid, "out", site.requests.cluster(), evidence_of(producer, [(site.topics[1], 0)]))


def name_of(site: Site) -> str:
    """A name as the coordinator gives it to a branch."""
    from txpool.xid import make_xid

    with txpool.transaction() as ambient:
        ambient.may_be_empty = True
    return make_xid(ambient.gtrid, 0, "out").joined


def test_anybody_ends_what_is_prepared_and_again(site: Site) -> None:
    producer = prepared(site, name_of(site))
    record = record_of(site, producer)
    for _ in range(2):
        assert end_branch(site.requests, record, commit=True) == (BranchOutcome.COMMITTED, "")
    assert end_branch(site.requests, record, commit=False)[0] is BranchOutcome.COMMITTED
    assert site.out() == [b"left"]
    other = record_of(site, prepared(site, name_of(site)))
    assert end_branch(site.requests, other, commit=False)[0] is BranchOutcome.ROLLED_BACK
    assert end_branch(site.requests, other, commit=True)[0] is BranchOutcome.ROLLED_BACK
    assert end_branch(site.requests, record._replace(identity="other"), commit=True)[0] is BranchOutcome.UNKNOWN
    assert end_branch(site.requests, record._replace(evidence={}), commit=True)[0] is BranchOutcome.UNKNOWN


def failing_twice(ask: Callable[..., Any]) -> Callable[..., Any]:
    errors = iter([NodeNotReadyError(), NodeNotReadyError()])

    def asked(*given: Any, **named: Any) -> Any:
        for error in errors:
            raise error
        return ask(*given, **named)

    return asked


def is_only_just_gone(requests: KafkaRequests, monkeypatch: pytest.MonkeyPatch) -> None:
    """As while kafka-python waits before it connects again."""
    client = requests.client()
    for name in ("describe_cluster", "describe_configs", "describe_topics", "list_transactions", "describe_producers"):
        monkeypatch.setattr(client, name, failing_twice(getattr(client, name)))


def test_it_goes_on_once_the_broker_is_back(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    record = record_of(site, prepared(site, name_of(site)))
    for requests in (site.requests, MANAGER.requests_of(site.outward.source)):
        is_only_just_gone(requests, monkeypatch)
    assert record.xid.joined in site.listed()
    assert end_branch(site.requests, record, commit=True) == (BranchOutcome.COMMITTED, "")
    site.outward.send("one")
    assert site.out() == [b"left", b"one"]


def test_what_the_broker_has_ended_by_itself_is_told(site: Site) -> None:
    record = record_of(site, prepared(site, name_of(site), timeout=0.1))
    deadline = time.monotonic() + LONG
    while site.requests.state(record.xid.joined, deadline).state != "CompleteAbort":  # type: ignore[union-attr]
        assert time.monotonic() < deadline
        time.sleep(0.05)
    assert end_branch(site.requests, record, commit=True)[0] is BranchOutcome.ROLLED_BACK


def test_a_stranger_who_takes_the_id_is_no_commit(site: Site) -> None:
    record = record_of(site, prepared(site, name_of(site)))
    site.requests.begin(record.xid.joined, 30, time.monotonic() + LONG)
    assert end_branch(site.requests, record, commit=True)[0] is BranchOutcome.LOST
    assert site.out() == []


def test_what_a_stranger_commits_under_the_id_is_not_ours(site: Site) -> None:
    record = record_of(site, prepared(site, name_of(site)))
    other = prepared(site, record.xid.joined)
    site.requests.end(other, time.monotonic() + LONG, commit=True)
    until(lambda: end_branch(site.requests, record, commit=True)[0] is not BranchOutcome.UNKNOWN)  # it commits yet
    assert end_branch(site.requests, record, commit=True)[0] is BranchOutcome.LOST


def test_a_topic_that_is_gone_hides_no_other_that_is_open(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(branch, "_VISIBLE", 0.1)
    producer = prepared(site, name_of(site))
    parts = [("gone", 0), (site.topics[1], 0)]
    assert site.topics[1] in branch._left_open(site.requests, producer, parts)
    assert end_branch(site.requests, record_of(site, producer), commit=True) == (BranchOutcome.COMMITTED, "")


def test_missing_markers_are_written(site: Site) -> None:
    producer = prepared(site, name_of(site))
    parts = [(site.topics[1], 0)]
    assert site.requests.left_open(producer, parts) == parts
    site.requests.write_markers(producer, parts, time.monotonic() + LONG, commit=True)
    assert site.requests.left_open(producer, parts) == []
    assert site.out() == [b"left"]


def test_markers_that_may_not_be_written_are_an_alarm(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """A broker that has lost markers, and lets this user write none: no broker of 4.2 loses any."""
    killed_at(site, "marked.committed")
    with closing(RecoveryManager("recovery.properties")) as manager, monkeypatch.context() as patch:

        def refused(*_: object, **__: object) -> None:
            raise ClusterAuthorizationFailedError

        patch.setattr(branch, "_VISIBLE", 0.1)
        patch.setattr(KafkaRequests, "left_open", lambda requests, producer, parts: parts)
        patch.setattr(KafkaRequests, "write_markers", refused)
        reports = []

        def alarmed() -> bool:  # not while the broker says that it is being committed
            reports.append(manager.scan())
            return bool(reports[-1].alarms)

        until(alarmed, LONG)
        report = reports[-1]
        assert [(each.kind, each.subject) for each in report.alarms] == [("right", "out")]
        assert "needs the right ClusterAction" in report.alarms[0].text
        assert [each.forgotten for each in reports] == [()] * len(reports)
        patch.undo()
        report = manager.scan()
        assert report.alarms == ()
        assert not any(node_of(site.topics) in each.gtrid for each in report.left_alone)
        assert len(report.forgotten) == 1
    assert site.out() == [b"child"]


def test_a_transaction_without_a_timeout_gets_a_third_of_the_brokers(site: Site) -> None:
    with txpool.transaction() as ambient:
        site.outward.send("in time")
        assert ambient.timeout == TIMEOUT / 3000
        assert ambient.decide_before is not None
    with pytest.raises(txpool.TransactionTimeout, match="since out joined"), txpool.transaction() as ambient:
        site.outward.send("late")
        ambient.expire(ambient.timeout)
    assert site.out() == [b"in time"]


def test_a_longer_timeout_than_a_third_of_the_brokers_is_refused(site: Site) -> None:
    refused = pytest.raises(txpool.ProgrammingError, match=r"its broker ends a prepared transaction .* at most 300 s")
    with txpool.transaction(timeout=301) as ambient:
        with refused:
            site.outward.send("never")
        with txpool.connect("orders.properties") as orders:
            orders.execute("insert into done values ('done')")
        assert ambient.timeout == 301
    with txpool.transaction(timeout=300):
        site.outward.send("in time")
    assert site.out() == [b"in time"]
    assert site.sql("select body from done") == [("done",)]


@pytest.mark.costly
def test_two_phase_commit_has_no_timeout(tmp_path: Path, require: Require) -> None:
    classpath = find_classpath()
    require(classpath, "Kafka: apt-get install maven default-jdk-headless, which bring it")
    assert classpath is not None
    keys = {"transaction.two.phase.commit.enable": "true", "unstable.api.versions.enable": "true"}
    broker = Broker(tmp_path, classpath, **keys, **{"transaction.max.timeout.ms": "1000"})
    with ExitStack() as stack:
        stack.callback(broker.close)
        broker.start()
        broker.create_topics("out", partitions=2)
        requests = stack.enter_context(closing(KafkaRequests(broker.address, {})))
        assert requests.longest() == inf
        deadline = time.monotonic() + LONG
        kept, ended = requests.begin("kept", inf, deadline), requests.begin("ended", 1.0, deadline)
        for part, producer in enumerate((kept, ended)):
            requests.send(producer, [Record("out", part, None, b"kept", ())], deadline)
        until(lambda: requests.state("ended", deadline).state == "CompleteAbort", 60)  # type: ignore[union-attr]
        assert requests.end(kept, time.monotonic() + LONG, commit=True) == ""
        assert [each.value for each in broker.committed("out", (0, 1))] == [b"kept"]


def test_too_late_to_decide_rolls_back(site: Site) -> None:
    late = pytest.raises(txpool.TransactionRolledBack, match="before recovery could commit it")
    with late, txpool.transaction() as ambient:
        ambient.decide_before = time.monotonic() - 1
        site.outward.send("late")
    assert site.out() == []


CHILD = """
import txpool
txpool.configure("txpool.properties")
with txpool.transaction():
    with txpool.connect("orders.properties") as orders:
        orders.execute("insert into done values ('child')")
    txpool.session("out.properties").send("child")
"""


def killed_at(site: Site, point: str) -> None:
    environment = os.environ | {"TXPOOL_FAILPOINTS": f"{point}=kill"}
    child = preloaded.run("-c", CHILD, cwd=site.folder, env=environment)
    assert child.returncode == -signal.SIGKILL, child.stderr
    assert site.listed()


@pytest.mark.parametrize("trusted", [True, False])
@pytest.mark.parametrize("decided", [True, False])
def test_recovery_ends_what_a_dead_process_has_left(site: Site, *, decided: bool, trusted: bool) -> None:
    write_site(site.folder, site.broker, site.topics, trusted=trusted)
    killed_at(site, "marked.committed" if decided else "coordinator.prepared")
    with closing(RecoveryManager("recovery.properties")) as manager:
        report = manager.scan()
    assert report.unreachable == report.errors == {}
    assert report.heuristics == ()
    if decided or trusted:
        assert site.out() == [b"child"] * decided
        assert site.listed() == []
    else:  # nobody proves that it is ours: it is listed, and the broker ends it
        (alarm,) = report.alarms
        assert (alarm.kind, alarm.subject) == ("foreign", "somebody in out")
        assert "prepared.owners = any" in alarm.text
        assert len(site.listed()) == 1
    assert site.sql("select body from done") == [("child",)] * decided


@pytest.mark.costly
def test_a_pass_of_recovery_ends_all_branches_over_one_client(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """And opens two more, to identify the cluster and to list, for each of the two sessions that lead there."""
    made: list[str] = []
    begin = KafkaAdminClient.__init__

    def counted(client: KafkaAdminClient, **options: Any) -> None:
        made.append("")
        begin(client, **options)

    monkeypatch.setattr(KafkaAdminClient, "__init__", counted)
    opened = []
    for count in (1, 3):
        for _ in range(count):
            killed_at(site, "marked.committed")
        del made[:]
        with closing(RecoveryManager("recovery.properties")) as manager:
            assert len(manager.scan().forgotten) == count
        opened.append(len(made))
    assert opened[0] == opened[1]
    assert site.out() == [b"child"] * 4


def test_the_commands_know_it(site: Site) -> None:
    done = preloaded.run("-m", "txpool", "check", "in.properties", cwd=site.folder, env=dict(os.environ))
    assert "is cluster" in done.stdout, done.stderr
    assert "decided within 300 s" in done.stdout
    assert "topic in" in done.stdout
    assert "has 1 copies, 1 of which confirm" in done.stdout
    assert "the cluster has no ACLs" in done.stdout
    assert "for 7 days" in done.stdout
    with (site.folder / "recovery.properties").open("a") as file:
        file.write("recovery.period = 50\n")
    done = preloaded.run("-m", "txpool", "check", "recovery.properties", cwd=site.folder, env=dict(os.environ))
    assert "recovery comes within 50 s (recovery.period and recovery.backoff), and has 600 s" in done.stdout


@pytest.mark.costly
def test_the_kit(site: Site) -> None:
    topic = unique("kit")
    site.broker.create_topics(topic, partitions=100)
    (site.folder / "kit.properties").write_text(
        f"driver = kafka\nurl = {site.broker.url}\ntopic = {topic}\nprepared.owners = any\n"
    )
    command = ["-m", "txpool", "check", "--conformance", "kit.properties"]
    done = preloaded.run(*command, cwd=site.folder, env=dict(os.environ), timeout=3 * LONG)
    print(done.stdout, done.stderr)
    assert done.returncode == 0
