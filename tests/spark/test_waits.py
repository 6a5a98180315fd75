"""A task that waits for what a dead process has prepared says so, and recovers nothing."""

from __future__ import annotations

import logging
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psycopg
from psycopg import sql

import txpool
from tests.support import preloaded
from tests.support.repository import ROOT
from tests.support.running import running
from tests.support.waiting import until

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tests.conftest import Databases

#: Another node's process, which dies prepared: it has inserted row 1.
DEAD = """
import txpool
txpool.configure("other.properties", log_create=True)
with txpool.transaction():
    for name in ("one", "two"):
        txpool.connect(f"{name}.properties").execute("insert into t values (1)")
"""


def test_a_task_reports_and_does_not_recover(spark: SparkSession, sources: Path, databases: Databases) -> None:
    for name in ("one", "two"):
        databases.execute(name, "create table t (id int primary key)")
    other, said = sources / "other.properties", sources / "said"
    other.write_text("node.name = other\nlog.url = sqlite:///other\ntransaction.wait-report = 100ms\n")
    environment = {"PYTHONPATH": str(ROOT), "TXPOOL_FAILPOINTS": "coordinator.prepared=kill"}
    assert preloaded.run("-c", DEAD, cwd=sources, env=environment).returncode == -signal.SIGKILL
    (gtrid,) = {":".join(gid.split(":")[:4]) for gid in databases.prepared()}

    def write(rows: Iterator[Any]) -> None:
        # The task finds a configuration by which any other process would recover that node.
        os.environ["TXPOOL_CONF"] = str(other)
        handler = logging.FileHandler(said)
        logging.getLogger("txpool.waits").addHandler(handler)
        try:
            connection = txpool.connect(str(sources / "one.properties"))
            for row in rows:
                connection.execute("insert into t values (%s)", [row.id])
        finally:
            logging.getLogger("txpool.waits").removeHandler(handler)
            del os.environ["TXPOOL_CONF"]

    def job() -> None:
        from txpool.spark import foreach_partition

        with txpool.transaction():
            foreach_partition(
                spark.createDataFrame([(1,)], "id int").coalesce(1), write, datasources=["one.properties"]
            )

    with running(job) as done:
        until(lambda: said.exists() and "has executed for" in said.read_text())
        assert not done.done()
        for name in ("one", "two"):
            with psycopg.connect(databases.dsn(name), autocommit=True) as connection:
                (gid,) = [each for each in databases.prepared() if f":{name}:" in each and each.startswith(gtrid)]
                connection.execute(sql.SQL("rollback prepared {}").format(gid))
        done.result(120)
    assert gtrid in said.read_text()
    assert "scan is made" not in said.read_text()
    assert databases.rows("one", "table t") == [(1,)]
