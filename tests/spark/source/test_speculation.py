"""format("txpool") where two attempts of one partition are at work, and one of them comes when all is over."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.spark.conftest import SPECULATION

if TYPE_CHECKING:
    from tests.conftest import Databases

pytestmark = [pytest.mark.spark, pytest.mark.usefixtures("sources")]

# A worker whose task was killed is let go on for so long.
_ZOMBIES = SPECULATION | {"spark.python.task.killTimeout": "800s"}

# The first attempt that brings the last row waits in the database for a flag, which the driver sets when the copy of
# that attempt has won, and the write is committed; the other goes on at once. Or where they are to meet, both go on
# when both are there, and Spark lets one of them commit.
_SLOW = """
    create table flags ();
    create table meetings ();
    create function hold(id bigint) returns boolean language plpgsql as $$ begin
        if id = 3 and pg_try_advisory_xact_lock(42) then
            while not exists (select from flags)
            and not exists (select from pg_locks where locktype = 'advisory' and objid = 43) loop
                perform pg_sleep(0.01);
            end loop;
        elsif id = 3 and exists (select from meetings) then
            perform pg_try_advisory_xact_lock(43), pg_sleep(0.1);
        end if;
        return true;
    end $$;
    create domain held as bigint check (hold(value));
    create table plain (id held);
    create table keyed (id held primary key);
"""

_SCRIPT = """
    import json, os, sys, time, warnings

    import psycopg
    from pyspark.sql import SparkSession

    from recovery import RecoveryManager
    from txpool.tm import manager
    from txpool.datasource import find
    from txpool.spark import register

    folder, dsn = sys.argv[1:]
    os.chdir(folder)
    warnings.simplefilter("ignore")
    deadline = time.monotonic() + 800
    prepared = "select count(*) from pg_prepared_xacts where gid like 'txp1:driver:%'"
    staged = "select count(*) from pg_class where relnamespace = to_regnamespace('txpool_spark') and relname ~ '^txp1'"


    def waiting(query):
        return connection.execute(query).fetchone()[0]


    def until(done, text):
        while not done():
            assert time.monotonic() < deadline, text
            time.sleep(0.1)


    spark = SparkSession.builder.getOrCreate()
    log = manager.configure(node_name="driver", log_url="sqlite:///txlog").log
    register(spark)
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute("insert into meetings default values")
        for table in ("plain", "keyed"):
            writer = spark.range(4, numPartitions=2).write.format("txpool")
            writer.options(datasource="one.properties", dbtable=table).mode("append").save()
            scan = RecoveryManager(log=log, datasources=[find("one.properties")], backoff=0).scan
            until(lambda: scan() and not waiting(prepared) + waiting(staged), f"{table}: the loser is still there")
            assert waiting(f"select count(*) from {table}") == 4
        connection.execute("delete from meetings; delete from keyed; delete from plain")
        for table, query in (("plain", prepared), ("keyed", staged)):
            connection.execute("delete from flags")
            writer = spark.range(4, numPartitions=2).write.format("txpool")
            writer.options(datasource="one.properties", dbtable=table).mode("append").save()
            assert waiting(f"select count(*) from {table}") == 4
            before = waiting(query)
            connection.execute("insert into flags default values")
            until(lambda: waiting(query) > before or table == "keyed" and before, f"nothing came late into {table}")
            scan = RecoveryManager(log=log, datasources=[find("one.properties")], backoff=0).scan
            until(lambda: scan() and not waiting(prepared) + waiting(staged), f"{table}: it is still there")
    print(json.dumps("swept"))
    spark.stop()
"""


def test_each_row_is_there_once_and_what_comes_late_is_swept(
    local_cluster: Callable[..., str], cluster: str, databases: Databases, sources: Path
) -> None:
    databases.execute("one", _SLOW)
    output = local_cluster(_SCRIPT, str(sources), databases.dsn("one"), master=cluster, conf=_ZOMBIES)
    assert json.loads(output.splitlines()[-1]) == "swept"
    for table in ("plain", "keyed"):
        assert databases.rows("one", f"select id from {table} order by id") == [(number,) for number in range(4)]
    assert databases.prepared() == []
