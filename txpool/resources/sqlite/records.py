"""The records of work with a transaction_id in SQLite: a table in the main database."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from txpool.resources.records import FORMAT, ConnectableDatasource, EarlierRun, RecordsTable, require_format

if TYPE_CHECKING:
    from txpool.resources.driver.raw import SqlCursor

_COLUMNS = """
    transaction_id text, target text, gtrid text not null, mode text not null, plan text not null, partitions integer,
    row_count integer, batch integer, made_at text not null default current_timestamp,
    primary key (transaction_id, target)
"""


class SQLiteRecords(RecordsTable):
    """The table of records in SQLite. No other transaction has uncommitted records: this one has the write lock."""

    table = "main.txpool_spark_writes"
    parameter = "?"
    ago = "datetime('now', '-' || ? || ' seconds')"

    def create(self, source: ConnectableDatasource, cursor: SqlCursor) -> None:
        # SQLite keeps the text of the statement, and in it the format.
        cursor.execute(f"create table if not exists {self.table} (/* {FORMAT} */ {_COLUMNS})")
        self._is_there(cursor)

    @contextmanager
    def opened(self, source: ConnectableDatasource) -> Iterator[Any]:
        with closing(source.connect()) as connection:
            cursor = connection.cursor()
            self.create(source, cursor)
            yield cursor

    def may_be_prepared(self, source: ConnectableDatasource) -> bool:
        return False

    def read_outside(self, source: ConnectableDatasource, transaction_id: str, target: str) -> EarlierRun | None:
        return None

    def read(self, cursor: SqlCursor, transaction_id: str, target: str) -> EarlierRun | None:
        found = super().read(cursor, transaction_id, target) if self._is_there(cursor) else None
        if found is not None:
            self._make_durable(cursor)
        if found is None or found.made_at is None:
            return found
        return replace(found, made_at=datetime.fromisoformat(str(found.made_at)).replace(tzinfo=UTC))

    def _make_durable(self, cursor: SqlCursor) -> None:
        """Sync what was read: the process that wrote the record may have died before it was synced.

        The record is in the write-ahead log, or was committed when the journal was truncated, or unlinked, which is in
        the folder. The database file and its -shm are not opened: closing them would release SQLite's locks on them.
        """
        schema = self.table.partition(".")[0]
        file = next(path for _, name, path in cursor.execute("pragma database_list").fetchall() if name == schema)
        for path in (f"{file}-wal", f"{file}-journal", os.path.dirname(file)) if file else ():
            with suppress(FileNotFoundError):
                descriptor = os.open(path, os.O_RDONLY)
                try:
                    os.fsync(descriptor)
                finally:
                    os.close(descriptor)

    def _is_there(self, cursor: SqlCursor) -> bool:
        schema, _, name = self.table.partition(".")
        found = cursor.execute(f"select sql from {schema}.sqlite_master where name = ?", [name]).fetchone()
        if found is not None:
            require_format(self.table, found[0])
        return found is not None
