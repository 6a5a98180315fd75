"""How a transaction begins travels with its Spark jobs; what is read-only writes nothing from them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import txpool
import txpool.datasource
from txpool.spark import foreach_partition, map_partitions, register, write_table
from txpool.tm.manager import configure

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tests.conftest import Databases

pytestmark = pytest.mark.spark


@pytest.fixture(autouse=True)
def folder(databases: Databases, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The working directory: a decision log, and the datasource `one`."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "secret").write_text(databases.server.password)
    (tmp_path / "secret").chmod(0o600)
    text = f"name = one\ndriver = psycopg\nurl = {databases.url('one')}\npassword = ${{file:secret}}\n"
    (tmp_path / "one.properties").write_text(text + "pool.check-bypass = 0\n")
    databases.execute("one", "create table landed (id bigint primary key)")
    manager = configure(node_name="driver", log_url="sqlite:///txlog", log_create=True)
    yield tmp_path
    for datasource in set(txpool.datasource.known().values()):
        datasource.close()
    manager.close()


def begun_as(rows: Iterator[Any]) -> Iterator[tuple[str, str]]:
    """How the transaction in a task has begun; one row for each partition."""
    from txpool.datasource import connect

    list(rows)
    cursor = connect("one.properties").cursor()
    cursor.execute("select current_setting('transaction_isolation'), current_setting('transaction_read_only')")
    yield cursor.fetchone()


def insert(rows: Iterator[Any]) -> None:
    from txpool.datasource import connect

    for row in rows:
        connect("one.properties").cursor().execute("insert into landed values (%s)", [row.id])


def landed(databases: Databases) -> int:
    return int(databases.rows("one", "select count(*) from landed")[0][0])


def test_tasks_begin_as_their_transaction(spark: SparkSession, databases: Databases) -> None:
    data = spark.range(10).repartition(2)
    with txpool.transaction(isolation="serializable", read_only=True):
        assert list(map_partitions(data, begun_as)) == [("serializable", "on")] * 2
    with txpool.transaction(isolation="repeatable-read"):
        assert list(map_partitions(data, begun_as)) == [("repeatable read", "off")] * 2
        foreach_partition(data, insert)
    with txpool.transaction():
        assert list(map_partitions(data, begun_as)) == [("read committed", "off")] * 2
    assert landed(databases) == 10
    assert databases.prepared() == []


def test_a_write_in_a_task_of_a_read_only_transaction_is_refused_by_the_server(
    spark: SparkSession, databases: Databases
) -> None:
    with pytest.raises(Exception, match="read-only transaction"), txpool.transaction(read_only=True):
        foreach_partition(spark.range(4), insert)
    assert landed(databases) == 0
    assert databases.prepared() == []


@pytest.mark.costly
def test_sparks_writes_are_refused_in_a_read_only_transaction(spark: SparkSession, databases: Databases) -> None:
    register(spark)
    data = spark.range(10)
    with txpool.transaction(read_only=True) as tx:
        with pytest.raises(txpool.ProgrammingError, match=f"{tx.gtrid} is read-only, and write_table"):
            write_table(data, "one.properties", "landed", mode="append")
        assert tx.active
        with pytest.raises(Exception, match="is read-only, and the format writes"):
            write = data.write.format("txpool").option("datasource", "one.properties").option("dbtable", "landed")
            write.mode("append").save()
    assert landed(databases) == 0


@pytest.mark.parametrize("strategy", ["direct", "staged"])
def test_a_write_in_a_serializable_transaction(spark: SparkSession, databases: Databases, strategy: Any) -> None:
    """Staged rows are newer than the transaction's snapshot: that is refused."""
    data = spark.range(10).repartition(2)
    if strategy == "staged":
        with (
            pytest.raises(txpool.NotSupportedError, match="strategy='direct'"),
            txpool.transaction(isolation="serializable"),
        ):
            write_table(data, "one.properties", "landed", mode="append", strategy=strategy)
    else:
        with txpool.transaction(isolation="serializable"):
            write_table(data, "one.properties", "landed", mode="append", strategy=strategy)
    assert landed(databases) == (10 if strategy == "direct" else 0)


def test_the_format_begins_as_its_transaction(spark: SparkSession, databases: Databases) -> None:
    register(spark)
    begun = "level text default current_setting('transaction_isolation')"
    databases.execute("one", f"create table levels (id bigint, {begun})")
    with txpool.transaction(isolation="repeatable-read"):
        write = spark.range(4).write.format("txpool").option("datasource", "one.properties").option("dbtable", "levels")
        write.option("strategy", "direct").mode("append").save()
    assert databases.rows("one", "select distinct level from levels") == [("repeatable read",)]
