"""Rule 32: the schema of Spark's writes and the tables in it count by who owns them. No Spark is needed for that."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from tests.support.strangers import EVIL, Strangers, ran
from txpool.config.secrets import Secret
from txpool.config.settings import DataSourceSettings
from txpool.datasource import DataSource
from txpool.errors import NotSupportedError, OperationalError
from txpool.resource_managers import find_resource_manager
from txpool.resources.driver.making import make_driver
from txpool.resources.postgresql.tables.staging import PostgreSQLStagingTable, Staging
from txpool.xid import make_gtrid, new_incarnation

RECORD = ["nightly", "public.landed", "txp1:tests:aaaaaaaaaaaa:1", "append", "a plan", None]
WRITES = (
    "create table {} (transaction_id text, target text, gtrid text, mode text, plan text, partitions integer, "
    "row_count bigint, made_at timestamptz default now(), batch bigint, primary key (transaction_id, target))"
)
FOR_ALL = ("grant all on schema txpool_spark to public", "grant all on all tables in schema txpool_spark to public")


@pytest.fixture
def source(strangers: Strangers) -> Iterator[DataSource]:
    given = {"name": "app", "driver": "psycopg", "url": strangers.url()}
    with DataSource(password=strangers.password, **given) as it:
        yield it


@pytest.fixture
def staging(strangers: Strangers, source: DataSource) -> Staging:
    return Staging("app", source.driver_adapter, lock_timeout=0.5)


def new_table() -> PostgreSQLStagingTable:
    return PostgreSQLStagingTable(make_gtrid("tests", new_incarnation(), 1), 0)


def claim(source: DataSource) -> bool | None:
    """As a named write claims its name."""
    with closing(source.connect()) as connection:
        cursor = connection.cursor()
        find_resource_manager("psycopg").records.create(source, cursor)
        claimed = find_resource_manager("psycopg").records.insert(cursor, RECORD, 1000)
        connection.commit()
    return claimed


def test_32_nothing_is_staged_in_a_schema_of_a_strangers(
    strangers: Strangers, source: DataSource, staging: Staging
) -> None:
    strangers.does("mallory", "create schema txpool_spark", *FOR_ALL)
    actions: list[Callable[[], Any]] = [
        lambda: staging.create(new_table(), ["id bigint"]),
        lambda: staging.ensure(new_table(), ["id bigint"]),
        lambda: claim(source),
    ]
    for action in actions:
        with pytest.raises(
            OperationalError, match=r"schema txpool_spark belongs to mallory.*ALTER SCHEMA txpool_spark OWNER"
        ):
            action()
    assert strangers.databases.rows("one", "select 1 from pg_tables where schemaname = 'txpool_spark'") == []


def test_32_a_staging_table_of_a_strangers_is_not_used_and_keeps_recovery_from_nothing(
    strangers: Strangers, staging: Staging
) -> None:
    """He may make tables in a schema of ours, and knows the names of ours from pg_prepared_xacts."""
    ours, theirs = new_table(), new_table()
    staging.create(ours, ["id bigint"])
    strangers.does("app", "grant all on schema txpool_spark to mallory")
    strangers.does("mallory", f"create table {theirs.name} (id bigint)", f"grant all on {theirs.name} to public")
    with pytest.raises(OperationalError, match=rf"table {theirs.name} belongs to mallory"):
        staging.ensure(theirs, ["id bigint"])
    staging.ensure(ours, ["id bigint"])
    assert staging.tables() == [ours]


def test_recoverys_own_user_finds_the_applications_staging_tables(strangers: Strangers, staging: Staging) -> None:
    ours = new_table()
    staging.create(ours, ["id bigint"])
    own = {"recovery_user": "txpool", "recovery_password": Secret(strangers.password), "url": strangers.url()}
    settings = DataSourceSettings.load(name="app", driver="psycopg", password=Secret(strangers.password), **own)
    recovery = Staging("app", make_driver(settings, recovery=True))
    assert recovery.tables() == [ours]
    recovery.drop(ours)
    assert staging.tables() == []


@pytest.mark.parametrize("table", ["writes", "partitions"])
def test_32_a_record_of_a_strangers_is_none(strangers: Strangers, source: DataSource, table: str) -> None:
    """It says that the write was done already, and its trigger would run as us."""
    strangers.admin("create schema txpool_spark authorization app")
    strangers.does("app", "grant all on schema txpool_spark to mallory")
    name = f"txpool_spark.{table}"
    strangers.does(
        "mallory",
        *EVIL,
        WRITES.format(name),
        f"insert into {name} values ('nightly', 'public.landed', 'txp1:x', 'append', 'a plan', 1, 1)",
        f"create trigger t before insert on {name} for each row execute function evil.tell()",
        f"grant all on {name} to public",
    )
    with pytest.raises(OperationalError, match=rf"table {name} belongs to mallory.*ALTER TABLE {name} OWNER TO app;"):
        made(source, name)
    assert ran(strangers.databases) == []


def made(source: DataSource, name: str) -> None:
    """As a named write, or one of partitions that commit by themselves, has its table."""
    if name.endswith("writes"):
        claim(source)
        return
    from txpool.spark.table.postgresql.dialect import PostgreSQLPartitions

    PostgreSQLPartitions().create(source)


def test_32_no_trigger_of_a_strangers_runs_in_the_records(strangers: Strangers, source: DataSource) -> None:
    claim(source)
    strangers.does("mallory", *EVIL)
    strangers.does("app", "grant usage on schema txpool_spark to mallory")
    strangers.does("app", "grant trigger on txpool_spark.writes to mallory")
    strangers.does(
        "mallory",
        "create trigger t before insert on txpool_spark.writes for each row execute function evil.tell()",
    )
    with pytest.raises(OperationalError, match=r"trigger t of txpool_spark\.writes calls function evil\.tell\(\)"):
        claim(source)
    assert ran(strangers.databases) == []


def test_32_no_trigger_can_be_hung_on_the_records_between_the_look_and_the_write(
    strangers: Strangers, source: DataSource
) -> None:
    claim(source)
    strangers.does("mallory", *EVIL)
    strangers.does("app", "grant usage on schema txpool_spark to mallory")
    strangers.does("app", "grant trigger on txpool_spark.writes to mallory")
    with closing(source.connect()) as connection, strangers.session("mallory") as mallory:
        find_resource_manager("psycopg").records.create(source, connection.cursor())
        mallory.execute("set lock_timeout = '300ms'")
        with pytest.raises(Exception, match="lock timeout"):
            mallory.execute(
                "create trigger t before insert on txpool_spark.writes for each row execute function evil.tell()"
            )


@pytest.mark.parametrize("isolation", ["read committed", "repeatable read", "serializable"])
def test_what_an_administrator_has_made_counts(strangers: Strangers, source: DataSource, isolation: str) -> None:
    strangers.admin(
        "create schema txpool_spark",
        "grant usage on schema txpool_spark to app",
        WRITES.format("txpool_spark.writes"),
        "grant select, insert, update, delete on txpool_spark.writes to app",
        f"alter role app set default_transaction_isolation = '{isolation}'",
    )
    assert claim(source)
    assert not claim(source)


def test_the_schema_that_an_administrator_has_made_for_us_counts(
    strangers: Strangers, source: DataSource, staging: Staging
) -> None:
    strangers.admin("revoke create on database one from app", "create schema txpool_spark authorization app")
    assert claim(source)
    staging.create(new_table(), ["id bigint"])
    assert len(staging.tables()) == 1


def test_the_format_of_the_records_has_a_number(strangers: Strangers, source: DataSource) -> None:
    described = "select obj_description('txpool_spark.writes'::regclass, 'pg_class')"
    claim(source)
    assert strangers.databases.rows("one", described) == [("txpool format 1",)]
    strangers.does("app", "comment on table txpool_spark.writes is null")  # as one of before has it
    claim(source)
    strangers.does("app", "comment on table txpool_spark.writes is 'what the nightly jobs did; txpool format 1'")
    claim(source)
    strangers.does("app", "comment on table txpool_spark.writes is 'txpool format 2'")
    with pytest.raises(NotSupportedError, match="writes has txpool format 2, and this txpool knows txpool format 1"):
        claim(source)


def test_the_format_of_the_records_in_sqlite_has_a_number(tmp_path: Path) -> None:
    path, records = tmp_path / "a.db", find_resource_manager("sqlite3").records
    former = "create table txpool_spark_writes (transaction_id text, target text, gtrid text, mode text, plan text, "
    former += (
        "partitions integer, row_count integer, batch integer, made_at text, primary key (transaction_id, target))"
    )
    with DataSource(name="lite", driver="sqlite3", mode="local", url=f"sqlite:///{path}") as source:
        for statement in (None, former, former.replace("(transaction_id", "(/* txpool format 2 */ transaction_id", 1)):
            with closing(source.connect()) as connection:
                cursor = connection.cursor()
                cursor.execute("drop table if exists txpool_spark_writes")
                if statement is not None:
                    cursor.execute(statement)
                if statement is None or "format" not in statement:
                    records.create(source, cursor)
                    assert records.insert(cursor, RECORD, 0)
                    assert records.read(cursor, "nightly", "public.landed") is not None
                else:
                    for action in (
                        lambda: records.create(source, cursor),
                        lambda: records.read(cursor, "nightly", "public.landed"),
                    ):
                        with pytest.raises(NotSupportedError, match="txpool format 2"):
                            action()
                connection.commit()
            with closing(sqlite3.connect(path)) as raw:
                (made,) = raw.execute("select sql from sqlite_master where name = 'txpool_spark_writes'").fetchone()
            assert ("txpool format 1" in made) == (statement is None)
