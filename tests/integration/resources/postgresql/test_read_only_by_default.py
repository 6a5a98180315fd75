"""A role or a server whose transactions only read by default: what txpool itself writes is written."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

import psycopg
import pytest

import txpool
from tests.support.strangers import Strangers
from txpool.config.secrets import Secret
from txpool.datasource import DataSource
from txpool.log import SqlLog
from txpool.resources.postgresql.tables.staging import PostgreSQLStagingTable
from txpool.xid import make_gtrid, new_incarnation

if TYPE_CHECKING:
    from tests.conftest import Databases


@pytest.fixture(params=["role app", "database one"])
def url(strangers: Strangers, request: pytest.FixtureRequest) -> Iterator[str]:
    """The url of database "one" for the role of an application, which only reads by default."""
    strangers.does("app", "create table t (n int)")
    strangers.admin(f"alter {request.param} set default_transaction_read_only = on", database="two")
    yield strangers.url()
    strangers.admin(f"alter {request.param} reset default_transaction_read_only", database="two")


def source_of(url: str, databases: Databases, mode: str = "xa") -> DataSource:
    return DataSource(name=mode, driver="psycopg", mode=mode, url=url, password=databases.server.password)


def test_the_log_is_made_and_written(url: str, databases: Databases) -> None:
    password = Secret(databases.server.password)
    with closing(SqlLog(url, node="tests", create=True, password=password)) as log:
        gtrid = make_gtrid("tests", log.incarnation, 1)
        log.record(gtrid, [])
        assert gtrid in log.decisions()


def test_a_transaction_writes_only_where_it_says_so_and_leaves_nothing(
    url: str, databases: Databases, tmp_path: Path
) -> None:
    txpool.configure(node_name="tests", log_url=f"sqlite:///{tmp_path}/log", log_create=True)
    databases.execute("two", "create table t (n int)")
    other = DataSource(name="other", driver="psycopg", url=databases.url("two"), password=databases.server.password)
    for mode in ("xa", "cmr"):
        source = source_of(url, databases, mode)
        if mode == "cmr":
            source.xids_table().create()  # type: ignore[attr-defined]
        with pytest.raises(psycopg.errors.ReadOnlySqlTransaction), txpool.transaction():
            other.connect().execute("insert into t values (1)")
            source.connect().execute("insert into t values (1)")
        with txpool.transaction(read_only=False):
            for each in (other, source):
                each.connect().execute("insert into t values (2)")
        with txpool.transaction(read_only=False, transaction_id=f"id-{mode}", record_in=source):
            source.connect().execute("insert into t values (3)")
        source.close()
    assert databases.rows("one", "select n from t order by n") == [(2,), (2,), (3,), (3,)]
    assert databases.rows("two", "select n from t") == [(2,), (2,)]
    assert databases.rows("one", "select count(*) from xids where xid <> 'txp1:identity'") == [(0,)]
    assert databases.prepared() == []
    other.close()
    txpool.configure()


def test_staging_tables_are_made_and_dropped(url: str, databases: Databases) -> None:
    with source_of(url, databases) as source:
        staging = source.staging()
        assert staging is not None
        table = PostgreSQLStagingTable(make_gtrid("tests", new_incarnation(), 1), 0)
        staging.create(table, ["n int"])  # type: ignore[attr-defined]
        assert staging.tables() == [table]
        staging.drop(table)
        assert staging.tables() == []
