"""Rows out of Spark into PostgreSQL: write_table(), Spark's own JDBC writer, and the server's COPY of a file.

python tests/benchmarks/bench_spark_write.py [ROUNDS]            the ways of writing a million rows, in turn
python tests/benchmarks/bench_spark_write.py [ROUNDS] --sweep    time for a row, by partitions and by rows
python tests/benchmarks/bench_spark_write.py [ROUNDS] --price    what a write takes that has hardly any rows
python tests/benchmarks/bench_spark_write.py --memory            what a task needs, by the rows of its partition
python tests/benchmarks/bench_spark_write.py [ROUNDS] --formats  COPY's CSV against its binary format, type by type

Spark's writer needs PostgreSQL's JDBC jar: Debian's libpostgresql-jdbc-java, or the path in POSTGRESQL_JAR.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import statistics
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import psycopg
import pyarrow as pa
import pyarrow.compute as pc
from rich.console import Console
from rich.table import Table

sys.path.insert(0, str(Path(__file__).parents[2]))

from tests.benchmarks.report import compare, machine
from tests.benchmarks.session import local_session
from tests.spark.jdbc import jdbc
from txpool.datasource import DataSource
from txpool.demo.server import EmbeddedPostgres
from txpool.spark.table.postgresql.copying import PartitionCopy
from txpool.spark.table.postgresql.encoding import copy_options
from txpool.spark.types.encoding import ColumnEncoding

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

ROWS = 1_000_000
FEW = 1_000
PARTITIONS = 4
#: Rows and partitions of the sweep. The largest is measured once.
BY_PARTITIONS = [(ROWS, partitions) for partitions in (1, 4, 20, 50, 200)]
BY_ROWS = [(rows, PARTITIONS) for rows in (ROWS // 10, ROWS, ROWS * 10)]
SLOTS = {"max_prepared_transactions": "300", "max_wal_size": "8GB"}
_COLUMNS = "id bigint, n integer, x double precision, name text, seen timestamp"
_TICK = 1_000_000 / os.sysconf("SC_CLK_TCK")


def frame(spark: SparkSession, rows: int, partitions: int) -> DataFrame:
    return spark.range(rows, numPartitions=partitions).selectExpr(
        "id",
        "cast(id % 10000 as int) as n",
        "id * 0.37d as x",
        "concat('name-', id % 1000, '-', id) as name",
        "timestamp_micros(1600000000000000 + id * 1000003) as seen",
    )


class Bench:
    """A session, a server, and what is measured on them."""

    def __init__(self, spark: SparkSession, server: EmbeddedPostgres, source: DataSource) -> None:
        self._spark = spark
        self._server = server
        self._source = source
        self._connection = psycopg.connect(server.dsn("one"), autocommit=True)
        self._connection.execute(f"create table landed ({_COLUMNS})")
        #: How a DataFrame may get into the table `landed`; the first is what the others are compared with.
        self.ways: dict[str, Callable[[DataFrame], object]] = {
            "write_table": self._ours,
            "write_table, staged": partial(self._ours, strategy="staged"),
            'format("txpool")': self._format,
            'format("txpool"), staged': partial(self._format, strategy="staged"),
            "JDBC": self._jdbc,
            "JDBC, reWriteBatchedInserts": partial(self._jdbc, parameters="?reWriteBatchedInserts=true"),
        }

    def _ours(self, df: DataFrame, strategy: Any = "direct") -> object:
        from txpool.spark import write_table

        return write_table(df, self._source, "landed", strategy=strategy)

    def _format(self, df: DataFrame, strategy: str = "direct") -> None:
        options = {"datasource": str(self._source.settings.properties.path), "dbtable": "landed", "strategy": strategy}
        df.write.format("txpool").options(**options).mode("append").save()

    def _jdbc(self, df: DataFrame, parameters: str = "") -> None:
        options = jdbc(self._server, parameters) | {"dbtable": "landed"}
        df.write.format("jdbc").options(**options).mode("append").save()

    def timed(self, write: Callable[[], object], rows: int) -> float:
        """Seconds for one write into the empty table, whose rows are counted."""
        self._connection.execute("truncate landed")
        self._connection.execute("checkpoint")
        seconds = _seconds(write)
        found = self._connection.execute("select count(*) from landed").fetchone()
        assert found == (rows,), found
        return seconds

    def contest(self, rounds: int) -> None:
        """Every way, and the server's COPY of a file that has the same rows."""
        df = frame(self._spark, ROWS, PARTITIONS).cache()
        df.count()
        self.timed(partial(self._ours, df), ROWS)
        file = self._server.folder / "rows.copy"  # type: ignore[operator]
        self._connection.execute(f"copy landed to '{file}'")
        writes: dict[str, Callable[[], object]] = {name: partial(way, df) for name, way in self.ways.items()}
        writes["COPY FROM a file"] = partial(self._connection.execute, f"copy landed from '{file}'")
        compare(
            f"{ROWS:,} rows of five columns, {PARTITIONS} cached partitions, local[2]",
            {name: partial(self.timed, write, ROWS) for name, write in writes.items()},
            rounds=rounds,
            unit="s",
            bound="JDBC 2.5 and more, rewritten 1.4 and more, COPY 0.71 and more",
        )
        df.unpersist()

    def sweep(self, rounds: int, names: list[str]) -> None:
        """Time for a row, on the clock and of processors; the shapes are measured in turn, round by round."""
        table = Table(title=f"Time for a row in µs: medians of {rounds} rounds, of the largest one's single round")
        for heading in ("", "rows", "partitions", "µs a row", "min", "max", "ratio", "CPU: JVM", "Python", "server"):
            table.add_column(heading, justify="right" if heading else "left")
        shapes = list(dict.fromkeys([*BY_PARTITIONS, *BY_ROWS]))
        for name in names:
            found: dict[tuple[int, int], list[dict[str, float]]] = {shape: [] for shape in shapes}
            for turn in range(rounds + 1):  # the first warms up
                for rows, partitions in shapes:
                    if rows <= ROWS or turn == rounds:
                        spent = self._spent(self.ways[name], rows, partitions)
                        found[rows, partitions] += [spent] * bool(turn)
            for label, part in (("partitions", BY_PARTITIONS), ("rows", BY_ROWS)):
                base = statistics.median(spent["clock"] for spent in found[part[0]])
                for rows, partitions in part:
                    spents = found[rows, partitions]
                    clocks = [spent["clock"] for spent in spents]
                    cells = [statistics.median(clocks), min(clocks), max(clocks), statistics.median(clocks) / base]
                    cells += [statistics.median(spent[who] for spent in spents) for who in ("JVM", "Python", "server")]
                    table.add_row(f"{name}, by {label}", f"{rows:,}", str(partitions), *[f"{x:.2f}" for x in cells])
        _show(table, self._spark)

    def _spent(self, way: Callable[[DataFrame], object], rows: int, partitions: int) -> dict[str, float]:
        """Microseconds for a row: on the clock, and of processors by process."""
        before = _used()
        seconds = self.timed(partial(way, frame(self._spark, rows, partitions)), rows)
        spent = {who: (used - before[who]) / rows for who, used in _used().items()}
        return {"clock": seconds * 1e6 / rows, **spent}

    def price(self, rounds: int) -> None:
        """Every way for a few rows, and a job of Python's that only counts them."""
        df = frame(self._spark, FEW, PARTITIONS).cache()
        df.count()
        writes: dict[str, Callable[[], float]] = {
            name: partial(self.timed, partial(way, df), FEW) for name, way in self.ways.items()
        }
        counting = df.mapInArrow(_count, "rows long")
        compare(
            f"{FEW:,} rows in {PARTITIONS} cached partitions, local[2]",
            {"a job that only counts": lambda: _seconds(counting.rdd.collect)} | writes,
            rounds=rounds,
            unit="s",
        )
        df.unpersist()

    def memory(self) -> None:
        """The largest Python worker while one partition of so many rows is written."""
        table = Table(title="Memory of a task: the largest Python worker, all rows in one partition")
        for heading in ("", "rows", "before MB", "peak MB"):
            table.add_column(heading, justify="right" if heading else "left")
        for name in ("write_table", "write_table, staged"):
            for rows in (ROWS // 10, ROWS, ROWS * 10):
                with Workers() as workers:
                    self.timed(partial(self.ways[name], frame(self._spark, rows, 1)), rows)
                table.add_row(name, f"{rows:,}", f"{workers.before / 1024:.0f}", f"{workers.peak / 1024:.0f}")
        _show(table, self._spark)


def formats(server: EmbeddedPostgres, rounds: int) -> None:
    """Processor time of client and server for a million rows of one type: the formats of COPY, in turn."""
    number = np.arange(ROWS)
    moments = pa.array(1_600_000_000_000_000 + number * 1_000_003, pa.timestamp("us"))
    columns = {
        "bigint": pa.array(number),
        "boolean": pa.array(number % 2 == 0),
        "real": pa.array((number * 0.1).astype("f4")),
        "double precision": pa.array(number * 0.37),
        "numeric": pa.array(number * 7).cast(pa.decimal128(19, 0)).cast(pa.decimal128(18, 2), safe=False),
        "text": pc.binary_join_element_wise("name-", pa.array(number).cast(pa.string()), ""),
        "bytea": pc.binary_join_element_wise("name-", pa.array(number).cast(pa.string()), "").cast(pa.binary()),
        "date": pa.array((number % 20_000).astype("i4"), pa.date32()),
        "time": pa.array(number * 1003 % 86_400_000_000, pa.time64("us")),
        "timestamp": moments,
        "uuid": pa.array([str(uuid.UUID(int=each)) for each in range(ROWS)]),
    }
    with psycopg.connect(server.dsn("one"), autocommit=True) as connection:
        for kind, values in columns.items():
            connection.execute(f"drop table if exists t; create unlogged table t (x {kind})")
            whole = pa.RecordBatch.from_arrays([values], ["x"])
            batches = [whole.slice(start, 10_000) for start in range(0, ROWS, 10_000)]
            ways = {
                name: partial(_copied, connection, (ColumnEncoding("x", kind, as_text=as_text),), batches)
                for name, as_text in (("binary", False), ("CSV", True))
            }
            title = f"{ROWS:,} rows of {kind}: processor time of client and server"
            compare(title, ways, rounds=rounds, unit="s")


def _copied(connection: Any, encodings: tuple[ColumnEncoding, ...], batches: list[pa.RecordBatch]) -> float:
    copy = PartitionCopy("", f"copy t from stdin ({copy_options(encodings)})", encodings, "")
    return _both(connection, connection.info.backend_pid, lambda: copy.run(connection, iter(batches)))


def _both(connection: Any, backend: int, work: Callable[[], object]) -> float:
    """Seconds of processor time, of this process and of the server's, to fill the table `t`."""
    connection.execute("truncate t")
    server = Path("/proc", str(backend), "stat")

    def used() -> float:
        ticks = sum(map(int, server.read_text().rpartition(")")[2].split()[11:13]))
        return time.process_time() + ticks * _TICK / 1e6

    before = used()
    work()
    return used() - before


def wide(server: EmbeddedPostgres, rounds: int) -> None:
    """The same for the five columns of the contest; and ADBC's COPY, if adbc-driver-postgresql is installed."""
    number = np.arange(ROWS)
    names = pc.binary_join_element_wise("name-", pa.array(number).cast(pa.string()), "")
    moments = pa.array(1_600_000_000_000_000 + number * 1_000_003, pa.timestamp("us"))
    columns = [pa.array(number), pa.array((number % 10_000).astype("i4")), pa.array(number * 0.37), names, moments]
    described = [column.strip().split(" ", 1) for column in _COLUMNS.split(",")]
    whole = pa.RecordBatch.from_arrays(columns, [name for name, _ in described])
    batches = [whole.slice(start, 10_000) for start in range(0, ROWS, 10_000)]
    with psycopg.connect(server.dsn("one"), autocommit=True) as connection, ExitStack() as stack:
        connection.execute(f"drop table if exists t; create unlogged table t ({_COLUMNS})")
        ways: dict[str, Callable[[], float]] = {}
        for label, as_text in (("binary", False), ("CSV", True)):
            encodings = tuple(ColumnEncoding(name, kind, as_text=as_text) for name, kind in described)
            ways[label] = partial(_copied, connection, encodings, batches)
        if importlib.util.find_spec("adbc_driver_postgresql") is not None:
            from adbc_driver_postgresql import dbapi

            other = stack.enter_context(dbapi.connect(_uri(server)))
            cursor = stack.enter_context(other.cursor())
            cursor.execute("select pg_backend_pid()")
            (backend,) = cursor.fetchone()
            other.commit()

            def ingest() -> None:
                cursor.adbc_ingest("t", pa.RecordBatchReader.from_batches(whole.schema, batches), mode="append")
                other.commit()

            ways["ADBC"] = partial(_both, connection, backend, ingest)
        compare(f"{ROWS:,} rows of five columns: processor time of client and server", ways, rounds=rounds, unit="s")


def _uri(server: EmbeddedPostgres) -> str:
    parts = psycopg.conninfo.conninfo_to_dict(server.dsn("one"))
    return f"postgresql://{parts['user']}:{parts['password']}@{parts['host']}:{parts['port']}/{parts['dbname']}"


def _count(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    yield pa.RecordBatch.from_pydict({"rows": [sum(batch.num_rows for batch in batches)]})


def _seconds(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def _show(table: Table, spark: SparkSession) -> None:
    runtime: Any = spark.sparkContext._jvm
    versions = f"Spark {spark.version}, Java {runtime.System.getProperty('java.version')}, {spark.sparkContext.master}"
    console = Console(width=140)
    console.print(f"{machine()}, {versions}; load {os.getloadavg()[0]:.1f}", style="dim", highlight=False)
    console.print(table)


class Workers:
    """The memory of the largest Python worker of this process's Spark, in kB: as a block begins, and its peak in it."""

    before = peak = 0

    def __enter__(self) -> Workers:
        for worker in _workers():
            Path("/proc", str(worker), "clear_refs").write_text("5")  # its peak is what it has now
        self.before = max(map(_peak, _workers()), default=0)
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._stopped.set()
        self._thread.join()
        self._look()

    def _run(self) -> None:
        while not self._stopped.wait(0.2):
            self._look()

    def _look(self) -> None:
        self.peak = max([self.peak, *map(_peak, _workers())])


def _workers() -> list[int]:
    return [pid for pid, process in _below().items() if process.name.startswith("python")]


def _peak(pid: int) -> int:
    try:
        status = Path("/proc", str(pid), "status").read_text()
    except OSError:
        return 0
    return next((int(line.split()[1]) for line in status.splitlines() if line.startswith("VmHWM")), 0)


@dataclass(frozen=True)
class Process:
    parent: int
    name: str
    #: Microseconds of processors, with those of its children that have ended.
    used: float


def _used() -> dict[str, float]:
    """Microseconds of processors so far: of the JVM, of Spark's Python processes, of the server's."""
    mine = _below().values()
    names = {"JVM": "java", "Python": "python", "server": "postgres"}
    return {who: sum(each.used for each in mine if each.name.startswith(name)) for who, name in names.items()}


def _below() -> dict[int, Process]:
    """The processes that this one has started, and those that they have."""
    everyone = dict(_processes())
    found: dict[int, Process] = {}
    generation = {os.getpid()}
    while generation:
        generation = {child for child, process in everyone.items() if process.parent in generation}
        found |= {child: everyone[child] for child in generation}
    return found


def _processes() -> Iterator[tuple[int, Process]]:
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            name, _, rest = (folder / "stat").read_text().rpartition(")")
        except OSError:  # it has ended
            continue
        fields = rest.split()
        yield int(folder.name), Process(int(fields[1]), name.partition("(")[2], sum(map(int, fields[11:15])) * _TICK)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("rounds", nargs="?", type=int, default=3)
    parser.add_argument("--sweep", action="store_true", help="time for a row, by partitions and by rows")
    parser.add_argument("--price", action="store_true", help="what a write takes that has hardly any rows")
    parser.add_argument("--memory", action="store_true", help="the memory of a task, by the rows of its partition")
    parser.add_argument("--formats", action="store_true", help="COPY's CSV against its binary format, type by type")
    parser.add_argument("--way", action="append", help="what to sweep, by its name in the contest; may be repeated")
    wanted = parser.parse_args()
    began = time.monotonic()
    if wanted.formats:
        with EmbeddedPostgres(settings=SLOTS) as server:
            wide(server, wanted.rounds)
            formats(server, wanted.rounds)
        return
    with EmbeddedPostgres(settings=SLOTS) as server, local_session(server) as (spark, source):
        bench = Bench(spark, server, source)
        if wanted.sweep:
            bench.sweep(wanted.rounds, wanted.way or ["write_table"])
        if wanted.price:
            bench.price(wanted.rounds)
        if wanted.memory:
            bench.memory()
        if not (wanted.sweep or wanted.price or wanted.memory):
            bench.contest(wanted.rounds)
    print(f"{time.monotonic() - began:.0f} s in all")


if __name__ == "__main__":
    main()
