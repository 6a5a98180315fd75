"""The state of one write's jobs and task attempts, from Spark's status store. The store exists without the web UI."""

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
#: How long Spark's events may take to reach its status store, once the job has ended.
_EVENTS_TIMEOUT_MILLISECONDS = 10_000
#: How long tasks may take to end after a cancel. Spark sees it within two seconds, and kills the worker two later.
_KILL_SECONDS = 10.0
_POLL_SECONDS = 0.1


@dataclass(frozen=True, slots=True)
class FailedAttempts:
    """The attempts of a write with failures: the partition of each, by attempt number. Empty without failures."""

    #: The attempts that failed or were killed. Their processes may still be running.
    ended: dict[int, int] = field(default_factory=dict)
    #: The attempts that are running now.
    running: dict[int, int] = field(default_factory=dict)


class TaggedJob:
    """The Spark jobs of one write, found by a job tag, so that the user's job group is not touched.

    The tasks of the last job's last stage write; Spark may run other jobs before it to plan the query.
    """

    def __init__(self, context: SparkContext, tag: str) -> None:
        self._context = context
        self._tag = tag
        scala: Any = context._jsc.sc()
        self._bus = scala.listenerBus()
        self._tracker = scala.statusTracker()
        self._store = scala.statusStore()

    def __enter__(self) -> TaggedJob:
        publish(current())  # the session may be newer than the transaction, and later jobs of the user need it, too
        self._context.addJobTag(self._tag)
        return self

    def __exit__(self, *error: object) -> None:
        self._context.removeJobTag(self._tag)

    def cancel(self, *, wait: bool = False) -> None:
        """Ask Spark to stop the tasks, and with `wait` give them some seconds to end. Unreachable tasks go on."""
        self._context.cancelJobsWithTag(self._tag)
        deadline = monotonic() + _KILL_SECONDS
        while wait and monotonic() < deadline:
            job = self._job()
            if job is None or not self._store.lastStageAttempt(self._writing_stage(job)).numActiveTasks():
                return
            sleep(_POLL_SECONDS)  # Spark offers no event to wait for

    def failed_attempts(self) -> FailedAttempts:
        """The attempts that failed or were killed, and then also the running ones; empty if there are no failures."""
        job = self._job()
        if job is None or not job.numFailedTasks() + job.numKilledTasks():
            return FailedAttempts()
        number = self._writing_stage(job)
        return FailedAttempts(dict(self._tasks(number, "FAILED", "KILLED")), dict(self._tasks(number, "RUNNING")))

    def attempts(self) -> tuple[int, bool]:
        """The number of attempts that the ended job started, and whether each of them succeeded."""
        with suppress(Py4JJavaError):  # events that are late leave numbers which say "not all succeeded"
            self._bus.waitUntilEmpty(_EVENTS_TIMEOUT_MILLISECONDS)
        job = self._job()
        return (0, False) if job is None else _attempts(self._store, self._writing_stage(job))

    def _job(self) -> Any:
        jobs = self._tracker.getJobIdsForTag(self._tag)
        job = self._store.job(max(jobs)) if len(jobs) else None
        return job if job is not None and job.stageIds().size() else None  # a job over no partitions has no stages

    def _writing_stage(self, job: Any) -> int:
        stages = job.stageIds()
        return max(int(stages.apply(n)) for n in range(stages.size()))

    def _tasks(self, stage: int, *names: str) -> Iterator[tuple[int, int]]:
        java: Any = self._context._jvm
        v1 = java.org.apache.spark.status.api.v1
        statuses = java.java.util.ArrayList()
        for name in names:
            statuses.add(getattr(v1.TaskStatus, name))
        for attempt in range(self._store.lastStageAttempt(stage).attemptId() + 1):
            tasks = self._store.taskList(stage, attempt, 0, _ALL, v1.TaskSorting.ID, statuses)
            for task in map(tasks.apply, range(tasks.size())):
                yield task.taskId(), task.partitionId()


def attempts_of_stage(context: SparkContext, stage: int) -> tuple[int, bool]:
    """The number of attempts that an ended stage of any job started, and whether each of them succeeded."""
    scala: Any = context._jsc.sc()
    try:
        scala.listenerBus().waitUntilEmpty(_EVENTS_TIMEOUT_MILLISECONDS)
        return _attempts(scala.statusStore(), stage)
    except Py4JJavaError:  # Spark has dropped the stage from its store, or its events are late
        return 0, False


def _attempts(store: Any, stage: int) -> tuple[int, bool]:
    last = store.lastStageAttempt(stage)
    started = sum(store.taskList(stage, n, _ALL).size() for n in range(last.attemptId() + 1))
    return started, started == last.numCompleteTasks()
