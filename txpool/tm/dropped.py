"""Dropped transactions, which nobody can end any more: each is rolled back by a thread of its own, and reported.

A transaction is dropped when its last reference goes: with the context of a thread that has ended, with an abandoned
coroutine, or in code that suspended it and lost it. Its finaliser may run while its thread holds any lock, so it only
starts the thread that rolls back. An abandoned generator leaves its block in a finaliser, too.

What a transaction refers to must refer to it weakly. Only so its last reference goes at once, and not when the garbage
collector runs.
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

#: The enlistments and branches of open transactions, by the id of the transaction, which adds and removes them. The
#: references keep them from the garbage collector until a dropped transaction has rolled back.
parts: dict[int, object] = {}
#: Kept for ever by a forked child: were they collected, the parent's connections would be closed.
_inherited: list[object] = []
#: A lock for each transaction that is being rolled back, released when that has ended.
_rolling_back: list[_thread.LockType] = []
_closed = False


def roll_back_abandoned(transaction: Transaction) -> None:
    """Have the transaction rolled back and reported by a thread. May be called in a finaliser.

    Does nothing in a forked child, or when the program ends.
    """
    # Where the collector finds a generator together with its transaction, the finalisers of both come here.
    if _closed or transaction.abandoned or transaction.of_parent_process:
        return
    transaction.abandoned = True
    done = _thread.allocate_lock()
    done.acquire()
    _rolling_back.append(done)
    try:
        # No threading.Thread: starting one takes locks that this thread may hold.
        _thread.start_new_thread(_roll_back, (transaction, done))
    except RuntimeError:  # no thread can be started: the pool closes the connections, which rolls back
        _rolling_back.remove(done)
        parts.pop(id(transaction), None)


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
        parts.pop(id(transaction), None)
        _rolling_back.remove(done)
        done.release()


def close(timeout: float) -> None:
    """When the program ends: wait `timeout` seconds for rollbacks that have begun; begin no others."""
    global _closed
    _closed = True
    until = monotonic() + timeout
    for done in list(_rolling_back):
        done.acquire(timeout=max(until - monotonic(), 0))


def require_not_abandoned(ambient: Transaction) -> None:
    """ProgrammingError where the ambient transaction was abandoned: its work would go on in a new transaction."""
    if ambient.abandoned:
        raise ProgrammingError(
            f"{ambient.gtrid}, which is ambient here, was given up and rolls back: its work cannot go on in another "
            "transaction. Nothing was done"
        )


def describe_parts(datasources: list[str], prepared: int) -> str:
    """The parts that a transaction holds, for people; empty where there are none."""
    connections = f"a connection of {' and of '.join(datasources)}" if datasources else ""
    branches = f"{prepared} prepared branches of tasks" if prepared else ""
    return " and ".join(filter(None, (connections, branches)))


def line_of(origin: Origin | None) -> str:
    """The file and line of an origin, for people."""
    if origin is None:
        return "a place that is not known"
    code, instruction = origin
    lines = (line for start, end, line in code.co_lines() if line is not None and start <= instruction < end)
    return f"{code.co_filename}:{next(lines, code.co_firstlineno)}, in {code.co_qualname}"


def _after_fork_in_child() -> None:
    global _rolling_back
    _inherited.append(parts.copy())
    parts.clear()
    _rolling_back = []


os.register_at_fork(after_in_child=_after_fork_in_child)
