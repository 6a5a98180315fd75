"""Two attempts of one partition at the same time. Spark copies a slow one to another host only, so there are two."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.spark.conftest import SPECULATION

if TYPE_CHECKING:
    from conftest import Databases

pytestmark = pytest.mark.spark

# The copy of partition 1 begins before the first attempt prepares, so it adopts nothing; and neither of the two
# reports before the other is prepared, too. In the second job the copy is through while the first attempt sleeps.
_SCRIPT = """
    import json, os, sys, time, warnings
    from pathlib import Path

    from pyspark import TaskContext
    from pyspark.sql import SparkSession

    from txpool import manager
    from txpool.datasource import connect
    from txpool.scope import transaction
    from txpool.spark import foreach_partition

    folder = Path(sys.argv[1])
    os.chdir(folder)
    copied, prepared = folder / "copied", [folder / "prepared0", folder / "prepared1"]


    def wait_for(path):
        while not path.exists():
            time.sleep(0.05)


    def insert(rows, job):
        here = TaskContext.get()
        cursor = connect("one.properties").cursor()
        for row in rows:
            cursor.execute("insert into landed values (%s, %s, %s)", [row, job, here.taskAttemptId()])


    def both(rows):
        insert(rows, 0)
        here = TaskContext.get()
        if here.partitionId() == 1:
            number = here.attemptNumber()

            def meet(status):
                prepared[number].touch()
                wait_for(prepared[1 - number])

            manager.current().after_completion(meet)
            copied.touch() if number else wait_for(copied)


    def slow(rows):
        insert(rows, 1)
        here = TaskContext.get()
        if here.partitionId() == 1 and not here.attemptNumber():
            time.sleep(600)


    spark = SparkSession.builder.getOrCreate()
    manager.configure(node_name="driver", log_url="sqlite:///txlog", log_create=True)
    said = []
    for job, write in enumerate((both, slow)):
        with warnings.catch_warnings(record=True) as caught, transaction() as tx:
            warnings.simplefilter("always")
            report = foreach_partition(spark.sparkContext.parallelize(range(4), 2), write)
        said.append([report.partitions, report.attempts, report.branches, tx.gtrid in tx._log.finished()])
    print(json.dumps([said, [str(warning.message) for warning in caught]]))
    spark.stop()
"""


def test_both_attempts_prepare_and_one_wins(
    local_cluster: Callable[..., str], cluster: str, databases: Databases, tmp_path: Path
) -> None:
    (tmp_path / "secret").write_text(databases.server.password)
    (tmp_path / "secret").chmod(0o600)
    (tmp_path / "one.properties").write_text(
        f"name = one\ndriver = psycopg\nurl = {databases.url('one')}\npassword = ${{file:secret}}\n"
    )
    databases.execute("one", "create table landed (id bigint, job int, attempt bigint)")
    output = local_cluster(_SCRIPT, str(tmp_path), master=cluster, conf=SPECULATION)
    said: list[Any] = json.loads(output.splitlines()[-1])
    (both, slow), warned = said
    # Three attempts for two partitions, of which two win; as the third may come late, recovery is told of it.
    assert both == slow == [2, 3, 2, True]
    assert (tmp_path / "prepared0").exists()
    assert (tmp_path / "prepared1").exists()
    rows = databases.rows("one", "select job, id from landed order by job, id")
    assert rows == [(job, number) for job in (0, 1) for number in range(4)]
    assert databases.rows("one", "select count(distinct attempt) from landed where job = 0 and id > 1") == [(1,)]
    assert databases.prepared() == []
    log, copies = warned
    assert log.startswith("the decision log sqlite:///")
    assert f"the master is {cluster}" in log
    assert copies.startswith("spark.speculation is on")
