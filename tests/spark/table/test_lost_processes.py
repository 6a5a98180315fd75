"""A write loses an executor, or its driver: each row is there once or not at all, and no staging table stays."""

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
from tests.spark.conftest import describe
from txpool.datasource import DataSource
from txpool.log import open_log

if TYPE_CHECKING:
    from tests.conftest import Databases

pytestmark = pytest.mark.spark

_BEGINNING = """
    import json, os, signal, sys
    from pathlib import Path

    from pyspark.sql import SparkSession

    from tests.spark.losing_tasks import dies_in_copy, dies_prepared
    from txpool.tm import manager
    from txpool.datasource import connect, find
    from txpool.tm.demarcation.block import transaction
    from txpool.spark import foreach_partition, write_table

    folder, dsn = sys.argv[1:]
    os.chdir(folder)
    once = Path(folder, "once")

    spark = SparkSession.builder.getOrCreate()
    manager.configure(node_name="driver", log_url="sqlite:///txlog", log_create=True)
    frame = spark.range(0, 40000, numPartitions=2)
"""


def script(source: str) -> str:
    return textwrap.dedent(_BEGINNING) + textwrap.dedent(source)


@pytest.fixture
def folder(databases: Databases, tmp_path: Path) -> Path:
    (tmp_path / "secret").write_text(databases.server.password)
    (tmp_path / "secret").chmod(0o600)
    for name in (databases.one, databases.two):
        describe(tmp_path, name, databases.url(name))
        databases.execute(name, "create table landed (id bigint primary key)")
    return tmp_path


def count(databases: Databases, name: str = "one") -> int:
    return int(databases.rows(name, "select count(*) from landed")[0][0])


def staging(databases: Databases) -> int:
    query = "select count(*) from pg_class where relnamespace = to_regnamespace('txpool_spark') and relkind = 'r'"
    return int(databases.rows("one", query)[0][0])


def recover(*sources: DataSource) -> None:
    log = open_log("sqlite:///txlog", node="driver")
    report = RecoveryManager(log=log, datasources=sources, backoff=0).scan()
    assert not report.errors, report
    log.close()


@pytest.mark.costly
def test_executors_that_die_while_they_copy_and_once_they_have_prepared(
    local_cluster: Callable[..., str], databases: Databases, folder: Path
) -> None:
    source = """
        writes, found = 0, []
        in_copy, prepared = dies_in_copy(once), dies_prepared(once, dsn)
        for strategy, loss in [("staged", in_copy), ("direct", in_copy), ("direct", prepared)]:
            attempts = 0
            while attempts <= 2:  # once more where a task was through before it was killed
                once.unlink(missing_ok=True)
                rows = spark.range(writes * 40000, (writes + 1) * 40000, numPartitions=2).mapInArrow(loss, "id bigint")
                report = write_table(rows, "one.properties", "landed", strategy=strategy)
                writes, attempts = writes + 1, report.attempts
            found.append([report.strategy, report.partitions, report.rows])
        print(json.dumps([writes, found]))
        spark.stop()
    """
    output = local_cluster(script(source), str(folder), databases.dsn("one"))
    writes, found = json.loads(output.splitlines()[-1])
    assert found == [[strategy, 2, 40_000] for strategy in ("staged", "direct", "direct")]
    assert count(databases) == writes * 40_000
    assert databases.prepared() == []
    assert staging(databases) == 0


_BOTH_KINDS = """
    def write(rows):
        cursor = connect("two.properties").cursor()
        for row in rows:
            cursor.execute("insert into landed values (%s)", [row])

    with transaction():
        write_table(frame, "one.properties", "landed", "overwrite")
        write_table(frame, "two.properties", "landed")
        foreach_partition(spark.sparkContext.parallelize(range(40000, 40004), 2), write)
"""


@pytest.mark.parametrize(("point", "rows"), [("coordinator.prepared", 1), ("coordinator.decided", 40_000)])
def test_recovery_ends_a_killed_driver_and_sweeps_what_it_staged(
    spark_process: Callable[..., subprocess.Popen[str]],
    databases: Databases,
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    point: str,
    rows: int,
) -> None:
    databases.execute("one", "insert into landed values (-1)")
    driver = spark_process(script(_BOTH_KINDS), str(folder), "", env={"TXPOOL_FAILPOINTS": f"{point}=kill"})
    assert driver.wait() == -signal.SIGKILL
    assert len(databases.prepared()) == 5
    assert (count(databases), staging(databases)) == (1, 1)
    monkeypatch.chdir(folder)
    with DataSource.from_properties("one.properties") as one, DataSource.from_properties("two.properties") as two:
        recover(one, two)
    assert (count(databases), count(databases, "two")) == (rows, rows + 4 if rows > 1 else 0)
    assert (databases.prepared(), staging(databases)) == ([], 0)


@pytest.mark.costly
def test_a_marked_databases_staging_table_is_swept_behind_its_tombstone(
    spark_process: Callable[..., subprocess.Popen[str]],
    databases: Databases,
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    source = """
        def die(progress):
            if progress.done == 2:
                os.kill(os.getpid(), signal.SIGKILL)

        find("one.properties").xids_table().create()
        write_table(frame, "one.properties", "landed", progress=die)
    """
    describe(folder, "one", databases.url("one"), "mode = cmr")
    driver = spark_process(script(source), str(folder), "")
    assert driver.wait() == -signal.SIGKILL
    assert staging(databases) == 1
    monkeypatch.chdir(folder)
    kinds: list[Any] = []
    with DataSource.from_properties("one.properties") as one:
        for _ in range(2):
            recover(one)
            kinds.append(databases.rows("one", "select kind from xids where xid like 'txp1:driver:%%'"))
            assert staging(databases) == 0
    assert kinds == [[("abort",)], []]
    assert count(databases) == 0
