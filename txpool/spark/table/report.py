"""What a write_table() reports: a value at its end, and numbers while it runs."""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import AbstractContextManager, closing, nullcontext
from contextvars import Context
from dataclasses import dataclass, replace
from typing import Any

from pyspark import Accumulator, AccumulatorParam

from txpool.datasource import DataSource
from txpool.spark.commit.background import BackgroundThread

logger = logging.getLogger("txpool")

_PERIOD = 1.0
_RUNNING = """
    select coalesce(sum(c.tuples_processed), 0)::int8, coalesce(sum(c.bytes_processed), 0)::int8
    from pg_stat_progress_copy c join pg_stat_activity a using (pid)
    where a.application_name = %(label)s or starts_with(a.application_name, %(label)s || '/')
"""


@dataclass(frozen=True, slots=True)
class WriteReport:
    """What a write_table() did; its work commits or rolls back with the transaction."""

    gtrid: str
    #: Which Spark write of the transaction it was, from 0.
    write: int
    #: The table's full name.
    table: str
    mode: str
    #: How the rows got there: direct, staged, each (partition on its own), collected (by the driver, for SQLite), or
    #: skipped where nothing was to be done.
    strategy: str = "skipped"
    partitions: int = 0
    #: Task attempts that Spark started: partitions, retries and speculative copies.
    attempts: int = 0
    rows: int = 0
    #: Bytes of COPY, as they were sent; of Arrow, where the driver has collected them.
    bytes: int = 0
    seconds: float = 0.0

    @property
    def label(self) -> str:
        """What its job, and its sessions, are called."""
        return f"{self.gtrid}/{self.write}"


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a write has come: what is done, and what the database has received of the rest."""

    partitions: int
    #: Partitions whose rows are all there.
    done: int
    rows: int
    bytes: int


class FinishedPartitions(AccumulatorParam[dict[int, tuple[int, int]]]):
    """The sizes of finished partitions; of a partition that was written twice, one counts."""

    def zero(self, value: dict[int, tuple[int, int]]) -> dict[int, tuple[int, int]]:
        return {}

    def addInPlace(  # noqa: N802 - the name is Spark's
        self, value1: dict[int, tuple[int, int]], value2: dict[int, tuple[int, int]]
    ) -> dict[int, tuple[int, int]]:
        value1.update(value2)
        return value1


def reporting(
    callback: Callable[[Progress], object] | None, look: Callable[[], Progress], label: str
) -> AbstractContextManager[object]:
    """A `Watch` where somebody wants to be called."""
    return nullcontext() if callback is None else ProgressReporter(callback, look, label)


class ProgressReporter(BackgroundThread):
    """Calls back once a second while a block runs, and once at its end, in a thread of its own: with what `look` tells,
    which is asked once more at the end.
    """

    def __init__(self, callback: Callable[[Progress], object], measure: Callable[[], Progress], label: str) -> None:
        super().__init__("txpool-spark-progress")
        self._callback = callback
        self._look = measure
        self._label = label
        self._last: Progress | None = None

    def _run(self) -> None:
        while not self._stopped.wait(_PERIOD):
            self._report()
        self._report()

    def _report(self) -> None:
        now, last = self._look(), self._last
        if last is not None:
            # A COPY that has just ended is in neither of the server's numbers nor in ours for a moment.
            now = replace(now, rows=max(now.rows, last.rows), bytes=max(now.bytes, last.bytes))
        if now != last:
            self._last = now
            try:
                self._callback(now)
            except Exception:
                logger.exception("%s: the progress callback failed; the write goes on", self._label)


@dataclass(frozen=True, slots=True)
class CopyProgress:
    """How far tasks are that COPY.

    Rows that are on their way are the server's own numbers (pg_stat_progress_copy); where it cannot be asked, only
    finished partitions count.
    """

    datasource: DataSource
    label: str
    partitions: int
    #: None where tasks do not say when they have finished.
    done: Accumulator[dict[int, tuple[int, int]]] | None

    def progress(self) -> Progress:
        finished: dict[int, tuple[int, int]] = {} if self.done is None else dict(self.done.value)
        rows, size = self._running() if len(finished) < self.partitions else (0, 0)
        rows += sum(number for number, _ in finished.values())
        size += sum(number for _, number in finished.values())
        return Progress(self.partitions, len(finished), rows, size)

    def _running(self) -> tuple[int, int]:
        def ask() -> Any:
            with closing(self.datasource.connect()) as connection:
                return connection.cursor().execute(_RUNNING, {"label": self.label}).fetchone()

        try:
            rows, size = Context().run(ask)
        except Exception:
            return 0, 0
        return rows, size
