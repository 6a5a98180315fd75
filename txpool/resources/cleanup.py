"""The rows of finished marked transactions, waiting to be deleted together."""

from __future__ import annotations

import logging
import os
from collections import deque
from collections.abc import Iterable
from itertools import islice

from txpool import failpoints
from txpool.finishing import PendingWork, plural
from txpool.resources.xids import Xids

logger = logging.getLogger("txpool")

#: The queues that have something to delete. They are kept alive here: their datasource may be gone.
_pending: set[CleanupQueue] = set()


def pending() -> list[CleanupQueue]:
    """Every queue of this process that has something to delete."""
    return [queue for queue in _pending.copy() if queue]


class CleanupQueue:
    """The gtrids of one datasource whose rows may be deleted. Thread-safe.

    The next marked transaction deletes them in its own local transaction, which costs next to nothing. Where none
    follows, a full batch is deleted by itself. `flush` deletes the rest when the datasource is closed, and when the
    process ends, even if the datasource is gone by then. Recovery deletes the rows of a process that has crashed.
    """

    def __init__(self, xids: Xids, *, batch_size: int = 100, immediate: bool = False) -> None:
        self._xids = xids
        self._batch_size = batch_size
        self._immediate = immediate
        self._queue: deque[str] = deque()

    def __len__(self) -> int:
        return len(self._queue)

    def add(self, gtrid: str) -> None:
        """Queue a transaction whose branches have all answered. An error of deleting is logged: it is tried again."""
        self._queue.append(gtrid)
        self._register()
        if self._immediate or len(self._queue) >= self._batch_size:
            try:
                self.flush()
            except Exception as error:
                logger.warning("%d finished marks are to be deleted later: %s", len(self._queue), error)

    def take(self) -> list[str]:
        """Take at most one batch out of the queue."""
        taken: list[str] = []
        if self._queue:
            try:  # noqa: SIM105 - `suppress` costs several calls for each transaction
                # By one C call, so that no interrupt comes between taking one and keeping it.
                taken.extend(islice(iter(self._queue.popleft, None), min(self._batch_size, len(self._queue))))
            except IndexError:  # another thread has just taken some
                pass
            self._register()
        return taken

    def put_back(self, gtrids: Iterable[str]) -> None:
        """Queue again what was taken and not deleted."""
        self._queue.extend(gtrids)
        self._register()

    def pending_work(self) -> PendingWork:
        """The deletion of all that is queued, for a process or datasource that is ending."""
        name, left = self._xids.datasource, plural(len(self), "finished mark")
        return PendingWork(f"datasource {name}: deleting {left} is left to recovery", self.flush)

    def flush(self) -> None:
        """Delete all that is queued, now. Raises the database's error; the rest then stays queued."""
        while taken := self.take():
            try:
                if failpoints.armed:
                    failpoints.hit("marked.forget")
                self._xids.delete(taken)
            except BaseException:
                self.put_back(taken)
                raise

    def discard(self) -> None:
        """Empty the queue, and delete nothing."""
        self._queue.clear()

    def _register(self) -> None:
        """Be in `_pending` exactly while something is queued."""
        if not self._queue:
            _pending.discard(self)
        if self._queue:  # also where another thread has added one meanwhile
            _pending.add(self)


def _after_fork_in_child() -> None:
    # The parent deletes what it has finished.
    for queue in _pending:
        queue.discard()
    _pending.clear()


os.register_at_fork(after_in_child=_after_fork_in_child)
