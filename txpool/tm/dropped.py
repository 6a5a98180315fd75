"""Transactions that nobody can end any more: each is rolled back by a thread of its own, and reported.

A transaction is dropped when its last reference goes: with the context of a thread that has ended, with an abandoned
coroutine, or by who suspended it and lost it. That is heard in a finaliser, which may strike inside any lock, so it
does no more than start the thread. An abandoned generator leaves its block in one, too.

Whatever refers to a transaction for as long as that lives refers to it weakly: only then its last reference goes at
once, rather than at the garbage collector's hour.
"""

from __future__ import annotations

import _thread
import logging
import os
import threading
from time import monotonic
from types import CodeType
from typing import TYPE_CHECKING

from txpool.errors import ProgrammingError
from txpool.tm.outcome import rolled_back

if TYPE_CHECKING:
    from txpool.tm.transaction import Transaction

logger = logging.getLogger("txpool")

#: Where a transaction was begun: the code, and the instruction in it. The line is looked up when somebody asks.
Origin = tuple[CodeType, int]

#: The parts of open transactions, by the transaction's id: no collector finds a connection while it is to roll back.
_held: dict[int, object] = {}
#: What a forked child must never collect.
_inherited: list[object] = []
#: Those that are being rolled back; a lock is released at the end of each.
_rolling_back: list[_thread.LockType] = []
_closed = False


def hold(transaction: Transaction, *parts: object) -> None:
    """It has parts now: they outlive it, until `let_go`."""
    _held[id(transaction)] = parts


def release(transaction: Transaction) -> None:
    """It has ended."""
    _held.pop(id(transaction), None)


def roll_back_abandoned(transaction: Transaction) -> None:
    """Have it rolled back and reported; from a finaliser, too. Nothing in a forked child, or when the program ends."""
    # The collector finds a generator and its transaction together, and calls the finalisers of both.
    if _closed or transaction.abandoned or transaction.of_parent_process:
        return
    transaction.abandoned = True
    done = _thread.allocate_lock()
    done.acquire()
    _rolling_back.append(done)
    try:
        # No threading.Thread: to start one takes locks that this very thread may hold.
        _thread.start_new_thread(_roll_back, (transaction, done))
    except RuntimeError:  # no thread is to be had, or the program ends: the pool's own care for what is lost has it
        _rolling_back.remove(done)
        release(transaction)


def _roll_back(transaction: Transaction, done: _thread.LockType) -> None:
    try:
        threading.current_thread().name = "txpool-dropped"
        if transaction.origin is not None or transaction.holds:
            logger.warning(
                "%s was begun at %s and dropped without its end, so that nobody can commit it any more: it rolls back. "
                "It holds %s",
                transaction.gtrid,
                line_of(transaction.origin),
                transaction.holds or "nothing",
            )
        if transaction.trace is not None:
            transaction.trace.failed(rolled_back(transaction.gtrid, "it was dropped without its end"))
        transaction.end_rollback()
    except BaseException:
        logger.exception("%s was dropped without its end, and its rollback has not ended well", transaction.gtrid)
    finally:
        release(transaction)
        _rolling_back.remove(done)
        done.release()


def close(timeout: float) -> None:
    """The program ends: wait for what is rolling back, and leave everything else to the end of the process."""
    global _closed
    _closed = True
    until = monotonic() + timeout
    for done in list(_rolling_back):
        done.acquire(timeout=max(until - monotonic(), 0))


def require_not_abandoned(former: Transaction | None) -> None:
    """ProgrammingError where work of one that was given up goes on here, and would begin another for its rest."""
    if former is not None and former.abandoned:
        raise ProgrammingError(
            f"{former.gtrid}, which is ambient here, was given up and rolls back: its work cannot go on in another "
            "transaction. Nothing was done"
        )


def holding(datasources: list[str], prepared: int) -> str:
    """What a transaction with these parts holds, for people; empty where that is nothing."""
    connections = f"a connection of {' and of '.join(datasources)}" if datasources else ""
    branches = f"{prepared} prepared branches of tasks" if prepared else ""
    return " and ".join(filter(None, (connections, branches)))


def line_of(origin: Origin | None) -> str:
    """Where that is, for people."""
    if origin is None:
        return "a place that is not known"
    code, instruction = origin
    lines = (line for start, end, line in code.co_lines() if line is not None and start <= instruction < end)
    return f"{code.co_filename}:{next(lines, code.co_firstlineno)}, in {code.co_qualname}"


def _after_fork_in_child() -> None:
    global _held, _rolling_back
    _inherited.append(_held)
    _held, _rolling_back = {}, []


os.register_at_fork(after_in_child=_after_fork_in_child)
