"""Whether a task has read all its rows: a Python worker takes the end of its connection for the end of the rows.

If its executor is killed, or lets go of the worker, the worker sees fewer rows and no error. What it prepared then
would be adopted by the retry. Behind the last row Spark sends the end of the task: only that proves that none is
missing.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from types import FrameType
from typing import Any

from txpool.errors import OperationalError


def whole(rows: Iterator[Any]) -> Iterator[Any]:
    """The rows of a partition, for a task of Spark's own methods that begins a transaction.

    If the executor is killed while it sends rows, Spark's Python worker sees fewer of them and no error, and the
    transaction would commit a part of the partition. OperationalError then, behind the last row that has come.
    """
    return TaskInput(rows).rows()


class TaskInput:
    """The rows of one task."""

    def __init__(self, rows: Iterator[Any]) -> None:
        self._rows = rows
        self._is_cut_off = False

    def rows(self) -> Iterator[Any]:
        """The rows. OperationalError behind the last one that has come if others are missing."""
        yield from self._rows
        self._is_cut_off = _is_cut_off()
        self.require_whole()

    def require_whole(self) -> None:
        """OperationalError if rows are known to be missing."""
        if self._is_cut_off:
            raise OperationalError(
                "the executor has gone, or has let go of this task, before it had sent all rows: the task rolls "
                "back. Spark runs it again"
            )


def _is_cut_off() -> bool:
    """Whether the worker's connection has ended where the end of the task is to come. False if nobody can tell."""
    stream = _stream_of_worker(sys._getframe())
    if stream is None:
        return False
    try:
        return not stream.peek(1)
    except OSError:
        return True


def _stream_of_worker(frame: FrameType | None) -> Any:
    """What `main` of pyspark's worker reads from. There is no other way to it."""
    while frame is not None:
        if frame.f_code.co_name == "main" and frame.f_code.co_filename.endswith("worker.py"):
            found = frame.f_locals.get("infile")
            return found if hasattr(found, "peek") else None
        frame = frame.f_back
    return None
