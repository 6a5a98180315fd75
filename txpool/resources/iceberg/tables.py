"""The tables of lake catalogs in one kind of database: pyiceberg's own two, and txpool's `lake`.

A row of `lake` has a catalog's name and a gtrid. It rides in the branch: while the row is there the files of that
transaction are published, and its state is how many changes the transaction has made. A sweep inserts the same key.
The row with an empty gtrid says which folder the catalog's warehouse is.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from functools import cache
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Any, Final
from weakref import WeakSet

from txpool.errors import DatabaseError, NotSupportedError

if TYPE_CHECKING:
    from txpool.datasource import DataSource

#: The state of a key that a sweep has won.
SWEPT: Final = "swept"

_INSERT = "insert into {lake} (catalog_name, gtrid, state) values (?, ?, ?)"
_UPDATE = "update {lake} set state = ? where catalog_name = ? and gtrid = ?"
_READ = "select state from {lake} where catalog_name = ? and gtrid = ?"
_ROWS = "select gtrid from {lake} where catalog_name = ? and gtrid <> ''"
_DELETE = "delete from {lake} where catalog_name = ? and gtrid = ?"
_POINTERS = "select metadata_location from {tables} where catalog_name = ?"
_VERSION = "select iceberg_type from {tables} where 1 = 0"
_POINTER = (
    "select metadata_location from {tables} where catalog_name = ? and table_namespace = ? and table_name = ?{lock}"
)
_SWAP = (
    "update {tables} set metadata_location = ?, previous_metadata_location = ? where catalog_name = ? "
    "and table_namespace = ? and table_name = ? and metadata_location = ?"
)


class LakeTables(ABC):
    """The tables in one kind of database. A method with a `cursor` works in that cursor's transaction. Thread-safe."""

    #: A parameter's placeholder in SQL.
    parameter = "%s"
    #: What a SELECT ends with that locks its rows.
    lock = " for update"

    def __init__(self) -> None:
        #: The datasources whose tables this process has created, or found.
        self._checked: WeakSet[DataSource] = WeakSet()

    @abstractmethod
    def create(self, source: DataSource) -> None:
        """Create the tables that do not exist, outside any transaction. Errors: as for other tables of txpool's."""

    @abstractmethod
    def schema(self, cursor: Any) -> str:
        """The schema or database that has pyiceberg's tables, not quoted."""

    @abstractmethod
    def names(self, cursor: Any) -> dict[str, str]:
        """The names of the tables `lake` and `tables`, for SQL."""

    @abstractmethod
    def wait_at_most(self, cursor: Any, seconds: float) -> None:
        """Let the cursor's transaction wait for a lock no longer than that."""

    def ensure(self, source: DataSource) -> None:
        """Create the tables, unless this process has seen them."""
        if source not in self._checked:
            self.create(source)
            self._checked.add(source)

    def require_version(self, cursor: Any, catalog: str) -> None:
        """NotSupportedError if the catalog's tables have the first schema, which others have made."""
        try:
            self._execute(cursor, _VERSION, []).fetchall()
        except DatabaseError as error:
            if "iceberg_type" not in str(error):
                raise
            raise NotSupportedError(
                f"catalog {catalog}: its table iceberg_tables has the first schema of SQL catalogs, and nothing was "
                "done. Let its owner execute `alter table iceberg_tables add column iceberg_type varchar(5)`, as "
                "Spark's JdbcCatalog does with jdbc.schema-version=V1"
            ) from error

    def insert(self, cursor: Any, catalog: str, gtrid: str, state: str) -> None:
        """Insert a row. The driver's IntegrityError if its key is taken; waits for a transaction that holds it."""
        self._execute(cursor, _INSERT, [catalog, gtrid, state])

    def set_state(self, cursor: Any, catalog: str, gtrid: str, state: str) -> None:
        """Change a row's state. A row that somebody else has written is durable then."""
        self._execute(cursor, _UPDATE, [state, catalog, gtrid])

    def state(self, cursor: Any, catalog: str, gtrid: str) -> str | None:
        """The state of a row; None if there is no such row."""
        found = self._execute(cursor, _READ, [catalog, gtrid]).fetchone()
        return None if found is None else str(found[0])

    def rows(self, cursor: Any, catalog: str) -> list[str]:
        """The gtrids that have committed rows: of transactions, and of sweeps."""
        return [str(gtrid) for (gtrid,) in self._execute(cursor, _ROWS, [catalog]).fetchall()]

    def delete(self, cursor: Any, catalog: str, gtrid: str) -> None:
        """Delete a row, if it is there."""
        self._execute(cursor, _DELETE, [catalog, gtrid])

    def pointer(self, cursor: Any, catalog: str, table: tuple[str, str]) -> str | None:
        """Where the table's metadata is; None if there is no such table. The transaction holds the row then."""
        found = self._execute(cursor, _POINTER, [catalog, *table]).fetchone()
        return None if found is None else str(found[0])

    def pointers(self, cursor: Any, catalog: str) -> list[str]:
        """Where the metadata of all tables is."""
        return [str(found) for (found,) in self._execute(cursor, _POINTERS, [catalog]).fetchall() if found]

    def swap(self, cursor: Any, catalog: str, table: tuple[str, str], before: str, after: str) -> bool:
        """Compare and set; False if the pointer is another one."""
        changed: int = self._execute(cursor, _SWAP, [after, before, catalog, *table, before]).rowcount
        return changed == 1

    def _execute(self, cursor: Any, statement: str, values: list[Any]) -> Any:
        text = statement.format(**self.names(cursor), lock=self.lock).replace("?", self.parameter)
        cursor.execute(self.spelled(text), values)
        return cursor

    def spelled(self, statement: str) -> str:
        """The statement as the database gets it."""
        return statement

    def spelled_theirs(self, statement: str) -> str:
        """The same of a statement of pyiceberg's."""
        return statement


@cache
def _tables(part: str) -> LakeTables:
    made: LakeTables = resolve_name(part)()
    return made


def lake_tables_of(source: DataSource) -> LakeTables:
    """The tables in a datasource. NotSupportedError if its database, or its mode, has none."""
    part = source.resource_manager.lake
    if part is None or source.mode not in ("xa", "cmr"):
        raise NotSupportedError(
            f"datasource {source.name} ({source.resource_manager.database}, mode = {source.mode}) cannot have a lake's "
            "catalog: use PostgreSQL, MariaDB or MySQL that prepare, or a marked SQLite file. Nothing was done"
        )
    return _tables(part)
