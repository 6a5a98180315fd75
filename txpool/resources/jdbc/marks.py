"""Tables of marks over JDBC: in PostgreSQL, MariaDB, MySQL, H2 and Derby. Of other databases no table is proven.

A row's key for `commit_row` is its gtrid. Finished rows are not deleted with it, but in batches of their own.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, ClassVar, Final

from txpool.errors import OperationalError, described
from txpool.findings.marks import IS_MARK
from txpool.resources.base import Refused
from txpool.resources.driver.driver import Driver
from txpool.resources.driver.marks import IDENTITY, AbortRecorded, Marks, Statement, WrongTable
from txpool.resources.jdbc.dbapi.errors import IntegrityError, call
from txpool.resources.mysql.tables.marks import MySQLStatements, looking_up, require_durable
from txpool.resources.postgresql.qualified import qualified, spelled
from txpool.resources.postgresql.tables import trust
from txpool.resources.postgresql.tables.marks import QUALIFIED_NAME

if TYPE_CHECKING:
    from txpool.resources.jdbc.session import XaConnection

_READ_COMMITTED: Final = 2  # java.sql.Connection.TRANSACTION_READ_COMMITTED
#: Derby: a lock could not be had in time.
_LOCKED: Final = ("40XL1", "40XL2")
_IF_NOT_EXISTS: Final = "create table if not exists"
_TYPES: Final = ("TABLE", "BASE TABLE")
_COLUMNS: Final = (
    "xid varchar({key}) not null primary key, transaction_manager_id varchar(64) not null, "
    "action_uid varchar(64) not null, kind varchar(6) not null check (kind = 'commit' or kind = 'abort'), "
    "branches {text} not null, confirmed integer default 0 not null, made_at {made_at}"
)


class JdbcMarks(Marks):
    """What the databases share. A table's name is looked up as the driver's metadata has it."""

    parameter = "?"
    made_at_type = "timestamp default current_timestamp not null"
    #: The SQL condition that a row is a mark or a tombstone.
    is_mark: ClassVar[str] = IS_MARK
    #: How the statement that creates the table begins.
    creates: ClassVar[str] = "create table"

    def create(self, table: str, key_length: int = 64) -> str:
        columns = _COLUMNS.format(key=key_length, text=self.text_type, made_at=self.made_at_type)
        return f"{self.creates} {table} ({columns})"

    def qualified_name(self, raw: XaConnection, table: str) -> str | None:
        found = self._found(raw, table)
        return None if found is None else ".".join(map(_quoted, found))

    def _found(self, raw: XaConnection, table: str) -> tuple[str, str] | None:
        """The schema and the name of a table, as the catalogue spells them."""
        metadata = call(raw.java.getMetaData)
        schema, _, name = table.rpartition(".")
        schema = _folded(metadata, schema) if schema else str(call(raw.java.getSchema))
        rows = call(metadata.getTables, None, schema, None, None)
        try:
            wanted = _folded(metadata, name)
            while call(rows.next):
                kind = str(call(rows.getString, "TABLE_TYPE"))
                if kind in _TYPES and str(call(rows.getString, "TABLE_NAME")) == wanted:
                    return schema, wanted
        finally:
            call(rows.close)
        return None

    def require_ours(self, raw: XaConnection, table: str, roles: Collection[str], *, writes: bool) -> None:
        """Nothing: the grants on the table say who may write it."""

    def is_sole_writer(self, raw: XaConnection) -> bool:
        return False

    def database_identity(self, raw: XaConnection) -> str:
        return str(raw.identity)

    def mark(
        self,
        raw: XaConnection,
        table: str,
        row: dict[str, str],
        delete: Sequence[str],
        *,
        identity: str,
        until: float | None,
    ) -> tuple[str, list[str]]:
        if raw.lost:
            raise Refused("the row was not written: the connection was lost")
        raw.database.require_begun(raw)
        raw.may_have_committed = False
        raw.database.begin_again(raw)
        if identity and raw.marks_identity != identity:
            look = f"select 1 from {table} where xid = ? and action_uid = ?"
            if not raw.run(self.spelled(look), [IDENTITY, identity]).fetchall():
                raise WrongTable
            raw.marks_identity = identity
        try:
            raw.run(self._plain_insert(table, row), [*row.values()]).close()
        except IntegrityError as error:
            raise AbortRecorded from error
        self.require_durable(raw)
        return row["xid"], []

    def require_durable(self, raw: XaConnection) -> None:
        """See to it that the COMMIT will be durable. ProgrammingError if that cannot be."""

    def commit_row(self, raw: XaConnection, table: str, row: str, branches: str) -> None:
        if raw.lost:
            raise Refused("COMMIT was not sent: the connection was lost before it")
        try:
            raw.database.require_begun(raw)
            changed = raw.run(self.spelled(f"update {table} set branches = ? where xid = ?"), [branches, row])
            whole = raw.run(self.spelled(f"select branches from {table} where xid = ?"), [row]).fetchall()
        except Refused:
            raise
        except Exception as error:
            raise Refused(f"COMMIT was not sent: {described(error)}") from error
        if changed.rowcount != 1 or [str(text) for (text,) in whole] != [branches]:
            raise Refused(f"COMMIT was not sent: the row in {table} is not as it was written")
        changed.close()
        raw.commit_durably()

    def begin(self, raw: XaConnection, lock_timeout: float, *, writes: bool) -> None:
        raw.autocommit = False
        raw.isolation = _READ_COMMITTED
        raw.read_only = False
        self.wait_for_locks(raw, lock_timeout)
        raw.database.begin(raw)
        self.require_durable(raw)

    def wait_for_locks(self, raw: XaConnection, seconds: float) -> None:
        """Let the session wait so long for a lock."""


class JdbcPostgreSQLMarks(JdbcMarks):
    """As over psycopg: only a table is used that trusted roles own."""

    made_at_type = qualified("pg_catalog.timestamptz default now() not null")
    text_type = "pg_catalog.text"
    creates = _IF_NOT_EXISTS
    spelled = staticmethod(spelled)
    is_mark = IS_MARK.replace(" like ", " ~~ ")

    def qualified_name(self, raw: XaConnection, table: str) -> str | None:
        rows = raw.run(QUALIFIED_NAME.format("?"), [table]).fetchall()
        return str(rows[0][0]) if rows else None

    def delete(self, driver: Driver, raw: XaConnection, table: str, keys: Sequence[str]) -> None:
        these = ", ".join("?" * len(keys))
        driver.execute(raw, self.spelled(f"delete from {table} where xid = any (array[{these}])"), keys)

    def require_ours(self, raw: XaConnection, table: str, roles: Collection[str], *, writes: bool) -> None:
        cursor = _NamedParameters(raw)
        (trust.require_locked if writes else trust.require_relations)(cursor, table, roles=roles)

    def require_durable(self, raw: XaConnection) -> None:
        raw.run("set local synchronous_commit = on").close()

    def wait_for_locks(self, raw: XaConnection, seconds: float) -> None:
        raw.changed = True
        raw.run(f"set lock_timeout = {max(1, int(seconds * 1000))}").close()


class _NamedParameters:
    """A cursor for statements of psycopg's parameter style: the values are written into the text."""

    def __init__(self, raw: XaConnection) -> None:
        self._raw = raw

    def execute(self, statement: str, parameters: dict[str, Any] | None = None) -> Any:
        for name, value in (parameters or {}).items():
            statement = statement.replace(f"%({name})s", _literal(value))
        return self._raw.run(statement.replace("%%", "%"))


def _literal(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list):
        return f"array[{', '.join(map(_literal, value))}]"
    return "'" + str(value).replace("'", "''") + "'"


class MariaDBMarks(MySQLStatements, JdbcMarks):
    """As over Python's drivers: only if COMMIT is durable."""

    def _look_up(self, raw: XaConnection, schema: str, name: str) -> Sequence[Any]:
        names = [schema, name] if schema else [name]
        rows: Sequence[Any] = raw.run(looking_up("?" if schema else "", "?"), names).fetchall()
        return rows

    def database_identity(self, raw: XaConnection) -> str:
        return f"{raw.identity}/{call(raw.java.getCatalog) or ''}" if raw.identity else ""

    def require_durable(self, raw: XaConnection) -> None:
        ((flush, binary_log, sync),) = raw.run(
            "select @@innodb_flush_log_at_trx_commit, @@log_bin, @@sync_binlog"
        ).fetchall()
        require_durable(int(flush), "ON" if str(binary_log) in ("1", "True", "ON") else "OFF", int(sync))

    def delete(self, driver: Driver, raw: XaConnection, table: str, keys: Sequence[str]) -> None:
        for key in keys:  # one at a time: see `txpool.resources.mysql.tables.marks`
            raw.run(f"delete from {table} where xid = ?", [key]).close()

    def wait_for_locks(self, raw: XaConnection, seconds: float) -> None:
        raw.changed = True
        raw.run(f"set session innodb_lock_wait_timeout = {max(1, int(seconds))}").close()


class InsertingMarks(JdbcMarks):
    """An INSERT waits for a row of its key whose transaction is open, and fails if that commits."""

    def put_tombstone(self, table: str, row: dict[str, str]) -> Statement:
        return self._plain_insert(table, row), [*row.values()]

    def put_identity(self, table: str, row: dict[str, str], former: str) -> Statement:
        return self._plain_insert(table, row), [*row.values()]

    def write_tombstone(self, execute: Callable[..., Any], table: str, row: dict[str, str]) -> None:
        try:
            execute(*self.put_tombstone(table, row))
        except IntegrityError:
            execute(f"update {table} set confirmed = confirmed + 1 where xid = ?", [row["xid"]])

    def write_identity(self, execute: Callable[..., Any], table: str, row: dict[str, str], former: str) -> None:
        try:
            execute(*self.put_identity(table, row, former))
        except IntegrityError:
            change = f"update {table} set action_uid = ?, branches = ? where xid = ? and action_uid = ?"
            execute(change, [row["action_uid"], row["branches"], row["xid"], former])


class H2Marks(InsertingMarks):
    """A table of marks in H2. Only an administrator may do `checkpoint sync`, after which a COMMIT is on the disk."""

    creates = _IF_NOT_EXISTS
    text_type = "character large object"

    def wait_for_locks(self, raw: XaConnection, seconds: float) -> None:
        raw.changed = True
        raw.run(f"set lock_timeout {max(1, int(seconds * 1000))}").close()


class DerbyMarks(InsertingMarks):
    """A table of marks in Derby. How long a tombstone waits for a lock is Derby's to say: derby.locks.waitTimeout."""

    text_type = "clob(64M)"

    def read_rows(self, execute: Callable[..., Any], table: str) -> list[Any]:
        # Derby has no snapshots: who reads waits for a row whose transaction is open. Such a row is no decision yet.
        rows: list[Any] = []
        for (key,) in execute(f"select xid from {table} with ur").fetchall():
            row = "select xid, transaction_manager_id, kind, branches from {} where xid = ? with cs"
            try:
                rows += execute(row.format(table), [key]).fetchall()
            except OperationalError as error:
                if getattr(error, "sqlstate", "") not in _LOCKED:
                    raise
        return rows


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _folded(metadata: Any, name: str) -> str:
    """A name without quotes, as the catalogue has it."""
    with suppress(AttributeError):
        if call(metadata.storesUpperCaseIdentifiers):
            return name.upper()
        if call(metadata.storesLowerCaseIdentifiers):
            return name.lower()
    return name
