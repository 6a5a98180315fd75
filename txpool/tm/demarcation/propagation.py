"""The propagations of transactional(), and which of its other arguments fit them."""

from __future__ import annotations

from typing import Any, Literal, get_args

from txpool.errors import ProgrammingError
from txpool.sql.characteristics import Characteristics

Propagation = Literal["required", "requires_new", "mandatory", "supports", "not_supported", "never"]
#: The propagations that may begin a transaction, and those with which the function is always in one.
_MAY_BEGIN = ("required", "requires_new")
_ALWAYS_INSIDE = (*_MAY_BEGIN, "mandatory")


def check_arguments(propagation: object, attempts: object, characteristics: Characteristics) -> None:
    """ProgrammingError if arguments of transactional() are none, or do not fit the propagation."""
    propagations = get_args(Propagation)
    if propagation not in propagations:
        raise ProgrammingError(
            f"transactional(): there is no propagation {propagation!r}: it is {' or '.join(propagations)}"
        )
    if not isinstance(attempts, int) or isinstance(attempts, bool) or attempts < 1:
        raise ProgrammingError(f"transactional(): attempts is {attempts!r}: write a whole number from 1 on")
    if attempts > 1 and propagation not in _MAY_BEGIN:
        raise ProgrammingError(
            f"transactional(): attempts={attempts} has no use with {propagation!r}, which begins no transaction, and "
            f"only who began one can repeat it: leave it out, or make it {' or '.join(_MAY_BEGIN)}"
        )
    if characteristics.specified and propagation not in _ALWAYS_INSIDE:
        raise ProgrammingError(
            f"transactional(): {characteristics} has no use with {propagation!r}, which is not always in a "
            f"transaction: leave it out, or make it {' or '.join(_ALWAYS_INSIDE)}"
        )


def check_id(propagation: str, transaction_id: Any, record_in: Any) -> None:
    """ProgrammingError if the transaction_id of transactional() is none, or does not fit the propagation."""
    from txpool.idempotency.once import checked_id, require_both

    require_both(transaction_id, record_in)
    if not callable(transaction_id):
        checked_id(transaction_id)
    if propagation not in _ALWAYS_INSIDE:
        raise ProgrammingError(
            f"transactional(): a transaction_id has no use with {propagation!r}, which is not always in a transaction: "
            f"leave it out, or make it {' or '.join(_ALWAYS_INSIDE)}"
        )


def require_recordable(characteristics: Characteristics) -> None:
    """ProgrammingError if a transaction with a transaction_id would be read-only."""
    if characteristics.read_only:
        raise ProgrammingError(
            "a transaction_id is recorded in a table, and read_only=True writes nothing: leave one of them out. "
            "Nothing was done"
        )
