"""write_table() with a name: a rerun finishes or skips, and never doubles; each partition exactly once where asked."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.spark.conftest import describe
from txpool.errors import ProgrammingError
from txpool.spark import write_table
from txpool.tm.demarcation.block import transaction

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tests.conftest import Databases

pytestmark = [pytest.mark.spark, pytest.mark.usefixtures("sources")]

_NIGHT = "nightly-2026-11-20"


@pytest.fixture(autouse=True)
def landed(databases: Databases) -> None:
    databases.execute("one", "create table landed (id bigint); create table other (id bigint)")


def count(databases: Databases, table: Any = "landed") -> tuple[int, int]:
    return databases.rows("one", f"select count(*), count(distinct id) from {table}")[0]  # type: ignore[return-value]


@pytest.mark.parametrize("strategy", ["direct", "staged"])
def test_a_rerun_writes_nothing(spark: SparkSession, databases: Databases, strategy: Any) -> None:
    def write(rows: int = 10, table: str = "landed", **options: Any) -> Any:
        return write_table(
            spark.range(rows), "one.properties", table, strategy=strategy, transaction_id=_NIGHT, **options
        )

    with pytest.raises(LookupError), transaction():
        write()
        raise LookupError  # and it is as if it had not been
    first, again = write(), write()
    assert (first.strategy, first.rows) == (strategy, 10)
    assert (again.strategy, again.partitions, again.rows, again.attempts) == ("skipped", 2, 10, 0)
    assert count(databases) == (10, 10)
    with pytest.raises(
        ProgrammingError, match=r"has written 10 rows into public.landed already.* its plan was different"
    ):
        write(11)
    with pytest.raises(ProgrammingError, match="of other data"):
        write(mode="overwrite")
    assert write(table="other").rows == 10
    assert count(databases) == (10, 10)
    assert databases.prepared() == []


def test_rows_are_counted_where_no_plan_tells_them_apart(spark: SparkSession, databases: Databases) -> None:
    for ids, message in (([1, 2], None), ([1, 2], None), ([1, 2, 3], "there are 3 rows now")):
        df = spark.createDataFrame([(each,) for each in ids], "id bigint")
        if message is None:
            write_table(df, "one.properties", "landed", transaction_id=_NIGHT)
        else:
            with pytest.raises(ProgrammingError, match=message):
                write_table(df, "one.properties", "landed", transaction_id=_NIGHT)
    assert count(databases) == (2, 2)


def test_other_files_are_other_data(spark: SparkSession, databases: Databases, sources: Path) -> None:
    for name in ("monday", "tuesday"):
        spark.range(5).write.parquet(str(sources / name))
    for _ in range(2):
        read = spark.read.parquet(str(sources / "monday"))
        write_table(read, "one.properties", "landed", transaction_id=_NIGHT)
    with pytest.raises(ProgrammingError, match="its plan was different"):
        write_table(spark.read.parquet(str(sources / "tuesday")), "one.properties", "landed", transaction_id=_NIGHT)
    assert count(databases) == (5, 5)


@pytest.mark.parametrize("change", ["another length", "the same length", "one file more"])
def test_a_rerun_by_partition_refuses_files_that_changed_meanwhile(
    spark: SparkSession, databases: Databases, sources: Path, change: str
) -> None:
    """The first run committed the partition of one file. The other's is the same partition, and other data."""
    databases.execute("one", "alter table landed add check (id < 100)")
    folder = sources / "days"
    folder.mkdir()

    def write() -> Any:
        df = spark.read.schema("id bigint").json(str(folder))
        options: Any = {"atomicity": "partition", "transaction_id": _NIGHT}
        return write_table(df, "one.properties", "landed", **options)

    spark.conf.set("spark.sql.files.openCostInBytes", str(1 << 30))  # each file is a partition
    try:
        (folder / "a.json").write_text('{"id": 111}\n{"id": 112}\n')
        (folder / "b.json").write_text('{"id": 21}\n')
        with pytest.raises(Exception, match="violates check constraint"):
            write()
        assert databases.rows("one", "select id from landed") in ([], [(21,)])
        if change == "the same length":
            (folder / "b.json").write_text('{"id": 22}\n')
            os.utime(folder / "b.json", (1, 1))
        elif change == "another length":
            (folder / "b.json").write_text('{"id": 22}\n{"id": 23}\n')
        else:
            (folder / "c.json").write_text('{"id": 31}\n')
        with pytest.raises(ProgrammingError, match="its plan was different, or its files were"):
            write()
        assert databases.rows("one", "select id from landed") in ([], [(21,)])
        databases.execute("one", "delete from landed; delete from txpool_spark.writes")
        databases.execute(
            "one", "delete from txpool_spark.partitions; alter table landed drop constraint landed_id_check"
        )
        assert write().strategy == "each"
        assert write().strategy == "skipped"
    finally:
        spark.conf.unset("spark.sql.files.openCostInBytes")


_SCRIPT = """
    import os, sys

    from pyspark.sql import SparkSession

    from txpool.tm import manager
    from txpool.spark import write_table

    os.chdir(sys.argv[1])
    spark = SparkSession.builder.getOrCreate()
    manager.configure(node_name="driver", log_url="sqlite:///txlog")
    write_table(spark.range(10), "one.properties", "landed", transaction_id="nightly-2026-11-20")
"""


@pytest.mark.parametrize(("point", "ends"), [("coordinator.prepared", "direct"), ("coordinator.decided", "skipped")])
def test_a_rerun_ends_what_a_killed_driver_has_left(
    spark: SparkSession,
    spark_process: Callable[..., subprocess.Popen[str]],
    databases: Databases,
    sources: Path,
    point: str,
    ends: str,
) -> None:
    killed = spark_process(_SCRIPT, str(sources), env={"TXPOOL_FAILPOINTS": f"{point}=kill"})
    assert killed.wait() == -signal.SIGKILL
    assert len(databases.prepared()) == 3
    again = write_table(spark.range(10), "one.properties", "landed", transaction_id=_NIGHT)
    assert (again.strategy, again.rows) == (ends, 10)
    assert count(databases) == (10, 10)
    assert databases.prepared() == []


@pytest.fixture
def shuffling(spark: SparkSession) -> Iterator[None]:
    """A shuffle has as many partitions as the test says."""
    before = {name: spark.conf.get(name) for name in ("spark.sql.adaptive.enabled", "spark.sql.shuffle.partitions")}
    spark.conf.set("spark.sql.adaptive.enabled", "false")
    yield
    for name, value in before.items():
        spark.conf.set(name, value)


@pytest.mark.costly
@pytest.mark.usefixtures("shuffling")
def test_each_partition_lands_exactly_once(spark: SparkSession, databases: Databases, sources: Path) -> None:
    describe(sources, "ledger", databases.url("one"), "mode = cmr")
    flag = sources / "fail"
    flag.touch()
    path = str(flag)

    def fail_once(batches: Iterator[Any]) -> Iterator[Any]:
        from pyspark import TaskContext

        yield from batches
        if TaskContext.get().partitionId() == 3 and os.path.exists(path):  # type: ignore[union-attr]
            raise LookupError

    def write(partitions: int = 4, atomicity: Any = "partition") -> Any:
        spark.conf.set("spark.sql.shuffle.partitions", str(partitions))
        df = spark.range(40).repartition("id").mapInArrow(fail_once, "id bigint")
        return write_table(df, "ledger.properties", "landed", atomicity=atomicity, transaction_id=_NIGHT)

    with pytest.raises(Exception, match="LookupError"):
        write()
    assert 0 < count(databases)[0] < 40
    flag.unlink()
    assert (write().strategy, count(databases)) == ("each", (40, 40))
    assert (write().strategy, count(databases)) == ("skipped", (40, 40))
    databases.execute("one", "update txpool_spark.writes set row_count = null")
    with pytest.raises(ProgrammingError, match=r"begun to write .* in 4 partitions, and now there are 5"):
        write(5)
    with pytest.raises(ProgrammingError, match=r"written a part of public.landed, with atomicity='partition'"):
        write(atomicity="job")
    with pytest.raises(ProgrammingError, match="needs a transaction_id"), transaction():
        write()
    assert count(databases) == (40, 40)
