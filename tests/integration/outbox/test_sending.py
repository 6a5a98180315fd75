"""What a transaction sends is there if it commits, whenever that is, and in the order of its key."""

from __future__ import annotations

import threading
from typing import Any

import pytest

import txpool
from tests.integration.outbox.conftest import Place
from tests.support.waiting import SECONDS, until
from txpool import DataSource, NotSupportedError, Outbox, ProgrammingError
from txpool.outbox import Message


def delivered(place: Place, outbox: Outbox | None = None) -> list[Message]:
    found: list[Message] = []
    (outbox or place.outbox).relay(found.append).deliver_all()
    return found


def test_a_message_commits_with_its_transaction(place: Place) -> None:
    with pytest.raises(LookupError), txpool.transaction():
        place.outbox.send("never")
        raise LookupError
    payloads = [bytes(range(256)), b"", "", "größer ☃ \U0001f600"]
    ids = place.send(*payloads)
    found = delivered(place)
    assert [(each.id, each.payload, each.key, each.attempt) for each in found] == [
        (id_, payload, None, 1) for id_, payload in zip(ids, payloads, strict=True)
    ]
    assert len(set(ids)) == 4
    assert (delivered(place), place.left()) == ([], 0)


def test_it_is_sent_within_a_transaction(place: Place) -> None:
    with pytest.raises(ProgrammingError, match=r"send\(\) to the outbox of orders outside a transaction"):
        place.outbox.send("x")
    payload: Any
    for payload, key in ((7, None), (None, None), ("x", ""), ("x", "\n"), ("x", "k" * 201)):
        with txpool.transaction(), pytest.raises(ProgrammingError, match="nothing was sent"):
            place.outbox.send(payload, key=key)
    assert place.left() == 0


def test_without_a_table(place: Place) -> None:
    for table in ("txpool_spark.outbox" if place.kind == "postgresql" else "txpool_outbox",):
        place.sql("orders", f"drop table {table}")
    outbox = Outbox(place.datasource("orders"))
    with pytest.raises(ProgrammingError, match="orders has no outbox, and nothing was done: make it once"):
        outbox.state()
    outbox.create()
    outbox.create()
    assert outbox.state().waiting == 0


def test_a_table_of_a_later_version_is_left_alone(place: Place) -> None:
    place.send("one")
    later = {
        "postgresql": "comment on table txpool_spark.outbox is 'txpool format 2'",
        "mariadb": "alter table txpool_outbox comment = 'txpool format 2'",
    }
    if place.kind == "sqlite":
        place.sql("orders", "drop table txpool_outbox")
        place.sql("orders", "create table txpool_outbox (/* txpool format 2 */ number integer)")
    else:
        place.sql("orders", later[place.kind])
    outbox = Outbox(place.datasource("orders"))
    with txpool.transaction(), pytest.raises(NotSupportedError, match="has txpool format 2"):
        outbox.send("two")


def test_who_commits_late_is_delivered_late(place: Place) -> None:
    """A relay that remembered how far it has come would lose that message."""
    if place.kind == "sqlite":
        pytest.skip("one transaction writes at a time")
    sent, go_on = threading.Event(), threading.Event()

    def late() -> None:
        with txpool.transaction():
            place.outbox.send("early number, late commit")
            sent.set()
            go_on.wait(SECONDS)

    thread = threading.Thread(target=late)
    thread.start()
    assert sent.wait(SECONDS)
    place.send("b")
    assert [each.payload for each in delivered(place)] == ["b"]
    go_on.set()
    thread.join()
    assert [each.payload for each in delivered(place)] == ["early number, late commit"]


def test_of_one_key_transactions_send_one_after_another(place: Place) -> None:
    if place.kind == "sqlite":
        pytest.skip("one transaction writes at a time")
    sent, go_on = threading.Event(), threading.Event()

    def first() -> None:
        with txpool.transaction():
            place.outbox.send("first", key="a")
            sent.set()
            go_on.wait(SECONDS)

    threads = [
        threading.Thread(target=first),
        threading.Thread(target=place.send, args=["second"], kwargs={"key": "a"}),
    ]
    threads[0].start()
    assert sent.wait(SECONDS)
    threads[1].start()
    until(lambda: int(place.sql("orders", place.waiting)[0][-1]) == 1)
    place.send("of another key", key="b")
    assert [each.payload for each in delivered(place)] == ["of another key"]
    go_on.set()
    for thread in threads:
        thread.join()
    assert [each.payload for each in delivered(place)] == ["first", "second"]


def test_a_lock_that_is_gone_is_an_error(place: Place) -> None:
    if place.kind == "sqlite":
        pytest.skip("it has no locks")
    place.sql(
        "orders", f"delete from {'txpool_spark.outbox_locks' if place.kind == 'postgresql' else 'txpool_outbox_locks'}"
    )
    with txpool.transaction(), pytest.raises(ProgrammingError, match="of the outbox is gone, and nothing was sent"):
        place.outbox.send("x", key="a")
    place.outbox.create()
    place.send("y", key="a")
    assert [each.payload for each in delivered(place)] == ["y"]


def test_a_datasource_that_joins_commits(place: Place) -> None:
    joining = place.datasource("orders", managed_commit="join")
    with txpool.transaction():
        Outbox(joining).send("kept", key="a")
    assert [each.payload for each in delivered(place)] == ["kept"]


def test_beside_data_in_another_database(place: Place) -> None:
    with txpool.transaction():
        place.outbox.send("with data", key="a")
        place.apply(Message("1", None, "data", 1))
    assert place.applied() == ["data"]
    with pytest.raises(LookupError), txpool.transaction():
        place.outbox.send("with nothing", key="a")
        place.apply(Message("2", None, "nothing", 1))
        raise LookupError
    assert ([each.payload for each in delivered(place)], place.applied()) == (["with data"], ["data"])


def test_a_database_without_an_outbox(tmp_path: Any) -> None:
    with (
        DataSource(
            name="h2", driver="jdbc", url=f"jdbc:h2:{tmp_path}/x", jdbc_driver_class="org.h2.Driver", mode="local"
        ) as source,
        pytest.raises(NotSupportedError, match=r"h2 .* has no outbox"),
    ):
        Outbox(source)
