"""write_table() into Iceberg tables whose warehouse is in a bucket: Spark's tasks write objects."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import txpool
import txpool.lake
from tests.support.s3_server import ObjectStore, object_store
from txpool.spark import write_table

pytestmark = [pytest.mark.spark, pytest.mark.slow]


@pytest.fixture
def store(sources: Path) -> Iterator[ObjectStore]:
    with object_store() as store:
        store.client().create_bucket(Bucket="bucket")
        file = sources / "wh.properties"
        file.touch(0o600)
        file.write_text(
            "name = wh\ndriver = iceberg\ncatalog = one.properties\nwarehouse = s3://bucket/wh\nuser = tests\n"
            f"password = secret-of-tests\ndriver.endpoint_url = {store.url}\ndriver.region_name = us-east-1\n"
        )
        yield store


@pytest.mark.costly
def test_tasks_write_objects(spark: Any, store: ObjectStore) -> None:
    rows = spark.range(100, numPartitions=3).selectExpr("id", "cast(id % 3 as int) as part")
    with txpool.transaction():
        txpool.lake.catalog("wh.properties").create_namespace("db")
        report = write_table(rows, "wh.properties", "db.orders", create=True)
        assert (report.partitions, report.rows) == (3, 100)
    bad = spark.range(5, numPartitions=2).selectExpr("if(id = 4, cast(raise_error('as told') as long), id) as id")
    with pytest.raises(Exception, match="as told"), txpool.transaction():
        write_table(rows, "wh.properties", "db.orders", mode="overwrite")
        write_table(bad.selectExpr("id", "1 as part"), "wh.properties", "db.orders")
    with txpool.transaction():
        table = txpool.lake.catalog("wh.properties").load_table("db.orders")
        assert sorted(table.scan().to_arrow()["id"].to_pylist()) == [*range(100)]
    assert len([each for each in store.names("wh/") if each.endswith(".parquet")]) == 3
    assert store.names("wh/_txpool/") == ["wh/_txpool/catalog", "wh/_txpool/identity"]
    assert store.uploads() == []
