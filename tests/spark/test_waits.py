"""A task that waits for what a dead process has prepared says so, and recovers nothing."""

from __future__ import annotations

import logging
import os
import signal
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psycopg
import pytest
from psycopg import sql

import txpool
from tests.support import preloaded
from tests.support.repository import ROOT
from tests.support.running import running
from tests.support.waiting import until

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tests.conftest import Databases

#: Another node's process, which dies prepared: it has inserted one row.
DEAD = """
import sys, txpool
txpool.configure("other.properties", log_create=True)
with txpool.transaction():
    for name in ("one", "two"):
        txpool.connect(f"{name}.properties").execute("insert into t values (%s)", sys.argv[1:])
"""


@pytest.mark.costly
def test_a_task_reports_and_does_not_recover(spark: SparkSession, sources: Path, databases: Databases) -> None:
    for name in ("one", "two"):
        databases.execute(name, "create table t (id int primary key)")
    other, said = sources / "other.properties", sources / "said"
    other.write_text("node.name = other\nlog.url = sqlite:///other\ntransaction.wait-report = 100ms\n")
    environment = {"PYTHONPATH": str(ROOT), "TXPOOL_FAILPOINTS": "coordinator.prepared=kill"}
    gids = list[list[str]]()
    for row in ("1", "2"):
        assert preloaded.run("-c", DEAD, row, cwd=sources, env=environment).returncode == -signal.SIGKILL
        gids.append([gid for gid in databases.prepared() if gid not in chain(*gids)])

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

        rows = spark.createDataFrame([(1,), (2,)], "id int").coalesce(1)
        with txpool.transaction():
            foreach_partition(rows, write, datasources=["one.properties"])

    with running(job) as done:
        for prepared in gids:
            gtrid = ":".join(prepared[0].split(":")[:4])
            # Whatever the first report leads to has been done when the second one is made.
            until(lambda named=f"{gtrid} (process": said.exists() and named in said.read_text())  # type: ignore[misc]
            for gid in prepared:
                end(databases, gid)
        done.result(120)
    assert said.read_text().count("has executed for") == len(gids)
    assert "scan is made" not in said.read_text()
    assert databases.rows("one", "table t order by id") == [(1,), (2,)]


def end(databases: Databases, gid: str) -> None:
    name = gid.split(":")[5]
    with psycopg.connect(databases.dsn(name), autocommit=True) as connection:
        connection.execute(sql.SQL("rollback prepared {}").format(gid))
