"""Two attempts of one partition at the same time. Spark copies a slow one to another host only, so there are two."""

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

# The copy of partition 1 begins before the first attempt prepares, so it adopts nothing; and neither of the two
# reports before the other is prepared, too. In the second job the copy is through while the first attempt sleeps. Both
# again with yields; and last, Spark's own method, of whose slow task there is a copy.
_SCRIPT = """
    import json, os, sys, time, warnings
    from functools import partial
    from pathlib import Path

    from pyspark import TaskContext
    from pyspark.sql import SparkSession

    from txpool.tm import ambient, manager
    from txpool.datasource import connect, find
    from txpool.tm.demarcation.block import transaction
    from txpool.spark import foreach_partition, map_partitions

    folder = Path(sys.argv[1])
    os.chdir(folder)


    def wait_for(path):
        while not path.exists():
            time.sleep(0.05)


    def insert(rows, job):
        here = TaskContext.get()
        cursor = connect(f"{folder}/one.properties").cursor()
        yields = [[row, job, here.taskAttemptId()] for row in rows]
        for each in yields:
            cursor.execute("insert into landed values (%s, %s, %s)", each)
        return yields


    def both(rows, job):
        yields = insert(rows, job)
        here = TaskContext.get()
        copied, prepared = folder / f"copied-{job}", [folder / f"prepared{n}-{job}" for n in (0, 1)]
        if here.partitionId() == 1:
            number = here.attemptNumber()

            def meet(status):
                prepared[number].touch()
                wait_for(prepared[1 - number])

            ambient.current().after_completion(meet)
            copied.touch() if number else wait_for(copied)
        return yields


    def slow(rows, job):
        yields = insert(rows, job)
        here = TaskContext.get()
        if here.partitionId() == 1 and not here.attemptNumber():
            time.sleep(600)
        return yields


    def past_it(rows):
        here = TaskContext.get()
        (folder / f"past-{here.partitionId()}-{here.attemptNumber()}").touch()
        if here.partitionId() == 1:
            wait_for(folder / "past-1-1")  # a copy of it
            insert(rows, 4)


    spark = SparkSession.builder.getOrCreate()
    manager.configure(node_name="driver", log_url="sqlite:///txlog", log_create=True)
    find(folder / "one.properties")
    said = []
    rows = spark.sparkContext.parallelize(range(4), 2)
    for job, write in enumerate((both, slow)):
        with warnings.catch_warnings(record=True) as caught, transaction() as tx:
            warnings.simplefilter("always")
            report = foreach_partition(rows, partial(write, job=job))
        said.append([report.partitions, report.attempts, report.branches, tx.gtrid in tx._log.finished()])
    yields = []
    for job, write in enumerate((both, slow), 2):
        with transaction():
            yields += map_partitions(rows, partial(write, job=job))
    refusal = ""
    try:
        with transaction():
            rows.foreachPartition(past_it)
    except Exception as error:
        refusal = str(error)
    print(json.dumps([said, [str(warning.message) for warning in caught], yields, refusal]))
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
    (both, slow), warned, yields, refusal = said
    # Three attempts for two partitions, of which two win; as the third may come late, recovery is told of it.
    assert both == slow == [2, 3, 2, True]
    for job in (0, 2):
        assert (tmp_path / f"prepared0-{job}").exists()
        assert (tmp_path / f"prepared1-{job}").exists()
    rows = databases.rows("one", "select job, id from landed order by job, id")
    assert rows == [(job, number) for job in range(4) for number in range(4)]
    one_wins = "select count(distinct attempt) from landed where job in (0, 2) and id > 1 group by job"
    assert databases.rows("one", one_wins) == [(1,), (1,)]
    # Yields are those of the attempt whose rows have committed, of both jobs.
    found = databases.rows("one", "select id, job, attempt from landed where job >= 2 order by job, id")
    assert [list(row) for row in found] == yields
    # A copy asks as the first attempt does, across hosts; neither has written.
    assert (tmp_path / "past-1-1").exists()
    assert "was started within txp1:driver:" in refusal
    assert databases.prepared() == []
    log, copies = warned
    assert log.startswith("the decision log sqlite:///")
    assert f"the master is {cluster}" in log
    assert copies.startswith("spark.speculation is on")
