"""A relay delivers each message in its order: what that does in datasources once, all else at least once."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

import txpool
from tests.integration.outbox.conftest import Place
from tests.support.waiting import SECONDS
from txpool import HeuristicMixed, Outbox, TransactionInDoubt
from txpool.log import open_log
from txpool.outbox import Message
from txpool.outbox import relay as relays
from txpool.xid import make_gtrid

pytestmark = pytest.mark.part(2)


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """What has failed is tried again without a wait."""
    monkeypatch.setattr(relays, "_LONGEST_WAIT", 0.0)


def failing(place: Place, *bad: str) -> Callable[[Message], None]:
    def deliver(message: Message) -> None:
        place.apply(message)
        if message.payload in bad:
            raise ValueError(f"{message.payload} is refused")

    return deliver


def exhausted(outbox: Outbox, deliver: Callable[[Message], None], times: int) -> int:
    relay = outbox.relay(deliver)
    return sum(relay.deliver_all() for _ in range(times))


def test_what_it_does_in_datasources_commits_with_the_end_of_the_message(place: Place) -> None:
    place.send("a1", "a2", key="a")
    place.send("b1", key="b")
    assert place.outbox.relay(place.apply).deliver_all() == 3
    assert (place.applied(), place.left()) == (["a1", "a2", "b1"], 0)


def test_a_message_that_has_failed_very_often_holds_up_no_other(place: Place) -> None:
    outbox = Outbox(place.datasource("orders", outbox_attempts=10**6))
    place.send("bad", key="a")
    place.send("b1", key="b")
    table = {"postgresql": "txpool_spark.outbox"}.get(place.kind, "txpool_outbox")
    place.sql("orders", f"update {table} set attempts = 5000 where message_key = 'a'")
    assert outbox.relay(failing(place, "bad")).deliver_all() == 1
    assert place.applied() == ["b1"]


def test_a_message_that_fails_is_parked_with_its_count(place: Place) -> None:
    outbox = Outbox(place.datasource("orders", outbox_attempts=3))
    ids = place.send("a1", "bad", "a3", key="a")
    place.send("b1", key="b")
    place.send("free")
    seen: list[int] = []

    def deliver(message: Message) -> None:
        if message.payload == "bad":
            seen.append(message.attempt)
        failing(place, "bad")(message)

    assert exhausted(outbox, deliver, 5) == 3
    assert (seen, place.applied()) == ([1, 2, 3], ["a1", "b1", "free"])
    ((parked),) = outbox.parked()
    assert (parked.id, parked.key, parked.attempts, parked.error) == (ids[1], "a", 3, "ValueError: bad is refused")
    state = outbox.state()
    assert (state.waiting, state.parked) == (1, 1)
    assert state.oldest is not None
    assert state.oldest < SECONDS
    assert outbox.retry("unknown") == 0
    assert outbox.retry(ids[1]) == 1
    assert exhausted(outbox, failing(place), 1) == 2
    assert (place.applied(), place.left()) == (["a1", "b1", "free", "bad", "a3"], 0)


@pytest.mark.parametrize("place", ["sqlite"], indirect=True)
def test_a_text_that_is_none_holds_up_no_other(place: Place) -> None:
    outbox = Outbox(place.datasource("orders", outbox_attempts=1))
    place.send("planted", "good")
    place.sql("orders", "update txpool_outbox set payload = x'ff' where number = 1")
    assert outbox.relay(place.apply).deliver_all() == 1
    assert (place.applied(), outbox.state().parked) == (["good"], 1)


def test_an_error_whose_text_no_database_keeps_holds_up_no_other(place: Place) -> None:
    """A lone surrogate, as in the name of a file that is no UTF-8, and a NUL."""
    outbox = Outbox(place.datasource("orders", outbox_attempts=1))
    place.send("bad", "good")

    def deliver(message: Message) -> None:
        if message.payload == "bad":
            raise ValueError("x\udcff\0y" * 1000)
        place.apply(message)

    assert exhausted(outbox, deliver, 2) == 1
    ((parked),) = outbox.parked()
    assert str(parked.error).startswith("ValueError: x??y")


def test_later_ones_of_a_parked_key_go_on_if_that_is_configured(place: Place) -> None:
    outbox = Outbox(place.datasource("orders", outbox_attempts=1, outbox_skip_parked=True))
    place.send("a1", "bad", "a3", key="a")
    assert exhausted(outbox, failing(place, "bad"), 2) == 2
    assert (place.applied(), outbox.state().parked) == (["a1", "a3"], 1)


def test_a_message_that_is_tried_again_holds_up_its_key_alone(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(relays, "_LONGEST_WAIT", 3600.0)
    monkeypatch.setattr(relays.time, "monotonic", lambda: 0.0)
    place.send("bad", "a2", key="a")
    place.send("b1", key="b")
    assert exhausted(place.outbox, failing(place, "bad"), 3) == 1
    assert (place.applied(), place.outbox.state().waiting) == (["b1"], 2)


def test_a_delivery_that_killed_its_relay_counts(place: Place) -> None:
    """It has rolled back, and nothing of ours ran behind it."""
    outbox = Outbox(place.datasource("orders", outbox_attempts=2))
    place.send("deadly", key="a")

    class Killed(BaseException):
        pass

    def deliver(_: Message) -> None:
        raise Killed

    for _ in range(2):
        with pytest.raises(Killed):
            outbox.relay(deliver).deliver_all()
    assert outbox.relay(place.apply).deliver_all() == 0
    assert [(each.attempts, each.error) for each in outbox.parked()] == [(2, "no delivery of it has ended")]


def test_one_that_is_interrupted_behind_its_commit_is_delivered(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """The next relay finds that its delivery has ended in all databases, and delivers it no more."""
    if place.kind == "sqlite":
        pytest.skip("a delivery there has one datasource")
    place.send("a1", "a2", key="a")

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as struck, pytest.raises(KeyboardInterrupt):
        struck.setattr(relays.Relay, "_delete_delivered", interrupted)
        place.outbox.relay(place.apply).deliver_all()
    assert (place.applied(), place.left()) == (["a1"], 2)
    assert place.outbox.relay(place.apply).deliver_all() == 1
    assert (place.applied(), place.left()) == (["a1", "a2"], 0)


def test_one_that_another_log_decided_waits(place: Place) -> None:
    """Nobody here can tell whether that has ended."""
    place.send("a1", "a2", key="a")
    place.send("b1", key="b")
    table = "txpool_spark.outbox" if place.kind == "postgresql" else "txpool_outbox"
    (first,) = (number for (number,) in place.sql("orders", f"select min(number) from {table}"))
    place.sql("orders", f"update {table} set delivered_by = 'txp1:other:abcdefghijkl:1' where number = {first}")
    assert place.outbox.relay(place.apply).deliver_all() == 1
    assert place.applied() == ["b1"]


def test_two_relays_keep_the_order_of_a_key(place: Place) -> None:
    place.send("a1", "a2", key="a")
    place.send("b1", key="b")
    begun, go_on = threading.Event(), threading.Event()

    def slowly(message: Message) -> None:
        begun.set()
        go_on.wait(SECONDS)
        place.apply(message)

    first = threading.Thread(target=place.outbox.relay(slowly).deliver_all)
    first.start()
    assert begun.wait(SECONDS)
    second = Outbox(place.datasource("orders"))
    assert second.relay(place.apply).deliver_all() == (0 if place.kind == "sqlite" else 1)
    go_on.set()
    first.join()
    assert (place.applied(), place.left()) == (["a1", "a2", "b1"] if place.kind == "sqlite" else ["b1", "a1", "a2"], 0)


def test_who_sends_does_not_wait_for_a_delivery(place: Place) -> None:
    place.send("a1", key="a")

    def deliver(message: Message) -> None:
        if message.payload == "a1":
            sender = threading.Thread(target=place.send, args=["a2"], kwargs={"key": "a"})
            sender.start()
            sender.join(SECONDS)
            assert not sender.is_alive()
        place.apply(message)

    assert place.outbox.relay(deliver).deliver_all() == 2
    assert place.applied() == ["a1", "a2"]


def test_a_delivery_may_send(place: Place) -> None:
    place.send("first", key="a")

    def deliver(message: Message) -> None:
        if message.payload == "first":
            place.outbox.send("second", key="a")
        place.apply(message)

    assert place.outbox.relay(deliver).deliver_all() == 2
    assert place.applied() == ["first", "second"]


@pytest.mark.parametrize("kind", [TransactionInDoubt, HeuristicMixed])
def test_what_may_have_committed_is_no_failure(place: Place, kind: type[txpool.TransactionError]) -> None:
    outbox = Outbox(place.datasource("orders", outbox_attempts=1))
    place.send("a1", key="a")

    def deliver(_: Message) -> None:
        raise kind("nobody knows", gtrid=None)

    assert outbox.relay(deliver).deliver_all() == 0
    assert (outbox.state().parked, outbox.state().waiting) == (0, 1)


def test_behind_more_messages_than_are_looked_at_together(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(relays, "WINDOW", 2)
    outbox = Outbox(place.datasource("orders", outbox_attempts=1))
    place.send("bad", *"2345", key="a")
    place.send("b1", "b2", "b3", key="b")
    assert exhausted(outbox, failing(place, "bad"), 1) == 3
    assert place.applied() == ["b1", "b2", "b3"]
    assert outbox.retry() == 1
    assert exhausted(outbox, failing(place), 1) == 5
    assert place.applied()[3:] == ["bad", *"2345"]


def test_no_transaction_is_open_between_messages(place: Place) -> None:
    place.send("a1")
    place.outbox.relay(place.apply).deliver_all()
    assert txpool.current() is None


def test_the_relay_that_has_delivered_lives_and_relays_no_more(place: Place, tmp_path: Path) -> None:
    """Nobody but another one can delete its message then: the log and the databases tell whether it has ended."""
    place.send("a1", "a2", key="a")
    with closing(open_log(f"sqlite:///{tmp_path}/log", node="tests")) as log:
        gtrid = make_gtrid(log.node, log.incarnation, 1)
        table = "txpool_spark.outbox" if place.kind == "postgresql" else "txpool_outbox"
        place.sql("orders", f"update {table} set delivered_by = '{gtrid}' where number = 1")
        assert place.outbox.relay(place.apply).deliver_all() == 1
    assert (place.applied(), place.left()) == (["a2"], 0)


def test_a_function_that_would_do_nothing_delivers_nothing(place: Place) -> None:
    """A call of it only makes a coroutine, or a generator: the message would be gone without a delivery."""

    async def coroutine(message: Message) -> None:
        place.apply(message)

    def generator(message: Message) -> Iterator[None]:
        yield place.apply(message)

    place.send("a1")
    for function in (coroutine, generator):
        with pytest.raises(txpool.ProgrammingError, match=f"{function.__name__}.* would do nothing, and count as done"):
            place.outbox.relay(function)
        assert place.outbox.relay(lambda message, function=function: function(message)).deliver_all() == 0  # type: ignore[misc]
    assert place.left() == 1
    assert place.outbox.relay(place.apply).deliver_all() == 1
    assert place.applied() == ["a1"]
