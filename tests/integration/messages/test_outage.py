"""An outage of a database is no try of a message: what proves that the message is the culprit is another failure."""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import closing
from functools import partial

import pytest

import txpool
from tests.integration.outbox.conftest import Place
from tests.support.ports import free_ports
from txpool import DataSource, Outbox, PoolTimeout, TransactionInDoubt
from txpool.idempotency.outage import is_outage
from txpool.messages import MessageSession, ReceivedMessage, consumer
from txpool.outbox import Message as Sent
from txpool.resources.outbox import OutboxTable

Queue = Callable[..., MessageSession]


def tries(place: Place) -> list[int]:
    table = "txpool_spark.messages" if place.kind == "postgresql" else "txpool_messages"
    return [count for (count,) in place.sql("orders", f"select tries from {table} order by number")]


def unreachable(place: Place) -> DataSource:
    """The database `ledger`, at a port where nobody listens."""
    url = place._options["ledger"]["url"]
    head, _, tail = url.rpartition(":")
    return place.datasource("ledger", url=f"{head}:{free_ports(1)[0]}/{tail.partition('/')[2]}", pool_max_wait=5)


def cut(place: Place) -> None:
    """End the connection that works in `ledger`, from its server."""
    with closing(place.ledger.connect()) as connection:
        kill = "select pg_terminate_backend(pg_backend_pid())" if place.kind == "postgresql" else "kill connection_id()"
        connection.cursor().execute(kill)


def failures(place: Place) -> dict[str, Callable[[], object]]:
    """What fails without a fault of the message."""
    found: dict[str, Callable[[], object]] = {"no connection is free": lambda: raised(PoolTimeout("none is free"))}
    if place.kind != "sqlite":
        gone = unreachable(place)
        found |= {"nobody listens": gone.connect, "the connection is cut": lambda: cut(place)}
    if place.kind == "sqlite":

        def read_only() -> None:
            with place.plain("ledger") as connection:
                connection.execute("pragma query_only = 1")
                connection.execute("drop table applied")

        found["read only"] = read_only
    raises, codes = RAISES.get(place.kind, ("", {}))
    for why, code in codes.items():
        found[why] = partial(raised_by, place, raises.format(code))
    return found


#: By kind of database: a statement that raises an error by its number, and such errors.
RAISES = {
    "postgresql": (
        "do $$ begin raise exception 'c' using errcode = '{}'; end $$",
        {"a conflict": "40001", "a lock": "55P03", "read only": "25006"},
    ),
    "mariadb": (
        "signal sqlstate '45000' set mysql_errno = {}",
        {"read only": 1290, "read only there": 1836, "a full table": 1114, "no cluster": 1047, "was idle": 4031},
    ),
}


def raised_by(place: Place, statement: str) -> None:
    with closing(place.ledger.connect()) as connection:
        connection.cursor().execute(statement)


def raised(error: Exception) -> None:
    raise error


def test_no_message_is_parked_for_it(queue: Queue, place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.modules["txpool.messages.consumer"], "_LONGEST_WAIT", 0.01)
    for why, fails in failures(place).items():
        session, left, done = queue(queue=why.replace(" ", "_"), parking_after=1), [1, 2, 3, 4, 5, 6], list[str]()
        sent = [session.send(text) for text in ("one", "two")]

        def work(messages: list[ReceivedMessage], *, left: list[int] = left, fails: object = fails) -> None:
            if left:
                left.pop()
                fails()  # type: ignore[operator]
            done.extend(each.id for each in messages)

        consumer(session, max_messages=10, poll=0.1)(work).run(lambda: len(done) + session.parked()[0] >= len(sent))
        assert (why, done, session.parked()[0]) == (why, sent, 0)


def test_the_try_is_given_back(queue: Queue, place: Place) -> None:
    session = queue(parking_after=2)
    session.send("one")
    with pytest.raises(PoolTimeout):
        run_once(session, lambda: raised(PoolTimeout("none is free")))
    assert tries(place) == [0]
    assert run_once(session, lambda: None) == 1


def test_one_in_doubt_proves_nothing(queue: Queue, place: Place) -> None:
    session = queue(parking_after=1)
    session.send("one")
    asked: list[int] = []

    def doubt() -> None:
        asked.append(1)
        if len(asked) < 3:
            raise TransactionInDoubt("nobody knows", gtrid=None)

    assert run_once(session, doubt) == 1
    assert len(asked) == 3


def test_any_other_failure_counts(queue: Queue, place: Place) -> None:
    session = queue(parking_after=1)
    session.send("one")
    assert run_once(session, lambda: raised(ConnectionError("of a service that the message names"))) == 0
    assert session.parked()[0] == 1
    assert not is_outage(txpool.OperationalError("of whoever"))


@pytest.mark.parametrize("place", ["mariadb"], indirect=True)
@pytest.mark.parametrize("driver", ["pymysql", "mysqlclient"])
def test_a_statement_that_its_server_does_not_take_counts(
    queue: Queue, place: Place, driver: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server ends the session for it: that looked like an outage, and the message held up all others for ever."""
    monkeypatch.setattr(sys.modules["txpool.messages.consumer"], "_LONGEST_WAIT", 0.01)
    session, ledger, calls = queue(parking_after=1), place.datasource("ledger", driver=driver), list[int]()
    session.send("one")

    @consumer(session, poll=0.1)
    def work(_: list[ReceivedMessage]) -> None:
        calls.append(1)
        with closing(ledger.connect()) as connection:
            connection.cursor().execute("insert into applied values (1, %s)", [b"x" * 40_000_000])

    work.run(lambda: session.parked()[0] == 1 or len(calls) == 5)
    assert len(calls) == 1


def test_the_relay_of_an_outbox_counts_so(place: Place) -> None:
    outbox = Outbox(place.datasource("orders", outbox_attempts=1))
    for _, fails in failures(place).items():
        (sent,) = place.send("one", key="k")

        def deliver(_: object, fails: object = fails) -> None:
            fails()  # type: ignore[operator]

        assert outbox.relay(deliver).deliver_all() == 0
        assert outbox.state().parked == 0
        delivered: list[str] = []
        assert outbox.relay(lambda message: delivered.append(message.id)).deliver_all() == 1
        assert delivered == [sent]


def test_a_delivery_in_doubt_counts_so(place: Place) -> None:
    outbox = Outbox(place.datasource("orders", outbox_attempts=1))
    place.send("one", key="k")

    def doubt(_: object) -> None:
        raise TransactionInDoubt("nobody knows", gtrid=None)

    relay = outbox.relay(doubt)
    assert [relay.deliver_all() for _ in range(3)] == [0, 0, 0]
    assert (outbox.state().parked, outbox.state().waiting) == (0, 1)


def test_the_outboxs_own_outage_counts_so(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """What cannot be written at once is written before the next delivery begins."""
    outbox = Outbox(place.datasource("orders", outbox_attempts=1))
    (sent,) = place.send("one", key="k")
    delivered: list[str] = []

    def deliver(message: Sent) -> None:
        if not delivered:
            delivered.append("")
            raise PoolTimeout("none is free")
        delivered.append(message.id)

    relay = outbox.relay(deliver)
    with monkeypatch.context() as struck, pytest.raises(PoolTimeout, match="of the outbox"):
        struck.setattr(OutboxTable, "fail", lambda *_, **__: raised(PoolTimeout("of the outbox")))
        relay.deliver_all()
    assert relay.deliver_some() == 0
    relay._again.clear()
    assert relay.deliver_some() == 1
    assert (delivered, outbox.state().parked) == (["", sent], 0)


def run_once(session: MessageSession, work: Callable[[], object]) -> int:
    return consumer(session)(lambda _: work()).run(once=True)


@pytest.mark.parametrize("place", ["postgresql"], indirect=True)
def test_a_log_that_nobody_has_configured_counts_so(queue: Queue, place: Place) -> None:
    """As of a process that was started in another folder: else all that waits would be parked."""
    session = queue(parking_after=1)
    session.send("one")
    outbox = Outbox(place.datasource("orders", outbox_attempts=1))
    place.send("two")
    txpool.configure(node_name="tests")

    @consumer(session)
    def work(_: list[ReceivedMessage]) -> None:
        place.ledger.connect()

    with pytest.raises(txpool.ProgrammingError, match="two need a decision log"):
        work.run(once=True)
    assert (session.parked()[0], tries(place)) == (0, [0])
    assert outbox.relay(place.apply).deliver_all() == 0
    assert (outbox.state().waiting, outbox.state().parked) == (1, 0)
