"""Attempts that are lost on the way: each partition's work is there exactly once, and nothing stays prepared."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from conftest import Databases

pytestmark = pytest.mark.spark

# What every script begins and ends with: rows 0 to 3 in two partitions, into both databases, and a report.
_BEGINNING = """
    import json, logging, os, signal, sys
    from pathlib import Path

    from pyspark import TaskContext
    from pyspark.sql import SparkSession

    from txpool import failpoints
    from txpool.datasource import connect
    from txpool import manager
    from txpool.manager import configure
    from txpool.scope import transaction
    from txpool.spark import foreach_partition

    logging.basicConfig(level=logging.WARNING)
    folder = Path(sys.argv[1])
    os.chdir(folder)
    once = folder / "once"


    def first_time():
        "True in one task attempt of partition 0, and in no other."
        if TaskContext.get().partitionId() != 0 or once.exists():
            return False
        once.touch()
        return True


    def executor():
        "The process id of the executor, which is the parent of the workers' daemon."
        return int(Path(f"/proc/{os.getppid()}/stat").read_text().rpartition(")")[2].split()[1])


    def insert(rows):
        cursors = [connect("one.properties").cursor(), connect("two.properties").cursor()]
        for row in rows:
            for cursor in cursors:
                cursor.execute("insert into landed values (%s, %s, 0)", [row, TaskContext.get().taskAttemptId()])

"""
_END = """

    spark = SparkSession.builder.getOrCreate()
    configure(node_name="driver", log_url=f"sqlite:///{folder}/txlog", log_create=True)
    with transaction() as tx:
        report = foreach_partition(spark.sparkContext.parallelize(range(4), 2), write)
    print(json.dumps([report.partitions, report.attempts, report.branches, tx.gtrid in tx._log.finished()]))
    spark.stop()
"""
_ROWS = [(0,), (1,), (2,), (3,)]


@pytest.fixture
def folder(databases: Databases, tmp_path: Path) -> Path:
    """Files of the two databases, whose password only the environment of driver and executors knows."""
    for name in (databases.one, databases.two):
        text = f"name = {name}\ndriver = psycopg\nurl = {databases.url(name)}\npassword = ${{env:DATABASE_PASSWORD}}\n"
        (tmp_path / f"{name}.properties").write_text(text)
        databases.execute(name, "create table landed (id bigint primary key, attempt bigint, nap float)")
    return tmp_path


def run(cluster: Callable[..., str], databases: Databases, folder: Path, write: str, **options: Any) -> list[Any]:
    """Run a script with this `write`; the report, once each row is seen to be there once in both databases."""
    source = textwrap.dedent(_BEGINNING) + textwrap.dedent(write) + textwrap.dedent(_END)
    output = cluster(source, str(folder), env={"DATABASE_PASSWORD": databases.server.password}, **options)
    assert databases.rows("one", "select id from landed order by id") == _ROWS
    assert databases.rows("two", "select id from landed order by id") == _ROWS
    assert databases.prepared() == []
    assert (folder / "once").exists()
    report: list[Any] = json.loads(output.splitlines()[-1])
    return report


def test_a_task_that_fails_once(local_cluster: Callable[..., str], databases: Databases, folder: Path) -> None:
    write = """
        def write(rows):
            insert(rows)
            if first_time():
                raise OSError("once")
    """
    assert run(local_cluster, databases, folder, write, master="local[2,2]") == [2, 3, 4, True]


def test_a_prepared_attempt_whose_executor_died_is_adopted(
    local_cluster: Callable[..., str], databases: Databases, folder: Path
) -> None:
    write = """
        def write(rows):
            insert(rows)
            if first_time():
                manager.current().after_completion(lambda status: os.kill(executor(), signal.SIGKILL))
    """
    partitions, attempts, branches, finished = run(local_cluster, databases, folder, write)
    assert (partitions, branches, finished) == (2, 4, True)
    assert attempts > 2
    ((winner,),) = databases.rows("one", "select distinct attempt from landed where id in (0, 1)")
    assert winner in (0, 1)  # the rows are the first attempt's own, not written again


def test_an_attempt_that_died_between_two_prepares_is_struck(
    local_cluster: Callable[..., str], databases: Databases, folder: Path
) -> None:
    write = """
        def write(rows):
            insert(rows)
            if first_time():
                failpoints.arm("branch.prepare-sent", "kill", nth=1)
    """
    partitions, attempts, branches, finished = run(local_cluster, databases, folder, write)
    assert (partitions, branches, finished) == (2, 4, True)
    assert attempts > 2
    ((winner,),) = databases.rows("one", "select distinct attempt from landed where id in (0, 1)")
    assert winner not in (0, 1)


def test_an_attempt_that_is_prepared_after_its_retry_has_begun_is_struck(
    local_cluster: Callable[..., str], databases: Databases, folder: Path
) -> None:
    for name in (databases.one, databases.two):
        databases.execute(
            name,
            """
            create function nap() returns trigger language plpgsql as
                'begin perform pg_sleep(new.nap); return null; end';
            create constraint trigger nap after insert on landed deferrable initially deferred
                for each row execute function nap()
            """,
        )
    # The server goes on with a PREPARE whose client has gone: it sleeps in the trigger, and then prepares.
    write = """
        def write(rows):
            insert(rows)
            if first_time():
                for file in ("one.properties", "two.properties"):
                    connect(file).cursor().execute("insert into landed values (-1, -1, 8)")
                failpoints.arm("branch.prepare-sent", "kill", nth=2)
    """
    partitions, attempts, branches, finished = run(local_cluster, databases, folder, write)
    assert (partitions, branches, finished) == (2, 4, True)
    assert attempts > 2
