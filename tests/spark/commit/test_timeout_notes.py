"""Rule 38: tasks prepare before the driver's commit, so the timeout of their transaction is noted before the job."""

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING

import pytest

from tests.spark.commit.partition_functions import insert
from txpool.spark import foreach_partition, register, write_table
from txpool.tm.demarcation.block import transaction
from txpool.tm.manager import get_manager

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tests.conftest import Databases

pytestmark = pytest.mark.spark


@pytest.mark.usefixtures("sources")
def test_38_the_timeout_of_a_write_is_noted_before_its_tasks_prepare(spark: SparkSession, databases: Databases) -> None:
    databases.execute("one", "create table landed (id bigint primary key, attempt bigint)")
    databases.execute("one", "create table numbers (id bigint)")
    log = get_manager().log
    assert log is not None
    with transaction(timeout=600):
        foreach_partition(spark.sparkContext.parallelize([1, 2], 2), lambda rows: [*insert(rows)])
        assert len(databases.prepared()) == 2
        assert log.timeouts() == {log.incarnation: 600.0}
    with transaction(timeout=700):
        write_table(spark.range(2), "one.properties", "numbers", strategy="direct")
        assert databases.prepared()
        assert log.timeouts() == {log.incarnation: 700.0}
    register(spark)
    # Its own transaction begins when the tasks have prepared: how long that is before nobody knows.
    options = {"datasource": "one.properties", "dbtable": "numbers", "strategy": "direct"}
    spark.range(2, numPartitions=2).write.format("txpool").options(**options).mode("append").save()
    assert log.timeouts() == {log.incarnation: inf}
    assert databases.prepared() == []
