"""Sessions with `driver = sql-queue` over PostgreSQL, MariaDB and SQLite."""

from __future__ import annotations

import asyncio
import gc
import math
import pickle
import sys
import threading
import time
import weakref
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, nullcontext
from pathlib import Path
from typing import Any

import pytest

import txpool
from tests.conftest import Databases
from tests.integration.outbox.conftest import Place
from tests.support.forking import in_child
from txpool import DataSource
from txpool.messages import MessageSession, ReceivedMessage
from txpool.outbox import Message as Sent
from txpool.resources.messages.tables import MessageTables, Outgoing, TopicPart, tables_of

Queue = Callable[..., MessageSession]


def texts(messages: list[ReceivedMessage]) -> list[str]:
    return [each.text for each in messages]


def drained(session: MessageSession) -> list[str]:
    with txpool.transaction():
        return texts(session.receive(100))


def test_a_message_comes_as_it_was_sent_and_once(queue: Queue) -> None:
    session = queue()
    sent = session.send("one € \0", key="k", headers={"h": "x\0€"})
    session.send(value=b"\x00\xff")
    session.send(body=None, delay=False)
    for each in (bytearray(b"\x00"), memoryview(b"x\x01")[1:]):
        session.send(each)
    with txpool.transaction():
        first, second, third, *others = session.receive(10)
    assert third.body is None
    assert [each.body for each in others] == [b"\x00", b"\x01"]
    assert (first.id, first.text, first.key, dict(first.headers)) == (sent, "one € \0", "k", {"h": "x\0€"})
    assert second.value == b"\x00\xff"
    assert second.key is None
    assert first.time > 1.7e9
    assert drained(session) == []


def test_in_an_event_loop_a_thread_calls_it(queue: Queue) -> None:
    """It is a part of the task's transaction."""
    session = queue()
    session.send("one")

    async def work(*, fails: bool) -> list[str]:
        async with txpool.transaction():
            found = await asyncio.to_thread(session.receive, 10, 1)
            await asyncio.to_thread(session.send, "two", key="k")
            if fails:
                raise KeyError
        return texts(found)

    with pytest.raises(KeyError):
        asyncio.run(work(fails=True))
    assert asyncio.run(work(fails=False)) == ["one"]
    assert drained(session) == ["two"]


@pytest.mark.parametrize(
    "arguments",
    [
        {},
        {"key": "x"},
        {"body": "x", "value": "x"},
        {"value": 1},
        {"body": "\ud800"},
        {"body": "x", "key": "\ud800"},
        {"body": "x", "headers": [("a", "1"), ("a", "2")]},
        {"body": "x", "headers": 1},
        {"body": "x", "headers": {"a": None}},
    ],
)
def test_arguments_that_are_none(arguments: Any, queue: Queue) -> None:
    session = queue()
    for block in (nullcontext(), txpool.transaction()):
        with block, pytest.raises(txpool.ProgrammingError, match="nothing was sent"):
            session.send(**arguments)
    assert drained(session) == []


def test_numbers_that_are_none(queue: Queue) -> None:
    session = queue()
    session.send("one")
    cases: list[Any] = [(0,), (-1,), ("1",), (None,), (1, None), (1, "1"), (1, math.nan)]
    for arguments in cases:
        with txpool.transaction() as ambient, pytest.raises(txpool.ProgrammingError, match="from 1 on"):
            session.receive(*arguments)
        assert ambient.rollback_cause is None
        names = ("max_messages", "poll")
        with pytest.raises(txpool.ProgrammingError, match="from 1 on"):
            txpool.consumer(session, **dict(zip(names, arguments, strict=False)))(print)
    assert drained(session) == ["one"]


@pytest.mark.parametrize("headers", ["", "{", "[]", "null", '{"h": 1}', "[" * 100_000])
def test_a_row_with_headers_that_are_none_is_received_like_others(headers: str, place: Place, queue: Queue) -> None:
    """Whoever may insert rows may send; a row of theirs does not stop the queue."""
    session = queue()
    session.send("one")
    session.send("two")
    table = {"postgresql": "txpool_spark.messages"}.get(place.kind, "txpool_messages")
    (first,) = place.sql("orders", f"select min(number) from {table}")
    place.sql("orders", f"update {table} set headers = '{headers}' where number = {first[0]}")
    with txpool.transaction():
        one, two = session.receive(10)
    assert (one.text, dict(one.headers)) == ("one", {"txpool-headers": headers})
    assert (two.text, dict(two.headers)) == ("two", {})


def test_what_rolls_back_is_neither_sent_nor_taken(queue: Queue) -> None:
    session = queue()
    session.send("one")
    with pytest.raises(KeyError), txpool.transaction():
        assert texts(session.receive(10)) == ["one"]
        session.send("two")
        assert session.receive(10) == []  # it is sent at the commit
        raise KeyError
    assert drained(session) == ["one"]


def test_another_session_of_the_queue_receives_nothing_of_the_transaction_either(queue: Queue) -> None:
    one, other = queue(), queue()
    with txpool.transaction():
        one.send("one")
        assert other.receive(10) == []
    assert drained(other) == ["one"]


def test_a_receive_outside_a_transaction_is_refused_and_a_send_is_sent(queue: Queue) -> None:
    session = queue()
    session.send("one")
    with pytest.raises(txpool.ProgrammingError, match="outside a transaction, and nothing was received"):
        session.receive()
    with pytest.raises(txpool.ProgrammingError, match="json"):
        session.send({"a": 1})  # type: ignore[arg-type]
    assert drained(session) == ["one"]


def test_a_child_that_was_forked_within_a_transaction_sends_within_one_of_its_own(queue: Queue) -> None:
    session = queue()

    def child() -> None:
        with ThreadPoolExecutor(1) as threads:
            for send in (session.send, lambda body: threads.submit(session.send, body).result(60)):
                with pytest.raises(txpool.ProgrammingError, match=f"forked within {ambient.gtrid}"):
                    send("child")
        with txpool.transaction():
            session.send("the child's own")

    with txpool.transaction() as ambient:
        in_child(child)  # first, since in SQLite one transaction writes at a time
        session.send("the parent's")
    in_child(lambda: session.send("outside"))
    assert drained(session) == ["the child's own", "the parent's", "outside"]


def test_one_transaction_with_another_database(place: Place, queue: Queue) -> None:
    session = queue()
    with txpool.transaction():
        session.send("one")
        place.apply(Sent("1", None, "", 1))
    with pytest.raises(KeyError), txpool.transaction():
        place.apply(Sent("1", None, "never", 1))
        assert texts(session.receive()) == ["one"]
        raise KeyError
    with txpool.transaction():
        place.apply(Sent("2", None, session.receive()[0].text, 1))
    assert place.applied() == ["", "one"]
    assert drained(session) == []


def test_a_delay(queue: Queue) -> None:
    session = queue()
    session.send("late", delay=0.4)
    session.send("now")
    assert drained(session) == ["now"]
    with txpool.transaction():
        assert texts(session.receive(timeout=30)) == ["late"]


def test_the_hour_that_comes_twice_is_no_delay(place: Place) -> None:
    """Local time does not say which of both it is: what was sent in the first one would wait until the second."""
    if place.kind != "mariadb":
        pytest.skip("its clock has no zone")
    ends, zone = 1_793_000_000, 990  # summer time, and the number of a zone of this test's
    with place.plain("orders") as connection:
        cursor = connection.cursor()
        for table, row in (
            ("time_zone", "'N'"),
            ("time_zone_transition", "0, 0"),
            ("time_zone_transition", f"{ends}, 1"),
            ("time_zone_transition_type", "0, 7200, 1, 'S'"),
            ("time_zone_transition_type", "1, 3600, 0, 'W'"),
        ):
            cursor.execute(f"insert ignore into mysql.{table} values ({zone}, {row})")
        cursor.execute(f"insert ignore into mysql.time_zone_name values ('Test/Autumn', {zone})")
        cursor.execute("set time_zone = 'Test/Autumn'")
        found = []
        for moment in (ends - 1800, ends + 1800):
            cursor.execute(f"set timestamp = {moment}.25")
            cursor.execute(f"select {tables_of(place.orders).now}")
            found.append(cursor.fetchone()[0] - ends)
    assert found == [-1799.75, 1800.25]


@pytest.mark.parametrize("delay", [float("nan"), float("inf"), 1e300, -1, "1"])
def test_no_delay(queue: Queue, delay: Any) -> None:
    session = queue()
    with pytest.raises(txpool.ProgrammingError, match="number of seconds"):
        session.send("never", delay=delay)


def test_a_receive_that_waits_needs_no_second_connection(
    place: Place, queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    if place.kind == "mariadb":
        pytest.skip("it looks over a second connection")
    source = place.datasource("orders", pool_max_size=1, pool_max_wait=0.1)
    monkeypatch.setattr(session := queue(), "_datasource", source)
    with txpool.transaction():
        assert session.receive(timeout=0.2) == []
        session.send("one")


def test_receive_waits_for_what_another_sends_meanwhile(queue: Queue, place: Place) -> None:
    if place.kind == "sqlite":
        pytest.skip("a transaction of SQLite that has begun keeps others from writing")
    session = queue()
    sender = threading.Timer(0.2, session.send, ["one"])
    with txpool.transaction():
        place.orders.connect().cursor().execute("select 1")
        assert session.receive() == []
        sender.start()
        assert texts(session.receive(10, timeout=30)) == ["one"]
    sender.join()


def test_two_consumers_never_have_the_same_message(queue: Queue, place: Place) -> None:
    if place.kind == "sqlite":
        pytest.skip("one transaction writes at a time")
    session = queue()
    for each in "abcd":
        session.send(each)
    with txpool.transaction():
        assert texts(session.receive(2)) == ["a", "b"]
        other = in_thread(lambda: drained(session))
        assert other == ["c", "d"]
    assert drained(session) == []


def test_who_receives_waits_for_no_row_of_others(queue: Queue, place: Place) -> None:
    """Few rows of few are named: a plan that reads them all would lock those of others, or wait for them."""
    if place.kind == "sqlite":
        pytest.skip("one transaction writes at a time")
    session, ordered = queue(), queue(queue="ordered", queue_ordered="true")
    for number in range(20):
        session.send(str(number))
    for key in "abcd":
        ordered.send(key, key=key)
    with txpool.transaction():
        assert texts(session.receive(1)) == ["0"]
        assert texts(ordered.receive(1)) == ["a"]
        assert in_thread(lambda: drained(session)) == [str(number) for number in range(1, 20)]
        assert in_thread(lambda: drained(ordered)) == ["b", "c", "d"]


def test_once_ends_if_others_have_what_there_is(queue: Queue, place: Place) -> None:
    if place.kind == "sqlite":
        pytest.skip("one transaction writes at a time")
    session = queue()
    session.send("one")
    deadline = time.monotonic() + 600

    def run() -> list[str]:
        done = txpool.consumer(session)(lambda _: None).run(lambda: time.monotonic() > deadline, once=True)
        return [f"{done} done"]

    with txpool.transaction():
        assert texts(session.receive()) == ["one"]
        assert in_thread(run) == ["0 done"]
        assert time.monotonic() < deadline


def test_of_one_key_one_transaction_receives_and_in_order(queue: Queue, place: Place) -> None:
    if place.kind == "sqlite":
        pytest.skip("one transaction writes at a time")
    session = queue(queue_ordered="true")
    for text, key in (("a1", "a"), ("a2", "a"), ("b1", "b"), ("x", None)):
        session.send(text, key=key)
    with txpool.transaction():
        assert texts(session.receive(1)) == ["a1"]
        assert in_thread(lambda: drained(session)) == ["b1", "x"]
    assert drained(session) == ["a2"]


def test_what_others_take_meanwhile_changes_no_key_s_order(
    queue: Queue, place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They have committed between the look at the first rows and the lock of their key; there are more rows behind."""
    if place.kind == "sqlite":
        pytest.skip("one transaction writes at a time")
    monkeypatch.setattr("txpool.resources.messages.tables.WINDOW", 6)
    session = queue(queue_ordered="true")
    for number in range(9):
        session.send(str(number), key="a")
    hold, others = MessageTables.hold_key, [2, 1]

    def held(tables: MessageTables, cursor: Any, key: str) -> bool:
        if others:
            most = others.pop()

            def take() -> None:
                with txpool.transaction():
                    session.receive(most)

            in_thread(take)
        return hold(tables, cursor, key)

    monkeypatch.setattr(MessageTables, "hold_key", held)
    with txpool.transaction():
        assert texts(session.receive(1)) == ["3"]
    assert drained(session) == list("45678")


def test_behind_very_many_delayed_messages_others_are_found_and_keys_keep_their_order(queue: Queue) -> None:
    session, ordered = queue(), queue(queue="ordered", queue_ordered="true")
    with txpool.transaction():
        for number in range(1001):
            session.send("late", delay=3600)
            ordered.send("late", key="a" if number == 0 else f"{number}", delay=3600)
    session.send("now")
    ordered.send("behind", key="a")
    ordered.send("now", key="b")
    done: list[str] = []
    for each in (session, ordered):
        assert each.wait(0)
        assert txpool.consumer(each)(lambda messages: done.extend(texts(messages))).run(once=True) == 1
        assert done.pop() == "now"
    with txpool.transaction() as ambient:
        ambient.may_be_empty = True
        assert ordered.receive(10) == []


def test_very_many_messages_are_received_together(queue: Queue) -> None:
    session = queue()
    with txpool.transaction():
        for number in range(1100):
            session.send(str(number))
    with txpool.transaction():
        assert texts(session.receive(5000)) == [str(number) for number in range(1100)]
    assert drained(session) == []


def test_who_ignores_an_error_of_receive_takes_nothing(queue: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    session = queue()
    session.send("one")
    delete = MessageTables.delete
    with pytest.raises(txpool.TransactionRolledBack), txpool.transaction():
        monkeypatch.setattr(MessageTables, "delete", lambda *given: delete(*given) - 1)
        with pytest.raises(txpool.OperationalError, match="are gone"):
            session.receive()
    monkeypatch.undo()
    assert drained(session) == ["one"]


def test_a_failed_batch_is_done_one_by_one_and_the_culprit_is_parked(queue: Queue) -> None:
    session = queue(parking_after=1)
    for number in range(5):
        session.send(str(number))
    done: list[list[str]] = []

    @txpool.consumer(session, max_messages=3)
    def work(messages: list[ReceivedMessage]) -> None:
        if "3" in texts(messages):
            raise ValueError("bad\0 " + "x" * 5000)
        done.append(texts(messages))

    assert work.run(once=True) == 4
    assert sum(done, []) == ["0", "1", "2", "4"]  # noqa: RUF017
    assert session.parked()[0] == 1
    parked = queue(queue=session.parking)
    assert drained(parked) == ["3"]


def test_a_batch_is_one_transaction_once_the_first_messages_went_well(queue: Queue) -> None:
    session = queue()
    done: list[int] = []
    work = txpool.consumer(session, max_messages=2)(lambda messages: done.append(len(messages)))
    for number in range(6):
        session.send(str(number))
    assert work.run(once=True) == 6
    assert done == [1, 1, 2, 2]


def test_tries_count_also_if_none_has_ended(queue: Queue, place: Place) -> None:
    session, found = queue(parking_after=2), list[int]()
    session.send("kills")
    for _ in range(2):
        with pytest.raises(SystemExit), txpool.transaction():
            message = session.take_one()
            assert message is not None
            with session.counting(message) as beside:
                found.append(beside)
            raise SystemExit
    assert found == [0, 1]
    assert txpool.consumer(session)(lambda _: None).run(once=True) == 0
    assert session.parked()[0] == 1
    assert open_tries(place) == []


@pytest.mark.parametrize("consumers", [1, 2])
def test_a_commit_that_fails_is_a_try(queue: Queue, monkeypatch: pytest.MonkeyPatch, consumers: int) -> None:
    """As the page says: each other consumer may make one more, between that commit and the writing of its try."""
    monkeypatch.setattr(sys.modules["txpool.messages.consumer"], "_LONGEST_WAIT", 0.01)
    first, other = (queue(name=name, parking="parked", parking_after=2) for name in ("first", "other"))
    tried = list[str]()

    def refuse(messages: list[ReceivedMessage]) -> None:
        tried.extend(texts(messages))
        txpool.current().before_completion(lambda: 1 / 0)  # type: ignore[union-attr]

    park = first.park

    def late(*arguments: Any) -> str:
        txpool.consumer(other)(refuse).run(once=True)
        return park(*arguments)

    if consumers == 2:
        monkeypatch.setattr(first, "park", late)
    first.send("bad")
    assert txpool.consumer(first)(refuse).run(lambda: first.parked()[0] == 1) == 0
    assert len(tried) == 2 + consumers - 1


def test_a_consumer_of_what_is_parked_tries_it(queue: Queue) -> None:
    session, done = queue(parking_after=1), list[str]()
    session.send("one")
    assert txpool.consumer(session)(lambda _: 1 / 0).run(once=True) == 0
    parked = queue(queue=session.parking, parking_after=1)
    assert txpool.consumer(parked)(lambda messages: done.extend(texts(messages))).run(once=True) == 1
    assert done == ["one"]


def test_no_queue_parks_in_itself(queue: Queue) -> None:
    with pytest.raises(txpool.ConfigurationError, match="leads back"):
        queue(parking="orders")


def test_no_other_consumer_parks_what_was_counted(queue: Queue, place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """However long its own consumer takes from there to the function, and within that."""
    if place.kind == "sqlite":
        pytest.skip("one transaction writes at a time")
    session, done, others = queue(parking_after=1), list[str](), list[list[str]]()
    session.send("one")
    execute, first = type(tables_of(place.orders))._execute, threading.current_thread()
    counted: list[bool] = []

    def look() -> None:
        if not others:
            others.append([])
            run = txpool.consumer(session)(lambda messages: done.extend(texts(messages))).run
            others[0] = in_thread(lambda: [str(run(once=True))])

    def stalled(tables: MessageTables, cursor: Any, statement: str, values: list[Any]) -> Any:
        if threading.current_thread() is first:
            if counted:
                look()
            elif "tries = tries + 1" in statement or "insert into {tries}" in statement:
                counted.append(True)
        return execute(tables, cursor, statement, values)

    monkeypatch.setattr(MessageTables, "_execute", stalled)

    def work(messages: list[ReceivedMessage]) -> None:
        look()
        done.extend(texts(messages))

    assert txpool.consumer(session)(work).run(once=True) == 1
    assert (done, others, session.parked()[0]) == (["one"], [["0"]], 0)


def test_a_position_that_a_transaction_holds_is_held_by_no_other(queue: Queue, place: Place) -> None:
    """So a second consumer in a partition neither tries nor parks what the first one is at work with."""
    if place.kind == "sqlite":
        pytest.skip("one transaction writes at a time")
    tables, part = tables_of(place.orders), TopicPart("shop", "orders", 0)

    def held() -> tuple[int, int] | None:
        with closing(place.orders.connect()) as connection:
            return tables.position(connection.cursor(), part, hold=True)

    with txpool.transaction(), closing(place.orders.connect()) as connection:
        tables.start(connection.cursor(), part, 7)
    with txpool.transaction():
        assert held() == (7, 0)
        assert in_thread(lambda: [str(held())]) == ["None"]


def test_a_consumer_is_run_by_one_thread(queue: Queue) -> None:
    """What it knows of its tries is of one run: a second one would take them for its own."""
    session = queue()
    session.send("one")
    seen: list[str] = []

    @txpool.consumer(session)
    def work(_: list[ReceivedMessage]) -> None:
        if not seen:
            seen.append("")

            def second() -> list[str]:
                with pytest.raises(txpool.ProgrammingError, match="run by another thread"):
                    work.run(once=True)
                return ["refused"]

            seen.extend(in_thread(second))

    assert work.run(once=True) == 1
    assert seen[1:] == ["refused"]
    session.send("two")
    assert work.run(once=True) == 1


def test_what_ends_the_process_is_logged(queue: Queue, caplog: pytest.LogCaptureFixture) -> None:
    session = queue()
    session.send("one")

    @txpool.consumer(session)
    def work(_: list[ReceivedMessage]) -> None:
        raise SystemExit("no more")

    with pytest.raises(SystemExit):
        work.run(once=True)
    assert "the consumer's function ends the process: SystemExit: no more" in caplog.text
    assert drained(session) == ["one"]


def test_a_try_that_was_interrupted_does_not_count(queue: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever stops a consumer says nothing against the message that it has."""
    session, done = queue(parking_after=1), list[str]()
    session.send("one")

    def stopped(*_: object) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        txpool.consumer(session)(stopped).run(once=True)
    begin_try = MessageTables.begin_try
    with monkeypatch.context() as interrupted, pytest.raises(KeyboardInterrupt):
        interrupted.setattr(MessageTables, "begin_try", lambda *given: stopped(begin_try(*given)))
        txpool.consumer(session)(stopped).run(once=True)
    assert txpool.consumer(session)(lambda messages: done.extend(texts(messages))).run(once=True) == 1
    assert (done, session.parked()[0]) == (["one"], 0)


@pytest.mark.parametrize("error", [txpool.HeuristicMixed, txpool.HeuristicHazard])
def test_what_was_done_in_part_is_never_done_again(queue: Queue, error: type[Exception]) -> None:
    session = queue()
    session.send("one")

    def work(_: list[ReceivedMessage]) -> None:
        raise error("torn")

    assert txpool.consumer(session)(work).run(once=True) == 0
    assert drained(session) == []
    assert session.parked()[0] == 1


def test_a_deleted_row_is_said(queue: Queue, place: Place) -> None:
    session = queue()
    session.send("one")
    table = {"postgresql": "txpool_spark.messages"}.get(place.kind, "txpool_messages")
    with pytest.raises(KeyError), txpool.transaction():
        message = session.take_one()
        raise KeyError
    assert message is not None
    place.sql("orders", f"delete from {table}")
    assert not session.park(message, "bad")


def test_a_session_that_is_closed_is_not_kept(place: Place, queue: Queue) -> None:
    session = weakref.ref(queue())
    place.opened.pop().close()
    gc.collect()
    assert session() is None


def test_a_session_travels_to_spark_s_tasks_as_its_source_does(queue: Queue) -> None:
    session = queue()
    for copy in (pickle.loads(pickle.dumps(session)), pickle.loads(pickle.dumps([session]))[0]):
        copy.send("one")
        copy.close()
    assert drained(session) == ["one", "one"]


def test_an_id_of_another_broker_is_kept_whole(queue: Queue, place: Place) -> None:
    session = queue()
    sent = Outgoing("i" * 300, b"", None, {}, 0)
    with txpool.transaction(), closing(place.orders.connect()) as connection:
        tables_of(place.orders).insert(connection.cursor(), "orders", sent, "bad")
    with txpool.transaction():
        assert session.receive()[0].id == "i" * 300


def test_tables_of_a_former_version_get_what_they_lack(queue: Queue, place: Place) -> None:
    """What that has counted stands in the messages' own rows."""
    session = queue(parking_after=3)
    session.send("one")
    schema = {"postgresql": "txpool_spark."}.get(place.kind, "txpool_")
    if place.kind != "sqlite":  # which has it in a file of its own
        place.sql("orders", f"drop table {schema}message_tries")
    place.sql("orders", f"update {schema}messages set tries = 2")
    tables_of(place.orders)._checked.clear()
    tries: list[int] = []

    def work(messages: list[ReceivedMessage]) -> None:
        tries.append(messages[0].tries)
        raise ValueError

    assert txpool.consumer(session)(work).run(once=True) == 0
    assert (tries, session.parked()[0]) == ([2], 1)


def test_a_role_that_may_create_nothing_uses_what_is_there_unless_a_stranger_has_a_trigger(
    databases: Databases, tmp_path: Path
) -> None:
    password = databases.server.password
    maker = DataSource(name="maker", driver="psycopg", url=databases.url("one"), password=password)
    url = databases.url("one").replace("txpool@", "guest@")
    guests = [DataSource(name=f"guest{n}", driver="psycopg", url=url, password="guest") for n in range(2)]
    tables = tables_of(maker)
    try:
        tables.ensure(maker)
        databases.execute(
            "one",
            "drop role if exists guest; create role guest login password 'guest'; "
            "grant usage on schema txpool_spark to guest; grant all on all tables in schema txpool_spark to guest",
        )
        tables.ensure(guests[0])
        with closing(guests[0].connect()) as connection:
            assert tables.state(connection.cursor(), "orders") == (0, None)
        databases.execute(
            "one",
            "drop role if exists stranger; create role stranger; create schema stranger authorization stranger; "
            "create function stranger.steal() returns trigger language plpgsql as 'begin return new; end'; "
            "alter function stranger.steal() owner to stranger; "
            "create trigger steal before insert on txpool_spark.messages for each row "
            "execute function stranger.steal()",
        )
        with pytest.raises(txpool.OperationalError, match="trigger steal"):
            tables.ensure(guests[1])
    finally:
        for each in (maker, *guests):
            each.close()
        databases.execute(
            "one",
            "drop schema if exists txpool_spark cascade; drop schema if exists stranger cascade; "
            "drop owned by guest; drop role guest; drop role if exists stranger",
        )


def test_no_session(place: Place, tmp_path: Path) -> None:
    with pytest.raises(txpool.NotSupportedError, match="has no messages"):
        txpool.session(place.orders)
    file = tmp_path / "bad.properties"
    file.write_text("driver = sql-queue\nqueue = q\n")
    with pytest.raises(txpool.ConfigurationError, match=r"queue\.datasource is missing"):
        txpool.session(file)


def open_tries(place: Place) -> list[tuple[str, int]]:
    """By message, how many tries have begun, and not ended."""
    with tables_of(place.orders).apart(place.orders) as cursor:
        table = tables_of(place.orders).names(cursor)["tries"]
        cursor.execute(f"select message, tries from {table}")
        return [*cursor.fetchall()]


def in_thread(work: Callable[[], list[str]]) -> list[str]:
    found: list[list[str]] = []
    thread = threading.Thread(target=lambda: found.append(work()))
    thread.start()
    thread.join(60)
    return found[0]
