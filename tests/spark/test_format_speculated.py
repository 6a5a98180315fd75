"""format("txpool") where two attempts of one partition are at work, and one of them comes when all is over."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.spark.conftest import SPECULATION

if TYPE_CHECKING:
    from conftest import Databases

pytestmark = [pytest.mark.spark, pytest.mark.usefixtures("sources")]

# A worker whose task was killed is let go on for so long.
_ZOMBIES = SPECULATION | {"spark.python.task.killTimeout": "120s"}

# In the first round both attempts of partition 1 are through at about the same time, and Spark lets one of them commit.
# In the second the first attempt goes on only when its copy has won, and the write is committed.
_SCRIPT = """
    import json, os, sys, time, warnings
    from pathlib import Path

    import psycopg
    from pyspark import TaskContext
    from pyspark.sql import SparkSession

    from recovery import RecoveryManager
    from txpool import manager
    from txpool.datasource import find
    from txpool.spark import register

    folder, dsn = sys.argv[1:]
    os.chdir(folder)
    warnings.simplefilter("ignore")
    deadline = time.monotonic() + 200
    left = "select count(*) from pg_prepared_xacts where gid like 'txp1:driver:%'"
    staged = "select count(*) from pg_class where relnamespace = to_regnamespace('txpool_spark') and relname ~ '^txp1'"


    def wait_for(path):
        while not path.exists():
            time.sleep(0.05)


    def held(flag):
        def hold(batches):
            here = TaskContext.get()
            if here.partitionId() == 1:
                if here.attemptNumber():
                    Path(folder, "copied").touch()
                else:
                    wait_for(Path(folder, flag))
            yield from batches

        return hold


    def waiting(query):
        return connection.execute(query).fetchone()[0]


    spark = SparkSession.builder.getOrCreate()
    log = manager.configure(node_name="driver", log_url="sqlite:///txlog").log
    register(spark)
    late = {}
    with psycopg.connect(dsn, autocommit=True) as connection:
        for table, query in (("plain", left), ("keyed", staged)):
            for flag in ("copied", "committed"):
                Path(folder, "copied").unlink(missing_ok=True)
                Path(folder, "committed").unlink(missing_ok=True)
                rows = spark.range(4, numPartitions=2).selectExpr(f"id + {4 * (flag == 'committed')} as id")
                writer = rows.mapInArrow(held(flag), "id bigint").write.format("txpool")
                writer.options(datasource="one.properties", dbtable=table).mode("append").save()
                Path(folder, "committed").touch()
            while not waiting(query):
                assert time.monotonic() < deadline, f"nothing came late into {table}"
                time.sleep(0.1)
            late[table] = waiting(query)
            while waiting(left) or waiting(staged):
                assert time.monotonic() < deadline, f"what came late into {table} is there still"
                RecoveryManager(log=log, datasources=[find("one.properties")], backoff=0).scan()
    print(json.dumps(late))
    spark.stop()
"""


def test_each_row_is_there_once_and_what_comes_late_is_swept(
    local_cluster: Callable[..., str], cluster: str, databases: Databases, sources: Path
) -> None:
    databases.execute("one", "create table plain (id bigint); create table keyed (id bigint primary key)")
    output = local_cluster(_SCRIPT, str(sources), databases.dsn("one"), master=cluster, conf=_ZOMBIES)
    assert set(json.loads(output.splitlines()[-1])) == {"plain", "keyed"}
    for table in ("plain", "keyed"):
        assert databases.rows("one", f"select id from {table} order by id") == [(number,) for number in range(8)]
    assert databases.prepared() == []
