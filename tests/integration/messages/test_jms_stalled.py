"""A broker that answers nothing but pings: no wait of txpool's over JMS is for ever, and nothing is lost or doubled."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import closing
from copy import copy
from pathlib import Path

import pytest

import txpool
from recovery.manager import RecoveryManager
from tests.integration.messages.test_jms import Site, configured, create_queues, killed_at, work, write_site
from tests.support.jms.broker import Artemis
from tests.support.jms.proxy import Packet, StallingProxy
from txpool.idempotency.outage import is_outage
from txpool.messages import ReceivedMessage
from txpool.resources.jms import connection

pytestmark = [pytest.mark.slow, pytest.mark.costly]


@pytest.fixture
def proxy(artemis: Artemis) -> Iterator[StallingProxy]:
    with closing(StallingProxy(artemis.port)) as made:
        yield made


@pytest.fixture
def site(artemis: Artemis, proxy: StallingProxy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    """Its sessions are behind the proxy, and a call of them has some seconds to be answered."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(connection, "_PATIENCE", 5.0)
    queues, through = create_queues(artemis), copy(artemis)
    through.port = proxy.port
    write_site(tmp_path, through, queues, tries=1)
    for name in ("in", "out"):
        with (tmp_path / f"{name}.properties").open("a") as file:
            file.write("driver.callTimeout = 5000\n")
    with configured(tmp_path):
        yield Site(tmp_path, artemis, queues)


STEPS = [
    (Packet.CREATE_SESSION, True),
    (Packet.QUEUE_QUERY, True),
    (Packet.CREATE_CONSUMER, True),
    (Packet.CLOSE_CONSUMER, True),
    (Packet.FORCE_DELIVERY, True),
    (Packet.XA_TIMEOUT, True),
    (Packet.SEND, True),
    *[(each, delivered) for each in (Packet.XA_START, Packet.XA_END) for delivered in (True, False)],
    *[(each, delivered) for each in (Packet.XA_PREPARE, Packet.XA_COMMIT) for delivered in (True, False)],
]


@pytest.mark.parametrize("behind_one", [True, False])
@pytest.mark.parametrize(("step", "delivered"), STEPS, ids=lambda each: getattr(each, "name", str(each)).lower())
def test_a_consumer_goes_on(
    site: Site, proxy: StallingProxy, step: Packet, *, delivered: bool, behind_one: bool
) -> None:
    """Over another connection; no message is lost, done twice, or parked, though one try is all that it has."""
    for text in ("one", "two"):
        site.inward.send(text)
    site.inward.source.close()
    site.outward.source.close()
    site = Site(site.folder, site.broker, site.queues)
    if not behind_one:
        proxy.stall_at(step, delivered=delivered)

    @txpool.consumer(site.inward, max_messages=1, poll=0.1)
    def ship(messages: list[ReceivedMessage]) -> None:
        work(messages, site.outward)
        if behind_one and not armed:
            armed.append(True)
            proxy.stall_at(step, delivered=delivered)

    armed, deadline = list[bool](), time.monotonic() + 120
    with closing(RecoveryManager("recovery.properties")) as manager:

        def is_done() -> bool:
            assert time.monotonic() < deadline
            if len(site.sql("select * from done")) < 2:
                return False
            assert manager.scan().heuristics == ()
            return sorted(site.out()) == ["one", "two"]

        ship.run(is_done)
    assert proxy.stalled.is_set()
    assert sorted(site.sql("select body from done")) == [("one",), ("two",)]
    assert site.broker.bodies(site.queues[0]) == []
    assert site.inward.parked()[0] == 0


def receive(site: Site) -> None:
    with txpool.transaction():
        site.inward.receive(2, timeout=0.1)


def take_one(site: Site) -> None:
    with txpool.transaction():
        site.inward.take_one()


@pytest.mark.parametrize(
    "look", [receive, take_one, lambda site: site.inward.wait(60), lambda site: site.inward.parked()]
)
def test_no_look_for_a_message_waits_for_ever(site: Site, proxy: StallingProxy, look: Callable[[Site], object]) -> None:
    site.inward.send("one")
    site.broker.create_queues(site.inward.parking)
    with txpool.transaction():  # a message that is there may come before the client asks for it
        assert site.inward.take_one() is not None
    proxy.stall_at(Packet.FORCE_DELIVERY, delivered=True)
    with pytest.raises(txpool.OperationalError, match="did not say in time whether there is a message") as stalled:
        look(site)
    assert is_outage(stalled.value)
    site.inward.send("two")
    with txpool.transaction():
        assert [each.text for each in site.inward.receive(1, timeout=60)] == ["two"]


def test_an_outcome_that_was_not_answered(site: Site, proxy: StallingProxy) -> None:
    site.inward.send("one")
    proxy.stall_at(Packet.XA_ROLLBACK, delivered=False)
    with pytest.raises(KeyError), txpool.transaction():
        assert [each.text for each in site.inward.receive(1, timeout=60)] == ["one"]
        raise KeyError
    proxy.stall_at(Packet.XA_COMMIT, delivered=False)
    with pytest.raises(txpool.TransactionInDoubt), txpool.transaction():
        assert [each.text for each in site.inward.receive(1, timeout=60)] == ["one"]
    proxy.stall_at(Packet.XA_COMMIT, delivered=True)
    with pytest.raises(txpool.TransactionInDoubt), txpool.transaction():
        assert [each.text for each in site.inward.receive(1, timeout=60)] == ["one"]
    assert not site.inward.wait(0)


def test_recovery_lists_again(site: Site, proxy: StallingProxy) -> None:
    killed_at(site, "marked.committed")
    proxy.stall_at(Packet.XA_LIST, delivered=True)
    with closing(RecoveryManager("recovery.properties")) as manager:
        assert manager.scan().unreachable
        assert manager.scan().heuristics == ()
    assert site.out() == ["child"]
