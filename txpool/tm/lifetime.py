"""Values of which each transaction has its own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, TypeVar

from txpool.errors import ProgrammingError
from txpool.tm.ambient import current

T = TypeVar("T")


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
