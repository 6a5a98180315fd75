"""The tables of a lake's catalog in PostgreSQL, in the schema of txpool's tables."""

from __future__ import annotations

import re
from collections.abc import Collection
from typing import TYPE_CHECKING, Any, Final

from txpool.resources.iceberg.tables import LakeTables
from txpool.resources.postgresql.qualified import qualified, spelled
from txpool.resources.postgresql.tables.records import create_outside_pool, create_table
from txpool.resources.postgresql.tables.staging import SCHEMA, create_schema
from txpool.resources.postgresql.tables.trust import require_relations

if TYPE_CHECKING:
    from txpool.datasource import DataSource

_NAMES: Final = {"lake": f"{SCHEMA}.lake", "tables": f"{SCHEMA}.iceberg_tables"}
_COLUMNS: Final = {
    _NAMES["tables"]: qualified("""
        catalog_name varchar(255) not null, table_namespace varchar(255) not null, table_name varchar(255) not null,
        metadata_location varchar(1000), previous_metadata_location varchar(1000), iceberg_type varchar(5),
        primary key (catalog_name, table_namespace, table_name)"""),
    f"{SCHEMA}.iceberg_namespace_properties": qualified("""
        catalog_name varchar(255) not null, namespace varchar(255) not null, property_key varchar(255) not null,
        property_value varchar(1000) not null, primary key (catalog_name, namespace, property_key)"""),
    _NAMES["lake"]: qualified("""
        catalog_name pg_catalog.text, gtrid pg_catalog.text, state pg_catalog.text not null,
        primary key (catalog_name, gtrid)"""),
}
_IS_THERE: Final = qualified("select to_regclass(%s) is not null")
#: What `spelled` does not take in pyiceberg's statements, and what is the same: words that hide operators.
_HIDDEN: Final = (
    (re.compile(r"=%\("), "= %("),
    (re.compile(r" LIKE (%\(\w+\)s::VARCHAR) ESCAPE ('.')"), r" ~~ like_escape(\1, \2)"),
    (re.compile(r" LIKE "), " ~~ "),
    (re.compile(r" IN \(([^()]*(?:\(\w+\)[^()]*)*)\)"), r" = any (array[\1])"),
)
_WAIT: Final = qualified("select set_config('lock_timeout', %s, true)")


class PostgreSQLLake(LakeTables):
    """The tables in PostgreSQL. Each is used only if trusted roles own it, and all that runs with it."""

    def create(self, source: DataSource) -> None:
        roles = source.driver_adapter.roles
        create_outside_pool(source, lambda connection: self._create_over(connection, roles))

    def _create_over(self, connection: Any, roles: Collection[str]) -> None:
        cursor = connection.cursor()
        require_relations(cursor, *_COLUMNS, roles=roles)
        if cursor.execute(_IS_THERE, [_NAMES["lake"]]).fetchone()[0]:  # made last
            return
        cursor.execute("set default_transaction_read_only = off")
        create_schema(connection)
        for table, columns in _COLUMNS.items():
            create_table(cursor, table, columns)

    def schema(self, cursor: Any) -> str:
        return SCHEMA

    def names(self, cursor: Any) -> dict[str, str]:
        return _NAMES

    def wait_at_most(self, cursor: Any, seconds: float) -> None:
        cursor.execute(_WAIT, [f"{max(1, int(seconds * 1000))}ms"])

    def spelled(self, statement: str) -> str:
        return spelled(statement)

    def spelled_theirs(self, statement: str) -> str:
        for hidden, plain in _HIDDEN:
            statement = hidden.sub(plain, statement)
        return spelled(statement)
