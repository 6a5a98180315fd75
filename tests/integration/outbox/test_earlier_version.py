"""A table of an earlier version gets its new columns by `create`; until then a relay says what to run, and sends go on.

Programs are brought up to date one after the other: none of them may fail for that, and none is to deliver twice.
"""

from __future__ import annotations

import pytest

import txpool
from tests.integration.outbox.conftest import Place
from txpool import Outbox, ProgrammingError
from txpool.outbox import Message
from txpool.resources import outbox as outboxes

TRACEPARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
#: The statements that the error names, in order.
ADDS = {
    "postgresql": [
        "alter table txpool_spark.outbox add column delivered_by pg_catalog.text;",
        "alter table txpool_spark.outbox add column traceparent pg_catalog.text;",
    ],
    "mariadb": [
        "alter table txpool_outbox add column delivered_by varchar(64) character set ascii;",
        "alter table txpool_outbox add column traceparent varchar(64) character set ascii;",
        "alter table txpool_outbox_locks add column turn bigint not null default 0;",
    ],
    "sqlite": [
        "alter table txpool_outbox add column delivered_by text;",
        "alter table txpool_outbox add column traceparent text;",
    ],
}


@pytest.mark.parametrize("by_hand", [True, False])
def test_a_table_without_a_column(place: Place, by_hand: bool) -> None:
    place.send("old", key="a")
    for add in ADDS[place.kind]:
        table, _, column, *_ = add.removeprefix("alter table ").replace(" add column", " add").split()
        place.sql("orders", f"alter table {table} drop column {column}")
    outbox, found, sent = Outbox(place.datasource("orders")), list[Message](), ["old"]
    relay = outbox.relay(found.append)
    for add in ADDS[place.kind]:
        for use in (outbox.state, relay.deliver_all):
            with pytest.raises(ProgrammingError, match="an earlier version") as raised:
                use()
            assert str(raised.value).endswith(f"as the table's owner: {add}")
        sent.append(_send(outbox))
        if not by_hand:
            break
        place.sql("orders", add)
    outbox.create()
    outbox.create()
    sent.append(_send(outbox))
    assert relay.deliver_all() == len(sent)
    assert [each.payload for each in found] == sent


def test_who_sends_says_once_what_to_run_and_sees_by_itself_that_it_was_run(
    place: Place, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    (number,) = (at for at, add in enumerate(ADDS[place.kind]) if "traceparent" in add)
    place.sql("orders", f"alter table {ADDS[place.kind][number].split()[2]} drop column traceparent")
    outbox = Outbox(place.datasource("orders"))
    for _ in range(2):
        _send(outbox)
    (record,) = (each for each in caplog.records if "an earlier version" in each.getMessage())
    assert record.getMessage().endswith(f"as the table's owner: {ADDS[place.kind][number]}")
    place.outbox.create()
    monkeypatch.setattr(outboxes, "_LOOK_AGAIN", 0)
    with txpool.transaction():
        place.outbox._table.send(place.orders, "traced", None, b"x", TRACEPARENT, is_text=True)
    found = list[Message]()
    assert outbox.relay(found.append).deliver_all() == 3
    assert [each.traceparent for each in found] == [None, None, TRACEPARENT]


def test_an_earlier_versions_relay_does_not_deliver_again_what_has_not_ended_everywhere(place: Place) -> None:
    """It knows nothing of `delivered_by`: it counts, and parks what has been tried too often."""
    place.send("one")
    table = place.outbox._table
    with txpool.transaction(), table.opened(place.orders) as cursor:
        (number,) = (each for each, *_ in table.window(cursor, 0, 1))
        assert table.set_delivered(cursor, number, 0, "txp1:n1:abcdefghijkl:1")
        row = table.read(cursor, number)
    assert row is not None
    assert row.attempts > 10**9
    with txpool.transaction(), table.opened(place.orders) as cursor:
        assert table.delete_delivered(cursor, number, "txp1:n1:abcdefghijkl:1")


def test_a_table_that_is_in_use(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever waits for the whole table holds up all others: so it is not awaited for long."""
    monkeypatch.setattr(outboxes, "_WAIT", 1)
    add = ADDS[place.kind][0]
    table, column = add.split()[2], add.split()[5]
    place.sql("orders", f"alter table {table} drop column {column}")
    with place.plain("orders") as other:
        cursor = other.cursor()
        cursor.execute("begin")
        cursor.execute(f"insert into {table} (id, payload, is_text) values ('x', '', 0)")
        with pytest.raises(txpool.OperationalError, match=r"(?i)lock") as raised:
            place.outbox.create()
        cursor.execute("rollback")
    assert raised.value.__notes__[0].endswith(f"As its owner, once no transaction uses it: {add}")
    place.outbox.create()


def _send(outbox: Outbox) -> str:
    with txpool.transaction():
        outbox.send("new", key="a")
    return "new"
