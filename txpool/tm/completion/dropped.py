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
from collections.abc import Mapping, Sequence
from time import monotonic
from types import CodeType
from typing import TYPE_CHECKING, Protocol

from txpool.errors import ProgrammingError
from txpool.pool.state import before_waiting
from txpool.tm.completion.outcome import rolled_back
from txpool.tm.completion.status import OPEN

if TYPE_CHECKING:
    from txpool.resources.base import Branch
    from txpool.tm.completion.status import Status
    from txpool.tm.enlistment import Part
    from txpool.tracing import Trace

logger = logging.getLogger("txpool")

#: Where a transaction was begun: the code, and the instruction in it. The line is looked up when somebody asks.
Origin = tuple[CodeType, int]


class Abandonable(Protocol):
    """A transaction whose work may be given up."""

    gtrid: str
    abandoned: bool


class Droppable(Abandonable, Protocol):
    """A transaction that may be dropped."""

    status: Status
    trace: Trace | None
    origin: Origin | None
    rolling_back: _thread.LockType | None

    @property
    def holds(self) -> str: ...

    @property
    def of_parent_process(self) -> bool: ...

    def end_rollback(self) -> None: ...


#: The enlistments and branches of open transactions, by the id of the transaction, which adds and removes them. The
#: references keep them from the garbage collector until a dropped transaction has rolled back.
parts: dict[int, tuple[Mapping[str, Part], Sequence[Branch]]] = {}
#: Kept for ever by a forked child: were they collected, the parent's connections would be closed.
_inherited: list[object] = []
#: A lock for each transaction that is being rolled back, released when that has ended.
_rolling_back: list[_thread.LockType] = []
_closed = False
#: Seconds for which a block that begins waits for a rollback.
_PATIENCE = 5.0


def roll_back_abandoned(transaction: Droppable, how: str = "dropped without its end") -> None:
    """Have the transaction rolled back and reported by a thread. May be called in a finaliser.

    Does nothing in a forked child, or when the program ends.
    """
    # If the collector finds a generator together with its transaction, the finalisers of both come here.
    if _closed or transaction.abandoned or transaction.of_parent_process:
        return
    transaction.abandoned = True
    try:
        done = _thread.allocate_lock()
        done.acquire()
        transaction.rolling_back = done
        _rolling_back.append(done)
        # No threading.Thread: starting one takes locks that this thread may hold.
        _thread.start_new_thread(_roll_back, (transaction, done, how))
    except RuntimeError:  # no thread can be started: the pool closes the connections, which rolls back
        _rolling_back.remove(done)
        parts.pop(id(transaction), None)
    except BaseException:  # an interrupt: the next call begins anew, unless the thread has
        transaction.abandoned = False
        raise


def await_rollback(transaction: Droppable) -> None:
    """Wait until a thread has rolled it back, for a few seconds at most."""
    done = transaction.rolling_back
    if done is not None and done.acquire(timeout=_PATIENCE):
        done.release()


def _roll_back(transaction: Droppable, done: _thread.LockType, how: str) -> None:
    try:
        if transaction.rolling_back is not done or transaction.status not in OPEN:
            return  # an interrupt came as this was begun, and it was begun again
        transaction.abandoned = True
        threading.current_thread().name = "txpool-dropped"
        held = transaction.holds
        if transaction.trace is not None:
            transaction.trace.failed(rolled_back(transaction.gtrid, f"it was {how}"))
        try:
            transaction.end_rollback()
        finally:  # an interrupt within logging may have left one of its locks held, for which this waits for ever
            if transaction.origin is not None or held:
                logger.warning(
                    "%s was begun at %s and %s, so that nobody can commit it any more: it rolls back. It held %s",
                    transaction.gtrid,
                    line_of(transaction.origin),
                    how,
                    held or "nothing",
                )
    except BaseException:
        logger.exception("%s was dropped without its end, and its rollback has not ended well", transaction.gtrid)
    finally:
        if transaction.rolling_back is done:
            parts.pop(id(transaction), None)
        _rolling_back.remove(done)
        done.release()


def release_left() -> None:
    """Give back the connections of transactions that have ended, if an interrupt has kept them from that."""
    for enlisted, _ in [*parts.values()]:
        for enlistment in [*enlisted.values()]:
            enlistment.release_left()


def close(timeout: float) -> None:
    """When the program ends: wait `timeout` seconds for rollbacks that have begun; begin no others."""
    global _closed
    _closed = True
    until = monotonic() + timeout
    for done in list(_rolling_back):
        done.acquire(timeout=max(until - monotonic(), 0))


def require_not_abandoned(ambient: Abandonable) -> None:
    """ProgrammingError if the ambient transaction was abandoned: its work would go on in a new transaction."""
    if ambient.abandoned:
        raise ProgrammingError(
            f"{ambient.gtrid}, which is ambient here, was given up and rolls back: its work cannot go on in another "
            "transaction. Nothing was done. For work that is no part of it, call suspend() here first"
        )


def describe_parts(datasources: list[str], prepared: int) -> str:
    """The parts that a transaction holds, for people; empty if there are none."""
    connections = f"a connection of {' and of '.join(datasources)}" if datasources else ""
    branches = f"{prepared} prepared branches of tasks" if prepared else ""
    return " and ".join(filter(None, (connections, branches)))


def line_of(origin: Origin | None) -> str:
    """The file and line of an origin, for people."""
    if origin is None:
        return "a place that is not known"
    file, line, function = place_of(origin)
    return f"{file}:{line}, in {function}"


def place_of(origin: Origin) -> tuple[str, int, str]:
    """Its file, line and function."""
    code, instruction = origin
    lines = (line for start, end, line in code.co_lines() if line is not None and start <= instruction < end)
    return code.co_filename, next(lines, code.co_firstlineno), code.co_qualname


def _after_fork_in_child() -> None:
    global _rolling_back
    _inherited.append(parts.copy())
    parts.clear()
    _rolling_back = []


before_waiting.append(release_left)
os.register_at_fork(after_in_child=_after_fork_in_child)
