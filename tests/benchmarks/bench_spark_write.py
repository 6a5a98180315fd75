"""A million rows out of Spark into PostgreSQL: write_table(), Spark's own JDBC writer, and the server's COPY of a file.

python tests/benchmarks/bench_spark_write.py [ROUNDS]           the contest
python tests/benchmarks/bench_spark_write.py [ROUNDS] --sweep   and time per row by partitions and rows, and memory

Spark's writer needs PostgreSQL's JDBC jar: Debian's libpostgresql-jdbc-java, or the path in POSTGRESQL_JAR.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psycopg

sys.path.insert(0, str(Path(__file__).parents[2]))

from tests.benchmarks.report import compare, machine
from txpool.datasource import DataSource
from txpool.demo import java
from txpool.demo.server import EmbeddedPostgres
from txpool.manager import configure

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

ROWS = 1_000_000
PARTITIONS = 4
JAR = os.environ.get("POSTGRESQL_JAR", "/usr/share/java/postgresql.jar")
SLOTS = {"max_prepared_transactions": "300", "max_wal_size": "8GB"}
_TABLE = "(id bigint, n integer, x double precision, name text, seen timestamp)"


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
        self._connection.execute(f"create table landed {_TABLE}")  # type: ignore[arg-type]

    def timed(self, write: Callable[[], object], rows: int) -> float:
        """Seconds for one write into the empty table, whose rows are counted."""
        self._connection.execute("truncate landed")
        self._connection.execute("checkpoint")
        began = time.perf_counter()
        write()
        seconds = time.perf_counter() - began
        found = self._connection.execute("select count(*) from landed").fetchone()
        assert found == (rows,), found
        return seconds

    def ours(self, df: DataFrame, strategy: Any = "direct") -> Callable[[], object]:
        from txpool.spark import write_table

        return lambda: write_table(df, self._source, "landed", strategy=strategy)

    def jdbc(self, df: DataFrame, parameters: str = "") -> Callable[[], object]:
        url = f"jdbc:postgresql://127.0.0.1:{self._server.port}/one{parameters}"
        properties = {"user": self._server.user, "password": self._server.password, "driver": "org.postgresql.Driver"}
        return lambda: df.write.jdbc(url, "landed", mode="append", properties=properties)

    def copy(self, df: DataFrame) -> Callable[[], object]:
        self.timed(self.ours(df), ROWS)
        file = self._server.folder / "rows.copy"  # type: ignore[operator]
        self._connection.execute(f"copy landed to '{file}'")  # type: ignore[arg-type]
        return lambda: self._connection.execute(f"copy landed from '{file}'")  # type: ignore[arg-type]

    def contest(self, rounds: int) -> None:
        df = frame(self._spark, ROWS, PARTITIONS).cache()
        df.count()
        writes = {
            "write_table": self.ours(df),
            "write_table, staged": self.ours(df, "staged"),
            "JDBC": self.jdbc(df),
            "JDBC, reWriteBatchedInserts": self.jdbc(df, "?reWriteBatchedInserts=true"),
            "COPY FROM a file": self.copy(df),
        }
        compare(
            f"{ROWS:,} rows of five columns, {PARTITIONS} cached partitions, local[2]",
            {name: lambda write=write: self.timed(write, ROWS) for name, write in writes.items()},  # type: ignore[misc]
            rounds=rounds,
            unit="s",
            bound="JDBC 2.5 and more, rewritten 1.4 and more, COPY 0.71 and more",
        )
        df.unpersist()

    def sweep(self, rounds: int) -> None:
        """Time per row, and the largest Python worker meanwhile."""
        print(f"{machine()}; load {os.getloadavg()[0]:.1f}; medians of {rounds}, (min to max)")
        print(f"{'strategy':10}{'rows':>12}{'partitions':>12}{'µs a row':>24}{'largest worker':>16}")
        shapes = [(ROWS, 1), (ROWS, 4), (ROWS, 50), (ROWS, 200), (ROWS // 10, 4), (ROWS * 10, 4)]
        shapes += [(ROWS // 10, 1), (ROWS * 10, 1)]
        for strategy in ("direct", "staged"):
            for rows, partitions in shapes:
                write = self.ours(frame(self._spark, rows, partitions), strategy)
                with Workers() as workers:
                    times = sorted(self.timed(write, rows) / rows * 1e6 for _ in range(rounds))
                spread = f"{statistics.median(times):.2f} ({times[0]:.2f} to {times[-1]:.2f})"
                print(f"{strategy:10}{rows:12,}{partitions:12}{spread:>24}{workers.peak / 1024:>13.0f} MB", flush=True)


class Workers:
    """The peak of memory of any Python worker of this process's Spark, in kB, sampled while a block runs."""

    peak = 0

    def __enter__(self) -> Workers:
        for pid in _workers():
            Path("/proc", pid, "clear_refs").write_text("5")  # its peak is what it has now
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._stopped.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stopped.wait(0.2):
            self.peak = max([self.peak, *map(_peak, _workers())])


def _workers() -> list[str]:
    listed = subprocess.run(
        ["ps", "-s", str(os.getsid(0)), "-o", "pid,args"], capture_output=True, text=True, check=False
    )
    return [line.split()[0] for line in listed.stdout.splitlines() if "pyspark.daemon" in line]


def _peak(pid: str) -> int:
    try:
        status = Path("/proc", pid, "status").read_text()
    except OSError:
        return 0
    return next((int(line.split()[1]) for line in status.splitlines() if line.startswith("VmHWM")), 0)


def main(*arguments: str) -> None:
    rounds = next((int(each) for each in arguments if each.isdigit()), 5)
    settings = {"spark.ui.enabled": "false", "spark.sql.session.timeZone": "UTC"}
    settings["spark.ui.showConsoleProgress"] = "false"
    settings["spark.driver.extraJavaOptions"] = "-Duser.timezone=UTC"
    with tempfile.TemporaryDirectory() as folder, EmbeddedPostgres(settings=SLOTS) as server:
        os.environ |= java.spark_environment(Path(folder))
        confs = " ".join(f"--conf {name}={value}" for name, value in settings.items())
        os.environ["PYSPARK_SUBMIT_ARGS"] = f"--master local[2] --driver-memory 2g --jars {JAR} {confs} pyspark-shell"
        os.environ["PYTHONPATH"] = str(Path(__file__).parents[2])
        from pyspark.sql import SparkSession

        spark = SparkSession.builder.getOrCreate()
        spark.sparkContext.setLogLevel("ERROR")
        (Path(folder) / "secret").write_text(server.password)
        file = Path(folder) / "one.properties"
        file.write_text(f"driver = psycopg\nurl = {server.url('one')}\npassword = ${{file:secret}}\n")
        configure(node_name="bench", log_url=f"sqlite:///{folder}/txlog", log_create=True)
        with DataSource.from_properties(file) as source:
            bench = Bench(spark, server, source)
            bench.contest(rounds)
            if "--sweep" in arguments:
                bench.sweep(min(rounds, 3))
        spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
