"""foreach_partition() with a transaction_id: a rerun finishes or skips, and the job is never done twice."""

from __future__ import annotations

import signal
import subprocess
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import txpool
from tests.support.waiting import until
from txpool.errors import AlreadyDone, ProgrammingError, TransactionRolledBack
from txpool.spark import PartitionsReport, foreach_partition, register, write_table
from txpool.spark.table.idempotent_job import JobId, claim_job
from txpool.tm.ambient import current
from txpool.tm.demarcation.block import transaction
from txpool.tm.demarcation.calls import begin, commit

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tests.conftest import Databases

pytestmark = [pytest.mark.spark, pytest.mark.usefixtures("sources")]

_DAY = "load-2026-11-22"
_ONCE: Any = {"transaction_id": _DAY, "record_in": "two.properties"}


@pytest.fixture(autouse=True)
def landed(databases: Databases) -> None:
    databases.execute("one", "create table landed (id bigint)")


def write(rows: Iterator[Any]) -> None:
    from txpool.datasource import connect

    connect("one.properties").cursor().executemany("insert into landed values (%s)", [[row[0]] for row in rows])


def other(rows: Iterator[Any]) -> None:
    write(rows)


def count(databases: Databases) -> int:
    return int(databases.rows("one", "select count(*) from landed")[0][0])


def run(df: Any, function: Any = write, **once: Any) -> PartitionsReport:
    with transaction():
        return foreach_partition(df, function, datasources=["one.properties"], **(once or _ONCE))


@pytest.mark.slow
def test_a_rerun_finishes_or_skips(spark: SparkSession, databases: Databases, sources: Path) -> None:
    flag = sources / "fail"
    flag.touch()
    path = str(flag)

    def work(rows: Iterator[Any]) -> None:
        from pathlib import Path

        write(rows)
        if Path(path).exists():
            raise LookupError("half-way")

    with pytest.raises(Exception, match="half-way"):
        run(spark.range(10), work)
    flag.unlink()
    with pytest.raises(LookupError), transaction():
        foreach_partition(spark.range(10), work, **_ONCE)
        raise LookupError
    assert count(databases) == 0
    first, again = run(spark.range(10), work), run(spark.range(10), work)
    assert (first.done_by, first.partitions, first.attempts) == (None, 2, 2)
    assert (again.done_by, again.partitions, again.attempts, again.branches) == (first.gtrid, 2, 0, 0)
    assert count(databases) == 10
    kept = databases.rows("two", "select transaction_id, target, gtrid, mode, partitions from txpool_spark.writes")
    assert kept == [(_DAY, "partitions", first.gtrid, "foreach_partition", 2)]
    assert databases.prepared() == []


def test_other_work_is_refused_where_it_can_be_told(spark: SparkSession, databases: Databases, sources: Path) -> None:
    done = run(spark.range(10)).gtrid
    with pytest.raises(ProgrammingError, match=rf"which {done} has done: that was .* of write\(\).* of other\(\)"):
        run(spark.range(10), other)
    with pytest.raises(ProgrammingError, match=r"that was a foreach_partition of write\(\) over what has the digest"):
        run(spark.range(11))
    assert run(spark.range(10), lambda rows: [*map(print, rows)]).done_by == done  # whose name says nothing
    assert run(spark.sparkContext.parallelize([(1,)]), write).done_by == done  # nor does an RDD
    with transaction() as tx:
        with pytest.raises(AlreadyDone, match=done), named(spark.range(10), "foreach_partition") as claim:
            claim.require_new()
        with (
            pytest.raises(ProgrammingError, match="this is a map_partitions"),
            named(spark.range(10), "map_partitions"),
        ):
            pytest.fail("it must not be run")
        assert tx.active
    assert count(databases) == 10


def named(df: Any, kind: str) -> Any:
    tx = current()
    assert tx is not None
    return claim_job(tx, JobId(kind, _DAY, "two.properties"), df, write)


def test_a_name_without_its_work_is_never_committed(spark: SparkSession, databases: Databases) -> None:
    """The job was not started, and the caller goes on."""
    rows = spark.sparkContext.parallelize([(n,) for n in range(70)], 70)
    begin()
    with pytest.raises(txpool.OperationalError, match="The job was not started"):
        foreach_partition(rows, write, datasources=["one.properties"], **_ONCE)
    with pytest.raises(TransactionRolledBack):
        commit()
    assert databases.rows("two", "select 1 from txpool_spark.writes") == []


@pytest.mark.parametrize("mode", ["cmr", "local"])
def test_the_record_in_sqlite(spark: SparkSession, databases: Databases, sources: Path, mode: str) -> None:
    (sources / "ledger.properties").write_text(f"driver = sqlite3\nmode = {mode}\nurl = sqlite:///ledger.db\n")
    ledger = txpool.datasource.find("ledger.properties")
    once = {"transaction_id": _DAY, "record_in": ledger}
    if mode == "local":
        with pytest.raises(ProgrammingError, match=r"must be alone\. Give it mode=cmr") as refused:
            run(spark.range(10), **once)
        assert not hasattr(refused.value, "__notes__")  # before the job
        return
    (sources / "ledger.db").touch()
    ledger.xids_table().create()
    assert [run(spark.range(10), **once).attempts for _ in range(2)] == [2, 0]
    assert count(databases) == 10


def test_of_two_runs_at_a_time_one_skips(spark: SparkSession, databases: Databases, sources: Path) -> None:
    reports: list[PartitionsReport] = []
    threads = [threading.Thread(target=lambda: reports.append(run(spark.range(10)))) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert sorted(report.attempts for report in reports) == [0, 2]
    assert count(databases) == 10


_SCRIPT = """
    import os, sys

    from pyspark.sql import SparkSession

    from txpool.tm import manager
    from txpool.tm.demarcation.block import transaction
    from txpool.spark import foreach_partition

    def write(rows):
        from txpool.datasource import connect

        connect("one.properties").cursor().executemany("insert into landed values (%s)", [[row[0]] for row in rows])

    os.chdir(sys.argv[1])
    spark = SparkSession.builder.getOrCreate()
    manager.configure(node_name="driver", log_url="sqlite:///txlog")
    with transaction():
        foreach_partition(spark.range(10), write, transaction_id="load-2026-11-22", record_in="two.properties")
"""


@pytest.mark.parametrize(("point", "skips"), [("coordinator.prepared", False), ("coordinator.decided", True)])
def test_a_rerun_after_the_driver_was_killed(
    spark: SparkSession,
    spark_process: Callable[..., subprocess.Popen[str]],
    databases: Databases,
    sources: Path,
    point: str,
    skips: bool,
) -> None:
    killed = spark_process(_SCRIPT, str(sources), env={"TXPOOL_FAILPOINTS": f"{point}=kill"})
    assert killed.wait() == -signal.SIGKILL
    assert len(databases.prepared()) == 3
    txpool.datasource.find("one.properties")
    assert (run(spark.range(10)).done_by is not None) is skips
    assert count(databases) == 10
    assert databases.prepared() == []


_HALF = """
    import os, sys, time

    from pyspark import TaskContext
    from pyspark.sql import SparkSession

    from txpool.tm import manager
    from txpool.tm.demarcation.block import transaction
    from txpool.spark import foreach_partition

    def write(rows):
        from txpool.datasource import connect

        if TaskContext.get().partitionId():
            time.sleep(600)
        connect("one.properties").cursor().executemany("insert into landed values (%s)", [[row[0]] for row in rows])

    os.chdir(sys.argv[1])
    spark = SparkSession.builder.getOrCreate()
    manager.configure(node_name="driver", log_url="sqlite:///txlog")
    with transaction():
        foreach_partition(spark.range(10), write, transaction_id="load-2026-11-22", record_in="two.properties")
"""


@pytest.mark.slow
@pytest.mark.parametrize("way", ["foreach_partition", "write_table", "format"])
def test_a_rerun_waits_for_no_task_of_a_killed_driver(
    spark: SparkSession,
    spark_process: Callable[..., subprocess.Popen[str]],
    databases: Databases,
    sources: Path,
    way: str,
) -> None:
    """A task's branch is prepared, and the record of the transaction is not: no recovery runs beside it."""
    databases.execute("one", "create unique index on landed (id)")
    killed = spark_process(_HALF, str(sources))
    until(databases.prepared, 240)
    killed.kill()
    killed.wait()
    (left,) = databases.prepared()
    txpool.datasource.find("one.properties")
    if way == "foreach_partition":
        assert run(spark.range(10)).done_by is None
    elif way == "write_table":
        with transaction():
            write_table(spark.range(10), "one.properties", "landed", strategy="direct")
    else:
        register(spark)
        options = {"datasource": "one.properties", "dbtable": "landed", "strategy": "staged"}
        spark.range(10).write.format("txpool").options(**options).mode("append").save()
    assert count(databases) == 10
    assert left not in databases.prepared()
