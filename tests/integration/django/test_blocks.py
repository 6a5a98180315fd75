"""What an alias does not do is refused by name, and what is left in the wrong order tears nothing."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest
from asgiref.sync import sync_to_async
from django.core.exceptions import ImproperlyConfigured, SynchronousOnlyOperation
from django.db import DatabaseError, close_old_connections, connections, transaction
from django.db.transaction import TransactionManagementError
from django.db.utils import NotSupportedError

import txpool
from tests.integration.django.conftest import Shop
from tests.support.forking import in_child

NONE: list[list[int]] = [[], [], []]


def test_a_durable_block_is_the_outermost_of_all_aliases(shop: Shop) -> None:
    with transaction.atomic(durable=True):
        shop.add(1)
        with pytest.raises(RuntimeError, match="A durable atomic block cannot be nested"):
            transaction.atomic("two", durable=True).__enter__()
    with txpool.transaction(), pytest.raises(RuntimeError, match=r"txpool.transaction\(\), has begun"):
        transaction.atomic(durable=True).__enter__()
    assert shop.all_numbers == [[1], [1], [1]]


def generate(shop: Shop, alias: str) -> Iterator[None]:
    with transaction.atomic(alias):
        shop.add(2, alias)
        yield
        shop.add(3, alias)


def test_a_block_that_is_open_at_the_end_rolls_back(shop: Shop) -> None:
    with pytest.raises(txpool.TransactionRolledBack, match="'two' has not been left"), transaction.atomic():
        shop.add(1)
        generator = generate(shop, "two")
        next(generator)
    assert shop.all_numbers == NONE
    # What goes on in it is not outside of the transaction.
    with pytest.raises(DatabaseError):
        next(generator)
    shop.add(4, "two")
    assert shop.all_numbers == [[], [4], []]


def test_a_block_that_outlives_its_transaction_is_no_success(shop: Shop) -> None:
    block = transaction.atomic("two")
    with pytest.raises(ZeroDivisionError), transaction.atomic():
        block.__enter__()
        shop.add(1, "two")
        raise ZeroDivisionError
    with pytest.raises(TransactionManagementError, match="has outlived"):
        block.__exit__(None, None, None)
    with transaction.atomic("two"):
        shop.add(2, "two")
    assert shop.all_numbers == [[], [2], []]


def test_an_abandoned_block_is_forgotten_between_requests(shop: Shop) -> None:
    block = transaction.atomic("two")
    with pytest.raises(ZeroDivisionError), transaction.atomic():
        block.__enter__()
        raise ZeroDivisionError
    close_old_connections()
    with transaction.atomic("two"):
        shop.add(1, "two")
    assert shop.numbers("two") == [1]


def test_a_generator_that_is_closed_rolls_back(shop: Shop) -> None:
    generator: Any = generate(shop, "default")
    next(generator)
    generator.close()
    with transaction.atomic():
        shop.add(1)
    assert shop.all_numbers == [[1], [1], [1]]


def test_blocks_of_an_exit_stack(shop: Shop) -> None:
    with pytest.raises(ZeroDivisionError), ExitStack() as stack:
        for alias in connections:
            stack.enter_context(transaction.atomic(alias))
        shop.add(1)
        raise ZeroDivisionError
    with ExitStack() as stack:
        for alias in connections:
            stack.enter_context(transaction.atomic(alias))
        shop.add(2)
    assert shop.all_numbers == [[2], [2], [2]]


@transaction.atomic
def decorated(shop: Shop, number: int) -> None:
    shop.add(number)
    if number < 0:
        raise ZeroDivisionError


def test_a_decorated_function(shop: Shop) -> None:
    decorated(shop, 1)
    with pytest.raises(ZeroDivisionError):
        decorated(shop, -1)
    assert shop.all_numbers == [[1], [1], [1]]


@pytest.mark.parametrize("alias", ["default", "two"])
def test_an_alias_that_is_closed_in_its_block_rolls_all_back(shop: Shop, alias: str) -> None:
    with pytest.raises(DatabaseError), transaction.atomic(), transaction.atomic("two"):
        shop.add(1)
        connections[alias].close()
        with pytest.raises(DatabaseError):
            shop.add(2, alias)
    assert shop.all_numbers == NONE
    with transaction.atomic(alias):
        shop.add(3, alias)
    assert shop.numbers(alias) == [3]


def test_connections_are_kept_in_a_transaction(shop: Shop) -> None:
    with transaction.atomic():
        shop.add(1, "two")
        connections["two"].close()
        assert shop.models[0].objects.using("two").get().number == 1
    assert shop.numbers("two") == [1]


def test_the_end_by_hand_is_refused(shop: Shop) -> None:
    two = connections["two"]
    with transaction.atomic():
        shop.add(1, "two")
        for end in (two.commit, two.rollback, lambda: two.set_autocommit(True), lambda: two.set_autocommit(False)):
            with pytest.raises(TransactionManagementError, match="alias 'two' in txp1"):
                end()
    assert shop.numbers("two") == [1]


def test_manual_management_is_of_one_database(shop: Shop) -> None:
    transaction.set_autocommit(False)
    try:
        shop.add(1, "default")
        with transaction.atomic("two"), pytest.raises(TransactionManagementError, match="work of its own"):
            shop.add(2, "default")
        transaction.rollback()
        shop.add(3, "default")
        transaction.commit()
    finally:
        transaction.set_autocommit(True)
    assert shop.all_numbers == [[3], [], []]


def test_an_alias_is_in_one_transaction_at_a_time(shop: Shop) -> None:
    @txpool.transactional(propagation="requires_new")
    def log(alias: str) -> None:
        shop.add(2, alias)

    with pytest.raises(ZeroDivisionError), transaction.atomic():
        shop.add(1, "default")
        log("two")
        with pytest.raises(TransactionManagementError, match="alias 'default' works in"):
            log("default")
        suspended = txpool.suspend()
        with pytest.raises(TransactionManagementError, match="no transaction is ambient here"):
            shop.add(3, "default")
        txpool.resume(suspended)
        raise ZeroDivisionError
    assert shop.all_numbers == [[], [2], []]


def test_savepoints_by_hand(shop: Shop) -> None:
    with transaction.atomic():
        shop.add(1, "two")
        sid = transaction.savepoint(using="two")
        shop.add(2, "two")
        transaction.savepoint_rollback(sid, using="two")
        shop.add(3, "two")
    assert shop.numbers("two") == [1, 3]


def test_a_timeout_is_the_error(shop: Shop) -> None:
    begun = txpool.transaction(timeout=0.2)
    with pytest.raises(txpool.TransactionTimeout), begun, transaction.atomic():
        connections["default"].cursor().execute("select pg_sleep(60)")
    shop.add(1)


def test_threads_have_transactions_of_their_own(shop: Shop) -> None:
    failures: list[BaseException] = []

    def run(number: int) -> None:
        try:
            for each in range(5):
                with transaction.atomic(), transaction.atomic("two"):
                    shop.add(10 * number + each, "default", "two")
        except BaseException as error:
            failures.append(error)
        finally:
            connections.close_all()

    threads = [threading.Thread(target=run, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert failures == []
    assert len(shop.numbers("default")) == 20
    assert shop.numbers("default") == shop.numbers("two")


def test_in_an_event_loop(shop: Shop) -> None:
    def place(number: int) -> None:
        with transaction.atomic():
            shop.add(number)

    async def main() -> None:
        await sync_to_async(place)(1)
        with pytest.raises(SynchronousOnlyOperation):
            shop.add(2)
        async with txpool.transaction():
            with pytest.raises(NotSupportedError, match="event loop"):
                await sync_to_async(place)(3)
        await sync_to_async(connections.close_all)()

    asyncio.run(main())
    assert shop.all_numbers == [[1], [1], [1]]


def test_rows_of_an_iterator_from_outside_end_where_a_transaction_begins(shop: Shop) -> None:
    for number in range(5):
        shop.add(number, "default")
    rows = shop.models[0].objects.iterator(chunk_size=2)
    next(rows)
    with transaction.atomic():
        shop.add(7, "default")
        with pytest.raises((DatabaseError, txpool.Error)):
            [*rows]
    assert 7 in shop.numbers("default")


def test_a_statement_that_failed_is_no_success(shop: Shop) -> None:
    with pytest.raises(DatabaseError) as raised, transaction.atomic():
        shop.add(1)
        with pytest.raises(DatabaseError):
            connections["two"].cursor().execute("select nothing")
    assert isinstance(raised.value, txpool.TransactionRolledBack)
    assert shop.all_numbers == NONE


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"USER": "app"}, "write it into the file of datasource one"),
        ({"OPTIONS": {"isolation_level": 1}}, "the file of datasource one"),
        ({"AUTOCOMMIT": False}, "use atomic"),
        ({"NAME": "nowhere.properties"}, "nowhere.properties"),
        ({"NAME": ""}, "name a datasource's file"),
    ],
)
def test_what_belongs_into_the_file_is_refused(shop: Shop, settings: dict[str, Any], says: str) -> None:
    from txpool.django.base import DatabaseWrapper

    given = {"ENGINE": "txpool.django", "NAME": str(shop.folder / "one.properties")} | settings
    settings = connections.configure_settings({"default": given})["default"]
    with pytest.raises(ImproperlyConfigured, match=says):
        DatabaseWrapper(settings)


def test_a_forked_child_leaves_the_parents_alone(shop: Shop) -> None:
    shop.models[0].objects.count()  # on a connection of the parent's, outside of any transaction

    def child() -> None:
        with transaction.atomic():
            shop.add(1)
        assert shop.numbers("two") == [1]

    in_child(child)
    with transaction.atomic():
        shop.add(2, "default")
        with pytest.raises(AssertionError, match="no transaction is ambient here"):
            in_child(shop.models[0].objects.count)
        shop.add(3, "default")
    assert shop.numbers() == [1, 2, 3]
