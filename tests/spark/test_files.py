"""write_files(): every format of Spark's, all or nothing, read by Spark."""

from __future__ import annotations

import datetime
import os
from collections.abc import Iterator
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrameWriter

import txpool
from tests.support.sampling import FULL
from txpool.spark import write_files

pytestmark = pytest.mark.spark


FORMATS = ("parquet", "orc", "json", "csv", "text")


@pytest.fixture
def exports(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "exports").mkdir()
    (tmp_path / "exports.properties").write_text("name = exports\ndriver = files\nfolder = exports\n")
    txpool.configure(node_name="driver", log_url="sqlite:///txlog", log_create=True)
    yield tmp_path / "exports"
    txpool.configure()


def left(exports: Path) -> list[str]:
    return [name for folder in ("staged", "prepared") for name in os.listdir(exports / ".txpool" / folder)]


@pytest.mark.part(len(FORMATS))
@pytest.mark.parametrize("name", FORMATS)
def test_every_format(name: str, spark: Any, exports: Path) -> None:
    """By default one of them beside a partitioned folder, chosen by the seed."""
    rows = spark.range(100, numPartitions=1).selectExpr("id", "cast(id % 3 as int) as part")
    only = rows.selectExpr("cast(id as string) as value") if name == "text" else rows
    with txpool.transaction():
        write_files(only, "exports.properties", f"by/{name}", format=name)
        write_files(rows, "exports.properties", "parts", partition_by=["part"], compression="gzip")
        assert os.listdir(exports) == [".txpool"]
    found = spark.read.schema(only.schema).format(name).load(f"file://{exports}/by/{name}")
    assert sorted(int(row[0]) for row in found.collect()) == [*range(100)]
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


@pytest.mark.parametrize("name", ["noop", "console"])
def test_a_format_that_writes_no_files_publishes_nothing(name: str, spark: Any, exports: Path) -> None:
    with pytest.raises(txpool.NotSupportedError, match="has written no file"):
        write_files(spark.range(5), "exports.properties", "day", format=name)
    assert os.listdir(exports) == [".txpool"]
    assert left(exports) == []


def test_no_rows_are_a_folder_too(spark: Any, exports: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also if Spark leaves no mark: a partitioned write of no rows has no file at all."""
    settings = spark.sparkContext._jsc.hadoopConfiguration()
    settings.set("mapreduce.fileoutputcommitter.marksuccessfuljobs", "false")
    try:
        rows = spark.range(0).selectExpr("id", "id as part")
        write_files(rows, "exports.properties", "day", partition_by=["part"])
    finally:
        settings.unset("mapreduce.fileoutputcommitter.marksuccessfuljobs")
    assert os.listdir(exports / "day") == ["_SUCCESS"]


@pytest.mark.parametrize("option", ["transaction_id", "record_in"])
def test_arguments_of_a_transaction_are_no_options_of_sparks(option: str, spark: Any, exports: Path) -> None:
    """Spark takes any option, and passes over what it does not know: a second run would write again."""
    with pytest.raises(txpool.ProgrammingError, match=r"txpool\.transaction\(transaction_id"):
        write_files(spark.range(5), "exports.properties", "day", **{option: "load"})
    assert os.listdir(exports) == []


def test_a_name_with_which_spark_could_not_read_the_folder(spark: Any, exports: Path) -> None:
    for name in ("loads/2026-11-27T10:00", "back\\slash"):
        with pytest.raises(txpool.ProgrammingError, match="Spark could not read"):
            write_files(spark.range(5), "exports.properties", name)
    assert os.listdir(exports) == []


@pytest.mark.parametrize("told", [True, False], ids=["option", "session"])
def test_partitions_without_rows_are_not_lost(told: bool, spark: Any, exports: Path) -> None:
    """Where Spark's own overwrite replaces only those with rows."""
    rows = spark.range(4, numPartitions=1).selectExpr("id", "id % 2 as part")
    write_files(rows, "exports.properties", "parts", partition_by=["part"])
    options = {"partitionOverwriteMode": "Dynamic"} if told else {}
    if not told:
        spark.conf.set("spark.sql.sources.partitionOverwriteMode", "dynamic")
    try:
        one = partial(write_files, rows.where("part = 1"), "exports.properties", "parts", mode="overwrite")
        with pytest.raises(txpool.NotSupportedError, match="and not some of its partitions"):
            one(partition_by=["part"], **options)
        assert spark.read.parquet(f"file://{exports}/parts").count() == 4
        one(partition_by=["part"], partitionOverwriteMode="static")
        assert spark.read.parquet(f"file://{exports}/parts").count() == 2
    finally:
        spark.conf.unset("spark.sql.sources.partitionOverwriteMode")


INSTANT = datetime.datetime(2026, 11, 27, 10, 0, 0, 123456, datetime.UTC)


@pytest.mark.parametrize("name", ["csv", "json"])
def test_a_format_of_texts_keeps_microseconds_and_spaces(name: str, spark: Any, exports: Path) -> None:
    """Spark's writers cut them off, unless told otherwise; what the caller says counts."""
    plain = INSTANT.replace(tzinfo=None)
    columns = "t timestamp, n timestamp_ntz, s string"
    rows = spark.createDataFrame([(INSTANT, plain, " a ")], columns).coalesce(1)
    write_files(rows, "exports.properties", "kept", format=name)
    write_files(rows, "exports.properties", "told", format=name, timestampformat="yyyy")
    ((file,), (told,)) = ([*(exports / folder).glob("part-*")] for folder in ("kept", "told"))
    assert all(each in file.read_text() for each in (f"{plain.isoformat()}Z", f"{plain.isoformat()}", " a "))
    assert f"{plain.isoformat()}Z" not in told.read_text()
    (found,) = spark.read.format(name).schema(rows.schema).load(f"file://{exports}/kept").collect()
    assert (found.n, found.s) == (plain, " a ")


@pytest.mark.parametrize(
    ("value", "kind", "says"),
    [
        (INSTANT, "timestamp", "it is timestamp"),
        (b"\xff", "binary", "it is binary"),
        ("", "string", "would be null"),
        ("__HIVE_DEFAULT_PARTITION__", "string", "would be null"),
    ],
)
def test_what_the_name_of_a_folder_does_not_keep_is_refused(
    value: Any, kind: str, says: str, spark: Any, exports: Path
) -> None:
    rows = spark.createDataFrame([(1, value)], f"id int, `P.1` {kind}")
    with pytest.raises(Exception, match=says):
        write_files(rows, "exports.properties", "day", partition_by=["p.1"])
    assert [name for name in os.listdir(exports) if name != ".txpool"] == []


def test_texts_that_the_name_of_a_folder_keeps(spark: Any, exports: Path) -> None:
    texts = [None, "null", " a ", "a/b=%", "é"]
    rows = spark.createDataFrame([*enumerate(texts)], "id int, `P.1` string")
    write_files(rows, "exports.properties", "day", partition_by=["p.1"])
    found = spark.read.schema(rows.schema).parquet(f"file://{exports}/day").orderBy("id").collect()
    assert [row["P.1"] for row in found] == texts


@pytest.mark.parametrize("lost", [False, True])
def test_what_executors_have_kept_on_disks_of_their_own_is_missed(
    lost: bool, spark: Any, exports: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a cluster a task may succeed, and its file be on another machine: the rows are counted here."""
    save = DataFrameWriter.save

    def saved(writer: DataFrameWriter, path: str) -> None:
        save(writer, path)
        if lost:
            next(Path(path.removeprefix("file://")).glob("part-*")).unlink()

    monkeypatch.setattr(spark.sparkContext, "master", "spark://there:7077")
    monkeypatch.setattr(DataFrameWriter, "save", saved)
    refused = pytest.raises(txpool.OperationalError, match="every executor must have that folder")
    with refused if lost else nullcontext():
        write_files(spark.range(10, numPartitions=2), "exports.properties", "day", format="csv")
    assert (exports / "day" / "_SUCCESS").exists() is not lost
    assert left(exports) == []


_LOSES_AN_EXECUTOR = """
    import os, sys
    from pathlib import Path
    from pyspark.sql import SparkSession
    import txpool
    from tests.spark.losing_tasks import dies_in_copy
    from txpool.spark import write_files

    os.chdir(sys.argv[1])
    spark = SparkSession.builder.getOrCreate()
    txpool.configure(node_name="driver", log_url="sqlite:///txlog")
    rows = spark.range(0, 40000, numPartitions=2)
    with txpool.transaction():
        write_files(rows.mapInArrow(dies_in_copy(Path("once").absolute()), rows.schema), "exports.properties", "day")
    spark.stop()
"""


@pytest.mark.skipif(not FULL, reason="TXPOOL_CRASH_FULL=1: it starts two executors")
def test_an_executor_that_is_lost_in_its_write(local_cluster: Any, spark: Any, exports: Path) -> None:
    """Its first attempt has written a part of its rows: nothing of it is read, and nothing stays."""
    local_cluster(_LOSES_AN_EXECUTOR, str(exports.parent))
    assert (exports.parent / "once").exists()
    found = [row.id for row in spark.read.parquet(f"file://{exports}/day").collect()]
    assert sorted(found) == [*range(40000)]
    assert [name for name in os.listdir(exports / "day") if not name.startswith((".", "part-"))] == ["_SUCCESS"]
    assert left(exports) == []
