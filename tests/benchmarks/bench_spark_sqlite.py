"""Rows out of Spark into a marked SQLite file: write_table(), and what one writes by hand.

python tests/benchmarks/bench_spark_sqlite.py [ROUNDS]
"""

from __future__ import annotations

import sqlite3
import sys
import time
from collections.abc import Callable
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

sys.path.insert(0, str(Path(__file__).parents[2]))

from tests.benchmarks.bench_spark_write import PARTITIONS, ROWS, frame
from tests.benchmarks.report import compare
from tests.benchmarks.session import local_session
from txpool.datasource import DataSource
from txpool.demo.server import EmbeddedPostgres

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_TABLE = "create table landed (id integer, n integer, x real, name text, seen timestamp)"


def _ours(df: DataFrame, source: DataSource, file: Path) -> None:
    from txpool.spark import write_table

    write_table(df, source, "landed")


def _pandas(df: DataFrame, source: DataSource, file: Path) -> None:
    with closing(sqlite3.connect(file)) as connection, connection:
        df.toPandas().to_sql("landed", connection, if_exists="append", index=False)


def _iterated(df: DataFrame, source: DataSource, file: Path) -> None:
    with closing(sqlite3.connect(file)) as connection, connection:
        rows = ((*row[:4], row.seen.isoformat(" ")) for row in df.toLocalIterator(prefetchPartitions=True))
        connection.executemany("insert into landed values (?, ?, ?, ?, ?)", rows)


def _timed(way: Callable[[DataFrame, DataSource, Path], None], df: DataFrame, source: DataSource, file: Path) -> float:
    """Seconds for one write into the empty table, whose rows are counted."""
    with closing(sqlite3.connect(file, isolation_level=None)) as connection:
        connection.execute("delete from landed")
        began = time.perf_counter()
        way(df, source, file)
        seconds = time.perf_counter() - began
        assert connection.execute("select count(*) from landed").fetchone() == (ROWS,)
    return seconds


def main() -> None:
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 3
    with EmbeddedPostgres() as server, local_session(server) as (spark, source):
        file = source.settings.properties.path.parent / "ledger.db"
        with closing(sqlite3.connect(file)) as connection:
            connection.execute("pragma journal_mode = wal")
            connection.execute(_TABLE)
        with DataSource("ledger", driver="sqlite3", url=f"sqlite:///{file}", mode="cmr") as ledger:
            ledger.xids_table().create()  # type: ignore[attr-defined]
            df = frame(spark, ROWS, PARTITIONS).cache()
            df.count()
            ways = {
                "write_table": _ours,
                "toPandas().to_sql()": _pandas,
                "toLocalIterator(), executemany()": _iterated,
            }
            compare(
                f"{ROWS:,} rows of five columns, {PARTITIONS} cached partitions, local[2], into SQLite",
                {name: partial(_timed, way, df, ledger, file) for name, way in ways.items()},
                rounds=rounds,
                unit="s",
            )


if __name__ == "__main__":
    main()
