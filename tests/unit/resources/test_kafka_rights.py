"""A right that is missing is told as one, also if the broker refuses to end what it shows."""

from __future__ import annotations

import pytest

from txpool.resources.base import BranchOutcome
from txpool.resources.kafka.branch import _ended
from txpool.resources.kafka.records import Producer
from txpool.resources.kafka.requests import State
from txpool.resources.recovery_access import LackOfRight


@pytest.mark.parametrize("commit", [True, False])
def test_whoever_may_describe_a_transaction_and_not_write(commit: bool) -> None:
    producer = Producer("txp1:n1:abcdefghijkl:1:0:orders:L", 7, 0)
    found = State("Ongoing", producer, frozenset())
    for refused, lacks in (("TRANSACTIONAL_ID_AUTHORIZATION_FAILED", True), ("INVALID_TXN_STATE", False)):
        outcome, why = _ended(found, producer, refused, commit=commit)
        assert outcome is BranchOutcome.UNKNOWN
        assert refused in why
        assert isinstance(why, LackOfRight) is lacks
