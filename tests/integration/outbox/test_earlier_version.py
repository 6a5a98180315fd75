"""A table of an earlier version gets its new columns by `create`; until then each use says what to run."""

from __future__ import annotations

import pytest

import txpool
from tests.integration.outbox.conftest import Place
from txpool import Outbox, ProgrammingError
from txpool.outbox import Message
from txpool.resources import outbox as outboxes

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
    outbox, found = Outbox(place.datasource("orders")), list[Message]()
    relay = outbox.relay(found.append)
    for add in ADDS[place.kind]:
        for use in (outbox.state, relay.deliver_all, lambda: _send(outbox)):
            with pytest.raises(ProgrammingError, match="an earlier version") as raised:
                use()
            assert str(raised.value).endswith(f"as the table's owner: {add}")
        if not by_hand:
            break
        place.sql("orders", add)
    outbox.create()
    outbox.create()
    _send(outbox)
    assert relay.deliver_all() == 2
    assert [each.payload for each in found] == ["old", "new"]


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


def _send(outbox: Outbox) -> None:
    with txpool.transaction():
        outbox.send("new", key="a")
