"""A million rows out of PostgreSQL into Spark: spark.read.format("txpool"), and Spark's own JDBC reader.

python tests/benchmarks/bench_spark_read.py [ROUNDS]

Spark's reader needs PostgreSQL's JDBC jar: Debian's libpostgresql-jdbc-java, or the path in POSTGRESQL_JAR.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psycopg

sys.path.insert(0, str(Path(__file__).parents[2]))

from tests.benchmarks.report import compare
from tests.benchmarks.session import local_session
from tests.spark.jdbc import jdbc
from txpool.datasource import DataSource
from txpool.demo.server import EmbeddedPostgres

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

ROWS = 1_000_000
PARTITIONS = 4
_FILL = """
    create table flown as select id, (id % 10000)::int as n, id * 0.37::float8 as x,
        'name-' || id % 1000 || '-' || id as name, timestamp '2020-09-13' + id * interval '1.000003 s' as seen
    from generate_series(0::bigint, {} - 1) id
"""


def ways(spark: SparkSession, server: EmbeddedPostgres, source: DataSource) -> dict[str, Callable[[], DataFrame]]:
    ranges: dict[str, Any] = {"dbtable": "flown", "partitionColumn": "id", "numPartitions": PARTITIONS}
    ranges |= {"lowerBound": 0, "upperBound": ROWS}
    theirs = ranges | jdbc(server)
    read = {
        'format("txpool")': ("txpool", ranges | {"datasource": str(source.settings.properties.path)}),
        "JDBC": ("jdbc", theirs),
        "JDBC, fetchsize 10000": ("jdbc", theirs | {"fetchsize": 10_000}),
    }
    return {name: spark.read.format(kind).options(**options).load for name, (kind, options) in read.items()}


def timed(read: Callable[[], DataFrame]) -> float:
    """Seconds for all rows with all their columns, of which nothing is made."""
    began = time.perf_counter()
    read().write.format("noop").mode("overwrite").save()
    return time.perf_counter() - began


def main() -> None:
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 5
    with EmbeddedPostgres() as server, local_session(server) as (spark, source):
        with psycopg.connect(server.dsn("one"), autocommit=True) as connection:
            connection.execute(_FILL.format(ROWS))
        reads = ways(spark, server, source)
        assert {read().count() for read in reads.values()} == {ROWS}
        compare(
            f"{ROWS:,} rows of five columns, {PARTITIONS} partitions, local[2]",
            {name: partial(timed, read) for name, read in reads.items()},
            rounds=rounds,
            unit="s",
        )


if __name__ == "__main__":
    main()
