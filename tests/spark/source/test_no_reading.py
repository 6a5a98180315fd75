"""`spark.read.format("txpool")` reads nothing: it says by which call of Spark's own reader to read."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from txpool.spark import register
from txpool.spark.source.jdbc_reading import refuse_reading

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tests.conftest import Databases

pytestmark = [pytest.mark.spark, pytest.mark.usefixtures("sources")]

_OTHERS = {
    "mysql://shop@db.example/items?charset=utf8mb4": '"jdbc:mysql://db.example:3306/items"',
    "mariadb://shop@[::1]:3307/items": '"jdbc:mariadb://[::1]:3307/items"',
}


@pytest.mark.parametrize("schema", [None, "id int"])
def test_the_call_to_paste_is_shown_without_the_password(
    spark: SparkSession, databases: Databases, schema: str | None
) -> None:
    register(spark)
    reader = spark.read.format("txpool").options(datasource="one.properties", dbtable="orders")
    with pytest.raises(Exception, match="only writes") as caught:
        (reader if schema is None else reader.schema(schema)).load().collect()
    server = databases.server
    call = f'spark.read.jdbc("jdbc:postgresql://127.0.0.1:{server.port}/one", "orders", properties={{"user": '
    assert f'{call}"{server.user}", "password": …, "driver": "org.postgresql.Driver"}})' in str(caught.value)
    assert server.password not in str(caught.value)


def test_a_stream_is_not_read_either(spark: SparkSession) -> None:
    register(spark)
    with pytest.raises(Exception, match=r"only writes: read by .*spark\.read\.jdbc"):
        spark.readStream.format("txpool").options(datasource="one.properties", dbtable="orders").load()


@pytest.mark.parametrize("url", _OTHERS)
def test_other_databases(sources: Path, url: str) -> None:
    (sources / "other.properties").write_text(f"driver = pymysql\nurl = {url}\npassword = ${{file:secret}}\n")
    said = str(refuse_reading({"datasource": "other.properties", "query": "select 1"}))
    assert f'spark.read.jdbc({_OTHERS[url]}, "(select 1) as q", ' in said
    assert '"user": "shop"' in said


@pytest.mark.parametrize("options", [{}, {"datasource": "none.properties"}])
def test_a_datasource_that_is_not_known(options: dict[str, str]) -> None:
    assert 'spark.read.jdbc("jdbc:postgresql://host:5432/database", ' in str(refuse_reading(options))
