"""The trace of a transaction in Spark's tasks, whose processes are others than the driver's."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from typing import Any

from pyspark import cloudpickle

from txpool import tracing
from txpool.tm.ambient import current

logger = logging.getLogger("txpool")


@dataclass(frozen=True, slots=True)
class TaskTrace:
    """What travels with a job; empty where nothing is traced."""

    traceparent: str = ""
    #: The pickled function that makes the provider in a task's process.
    provider: bytes = b""


NOT_TRACED = TaskTrace()


def ambient_trace() -> TaskTrace:
    """On the driver: that of the ambient transaction."""
    transaction = current()
    trace = None if transaction is None else transaction.trace
    return NOT_TRACED if trace is None else TaskTrace(trace.traceparent, _packed())


def planned_trace(gtrid: str, *, own: bool) -> TaskTrace:
    """On the driver: that of a transaction of its own, which begins once its tasks have ended.

    Without `own` its place in a trace is another's, of whom the job will tell.
    """
    if tracing.tracer is None:
        return NOT_TRACED
    return TaskTrace(tracing.tracer.plan(gtrid) if own else "", _packed())


def _packed() -> bytes:
    made = None if tracing.tracer is None else tracing.tracer.in_tasks
    return b"" if made is None else _pickled(made)


@cache
def _pickled(made: Callable[[], Any]) -> bytes:
    """Once for all jobs, so that a task's process sees that it is the same."""
    return bytes(cloudpickle.dumps(made))  # type: ignore[no-untyped-call]


@contextmanager
def traced(trail: TaskTrace, gtrid: str, **numbers: int) -> Iterator[tracing.Trace | None]:
    """In a task: the span of the block, by its numbers; None where it has none."""
    tracer = _tracer(trail.provider) if trail.traceparent else None
    trace = None if tracer is None else tracer.task(gtrid, trail.traceparent, numbers)
    if tracer is None or trace is None:
        yield None
        return
    token = trace.enter()
    try:
        yield trace
    except BaseException as error:
        trace.failed(error)
        raise
    finally:
        trace.leave(token)
        trace.close()
        tracer.flush()  # Spark may end the process at any time


def _tracer(provider: bytes) -> tracing.Tracer | None:
    """That of the driver's function, once for a process; without one, this process's own."""
    if provider or tracing.tracer is None:
        tracing.tracer = _built(provider)
    return tracing.tracer


@cache
def _built(provider: bytes) -> tracing.Tracer | None:
    """Where it fails once it would fail for each task."""
    try:
        from txpool.tracing.opentelemetry import instrument

        instrument(cloudpickle.loads(provider)() if provider else None)
    except Exception as error:
        logger.warning("the tasks in this process are not traced: %s: %s", type(error).__name__, error)
        return None
    return tracing.tracer
