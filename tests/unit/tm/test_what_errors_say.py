"""What the errors of transactions say: the gtrid, the cause, what stays true, and what to do next."""

from __future__ import annotations

import pytest

import txpool
from txpool.resources.base import BranchOutcome
from txpool.tm.commit.request import Outcome, Result
from txpool.tm.completion.outcome import raise_outcome

GTRID = "txp1:tests:abcdefghijkl:1"


def test_work_in_a_transaction_that_can_only_roll_back_says_why() -> None:
    with pytest.raises(txpool.TransactionRolledBack), txpool.transaction() as tx:
        tx.set_rollback_only(ValueError("the customer has changed their mind"))
        with pytest.raises(txpool.ProgrammingError) as raised:
            tx.require_active()
    said = str(raised.value)
    assert said.startswith(f"{tx.gtrid} is marked rollback-only (ValueError: the customer has changed their mind)")
    assert "nothing was done" in said
    assert "or call rollback()" in said


def test_work_in_a_transaction_that_has_ended_says_how_it_ended() -> None:
    with txpool.transaction() as tx:
        pass
    with pytest.raises(txpool.ProgrammingError, match=rf"{tx.gtrid} has ended \(committed\), and nothing was done"):
        tx.require_active()


def test_a_rollback_names_its_transaction_and_what_recovery_has_still_to_do() -> None:
    result = Result(Outcome.ROLLED_BACK, GTRID)
    result.cause = txpool.TransactionRolledBack("datasource a: the connection was lost", datasource="a")
    result.branch_outcomes = {"a": BranchOutcome.ROLLED_BACK, "b": BranchOutcome.UNKNOWN}
    with pytest.raises(txpool.TransactionRolledBack) as raised:
        raise_outcome(result, wanted=Outcome.COMMITTED)
    assert str(raised.value).startswith(f"{GTRID}: datasource a: the connection was lost")
    assert "recovery will finish b" in str(raised.value)
    assert (raised.value.gtrid, raised.value.datasource) == (GTRID, "a")
