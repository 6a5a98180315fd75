"""The demo's job, as a data engineer would write it: flights from Spark, totals and a ledger row in one transaction.

``python -m txpool.demo.job FOLDER RUN [options]`` runs it as the child process that a scenario kills.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import txpool
from txpool.demo.flights import COLUMNS, read_dataframe, read_rows
from txpool.demo.java import spark_environment
from txpool.errors import ConfigurationError

#: The number of partitions without Spark.
_PARTITIONS = 4

# A process runs one small job: what compilers and planners prepare for a long run would cost more than it saves.
_SHORT_RUN = {
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.shuffle.partitions": "2",
}

Write = Callable[[Iterable[Any]], None]


class Flights:
    """The flights without Spark: this process writes every partition."""

    def __init__(self, rows: int | None) -> None:
        self._rows = rows

    def write_partitions(self, write: Write, datasource: Path) -> None:
        """Call `write` with the rows of each partition; it writes them into the datasource of that file."""
        flights = list(read_rows(self._rows))
        size = -(-len(flights) // _PARTITIONS)
        for start in range(0, len(flights), size):
            write(flights[start : start + size])

    def totals(self) -> list[tuple[str, int]]:
        carrier = list(COLUMNS).index("carrier")
        return sorted(Counter(str(row[carrier]) for row in read_rows(self._rows)).items())


class SparkFlights(Flights):
    """The flights as a Spark DataFrame: tasks write the partitions."""

    def __init__(self, spark: Any, folder: Path, rows: int | None) -> None:
        super().__init__(rows)
        self._flights = read_dataframe(spark, folder, rows)

    def write_partitions(self, write: Write, datasource: Path) -> None:
        from txpool.spark import foreach_partition

        foreach_partition(self._flights, write, datasources=[datasource])

    def totals(self) -> list[tuple[str, int]]:
        return [(row["carrier"], row["count"]) for row in self._flights.groupBy("carrier").count().collect()]


def prepare_spark(folder: Path) -> Path:
    """Set the environment of this process so that Spark starts, and return its folder. Errors: ConfigurationError."""
    if importlib.util.find_spec("pyspark") is None:
        raise ConfigurationError("Spark is not installed: pip install 'txpool[demo]', or txpool demo --no-spark")
    scratch = folder / "spark"
    scratch.mkdir(exist_ok=True)
    os.environ.update(spark_environment(scratch))
    return scratch


@contextmanager
def open_flights(folder: Path, rows: int | None, *, spark: bool) -> Iterator[Flights]:
    """The flights for the length of a block, with a Spark session of two threads or without Spark."""
    if not spark:
        yield Flights(rows)
        return
    scratch = prepare_spark(folder)
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.master("local[2]").appName("txpool demo").config("spark.ui.enabled", "false")
    builder = builder.config("spark.ui.showConsoleProgress", "false").config("spark.log.level", "OFF")
    builder = builder.config("spark.sql.warehouse.dir", str(scratch / "warehouse"))
    for name, value in _SHORT_RUN.items():
        builder = builder.config(name, value)
    with _errors_into(scratch / "spark.log"):
        session = builder.getOrCreate()
    try:
        yield SparkFlights(session, scratch, rows)
    finally:
        session.stop()


def java_of_this_process() -> dict[str, str]:
    """The environment variables by which another process uses the Java of this one; none if it has started no Java.

    A Java has one Spark session at a time, so this process must have stopped its own.
    """
    gateway = _gateway()
    if gateway is None:
        return {}
    parameters = gateway.gateway_parameters
    return {"PYSPARK_GATEWAY_PORT": str(parameters.port), "PYSPARK_GATEWAY_SECRET": parameters.auth_token}


def stop_session_of_killed() -> None:
    """Stop the Spark session that a killed process has left in the Java of this one."""
    gateway = _gateway()
    if gateway is not None:
        gateway.jvm.org.apache.spark.SparkContext.getOrCreate().stop()


def _gateway() -> Any:
    """What connects this process with its Java; None if it has none."""
    pyspark = sys.modules.get("pyspark")
    return None if pyspark is None else pyspark.SparkContext._gateway


@contextmanager
def _errors_into(file: Path) -> Iterator[None]:
    """Redirect stderr of the processes that are started in the block into a file, since Java's would confuse users."""
    kept = os.dup(2)
    with file.open("a") as log:
        os.dup2(log.fileno(), 2)
    try:
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)


class HalfWayFailure(Exception):
    """Stands for a bug in the user's writer."""


def write_flights(flights: Flights, conf: Path, run: int, *, fails_after: int | None = None) -> None:
    """Write to all three databases in one transaction. A partition raises HalfWayFailure after `fails_after` rows."""

    def write(rows: Iterable[Any]) -> None:
        # An ordinary DB-API writer, without any code for the larger transaction that it is a part of.
        columns = f"{', '.join(COLUMNS)}, run"
        with (
            txpool.connect(str(conf / "flights.properties")) as connection,
            connection.cursor() as cursor,
            cursor.copy(f"copy flights ({columns}) from stdin") as copy,
        ):
            for number, row in enumerate(rows):
                if number == fails_after:
                    raise HalfWayFailure(f"a partition fails after {number:,} rows")
                copy.write_row((*row, run))

    with txpool.transaction():
        flights.write_partitions(write, conf / "flights.properties")
        totals = flights.totals()
        with txpool.connect(str(conf / "totals.properties")) as connection, connection.cursor() as cursor:
            cursor.executemany("insert into totals values (%s, %s, %s)", [(run, *total) for total in totals])
        with txpool.connect(str(conf / "ledger.properties")) as connection:
            number = sum(flights for _, flights in totals)
            connection.cursor().execute("insert into ledger (run, flights) values (?, ?)", (run, number))


def main() -> None:
    """The child process of a scenario, which TXPOOL_FAILPOINTS kills at a failpoint."""
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("run", type=int)
    parser.add_argument("--rows", type=int)
    parser.add_argument("--no-spark", action="store_true")
    arguments = parser.parse_args()
    conf = arguments.folder / "conf"
    txpool.configure(conf / "txpool.properties")
    with open_flights(arguments.folder, arguments.rows, spark=not arguments.no_spark) as flights:
        write_flights(flights, conf, arguments.run)


if __name__ == "__main__":
    main()
