"""The rows of finished marked transactions, waiting to be deleted together."""

from __future__ import annotations

import logging
import os
from collections import deque
from collections.abc import Iterable
from contextlib import suppress
from itertools import islice

from txpool import failpoints
from txpool.errors import described
from txpool.process.finishing import PendingWork, plural
from txpool.resources.base import Purge
from txpool.resources.marked.xids import Xids

logger = logging.getLogger("txpool")

#: The queues that have something to delete. They are kept alive here: their datasource may be gone.
_pending: set[CleanupQueue] = set()


def pending() -> list[CleanupQueue]:
    """Every queue of this process that has something to delete."""
    return [queue for queue in _pending.copy() if queue]


class CleanupQueue:
    """The gtrids of one datasource whose rows may be deleted. Thread-safe.

    The next marked transaction deletes them in its own local transaction, which costs next to nothing. If none
    follows, a full batch is deleted by itself. `flush` deletes the rest when the datasource is closed, and when the
    process ends, even if the datasource is gone by then. Recovery deletes the rows of a process that has crashed.
    """

    #: What a row is, in warnings.
    what = "finished mark"

    def __init__(self, xids: Xids, *, batch_size: int = 100, immediate: bool = False) -> None:
        self._xids = xids
        self._batch_size = batch_size
        self._immediate = immediate
        #: How many are queued before they are deleted without a transaction that does it.
        self._enough = batch_size
        self._queue: deque[str] = deque()
        #: By gtrid: what deletes the log's pointer to its row.
        self._pointers: dict[str, Purge] = {}
        #: The pointers whose rows are deleted.
        self._dangling: deque[tuple[str, Purge]] = deque()

    def __len__(self) -> int:
        return len(self._queue)

    def __bool__(self) -> bool:
        return bool(self._queue or self._dangling)

    @property
    def points(self) -> bool:
        """Whether a log has pointers to its rows."""
        return bool(self._pointers or self._dangling)

    def add(self, gtrid: str) -> None:
        """Queue a transaction whose branches have all answered.

        An error of deleting is logged: the next batch tries it again, so that a database that is down does not keep
        each transaction waiting.
        """
        self._queue.append(gtrid)
        self._register()
        waiting = max(len(self._queue), len(self._dangling))
        if self._immediate or waiting >= self._enough:
            try:
                self.flush()
            except Exception as error:
                self._enough = waiting + self._batch_size
                rows, where = plural(len(self._queue), self.what), self._xids.datasource
                logger.warning(
                    "datasource %s: %s cannot be deleted now, and will be later: %s", where, rows, described(error)
                )

    def add_pointed(self, gtrid: str, purge: Purge) -> None:
        """As `add`; `purge` deletes the log's pointer to the row, which is deleted after it, in the same batches."""
        self._pointers[gtrid] = purge
        self.add(gtrid)

    def note_deleted(self, gtrids: Iterable[str]) -> None:
        """Note that these rows are deleted: the pointers to them can go. No I/O."""
        self._enough = self._batch_size
        if self._pointers:
            for gtrid in gtrids:
                purge = self._pointers.get(gtrid)
                if purge is not None:
                    self._dangling.append((gtrid, purge))
                    self._pointers.pop(gtrid, None)
            self._register()

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
        name, left = self._xids.datasource, plural(len(self._queue) or len(self._dangling), self.what)
        return PendingWork(f"datasource {name}: deleting {left} is left to recovery", self.flush)

    def flush(self) -> None:
        """Delete all that is queued, now. Raises the database's error, or the log's; the rest then stays queued."""
        while taken := self.take():
            try:
                if failpoints.armed:
                    failpoints.hit("marked.forget")
                self._xids.delete(taken)
            except BaseException:
                self.put_back(taken)
                raise
            self.note_deleted(taken)
        if self._dangling:
            self._purge_pointers()

    def _purge_pointers(self) -> None:
        taken: list[tuple[str, Purge]] = []
        with suppress(IndexError):  # another thread has just taken some
            taken.extend(islice(iter(self._dangling.popleft, None), len(self._dangling)))
        try:
            gtrids: dict[Purge, list[str]] = {}
            for gtrid, purge in taken:
                gtrids.setdefault(purge, []).append(gtrid)
            for purge, these in gtrids.items():
                purge(these)
        except BaseException:
            self._dangling.extend(taken)
            raise
        finally:
            self._register()

    def discard(self) -> None:
        """Empty the queue, and delete nothing."""
        self._queue.clear()
        self._pointers.clear()
        self._dangling.clear()

    def _register(self) -> None:
        """Be in `_pending` exactly while something is queued."""
        if not self:
            _pending.discard(self)
        if self:  # also if another thread has added one meanwhile
            _pending.add(self)


def _after_fork_in_child() -> None:
    # The parent deletes what it has finished.
    for queue in _pending:
        queue.discard()
    _pending.clear()


os.register_at_fork(after_in_child=_after_fork_in_child)
