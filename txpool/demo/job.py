"""The demo's job: what a data engineer would write. Flights from Spark, totals and a ledger row, in one transaction.

Run as a program it is the child process that a scene kills: ``python -m txpool.demo.job FOLDER RUN [options]``.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import txpool
from txpool.demo.flights import COLUMNS, read_dataframe, read_rows
from txpool.demo.java import spark_environment
from txpool.errors import ConfigurationError

#: How many partitions the flights have without Spark; with it, Spark says.
_PARTITIONS = 4

Write = Callable[[Iterable[Any]], None]


class Flights:
    """The flights without Spark: the driver writes every partition itself."""

    def __init__(self, rows: int | None) -> None:
        self._rows = rows

    def write_partitions(self, write: Write, datasource: Path) -> None:
        """Give each partition's rows to `write`, which writes them into the datasource of that file."""
        flights = list(read_rows(self._rows))
        size = -(-len(flights) // _PARTITIONS)
        for start in range(0, len(flights), size):
            write(flights[start : start + size])

    def totals(self) -> list[tuple[str, int]]:
        carrier = list(COLUMNS).index("carrier")
        return sorted(Counter(str(row[carrier]) for row in read_rows(self._rows)).items())


class SparkFlights(Flights):
    """The flights as a Spark DataFrame: every partition is written by a task on an executor."""

    def __init__(self, spark: Any, folder: Path, rows: int | None) -> None:
        super().__init__(rows)
        self._flights = read_dataframe(spark, folder, rows)

    def write_partitions(self, write: Write, datasource: Path) -> None:
        from txpool.spark import foreach_partition

        foreach_partition(self._flights, write, datasources=[datasource])

    def totals(self) -> list[tuple[str, int]]:
        return [(row["carrier"], row["count"]) for row in self._flights.groupBy("carrier").count().collect()]


def prepare_spark(folder: Path) -> Path:
    """Find what Spark needs, and set this process's environment so that it starts. Errors: ConfigurationError."""
    if importlib.util.find_spec("pyspark") is None:
        raise ConfigurationError("Spark is not installed: pip install 'txpool[demo]', or txpool demo --no-spark")
    scratch = folder / "spark"
    scratch.mkdir(exist_ok=True)
    os.environ.update(spark_environment(scratch))
    return scratch


@contextmanager
def source(folder: Path, rows: int | None, *, spark: bool) -> Iterator[Flights]:
    """The flights, with a Spark of two threads around them or without one."""
    if not spark:
        yield Flights(rows)
        return
    scratch = prepare_spark(folder)
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.master("local[2]").appName("txpool demo").config("spark.ui.enabled", "false")
    builder = builder.config("spark.ui.showConsoleProgress", "false").config("spark.log.level", "OFF")
    builder = builder.config("spark.sql.warehouse.dir", str(scratch / "warehouse"))
    builder = builder.config("spark.sql.shuffle.partitions", "2")
    with _errors_into(scratch / "spark.log"):
        session = builder.getOrCreate()
    try:
        yield SparkFlights(session, scratch, rows)
    finally:
        session.stop()


@contextmanager
def _errors_into(file: Path) -> Iterator[None]:
    """Let the processes that are started meanwhile write their stderr into a file: Java's is not for people."""
    kept = os.dup(2)
    with file.open("a") as log:
        os.dup2(log.fileno(), 2)
    try:
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)


class HalfWayFailure(Exception):
    """The bug in somebody's writer."""


def write_flights(flights: Flights, conf: Path, run: int, *, fails: bool = False) -> None:
    """The job: all three databases, or none of them."""

    def write(rows: Iterable[Any]) -> None:
        # An ordinary DB-API writer: nothing in it knows that it is part of a larger transaction.
        columns = f"{', '.join(COLUMNS)}, run"
        with (
            txpool.connect(str(conf / "flights.properties")) as connection,
            connection.cursor() as cursor,
            cursor.copy(f"copy flights ({columns}) from stdin") as copy,
        ):
            for number, row in enumerate(rows):
                copy.write_row((*row, run))
                if fails and number == 1000:
                    raise HalfWayFailure("a partition fails after 1,000 rows")

    with txpool.transaction():
        flights.write_partitions(write, conf / "flights.properties")
        totals = flights.totals()
        with txpool.connect(str(conf / "totals.properties")) as connection, connection.cursor() as cursor:
            cursor.executemany("insert into totals values (%s, %s, %s)", [(run, *total) for total in totals])
        with txpool.connect(str(conf / "ledger.properties")) as connection:
            number = sum(flights for _, flights in totals)
            connection.cursor().execute("insert into ledger (run, flights) values (?, ?)", (run, number))


def main() -> None:
    """The child process of a scene; where it is killed, TXPOOL_FAILPOINTS says."""
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("run", type=int)
    parser.add_argument("--rows", type=int)
    parser.add_argument("--no-spark", action="store_true")
    arguments = parser.parse_args()
    conf = arguments.folder / "conf"
    txpool.configure(conf / "txpool.properties")
    with source(arguments.folder, arguments.rows, spark=not arguments.no_spark) as flights:
        write_flights(flights, conf, arguments.run)


if __name__ == "__main__":
    main()
