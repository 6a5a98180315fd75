"""A stage that Spark runs again, because what an earlier stage had written is lost: its attempts count from 0 again."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.conftest import Databases

pytestmark = pytest.mark.spark

# The rows of both partitions come out of a shuffle, whose files are there before the write. The one that is deleted
# holds rows of partition 1 only, so that partition 0 works on, and has prepared when its stage has failed. The last job
# wants yields: those of the attempt that its failed stage has left behind, which Spark has not given up.
_SCRIPT = """
    import json, os, sys, time
    from pathlib import Path

    from pyspark import TaskContext
    from pyspark.sql import SparkSession

    from txpool.tm import ambient, manager
    from txpool.datasource import connect, find
    from txpool.tm.demarcation.block import transaction
    from txpool.spark import foreach_partition, map_partitions
    from txpool.spark.commit import monitor

    folder = Path(sys.argv[1])
    os.chdir(folder)
    again = folder / "again"
    yielded = folder / "yielded"


    def wait_for(reached):
        while not reached():
            time.sleep(0.05)


    def prepared():
        branches = find("one.properties").branch_recovery().recover()
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
        return [(row, here.taskAttemptId()) for _, row in rows]


    def simple(rows):
        return insert(list(rows))


    def zombie(rows, again=again):
        rows = list(rows)
        if TaskContext.get().partitionId() == 0:
            first = not again.with_suffix(".first").exists()
            again.with_suffix(".first").touch()
            if first:
                # Prepared, and not heard of by Spark: not before its partition is being written again.
                ambient.current().after_completion(lambda status: wait_for(again.exists))
            else:
                wait_for(prepared)
                again.touch()
        return insert(rows)


    def wanted(rows):
        return zombie(rows, yielded)


    spark = SparkSession.builder.getOrCreate()
    manager.configure(node_name="driver", log_url="sqlite:///txlog", log_create=True)
    monitor.GRACE = 2.0  # nothing is to be adopted here, however late a retry begins
    said = []
    for write, start in ((simple, 0), (zombie, 4), (wanted, 8)):
        pairs = [(1, start + 2), (1, start + 3), (0, start), (0, start + 1)]
        shuffled = spark.sparkContext.parallelize(pairs, 2).partitionBy(2, int)
        assert shuffled.count() == 4
        latest = max(Path("local").rglob("shuffle_*.data"), key=shuffle)
        min(latest.parents[1].rglob(f"shuffle_{shuffle(latest)}_*.data"), key=task).unlink()
        with transaction() as tx:
            if write is wanted:
                yields = map_partitions(shuffled, write)
                continue
            report = foreach_partition(shuffled, write)
        said.append([report.partitions, report.attempts, report.branches, tx.gtrid in tx._log.finished()])
    print(json.dumps([said, yields]))
    spark.stop()
"""


@pytest.mark.costly
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
    said, yields = json.loads(output.splitlines()[-1])
    for partitions, attempts, branches, finished in said:
        assert (partitions, branches, finished) == (2, 2, True)
        assert attempts > 2
    assert databases.rows("one", "select id from landed order by id") == [(number,) for number in range(12)]
    rows = databases.rows("one", "select id, attempt from landed where id >= 8 order by id")
    assert [list(row) for row in rows] == yields
    assert databases.prepared() == []
    # What failed has never reached Python, and what ran again is a first attempt once more.
    done = {path.name for path in tmp_path.glob("attempt-*")}
    assert done == {f"attempt-{first}-{first // 2 % 2}-0" for first in range(0, 12, 2)}
    assert (tmp_path / "again").exists()
    assert (tmp_path / "yielded").exists()
