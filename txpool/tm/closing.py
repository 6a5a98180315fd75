"""What is finished when a TransactionManager is closed, or the process ends.

Transactions in doubt are tried once more, rows and decisions that are no longer needed are deleted, and the incarnation
is given up, so that recovery need not wait for it. All that takes a few seconds at most.
"""

from __future__ import annotations

import atexit
import logging
import sys
from collections.abc import Collection
from time import monotonic
from typing import TYPE_CHECKING

from txpool.process.finishing import LIMIT, PendingWork, finish, ready
from txpool.resources.marked import cleanup
from txpool.tm.ambient import current
from txpool.tm.completion import dropped

if TYPE_CHECKING:
    from txpool.tm.manager import TransactionManager
    from txpool.tm.transaction import Transaction

logger = logging.getLogger("txpool")

#: Seconds of closing that transactions in doubt may take, so that there is time for the rest.
_RESOLVE_TIME = 2.0
#: Until how many seconds after the start rows are deleted whose pointers are in a log.
_POINTERS_TIME = 3.5

#: The managers of this process whose log is open; also one that was replaced while its transactions were still open.
open_managers: set[TransactionManager] = set()
#: The process has closed everything already: exit handlers that were registered before ours run after it.
exiting = False


def close_at_exit(manager: TransactionManager) -> None:
    """Close the manager when this process ends."""
    ready()
    open_managers.add(manager)
    _close_with_worker()


def forget_all() -> set[TransactionManager]:
    """In a forked child: the managers that would be closed when the process ends, none of which will be."""
    global exiting
    exiting = False
    inherited = open_managers.copy()
    open_managers.clear()
    return inherited


def close(
    managers: Collection[TransactionManager],
    left_open: Transaction | None = None,
    started: float | None = None,
) -> None:
    """Close the managers' resolvers and logs, and delete marked rows that are no longer needed.

    The resolvers come first, since what they resolve adds rows to delete and decisions to forget. `left_open` is an
    ambient transaction that nobody has ended: it is rolled back, since rows cannot be deleted under its locks. Rows and
    logs are closed at the same time: a transaction that a row has decided has no decision in the log. If the log has
    a pointer to the row, the row comes first.
    """
    started = monotonic() if started is None else started
    for manager in managers:
        manager.stop_resolving()
    if left_open is not None and cleanup.pending():  # without rows to delete, the end of its connections will do
        gtrid = left_open.gtrid
        rollback = PendingWork(f"{gtrid}: its rollback is left to its databases", left_open.end_rollback)
        finish([rollback], started + _RESOLVE_TIME)
    for manager in managers:
        manager.close_resolver(started + _RESOLVE_TIME)
    # A row's pointer is deleted after it, from a log that is still open.
    pointed, pieces = _rows()
    finish(pointed, started + _POINTERS_TIME)
    for manager in managers:
        open_managers.discard(manager)
        work = manager.detach_log()
        if work is not None:
            pieces.append(work)
    if pieces:
        finish(pieces, started + LIMIT)


def _rows() -> tuple[list[PendingWork], list[PendingWork]]:
    """The deletion of rows: of those that have pointers in a log, and of the others."""
    queues = cleanup.pending()
    pointed = [queue.pending_work() for queue in queues if queue.points]
    return pointed, [queue.pending_work() for queue in queues if not queue.points]


def _close_at_exit() -> None:
    global exiting
    exiting = True
    ambient = current()
    left_open = None if ambient is None or ambient.ended else ambient
    if left_open is not None:
        logger.warning(
            "%s was begun, and the program ends without an end to it: what was done within it rolls back. It was begun "
            "at %s",
            left_open.gtrid,
            dropped.line_of(left_open.origin),
        )
    started = monotonic()
    try:
        dropped.close(_RESOLVE_TIME)
        # It may have been among the dropped ones.
        close(open_managers.copy(), None if left_open is None or left_open.ended else left_open, started)
    except BaseException as error:  # a second Ctrl-C
        logger.warning("what is not finished yet is left to recovery: the end was interrupted (%r)", error)


def _close_with_worker(_: object = None) -> None:
    """Close at the end of a `multiprocessing` worker, too: one that was forked runs no handlers of atexit."""
    util = sys.modules.get("multiprocessing.util")
    if util is None:
        return
    if sys.modules["multiprocessing.process"].parent_process() is not None:
        util.Finalize(None, _close_at_exit, exitpriority=0)
    else:  # a fork server imports the program before it forks the worker
        util.register_after_fork(_close_at_exit, _close_with_worker)


atexit.register(_close_at_exit)
