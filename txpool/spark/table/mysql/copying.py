"""What a task does to write one partition into a table of MariaDB or MySQL: INSERT statements with many rows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa

from txpool.errors import DataError
from txpool.resources.mysql.bound_rows import NO_MORE_STATEMENTS, BoundRows
from txpool.resources.mysql.branches import xa
from txpool.resources.mysql.session.protocol import code_of
from txpool.spark.table.dialect import TaskCopy
from txpool.spark.table.mysql.binary import bound
from txpool.spark.table.mysql.encoding import statements
from txpool.spark.types.encoding import ColumnEncoding

if TYPE_CHECKING:
    from txpool.dbapi.connection import PEP249Connection
    from txpool.dbapi.cursor import PEP249Cursor

#: About the size of a statement: larger ones are not faster.
_STATEMENT_BYTES = 512 << 10
#: What a statement needs beside its text.
_SPARE_BYTES = 1_024
#: What the error says if another transaction, or another task's branch, has locked a row.
LOCKED = "A row of the table is locked by another task, which keeps its locks until the commit, or by others"
# Strict, or values would be cut off; and 0 in a column with AUTO_INCREMENT stays 0.
_SQL_MODE = (
    "STRICT_ALL_TABLES,NO_ZERO_IN_DATE,NO_ZERO_DATE,ERROR_FOR_DIVISION_BY_ZERO,NO_ENGINE_SUBSTITUTION,"
    "NO_AUTO_VALUE_ON_ZERO"
)
_OURS = (
    f"set session sql_mode = '{_SQL_MODE}', time_zone = '+00:00', sql_notes = 1, sql_safe_updates = 0, "
    "character_set_client = utf8mb4, character_set_connection = utf8mb4"
)
_FORMER = (
    "select @@session.sql_mode, @@session.time_zone, @@session.sql_notes, @@session.sql_safe_updates, "
    "@@session.character_set_client, "
    "@@session.collation_connection, @@session.innodb_lock_wait_timeout"
)


@dataclass(frozen=True, slots=True)
class MySQLCopy(TaskCopy):
    """Writes the rows of one partition; `head` is the INSERT statement up to its rows."""

    datasource: str
    head: str
    encodings: tuple[ColumnEncoding, ...]
    #: How long a statement waits for a row's lock; None is as long as the session has it.
    lock_seconds: int | None = None

    def run(self, connection: PEP249Connection, batches: Iterator[pa.RecordBatch]) -> tuple[int, int]:
        """Write over a connection, without a COMMIT. Returns the number of rows, and of bytes sent.

        DataError if the server would store a value otherwise than it was given.
        """
        rows = size = 0
        cursor = connection.cursor()
        with exact_session(cursor, self.lock_seconds), _explained():
            insert = _Insert(connection, cursor, self.head.encode(), self.encodings)
            for batch in batches:
                size += insert.batch(batch)
                rows += batch.num_rows
        return rows, size


class _Insert:
    """Inserts batches: as parameters, if that is faster and the driver can, and else as text."""

    def __init__(
        self, connection: PEP249Connection, cursor: PEP249Cursor, head: bytes, encodings: Sequence[ColumnEncoding]
    ) -> None:
        self._cursor = cursor
        self._head = head
        self._encodings = encodings
        cursor.execute("select @@session.max_allowed_packet, @@version")
        packet, version = cursor.fetchone()
        self._longest = int(packet) - _SPARE_BYTES
        self._limit = min(self._longest - len(head), _STATEMENT_BYTES)
        # MySQL takes longer for parameters than for text. mysqlclient sends none.
        self._insert_rows = getattr(connection, "insert_rows", None) if "mariadb" in str(version).lower() else None

    def batch(self, batch: pa.RecordBatch) -> int:
        """Insert the rows; how many bytes they take. DataError, and the server's errors."""
        if self._insert_rows is None:
            return self._as_text(batch)
        parts = bound(batch, self._encodings, self._head, self._limit)
        return sum(self._as_text(part) if rows is None else self._bound(part, rows) for part, rows in parts)

    def _bound(self, part: pa.RecordBatch, rows: BoundRows) -> int:
        if self._insert_rows is None:
            return self._as_text(part)
        try:
            _, warnings = self._insert_rows(rows)
        except Exception as error:
            if code_of(error) != NO_MORE_STATEMENTS:
                raise
            self._insert_rows = None
            return self._as_text(part)
        if warnings:
            _require_no_warning(self._cursor)
        return len(rows.values)

    def _as_text(self, batch: pa.RecordBatch) -> int:
        size = 0
        for statement in statements(batch, self._encodings, self._head, self._limit, self._longest):
            self._cursor.execute(statement)
            _require_no_warning(self._cursor)
            size += len(statement)
        return size


def _require_no_warning(cursor: PEP249Cursor) -> None:
    """DataError if the server has stored something else than it was given, and only warns, in any mode."""
    cursor.execute("show count(*) warnings")
    if cursor.fetchone()[0]:
        cursor.execute("show warnings limit 1")
        found = cursor.fetchone()
        message = "of more than it tells" if found is None else f"{found[2]} (warning {found[1]})"
        raise DataError(f"the server would change a value, and warns: {message}. Nothing of the partition was written")


@contextmanager
def _explained() -> Iterator[None]:
    """Say of an error for a row's lock what may hold it."""
    try:
        yield
    except Exception as error:
        if code_of(error) in (xa.LOCK_TIMEOUT, xa.DEADLOCK):
            error.add_note(
                f"{LOCKED}. No two partitions may write the same row: make keys distinct, or bring rows of one key "
                "into one partition (df.repartition). strategy='staged' writes on the driver, after the tasks"
            )
        raise


@contextmanager
def exact_session(cursor: PEP249Cursor, lock_seconds: int | None = None) -> Iterator[None]:
    """For the length of a block, the server stores what it is given, or raises; it reads UTF-8, and UTC.

    A statement waits for a row's lock for `lock_seconds`, or as long as the session has it.
    """
    cursor.execute(_FORMER)
    mode, zone, notes, safe, client, collation, wait = cursor.fetchone()
    cursor.execute(_OURS if lock_seconds is None else f"{_OURS}, innodb_lock_wait_timeout = {int(lock_seconds)}")
    try:
        yield
    finally:
        with suppress(Exception):  # if the session is lost
            cursor.execute(
                "set session sql_mode = %s, time_zone = %s, sql_notes = %s, sql_safe_updates = %s, "
                "character_set_client = %s, collation_connection = %s, innodb_lock_wait_timeout = %s",
                [mode, zone, int(notes), int(safe), client, collation, int(wait)],
            )
