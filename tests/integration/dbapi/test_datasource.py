"""The datasource behind it: its pool, its mode, the registry of names, and what travels."""

from __future__ import annotations

import copy
import pickle
import threading
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from tests.integration.dbapi.table import rows
from txpool.datasource import DataSource, connect, register
from txpool.errors import ConfigurationError, PoolClosed, PoolTimeout, TransactionRolledBack
from txpool.tm.demarcation.block import transaction


def test_waiting_is_bounded(sqlite_source: DataSource) -> None:
    held = [sqlite_source.connect() for _ in range(2)]
    with pytest.raises(PoolTimeout, match="lite"):
        sqlite_source.connect(timeout=0.01)
    for connection in held:
        connection.close()
    assert sqlite_source.statistics().idle == 2


def test_a_plain_connection_may_change_threads(sqlite_source: DataSource) -> None:
    connection = sqlite_source.connect()
    worker = threading.Thread(target=lambda: connection.execute("insert into t values (1, 'thread')"))
    worker.start()
    worker.join()
    connection.commit()
    connection.close()
    assert rows(sqlite_source) == [(1, "thread")]


def test_what_a_datasource_cannot_do_in_its_mode(postgres_source: DataSource, sqlite_source: DataSource) -> None:
    assert postgres_source.branch_recovery().recover() == []
    with pytest.raises(ConfigurationError, match="only mode=cmr"):
        postgres_source.xids_table()
    with pytest.raises(ConfigurationError, match="only mode=xa"):
        sqlite_source.branch_recovery()


def test_a_last_resource_commits_with_the_others(postgres_source: DataSource, tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/audit.db"
    with DataSource(name="audit", driver="sqlite3", mode="last-resource", url=url) as audit:
        with closing(audit.connect()) as connection:
            connection.execute("create table t (id integer, v text)")
        with transaction():
            postgres_source.connect().execute("insert into t values (1, 'a')")
            audit.connect().execute("insert into t values (1, 'a')")
        with pytest.raises(TransactionRolledBack), transaction() as tx:
            postgres_source.connect().execute("insert into t values (2, 'b')")
            audit.connect().execute("insert into t values (2, 'b')")
            tx.set_rollback_only()
        assert rows(postgres_source) == rows(audit) == [(1, "a")]


def test_a_connection_does_not_travel(sqlite_source: DataSource) -> None:
    connection = sqlite_source.connect()
    for travel in (pickle.dumps, copy.copy, copy.deepcopy):
        with pytest.raises(TypeError, match="datasource"):
            travel(connection)
    connection.close()
    assert not hasattr(connection, "no_such_thing")


def test_a_closed_datasource(sqlite_source: DataSource) -> None:
    sqlite_source.close()
    with pytest.raises(PoolClosed):
        sqlite_source.connect()


def test_connect_finds_names_files_and_datasources(tmp_path: Path) -> None:
    path = tmp_path / "ledger.properties"
    path.write_text("driver = sqlite3\nmode = local\nurl = sqlite:///ledger.db\n")
    with DataSource.from_properties(path) as datasource:
        assert DataSource.from_properties(str(path)) is datasource
        targets: list[Any] = [path, str(path), f"txpool:{path}", datasource]
        with pytest.raises(ConfigurationError, match=rf"neither a registered datasource.*\(in {Path.cwd()}\)"):
            connect("ledger")
        register(datasource)
        register(datasource)
        for target in [*targets, "ledger", "txpool:ledger"]:
            connection = connect(target)
            assert connection.datasource is datasource
            connection.close()
        other = DataSource(name="ledger", driver="sqlite3", mode="local", url=f"sqlite:///{tmp_path}/other.db")
        with other, pytest.raises(ConfigurationError, match="another datasource is registered as ledger"):
            register(other)
    with pytest.raises(ConfigurationError, match="neither a registered datasource"):
        connect("ledger")
    with DataSource.from_properties(path) as again:
        assert again is not datasource


def test_a_datasource_travels_without_its_secrets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ORDERS_PASSWORD", "s3cret-9")
    url = "postgresql://app@localhost/orders"
    with DataSource(name="orders", driver="psycopg", url=url, password="${env:ORDERS_PASSWORD}") as datasource:
        text = pickle.dumps(datasource)
        assert b"s3cret-9" not in text
        assert "s3cret-9" not in repr(datasource)
        with pickle.loads(text) as arrived:
            assert arrived.settings.connect_options() == datasource.settings.connect_options()
            assert pickle.loads(text) is arrived
        register(datasource)
        assert pickle.loads(text) is datasource
