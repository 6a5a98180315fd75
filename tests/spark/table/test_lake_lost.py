"""An executor dies amid a write into an Iceberg table, or the driver once all is prepared: all or nothing."""

from __future__ import annotations

import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import txpool
import txpool.lake
from recovery import RecoveryManager
from tests.spark.table.test_lake import committed, create, lake, require_nothing_else

__all__ = ["lake"]
pytestmark = [pytest.mark.spark, pytest.mark.slow]

SCRIPT = """
    import sys
    from pathlib import Path

    from pyspark.sql import SparkSession

    import txpool
    from tests.spark.losing_tasks import dies_in_copy
    from txpool.spark import write_table

    spark = SparkSession.builder.config("spark.sql.execution.arrow.maxRecordsPerBatch", 250).getOrCreate()
    txpool.configure(node_name="driver", log_url="sqlite:///txlog", log_create=True)
    rows = spark.range(0, 1000, numPartitions=2)
    for number in range(2):
        with txpool.transaction():
            losing = rows.mapInArrow(dies_in_copy(Path.cwd() / f"once{number}"), rows.schema)
            report = write_table(losing, "wh.properties", "db.orders")
            write_table(rows, "two.properties", "done", create=True)
        print(report.partitions, report.rows, report.attempts > 2, flush=True)
"""


@pytest.mark.costly
def test_executors_that_die_and_then_the_driver(
    spark_process: Callable[..., subprocess.Popen[str]], lake: Path, databases: Any
) -> None:
    import pyarrow as pa

    # Each batch makes a file, so the attempt that is lost has made one.
    create("orders", pa.schema([("id", pa.int64())]), **{"write.target-file-size-bytes": "1000"})
    killed = {"TXPOOL_FAILPOINTS": "coordinator.prepared=kill@2"}
    process = spark_process(SCRIPT, master="local-cluster[2,1,1024]", env=killed)
    output, _ = process.communicate(timeout=600)
    errors = Path(process.args[1]).with_suffix(".err").read_text()  # type: ignore[index,arg-type]
    assert (process.returncode, output) == (-signal.SIGKILL, "2 1000 True\n"), errors[-8000:]
    assert (lake.parent / "once1").exists()
    made = {str(each) for each in lake.rglob("*.parquet")}
    assert [each for each in (lake / "_txpool").iterdir() if each.suffix == ".attempt"]

    settings = Path("recovery.properties")
    settings.write_text(
        "node.name = driver\nlog.url = sqlite:///txlog\nrecovery.backoff = 0\n"
        "datasources = one.properties, two.properties, wh.properties\n"
    )
    manager = RecoveryManager(settings)
    for _ in range(60):
        time.sleep(0.5)
        report = manager.scan()
        if not list((lake / "_txpool").glob("*+*")):
            break
    else:
        pytest.fail(f"not swept: {report}")
    table = committed(databases, "orders")
    assert sorted(table.scan().to_arrow()["id"].to_pylist()) == list(range(1000))
    assert databases.rows("two", "select count(*) from done") == [(1000,)]
    require_nothing_else(lake, table)
    assert {str(each) for each in lake.rglob("*.parquet")} < made
    with txpool.transaction():
        assert txpool.lake.catalog("wh.properties").load_table("db.orders").scan().to_arrow().num_rows == 1000
