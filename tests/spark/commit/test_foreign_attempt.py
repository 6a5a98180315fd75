"""A retry adopts what an earlier attempt of ours has prepared, and nothing that somebody else has under its name."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.conftest import Databases

pytestmark = pytest.mark.spark

# The first attempt of partition 0 fails behind a branch that somebody else prepares under its very name.
_SCRIPT = """
    import os, sys

    import psycopg
    from pyspark import TaskContext
    from pyspark.sql import SparkSession

    from txpool.tm import ambient, manager
    from txpool.datasource import connect
    from txpool.tm.demarcation.block import transaction
    from txpool.spark import foreach_partition

    folder, dsn = sys.argv[1:]
    os.chdir(folder)


    def write(rows):
        task = TaskContext.get()
        if task.partitionId() == 0 and task.attemptNumber() == 0:
            name = f"{ambient.current().gtrid}:0:one:L:0.0.{task.taskAttemptId()}.1"
            with psycopg.connect(dsn) as connection:
                connection.execute(f"prepare transaction '{name}'")
            raise OSError("once")
        cursor = connect("one.properties").cursor()
        for row in rows:
            cursor.execute("insert into landed values (%s)", [row])


    spark = SparkSession.builder.getOrCreate()
    manager.configure(node_name="driver", log_url="sqlite:///txlog", log_create=True)
    with transaction():
        report = foreach_partition(spark.sparkContext.parallelize(range(4), 2), write)
    assert report.attempts == 3, report
    spark.stop()
"""


@pytest.mark.costly
def test_what_somebody_else_has_prepared_under_an_attempts_name_is_not_adopted(
    local_cluster: Callable[..., str], databases: Databases, tmp_path: Path
) -> None:
    databases.execute("one", "create table landed (id bigint primary key)")
    databases.execute("one", "drop role if exists mallory; create role mallory login password 'theirs'")
    text = f"driver = psycopg\nurl = {databases.url('one')}\npassword = ${{env:DATABASE_PASSWORD}}\n"
    (tmp_path / "one.properties").write_text(text)
    dsn = f"{databases.dsn('one')} user=mallory password=theirs"
    try:
        env = {"DATABASE_PASSWORD": databases.server.password}
        local_cluster(_SCRIPT, str(tmp_path), dsn, env=env, master="local[2,3]")
        assert databases.rows("one", "select id from landed order by id") == [(0,), (1,), (2,), (3,)]
        assert databases.rows("one", "select owner::text from pg_prepared_xacts") == [("mallory",)]
    finally:
        for gid in databases.prepared():
            databases.execute("one", f"rollback prepared '{gid}'")  # type: ignore[arg-type]
        databases.execute("one", "drop role mallory")
