"""writeStream.format("txpool"): each batch of a stream is in the table once, whatever is begun again."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from txpool.spark import once_per_batch, register
from txpool.tm.demarcation.block import transaction

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming import StreamingQuery

    from tests.conftest import Databases

pytestmark = [pytest.mark.spark, pytest.mark.usefixtures("sources")]

_TIMEOUT = 120


@pytest.fixture(autouse=True)
def landed(databases: Databases, spark: SparkSession) -> None:
    register(spark)
    for name in (databases.one, databases.two):
        databases.execute(
            name, "create table plain (id bigint, who text); create table keyed (id bigint primary key, n bigint)"
        )


@pytest.fixture
def arrive(tmp_path: Path) -> Callable[..., None]:
    """Puts a file of rows where the streams read."""
    (tmp_path / "in").mkdir()

    def put(name: str, *ids: int, who: str = "new") -> None:
        text = "".join(json.dumps({"id": number, "who": who}) + "\n" for number in ids)
        (tmp_path / f"{name}.part").write_text(text)
        (tmp_path / f"{name}.part").rename(tmp_path / "in" / f"{name}.json")

    return put


def stream(spark: SparkSession) -> DataFrame:
    return spark.readStream.schema("id bigint, who string").option("maxFilesPerTrigger", 1).json(str(Path.cwd() / "in"))


def start(
    df: DataFrame, table: str = "plain", checkpoint: str = "checkpoint", output: str = "append", **options: Any
) -> StreamingQuery:
    writer = df.writeStream.format("txpool").option("datasource", "one.properties").option("dbtable", table)
    writer = writer.options(**options).option("checkpointLocation", str(Path.cwd() / checkpoint))
    return writer.outputMode(output).trigger(availableNow=True).start()


def end(query: StreamingQuery) -> None:
    assert query.awaitTermination(_TIMEOUT)


def forget(checkpoint: str, batch: int) -> None:
    """Spark's own record of a batch is lost, as when the driver dies just before it is written."""
    commits = Path(checkpoint, "commits")
    for file in (commits / str(batch), commits / f".{batch}.crc"):
        file.unlink()


def rows(databases: Databases, table: str = "plain", name: str = "one") -> list[tuple[Any, ...]]:
    return databases.rows(name, f"select * from {table} order by 1")


@pytest.mark.costly
def test_a_batch_that_comes_again_is_skipped(
    spark: SparkSession, databases: Databases, arrive: Callable[..., None]
) -> None:
    arrive("a", 1, 2, 3)
    arrive("b", 4)
    end(start(stream(spark)))
    assert rows(databases) == [(number, "new") for number in (1, 2, 3, 4)]
    forget("checkpoint", 1)
    arrive("c", 5)
    end(start(stream(spark)))
    assert rows(databases) == [(number, "new") for number in (1, 2, 3, 4, 5)]
    # The same name on another checkpoint: the first batch is an old one now.
    for _ in range(2):
        end(start(stream(spark), checkpoint="named", transactionId="orders"))
        forget("named", 2)
    assert len(rows(databases)) == 10
    with pytest.raises(Exception, match=r"batch 2 of stream 'orders' was written to public.plain already"):
        end(start(stream(spark), checkpoint="another", transactionId="orders"))
    assert len(rows(databases)) == 10
    assert databases.prepared() == []


@pytest.mark.costly
def test_upserts_and_whole_results(spark: SparkSession, databases: Databases, arrive: Callable[..., None]) -> None:
    numbered = stream(spark).selectExpr("id", "id % 10 as n")
    totals = stream(spark).groupBy("id").agg({"who": "count"}).withColumnRenamed("count(who)", "n")
    databases.execute("one", "insert into keyed values (1, 100), (7, 7)")
    arrive("a", 1, 12)
    arrive("b", 12, 23)
    end(start(numbered, "keyed", upsertKeys="id"))
    assert rows(databases, "keyed") == [(1, 1), (7, 7), (12, 2), (23, 3)]
    end(start(totals, "keyed", checkpoint="complete", output="complete"))
    assert rows(databases, "keyed") == [(1, 1), (12, 2), (23, 1)]
    with pytest.raises(Exception, match="txpool does not support Update mode"):  # Spark's own word for Python sources
        end(start(totals, "keyed", checkpoint="update", output="update"))


def test_a_stream_belongs_to_no_transaction(
    spark: SparkSession, databases: Databases, arrive: Callable[..., None]
) -> None:
    arrive("a", 1)
    with pytest.raises(Exception, match=r"this query was started within txp1:.*Start it outside of any"), transaction():
        end(start(stream(spark)))
    end(start(stream(spark)))
    assert rows(databases) == [(1, "new")]


@pytest.mark.costly
def test_the_format_within_a_batch_is_a_part_of_it(
    spark: SparkSession, databases: Databases, arrive: Callable[..., None]
) -> None:
    def write(batch: DataFrame, number: int) -> None:
        for datasource in ("one.properties", "two.properties"):
            options = {"datasource": datasource, "dbtable": "plain"}
            batch.write.format("txpool").options(**options).mode("append").save()
        if batch.count() == 2:
            raise ValueError("enough")

    def run() -> None:
        each = stream(spark).writeStream.foreachBatch(once_per_batch(write, "one.properties"))
        end(each.option("checkpointLocation", str(Path.cwd() / "checkpoint")).trigger(availableNow=True).start())

    arrive("a", 1)
    run()
    arrive("b", 2, 3)
    with pytest.raises(Exception, match="enough"):
        run()
    assert rows(databases) == rows(databases, name="two") == [(1, "new")]
    assert databases.prepared() == []
