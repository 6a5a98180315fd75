"""The ambient transaction of a driver's thread, as a local property of the Spark jobs that the thread starts.

The "txpool" format works in processes of Spark's own, which see nothing of the driver's transaction but that. A
property belongs to a thread, and the ambient transaction to a context: where the two may part, the property says so.
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
from txpool.spark.tracing import TRACEPARENT
from txpool.transaction import Transaction

logger = logging.getLogger("txpool")

#: The local property: a gtrid.
_AMBIENT = "txpool.transaction"
#: Before the gtrid of a transaction that another thread has begun, or an asyncio task, whose thread others share.
_UNSURE = "unsure "
#: By these, a transaction's `values` have the thread that it belongs to, and whether Spark is told of its timeout.
_HOME, _TAGGED = "txpool.spark.home", "txpool.spark.tagged"

#: All that have been ambient since a session was registered.
_known: WeakValueDictionary[str, Transaction] = WeakValueDictionary()
_lock = threading.Lock()
_thread = threading.local()


def told_by(context: TaskContext) -> str:
    """The gtrid that a task's job tells of, or nothing. ProgrammingError where that may be another's."""
    told = context.getLocalProperty(_AMBIENT) or ""
    if told.startswith(_UNSURE):
        raise ProgrammingError(
            f"{told.removeprefix(_UNSURE)} was begun in an asyncio task (a notebook's cell is one) or in another "
            "thread, and whether this write is a part of it cannot be told: use write_table(), which knows. Nothing "
            "was written"
        )
    return told


class Announcer:
    """Tells a SparkContext what each thread's transaction is, and knows them by what a job says. Thread-safe."""

    def __init__(self, context: SparkContext) -> None:
        self._context = context
        self._pid = os.getpid()
        self._here = threading.local()
        ambient_listeners.append(self._tell)
        self._tell(current())

    def close(self) -> None:
        """Tell no more."""
        ambient_listeners.remove(self._tell)

    def open(self) -> list[Transaction]:
        """The transactions that threads have been in, and that have not ended."""
        with _lock:
            return [each for each in _known.values() if not each.ended]

    def get(self, told: str) -> Transaction | None:
        """The transaction that a job has told of; None where it ended long ago."""
        with _lock:
            return _known.get(told)

    def find(self, told: str) -> Transaction:
        """The same, to be worked in. Errors: ProgrammingError, TransactionTimeout."""
        transaction = self.get(told)
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
            told = self._name(transaction)
        if told == getattr(self._here, "told", None):
            return
        try:
            self._context.setLocalProperty(_AMBIENT, told)
            self._here.told = told
            self._trace(transaction if told else None)
            self._tag(transaction if told else None)
        except Exception as error:
            logger.warning("Spark cannot be told of the transaction %s: %s", told or "that has ended", error)

    def _name(self, transaction: Transaction) -> str:
        if not hasattr(_thread, "token"):
            _thread.token = object()
        if _HOME not in transaction.values:
            transaction.values[_HOME] = _thread.token if asyncio._get_running_loop() is None else None
            # Its own commit() ends it, and leaves it ambient.
            gtrid = transaction.gtrid
            transaction.after_completion(lambda _: self._forget(gtrid))
            with _lock:
                _known[transaction.gtrid] = transaction
        return transaction.gtrid if transaction.values[_HOME] is _thread.token else _UNSURE + transaction.gtrid

    def _trace(self, transaction: Transaction | None) -> None:
        """The jobs' tasks go on with its trace, where it has one."""
        traceparent = "" if transaction is None or transaction.trace is None else transaction.trace.traceparent
        if traceparent != getattr(self._here, "traceparent", ""):
            self._context.setLocalProperty(TRACEPARENT, traceparent)
            self._here.traceparent = traceparent

    def _forget(self, gtrid: str) -> None:
        if getattr(self._here, "told", "").endswith(gtrid):
            self._tell(None)

    def _tag(self, transaction: Transaction | None) -> None:
        """What the thread has Spark do within a transaction that has a timeout is cancelled by that."""
        former, self._here.tag = getattr(self._here, "tag", None), None
        if former is not None:
            self._context.removeJobTag(former)
        if transaction is not None and transaction.patience.vote() is not None:
            self._here.tag = tag = transaction.gtrid
            self._context.addJobTag(tag)
            if _TAGGED not in transaction.values:
                transaction.values[_TAGGED] = True
                transaction.on_cancel(lambda: self._context.cancelJobsWithTag(tag))
