"""What is said before a write begins: errors for what would certainly fail, and warnings for what may."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.spark.conftest import describe
from txpool.errors import ProgrammingError
from txpool.spark import write_table
from txpool.spark.commit.session import SparkWriteWarning

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tests.conftest import Databases
    from tests.support.spark import LocalCluster

pytestmark = pytest.mark.spark

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
            for _ in range(2):
                warn_of_risks(spark.sparkContext)
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


@pytest.mark.costly
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
