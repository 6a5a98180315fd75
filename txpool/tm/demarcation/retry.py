"""Which failed calls of a decorated function are attempted again, each in a transaction of its own, and how soon."""

from __future__ import annotations

import logging
import random
from typing import Final

from txpool.errors import HeuristicError, TransactionInDoubt, TransactionRolledBack, TransactionTimeout, chain
from txpool.resource_managers import known
from txpool.tm.completion.status import Status
from txpool.tm.transaction import Transaction

logger = logging.getLogger("txpool")

#: Seconds: the upper bound of the first pause, and what doubling it ends at.
FIRST_PAUSE: Final = 0.02
LONGEST_PAUSE: Final = 1.0

_NEVER_RETRIED = (TransactionInDoubt, HeuristicError, TransactionTimeout)


class RetryPolicy:
    """The attempts of one call of a decorated function."""

    __slots__ = ("_attempts", "_max_attempts", "_name", "begun")

    def __init__(self, name: str, attempts: int) -> None:
        self._name = name
        self._max_attempts = attempts
        self._attempts = 0
        #: The transaction that this attempt has begun; None if it has joined one.
        self.begun: Transaction | None = None

    def pause(self, error: Exception) -> float | None:
        """Seconds to wait before the next attempt; None if there is none, and the error must be raised."""
        begun, self.begun = self.begun, None
        self._attempts += 1
        again = begun is not None and _may_succeed(begun, error)
        if not again or self._attempts == self._max_attempts:
            if self._attempts > 1:
                error.add_note(f"{self._name}() was attempted {self._attempts} times, each in a transaction of its own")
            return None
        longest = doubled(FIRST_PAUSE, self._attempts - 1, LONGEST_PAUSE)
        pause = random.uniform(longest / 2, longest)  # noqa: S311 - so that two do not meet again and again
        logger.info(
            "%s was rolled back, and attempt %d of at most %d of %s() follows in %.3f s: %s: %s",
            begun.gtrid,  # type: ignore[union-attr]
            self._attempts + 1,
            self._max_attempts,
            self._name,
            pause,
            type(error).__name__,
            error,
        )
        return pause


def doubled(first: float, times: int, longest: float) -> float:
    """`first`, doubled so many times, and at most `longest`: also if the number would be too large for a float."""
    return min(longest, first * 2.0 ** min(times, 100))


def _may_succeed(begun: Transaction, error: Exception) -> bool:
    """Whether it is known to be rolled back in every database, for a reason that may be gone at the next attempt."""
    if (
        begun.status is not Status.ROLLED_BACK
        or begun.unanswered
        or isinstance(begun.rollback_cause, TransactionTimeout)
    ):
        return False
    if isinstance(error, ExceptionGroup):  # of tasks
        return all(_may_succeed(begun, each) for each in error.exceptions)
    # Also the errors that were being handled when it was raised: an inner transaction may be in doubt.
    if any(isinstance(each, _NEVER_RETRIED) for each in chain(error, contexts=True)):
        return False
    at_its_end = isinstance(error, TransactionRolledBack)
    managers = known()
    return any(
        manager.is_transient(each, at_its_end=at_its_end)
        for each in chain(error, contexts=False)
        for manager in managers
    )
