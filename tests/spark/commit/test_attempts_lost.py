"""Attempts that are lost on the way: each partition's work is there exactly once, and nothing stays prepared."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.conftest import Databases

pytestmark = pytest.mark.spark

# One cluster, and a transaction for each way to lose an attempt: four rows in two partitions, into both databases.
_SCRIPT = """
    import json, logging, os, sys
    from pathlib import Path

    import psycopg
    from pyspark import TaskContext
    from pyspark.sql import SparkSession

    from tests.spark.losing_tasks import first_time, kill_executor
    from txpool import failpoints
    from txpool.tm import ambient, manager
    from txpool.datasource import connect
    from txpool.tm.demarcation.block import transaction
    from txpool.spark import foreach_partition
    from txpool.spark.commit import monitor
    from txpool.spark.commit import self_deadlock

    logging.basicConfig(level=logging.WARNING)
    folder, *dsns = sys.argv[1:]
    os.chdir(folder)


    def insert(rows):
        cursors = [connect("one.properties").cursor(), connect("two.properties").cursor()]
        for row in rows:
            for cursor in cursors:
                cursor.execute("insert into landed values (%s, %s)", [row, TaskContext.get().attemptNumber()])


    def fails(rows):
        insert(rows)
        if first_time(Path(folder, "fails")):
            raise OSError("once")


    def dies_prepared(rows):
        insert(rows)
        if first_time(Path(folder, "dies_prepared")):
            ambient.current().after_completion(lambda status: kill_executor())


    def dies_between_two_prepares(rows):
        insert(rows)
        if first_time(Path(folder, "dies_between_two_prepares")):
            failpoints.arm("branch.prepare-sent", "kill", nth=1)


    def is_prepared_late(rows):
        if first_time(Path(folder, "is_prepared_late")):
            for file in ("one.properties", "two.properties"):
                connect(file).cursor().execute("insert into landed values (-1, -1)")
            failpoints.arm("branch.prepare-sent", "kill", nth=2)
        elif TaskContext.get().partitionId() == 0:
            for dsn in dsns:
                with psycopg.connect(dsn) as connection:
                    connection.execute("insert into begun_again values (true)")
        insert(rows)


    spark = SparkSession.builder.getOrCreate()
    manager.configure(node_name="driver", log_url="sqlite:///txlog", log_create=True)
    self_deadlock.PERIOD = 0.2  # however often it looks, a retry that waits for its own partition is not its business
    said = {}
    for number, write in enumerate((fails, dies_prepared, dies_between_two_prepares, is_prepared_late)):
        if write is is_prepared_late:
            monitor.GRACE = 2.0  # nothing is to be adopted here, however late a retry begins
        with transaction() as tx:
            report = foreach_partition(spark.sparkContext.parallelize(range(4 * number, 4 * number + 4), 2), write)
        finished = tx.gtrid in tx._log.finished()
        said[write.__name__] = [report.partitions, report.attempts > 2, report.branches, finished]
    print(json.dumps(said))
    spark.stop()
"""

# The server goes on with a PREPARE whose client has gone: it waits here for the retry to begin, and then prepares.
_PREPARES_LATE = """
    create table begun_again (yes bool);
    create function wait() returns trigger language plpgsql as $$
        begin while not exists (select from begun_again) loop perform pg_sleep(0.05); end loop; return null; end $$;
    create constraint trigger wait after insert on landed deferrable initially deferred
        for each row when (new.id = -1) execute function wait()
"""


@pytest.mark.costly
def test_each_partition_is_written_once_whichever_attempt_is_lost(
    local_cluster: Callable[..., str], databases: Databases, tmp_path: Path
) -> None:
    for name in (databases.one, databases.two):
        # The password is known to the environment of driver and executors alone.
        text = f"name = {name}\ndriver = psycopg\nurl = {databases.url(name)}\npassword = ${{env:DATABASE_PASSWORD}}\n"
        (tmp_path / f"{name}.properties").write_text(text)
        databases.execute(name, "create table landed (id bigint primary key, attempt int)")
        databases.execute(name, _PREPARES_LATE)
    arguments = str(tmp_path), databases.dsn("one"), databases.dsn("two")
    output = local_cluster(_SCRIPT, *arguments, env={"DATABASE_PASSWORD": databases.server.password})
    said = json.loads(output.splitlines()[-1])
    ways = ["fails", "dies_prepared", "dies_between_two_prepares", "is_prepared_late"]
    assert said == {way: [2, True, 4, True] for way in ways}
    assert all((tmp_path / way).exists() for way in ways)
    assert databases.prepared() == []
    for name in (databases.one, databases.two):
        assert databases.rows(name, "select id from landed order by id") == [(number,) for number in range(16)]
        winners = dict(databases.rows(name, "select id / 4, min(attempt) from landed where mod(id, 4) < 2 group by 1"))
        # What was prepared when its executor died is adopted, and not written again; all else is.
        assert {ways[number] for number, attempt in winners.items() if attempt == 0} == {"dies_prepared"}
        assert databases.rows(name, "select distinct yes from begun_again") == [(True,)]
