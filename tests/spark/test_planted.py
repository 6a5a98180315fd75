"""Nothing that a stranger plants in the search path runs as a Spark job: neither on its driver nor in its tasks."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.integration.planted.site import WATCHED, require_nothing_called, unqualified
from tests.spark.conftest import describe
from tests.support.planted import plant
from tests.support.server_log import LOGGED, LoggedPostgres, Message, ServerLog, calls
from tests.support.strangers import Strangers
from txpool.datasource import connect, find
from txpool.errors import OperationalError
from txpool.spark import foreach_partition, map_partitions, register, write_table
from txpool.spark.commit.self_deadlock import _query_waits
from txpool.spark.commit.slots import reserve
from txpool.spark.table.dialect import dialect_of
from txpool.tm.demarcation.block import transaction

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from tests.conftest import Require

pytestmark = [pytest.mark.spark, pytest.mark.slow]


@pytest.fixture(scope="module")
def postgres(require: Require) -> Iterator[LoggedPostgres]:
    """A server of its own, whose log tells what it has understood."""
    with LoggedPostgres() as server:
        yield server


@pytest.fixture
def app(strangers: Strangers, sources: Path) -> Strangers:
    describe(sources, "app", strangers.url())
    describe(sources, "marked", strangers.url(), "mode = cmr")
    strangers.admin(
        "grant create on schema public to mallory",
        "create schema data authorization app",
        "create type public.mood as enum ('good', 'bad')",
    )
    strangers.admin(*(f"alter role app set {setting}" for setting in LOGGED))
    return strangers


def everything(spark: SparkSession, app: Strangers) -> list[Message]:
    """Every way in which Spark writes."""
    server = app.databases.server
    assert isinstance(server, LoggedPostgres)
    log = ServerLog(server)
    app.does("app", "drop schema data cascade", "create schema data")
    app.does(
        "app",
        "create table data.plain (id bigint, who text)",
        "create table data.keyed (id bigint primary key, who text, n serial)",
    )
    register(spark)
    for table in ("data.plain", "data.keyed"):
        for number, options in enumerate(_WRITES):
            with transaction():
                write_table(_frame(spark, 10 * number), "app.properties", table, **options)
    with transaction():
        write_table(_frame(spark, 1000), "app.properties", "data.keyed", strategy="direct")
        connect("app.properties").cursor().execute("insert into data.plain values (-1, 'driver')")
    with transaction():
        write_table(_frame(spark), "app.properties", "data.keyed", mode="upsert", keys=["id"])
        write_table(_frame(spark), "app.properties", "data.made", create=True)
    for _ in range(2):
        write_table(_frame(spark, 2000), "app.properties", "data.plain", transaction_id="nightly")
        write_table(
            _frame(spark, 3000),
            "app.properties",
            "data.plain",
            transaction_id="parts",
            atomicity="partition",
            progress=print,
        )
    with transaction():
        foreach_partition(_frame(spark), _write)
        map_partitions(_frame(spark), _map)
    for number, options in enumerate(_FORMAT_WRITES):
        writer = _frame(spark, 5000 + 10 * number).write.format("txpool").option("datasource", "app.properties")
        writer.options(**options).mode("append").save()
    source = find("app.properties")
    with suppress(OperationalError):
        reserve(source, 500, "txp1:x")
    assert _query_waits(source, "txp1:x", 0, 0) == []
    staging = dialect_of(source).staging(source)
    staging.ensure(dialect_of(source).staging_table("txp1:node:abcdefghijkl:1", 0), ["n integer"])
    assert len(source.resource_manager.staging(source.settings, lock_timeout=1).tables()) == 1
    staging.drop(dialect_of(source).staging_table("txp1:node:abcdefghijkl:1", 0))
    return log.messages()


_WRITES: tuple[dict[str, Any], ...] = (
    {"strategy": "direct"},
    {"strategy": "staged"},
    {"strategy": "staged", "mode": "overwrite"},
)
_FORMAT_WRITES: tuple[dict[str, str], ...] = (
    {"dbtable": "data.plain"},
    {"dbtable": "data.plain", "strategy": "staged"},
    {"dbtable": "data.keyed", "upsertKeys": "id"},
    {"dbtable": "data.plain", "transactionId": "formatted"},
    {"dbtable": "data.made_too", "createTable": "true"},
)


def _frame(spark: SparkSession, start: int = 0) -> DataFrame:
    return spark.range(start, start + 4, numPartitions=2).selectExpr("id", "'new' as who")


def _write(rows: Iterator[Any]) -> None:
    cursor = connect("app.properties").cursor()
    for row in rows:
        cursor.execute("insert into data.plain values (%s, %s)", [*row])


def _map(rows: Iterator[Any]) -> Iterator[Any]:
    _write(rows)
    yield [1]


@pytest.mark.costly
@pytest.mark.parametrize("path", ["", '"$user", public, pg_catalog'], ids=["by default", "before the catalogue"])
def test_no_write_calls_what_is_planted(spark: SparkSession, app: Strangers, path: str) -> None:
    messages = everything(spark, app)
    assert unqualified(messages) == []
    used = calls(messages)
    assert len(used) > 50
    print(f"{len({each.statement for each in messages})} statements call {len(used)}")
    app.admin("drop schema txpool_spark cascade")
    print(plant(app, used, ["public", WATCHED[0]], ["one"]))
    if path:
        app.admin(f"alter role app set search_path = {path}")
        app.databases.rows("one", "select pg_terminate_backend(pid) from pg_stat_activity where usename = 'app'")
    require_nothing_called(everything(spark, app))
