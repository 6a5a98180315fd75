"""A table of marks in MariaDB and MySQL."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Any, Final

from txpool.errors import ProgrammingError, described
from txpool.resources.base import Refused
from txpool.resources.driver.driver import Driver
from txpool.resources.driver.marks import IDENTITY, AbortRecorded, Marks, Statement, WrongTable
from txpool.resources.mysql.branches import xa
from txpool.resources.mysql.dialect import RELEASE, SET_SAVEPOINT, MySQLDialect, require_released
from txpool.resources.mysql.session.protocol import Session

if TYPE_CHECKING:
    from txpool.resources.driver.raw import RawConnection
    from txpool.resources.mysql.session.state import MySQLRawConnection

_DIALECT: Final = MySQLDialect()
_DUPLICATE: Final = 1062
_DURABLE: Final = "select @@innodb_flush_log_at_trx_commit, @@log_bin, @@sync_binlog, @@session.sql_mode"


class MySQLStatements(Marks):
    """The SQL of a table of marks in MariaDB and MySQL, over any driver. Its engine must be InnoDB."""

    made_at_type = "timestamp not null default current_timestamp"

    def create(self, table: str, key_length: int = 64) -> str:
        return (
            f"create table if not exists {table} "
            f"(xid varchar({key_length}) character set ascii collate ascii_bin primary key, "
            "transaction_manager_id varchar(64) not null, action_uid varchar(64) not null, "
            "kind varchar(6) not null check (kind in ('commit', 'abort')), branches mediumtext not null, "
            f"confirmed integer not null default 0, made_at {self.made_at_type}) engine = innodb"
        )

    def put_tombstone(self, table: str, row: dict[str, str]) -> Statement:
        return f"{self._plain_insert(table, row)} on duplicate key update confirmed = confirmed + 1", [*row.values()]

    def put_identity(self, table: str, row: dict[str, str], former: str) -> Statement:
        # Assignments are made from left to right: action_uid comes last, since the others look at it.
        same = f"action_uid = {self.parameter}"
        change = f"branches = if({same}, values(branches), branches)"
        change += f", action_uid = if({same}, values(action_uid), action_uid)"
        return f"{self._plain_insert(table, row)} on duplicate key update {change}", [*row.values(), former, former]

    def qualified_name(self, raw: RawConnection, table: str) -> str | None:
        schema, _, name = table.rpartition(".")
        rows = self._look_up(raw, schema, name)
        if not rows:
            return None
        found_schema, found, engine = rows[0]
        if str(engine).lower() != "innodb":
            raise ProgrammingError(
                f"the table of marks {found_schema}.{found} is of the engine {engine}, in which no COMMIT is a "
                f"decision: ALTER TABLE `{found_schema}`.`{found}` ENGINE = InnoDB. Nothing is committed"
            )
        return f"`{found_schema}`.`{found}`"

    @abstractmethod
    def _look_up(self, raw: RawConnection, schema: str, name: str) -> Sequence[Any]:
        """Execute `looking_up`."""


class MySQLMarks(MySQLStatements):
    """The table of marks over Python's drivers; a row's key for `commit_row` is its gtrid."""

    parameter = "%s"

    def _look_up(self, raw: MySQLRawConnection, schema: str, name: str) -> Sequence[Any]:
        quoted = raw.session.quoted
        rows: Sequence[Any] = raw.session.run(looking_up(quoted(schema) if schema else "", quoted(name)))
        return rows

    def require_ours(self, raw: MySQLRawConnection, table: str, roles: Collection[str], *, writes: bool) -> None:
        """Nothing: a table has no owner here. The grants on it say who may write it, and `txpool check` shows them."""

    def is_sole_writer(self, raw: MySQLRawConnection) -> bool:
        return False

    def database_identity(self, raw: MySQLRawConnection) -> str:
        return f"{raw.identity}/{raw.database_name}" if raw.identity else ""

    def mark(
        self,
        raw: MySQLRawConnection,
        table: str,
        row: dict[str, str],
        delete: Sequence[str],
        *,
        identity: str,
        until: float | None,
    ) -> tuple[str, list[str]]:
        session = raw.session
        if not session.is_alive():
            raise Refused("the row was not written: the connection was lost")
        if raw.unrollable:
            raise Refused("a table without transactions was written, which no rollback undoes")
        literals = ", ".join(map(session.quoted, row.values()))
        unchecked = bool(identity) and raw.marks_identity != identity
        # All commands travel together. If the program has switched autocommit on, its transaction is gone, as
        # RELEASE says, and the row would be a decision at once.
        condition = "from dual where @@session.autocommit = 0"
        if unchecked:
            condition = (
                f"from {table} where xid = {session.quoted(IDENTITY)} and action_uid = {session.quoted(identity)} "
                "and @@session.autocommit = 0"
            )
        session.send(
            RELEASE,
            _DURABLE,
            f"insert into {table} ({', '.join(row)}) select {literals} {condition}",
            *_deletes(session, table, delete),
            f"show create table {table}",
            SET_SAVEPOINT,
        )
        released, durable, inserted, *others = session.receive(until)
        require_released(raw, released)
        if inserted.code == _DUPLICATE:
            raise AbortRecorded from inserted.error
        for answer in (durable, inserted, *others):
            if answer.error is not None:
                if answer.code in xa.WHOLE_ROLLED_BACK:  # the savepoint is gone with it, and not by the program
                    raw.rolled_back = raw.rolled_back or str(answer.error)
                raise answer.error
        if not inserted.affected:
            raise WrongTable
        *settings, sql_mode = durable.rows[0]
        require_durable(*settings)
        raw.strict = "STRICT_" in str(sql_mode)
        if _is_temporary(others[-2].rows):
            raise Refused("a temporary table hides the table of marks: give it another name")
        raw.marks_identity = identity
        return row["xid"], [*delete]

    def commit_row(self, raw: MySQLRawConnection, table: str, row: str, branches: str) -> None:
        session = raw.session
        if not session.is_alive():
            raise Refused("COMMIT was not sent: the connection was lost before it")
        key = f"xid = {session.quoted(row)}"
        # Without a strict sql_mode, a value that is too long is cut, and only a warning says so.
        look = f"select 1 from {table} where {key} and length(branches) = {len(branches.encode())}"
        try:
            session.send(
                RELEASE,
                f"update {table} set branches = {session.quoted(branches)} where {key}",
                *(() if raw.strict else (look,)),
            )
            released, updated, *whole = session.receive()
        except Exception as error:
            raise Refused(f"COMMIT was not sent: {described(error)}") from error
        require_released(raw, released)
        raw.begun = False  # it is known now, and a rollback need not ask again
        if updated.error is not None:
            raise Refused(f"COMMIT was not sent: {described(updated.error)}") from updated.error
        if whole and not whole[0].rows:
            raise Refused(
                f"COMMIT was not sent: the columns of {table} are too short for the row, and the session's sql_mode "
                f"cuts what is too long: ALTER TABLE {table} MODIFY branches mediumtext, MODIFY xid varchar(64)"
            )
        _DIALECT.commit(raw)

    def delete(self, driver: Driver, raw: MySQLRawConnection, table: str, keys: Sequence[str]) -> None:
        raw.session.send(*_deletes(raw.session, table, keys))
        for answer in raw.session.receive():
            if answer.error is not None:
                raise answer.error

    def begin(self, raw: MySQLRawConnection, lock_timeout: float, *, writes: bool) -> None:
        for statement in (
            f"set session innodb_lock_wait_timeout = {max(1, int(lock_timeout))}",
            "set session transaction isolation level read committed, read write",  # also for what follows DDL
            "start transaction",
        ):
            raw.session.run(statement)


def looking_up(schema: str, name: str) -> str:
    """The statement that finds a table, and its engine. Both are literals or parameters; no schema is the session's."""
    return (
        "select table_schema, table_name, engine from information_schema.tables "
        f"where table_schema = {schema or 'database()'} and table_name = {name}"
    )


def require_durable(flush: object, binary_log: object, sync: object) -> None:
    """ProgrammingError if a COMMIT does not survive a crash: the server's settings can change at any time."""
    if str(flush) != "1":
        why = f"innodb_flush_log_at_trx_commit = {flush}"
    elif str(binary_log) in ("1", "ON") and str(sync) != "1":
        why = f"log_bin = ON with sync_binlog = {sync}"
    else:
        return
    raise ProgrammingError(f"{why} does not survive a crash, and a mark must: set it to 1. Nothing is committed")


def is_hidden(raw: MySQLRawConnection, table: str) -> bool:
    """Whether a temporary table of this session hides the table. Asked only if the session was changed."""
    return raw.changed and _is_temporary(raw.session.run(f"show create table {table}"))


def _is_temporary(created: Sequence[Any]) -> bool:
    # It hides the table of its name, also behind a qualified name, and no COMMIT keeps its rows.
    return str(created[0][1]).lower().startswith("create temporary")


def _deletes(session: Session, table: str, keys: Sequence[str]) -> list[str]:
    # One for each row: for many keys the server reads the whole table, and waits for rows that are not committed.
    return [f"delete from {table} where xid = {session.quoted(key)}" for key in keys]
