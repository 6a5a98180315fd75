"""The records of work with a transaction_id in MariaDB and MySQL: a table in the datasource's database."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final
from weakref import WeakSet

from txpool.errors import translated
from txpool.resources.mysql.branches import xa
from txpool.resources.mysql.session.protocol import code_of
from txpool.resources.mysql.tables.own_tables import NO_TABLE, create_table, database_of, require_database
from txpool.resources.records import ConnectableDatasource, EarlierRun, RecordsTable

if TYPE_CHECKING:
    from txpool.resources.driver.driver import Driver
    from txpool.resources.driver.raw import SqlCursor

_NAME: Final = "txpool_spark_writes"
_DUPLICATE: Final = 1062
# The key is of bytes: no collation takes two ids for the same.
_COLUMNS: Final = """
    transaction_id varbinary(800) not null, target varbinary(600) not null, gtrid varchar(64) not null,
    mode varchar(64) not null, plan text character set utf8mb4 not null, partitions int, row_count bigint, batch bigint,
    made_at timestamp(6) not null default current_timestamp(6), primary key (transaction_id, target)
"""
_INSERT: Final = (
    "insert into {table} (transaction_id, target, gtrid, mode, plan, batch) values (%s, %s, %s, %s, %s, %s)"
)
# A stream has one row, which each batch updates.
_MOVE_ON: Final = (
    "update {table} set gtrid = %s, mode = %s, plan = %s, batch = %s, partitions = null, row_count = null, "
    "made_at = current_timestamp(6) where transaction_id = %s and target = %s and batch < %s"
)
# With a lock it reads what has been committed last, however old the snapshot of the transaction is.
_READ: Final = (
    "select gtrid, mode, plan, partitions, row_count, batch, unix_timestamp(made_at) from {table} "
    "where transaction_id = %s and target = %s lock in share mode"
)


class MySQLRecords(RecordsTable):
    """The table of records. An INSERT of a key waits for another transaction that has inserted it."""

    table = _NAME
    parameter = "%s"

    def __init__(self) -> None:
        #: The datasources in which this process has found the table, or created it.
        self._checked: WeakSet[ConnectableDatasource] = WeakSet()

    @contextmanager
    def opened(self, source: ConnectableDatasource) -> Iterator[Any]:
        if source not in self._checked:
            self.create(source, None)
            self._checked.add(source)
        with closing(source.connect()) as connection:
            try:
                yield connection.cursor()
            except Exception as error:
                if code_of(error) == NO_TABLE:  # dropped since
                    self._checked.discard(source)
                raise

    def create(self, source: ConnectableDatasource, cursor: SqlCursor | None) -> None:
        with outside_pool(source.driver_adapter) as raw:
            require_database(raw, source.name)
            raw.session.run("set session transaction read write")  # its transaction may write, whatever the default is
            create_table(raw.session, _NAME, _COLUMNS)

    def may_be_prepared(self, source: ConnectableDatasource) -> bool:
        with outside_pool(source.driver_adapter) as raw:
            return bool(xa.listed(raw.session))

    def read_outside(self, source: ConnectableDatasource, transaction_id: str, target: str) -> EarlierRun | None:
        with outside_pool(source.driver_adapter) as raw:
            return self.read(source.driver_adapter.cursor_class(raw), transaction_id, target)  # type: ignore[attr-defined]

    def insert(self, cursor: SqlCursor, record: list[Any], lock_timeout: int) -> bool | None:
        cursor.execute("select @@session.innodb_lock_wait_timeout")
        (former,) = cursor.fetchone()
        self._wait_for(cursor, max(1, lock_timeout // 1000))
        try:
            try:
                self._execute(cursor, _INSERT, record)
            except Exception as error:
                if code_of(error) != _DUPLICATE:
                    raise
                key, (*changed, batch) = record[:2], record[2:]
                if batch is None:
                    return False
                return bool(self._execute(cursor, _MOVE_ON, [*changed, batch, *key, batch], key=4).rowcount)
        except Exception as error:
            if code_of(error) == xa.LOCK_TIMEOUT:  # the statement alone was rolled back
                return None
            raise
        finally:
            with suppress(Exception):  # if the session is lost
                self._wait_for(cursor, former)
        return True

    def read(self, cursor: SqlCursor, transaction_id: str, target: str) -> EarlierRun | None:
        found = self._execute(cursor, _READ, [transaction_id, target]).fetchone()
        if found is None:
            return None
        gtrid, mode, plan, partitions, rows, batch, made = found
        made_at = None if made is None else datetime.fromtimestamp(float(made), UTC)
        return EarlierRun(gtrid, mode, plan, partitions, rows, batch, made_at)

    def finish(self, cursor: SqlCursor, transaction_id: str, target: str, partitions: int, rows: int | None) -> None:
        statement = "update {table} set partitions = %s, row_count = %s where transaction_id = %s and target = %s"
        self._execute(cursor, statement, [partitions, rows, transaction_id, target], key=2)

    def keep(self, cursor: SqlCursor, transaction_id: str, target: str, partitions: int) -> int | None:
        statement = "update {table} set partitions = coalesce(partitions, %s) where transaction_id = %s and target = %s"
        self._execute(cursor, statement, [partitions, transaction_id, target], key=1)
        earlier = self.read(cursor, transaction_id, target)
        return None if earlier is None else earlier.partitions

    def forget(self, cursor: SqlCursor, target: str, seconds: float) -> None:
        cursor.execute(
            f"delete from {database_of(cursor)}.{_NAME} "
            "where target = %s and made_at < current_timestamp(6) - interval %s microsecond",
            [target.encode(), int(seconds * 1_000_000)],
        )

    def _execute(self, cursor: SqlCursor, statement: str, values: list[Any], *, key: int = 0) -> Any:
        """Execute a statement whose values have the record's key at `key`; returns the cursor."""
        bound = [*values]
        bound[key : key + 2] = (str(part).encode() for part in values[key : key + 2])
        cursor.execute(statement.format(table=f"{database_of(cursor)}.{_NAME}"), bound)
        return cursor

    def _wait_for(self, cursor: SqlCursor, seconds: int) -> None:
        """Let statements of the session wait so long for a row's lock."""
        cursor.execute(f"set session innodb_lock_wait_timeout = {int(seconds)}")


@contextmanager
def outside_pool(driver: Driver) -> Iterator[Any]:
    """A connection in autocommit mode that is not of the pool, whose connections may all be in use by waiters."""
    with closing(driver.connect()) as raw, translated():
        raw.session.run("set autocommit = 1")
        raw.autocommit_mode = True
        yield raw
