"""A million rows out of PostgreSQL into Spark: spark.read.format("txpool"), and Spark's own JDBC reader.

python tests/benchmarks/bench_spark_read.py [ROUNDS]

Spark's reader needs PostgreSQL's JDBC jar: Debian's libpostgresql-jdbc-java, or the path in POSTGRESQL_JAR.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psycopg

sys.path.insert(0, str(Path(__file__).parents[2]))

from tests.benchmarks.report import compare
from txpool.datasource import DataSource
from txpool.demo import java
from txpool.demo.server import EmbeddedPostgres
from txpool.manager import configure

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

ROWS = 1_000_000
PARTITIONS = 4
JAR = os.environ.get("POSTGRESQL_JAR", "/usr/share/java/postgresql.jar")
_FILL = """
    create table flown as select id, (id % 10000)::int as n, id * 0.37::float8 as x,
        'name-' || id % 1000 || '-' || id as name, timestamp '2020-09-13' + id * interval '1.000003 s' as seen
    from generate_series(0::bigint, {} - 1) id
"""


def ways(spark: SparkSession, server: EmbeddedPostgres, file: Path) -> dict[str, Callable[[], DataFrame]]:
    ranges: dict[str, Any] = {"dbtable": "flown", "partitionColumn": "id", "numPartitions": PARTITIONS}
    ranges |= {"lowerBound": 0, "upperBound": ROWS}
    jdbc = ranges | {
        "url": f"jdbc:postgresql://127.0.0.1:{server.port}/one",
        "user": server.user,
        "password": server.password,
        "driver": "org.postgresql.Driver",
    }
    read = {
        'format("txpool")': ("txpool", ranges | {"datasource": str(file)}),
        "JDBC": ("jdbc", jdbc),
        "JDBC, fetchsize 10000": ("jdbc", jdbc | {"fetchsize": 10_000}),
    }
    return {name: spark.read.format(kind).options(**options).load for name, (kind, options) in read.items()}


def timed(read: Callable[[], DataFrame]) -> float:
    """Seconds for all rows with all their columns, of which nothing is made."""
    began = time.perf_counter()
    read().write.format("noop").mode("overwrite").save()
    return time.perf_counter() - began


def main() -> None:
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 5
    with tempfile.TemporaryDirectory() as folder, EmbeddedPostgres() as server:
        os.environ |= java.spark_environment(Path(folder))
        os.environ["PYSPARK_SUBMIT_ARGS"] = (
            f"--master local[2] --driver-memory 2g --jars {JAR} --conf spark.ui.enabled=false "
            "--conf spark.ui.showConsoleProgress=false --conf spark.sql.session.timeZone=UTC pyspark-shell"
        )
        os.environ["PYTHONPATH"] = str(Path(__file__).parents[2])
        from pyspark.sql import SparkSession

        from txpool.spark import register

        spark = SparkSession.builder.getOrCreate()
        spark.sparkContext.setLogLevel("ERROR")
        register(spark)
        with psycopg.connect(server.dsn("one"), autocommit=True) as connection:
            connection.execute(_FILL.format(ROWS))
        (Path(folder) / "secret").write_text(server.password)
        file = Path(folder) / "one.properties"
        file.write_text(f"driver = psycopg\nurl = {server.url('one')}\npassword = ${{file:secret}}\n")
        configure(node_name="bench", log_url=f"sqlite:///{folder}/txlog", log_create=True)
        with DataSource.from_properties(file):
            reads = ways(spark, server, file)
            assert {read().count() for read in reads.values()} == {ROWS}
            compare(
                f"{ROWS:,} rows of five columns, {PARTITIONS} partitions, local[2]",
                {name: partial(timed, read) for name, read in reads.items()},
                rounds=rounds,
                unit="s",
            )
        spark.stop()


if __name__ == "__main__":
    main()
