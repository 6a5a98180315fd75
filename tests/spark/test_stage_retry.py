"""A stage that Spark runs again, because what an earlier stage had written is lost: its attempts count from 0 again."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from conftest import Databases

pytestmark = pytest.mark.spark

# The rows of both partitions come out of a shuffle, whose files are there before the write. The one that is deleted
# holds rows of partition 1 only, so that partition 0 works on, and has prepared when its stage has failed.
_SCRIPT = """
    import json, os, sys, time
    from pathlib import Path

    from pyspark import TaskContext
    from pyspark.sql import SparkSession

    from txpool import manager
    from txpool.datasource import connect, find
    from txpool.scope import transaction
    from txpool.spark import foreach_partition, monitor

    folder = Path(sys.argv[1])
    os.chdir(folder)
    again = folder / "again"


    def wait_for(reached):
        while not reached():
            time.sleep(0.05)


    def prepared():
        branches = find("one.properties").resource_manager().recover()
        return any(branch.xid.task.partition == 0 for branch in branches)


    def shuffle(path):
        return int(path.name.split("_")[1])


    def task(path):
        return int(path.name.split("_")[2])


    def insert(rows):
        here = TaskContext.get()
        cursor = connect("one.properties").cursor()
        for _, row in rows:
            cursor.execute("insert into landed values (%s, %s)", [row, here.taskAttemptId()])
        (folder / f"attempt-{rows[0][1]}-{here.partitionId()}-{here.attemptNumber()}").touch()


    def simple(rows):
        insert(list(rows))


    def zombie(rows):
        rows = list(rows)
        if TaskContext.get().partitionId() == 0:
            first = not (folder / "first").exists()
            (folder / "first").touch()
            if first:
                # Prepared, and not heard of by Spark: not before its partition is being written again.
                manager.current().after_completion(lambda status: wait_for(again.exists))
            else:
                wait_for(prepared)
                again.touch()
        insert(rows)


    spark = SparkSession.builder.getOrCreate()
    manager.configure(node_name="driver", log_url="sqlite:///txlog", log_create=True)
    monitor.GRACE = 2.0  # nothing is to be adopted here, however late a retry begins
    said = []
    for write, start in ((simple, 0), (zombie, 4)):
        pairs = [(1, start + 2), (1, start + 3), (0, start), (0, start + 1)]
        shuffled = spark.sparkContext.parallelize(pairs, 2).partitionBy(2, int)
        assert shuffled.count() == 4
        latest = max(Path("local").rglob("shuffle_*.data"), key=shuffle)
        min(latest.parents[1].rglob(f"shuffle_{shuffle(latest)}_*.data"), key=task).unlink()
        with transaction() as tx:
            report = foreach_partition(shuffled, write)
        said.append([report.partitions, report.attempts, report.branches, tx.gtrid in tx._log.finished()])
    print(json.dumps(said))
    spark.stop()
"""


def test_a_partition_that_a_failed_stage_has_prepared(
    local_cluster: Callable[..., str], databases: Databases, tmp_path: Path
) -> None:
    (tmp_path / "secret").write_text(databases.server.password)
    (tmp_path / "secret").chmod(0o600)
    (tmp_path / "one.properties").write_text(
        f"name = one\ndriver = psycopg\nurl = {databases.url('one')}\npassword = ${{file:secret}}\n"
    )
    databases.execute("one", "create table landed (id bigint primary key, attempt bigint)")
    (tmp_path / "local").mkdir()
    output = local_cluster(
        _SCRIPT,
        str(tmp_path),
        master="local-cluster[1,3,1024]",
        env={"SPARK_LOCAL_DIRS": str(tmp_path / "local")},
    )
    for partitions, attempts, branches, finished in json.loads(output.splitlines()[-1]):
        assert (partitions, branches, finished) == (2, 2, True)
        assert attempts > 2
    assert databases.rows("one", "select id from landed order by id") == [(number,) for number in range(8)]
    assert databases.prepared() == []
    # What failed has never reached Python, and what ran again is a first attempt once more.
    done = {path.name for path in tmp_path.glob("attempt-*")}
    assert done == {"attempt-0-0-0", "attempt-2-1-0", "attempt-4-0-0", "attempt-6-1-0"}
    assert (tmp_path / "again").exists()
