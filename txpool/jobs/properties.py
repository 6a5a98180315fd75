"""The ambient transaction of a driver's thread, as a local property of the Spark jobs that the thread starts.

Tasks work in processes of Spark's own, which see nothing of the driver's transaction but that. A property belongs to a
thread, and the ambient transaction to a context: where the two may part, the property says so. A thread that Java, or
an InheritableThread, starts has its parent's property for ever, as a stream's has: whether the transaction had ended
before a job of it began, the driver answers.
"""

from __future__ import annotations

import asyncio
import logging
import os
import sys
import threading
from collections import OrderedDict
from contextlib import suppress
from typing import TYPE_CHECKING, Any
from weakref import WeakValueDictionary, ref

from txpool.jobs.driver_query import serve

if TYPE_CHECKING:
    from txpool.tm.transaction import Transaction

logger = logging.getLogger("txpool")

#: The local property: gtrids, behind an @ where the driver answers, and the key for that.
AMBIENT = "txpool.transaction"
#: Before the gtrid of a transaction that another thread has begun, or an asyncio task, whose thread others share.
UNSURE = "unsure "
#: By this, jobs have the traceparent of the transaction.
TRACEPARENT = "txpool.traceparent"
#: By these, a transaction's `values` have the thread that it was begun in, whether that is certain to be its only one,
#: and whether Spark is told of its timeout.
_THREAD, _ALONE, _TAGGED = "txpool.jobs.thread", "txpool.jobs.alone", "txpool.jobs.tagged"

#: How many ends are remembered; a transaction that is not among them has ended before the first of them.
_REMEMBERED = 10_000
#: Milliseconds for Spark's own events to reach its status store.
_PATIENCE = 1000
#: More jobs than there ever are.
_ALL = 2**63
#: In the place of a gtrid: nothing is known of the job that is asked for.
NO_JOB = "?"

#: All of which any job was told, as long as somebody has them.
_known: WeakValueDictionary[str, Transaction] = WeakValueDictionary()
#: The gtrids of those that have not ended; and of the others, how many jobs Spark had begun by then.
_open: set[str] = set()
_ended: OrderedDict[str, int] = OrderedDict()
_lock = threading.Lock()
_thread = threading.local()
#: That of the SparkContext that was active last.
_properties: JobProperties | None = None
#: In a forked child: the session that its parent goes on with.
_parents: Any = None


def publish(transaction: Transaction | None, left: Transaction | None = None) -> None:
    """Have Spark know that this is the ambient transaction of this thread now; nothing without a SparkContext here.

    `left` is the one that the thread has left for it. To be called where `pyspark` is in `sys.modules`, and then at
    every chance: a session may begin at any time.
    """
    global _properties
    context = _active()
    announcer = _properties
    if context is None:
        _properties = None
        return
    if announcer is None or announcer.context is not context:
        try:
            announcer = _properties = JobProperties(context)
        except Exception as error:
            logger.warning("Spark cannot be told of transactions: %s", error)
            return
    announcer.publish(transaction)
    if left is not None and left.ended and _THREAD not in left.values:
        logger.warning(
            "%s: a SparkContext was created within it, and there was no chance to tell its jobs of the transaction: "
            "what their functions have written by txpool.connect(), if they have, is committed on its own. Create the "
            "session before the transaction begins",
            left.gtrid,
        )


def _active() -> Any:
    """The SparkContext of this process, where it has one that is neither in the making nor stopped."""
    kind = getattr(sys.modules.get("pyspark"), "SparkContext", None)
    context = None if kind is None else kind._active_spark_context
    return None if context is _parents or getattr(context, "_jsc", None) is None else context


def find_transaction(gtrid: str) -> Transaction | None:
    """The transaction that a job has told of; None where it ended long ago."""
    with _lock:
        return _known.get(gtrid)


def open_transactions() -> list[Transaction]:
    """The transactions that threads have been in, and that have not ended."""
    with _lock:
        return [each for each in _known.values() if not each.ended]


def begun_within(stage: int, gtrids: list[str]) -> list[str] | None:
    """Those of them in which a task's job was begun; NO_JOB where it has ended itself, and None where it is not known.

    A job that was begun within a transaction stays one of it: its last tasks may come when that has rolled back.
    """
    with _lock:
        found = [gtrid for gtrid in gtrids if gtrid in _open]
        first = next(iter(_ended.values()), _ALL)
        ends = {gtrid: _ended.get(gtrid, first) for gtrid in gtrids}
    announcer = _properties
    if found or announcer is None:
        return found or None
    job, certain = announcer.job_of(stage)
    if job is None:
        return [NO_JOB] if certain else None
    return [gtrid for gtrid in gtrids if job < ends[gtrid]]


def _forget(gtrid: str) -> None:
    """It has ended: no job is one of it from now on, in the session that there is by now, which may be another one."""
    announcer, jobs = _properties, _ALL
    if announcer is not None and announcer.context is not _active():
        announcer = None
    try:
        if announcer is not None:
            jobs = announcer.begun()
    except Exception as error:  # its jobs cannot be told from those that come after it
        logger.warning("Spark cannot be asked for its jobs at the end of %s: %s", gtrid, error)
    finally:
        with _lock:
            _open.discard(gtrid)
            _ended[gtrid] = jobs
            if len(_ended) > _REMEMBERED:
                _ended.popitem(last=False)
    if announcer is not None:
        announcer.forget(gtrid)


class JobProperties:
    """Tells a SparkContext what each thread's transaction is. Thread-safe."""

    def __init__(self, context: Any) -> None:
        self.context = context
        self._address = serve(context, begun_within)
        self._pinned = os.environ.get("PYSPARK_PIN_THREAD", "true").lower() == "true"
        self._here = threading.local()
        #: Py4J's connection of this thread, which one thread of Java's serves; where they are not pinned there is none.
        self._line = getattr(context._gateway._gateway_client, "get_thread_connection", None)
        scala = context._jsc.sc()
        self._scheduler = scala.dagScheduler()
        self._bus = scala.listenerBus()
        self._tracker = scala.statusTracker()
        self._store = scala.statusStore()

    def job_of(self, stage: int) -> tuple[int | None, bool]:
        """The first of the jobs that a stage is at work for; and whether there is none for certain."""
        job = self._active_job_of(stage)
        if job is not None:
            return job, True
        try:
            self._bus.waitUntilEmpty(_PATIENCE)
        except Exception:  # its events are late
            return None, False
        return self._active_job_of(stage), True

    def _active_job_of(self, stage: int) -> int | None:
        for job in sorted(self._tracker.getActiveJobIds()):
            with suppress(Exception):  # it is forgotten by now
                if self._store.job(job).stageIds().contains(stage):
                    return int(job)
        return None

    def publish(self, transaction: Transaction | None) -> None:
        """The ambient transaction of this thread is another one now, or may be."""
        told = self._named(transaction)
        if self._lost():
            self._here.__dict__.clear()
        if told == getattr(self._here, "told", None):
            return
        self._here.told = None  # an interrupt may come before the answer
        try:
            self.context.setLocalProperty(AMBIENT, f"{told}@{self._address}" if told else "")
            self._here.told = told
            line = None if self._line is None else self._line()
            self._here.line = None if line is None else ref(line)
            self._trace(transaction if told else None)
            self._tag(transaction if told else None)
        except Exception as error:
            logger.warning("Spark cannot be told of the transaction %s: %s", told or "that has ended", error)

    def _lost(self) -> bool:
        """Whether this thread has another one of Java's by now, which has no properties: an interrupt does that."""
        line = getattr(self._here, "line", None)
        if line is None:
            return False
        connection = line()
        return connection is None or connection.socket is None

    def _named(self, transaction: Transaction | None) -> str:
        """What jobs of this thread may be a part of: its transaction, and those of others who share the thread."""
        if not hasattr(_thread, "token"):
            _thread.token = object()
        here = [] if transaction is None or transaction.ended else [transaction]
        for each in here:
            if _THREAD not in each.values:
                self._meet(each)
        shared = asyncio._get_running_loop() is not None
        if shared:
            here += [it for it in open_transactions() if it.values[_THREAD] is _thread.token and it not in here]
        if not here:
            return ""
        sure = self._pinned and not shared and here[0].values[_ALONE] and here[0].values[_THREAD] is _thread.token
        return ("" if sure else UNSURE) + " ".join(each.gtrid for each in here)

    def _meet(self, transaction: Transaction) -> None:
        transaction.values[_THREAD] = _thread.token
        transaction.values[_ALONE] = asyncio._get_running_loop() is None
        # Its own commit() ends it, and leaves it ambient.
        gtrid = transaction.gtrid
        transaction.after_completion(lambda _: _forget(gtrid))
        with _lock:
            _known[gtrid] = transaction
            _open.add(gtrid)

    def begun(self) -> int:
        """How many jobs Spark has begun."""
        return int(self._scheduler.numTotalJobs())

    def forget(self, gtrid: str) -> None:
        """It has ended, and this thread, where it has told of it, tells no more of it."""
        if gtrid not in (getattr(self._here, "told", None) or "").split():
            return
        if self._lost() and not isinstance(sys.exception(), KeyboardInterrupt):
            logger.warning(
                "%s: Spark's connection of this thread was lost within it (an interrupt does that), and there was no "
                "chance to tell later jobs of the transaction: what their functions have written by txpool.connect(), "
                "or the format, if they have, is committed on its own",
                gtrid,
            )
        self.publish(None)

    def _trace(self, transaction: Transaction | None) -> None:
        """The jobs' tasks go on with its trace, where it has one."""
        traceparent = "" if transaction is None or transaction.trace is None else transaction.trace.traceparent
        if traceparent != getattr(self._here, "traceparent", ""):
            self.context.setLocalProperty(TRACEPARENT, traceparent)
            self._here.traceparent = traceparent

    def _tag(self, transaction: Transaction | None) -> None:
        """What the thread has Spark do within a transaction that has a timeout is cancelled by that."""
        former, self._here.tag = getattr(self._here, "tag", None), None
        if former is not None:
            self.context.removeJobTag(former)
        if transaction is not None and transaction.deadlines.before_decision() is not None:
            self._here.tag = tag = transaction.gtrid
            self.context.addJobTag(tag)
            if _TAGGED not in transaction.values:
                transaction.values[_TAGGED] = True
                transaction.on_cancel(lambda: self.context.cancelJobsWithTag(tag))


def _after_fork_in_child() -> None:
    global _lock, _properties, _parents
    _lock = threading.Lock()
    _parents, _properties = _active() or _parents, None


os.register_at_fork(after_in_child=_after_fork_in_child)
