"""A write into MariaDB or MySQL loses an executor, or its driver: each row is there once or not at all."""

from __future__ import annotations

import json
import signal
import subprocess
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from recovery import RecoveryManager
from tests.spark.conftest import describe as describe_postgresql
from tests.spark.mysql import describe, left
from tests.support.mysql import MySQLServer
from txpool.datasource import DataSource
from txpool.log import open_log

if TYPE_CHECKING:
    from tests.conftest import Databases

pytestmark = pytest.mark.spark

_BEGINNING = """
    import json, os, signal, sys
    from pathlib import Path

    from pyspark.sql import SparkSession

    from tests.spark.losing_tasks import dies_in_copy
    from txpool.tm import manager
    from txpool.datasource import find
    from txpool.tm.demarcation.block import transaction
    from txpool.spark import write_table

    folder = sys.argv[1]
    os.chdir(folder)
    once = Path(folder, "once")
    spark = SparkSession.builder.getOrCreate()
    manager.configure(node_name="driver", log_url="sqlite:///txlog", log_create=True)
    frame = spark.range(0, 4000, numPartitions=2)
"""


def script(source: str) -> str:
    return textwrap.dedent(_BEGINNING) + textwrap.dedent(source)


@pytest.fixture(params=["mariadb", "mysql8"])
def server(
    request: pytest.FixtureRequest, databases: Databases, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> MySQLServer:
    found: MySQLServer = request.getfixturevalue(request.param)
    found.empty()
    found.execute("create table landed (id bigint primary key)", "insert into landed values (-1)", database="one")
    databases.execute("one", "create table landed (id bigint primary key)")
    (tmp_path / "secret").write_text(databases.server.password)
    (tmp_path / "secret").chmod(0o600)
    describe_postgresql(tmp_path, "one", databases.url("one"))
    describe(tmp_path, found)
    monkeypatch.chdir(tmp_path)
    return found


def count(server: MySQLServer, table: str = "landed") -> int:
    return int(server.execute(f"select count(*) from {table}", database="one")[0][0])


def recover(*names: str) -> None:
    sources = [DataSource.from_properties(f"{name}.properties") for name in names]
    log = open_log("sqlite:///txlog", node="driver")
    try:
        report = RecoveryManager(log=log, datasources=sources, backoff=0).scan()
        assert not report.errors, report
    finally:
        log.close()
        for source in sources:
            source.close()


def test_an_executor_that_dies_while_it_writes(
    local_cluster: Callable[..., str], server: MySQLServer, tmp_path: Path
) -> None:
    source = """
        writes, found = 0, []
        for strategy in ("direct", "staged"):
            attempts = 0
            while attempts <= 2:  # once more where a task was through before it was killed
                once.unlink(missing_ok=True)
                rows = spark.range(writes * 40000, (writes + 1) * 40000, numPartitions=2)
                lost = rows.mapInArrow(dies_in_copy(once), "id bigint")
                report = write_table(lost, "shop.properties", "landed", strategy=strategy)
                writes, attempts = writes + 1, report.attempts
            found.append([report.strategy, report.partitions, report.rows])
        print(json.dumps([writes, found]))
        spark.stop()
    """
    output = local_cluster(script(source), str(tmp_path))
    writes, found = json.loads(output.splitlines()[-1])
    assert found == [["direct", 2, 40_000], ["staged", 2, 40_000]]
    assert count(server) == writes * 40_000 + 1
    assert left(server) == []


_WRITES = """
    with transaction():
        write_table(frame, "shop.properties", "landed", "overwrite")
        write_table(frame, "shop.properties", "made", "ignore")
        write_table(frame, "one.properties", "landed")
"""


@pytest.mark.parametrize("point", ["coordinator.prepared", "coordinator.decided"])
def test_recovery_ends_a_killed_driver_and_sweeps_what_it_left(
    spark_process: Callable[..., subprocess.Popen[str]],
    server: MySQLServer,
    databases: Databases,
    tmp_path: Path,
    point: str,
) -> None:
    """A table that it was to create goes or stays with the transaction; so a rerun with `ignore` does not skip it."""
    driver = spark_process(script(_WRITES), str(tmp_path), env={"TXPOOL_FAILPOINTS": f"{point}=kill"})
    assert driver.wait() == -signal.SIGKILL
    assert len(server.prepared()) == 1
    assert count(server) == 1
    assert len(left(server)) > 1
    recover("shop", "one")
    decided = point.endswith("decided")
    assert server.prepared() == databases.prepared() == []
    assert count(server) == (4_000 if decided else 1)
    assert databases.rows("one", "select count(*) from landed") == [(4_000 if decided else 0,)]
    assert left(server) == (["made"] if decided else [])
    if decided:
        assert count(server, "made") == 4_000


@pytest.mark.costly
def test_a_rerun_after_the_driver_was_killed_finds_no_table_that_was_only_begun(
    spark_process: Callable[..., subprocess.Popen[str]], server: MySQLServer, tmp_path: Path
) -> None:
    source = """
        with transaction():
            report = write_table(frame, "shop.properties", "made", "ignore")
            if not once.exists():
                once.touch()
                os.kill(os.getpid(), signal.SIGKILL)
        Path("strategy").write_text(report.strategy)
        spark.stop()
    """
    assert spark_process(script(source), str(tmp_path)).wait() == -signal.SIGKILL
    assert count(server, "made") == 0
    assert spark_process(script(source), str(tmp_path)).wait() == 0
    assert (tmp_path / "strategy").read_text() == "staged"
    assert count(server, "made") == 4_000
    assert left(server) == ["made"]


def test_a_marked_databases_staging_table_is_swept_behind_its_tombstone(
    spark_process: Callable[..., subprocess.Popen[str]], server: MySQLServer, tmp_path: Path
) -> None:
    source = """
        def die(progress):
            if progress.done == 2:
                os.kill(os.getpid(), signal.SIGKILL)

        find("shop.properties").xids_table().create()
        write_table(frame, "shop.properties", "landed", progress=die)
    """
    describe(tmp_path, server, "shop", "mode = cmr")
    driver = spark_process(script(source), str(tmp_path))
    assert driver.wait() == -signal.SIGKILL
    # The table, its row in the register, and the row that ends with the server.
    assert len(left(server)) == 3
    kinds: list[Any] = []
    for _ in range(2):
        recover("shop")
        kinds.append(server.execute("select kind from xids where xid like 'txp1:driver:%'", database="one"))
        assert left(server) == []
    assert kinds == [[("abort",)], []]
    assert count(server) == 1
