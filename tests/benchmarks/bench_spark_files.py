"""Rows out of Spark into a folder: write_files(), and Spark's own writer, which syncs nothing.

python tests/benchmarks/bench_spark_files.py [ROUNDS] [FORMAT]

The folder is made below the working directory, and its disk counts.
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

import pyarrow.dataset

from tests.benchmarks.bench_spark_write import PARTITIONS, ROWS, frame
from tests.benchmarks.report import compare
from tests.benchmarks.session import local_session
from txpool.demo.server import EmbeddedPostgres
from txpool.resources.files.tree import opened, sync_tree

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_NAME = "landed"


def _spark(df: DataFrame, place: Path, kind: str) -> None:
    df.write.format(kind).mode("overwrite").save(f"file://{place / _NAME}")


def _synced(df: DataFrame, place: Path, kind: str) -> None:
    """The same, made durable."""
    _spark(df, place, kind)
    with opened(str(place / _NAME)) as folder:
        sync_tree(folder, _NAME)


def _ours(df: DataFrame, place: Path, kind: str) -> None:
    from txpool.spark import write_files

    write_files(df, place.with_suffix(".properties"), _NAME, format=kind, mode="overwrite")


def _timed(way: Callable[[DataFrame, Path, str], None], df: DataFrame, place: Path, kind: str) -> float:
    """Seconds for one write over the one before, whose rows are counted."""
    began = time.perf_counter()
    way(df, place, kind)
    seconds = time.perf_counter() - began
    assert pyarrow.dataset.dataset(place / _NAME, format=kind).count_rows() == ROWS
    return seconds


def main() -> None:
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 5
    kind = sys.argv[2] if len(sys.argv) > 2 else "parquet"
    with EmbeddedPostgres() as server, local_session(server) as (spark, _), TemporaryDirectory(dir=Path.cwd()) as site:
        df = frame(spark, ROWS, PARTITIONS).cache()
        df.count()
        ways = {}
        for name, way in {"Spark's writer": _spark, "Spark's writer, synced": _synced, "write_files": _ours}.items():
            place = Path(site, way.__name__)
            place.mkdir()
            place.with_suffix(".properties").write_text(f"name = exports\ndriver = files\nfolder = {place}\n")
            ways[name] = partial(_timed, way, df, place, kind)
        title = f"{ROWS:,} rows of five columns, {PARTITIONS} cached partitions, local[2], {kind}"
        compare(title, ways, rounds=rounds, unit="s", bound="at most 1.1")


if __name__ == "__main__":
    main()
