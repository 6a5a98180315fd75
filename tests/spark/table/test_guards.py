"""What is said before a write begins: errors for what would certainly fail, and warnings for what may."""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.spark.conftest import describe
from txpool.errors import ProgrammingError
from txpool.spark import write_table
from txpool.spark.commit.session import SparkWriteWarning, warn_of_risks

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from tests.conftest import Databases
    from tests.support.spark import LocalCluster

pytestmark = pytest.mark.spark

_CHECKSUMS = "spark.sql.shuffle.orderIndependentChecksum.enableFullRetryOnMismatch"


@pytest.fixture
def settings(spark: SparkSession) -> Iterator[Callable[[str, str], None]]:
    """`settings(key, value)`, until the test ends."""
    before: dict[str, str | None] = {}

    def change(key: str, value: str) -> None:
        before.setdefault(key, spark.conf.get(key))
        spark.conf.set(key, value)

    yield change
    for key, value in before.items():
        assert value is not None
        spark.conf.set(key, value)


def said(df: DataFrame, atomicity: str = "partition") -> list[str]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        warn_of_risks(df.sparkSession, df, atomicity=atomicity)
    assert all(each.category is SparkWriteWarning and each.filename == __file__ for each in caught)
    return [str(each.message) for each in caught]


def rows(spark: SparkSession) -> DataFrame:
    return spark.range(100).selectExpr("id", "id % 7 as k")


def shuffled(spark: SparkSession) -> DataFrame:
    return rows(spark).repartition(3, "k")


_CHOSEN = "at random, or by the order of rows"
_MADE = "by values that are random, or depend on the order of rows"
#: What is written, and what is said of it where partitions commit by themselves; None where nothing is to be said.
_FRAMES: dict[str, tuple[Callable[[SparkSession], DataFrame], str | None]] = {
    "plain": (rows, None),
    "dealt out": (lambda spark: rows(spark).repartition(3), None),
    "dealt out after a shuffle": (lambda spark: shuffled(spark).repartition(4), None),
    "by key": (shuffled, None),
    "grouped": (lambda spark: rows(spark).groupBy("k").sum("id"), None),
    "joined": (lambda spark: rows(spark).join(shuffled(spark).groupBy("k").count(), "k"), None),
    "chance in values alone": (lambda spark: shuffled(spark).selectExpr("*", "rand() as r", "uuid() as u"), None),
    "chance, and partitions by a key": (
        lambda spark: shuffled(spark).selectExpr("*", "uuid() as u").repartition(3, "id"),
        None,
    ),
    "chance over rows in order": (lambda spark: rows(spark).selectExpr("*", "uuid() as u").repartition(3, "u"), None),
    "a sample in order": (lambda spark: rows(spark).sample(fraction=0.5, seed=1).repartition(3), None),
    "a sample at the end": (lambda spark: shuffled(spark).sample(fraction=0.5, seed=1), None),
    "limited to one partition": (lambda spark: shuffled(spark).limit(5), None),
    "the time at the end": (lambda spark: shuffled(spark).selectExpr("*", "current_timestamp() as at"), None),
    "the time, and partitions by a key": (
        lambda spark: rows(spark).selectExpr("*", "current_timestamp() as at").repartition(3, "id"),
        None,
    ),
    "partitions by chance": (
        lambda spark: shuffled(spark).selectExpr("*", "uuid() as u").repartition(3, "u"),
        f"a shuffle {_MADE}",
    ),
    "by a chance that is forgotten": (
        lambda spark: shuffled(spark).selectExpr("*", "rand() as r").repartition(3, "r").drop("r"),
        f"a shuffle {_MADE}",
    ),
    "dealt out with chance": (
        lambda spark: shuffled(spark).selectExpr("id", "monotonically_increasing_id() as n").repartition(3),
        f"repartition(n) {_MADE}",
    ),
    "grouped by chance": (
        lambda spark: shuffled(spark).selectExpr("int(rand() * 9) as r").groupBy("r").count(),
        f"a shuffle of rows that are chosen {_CHOSEN}",
    ),
    "cached chance": (
        lambda spark: shuffled(spark).selectExpr("*", "uuid() as u").cache().repartition(3, "u"),
        f"a shuffle {_MADE}",
    ),
    "dealt out after a limit": (
        lambda spark: shuffled(spark).limit(50).repartition(3),
        f"rows that are chosen {_CHOSEN}",
    ),
    "dealt out after a sample": (
        lambda spark: shuffled(spark).sample(fraction=0.5, seed=1).repartition(3),
        f"rows that are chosen {_CHOSEN}",
    ),
    "dealt out after a choice": (
        lambda spark: shuffled(spark).where("rand() < 0.5").repartition(3),
        f"rows that are chosen {_CHOSEN}",
    ),
    "dealt out with the time": (
        lambda spark: rows(spark).selectExpr("*", "current_timestamp() as at").repartition(3),
        "the current time is one",
    ),
    "sorted": (lambda spark: rows(spark).orderBy("k", "id"), "bounds that it samples in each run"),
}
#: Of those what a lost part of a shuffle, within one run, has no hand in.
_RERUN = {"dealt out with the time", "sorted"}


@pytest.mark.usefixtures("sources")
@pytest.mark.parametrize("name", _FRAMES)
def test_rows_that_may_change_their_partition(spark: SparkSession, settings: Any, name: str) -> None:
    make, text = _FRAMES[name]
    df = make(spark)
    last = max(spark.sparkContext.statusTracker().getJobIdsForGroup(None), default=-1)
    warned = said(df)
    assert len(warned) == (text is not None)
    assert said(df, "job") == []
    settings(_CHECKSUMS, "false")
    harmed = said(df, "job")
    assert len(harmed) == (text is not None and name not in _RERUN)
    assert max(spark.sparkContext.statusTracker().getJobIdsForGroup(None), default=-1) == last
    for each in warned + harmed:
        assert text is not None
        assert text in each
        assert each.endswith(
            'Distribute rows by columns of the data that stay the same (df.repartition(n, "id")), or '
            "write df.checkpoint() first and read that"
        )
    df.unpersist()


@pytest.mark.usefixtures("sources")
def test_rows_that_are_dealt_out_as_they_come(spark: SparkSession, settings: Any) -> None:
    settings("spark.sql.execution.sortBeforeRepartition", "false")
    assert said(rows(spark).repartition(3)) == []
    (text,) = said(shuffled(spark).select("id").distinct().repartition(4))
    assert text.startswith("repartition(n) by the order of rows, since spark.sql.execution.sortBefore")


def test_partitions_are_checked_before_they_are_written_one_by_one(
    spark: SparkSession, databases: Databases, sources: Path
) -> None:
    databases.execute("one", "create table landed (id bigint, k bigint)")
    with pytest.warns(SparkWriteWarning, match="bounds that it samples in each run") as caught:
        write_table(
            rows(spark).orderBy("k", "id"),
            "one.properties",
            "landed",
            atomicity="partition",
            transaction_id="nightly",
        )
    assert [each.filename for each in caught] == [__file__]
    assert databases.rows("one", "select count(*) from landed") == [(100,)]


_SCRIPT = """
    import json, warnings

    from pyspark.sql import SparkSession

    from txpool.tm.manager import configure
    from txpool.spark.commit.session import warn_of_risks

    configure(node_name="driver", log_url="sqlite:///txlog", log_create=True)
    said = []
    for master in ("local-cluster[1,1,1024]", "local[2]"):
        spark = SparkSession.builder.master(master).getOrCreate()
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            warn_of_risks(spark)
            warn_of_risks(spark.sparkContext, spark.range(3))
            warn_of_risks(spark, atomicity="partition")
        said.append([[str(each.message), each.category.__name__] for each in caught])
        spark.stop()
    print(json.dumps(said))
"""


def test_copies_of_tasks_and_where_there_are_none(local_cluster: LocalCluster) -> None:
    conf = {"spark.speculation": "true", "spark.executor.memory": "512m"}
    output = local_cluster(_SCRIPT, master="local-cluster[1,1,1024]", conf=conf)
    cluster, local = json.loads(output.splitlines()[-1])
    assert local == []
    assert len(cluster) == 2
    for text, category in cluster:
        assert category == "SparkWriteWarning"
        assert text.startswith("spark.speculation is on: a copy of a slow task does its work in the database again")
        assert text.endswith("with spark.speculation=false, or leave room in max_prepared_transactions")


@pytest.fixture
def app(databases: Databases, sources: Path) -> Iterator[str]:
    """The name of a user who may do nothing yet, and whose datasource is app.properties."""
    databases.execute("one", "create role app login password 'for-app'")
    (sources / "secret").write_text("for-app")
    (sources / "secret").chmod(0o600)
    url = databases.url("one").replace(f"//{databases.server.user}@", "//app@")
    assert "//app@" in url
    describe(sources, "app", url)
    databases.execute("one", "create table landed (id bigint primary key, who text)")
    yield "app"
    databases.execute("one", "select pg_terminate_backend(pid, 5000) from pg_stat_activity where usename = 'app'")
    databases.execute("one", "drop owned by app; drop role app")


@pytest.mark.slow
def test_what_the_user_may_not_do(spark: SparkSession, databases: Databases, app: str, sources: Path) -> None:
    df = spark.range(3).selectExpr("id", "'new' as who")

    def write(mode: Any = "append", strategy: Any = "auto", **options: Any) -> Any:
        return write_table(df, "app.properties", "landed", mode, strategy=strategy, **options)

    def refused(message: str, mode: Any = "append", strategy: Any = "auto", **options: Any) -> None:
        tracker = spark.sparkContext.statusTracker()
        last = max(tracker.getJobIdsForGroup(None), default=-1)
        with pytest.raises(ProgrammingError, match=message):
            write(mode, strategy, **options)
        assert max(tracker.getJobIdsForGroup(None), default=-1) == last

    def grant(what: Any) -> None:
        databases.execute("one", f"grant {what} to app")

    with pytest.raises(
        ProgrammingError, match=r"permission denied for schema public, for public.landed: grant usage on"
    ):
        write_table(df, "app.properties", "public.landed")
    grant("usage on schema public")
    refused("the user of app may not write to public.landed: grant insert on public.landed")
    grant("insert (id) on landed")
    refused(r'mode \'append\' has to insert in public.landed, .* grant insert \("who"\) on public.landed to app')
    grant("insert (who) on landed")
    assert write(strategy="direct").strategy == "direct"
    assert databases.rows("one", "select count(*) from landed") == [(3,)]
    databases.execute("one", "truncate landed")

    staging = "the user app of app may not create staging tables, which this write needs"
    with pytest.warns(SparkWriteWarning, match=staging) as caught:
        assert write().strategy == "direct"
    assert [each.filename for each in caught] == [__file__]
    refused(f"{staging}: create schema txpool_spark authorization app", strategy="staged")
    refused("may not: grant delete on public.landed to app", "overwrite")
    grant("delete on landed")
    refused(staging, "overwrite")
    refused("has to select and update in .* grant select, update on public.landed to app", "upsert", keys=["id"])
    databases.execute("one", "create schema txpool_spark authorization app")
    assert write("overwrite").rows == 3
    grant("select, update (who) on landed")
    assert write("upsert", keys=["id"]).rows == 3

    databases.execute("one", "alter table landed enable row level security; truncate landed")
    databases.execute("one", "create policy mine on landed using (true) with check (id < 10)")
    refused("has row-level security policies, with which COPY is not possible", strategy="direct")
    refused("atomicity='job' writes with INSERT", atomicity="partition", transaction_id="nightly")
    assert write().strategy == "staged"
    databases.execute("one", "drop table landed; create table landed (n serial, id bigint, who text)")
    grant("insert on landed")
    refused("uses the sequence landed_n_seq, .* grant usage on sequence landed_n_seq to app")
    grant("usage on sequence landed_n_seq")
    assert write().strategy == "direct"
    databases.execute("one", "drop table landed")
    refused("permission denied for schema public, .* create if the table is to be created", create=True)
    databases.execute("one", "create table landed (id bigint, who text); grant insert on landed to app")
    databases.execute("one", "alter role app set default_transaction_read_only = on")
    describe(sources, "standby", databases.url("one").replace(f"//{databases.server.user}@", "//app@"))
    with pytest.raises(ProgrammingError, match="standby is read-only"):
        write_table(df, "standby.properties", "landed")
    assert databases.prepared() == []
