"""The records of work that has a name of the user's own, beside the data of that work; recovery deletes none of them.

A record is a row, written within the transaction that does the work: the one is there exactly where the other is. What
the work is called has two parts: the name, and what it is for, a table or a word. Names of whole transactions and of
Spark's writes stand in one table.
"""

from __future__ import annotations

import os
import re
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, LiteralString
from weakref import WeakSet

import psycopg

from txpool.errors import NotSupportedError, translated
from txpool.resources.postgresql.staging import MADE_MEANWHILE, SCHEMA, create_schema
from txpool.resources.postgresql.trust import require_relations, require_schema
from txpool.xid import PREFIX

if TYPE_CHECKING:
    from txpool.datasource import DataSource

_INSERT = "insert into {table} as it (transaction_id, target, gtrid, mode, plan, batch) values (?, ?, ?, ?, ?, ?) "
_CLAIM = _INSERT + "on conflict do nothing"
# A stream has one row, which moves on with it.
_MOVE_ON = (
    _INSERT + "on conflict (transaction_id, target) do update set gtrid = excluded.gtrid, mode = excluded.mode, "
    "plan = excluded.plan, batch = excluded.batch, partitions = null, row_count = null, made_at = current_timestamp "
    "where it.batch < excluded.batch"
)
_READ = (
    "select gtrid, mode, plan, partitions, row_count, batch, made_at from {table} "
    "where transaction_id = ? and target = ?"
)
_FINISH = "update {table} set partitions = ?, row_count = ? where transaction_id = ? and target = ?"
_KEEP = "update {table} set partitions = coalesce(partitions, ?) where transaction_id = ? and target = ?"

_PREPARED: LiteralString = (
    "select exists (select from pg_prepared_xacts where database = current_database() "
    "and pg_catalog.starts_with(gid::text, %s::text))"
)

#: What a table of records says of itself: its comment, in SQLite its statement.
FORMAT = "txpool format 1"
_SAID = re.compile(r"txpool format \d+")
_DESCRIBED = (
    "select pg_has_role(relowner, 'usage'), obj_description(oid, 'pg_class') from pg_class where oid = to_regclass(%s)"
)
_POSTGRESQL = """
    transaction_id text, target text, gtrid text not null, mode text not null, plan text not null, partitions integer,
    row_count bigint, made_at timestamptz not null default now(), batch bigint, primary key (transaction_id, target)
"""
_SQLITE = """
    transaction_id text, target text, gtrid text not null, mode text not null, plan text not null, partitions integer,
    row_count integer, batch integer, made_at text not null default current_timestamp,
    primary key (transaction_id, target)
"""


@dataclass(frozen=True, slots=True)
class EarlierRun:
    """A run of the same name that has committed."""

    gtrid: str
    mode: str
    plan: str
    #: None while it has not ended (where each partition is a transaction of its own).
    partitions: int | None
    rows: int | None
    batch: int | None
    #: When it had begun; None where somebody has left that out.
    made_at: datetime | None


class RecordsTable(ABC):
    """Those of one kind of database, within the transaction that a cursor is in."""

    table: str
    parameter: str

    @abstractmethod
    def create(self, source: DataSource, cursor: Any) -> None:
        """Make their table, where it is missing: in the transaction, or before it."""

    @abstractmethod
    @contextmanager
    def opened(self, source: DataSource) -> Iterator[Any]:
        """A cursor in the ambient transaction, with their table there; at the price of one look for each process."""

    @abstractmethod
    def may_be_prepared(self, source: DataSource) -> bool:
        """Whether somebody who has a name may be in doubt, and recovery can end that."""

    @abstractmethod
    def read_outside(self, source: DataSource, transaction_id: str, target: str) -> EarlierRun | None:
        """A record that the transaction does not see, since its snapshot is older."""

    def insert(self, cursor: Any, record: list[Any], patience: int) -> bool | None:
        """Whether the name was free; None where somebody who has it does not end within so many milliseconds.

        A record is transaction_id, target, gtrid, mode, plan and batch. A batch's takes the place of earlier ones.
        """
        inserted: int = self._execute(cursor, _CLAIM if record[-1] is None else _MOVE_ON, record).rowcount
        return inserted == 1

    def read(self, cursor: Any, transaction_id: str, target: str) -> EarlierRun | None:
        found = self._execute(cursor, _READ, [transaction_id, target]).fetchone()
        return None if found is None else EarlierRun(*found)

    def finish(self, cursor: Any, transaction_id: str, target: str, partitions: int, rows: int | None) -> None:
        """Say how much it was."""
        self._execute(cursor, _FINISH, [partitions, rows, transaction_id, target])

    def keep(self, cursor: Any, transaction_id: str, target: str, partitions: int) -> int | None:
        """Say how many partitions it has, unless somebody has; how many were said."""
        self._execute(cursor, _KEEP, [partitions, transaction_id, target])
        earlier = self.read(cursor, transaction_id, target)
        return None if earlier is None else earlier.partitions

    def _execute(self, cursor: Any, statement: str, values: list[Any]) -> Any:
        return cursor.execute(statement.format(table=self.table).replace("?", self.parameter), values)


class PostgreSQLRecords(RecordsTable):
    """In a schema of ours. Whoever meets a name that another transaction has waits for that to end."""

    table = f"{SCHEMA}.writes"
    parameter = "%s"

    def __init__(self) -> None:
        #: Where this process has found the table to be there, and ours.
        self._looked_at: WeakSet[DataSource] = WeakSet()

    @contextmanager
    def opened(self, source: DataSource) -> Iterator[Any]:
        if source not in self._looked_at:
            self._create(source)
            self._require_ours(source)
            self._looked_at.add(source)
        with closing(source.connect()) as connection:
            try:
                yield connection.cursor()
            except psycopg.errors.UndefinedTable:  # dropped since
                self._looked_at.discard(source)
                raise

    def may_be_prepared(self, source: DataSource) -> bool:
        with _outside_pool(source) as connection:
            return bool(connection.cursor().execute(_PREPARED, [f"{PREFIX}:"]).fetchone()[0])

    def read_outside(self, source: DataSource, transaction_id: str, target: str) -> EarlierRun | None:
        with _outside_pool(source) as connection:
            return self.read(connection.cursor(), transaction_id, target)

    def create(self, source: DataSource, cursor: Any) -> None:
        self._create(source)
        # Nothing can be hung on it now. Whose it is another connection sees better: this one's snapshot may be older.
        cursor.execute(f"lock table {self.table} in row exclusive mode")
        self._require_ours(source)

    def _create(self, source: DataSource) -> None:
        with _outside_pool(source) as connection:
            try:
                self._make(connection)
            except MADE_MEANWHILE:  # another was faster, and what he has made is looked at
                self._make(connection)

    def _make(self, connection: Any) -> None:
        cursor = connection.cursor()
        require_schema(cursor, SCHEMA)
        require_relations(cursor, self.table)
        there = "select count(*) from pg_attribute where attrelid = to_regclass(%s) and attname = 'batch'"
        if not cursor.execute(there, [self.table]).fetchone()[0]:
            create_schema(connection)
            create_table(cursor, self.table, _POSTGRESQL)
            cursor.execute(f"alter table {self.table} add column if not exists batch bigint")

    def _require_ours(self, source: DataSource) -> None:
        with _outside_pool(source) as connection:
            cursor = connection.cursor()
            require_relations(cursor, self.table)
            _, said = cursor.execute(_DESCRIBED, [self.table]).fetchone()
            _require_format(self.table, said)

    def insert(self, cursor: Any, record: list[Any], patience: int) -> bool | None:
        # Its text has no quotes in it: a number, and a unit.
        before = f"savepoint txpool_claim; select set_config('lock_timeout', '{patience}', true)"
        (former,) = cursor.execute(f"select current_setting('lock_timeout'); {before}").fetchone()
        try:
            free = super().insert(cursor, record, patience)
        except psycopg.Error as error:
            with suppress(psycopg.Error):  # of a session that is lost
                cursor.execute("rollback to savepoint txpool_claim")
            if isinstance(error, psycopg.errors.LockNotAvailable):
                return None
            raise
        cursor.execute(f"select set_config('lock_timeout', '{former}', true); release savepoint txpool_claim")
        return free


class SQLiteRecords(RecordsTable):
    """Beside the tables. Nobody else has written what is not committed: the transaction has the write lock."""

    table = f"main.{SCHEMA}_writes"
    parameter = "?"

    def create(self, source: DataSource, cursor: Any) -> None:
        # SQLite keeps the statement as it is, and so the number, too.
        cursor.execute(f"create table if not exists {self.table} (/* {FORMAT} */ {_SQLITE})")
        self._is_there(cursor)

    @contextmanager
    def opened(self, source: DataSource) -> Iterator[Any]:
        with closing(source.connect()) as connection:
            cursor = connection.cursor()
            self.create(source, cursor)
            yield cursor

    def may_be_prepared(self, source: DataSource) -> bool:
        return False

    def read_outside(self, source: DataSource, transaction_id: str, target: str) -> EarlierRun | None:
        return None

    def read(self, cursor: Any, transaction_id: str, target: str) -> EarlierRun | None:
        found = super().read(cursor, transaction_id, target) if self._is_there(cursor) else None
        if found is not None:
            self._make_durable(cursor)
        if found is None or found.made_at is None:
            return found
        return replace(found, made_at=datetime.fromisoformat(str(found.made_at)).replace(tzinfo=UTC))

    def _make_durable(self, cursor: Any) -> None:
        """Who has written it may have died before it was synced, and whoever is told of it goes by that.

        It is in the write-ahead log, or there since the journal was emptied, or unlinked, which the folder keeps.
        Neither the file itself nor its -shm is opened: to close that would take SQLite's locks on it away.
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

    def _is_there(self, cursor: Any) -> bool:
        schema, _, name = self.table.partition(".")
        made = cursor.execute(f"select sql from {schema}.sqlite_master where name = ?", [name]).fetchone()  # noqa: S608
        if made is not None:
            _require_format(self.table, made[0])
        return made is not None


def create_table(cursor: Any, table: str, columns: str) -> None:
    """Create one of the tables that a schema of ours keeps, where it is missing; OperationalError for a stranger's."""
    cursor.execute(f"create table if not exists {table} ({columns})")
    require_relations(cursor, table)
    mine, said = cursor.execute(_DESCRIBED, [table]).fetchone()
    _require_format(table, said)
    if mine and said is None:
        cursor.execute(f"comment on table {table} is '{FORMAT}'")


def _require_format(table: str, said: str | None) -> None:
    """What says nothing was made before there was a number, and has the first."""
    found = _SAID.search(said or "")
    if found is not None and found[0] != FORMAT:
        raise NotSupportedError(f"{table} has {found[0]}, and this txpool knows {FORMAT}. Nothing was done")


@contextmanager
def _outside_pool(source: DataSource) -> Iterator[Any]:
    """A connection outside of any transaction, and of the pool, in which those may wait that hold all of its own."""
    with closing(source.driver_adapter.connect()) as raw, translated():
        raw.autocommit = True
        yield raw


RECORDS_TABLES: dict[str, RecordsTable] = {"psycopg": PostgreSQLRecords(), "sqlite3": SQLiteRecords()}
