"""The life of a transaction for other code: transaction-scoped values, and observers of its phases."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, Literal, TypeVar
from weakref import ref

from txpool.errors import ProgrammingError
from txpool.tm.ambient import current
from txpool.tm.completion.status import Status
from txpool.tm.manager import observers
from txpool.tm.transaction import Transaction

T = TypeVar("T")
_PHASES = ("begin", "before", "success", "failure")


class TransactionScoped(Generic[T]):
    """A value of which each transaction has its own: made at first use, closed at the transaction's end."""

    def __init__(self, factory: Callable[[], T], close: Callable[[T], object] | None = None) -> None:
        self._factory = factory
        self._close = close

    def __call__(self) -> T:
        """The ambient transaction's value. Errors: ProgrammingError without an active transaction."""
        ambient = current()
        if ambient is None:
            raise ProgrammingError(
                "a transaction-scoped value exists only within a transaction, and there is none here: ask for it in a "
                "`with txpool.transaction()`. Nothing was made"
            )
        if self not in ambient.values:
            ambient.require_active()
            values = ambient.values
            value = values[self] = self._factory()
            ambient.after_completion(lambda _: self._end(values, value))
        existing: T = ambient.values[self]
        return existing

    def _end(self, values: dict[Any, Any], value: T) -> None:
        del values[self]
        if self._close is not None:
            self._close(value)


def observe(observer: Callable[[Transaction], object], phase: Literal["begin", "before", "success", "failure"]) -> None:
    """Call an observer with every transaction of this process from now on, at this phase of its life.

    It may be called before configure(), or after.

    `before` runs before completion, and its exception forces rollback; `success` and `failure` run after it (`failure`
    whenever the transaction did not commit everywhere), and their errors are logged. Another phase is a
    ProgrammingError.
    """
    if phase not in _PHASES:
        raise ProgrammingError(f"there is no phase {phase!r} to observe: these are {', '.join(_PHASES)}")

    def attach(begun: Transaction) -> None:
        if phase == "begin":
            observer(begun)
            return
        reference = ref(begun)

        def call() -> None:
            if (transaction := reference()) is not None:
                observer(transaction)

        if phase == "before":
            begun.before_completion(call)
        else:
            on_success = phase == "success"
            begun.after_completion(lambda status: call() if (status is Status.COMMITTED) == on_success else None)

    observers.append(attach)
