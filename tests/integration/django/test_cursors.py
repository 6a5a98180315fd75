"""A cursor follows its alias: each statement is where one of a cursor that is opened now would be."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from django.core.cache import caches
from django.core.cache.backends.db import DatabaseCache
from django.core.management import call_command
from django.db import Error, connections, transaction
from django.test.utils import CaptureQueriesContext, override_settings

import txpool
from tests.integration.django.conftest import Shop

INSERT = "insert into shop_order (number) values (%s)"


@pytest.fixture(params=["default", "ledger"])
def alias(request: pytest.FixtureRequest) -> str:
    chosen: str = request.param
    return chosen


def test_into_a_transaction_and_out_of_it(shop: Shop, alias: str) -> None:
    with connections[alias].cursor() as cursor:
        cursor.execute(INSERT, [1])
        with transaction.atomic(alias):
            cursor.execute(INSERT, [2])
            assert shop.numbers(alias) == [1]
        with pytest.raises(ZeroDivisionError), transaction.atomic("two"):
            shop.add(3, "two")
            cursor.executemany(INSERT, [[3], [4]])
            raise ZeroDivisionError
        cursor.execute(INSERT, [5])
        assert shop.numbers(alias) == [1, 2, 5]
        assert shop.numbers("two") == []
        with txpool.transaction():
            cursor.execute("select count(*) from shop_order")
            assert cursor.fetchone() == (3,)


def test_into_a_block_whose_savepoint_is_not_open_yet(shop: Shop, alias: str) -> None:
    with connections[alias].cursor() as cursor, transaction.atomic("two"):
        shop.add(1, "two")
        with pytest.raises(ZeroDivisionError), transaction.atomic(alias):
            cursor.execute(INSERT, [1])
            raise ZeroDivisionError
        cursor.execute(INSERT, [2])
    assert (shop.numbers(alias), shop.numbers("two")) == ([2], [1])


def test_from_one_transaction_into_the_next(shop: Shop, alias: str) -> None:
    with transaction.atomic(alias):
        cursor = connections[alias].cursor()
        cursor.execute(INSERT, [1])
    with pytest.raises(ZeroDivisionError), transaction.atomic(alias):
        cursor.execute(INSERT, [2])
        raise ZeroDivisionError
    assert shop.numbers(alias) == [1]


def test_one_that_is_closed_stays_closed(shop: Shop, alias: str) -> None:
    cursor = connections[alias].cursor()
    kept = connections[alias].cursor()
    cursor.close()
    with transaction.atomic(alias), pytest.raises((Error, txpool.Error)):
        cursor.execute(INSERT, [1])
    connections[alias].close()
    with transaction.atomic(alias), pytest.raises((Error, txpool.Error)):
        kept.execute(INSERT, [1])
    assert shop.numbers(alias) == []


def test_what_else_sends_statements(shop: Shop) -> None:
    for debug in (False, True):
        connections["default"].force_debug_cursor = debug
        with connections["default"].cursor() as cursor, pytest.raises(ZeroDivisionError), transaction.atomic():
            with cursor.copy("copy shop_order (number) from stdin") as copy:
                copy.write_row([1])
            raise ZeroDivisionError
    connections["default"].force_debug_cursor = False
    with connections["ledger"].cursor() as ledger, transaction.atomic():
        ledger.execute(INSERT, [1])
    assert shop.all_numbers == [[], [], [1]]


def test_it_is_logged(shop: Shop, alias: str) -> None:
    connection = connections[alias]
    with CaptureQueriesContext(connection) as queries, connection.cursor() as cursor, transaction.atomic(alias):
        cursor.execute(INSERT, [1])
    assert [each["sql"].split()[0].upper() for each in queries] == ["BEGIN", "INSERT", "COMMIT"]


@pytest.fixture
def cache(shop: Shop, alias: str) -> Iterator[DatabaseCache]:
    class Router:
        def db_for_read(self, model: Any, **hints: Any) -> str:
            return alias

        db_for_write = db_for_read

        def allow_migrate(self, db: str, *args: Any, **hints: Any) -> bool:
            return db == alias

    backend = {
        "BACKEND": "django.core.cache.backends.db.DatabaseCache",
        "LOCATION": "kept",
        "OPTIONS": {"MAX_ENTRIES": 2},
    }
    with override_settings(CACHES={"default": backend}, DATABASE_ROUTERS=[Router()]):
        call_command("createcachetable", database=alias, verbosity=0)
        yield caches["default"]


def test_the_cache_in_a_database(shop: Shop, cache: Any, alias: str) -> None:
    """Outside of a transaction each of its calls is one; within, they are a part of it."""
    cache.set("a", 1)
    assert cache.get("a") == 1
    with pytest.raises(ZeroDivisionError), transaction.atomic("two"):
        shop.add(1, "two")
        cache.set("a", 2)
        cache.set("b", 2)
        assert cache.get("a") == 2
        raise ZeroDivisionError
    assert cache.get_many(["a", "b"]) == {"a": 1}
    with transaction.atomic():
        shop.add(2)
        assert cache.incr("a", 10) == 11
        assert cache.add("c", 3)
        assert cache.touch("c")
    cache.set("d", 4)
    cache.delete("c")
    assert cache.get("a") in (11, None)  # it may have been thrown out
    assert cache.get("d") == 4
    assert shop.all_numbers == [[2], [2], [2]]
