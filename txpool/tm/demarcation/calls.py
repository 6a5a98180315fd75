"""begin(), commit(), rollback(), suspend(), resume(), status(): the ambient transaction's bounds, set by calls.

A `with transaction()` block (`txpool.tm.demarcation.block`) sets them by itself.
"""

from __future__ import annotations

import sys

from txpool.errors import ProgrammingError
from txpool.sql.characteristics import Characteristics, IsolationLevel
from txpool.tm.ambient import ambient_variable, current, live, make_ambient, tell_jobs
from txpool.tm.completion import dropped
from txpool.tm.completion.status import Status
from txpool.tm.manager import get_manager
from txpool.tm.rules.required import note_suspended, refuse_beginning_in_task
from txpool.tm.transaction import Transaction


def begin(
    timeout: float | None = None, *, isolation: IsolationLevel | None = None, read_only: bool | None = None
) -> Transaction:
    """Begin a transaction, make it the ambient one, and return it; the arguments are those of `transaction()`.

    Errors: ProgrammingError if there is one already.
    """
    characteristics = Characteristics.of(isolation, read_only)
    active, frame = ambient_variable.get(), sys._getframe(1)
    if active is not None:
        active = live(active, frame)
    if active is not None:
        dropped.require_not_abandoned(active)
    if active is not None and not active.ended:
        raise ProgrammingError(
            f"{active.gtrid} is active here, and no other was begun: end it first, suspend() it, or nest by "
            "`with transaction()`"
        )
    refuse_beginning_in_task()
    origin = frame.f_code, frame.f_lasti
    transaction = get_manager().new_transaction(timeout, characteristics=characteristics)
    transaction.origin = origin
    try:
        make_ambient(transaction)
    except BaseException:  # an interrupt: the caller has not begun it
        ambient_variable.set(active)
        raise
    return transaction


def commit() -> None:
    """Commit the ambient transaction. Errors: as Transaction.commit; ProgrammingError if a block will end it."""
    transaction = _require_ambient("commit")
    try:
        transaction.commit()
    finally:
        ambient_variable.set(None)  # here: an interrupt in a function of ours would leave it ambient
        tell_jobs(None, transaction)


def rollback() -> None:
    """Roll the ambient transaction back. Errors: as Transaction.rollback."""
    transaction = _require_ambient("roll back")
    try:
        transaction.rollback()
    finally:
        ambient_variable.set(None)
        tell_jobs(None, transaction)


def suspend() -> Transaction | None:
    """Leave the ambient transaction, which stays active. Returns it, for resume(); None if there is none."""
    transaction = current()
    make_ambient(None)
    if transaction is not None:
        note_suspended(transaction)
    return transaction


def resume(transaction: Transaction | None) -> None:
    """Make a suspended transaction the ambient one again; `None`, as suspend() may return it, leaves none ambient.

    Errors: ProgrammingError if another is active here, or the transaction has ended.
    """
    active = current()
    if active is not None and not active.ended and active is not transaction:
        raise ProgrammingError(
            f"{active.gtrid} is active here, and no other was resumed: end it first, or suspend() it"
        )
    if transaction is not None and transaction.ended:
        transaction.require_active()
    make_ambient(transaction)
    note_suspended(None)


def status() -> Status | None:
    """The ambient transaction's status, or None without one."""
    transaction = current()
    return None if transaction is None else transaction.status


def _require_ambient(verb: str) -> Transaction:
    transaction = current()
    if transaction is None:
        raise ProgrammingError(f"there is no transaction to {verb}: begin() one first")
    transaction.require_unscoped()
    return transaction
