"""once(): a key that comes again is told, for as long as its row is kept."""

from __future__ import annotations

import pytest

import txpool
from tests.integration.outbox.conftest import Place
from txpool import ProgrammingError

TABLES = {"postgresql": "txpool_spark.writes"}
AGO = {
    "postgresql": "now() - interval '1 day'",
    "mariadb": "current_timestamp(6) - interval 1 day",
    "sqlite": "datetime('now', '-1 day')",
}


def kept(place: Place) -> list[str]:
    rows = place.sql("ledger", f"select transaction_id, target from {TABLES.get(place.kind, 'txpool_spark_writes')}")
    text = [tuple(each.decode() if isinstance(each, bytes) else each for each in row) for row in rows]
    assert {target for _, target in text} <= {"once()"}
    return sorted(key for key, _ in text)


def test_a_key_that_comes_again(place: Place) -> None:
    with pytest.raises(LookupError), txpool.transaction():
        assert txpool.once("m1", place.ledger)
        raise LookupError
    for first in (True, False):
        with txpool.transaction():
            assert txpool.once("m1", place.ledger) is first
            assert txpool.once("m1", place.ledger) is False
    with txpool.transaction():
        assert txpool.once("m2", place.ledger)
    assert kept(place) == ["m1", "m2"]


def test_it_needs_a_transaction_and_a_key(place: Place) -> None:
    with pytest.raises(ProgrammingError, match=r"once\(\) outside a transaction"):
        txpool.once("m1", place.ledger)
    with txpool.transaction(), pytest.raises(ProgrammingError):
        txpool.once("", place.ledger)


def test_old_keys_are_deleted_if_that_is_configured(place: Place) -> None:
    with txpool.transaction():
        txpool.once("old", place.ledger)
    place.sql("ledger", f"update {TABLES.get(place.kind, 'txpool_spark_writes')} set made_at = {AGO[place.kind]}")
    for hours, left in (("none", ["none", "old"]), ("48h", ["48h", "none", "old"]), ("23h", ["23h", "48h", "none"])):
        source = place.datasource("ledger", once_keep=hours)
        with txpool.transaction():
            assert txpool.once(hours, source)
        assert kept(place) == left
