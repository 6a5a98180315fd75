"""The tables of a lake's catalog in MariaDB and MySQL, in the datasource's database."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from txpool.resources.iceberg.tables import LakeTables
from txpool.resources.mysql.tables.own_tables import create_table, database_of, raw_of, require_database
from txpool.resources.mysql.tables.records import outside_pool

if TYPE_CHECKING:
    from txpool.datasource import DataSource

# Names are told apart by case, as in every other database.
_TEXT: Final = "character set utf8mb4 collate utf8mb4_bin"
_NAME: Final = f"varchar(255) {_TEXT} not null"
_COLUMNS: Final = {
    "iceberg_tables": f"""
        catalog_name {_NAME}, table_namespace {_NAME}, table_name {_NAME}, metadata_location varchar(1000) {_TEXT},
        previous_metadata_location varchar(1000) {_TEXT}, iceberg_type varchar(5),
        primary key (catalog_name, table_namespace, table_name)""",
    "iceberg_namespace_properties": f"""
        catalog_name {_NAME}, namespace {_NAME}, property_key {_NAME}, property_value varchar(1000) {_TEXT} not null,
        primary key (catalog_name, namespace, property_key)""",
    "txpool_lake": f"""
        catalog_name {_NAME}, gtrid varchar(64) {_TEXT} not null, state varchar(200) {_TEXT} not null,
        primary key (catalog_name, gtrid)""",
}


class MySQLLake(LakeTables):
    """The tables in MariaDB and MySQL."""

    def create(self, source: DataSource) -> None:
        with outside_pool(source.driver_adapter) as raw:
            require_database(raw, source.name)
            raw.session.run("set session transaction read write")
            for table, columns in _COLUMNS.items():
                create_table(raw.session, table, columns)

    def schema(self, cursor: Any) -> str:
        return raw_of(cursor).database_name

    def names(self, cursor: Any) -> dict[str, str]:
        database = database_of(cursor)
        return {"lake": f"{database}.txpool_lake", "tables": f"{database}.iceberg_tables"}

    def wait_at_most(self, cursor: Any, seconds: float) -> None:
        cursor.execute(f"set session innodb_lock_wait_timeout = {max(1, int(seconds))}")
