"""How long a transaction with Kafka may take: a broker ends what is prepared by itself after its own timeout."""

from __future__ import annotations

import time
from math import inf
from typing import TYPE_CHECKING

from txpool.errors import ProgrammingError
from txpool.tm.manager import get_manager

if TYPE_CHECKING:
    from txpool.tm.transaction import Transaction

#: The share of the broker's timeout within which a transaction is to be decided: recovery has the rest.
SHARE = 3


def most(longest: float) -> float:
    """The longest transaction, in seconds, if the broker ends a prepared one after so many."""
    return longest / SHARE


def limit(transaction: Transaction, name: str, longest: float) -> None:
    """Give a transaction that has no timeout one. ProgrammingError if it has a longer one.

    Whatever its timeout, it is not decided later than that from now on: recovery could come too late then.
    """
    if longest == inf:
        return
    seconds = most(longest)
    broker = f"its broker ends a prepared transaction by itself after {longest:g} s (transaction.max.timeout.ms)"
    if transaction.timeout == inf:
        get_manager().limit(transaction, seconds, f", a third of the broker's, which it has since {name} joined")
    elif transaction.timeout > seconds:
        raise ProgrammingError(
            f"{name} cannot join {transaction.gtrid}, whose timeout is {transaction.timeout:g} s: {broker}, and "
            f"recovery needs two thirds of that. Give it a timeout of at most {seconds:g} s, or none; or raise the "
            "broker's, or let this client use two-phase commit there. Nothing was sent"
        )
    before, earlier = time.monotonic() + seconds, transaction.decide_before
    transaction.decide_before = before if earlier is None else min(earlier, before)
