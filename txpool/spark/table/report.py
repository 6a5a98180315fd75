"""The report of a write_table() at its end, and the reports of its progress while it runs."""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import AbstractContextManager, closing, nullcontext
from contextvars import Context
from dataclasses import dataclass, replace

from pyspark import Accumulator, AccumulatorParam

from txpool.datasource import DataSource
from txpool.spark.commit.background import BackgroundThread
from txpool.spark.table.dialect import dialect_of

logger = logging.getLogger("txpool")

_REPORT_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class WriteReport:
    """What a write_table() did. Its work commits or rolls back with the transaction."""

    gtrid: str
    #: The number of the write within the transaction, from 0.
    write: int
    #: The full name of the table.
    table: str
    mode: str
    #: How the rows were written: direct, staged, each (partition a transaction of its own), collected (by the driver,
    #: for SQLite), or skipped if there was nothing to do.
    strategy: str = "skipped"
    partitions: int = 0
    #: Task attempts that Spark started: partitions, retries and speculative copies.
    attempts: int = 0
    rows: int = 0
    #: The bytes sent to the database; if the driver has collected the rows, their bytes in Arrow.
    bytes: int = 0
    seconds: float = 0.0

    @property
    def label(self) -> str:
        """The tag of the write's job, and the application_name of its sessions."""
        return f"{self.gtrid}/{self.write}"


@dataclass(frozen=True, slots=True)
class Progress:
    """The progress of a write. Rows and bytes include what the database has received of unfinished partitions."""

    partitions: int
    #: The number of finished partitions.
    done: int
    rows: int
    bytes: int


class FinishedPartitions(AccumulatorParam[dict[int, tuple[int, int]]]):
    """Collects the sizes of finished partitions; a partition that was written twice counts once."""

    def zero(self, value: dict[int, tuple[int, int]]) -> dict[int, tuple[int, int]]:
        return {}

    def addInPlace(
        self, value1: dict[int, tuple[int, int]], value2: dict[int, tuple[int, int]]
    ) -> dict[int, tuple[int, int]]:
        value1.update(value2)
        return value1


def reporting(
    callback: Callable[[Progress], object] | None, measure: Callable[[], Progress], label: str
) -> AbstractContextManager[object]:
    """A ProgressReporter for the length of a block, if there is a callback."""
    return nullcontext() if callback is None else ProgressReporter(callback, measure, label)


class ProgressReporter(BackgroundThread):
    """Calls the callback with the progress about once a second while a block runs, and at its end.

    Both the callback and `measure` are called in a thread of the reporter's own.
    """

    def __init__(self, callback: Callable[[Progress], object], measure: Callable[[], Progress], label: str) -> None:
        super().__init__("txpool-spark-progress")
        self._callback = callback
        self._measure = measure
        self._label = label
        self._last: Progress | None = None

    def _run(self) -> None:
        while not self._stopped.wait(_REPORT_SECONDS):
            self._report()
        self._report()

    def _report(self) -> None:
        now, last = self._measure(), self._last
        if last is not None:
            # For a moment, a COPY that has just ended is counted neither by the server nor by the accumulator.
            now = replace(now, rows=max(now.rows, last.rows), bytes=max(now.bytes, last.bytes))
        if now != last:
            self._last = now
            try:
                self._callback(now)
            except Exception:
                logger.exception("%s: the progress callback failed; the write goes on", self._label)


@dataclass(frozen=True, slots=True)
class CopyProgress:
    """Measures the progress of tasks that write.

    Writes that run are measured by the server, if it tells (PostgreSQL's pg_stat_progress_copy). If it does not
    answer, only finished partitions count.
    """

    datasource: DataSource
    label: str
    partitions: int
    #: The sizes of finished partitions; None if tasks do not report them.
    done: Accumulator[dict[int, tuple[int, int]]] | None

    def progress(self) -> Progress:
        finished: dict[int, tuple[int, int]] = {} if self.done is None else dict(self.done.value)
        rows, size = self._running() if len(finished) < self.partitions else (0, 0)
        rows += sum(number for number, _ in finished.values())
        size += sum(number for _, number in finished.values())
        return Progress(self.partitions, len(finished), rows, size)

    def _running(self) -> tuple[int, int]:
        def ask() -> tuple[int, int]:
            with closing(self.datasource.connect()) as connection:
                return dialect_of(self.datasource).running(connection, self.label)

        try:
            return Context().run(ask)
        except Exception:
            return 0, 0
