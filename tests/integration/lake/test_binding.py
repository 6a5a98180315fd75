"""A warehouse and its catalog are each other's, and what a process finds when it first looks."""

from __future__ import annotations

import sqlite3

import pytest
import sqlalchemy

import txpool
import txpool.lake
from tests.integration.lake.conftest import IN_POSTGRESQL, IN_SQLITE, SCHEMA, Lake, rows
from txpool.check import Severity, check
from txpool.errors import ConfigurationError, DatabaseError, OperationalError, ProgrammingError, TransactionRolledBack
from txpool.lake.check import findings
from txpool.lake.tables import LakeCatalog
from txpool.lake.warehouse import Warehouse
from txpool.lake.work import _bound
from txpool.resources.iceberg.manager import MANAGER
from txpool.resources.iceberg.tables import lake_tables_of


@IN_SQLITE
def test_a_folder_and_a_catalog_are_each_others(lake: Lake) -> None:
    lake.create("orders")
    lake.folder.joinpath("elsewhere").mkdir()
    same_name = lake.folder / "again.properties"
    same_name.write_text("name = wh\ndriver = iceberg\ncatalog = orders.properties\nwarehouse = elsewhere\n")
    same_folder = lake.warehouse("third", "wh")
    for file in (same_name, same_folder):
        with pytest.raises(ConfigurationError, match="each warehouse has a file"), txpool.transaction():
            txpool.lake.catalog(file)
    assert lake.ids("orders") == []


@IN_SQLITE
def test_what_cannot_be_read_is_named(lake: Lake) -> None:
    """As by a user without the right."""
    hidden = lake.folder / "wh" / "_txpool"
    hidden.write_text("no folder")
    with pytest.raises(OperationalError, match=f"the warehouse {lake.folder}/wh cannot be used: .*_txpool"):
        lake.create("orders")
    hidden.unlink()
    lake.create("orders")
    (metadata,) = (lake.folder / "wh").rglob("*.metadata.json")
    text = metadata.read_bytes()
    metadata.unlink()
    metadata.mkdir()
    with pytest.raises(OSError, match=r"load_table\(\) was not done: .*see to that") as refused:
        lake.ids("orders")
    assert isinstance(refused.value, OperationalError)
    metadata.rmdir()
    metadata.write_bytes(text)
    assert lake.ids("orders") == []


@IN_SQLITE
@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("nope.properties", "names no database for it: .*nope.properties' is neither"),
        ("wh.properties", "names no database for it: .* has no connections"),
    ],
)
def test_a_catalog_that_is_no_database_is_told_by_its_key(lake: Lake, text: str, told: str) -> None:
    file = lake.folder / "other.properties"
    file.write_text(f"name = other\ndriver = iceberg\ncatalog = {text}\nwarehouse = wh\n")
    with txpool.transaction(), pytest.raises(ConfigurationError, match=rf"other\.properties.*catalog.* {told}"):
        txpool.lake.catalog(file)


def test_an_error_of_the_catalogs_database_is_txpools(lake: Lake) -> None:
    """And not SQLAlchemy's alone, by which pyiceberg asks it."""
    lake.create("orders")
    schema = "txpool_spark." if lake.place.kind == "postgresql" else ""
    lake.place.sql("orders", f"drop table {schema}iceberg_namespace_properties")
    with pytest.raises(DatabaseError, match="iceberg_namespace_properties"), txpool.transaction():
        lake.catalog.list_namespaces()


@IN_POSTGRESQL
def test_two_files_that_describe_one_warehouse(lake: Lake) -> None:
    lake.create("orders")
    files = lake.files()
    other = lake.folder / "copy.properties"
    other.write_text(lake.file.read_text())
    with pytest.raises(TransactionRolledBack), txpool.transaction():
        lake.append("orders", 1)
        with pytest.raises(ProgrammingError, match="Name the same file each time"):
            txpool.lake.catalog(other).load_table("db.orders").append(rows(2))
    assert (lake.files(), lake.rows()) == (files, 0)


@IN_SQLITE
def test_a_process_whose_transaction_has_written_before(lake: Lake) -> None:
    """As a new process, which looks whether folder and catalog are each other's; the file is locked by then."""
    lake.create("orders")
    _bound.clear()
    lake_tables_of(lake.place.orders)._checked.clear()
    with txpool.transaction():
        with lake.place.orders.connect() as connection:
            connection.cursor().execute("create table mine (id integer)")
        lake.append("orders", 1)
    assert lake.ids("orders") == [1]


@IN_SQLITE
def test_the_first_catalog_of_a_file_that_the_transaction_has_locked(lake: Lake) -> None:
    with txpool.transaction():
        with lake.place.orders.connect() as connection:
            connection.cursor().execute("create table mine (id integer)")
        with pytest.raises(OperationalError, match=r"cannot be made beside what .*txpool check .*wh\.properties"):
            _ = lake.catalog
    lake.create("orders")
    assert lake.place.sql("orders", "select count(*) from mine") == [(0,)]


@IN_SQLITE
def test_two_processes_bind_a_warehouse_at_once(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    real = Warehouse._insert_token

    def faster(self: Warehouse, folder: str, cursor: object) -> None:
        monkeypatch.setattr(Warehouse, "_insert_token", real)
        Warehouse(lake.source.settings).bind()
        real(self, folder, cursor)

    monkeypatch.setattr(Warehouse, "_insert_token", faster)
    Warehouse(lake.source.settings).bind()
    lake.create("orders")
    assert lake.ids("orders") == []


@IN_SQLITE
def test_check_looks_into_namespaces_of_namespaces(lake: Lake) -> None:
    with txpool.transaction():
        lake.catalog.create_namespace("a.b.c")
        lake.catalog.create_table("a.b.c.t", SCHEMA, properties={"write.metadata.delete-after-commit.enabled": "true"})
    assert [each.topic for each in findings(lake.source.settings) if "a.b.c.t" in each.found] == ["maintenance"]


@IN_SQLITE
def test_check_reports_a_database_that_is_locked(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    lake.create("t")

    def locked(self: LakeCatalog, identifier: object) -> None:
        raise sqlalchemy.exc.OperationalError("select", None, sqlite3.OperationalError("database is locked"))

    monkeypatch.setattr(LakeCatalog, "load_table", locked)
    *_, found = MANAGER.findings(lake.source.settings, stale_after=1, timeout=None)
    assert (found.severity, found.topic) == (Severity.WRONG, "connection")
    assert "database is locked" in found.found


@IN_SQLITE
@pytest.mark.parametrize(
    ("alarm", "severity"),
    [("", Severity.OK), ("12h", Severity.OK), ("13h", Severity.WARNING), ("none", Severity.WARNING)],
)
def test_check_warns_of_an_alarm_that_comes_too_late(lake: Lake, alarm: str, severity: Severity) -> None:
    """Other programs' removal of orphans may take the files of what is in doubt after a day."""
    lake.create("t")
    lines = [
        "node.name = alarmed",
        f"log.url = sqlite:///{lake.folder}/alarmed",
        "log.create = true",
        "datasources = wh.properties",
    ]
    file = lake.folder / "recovery.properties"
    file.write_text("\n".join([*lines, *([f"alarm.in-doubt = {alarm}"] if alarm else []), ""]))
    found = [each for section in check(file).sections for each in section.findings if "(alarm.in-doubt)" in each.found]
    assert [each.severity for each in found] == [severity]
