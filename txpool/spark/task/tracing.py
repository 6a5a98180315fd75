"""Carries the trace of a transaction from the driver to the processes of Spark's tasks."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from typing import Any

from pyspark import cloudpickle

from txpool import tracing
from txpool.errors import described
from txpool.tm.ambient import current

logger = logging.getLogger("txpool")


@dataclass(frozen=True, slots=True)
class TaskTrace:
    """The trace that a job's tasks belong to, as plain data; both fields are empty if nothing is traced."""

    traceparent: str = ""
    #: The pickled function that creates the tracer provider in a task's process; empty for the process's own.
    provider: bytes = b""


NOT_TRACED = TaskTrace()


def ambient_trace() -> TaskTrace:
    """The trace of the ambient transaction. Called on the driver."""
    transaction = current()
    trace = None if transaction is None else transaction.trace
    return NOT_TRACED if trace is None else TaskTrace(trace.traceparent, _pickled_provider())


def planned_trace(gtrid: str, *, own: bool) -> TaskTrace:
    """The trace of a write whose own transaction begins only after its tasks have ended. Called on the driver.

    Without `own` the write is part of another transaction, whose traceparent is a local property of the job.
    """
    if tracing.tracer is None:
        return NOT_TRACED
    return TaskTrace(tracing.tracer.plan(gtrid) if own else "", _pickled_provider())


def _pickled_provider() -> bytes:
    make_provider = None if tracing.tracer is None else tracing.tracer.in_tasks
    return b"" if make_provider is None else _pickled(make_provider)


@cache
def _pickled(make_provider: Callable[[], Any]) -> bytes:
    """The pickled function. Cached, so that all jobs send the same bytes, which `_built` has as its key."""
    return bytes(cloudpickle.dumps(make_provider))  # type: ignore[no-untyped-call]


@contextmanager
def traced(task_trace: TaskTrace, gtrid: str, **numbers: int) -> Iterator[tracing.Trace | None]:
    """The span of a block in a task, with the numbers as attributes; None if nothing is traced."""
    tracer = _tracer_of_process(task_trace.provider) if task_trace.traceparent else None
    trace = None if tracer is None else tracer.task(gtrid, task_trace.traceparent, numbers)
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


def _tracer_of_process(provider: bytes) -> tracing.Tracer | None:
    """The tracer built by the driver's function, one for the process; without a function, the process's own tracer."""
    if provider or tracing.tracer is None:
        tracing.tracer = _built(provider)
    return tracing.tracer


@cache
def _built(provider: bytes) -> tracing.Tracer | None:
    """The tracer of a provider; None if it cannot be built. Cached, also because it would fail again for each task."""
    try:
        from txpool.tracing.opentelemetry import instrument

        instrument(cloudpickle.loads(provider)() if provider else None)
    except Exception as error:
        logger.warning("the tasks in this process are not traced: %s", described(error))
        return None
    return tracing.tracer
