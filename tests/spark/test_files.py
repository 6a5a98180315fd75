"""write_files(): every format of Spark's, all or nothing, read by Spark."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

import txpool
from txpool.spark import write_files

pytestmark = pytest.mark.spark


@pytest.fixture
def exports(sources: Path) -> Path:
    (sources / "exports").mkdir()
    (sources / "exports.properties").write_text("name = exports\ndriver = files\nfolder = exports\n")
    return sources / "exports"


def left(exports: Path) -> list[str]:
    return [name for folder in ("staged", "prepared") for name in os.listdir(exports / ".txpool" / folder)]


def test_every_format(spark: Any, exports: Path) -> None:
    rows = spark.range(100, numPartitions=1).selectExpr("id", "cast(id % 3 as int) as part")
    with txpool.transaction():
        for name in ("parquet", "orc", "json", "csv"):
            write_files(rows, "exports.properties", f"by/{name}", format=name)
        write_files(rows.selectExpr("cast(id as string) as value"), "exports.properties", "by/text", format="text")
        write_files(rows, "exports.properties", "parts", partition_by=["part"], compression="gzip")
        assert os.listdir(exports) == [".txpool"]
    for name in ("parquet", "orc", "json", "csv", "text"):
        assert spark.read.format(name).load(f"file://{exports}/by/{name}").count() == 100, name
    assert spark.read.parquet(f"file://{exports}/parts").where("part = 1").count() == 33
    assert (exports / "parts" / "_SUCCESS").read_text().startswith("txp1:driver:")
    assert left(exports) == []


def test_overwrite_and_a_task_that_fails(spark: Any, exports: Path) -> None:
    write_files(spark.range(10), "exports.properties", "day")
    write_files(spark.range(20), "exports.properties", "day", mode="overwrite")
    assert spark.read.parquet(f"file://{exports}/day").count() == 20
    with pytest.raises(txpool.ProgrammingError, match="is there already"):
        write_files(spark.range(5), "exports.properties", "day")
    bad = spark.range(5, numPartitions=2).selectExpr("if(id = 4, cast(raise_error('as told') as long), id) as id")
    with pytest.raises(txpool.TransactionRolledBack), txpool.transaction():
        write_files(spark.range(5), "exports.properties", "other")
        with pytest.raises(Exception, match="as told"):
            write_files(bad, "exports.properties", "day", mode="overwrite")
    assert spark.read.parquet(f"file://{exports}/day").count() == 20
    assert sorted(os.listdir(exports)) == [".txpool", "day"]
    assert left(exports) == []


@pytest.mark.parametrize("mode", ["append", "ignore"])
def test_modes_that_flat_files_do_not_have(mode: Any, spark: Any, exports: Path) -> None:
    with pytest.raises(txpool.NotSupportedError, match="a folder of its own for each load"):
        write_files(spark.range(5), "exports.properties", "day", mode=mode)
    assert os.listdir(exports) == []
