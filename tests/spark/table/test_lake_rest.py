"""write_table() into tables of a REST catalog: tasks write files, and the transaction appends them by a reference."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

import txpool
from tests.support.rest_site import RestSite, rest_server_in, rest_site, rows
from tests.support.s3_server import object_store
from txpool import failpoints
from txpool.spark import write_table

pytestmark = [pytest.mark.spark, pytest.mark.slow]


@pytest.fixture
def bucket() -> bool:
    """Whether the warehouse is in a bucket."""
    return False


@pytest.fixture
def site(tmp_path: Path, bucket: bool) -> Iterator[RestSite]:
    with ExitStack() as opened:
        store = opened.enter_context(object_store()) if bucket else None
        if store is not None:
            store.client().create_bucket(Bucket="bucket")
        server = opened.enter_context(rest_server_in(tmp_path, store))
        yield opened.enter_context(rest_site(tmp_path, server))


@pytest.mark.costly
@pytest.mark.parametrize("bucket", [False, True])
def test_tasks_append_beside_a_database(spark: Any, site: RestSite) -> None:
    df = spark.range(100, numPartitions=3)
    with failpoints.arming("coordinator.decided", lambda: site.foreign(1000, "orders")), txpool.transaction():
        report = write_table(df, site.file, "db.orders", mode="append")
        assert (report.partitions, report.rows) == (3, 100)
        write_table(df.where("id < 10"), site.file, "db.lines")
        with txpool.connect(site.folder / "ledger.properties") as connection:
            connection.execute("insert into loads values (1)")
    assert site.ids("orders") == [*range(100), 1000]
    assert site.ids("lines") == [*range(10)]
    assert [*site.left()] == []


@pytest.mark.costly
def test_a_rollback_removes_what_tasks_have_written(spark: Any, site: RestSite) -> None:
    with pytest.raises(ZeroDivisionError), txpool.transaction():
        write_table(spark.range(10, numPartitions=2), site.file, "db.orders")
        _ = 1 / 0
    assert site.ids("orders") == []
    assert [*site.left()] == []


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"mode": "overwrite"}, "only an append can be put on top"),
        ({"transaction_id": "load-1"}, "has no table for its record"),
        ({"mode": "upsert", "keys": ["id"]}, "does not upsert"),
    ],
)
def test_what_it_cannot_do_is_refused_before_a_task(
    options: dict[str, Any], told: str, spark: Any, site: RestSite
) -> None:
    site.foreign(1, "orders")
    with pytest.raises(txpool.NotSupportedError, match=told):
        write_table(spark.range(10), site.file, "db.orders", **options)
    with pytest.raises(txpool.NotSupportedError, match="by a catalog of your own"):
        write_table(spark.range(10), site.file, "db.new", create=True)
    assert site.client.load_table("db.orders").scan().to_arrow() == rows(1)
    assert [*site.left()] == []
