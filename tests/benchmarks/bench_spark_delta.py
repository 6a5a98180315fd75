"""Rows out of Spark into a Delta table: write_table(), and deltalake's own writer; beside Spark's Parquet writer.

python tests/benchmarks/bench_spark_delta.py [ROUNDS]

The folder is made below the working directory, and its disk counts. Delta's jar for Spark does not run on PySpark 4.3.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

sys.path.insert(0, str(Path(__file__).parents[2]))

from deltalake import DeltaTable, Schema, write_deltalake

from tests.benchmarks.bench_spark_write import PARTITIONS, ROWS, frame
from tests.benchmarks.report import compare
from tests.benchmarks.session import local_session
from txpool.demo.server import EmbeddedPostgres

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_NAME = "landed"


def _parquet(df: DataFrame, place: Path) -> None:
    """Spark's writer, which makes no table."""
    df.write.mode("overwrite").parquet(f"file://{place / 'parquet'}")


def _collected(df: DataFrame, place: Path) -> None:
    """The driver alone writes what it has collected, and syncs nothing."""
    write_deltalake(str(place / _NAME), df.toArrow(), mode="append")


def _ours(df: DataFrame, place: Path) -> None:
    from txpool.spark import write_table

    write_table(df, place.with_suffix(".properties"), _NAME)


def _timed(way: Callable[[DataFrame, Path], None], df: DataFrame, place: Path) -> float:
    """Seconds for one write."""
    began = time.perf_counter()
    way(df, place)
    return time.perf_counter() - began


def main() -> None:
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 5
    with EmbeddedPostgres() as server, local_session(server) as (spark, _), TemporaryDirectory(dir=Path.cwd()) as site:
        df = frame(spark, ROWS, PARTITIONS).cache()
        df.count()
        ways = {}
        for name, way in {"Spark's Parquet": _parquet, "deltalake": _collected, "write_table": _ours}.items():
            place = Path(site, way.__name__)
            place.mkdir()
            DeltaTable.create(str(place / _NAME), Schema.from_json(df.schema.json()))
            place.with_suffix(".properties").write_text(f"name = tables\ndriver = delta\nfolder = {place}\n")
            ways[name] = partial(_timed, way, df, place)
        title = f"{ROWS:,} rows of five columns, {PARTITIONS} cached partitions, local[2]"
        compare(title, ways, rounds=rounds, unit="s", bound="Delta at most 0.8 of Spark's own writer")


if __name__ == "__main__":
    main()
