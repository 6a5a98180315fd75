"""format("txpool") and streams into MariaDB and MySQL."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.spark.mysql import describe, left
from tests.support.mysql import MySQLServer
from txpool.datasource import connect
from txpool.spark import once_per_batch, register, write_table
from txpool.tm.demarcation.block import transaction

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.usefixtures("sources", "server")]


@pytest.fixture(params=["mariadb", "mysql8"])
def server(request: pytest.FixtureRequest, sources: Path, spark: SparkSession) -> MySQLServer:
    register(spark)
    found: MySQLServer = request.getfixturevalue(request.param)
    found.empty()
    found.execute("create table landed (id bigint primary key, who varchar(20))", database="one")
    describe(sources, found)
    return found


def frame(spark: SparkSession, *span: int, who: str = "new") -> DataFrame:
    return spark.range(*span, numPartitions=3).selectExpr(f"'{who}' as who", "id")


def save(df: DataFrame, mode: str = "append", **options: Any) -> None:
    writer = df.write.format("txpool").option("datasource", "shop.properties").option("dbtable", "landed")
    for name, value in options.items():
        writer = writer.option(name, value)
    writer.mode(mode).save()


def new(*ids: int, who: str = "new") -> list[tuple[int, str]]:
    return [(number, who) for number in range(*ids)]


def rows(server: MySQLServer) -> list[tuple[Any, ...]]:
    return server.execute("select id, who from landed order by id", database="one")


@pytest.mark.costly
def test_a_write_is_a_transaction_or_a_part_of_one(spark: SparkSession, server: MySQLServer) -> None:
    save(frame(spark, 10))
    assert rows(server) == new(10)
    with pytest.raises(LookupError), transaction():
        save(frame(spark, 10, 20))
        raise LookupError
    with transaction():
        connect("shop.properties").cursor().execute("insert into landed values (10, 'new')")
        save(frame(spark, 11, 20))
        save(frame(spark, 18, 22, who="newer"), upsertKeys="id")
    assert rows(server) == new(18) + new(18, 22, who="newer")
    save(frame(spark, 3), "overwrite")
    with pytest.raises(Exception, match="Duplicate entry '2'"):
        save(frame(spark, 2, 9))
    assert rows(server) == new(3)
    for _ in range(2):
        save(frame(spark, 3, 5), transactionId="nightly")
    assert rows(server) == new(5)
    save(frame(spark, 4), dbtable="made", createTable="true")
    assert server.execute("select count(*) from made", database="one") == [(4,)]
    assert left(server) == ["made"]
    assert server.prepared() == []


@pytest.mark.costly
def test_a_stream_writes_each_batch_once(spark: SparkSession, server: MySQLServer, tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    for number in range(2):
        frame(spark, number * 10, number * 10 + 10).write.mode("append").parquet(str(tmp_path / "in"))
        stream = spark.readStream.schema("who string, id bigint").parquet(str(tmp_path / "in"))
        options = {"datasource": "shop.properties", "dbtable": "landed", "checkpointLocation": str(tmp_path / "kept")}
        query = stream.writeStream.format("txpool").options(**options).trigger(availableNow=True).start()
        query.awaitTermination()
    assert rows(server) == new(20)
    assert left(server) == []


def test_once_per_batch(spark: SparkSession, server: MySQLServer, tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    frame(spark, 10).write.mode("append").parquet(str(tmp_path / "in"))
    seen = []

    def write(df: DataFrame, batch: int) -> None:
        seen.append(batch)
        write_table(df, "shop.properties", "landed")

    for kept in ("kept", "lost"):  # the second begins again, and finds the batch done
        stream = spark.readStream.schema("who string, id bigint").parquet(str(tmp_path / "in"))
        each = once_per_batch(write, "shop.properties", name="arrivals")
        query = stream.writeStream.foreachBatch(each).option("checkpointLocation", str(tmp_path / kept))
        query.trigger(availableNow=True).start().awaitTermination()
    assert seen == [0]
    assert rows(server) == new(10)
