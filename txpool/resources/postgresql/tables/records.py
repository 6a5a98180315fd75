"""The records of work with a transaction_id in PostgreSQL: a table in the schema of txpool's tables."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from typing import TYPE_CHECKING, Any, LiteralString
from weakref import WeakSet

import psycopg

from txpool.errors import translated
from txpool.resources.postgresql.qualified import qualified, spelled
from txpool.resources.postgresql.tables.staging import MADE_MEANWHILE, SCHEMA, create_schema
from txpool.resources.postgresql.tables.trust import require_relations, require_schema
from txpool.resources.records import FORMAT, ConnectableDatasource, EarlierRun, RecordsTable, require_format
from txpool.xid import PREFIX

if TYPE_CHECKING:
    from txpool.resources.driver.driver import Driver
    from txpool.resources.driver.raw import SqlCursor

_PREPARED: LiteralString = qualified(
    "select exists (select from pg_prepared_xacts where database = current_database() and starts_with(gid, %s::text))"
)
_DESCRIBED: LiteralString = qualified(
    "select pg_has_role(relowner, 'usage'), obj_description(oid, 'pg_class') from pg_class where oid = to_regclass(%s)"
)
_HAS_BATCH: LiteralString = qualified(
    "select count(*) from pg_attribute where attrelid = to_regclass(%s) and attname = 'batch'"
)
_LOCK_TIMEOUT: LiteralString = qualified("select current_setting('lock_timeout')")
_SET_LOCK_TIMEOUT: LiteralString = qualified("select set_config('lock_timeout', '{}', true)")
_COLUMNS = qualified("""
    transaction_id pg_catalog.text, target pg_catalog.text, gtrid pg_catalog.text not null,
    mode pg_catalog.text not null, plan pg_catalog.text not null, partitions integer, row_count bigint,
    made_at pg_catalog.timestamptz not null default now(), batch bigint, primary key (transaction_id, target)
""")


class PostgreSQLRecords(RecordsTable):
    """The table of records in PostgreSQL. An INSERT of a key waits for another transaction that has inserted it."""

    table = f"{SCHEMA}.writes"
    parameter = "%s"
    ago = "(now() - make_interval(0, 0, 0, 0, 0, 0, ?))"

    def __init__(self) -> None:
        #: The datasources whose table this process has checked: it exists, and its owner is trusted.
        self._checked: WeakSet[ConnectableDatasource] = WeakSet()

    @contextmanager
    def opened(self, source: ConnectableDatasource) -> Iterator[Any]:
        if source not in self._checked:
            create_outside_pool(source, self._create_over)
            self._require_ours(source)
            self._checked.add(source)
        with closing(source.connect()) as connection:
            try:
                yield connection.cursor()
            except psycopg.errors.UndefinedTable:  # dropped since
                self._checked.discard(source)
                raise

    def may_be_prepared(self, source: ConnectableDatasource) -> bool:
        with outside_pool(source.driver_adapter) as connection:
            return bool(connection.cursor().execute(_PREPARED, [f"{PREFIX}:"]).fetchone()[0])

    def read_outside(self, source: ConnectableDatasource, transaction_id: str, target: str) -> EarlierRun | None:
        with outside_pool(source.driver_adapter) as connection:
            return self.read(connection.cursor(), transaction_id, target)

    def create(self, source: ConnectableDatasource, cursor: SqlCursor) -> None:
        create_outside_pool(source, self._create_over)
        # The lock keeps others from changing the table. Another connection checks its owner: this snapshot may be old.
        cursor.execute(f"lock table {self.table} in row exclusive mode")
        self._require_ours(source)

    def _create_over(self, connection: Any) -> None:
        cursor = connection.cursor()
        require_schema(cursor, SCHEMA)
        require_relations(cursor, self.table)
        if not cursor.execute(_HAS_BATCH, [self.table]).fetchone()[0]:
            cursor.execute("set default_transaction_read_only = off")  # its transaction may write in spite of that
            create_schema(connection)
            create_table(cursor, self.table, _COLUMNS)
            cursor.execute(f"alter table {self.table} add column if not exists batch bigint")

    def _require_ours(self, source: ConnectableDatasource) -> None:
        with outside_pool(source.driver_adapter) as connection:
            cursor = connection.cursor()
            require_relations(cursor, self.table)
            _, description = cursor.execute(_DESCRIBED, [self.table]).fetchone()
            require_format(self.table, description)

    def insert(self, cursor: SqlCursor, record: list[Any], lock_timeout: int) -> bool | None:
        # The former value needs no escaping: it is a number and a unit.
        before = f"savepoint txpool_claim; {_SET_LOCK_TIMEOUT.format(lock_timeout)}"
        (former,) = cursor.execute(f"{_LOCK_TIMEOUT}; {before}").fetchone()
        try:
            free = super().insert(cursor, record, lock_timeout)
        except psycopg.Error as error:
            with suppress(psycopg.Error):  # if the session is lost
                cursor.execute("rollback to savepoint txpool_claim")
            if isinstance(error, psycopg.errors.LockNotAvailable):
                return None
            raise
        cursor.execute(f"{_SET_LOCK_TIMEOUT.format(former)}; release savepoint txpool_claim")
        return free

    def _execute(self, cursor: SqlCursor, statement: str, values: list[Any]) -> Any:
        return cursor.execute(spelled(self._statement(statement)), values)


def create_table(cursor: SqlCursor, table: str, columns: str) -> None:
    """Create a table in the schema of txpool's tables, if it does not exist.

    OperationalError if another role owns it; NotSupportedError if a later version has written it.
    """
    cursor.execute(f"create table if not exists {table} ({columns})")
    require_relations(cursor, table)
    owned, description = cursor.execute(_DESCRIBED, [table]).fetchone()
    require_format(table, description)
    if owned and description is None:
        cursor.execute(f"comment on table {table} is '{FORMAT}'")


def create_outside_pool(source: ConnectableDatasource, create: Callable[[Any], None]) -> None:
    """Have `create(connection)` make a table, or check the one that another process has made meanwhile."""
    with outside_pool(source.driver_adapter) as connection:
        try:
            create(connection)
        except MADE_MEANWHILE:
            create(connection)


@contextmanager
def outside_pool(driver: Driver) -> Iterator[Any]:
    """A connection in autocommit mode that is not of the pool, whose connections may all be in use by waiters."""
    with closing(driver.connect()) as raw, translated():
        raw.autocommit = True
        yield raw
