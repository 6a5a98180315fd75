"""A table of marks in DuckDB. Of two transactions that insert one key, the later COMMIT is refused."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING

import duckdb

from txpool.errors import described, translate
from txpool.resources.base import Refused
from txpool.resources.driver.marks import IDENTITY, AbortRecorded, Marks, WrongTable
from txpool.resources.duckdb.dialect import DuckDBDialect

if TYPE_CHECKING:
    from txpool.resources.duckdb.connection import DuckDBRawConnection

_DIALECT = DuckDBDialect()
_FIND = (
    "select schema_name, table_name from duckdb_tables() where not temporary and database_name = ? "
    "and lower(schema_name) = lower(?) and lower(table_name) = lower(?)"
)


class DuckDBMarks(Marks):
    """The table of marks in DuckDB; a row's key for `commit_row` is its gtrid."""

    parameter = "?"
    made_at_type = "timestamp not null default current_timestamp"

    def qualified_name(self, raw: DuckDBRawConnection, table: str) -> str | None:
        schema, _, name = table.rpartition(".")
        found = raw.db.execute(_FIND, [raw.catalog, schema or "main", name]).fetchone()
        if found is None:
            return None
        # With the file's own database: the program may have said USE, and attached others.
        return ".".join('"' + each.replace('"', '""') + '"' for each in (raw.catalog, *found))

    def require_ours(self, raw: DuckDBRawConnection, table: str, roles: Collection[str], *, writes: bool) -> None:
        """Nothing: DuckDB has no roles. The file's permissions say who may write it."""

    def is_sole_writer(self, raw: DuckDBRawConnection) -> bool:
        return False

    def database_identity(self, raw: DuckDBRawConnection) -> str:
        return ""

    def mark(
        self,
        raw: DuckDBRawConnection,
        table: str,
        row: dict[str, str],
        delete: Sequence[str],
        *,
        identity: str,
        until: float | None,
    ) -> tuple[str, list[str]]:
        raw.require_transaction()
        query = f"select 1 from {table} where xid = ? and action_uid = ?"
        if identity and raw.marks_identity != identity and not raw.db.execute(query, [IDENTITY, identity]).fetchone():
            raise WrongTable
        raw.marks_identity = identity
        try:
            raw.db.execute(self._plain_insert(table, row), [*row.values()])
        except duckdb.ConstraintException as error:
            raise AbortRecorded from error
        return row["xid"], []  # what is deleted here would conflict with whoever reads it: recovery deletes it

    def commit_row(self, raw: DuckDBRawConnection, table: str, row: str, branches: str) -> None:
        try:
            raw.require_transaction()
            raw.db.execute(f"update {table} set branches = ? where xid = ?", [branches, row])
        except duckdb.Error as error:
            translate(error)
            raise Refused(f"COMMIT was not sent: {described(error)}") from error
        _DIALECT.commit(raw)

    def begin(self, raw: DuckDBRawConnection, lock_timeout: float, *, writes: bool) -> None:
        raw.begin()
