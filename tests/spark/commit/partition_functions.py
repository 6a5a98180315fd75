"""Functions for partitions. Drivers and executors of the scripts import them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from pyspark import TaskContext

import txpool


def insert(rows: Iterator[Any]) -> Iterator[tuple[int, int]]:
    here = TaskContext.get()
    assert here is not None
    cursor = txpool.connect("one.properties").cursor()
    for row in rows:
        cursor.execute("insert into landed values (%s, %s)", [row, here.taskAttemptId()])
        yield row, here.taskAttemptId()
