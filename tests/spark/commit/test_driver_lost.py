"""A driver that is interrupted: its job is cancelled, and what its tasks have prepared rolls back."""

from __future__ import annotations

import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from recovery import RecoveryManager
from txpool.datasource import DataSource
from txpool.log import open_log

if TYPE_CHECKING:
    from tests.conftest import Databases

pytestmark = pytest.mark.spark

_SCRIPT = """
    import os, sys

    from pyspark import TaskContext
    from pyspark.sql import SparkSession

    from txpool.tm import manager
    from txpool.datasource import connect
    from txpool.tm.demarcation.block import transaction
    from txpool.spark import foreach_partition

    os.chdir(sys.argv[1])


    def write(rows):
        cursor = connect("one.properties").cursor()
        for row in rows:
            cursor.execute("insert into landed values (%s)", [row])
        if TaskContext.get().partitionId() == 1:
            cursor.execute("select pg_sleep(600)")


    spark = SparkSession.builder.getOrCreate()
    manager.configure(node_name="driver", log_url="sqlite:///txlog", log_create=True)
    try:
        with transaction() as tx:
            foreach_partition(spark.sparkContext.parallelize(range(4), 2), write)
    except KeyboardInterrupt as interrupt:
        print(tx.status.value, spark.sparkContext.statusTracker().getActiveJobsIds(), *interrupt.__notes__)
"""


@pytest.fixture
def source(databases: Databases, tmp_path: Path) -> DataSource:
    """Datasource one, as the script and recovery know it."""
    (tmp_path / "secret").write_text(databases.server.password)
    (tmp_path / "secret").chmod(0o600)
    text = f"name = one\ndriver = psycopg\nurl = {databases.url('one')}\npassword = ${{file:secret}}\n"
    (tmp_path / "one.properties").write_text(text)
    databases.execute("one", "create table landed (id bigint primary key)")
    return DataSource.from_properties(tmp_path / "one.properties")


def recover(source: DataSource, folder: Path) -> None:
    log = open_log(f"sqlite:///{folder}/txlog", node="driver")
    RecoveryManager(log=log, datasources=[source], backoff=0).scan()
    log.close()
    source.close()


def test_an_interrupt_cancels_the_job_and_rolls_back(
    spark_process: Callable[..., subprocess.Popen[str]], databases: Databases, source: DataSource, tmp_path: Path
) -> None:
    driver = spark_process(_SCRIPT, str(tmp_path))
    while not databases.prepared():
        assert driver.poll() is None
        time.sleep(0.1)
    driver.send_signal(signal.SIGINT)
    output, _ = driver.communicate(timeout=200)
    assert driver.returncode == 0
    assert output.startswith("rolled back [] Spark write 0 of txp1:driver:")
    assert databases.prepared() == []
    recover(source, tmp_path)
    assert databases.rows("one", "select * from landed") == []
    assert databases.prepared() == []
