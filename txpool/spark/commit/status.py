"""What Spark itself says of the attempts of one write: read from the driver's status store, which is always there."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from time import monotonic, sleep
from typing import Any

from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]
from pyspark import SparkContext

from txpool.jobs.properties import publish
from txpool.tm.ambient import current

_ALL = 2**31 - 1
#: Milliseconds for Spark's own events to reach its status store, once the job has ended.
_PATIENCE = 10_000
#: Seconds: Spark gives a Python worker two to end by itself, before it kills it.
_KILL_TIME = 5.0
_PAUSE = 0.1


@dataclass(frozen=True, slots=True)
class FailedAttempts:
    """The attempts of a write in which something went wrong, each with its partition."""

    #: Those that failed or were killed. Their processes may live on all the same.
    ended: dict[int, int] = field(default_factory=dict)
    #: Those that run now.
    running: dict[int, int] = field(default_factory=dict)


class TaggedJob:
    """The jobs of one write, known by a tag of its own: the user's job group stays what it is.

    The last stage of the last job is the one whose tasks write; Spark may run others before to find its plan.
    """

    def __init__(self, context: SparkContext, tag: str) -> None:
        self._context = context
        self._tag = tag
        scala: Any = context._jsc.sc()
        self._bus = scala.listenerBus()
        self._tracker = scala.statusTracker()
        self._store = scala.statusStore()
        java: Any = context._jvm
        v1 = java.org.apache.spark.status.api.v1
        self._by_id = v1.TaskSorting.ID
        self._failed = _list(java, v1.TaskStatus.FAILED, v1.TaskStatus.KILLED)
        self._running = _list(java, v1.TaskStatus.RUNNING)

    def __enter__(self) -> TaggedJob:
        publish(current())  # other jobs of the user's may follow, in a session that was created within the transaction
        self._context.addJobTag(self._tag)
        return self

    def __exit__(self, *error: object) -> None:
        self._context.removeJobTag(self._tag)

    def cancel(self, *, wait: bool = False) -> None:
        """Have Spark stop the tasks, and wait for their end a little. Those that are out of its reach go on."""
        self._context.cancelJobsWithTag(self._tag)
        deadline = monotonic() + _KILL_TIME
        while wait and monotonic() < deadline:
            job = self._job()
            if job is None or not self._store.lastStageAttempt(self._writing(job)).numActiveTasks():
                return
            sleep(_PAUSE)  # there is no event for it

    def failed_attempts(self) -> FailedAttempts:
        """The attempts that ended badly, and then the ones that run; nothing is asked where all is well."""
        job = self._job()
        if job is None or not job.numFailedTasks() + job.numKilledTasks():
            return FailedAttempts()
        number = self._writing(job)
        return FailedAttempts(dict(self._tasks(number, self._failed)), dict(self._tasks(number, self._running)))

    def attempts(self) -> tuple[int, bool]:
        """Of the job that has ended: how many attempts were started, and whether each of them has succeeded."""
        with suppress(Py4JJavaError):  # where the events are late, the numbers say so
            self._bus.waitUntilEmpty(_PATIENCE)
        job = self._job()
        return (0, False) if job is None else _attempts(self._store, self._writing(job))

    def _job(self) -> Any:
        jobs = self._tracker.getJobIdsForTag(self._tag)
        job = self._store.job(max(jobs)) if len(jobs) else None
        return job if job is not None and job.stageIds().size() else None  # one over no partitions has no stages

    def _writing(self, job: Any) -> int:
        stages = job.stageIds()
        return max(int(stages.apply(n)) for n in range(stages.size()))

    def _tasks(self, stage: int, statuses: Any) -> Iterator[tuple[int, int]]:
        for attempt in range(self._store.lastStageAttempt(stage).attemptId() + 1):
            tasks = self._store.taskList(stage, attempt, 0, _ALL, self._by_id, statuses)
            for task in map(tasks.apply, range(tasks.size())):
                yield task.taskId(), task.partitionId()


def attempts_of_stage(context: SparkContext, stage: int) -> tuple[int, bool]:
    """The same of a stage that has ended, of whatever job."""
    scala: Any = context._jsc.sc()
    try:
        scala.listenerBus().waitUntilEmpty(_PATIENCE)
        return _attempts(scala.statusStore(), stage)
    except Py4JJavaError:  # Spark has forgotten it, or is late
        return 0, False


def _attempts(store: Any, stage: int) -> tuple[int, bool]:
    last = store.lastStageAttempt(stage)
    started = sum(store.taskList(stage, n, _ALL).size() for n in range(last.attemptId() + 1))
    return started, started == last.numCompleteTasks()


def _list(java: Any, *members: Any) -> Any:
    """A java.util.List."""
    made = java.java.util.ArrayList()
    for member in members:
        made.add(member)
    return made
