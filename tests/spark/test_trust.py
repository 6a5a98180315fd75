"""Rule 32, seen from a Spark job of app's: what mallory has made is neither written nor run."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.spark.conftest import describe
from tests.support.strangers import EVIL, Strangers, ran
from txpool.datasource import find
from txpool.errors import OperationalError, ProgrammingError
from txpool.spark import SparkWriteWarning, register, write_table
from txpool.spark.commit.slots import _LOCK_CLASS, SlotReservation, reserve
from txpool.tm.demarcation.block import transaction

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark
FOR_ALL = ("grant all on schema txpool_spark to public", "grant all on all tables in schema txpool_spark to public")


@pytest.fixture
def app(strangers: Strangers, sources: Path) -> Strangers:
    """app.properties is app's, and so is the table."""
    describe(sources, "app", strangers.url())
    strangers.does("app", "create table landed (id bigint primary key, who text)")
    return strangers


def frame(spark: SparkSession) -> DataFrame:
    return spark.range(4, numPartitions=2).selectExpr("id", "'new' as who")


def landed(app: Strangers) -> int:
    (number,) = app.databases.rows("one", "select count(*) from landed")[0]
    return int(number)


def test_32_a_schema_of_a_strangers_takes_no_rows(spark: SparkSession, app: Strangers) -> None:
    app.does("mallory", "create schema txpool_spark", *FOR_ALL)
    message = "schema txpool_spark belongs to mallory, and txpool does not use what others control: drop it"
    with pytest.raises(ProgrammingError, match=message), transaction():
        write_table(frame(spark), "app.properties", "landed", strategy="staged")
    with pytest.raises(OperationalError, match="schema txpool_spark belongs to mallory"):
        write_table(frame(spark), "app.properties", "landed", transaction_id="nightly", strategy="direct")
    assert landed(app) == 0
    with pytest.warns(SparkWriteWarning, match=message):
        assert write_table(frame(spark), "app.properties", "landed").strategy == "direct"
    assert landed(app) == 4
    assert (
        app.databases.rows("one", "select 1 from pg_class where relnamespace = to_regnamespace('txpool_spark')") == []
    )


def test_32_a_record_of_partitions_of_a_strangers_is_none(spark: SparkSession, app: Strangers) -> None:
    options: dict[str, Any] = {"transaction_id": "nightly", "atomicity": "partition"}
    app.does("app", "create schema txpool_spark", "grant all on schema txpool_spark to mallory")
    app.does(
        "mallory",
        *EVIL,
        "create table txpool_spark.partitions (transaction_id text, target text, partition integer, row_count bigint, "
        "made_at timestamptz default now(), primary key (transaction_id, target, partition))",
        "insert into txpool_spark.partitions values ('nightly', 'public.landed', 0, 2)",
        "create trigger t before insert on txpool_spark.partitions for each row execute function evil.tell()",
        "grant all on txpool_spark.partitions to public",
    )
    with pytest.raises(OperationalError, match=r"table txpool_spark\.partitions belongs to mallory"):
        write_table(frame(spark), "app.properties", "landed", **options)
    assert (landed(app), ran(app.databases)) == (0, [])
    app.admin("drop table txpool_spark.partitions")
    assert write_table(frame(spark), "app.properties", "landed", **options).rows == 4
    assert app.databases.rows("one", "select obj_description('txpool_spark.partitions'::regclass)") == [
        ("txpool format 1",)
    ]


def test_32_the_format_stages_beside_no_strangers_table(spark: SparkSession, app: Strangers, sources: Path) -> None:
    """Its tasks make the table, and one of them may find it made."""
    register(spark)
    app.does("app", "create schema txpool_spark", "grant all on schema txpool_spark to mallory")
    app.does("mallory", *EVIL)
    # Whatever table of that kind comes to be, mallory was faster: the name is in what it is asked by.
    app.admin(
        "create function public.hijack() returns event_trigger language plpgsql as $$ declare it record; begin "
        "for it in select * from pg_event_trigger_ddl_commands() where object_identity like 'txpool_spark.%txp1%' "
        "and object_type = 'table' loop execute format('alter table %s owner to mallory', it.object_identity); "
        "execute format('grant all on %s to public', it.object_identity); end loop; end $$",
        "alter function public.hijack() security definer",
        "create event trigger hijack on ddl_command_end when tag in ('CREATE TABLE') execute function public.hijack()",
    )
    try:
        writer = frame(spark).write.format("txpool").option("datasource", str(sources / "app.properties"))
        with pytest.raises(Exception, match="belongs to mallory"):
            writer.option("dbtable", "landed").option("strategy", "staged").mode("append").save()
    finally:
        app.admin("drop event trigger hijack")
    assert landed(app) == 0


def test_who_keeps_all_slots_is_named(app: Strangers) -> None:
    source = find("app.properties")
    (total,) = app.databases.rows("one", "select current_setting('max_prepared_transactions')::int")[0]
    take = f"select count(pg_advisory_lock({_LOCK_CLASS}, slot)) from generate_series(1, {total}) slot"
    with app.session("mallory") as mallory:
        mallory.execute(take.encode())
        with pytest.raises(OperationalError, match=rf"reserved for other jobs of mallory \({total}\)"):
            reserve(source, 2, "txp1:x")
    with app.session("mallory") as mallory:
        mallory.execute("begin")
        mallory.execute(take.replace("advisory_lock", "advisory_xact_lock").encode())
        mallory.execute("prepare transaction 'all of them, for ever'")
    kept = SlotReservation(source, 2)
    assert kept.enough
    kept.release()
