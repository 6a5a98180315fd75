"""Which failed call of a function is worth another attempt in a transaction of its own, and after what pause."""

from __future__ import annotations

import logging
import random
from collections.abc import Iterator
from typing import Final

from txpool.errors import HeuristicError, TransactionInDoubt, TransactionRolledBack, TransactionTimeout
from txpool.resource_managers import known
from txpool.tm.transaction import Status, Transaction

logger = logging.getLogger("txpool")

#: Seconds: the longest first pause, and what doubling it ends at.
FIRST_PAUSE: Final = 0.02
LONGEST_PAUSE: Final = 1.0

_NEVER = (TransactionInDoubt, HeuristicError, TransactionTimeout)


class RetryPolicy:
    """One call of a decorated function, which may be made several times."""

    __slots__ = ("_made", "_most", "_name", "begun")

    def __init__(self, name: str, most: int) -> None:
        self._name = name
        self._most = most
        self._made = 0
        #: The transaction that this attempt has begun; None where it has joined one.
        self.begun: Transaction | None = None

    def pause(self, error: Exception) -> float | None:
        """How long to wait before the next attempt, in seconds; None where there is none, and the error stands."""
        begun, self.begun = self.begun, None
        self._made += 1
        again = begun is not None and _worth_it(begun, error)
        if not again or self._made == self._most:
            if self._made > 1:
                error.add_note(f"{self._name}() was attempted {self._made} times, each in a transaction of its own")
            return None
        longest = min(FIRST_PAUSE * 2 ** (self._made - 1), LONGEST_PAUSE)
        pause = random.uniform(longest / 2, longest)  # noqa: S311 - so that two do not meet again and again
        logger.info(
            "%s was rolled back, and attempt %d of at most %d of %s() follows in %.3f s: %s: %s",
            begun.gtrid,  # type: ignore[union-attr]
            self._made + 1,
            self._most,
            self._name,
            pause,
            type(error).__name__,
            error,
        )
        return pause


def _worth_it(begun: Transaction, error: Exception) -> bool:
    """Whether all of it is known to be rolled back, everywhere, for a reason that may be gone next time."""
    if (
        begun.status is not Status.ROLLED_BACK
        or begun.unanswered
        or isinstance(begun.rollback_cause, TransactionTimeout)
    ):
        return False
    # What was being handled when it was raised counts as well: an inner transaction may be in doubt.
    if any(isinstance(each, _NEVER) for each in _chain(error, contexts=True)):
        return False
    at_its_end = isinstance(error, TransactionRolledBack)
    managers = known()
    return any(
        manager.is_transient(each, at_its_end=at_its_end)
        for each in _chain(error, contexts=False)
        for manager in managers
    )


def _chain(error: BaseException, *, contexts: bool) -> Iterator[BaseException]:
    """The error, and what it was raised from; with `contexts`, also what was being handled at each."""
    waiting: list[BaseException | None] = [error]
    seen: set[int] = set()
    while waiting:
        each = waiting.pop()
        if each is not None and id(each) not in seen:
            seen.add(id(each))
            yield each
            waiting += (each.__cause__, each.__context__) if contexts else (each.__cause__,)
