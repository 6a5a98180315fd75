"""Transfers that are jobs of Spark: by its own JDBC writer, and by txpool's."""

from __future__ import annotations

import atexit
import os
from collections.abc import Callable
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def _session() -> SparkSession:
    from pyspark.sql import SparkSession

    session = SparkSession.builder.getOrCreate()
    atexit.register(session.stop)
    session.range(1).count()  # its executor runs
    return session


def _row(session: SparkSession, number: int) -> DataFrame:
    return session.range(number, number + 1, 1, 1).selectExpr("cast(id as int) as number")


def with_spark_jdbc(urls: list[str]) -> Callable[[int], object]:
    """`DataFrameWriter.jdbc`, of Spark's page on JDBC."""
    from tests.rivals.contenders import PASSWORD

    session = _session()
    user = urlsplit(urls[0]).username or ""
    properties = {"user": user, "password": os.environ[PASSWORD], "driver": "org.postgresql.Driver"}
    places = [f"jdbc:postgresql://{urlsplit(url).netloc.partition('@')[2]}{urlsplit(url).path}" for url in urls]

    def transfer(number: int) -> None:
        for place in places:
            _row(session, number).write.jdbc(place, "t", mode="append", properties=properties)

    return transfer


def with_txpool_spark(urls: list[str]) -> Callable[[int], object]:
    """`write_table`, twice in one transaction."""
    import txpool
    from txpool.spark import write_table

    txpool.configure("txpool.properties")
    session = _session()

    def transfer(number: int) -> None:
        try:
            with txpool.transaction(transaction_id=str(number), record_in="one.properties"):
                for name in ("one", "two"):
                    write_table(_row(session, number), f"{name}.properties", "t")
        except txpool.AlreadyDone:
            pass

    return transfer
