"""Spark's own mapPartitions, each task a transaction of its own over two databases, whichever attempt is lost."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.spark.conftest import SPECULATION

if TYPE_CHECKING:
    from tests.conftest import Databases

pytestmark = pytest.mark.spark

# A row for each partition in each database: how many rows it had, and which attempt has written them.
_TASKS = """
    import json, os, signal, sys, time
    from functools import partial
    from pathlib import Path

    from pyspark import TaskContext
    from pyspark.sql import SparkSession

    import txpool
    from tests.spark.losing_tasks import first_time, kill_executor
    from txpool import failpoints
    from txpool.spark import whole

    folder = Path(sys.argv[1])


    def load(partition, rows, job, inside, behind=lambda: None, reading=lambda: None):
        # Once in each Python worker, which is a process that is forked for it.
        os.chdir(folder)
        if txpool.tm.manager.get_manager().settings.log_url is None:
            txpool.configure(node_name="executors", log_url=f"sqlite:///{folder}/txlog", log_create=True)
        files = [f"{folder}/{name}.properties" for name in ("one", "two")]
        try:
            with txpool.transaction(transaction_id=f"{job}/{partition}", record_in=files[0]):
                count = 0
                for _ in whole(rows):
                    count += 1
                    reading()
                row = job, partition, count, TaskContext.get().attemptNumber()
                for file in files:
                    with txpool.connect(file) as connection:
                        connection.execute("insert into landed values (%s, %s, %s, %s)", row)
                inside()
        except txpool.AlreadyDone:
            yield [job, partition, "before"]
        else:
            behind()
            yield [job, partition, "done"]
"""

_LOST = """
    def fails():
        if first_time(folder / "fails"):
            raise OSError("once")


    def dies(point):
        if first_time(folder / point):
            failpoints.arm(point, "kill")


    def loses_its_executor():
        if first_time(folder / "loses_its_executor"):
            kill_executor()
            time.sleep(600)  # it is not heard of any more, and is killed


    def outlives_its_executor():
        if first_time(folder / "outlives"):
            signal.signal(signal.SIGHUP, signal.SIG_IGN)  # its daemon would end it, sooner or later
            kill_executor()


    def nothing():
        pass


    jobs = {
        "fails": {"inside": fails},
        "undecided": {"inside": partial(dies, "coordinator.prepared")},
        "decided": {"inside": partial(dies, "coordinator.decided")},
        "unheard": {"inside": nothing, "behind": loses_its_executor},
        "cut-off": {"inside": nothing, "reading": outlives_its_executor},
    }
    spark = SparkSession.builder.getOrCreate()
    said = {}
    for job, ways in jobs.items():
        # More of a partition than the buffers between an executor and its worker hold, if that is to be cut off.
        rows = spark.range(0, 20_000 if job == "cut-off" else 200, numPartitions=2).selectExpr("repeat('x', 1000)").rdd
        said[job] = rows.mapPartitionsWithIndex(partial(load, job=job, **ways)).collect()
    print(json.dumps(said))
    spark.stop()
"""

_COPIED = """
    def slow():
        here = TaskContext.get()
        (folder / f"begun-{here.partitionId()}-{here.attemptNumber()}").touch()
        if here.partitionId() == 1 and here.attemptNumber() == 0:
            while not (folder / "begun-1-1").exists() and not (folder / "meets").exists():
                time.sleep(0.05)


    def meets(partition, rows):
        here = TaskContext.get()
        if here.partitionId() == 1 and here.attemptNumber() > 0:
            (folder / "meets").touch()
        yield from load(partition, rows, "copied", slow)


    spark = SparkSession.builder.getOrCreate()
    rows = spark.range(0, 1000, numPartitions=2).rdd
    print(json.dumps(rows.mapPartitionsWithIndex(meets).collect()))
    spark.stop()
"""


@pytest.fixture
def place(databases: Databases, tmp_path: Path) -> Path:
    (tmp_path / "secret").write_text(databases.server.password)
    (tmp_path / "secret").chmod(0o600)
    for name in ("one", "two"):
        (tmp_path / f"{name}.properties").write_text(
            f"name = {name}\ndriver = psycopg\nurl = {databases.url(name)}\npassword = ${{file:secret}}\n"
        )
        databases.execute(name, "create table landed (job text, part int, rows int, attempt int)")
    return tmp_path


def landed(databases: Databases, name: str) -> dict[str, list[tuple[Any, ...]]]:
    found: dict[str, list[tuple[Any, ...]]] = {}
    for job, *row in databases.rows(name, "select job, part, rows, attempt from landed order by job, part"):
        found.setdefault(job, []).append(tuple(row))
    return found


@pytest.mark.costly
def test_each_partition_lands_once_whichever_attempt_is_lost(
    local_cluster: Callable[..., str], databases: Databases, place: Path
) -> None:
    output = local_cluster(_TASKS + _LOST, str(place), conf={"spark.task.maxFailures": "8"})
    said = json.loads(output.splitlines()[-1])
    one, two = landed(databases, "one"), landed(databases, "two")
    assert one == two
    for job in ("fails", "undecided", "decided", "unheard", "cut-off"):
        rows = 10_000 if job == "cut-off" else 100
        assert [row[:2] for row in one[job]] == [(0, rows), (1, rows)], job
        assert (said[job][0][2] == "before") is (job in ("decided", "unheard")), said
    # What was decided is of the attempt that was killed; what was not, of a later one.
    assert {job for job, rows in one.items() if rows[0][2] == 0} == {"decided", "unheard"}
    assert all((place / name).exists() for name in ("fails", "outlives", "loses_its_executor"))
    assert databases.prepared() == []


@pytest.mark.costly
def test_a_copy_of_a_slow_task_does_nothing_twice(
    local_cluster: Callable[..., str], cluster: str, databases: Databases, place: Path
) -> None:
    output = local_cluster(_TASKS + _COPIED, str(place), master=cluster, conf=SPECULATION)
    said = json.loads(output.splitlines()[-1])
    assert [each[:2] for each in said] == [["copied", 0], ["copied", 1]]
    assert (place / "meets").exists(), "there was a copy"
    one = landed(databases, "one")
    assert one == landed(databases, "two")
    assert [row[:2] for row in one["copied"]] == [(0, 500), (1, 500)]  # of whichever came first
    assert databases.prepared() == []
