"""The ambient transaction of a driver's thread, as a local property of the Spark jobs that the thread starts.

The "txpool" format works in processes of Spark's own, which see nothing of the driver's transaction but that.
"""

from __future__ import annotations

import asyncio
import logging
import os
import threading
from weakref import WeakValueDictionary

from pyspark import SparkContext, TaskContext

from txpool.errors import ProgrammingError
from txpool.manager import ambient_listeners, current
from txpool.transaction import Transaction

logger = logging.getLogger("txpool")

#: The local property: a gtrid.
_AMBIENT = "txpool.transaction"
#: Before the gtrid of a transaction that belongs to an asyncio task, where others share its thread.
_OF_A_TASK = "asyncio "


def told_by(context: TaskContext) -> str:
    """The gtrid that a task's job tells of, or nothing. ProgrammingError where that may be another's."""
    told = context.getLocalProperty(_AMBIENT) or ""
    if told.startswith(_OF_A_TASK):
        raise ProgrammingError(
            f"{told.removeprefix(_OF_A_TASK)} was begun in an asyncio task, and whether this write is a part of it "
            "cannot be told: use write_table(), which knows. Nothing was written"
        )
    return told


class Announcer:
    """Tells a SparkContext what each thread's transaction is, and knows them by what a job says. Thread-safe."""

    def __init__(self, context: SparkContext) -> None:
        self._context = context
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._here = threading.local()
        self._told: WeakValueDictionary[str, Transaction] = WeakValueDictionary()
        ambient_listeners.append(self._tell)
        self._tell(current())

    def open(self) -> list[Transaction]:
        """The transactions that threads have been in, and that have not ended."""
        with self._lock:
            return [each for each in self._told.values() if not each.ended]

    def find(self, told: str) -> Transaction:
        """The transaction that a job has told of. ProgrammingError where it cannot be worked in."""
        with self._lock:
            transaction = self._told.get(told)
        if transaction is None or transaction.ended:
            raise ProgrammingError(f"{told}, which this write was a part of, has ended meanwhile. Nothing was written")
        transaction.require_active()
        return transaction

    def _tell(self, transaction: Transaction | None) -> None:
        """The ambient transaction of this thread is another one now.

        Where Spark cannot be told, the format refuses: it finds that the transaction is open, or that it has ended.
        """
        if os.getpid() != self._pid or self._context._jsc is None:  # a fork, or the session was stopped
            return
        told = ""
        if transaction is not None and not transaction.ended:
            told = transaction.gtrid
            with self._lock:
                self._told[told] = transaction
            if asyncio._get_running_loop() is not None:
                told = _OF_A_TASK + told
        try:
            self._context.setLocalProperty(_AMBIENT, told)
            self._tag(transaction if told else None)
        except Exception as error:
            logger.warning("Spark cannot be told of the transaction %s: %s", told or "that has ended", error)

    def _tag(self, transaction: Transaction | None) -> None:
        """What the thread has Spark do within a transaction that has a timeout is cancelled by that."""
        former, self._here.tag = getattr(self._here, "tag", None), None
        if former is not None:
            self._context.removeJobTag(former)
        if transaction is not None and transaction.patience.vote() is not None:
            self._here.tag = tag = transaction.gtrid
            self._context.addJobTag(tag)
            transaction.on_cancel(lambda: self._context.cancelJobsWithTag(tag))
