"""A table of an earlier version gets its new column by `create`; until then the relay says what to run."""

from __future__ import annotations

import pytest

from tests.integration.outbox.conftest import Place
from txpool import Outbox, ProgrammingError
from txpool.outbox import Message

TABLES = {"postgresql": "txpool_spark.outbox", "mariadb": "txpool_outbox", "sqlite": "txpool_outbox"}


def test_a_table_without_a_column(place: Place) -> None:
    place.sql("orders", f"alter table {TABLES[place.kind]} drop column delivered_by")
    outbox, found = Outbox(place.datasource("orders")), list[Message]()
    place.send("old")
    relay = outbox.relay(found.append)
    with pytest.raises(ProgrammingError, match="earlier version") as raised:
        relay.deliver_all()
    statement = str(raised.value).rpartition("owner: ")[2]
    assert statement.startswith(f"alter table {TABLES[place.kind]} add column delivered_by ")
    assert (found, place.left()) == ([], 1)
    if place.kind == "sqlite":
        place.sql("orders", statement)
    else:
        outbox.create()
        outbox.create()
    assert relay.deliver_all() == 1
    assert [each.payload for each in found] == ["old"]


def test_create_and_the_statement_make_the_same(place: Place) -> None:
    """Whichever of the two is run, the other finds nothing to do."""
    place.sql("orders", f"alter table {TABLES[place.kind]} drop column delivered_by")
    found: list[Message] = []
    with pytest.raises(ProgrammingError) as raised:
        place.outbox.relay(found.append).deliver_all()
    if place.kind == "sqlite":
        place.outbox.create()
    else:
        place.sql("orders", str(raised.value).rpartition("owner: ")[2])
    place.outbox.create()
    place.send("new")
    assert place.outbox.relay(found.append).deliver_all() == 1
