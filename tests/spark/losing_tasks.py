"""What a task does to be lost, once. Drivers and executors of the scripts import it."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import psycopg
import pyarrow as pa
from pyspark import TaskContext

#: For mapInArrow: all batches go on, and the executor of one task is killed, once.
Loss = Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]


def first_time(once: Path) -> bool:
    """True in one task attempt of partition 0, which leaves this file, and in no other."""
    if _task().partitionId() != 0 or once.exists():
        return False
    once.touch()
    return True


def kill_executor() -> None:
    """Kill the executor of this task, which is the parent of the workers' daemon."""
    executor = Path(f"/proc/{os.getppid()}/stat").read_text().rpartition(")")[2].split()[1]
    os.kill(int(executor), signal.SIGKILL)


def dies_in_copy(once: Path) -> Loss:
    """The task is lost behind its first batch."""

    def loss(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield next(batches)
        if first_time(once):
            kill_executor()
        yield from batches

    return loss


def outlives_its_executor(once: Path, dsn: str) -> Loss:
    """The executor is killed once its first batch is copied; its Python workers live on, since their daemon is stopped.

    The file has the pid of that daemon.
    """
    query = "select 1 from pg_stat_activity where datname = current_database() and query ~* '^ *copy '"

    def loss(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield next(batches)
        yield next(batches)  # now the first has gone on
        if first_time(once):
            with psycopg.connect(dsn, autocommit=True) as connection:
                while connection.execute(query).fetchone() is None:
                    pass
            once.write_text(str(os.getppid()))
            os.kill(os.getppid(), signal.SIGSTOP)
            kill_executor()
        yield from batches

    return loss


def dies_prepared(once: Path, dsn: str) -> Loss:
    """The task is lost as soon as its first branch is prepared in that database."""

    def kill_once(query: str) -> None:
        with psycopg.connect(dsn, autocommit=True) as connection:
            while connection.execute(query).fetchone() is None:
                pass
        kill_executor()

    def loss(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        if first_time(once):
            query = f"select 1 from pg_prepared_xacts where gid like '%.{_task().taskAttemptId()}.1'"
            threading.Thread(target=kill_once, args=[query], daemon=True).start()
        yield from batches

    return loss


def _task() -> TaskContext:
    context = TaskContext.get()
    assert context is not None
    return context
