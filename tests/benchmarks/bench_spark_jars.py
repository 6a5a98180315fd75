"""Rows out of Spark into an Iceberg table and into a Delta table: write_table(), beside the writers of their own jars.

python tests/benchmarks/bench_spark_jars.py [ROUNDS] [--as-installed]

The newest jars are for PySpark 4.1, which has to be installed instead of 4.3; Maven brings them. They sync nothing. So
that write_table() is as on 4.3, Python workers start tasks as 4.3's do (`spark_jars/daemon.py`); `--as-installed` lets
them be. The last way is write_table() without Spark's limit of bytes for a batch of rows: to keep it, Spark adds up the
size of the batch for each row. The folder is made below the working directory, and its disk counts.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

sys.path.insert(0, str(Path(__file__).parents[2]))

import pyspark
from deltalake import DeltaTable, Schema

import txpool
import txpool.lake
from tests.benchmarks.bench_spark_write import PARTITIONS, ROWS, frame
from tests.benchmarks.report import compare
from tests.benchmarks.session import local_session
from tests.spark.jdbc import JAR, jdbc
from tests.support.maven import find_classpath
from txpool.datasource import DataSource
from txpool.demo.server import EmbeddedPostgres

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_POM = Path(__file__).parent / "spark_jars" / "pom.xml"
#: The wanted ratio of each kind of table.
_BOUNDS = {"iceberg": 1.1, "delta": 0.8}
#: Spark has the other jars that these name.
_PARTS = ("/org/apache/iceberg/", "/io/delta/", "/io/unitycatalog/")
_DAEMON = {"spark.python.daemon.module": "tests.benchmarks.spark_jars.daemon"}
_LIMIT = "spark.sql.execution.arrow.maxBytesPerBatch"


def _settings(server: EmbeddedPostgres, site: Path) -> dict[str, str]:
    """The catalogs of both jars; that of Iceberg is the one that txpool's file describes."""
    found = jdbc(server, "?currentSchema=txpool_spark")
    settings = {
        "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
        "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
        "spark.sql.catalog.lake": "org.apache.iceberg.spark.SparkCatalog",
    }
    about = {"type": "jdbc", "uri": found["url"], "jdbc.user": found["user"], "jdbc.password": found["password"]}
    about |= {"jdbc.schema-version": "V1", "warehouse": f"file://{site}/iceberg"}
    return settings | {f"spark.sql.catalog.lake.{name}": value for name, value in about.items()}


def _theirs(df: DataFrame, kind: str, site: Path) -> None:
    if kind == "iceberg":
        df.writeTo("lake.db.theirs").append()
    else:
        df.write.format("delta").mode("append").save(f"file://{site}/delta/theirs")


def _ours(df: DataFrame, kind: str, site: Path) -> None:
    from txpool.spark import write_table

    write_table(df, site / f"{kind}.properties", "db.ours" if kind == "iceberg" else "ours")


def _unlimited(df: DataFrame, kind: str, site: Path) -> None:
    conf = df.sparkSession.conf
    before = conf.get(_LIMIT)
    conf.set(_LIMIT, str(2**31 - 1))
    _ours(df, kind, site)
    conf.set(_LIMIT, before)


#: By name: the table, and what appends to it.
_WAYS = {
    "its jar": ("theirs", _theirs),
    "write_table": ("ours", _ours),
    "write_table, no limit of bytes": ("ours", _unlimited),
}


def _prepare(df: DataFrame, site: Path, catalog: DataSource) -> None:
    """Empty tables of each kind."""
    from txpool.spark.table.lake.columns import new_schema

    for kind, more in (("iceberg", f"catalog = {catalog.settings.file}\nwarehouse"), ("delta", "folder")):
        (site / kind).mkdir()
        text = f"name = lake\ndriver = {kind}\n{more} = {site}/{kind}\n"
        (site / f"{kind}.properties").write_text(text)
    with txpool.transaction():
        lake = txpool.lake.catalog(site / "iceberg.properties")
        lake.create_namespace("db")
        for name in ("theirs", "ours"):
            lake.create_table(f"db.{name}", new_schema(df.schema.fields))
            DeltaTable.create(str(site / "delta" / name), Schema.from_json(df.schema.json()))


def _timed(way: Callable[[DataFrame, str, Path], None], df: DataFrame, kind: str, site: Path) -> float:
    """Seconds for one write."""
    began = time.perf_counter()
    way(df, kind, site)
    return time.perf_counter() - began


def main() -> None:
    arguments = argparse.ArgumentParser()
    arguments.add_argument("rounds", type=int, nargs="?", default=9)
    arguments.add_argument("--as-installed", action="store_true")
    options = arguments.parse_args()
    classpath = find_classpath(_POM)
    if classpath is None:
        sys.exit("Maven does not bring the jars")
    jars = [JAR, *(each for each in classpath.split(":") if any(part in each for part in _PARTS))]
    with EmbeddedPostgres() as server, TemporaryDirectory(dir=Path.cwd()) as folder:
        site = Path(folder)
        more = _settings(server, site) | ({} if options.as_installed else _DAEMON)
        with local_session(server, jar=",".join(jars), more=more) as (spark, catalog):
            df = frame(spark, ROWS, PARTITIONS).cache()
            df.count()
            _prepare(df, site, catalog)
            for kind, bound in _BOUNDS.items():
                ways = {name: partial(_timed, way, df, kind, site) for name, (_, way) in _WAYS.items()}
                title = f"{ROWS:,} rows of five columns into {kind}, {PARTITIONS} cached partitions, local[2]"
                title += f", PySpark {pyspark.__version__}"
                compare(title, ways, rounds=options.rounds, unit="s", bound=f"at most {bound}")
                for name in ("theirs", "ours"):
                    table = f"lake.db.{name}" if kind == "iceberg" else f"delta.`{site}/delta/{name}`"
                    writes = sum(name == each for each, _ in _WAYS.values())
                    assert spark.table(table).count() == ROWS * (options.rounds + 1) * writes


if __name__ == "__main__":
    main()
