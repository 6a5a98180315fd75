"""sqlite3's own ways, and a script that no transaction may have."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from tests.integration.dbapi.table import rows
from txpool.datasource import DataSource
from txpool.errors import ProgrammingError
from txpool.resources.sqlite.driver import SQLiteRawConnection, begin_as
from txpool.sql.characteristics import Characteristics
from txpool.tm.demarcation.block import transaction


def test_with_ends_a_plain_connection_as_sqlite3_does(sqlite_source: DataSource) -> None:
    connection = sqlite_source.connect()
    with connection:
        connection.execute("insert into t values (1, 'kept')")
    with pytest.raises(ZeroDivisionError), connection:
        connection.execute("insert into t values (2, 'lost')")
        raise ZeroDivisionError
    connection.executemany("insert into t values (?, ?)", [(3, "kept"), (4, "kept")])
    connection.commit()
    assert connection.cursor().execute("insert into t values (9, 'lost')").lastrowid == 9
    connection.close()
    assert rows(sqlite_source) == [(1, "kept"), (3, "kept"), (4, "kept")]


def test_sqlite3s_own_attributes_and_methods(sqlite_source: DataSource) -> None:
    sqlite_source.pool.resize(0, 1)
    connection: Any = sqlite_source.connect()
    connection.executescript("insert into t values (1, 'a'); insert into t values (2, 'b')")
    assert [line for line in connection.iterdump() if "INSERT" in line and "'a'" in line]
    connection.row_factory = sqlite3.Row
    connection.text_factory = bytes
    connection.isolation_level = None
    connection.create_function("twice", 1, lambda x: x * 2)
    assert connection.execute("select twice(id) as d, v from t").fetchone()["d"] == 2
    assert connection.execute("select v from t").fetchone()[0] == b"a"
    assert connection.total_changes == 2
    assert not connection.in_transaction
    connection.close()
    connection = sqlite_source.connect()
    assert connection.execute("select v from t").fetchone() == ("a",)
    assert connection.isolation_level is not None
    connection.close()


def test_no_backup_into_what_is_read_only(sqlite_source: DataSource, tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/copy.db"
    with (
        DataSource(name="copy", driver="sqlite3", mode="local", url=url, transaction_read_only=True) as read_only,
        closing(sqlite_source.connect()) as source,
        closing(read_only.connect()) as target,
    ):
        with pytest.raises(ProgrammingError, match="read-only"):
            source.backup(target)  # type: ignore[attr-defined]
        assert target.execute("select name from sqlite_master").fetchall() == []  # type: ignore[attr-defined]


@pytest.mark.parametrize("journal", ["wal", "delete"])
def test_a_marked_commit_whatever_the_users_text_is(
    sqlite_source: DataSource, postgres_source: DataSource, tmp_path: Path, journal: str
) -> None:
    with closing(sqlite3.connect(tmp_path / "one.db")) as raw:
        raw.execute(f"pragma journal_mode = {journal}")
    with DataSource(name="marked", driver="sqlite3", mode="cmr", url=sqlite_source.url) as marked:
        marked.xids_table().create()
        with transaction(), postgres_source.connect() as other, marked.connect() as connection:
            connection.text_factory = bytes
            connection.cursor().execute("insert into t values (1, 'a')")
            other.cursor().execute("insert into t values (1, 'a')")
        with closing(marked.connect()) as connection:
            assert connection.cursor().execute("select v from t").fetchall() == [("a",)]


def test_a_result_that_is_not_read_to_its_end_holds_nothing_open(sqlite_source: DataSource, tmp_path: Path) -> None:
    connection = sqlite_source.connect()
    connection.executemany("insert into t values (?, 'x')", [(n,) for n in range(500)])
    connection.commit()
    unread = connection.execute("select * from t")
    unread.fetchone()
    connection.close()
    with transaction():
        unread_too = sqlite_source.connect().execute("select * from t")
        unread_too.fetchone()
    raw = sqlite3.connect(tmp_path / "one.db", isolation_level=None, timeout=0)
    raw.execute("drop table t")  # needs every reader gone
    raw.close()
    for cursor in (unread, unread_too):
        with pytest.raises(sqlite3.ProgrammingError):
            cursor.fetchone()


def test_a_backup_into_another_handle(sqlite_source: DataSource, tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/copy.db"
    with (
        DataSource(name="copy", driver="sqlite3", mode="local", url=url) as copies,
        closing(sqlite_source.connect()) as connection,
        closing(copies.connect()) as copy,
        closing(sqlite3.connect(":memory:")) as bare,
    ):
        connection.execute("insert into t values (1, 'a')")
        connection.commit()
        for target in (copy, bare):
            connection.backup(target)
            assert target.execute("select * from t").fetchall() == [(1, "a")]
        with pytest.raises(ProgrammingError, match=r"inside txp1:.* would replace the whole database"), transaction():
            copy.execute("delete from t")
            copies.connect().backup(copies.connect())
        assert copy.execute("select * from t").fetchall() == [(1, "a")]


def test_a_script_inside_a_transaction_is_refused(sqlite_source: DataSource) -> None:
    with transaction() as tx:
        connection = sqlite_source.connect()
        connection.execute("insert into t values (1, 'kept')")
        for script in (connection.executescript, connection.cursor().executescript):
            with pytest.raises(ProgrammingError, match=f"of {sqlite_source.name} inside {tx.gtrid}.*one by one"):
                script("insert into t values (2, 'x')")
    assert rows(sqlite_source) == [(1, "kept")]


def test_a_handle_whose_connection_is_closed_joins_with_the_drivers_own_error(sqlite_source: DataSource) -> None:
    connection: Any = sqlite_source.connect()
    connection.raw_connection().close()
    with pytest.raises(sqlite3.ProgrammingError, match="Cannot operate on a closed database"), transaction():
        connection.execute("insert into t values (1, 'lost')")
    connection.close()


class InterruptedOnce(SQLiteRawConnection):
    """A connection with an interrupt after its next statement."""

    interrupted = False

    def execute(self, *arguments: Any) -> Any:
        result = super().execute(*arguments)
        if not self.interrupted:
            self.interrupted = True
            raise KeyboardInterrupt
        return result


@pytest.mark.parametrize("configured", [False, True])
def test_an_interrupted_change_in_sqlite_is_undone_for_the_next(tmp_path: Path, *, configured: bool) -> None:
    source = DataSource(
        name="i", driver="sqlite3", mode="local", url=f"sqlite:///{tmp_path}/i.db", transaction_read_only=configured
    )
    with source, closing(InterruptedOnce(tmp_path / "i.db")) as raw:
        driver: Any = source.driver_adapter
        raw.begins_read_only = configured
        sqlite3.Cursor(raw).execute(f"pragma query_only = {int(configured)}")
        with pytest.raises(KeyboardInterrupt):
            begin_as(raw, Characteristics(read_only=not configured))
        assert not driver.is_clean(raw)
        driver.reset(raw)
        assert raw.execute("pragma query_only").fetchone() == (int(configured),)
        assert driver.is_clean(raw)
