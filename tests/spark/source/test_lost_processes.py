"""What format("txpool") writes is there once or not at all, whatever is lost of Spark while it is at it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import textwrap
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from recovery import RecoveryManager
from tests.spark.source.file_stream import stream_of_files
from txpool.datasource import DataSource
from txpool.spark import register
from txpool.tm.manager import get_manager

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tests.conftest import Databases

pytestmark = [pytest.mark.spark, pytest.mark.usefixtures("sources")]

_BEGINNING = """
import os, sys
from pathlib import Path

from pyspark.sql import SparkSession

from tests.spark.losing_tasks import dies_in_copy, dies_prepared, outlives_its_executor
from txpool.tm import manager
from txpool.spark import register

folder, dsn, *arguments = sys.argv[1:]
os.chdir(folder)
spark = SparkSession.builder.getOrCreate()
manager.configure(node_name="driver", log_url="sqlite:///txlog")
register(spark)


def save(df, table, **options):
    options |= {"datasource": "one.properties", "dbtable": table}
    df.write.format("txpool").options(**options).mode("append").save()
"""


@pytest.fixture(autouse=True)
def landed(databases: Databases) -> None:
    databases.execute("one", "create table plain (id bigint); create table keyed (id bigint primary key)")


def count(databases: Databases, table: str) -> tuple[int, int]:
    ((rows, distinct),) = databases.rows("one", f"select count(*), count(distinct id) from {table}")
    return rows, distinct


def leftovers(databases: Databases) -> list[Any]:
    """What is prepared or staged, once recovery has been here."""
    source = DataSource.from_properties("one.properties")
    report = RecoveryManager(log=get_manager().log, datasources=[source], backoff=0).scan()
    assert not report.errors, report
    query = "select relname from pg_class where relnamespace = to_regnamespace('txpool_spark') and relname ~ '^txp1'"
    return [*databases.prepared(), *databases.rows("one", query)]


def test_executors_that_die_while_they_copy_and_once_they_are_done(
    local_cluster: Callable[..., str], databases: Databases, sources: Path
) -> None:
    source = """
    once, writes = Path(folder, "once"), {"plain": 0, "keyed": 0}
    in_copy, prepared = dies_in_copy(once), dies_prepared(once, dsn)
    for table, loss in [("keyed", in_copy), ("plain", in_copy), ("plain", prepared)]:
        once.unlink(missing_ok=True)
        rows = spark.range(writes[table] * 40000, (writes[table] + 1) * 40000, numPartitions=2)
        save(rows.mapInArrow(loss, "id bigint"), table)
        assert once.exists()
        writes[table] += 1
    spark.stop()
    """
    local_cluster(_script(source), str(sources), databases.dsn("one"))
    assert count(databases, "keyed") == (40_000, 40_000)
    assert count(databases, "plain") == (80_000, 80_000)
    assert leftovers(databases) == []


@pytest.mark.costly
def test_a_worker_that_outlives_its_executor_prepares_no_part_of_its_rows(
    local_cluster: Callable[..., str], databases: Databases, sources: Path
) -> None:
    """The end of its connection looks like the end of its rows, and the retry would adopt what it has prepared."""
    source = """
    once = Path(folder, "once")
    save(spark.range(0, 40000, numPartitions=1).mapInArrow(outlives_its_executor(once, dsn), "id bigint"), "plain")
    spark.stop()
    """
    try:
        local_cluster(_script(source), str(sources), databases.dsn("one"))
    finally:
        with suppress(ProcessLookupError):
            os.kill(int((sources / "once").read_text()), signal.SIGKILL)
    assert count(databases, "plain") == (40_000, 40_000)
    assert leftovers(databases) == []


@pytest.mark.costly
@pytest.mark.parametrize(
    ("table", "point", "prepared", "rows"),
    [("plain", "coordinator.prepared", 3, 0), ("keyed", "coordinator.begin", 0, 0)],
)
def test_a_rerun_ends_what_a_killed_driver_has_left(
    spark: SparkSession,
    spark_process: Callable[..., subprocess.Popen[str]],
    databases: Databases,
    sources: Path,
    table: str,
    point: str,
    prepared: int,
    rows: int,
) -> None:
    source = """
    save(spark.range(10, numPartitions=2), arguments[0], transactionId="nightly")
    """
    arguments = str(sources), databases.dsn("one"), table
    killed = spark_process(_script(source), *arguments, env={"TXPOOL_FAILPOINTS": f"{point}=kill"})
    assert killed.wait() == -signal.SIGKILL
    assert len(databases.prepared()) == prepared
    assert count(databases, table) == (rows, rows)
    register(spark)
    writer = spark.range(10, numPartitions=2).write.format("txpool").option("transactionId", "nightly")
    writer.options(datasource="one.properties", dbtable=table).mode("append").save()
    assert count(databases, table) == (10, 10)
    assert leftovers(databases) == []


@pytest.mark.costly
def test_a_stream_goes_on_where_its_driver_was_killed(
    spark: SparkSession,
    spark_process: Callable[..., subprocess.Popen[str]],
    databases: Databases,
    sources: Path,
) -> None:
    (sources / "in").mkdir()
    for number in range(3):
        lines = (json.dumps({"id": 5 * number + n}) for n in range(5))
        (sources / "in" / f"{number}.json").write_text("\n".join(lines))
    killed = spark_process(
        _script(_STREAM), str(sources), databases.dsn("one"), env={"TXPOOL_FAILPOINTS": "coordinator.decided=kill@2"}
    )
    assert killed.wait() == -signal.SIGKILL
    assert count(databases, "plain") == (5, 5)
    assert len(databases.prepared()) > 1
    register(spark)
    query = stream_of_files(spark, sources).start()
    assert query.awaitTermination(200)
    assert count(databases, "plain") == (15, 15)
    assert leftovers(databases) == []


_STREAM = """
from tests.spark.source.file_stream import stream_of_files

stream_of_files(spark, Path(folder)).start().awaitTermination()
"""


def _script(source: str) -> str:
    return _BEGINNING + textwrap.dedent(source)
