"""The tables of a lake's catalog in SQLite. One transaction writes at a time, and so rows need no locks."""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING, Any, Final

from txpool.errors import translated
from txpool.resources.iceberg.tables import LakeTables
from txpool.resources.records import FORMAT, require_format

if TYPE_CHECKING:
    from txpool.datasource import DataSource

_NAMES: Final = {"lake": "main.txpool_lake", "tables": "main.iceberg_tables"}
_LAKE: Final = "catalog_name text, gtrid text, state text not null, primary key (catalog_name, gtrid)"
_PYICEBERGS: Final = {
    "main.iceberg_tables": """
        catalog_name text not null, table_namespace text not null, table_name text not null, metadata_location text,
        previous_metadata_location text, iceberg_type text, primary key (catalog_name, table_namespace, table_name)""",
    "main.iceberg_namespace_properties": """
        catalog_name text not null, namespace text not null, property_key text not null, property_value text not null,
        primary key (catalog_name, namespace, property_key)""",
}


class SQLiteLake(LakeTables):
    """The tables in SQLite."""

    parameter = "?"
    lock = ""

    def create(self, source: DataSource) -> None:
        with closing(source.driver_adapter.connect()) as raw, translated():
            raw.execute("pragma query_only = off")
            find = "select sql from main.sqlite_master where name = 'txpool_lake'"
            found = raw.execute(find).fetchone()
            if found is not None:
                require_format(_NAMES["lake"], found[0])
            for table, columns in _PYICEBERGS.items():
                raw.execute(f"create table if not exists {table} ({columns})")
            # SQLite keeps the text of the statement, and in it the format.
            raw.execute(f"create table if not exists {_NAMES['lake']} (/* {FORMAT} */ {_LAKE})")

    def schema(self, cursor: Any) -> str:
        return "main"

    def names(self, cursor: Any) -> dict[str, str]:
        return _NAMES

    def wait_at_most(self, cursor: Any, seconds: float) -> None:
        """Nothing: SQLite waits for as long as the datasource's file says."""
