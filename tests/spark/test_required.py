"""transaction.required = strict: what txpool does for a write or a read is not refused, users' work is."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import txpool
from tests.spark.conftest import describe
from txpool.datasource import DataSource
from txpool.spark import foreach_partition, register, write_table
from txpool.tm.demarcation.block import transaction

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tests.conftest import Databases

pytestmark = pytest.mark.spark


@pytest.fixture(autouse=True)
def strict(databases: Databases, sources: Path) -> None:
    describe(sources, "one", databases.url("one"), "transaction.required = strict")
    settings = "driver = sqlite3\nmode = cmr\nurl = sqlite:///ledger.db\ntransaction.required = strict\n"
    (sources / "ledger.properties").write_text(settings)
    (sources / "ledger.db").touch()
    DataSource.from_properties("ledger.properties").xids_table().create()  # type: ignore[attr-defined]
    made = "create table landed (id int primary key, who text)"
    databases.execute("one", made)
    with closing(sqlite3.connect("ledger.db")) as connection:
        connection.execute(made)


def write(rows: Iterator[Any]) -> None:
    connection = txpool.connect("one.properties")
    for row in rows:
        connection.cursor().execute("insert into landed values (%s, 'each')", [row["id"]])


def ids(databases: Databases) -> list[int]:
    return [number for (number,) in databases.rows("one", "select id from landed order by id")]


@pytest.mark.costly
def test_what_is_ours(spark: SparkSession, databases: Databases) -> None:
    frame = spark.range(10, numPartitions=2).selectExpr("id", "'new' as who")
    write_table(frame, "one.properties", "landed")
    write_table(frame, "one.properties", "landed", mode="upsert", keys=["id"])
    write_table(frame, "one.properties", "made", create=True)
    write_table(frame, "one.properties", "made", mode="overwrite")
    write_table(frame, "ledger.properties", "landed")
    with transaction():
        foreach_partition(spark.range(10, 20, numPartitions=2), write)
        write_table(frame, "one.properties", "made", mode="overwrite")
        write_table(frame, "ledger.properties", "landed", mode="overwrite")
    assert ids(databases) == list(range(20))
    for _ in range(2):
        each = frame.selectExpr("id + 20 as id", "who")
        write_table(each, "one.properties", "landed", atomicity="partition", transaction_id="once")
    assert ids(databases) == list(range(30))
    register(spark)
    options = {"datasource": "one.properties", "dbtable": "landed"}
    more = spark.range(30, 40, numPartitions=2).selectExpr("cast(id as int) as id", "'new' as who")
    more.write.format("txpool").options(**options).mode("append").save()
    assert ids(databases) == list(range(40))


def test_what_is_the_user_s(spark: SparkSession, databases: Databases) -> None:
    datasource = DataSource.from_properties("one.properties")

    def write_beside(rows: Iterator[Any]) -> Iterator[str]:
        """As a user does who forgets that this job is no part of any transaction."""
        with closing(datasource.connect()) as connection:
            try:
                for row in rows:
                    connection.cursor().execute("insert into landed values (%s, 'beside')", [row["id"]])
                connection.commit()
            except txpool.ProgrammingError as error:
                yield str(error)

    refusals = spark.range(4, numPartitions=2).rdd.mapPartitions(write_beside).collect()
    assert len(refusals) == 2
    assert all("a statement outside any transaction" in refusal for refusal in refusals)
    assert ids(databases) == []
