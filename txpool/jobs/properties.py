"""The ambient transaction of a driver's thread, as a local property of the Spark jobs that the thread starts.

Tasks run in processes of Spark, which know nothing else of the driver's transaction. A property belongs to a thread,
and the ambient transaction to a context: if these may differ, the property says that it is uncertain. A thread that
Java or an InheritableThread starts, such as a stream's, keeps its parent's property for ever: so a task asks the driver
whether the transaction had ended before its job began.
"""

from __future__ import annotations

import logging
import os
import sys
import threading
from collections import OrderedDict
from contextlib import suppress
from typing import TYPE_CHECKING, Any
from weakref import WeakValueDictionary, ref

from txpool.errors import described
from txpool.jobs import spark
from txpool.jobs.driver_query import serve
from txpool.locks import Lock

if TYPE_CHECKING:
    from txpool.tm.transaction import Transaction

logger = logging.getLogger("txpool")

#: The local property: gtrids, an @, and the driver's address for questions. Whoever reads Spark's event log reads it.
AMBIENT = "txpool.transaction"
#: Stands before the gtrids if the job may not belong to the transaction: another thread has begun that, or asyncio
#: tasks share the thread.
UNCERTAIN = "unsure "
#: The local property with the traceparent of the transaction.
TRACEPARENT = "txpool.traceparent"
#: Keys of a transaction's `values`: the thread that it was begun in, whether no asyncio task shares that, and whether
#: its timeout cancels Spark's jobs.
_THREAD, _OWN_THREAD, _TAGGED = "txpool.jobs.thread", "txpool.jobs.alone", "txpool.jobs.tagged"

#: How many ended transactions are remembered. One that is not among them has ended before them.
_REMEMBERED = 10_000
#: Milliseconds to wait for Spark's own events to reach its status store.
_EVENTS_TIMEOUT_MS = 1000
#: Above any number of jobs.
_BEYOND_ALL_JOBS = 2**63
#: An answer in place of gtrids: Spark knows no active job of the stage.
NO_JOB = "?"

#: The transactions that were published to jobs, while they are referred to elsewhere.
_transactions: WeakValueDictionary[str, Transaction] = WeakValueDictionary()
#: The gtrids of those that have not ended; and of the others, how many jobs Spark had begun when they ended.
_open: set[str] = set()
_ended: OrderedDict[str, int] = OrderedDict()
_lock = Lock()
_thread = threading.local()
#: Of the SparkContext that was active last.
_properties: JobProperties | None = None
#: In a forked child: the SparkContext of its parent, which only that uses.
_parents_context: Any = None


def publish(transaction: Transaction | None, left: Transaction | None = None) -> None:
    """Set the job properties of this thread for its ambient transaction; does nothing without a SparkContext.

    `left` is the transaction that was ambient before. To be called if Spark is loaded, and then as often as possible,
    since a session may begin at any time.
    """
    global _properties
    context = _active_context()
    properties = _properties
    if context is None:
        _properties = None
        return
    if properties is None or properties.context is not context:
        try:
            properties = _properties = JobProperties(context)
        except Exception as error:
            logger.warning("Spark cannot be told of transactions: %s", described(error))
            return
    properties.publish(transaction)
    if left is not None and left.ended and _THREAD not in left.values:
        logger.warning(
            "%s: a SparkContext was created within it, and there was no chance to tell its jobs of the transaction: "
            "what their functions have written by txpool.connect(), if they have, is committed on its own. Create the "
            "session before the transaction begins",
            left.gtrid,
        )


def _active_context() -> Any:
    """The SparkContext of this process, if it has one that is started and not stopped."""
    kind = spark.class_named("SparkContext")
    context = None if kind is None else kind._active_spark_context
    return None if context is _parents_context or getattr(context, "_jsc", None) is None else context


def find_transaction(gtrid: str) -> Transaction | None:
    """The transaction with this gtrid, if it was published to jobs, and still exists."""
    with _lock:
        return _transactions.get(gtrid)


def open_transactions() -> list[Transaction]:
    """The transactions that were published to jobs, and have not ended."""
    with _lock:
        published = list(_transactions.values())
    return [each for each in published if not each.ended]


def begun_within(stage: int, gtrids: list[str]) -> list[str] | None:
    """The gtrids among these within which a task's job was begun; NO_JOB if the job has ended, None if unknown.

    A job that was begun within a transaction belongs to it also after its end: its last tasks may ask after a rollback.
    """
    with _lock:
        open_ones = list(filter(_open.__contains__, gtrids))
        first = next(iter(_ended.values()), _BEYOND_ALL_JOBS)
        ends = {gtrid: _ended.get(gtrid, first) for gtrid in gtrids}
    properties = _properties
    if open_ones or properties is None:
        return open_ones or None
    job, certain = properties.job_of(stage)
    if job is None:
        return [NO_JOB] if certain else None
    return [gtrid for gtrid in gtrids if job < ends[gtrid]]


def _transaction_ended(gtrid: str) -> None:
    """The transaction has ended: jobs that begin from now on do not belong to it, in whichever session is active."""
    properties, jobs = _properties, _BEYOND_ALL_JOBS
    if properties is not None and properties.context is not _active_context():
        properties = None
    try:
        if properties is not None:
            jobs = properties.jobs_begun()
    except Exception as error:  # then all later jobs count as begun within it
        logger.warning("Spark cannot be asked for its jobs at the end of %s: %s", gtrid, described(error))
    finally:
        with _lock:
            _open.discard(gtrid)
            _ended[gtrid] = jobs
            if len(_ended) > _REMEMBERED:
                _ended.popitem(last=False)
    if properties is not None:
        properties.withdraw(gtrid)


class JobProperties:
    """Sets the local properties of one SparkContext, thread by thread. Thread-safe."""

    def __init__(self, context: Any) -> None:
        self.context = context
        self._address = serve(context, begun_within)
        self._pinned = os.environ.get("PYSPARK_PIN_THREAD", "true").lower() == "true"
        self._published = threading.local()
        #: Returns Py4J's connection of this thread, which one Java thread serves; None if threads are not pinned.
        self._thread_connection = getattr(context._gateway._gateway_client, "get_thread_connection", None)
        scala = context._jsc.sc()
        self._scheduler = scala.dagScheduler()
        self._bus = scala.listenerBus()
        self._tracker = scala.statusTracker()
        self._store = scala.statusStore()

    def job_of(self, stage: int) -> tuple[int | None, bool]:
        """The first active job that a stage works for, or None; and whether that is certain."""
        job = self._active_job_of(stage)
        if job is not None:
            return job, True
        try:
            self._bus.waitUntilEmpty(_EVENTS_TIMEOUT_MS)
        except Exception:  # the events have not arrived in time
            return None, False
        return self._active_job_of(stage), True

    def _active_job_of(self, stage: int) -> int | None:
        for job in sorted(self._tracker.getActiveJobIds()):
            with suppress(Exception):  # the status store has dropped it meanwhile
                if self._store.job(job).stageIds().contains(stage):
                    return int(job)
        return None

    def publish(self, transaction: Transaction | None) -> None:
        """Set the properties of this thread for its ambient transaction, if they have changed."""
        value = self._property_value(transaction)
        if self._java_thread_replaced():
            self._published.__dict__.clear()
        if value == getattr(self._published, "value", None):
            return
        self._published.value = None  # an interrupt may come before Java has answered
        try:
            self.context.setLocalProperty(AMBIENT, f"{value}@{self._address}" if value else "")
            self._published.value = value
            connection = None if self._thread_connection is None else self._thread_connection()
            self._published.connection = None if connection is None else ref(connection)
            self._set_traceparent(transaction if value else None)
            self._set_job_tag(transaction if value else None)
        except Exception as error:
            logger.warning(
                "Spark cannot be told of the transaction %s: %s", value or "that has ended", described(error)
            )

    def _java_thread_replaced(self) -> bool:
        """Whether another Java thread serves this one now, which has no properties: an interrupt causes that."""
        reference = getattr(self._published, "connection", None)
        if reference is None:
            return False
        connection = reference()
        return connection is None or connection.socket is None

    def _property_value(self, transaction: Transaction | None) -> str:
        """Names the transactions that jobs of this thread may belong to: its own, and those of tasks that share it."""
        if not hasattr(_thread, "token"):
            _thread.token = object()
        transactions = [] if transaction is None or transaction.ended else [transaction]
        for each in transactions:
            if _THREAD not in each.values:
                self._register(each)
        shared = _in_event_loop()
        if shared:
            transactions += [
                it for it in open_transactions() if it.values[_THREAD] is _thread.token and it not in transactions
            ]
        if not transactions:
            return ""
        certain = (
            self._pinned
            and not shared
            and transactions[0].values[_OWN_THREAD]
            and transactions[0].values[_THREAD] is _thread.token
        )
        return ("" if certain else UNCERTAIN) + " ".join(each.gtrid for each in transactions)

    def _register(self, transaction: Transaction) -> None:
        transaction.values[_THREAD] = _thread.token
        transaction.values[_OWN_THREAD] = not _in_event_loop()
        # Not by `publish`, since Transaction.commit() leaves the ended transaction ambient.
        gtrid = transaction.gtrid
        transaction.after_completion(lambda _: _transaction_ended(gtrid))
        with _lock:
            _transactions[gtrid] = transaction
            _open.add(gtrid)

    def jobs_begun(self) -> int:
        """How many jobs Spark has begun."""
        return int(self._scheduler.numTotalJobs())

    def withdraw(self, gtrid: str) -> None:
        """A transaction has ended: clear the properties of this thread, if they name it."""
        if gtrid not in (getattr(self._published, "value", None) or "").split():
            return
        if self._java_thread_replaced() and not isinstance(sys.exception(), KeyboardInterrupt):
            logger.warning(
                "%s: Spark's connection of this thread was lost within it (an interrupt does that), and there was no "
                "chance to tell later jobs of the transaction: what their functions have written by txpool.connect(), "
                "or the format, if they have, is committed on its own",
                gtrid,
            )
        self.publish(None)

    def _set_traceparent(self, transaction: Transaction | None) -> None:
        """Let the tasks of this thread's jobs continue the transaction's trace."""
        traceparent = "" if transaction is None or transaction.trace is None else transaction.trace.traceparent
        if traceparent != getattr(self._published, "traceparent", ""):
            self.context.setLocalProperty(TRACEPARENT, traceparent)
            self._published.traceparent = traceparent

    def _set_job_tag(self, transaction: Transaction | None) -> None:
        """Let the transaction's timeout, if it has one, cancel the jobs of this thread."""
        previous, self._published.tag = getattr(self._published, "tag", None), None
        if previous is not None:
            self.context.removeJobTag(previous)
        if transaction is not None and transaction.deadlines.before_decision() is not None:
            self._published.tag = tag = transaction.gtrid
            self.context.addJobTag(tag)
            if _TAGGED not in transaction.values:
                transaction.values[_TAGGED] = True
                transaction.on_cancel(lambda: self.context.cancelJobsWithTag(tag))


def _after_fork_in_child() -> None:
    global _lock, _properties, _parents_context
    _lock = Lock()
    _parents_context, _properties = _active_context() or _parents_context, None


os.register_at_fork(after_in_child=_after_fork_in_child)


def _in_event_loop() -> bool:
    """Whether this thread runs an event loop. Without asyncio in the process it does not, and asyncio is not cheap."""
    running = getattr(sys.modules.get("asyncio"), "_get_running_loop", None)
    return running is not None and running() is not None
