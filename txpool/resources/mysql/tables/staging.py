"""Staging tables in MariaDB and MySQL, and the register of them, all in the datasource's database.

Spark's tasks write rows into a staging table, and Spark's driver moves them into the target table. A staging table has
a random name, which is in the register before the table is there, with its transaction. So a table counts only if
somebody who may write the register has named it, and nobody can make one before us.

Staged rows need not outlive the server: if it has crashed, the write fails. So they are kept in MyISAM, which has no
log, and takes a third of the time in MariaDB, and half in MySQL. What a crash leaves of such a table proves nothing,
whatever is counted. But a row in a table of MEMORY, which was there before the first staged row, is gone after any end
of the server.

DDL commits by itself, so a table that a write creates cannot be a part of its transaction. A row names it, which is
deleted within the transaction: while the row is there, the table does not count as created. If the transaction rolls
back, the table is dropped, unless somebody has written into it. These rows have a table without any further index: the
transaction locks its row alone, and keeps no other write waiting.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from txpool.errors import OperationalError, ProgrammingError, translate, translated
from txpool.resources import recovery_access
from txpool.resources.driver.driver import Driver
from txpool.resources.mysql.session.protocol import DriverSession, Session, code_of
from txpool.resources.mysql.tables.own_tables import (
    DENIED,
    INNODB,
    MEMORY,
    NO_TABLE,
    create_table,
    database_of,
    quoted,
    raw_of,
    require_database,
)
from txpool.xid import is_gtrid

if TYPE_CHECKING:
    from txpool.resources.driver.raw import SqlCursor

#: The register of staging tables.
REGISTER: Final = "txpool_spark_staging"
#: The tables that writes have created, and whose transactions have not committed.
CREATED: Final = "txpool_spark_created"
#: The staging tables whose rows end with the server, as these rows do.
LIVING: Final = "txpool_spark_living"
_COLUMNS: Final = """
    id char(24) character set ascii collate ascii_bin primary key,
    gtrid varchar(64) character set ascii collate ascii_bin not null, write_number int not null,
    chosen tinyint, made_at timestamp(6) not null default current_timestamp(6),
    unique key (gtrid, write_number, chosen)
"""
_CREATED_COLUMNS: Final = """
    id char(24) character set ascii collate ascii_bin primary key,
    gtrid varchar(64) character set ascii collate ascii_bin not null, write_number int not null,
    target varbinary(600) not null, made_at timestamp(6) not null default current_timestamp(6)
"""
_LIVING_COLUMNS: Final = """
    id char(24) character set ascii collate ascii_bin primary key, server bigint unsigned not null
"""
PREFIX: Final = "txpool_spark_"
_ID: Final = re.compile("[0-9a-f]{24}")
_ENGINE: Final = re.compile(r"^\) ENGINE=(\w+)", re.M)
_FULL_NAME: Final = re.compile("`(?:[^`]|``)+`[.]`(?:[^`]|``)+`")
_DUPLICATE: Final = 1062
_TABLE_EXISTS: Final = 1050
_ROW: Final = "txpool_row bigint unsigned not null auto_increment primary key"
#: What speaks against another engine than InnoDB: a cluster replicates no other; an administrator allows no other; or
#: no row may be on the disk unencrypted.
_ONLY_INNODB: Final = "select @@wsrep_on or @@enforce_storage_engine is not null or @@innodb_encrypt_tables <> 'OFF'"
#: The same in MySQL, and in what is made of it, which do not have all of these; or each table must have a key.
_ONLY_INNODB_MYSQL: Final = """
    show variables where variable_name in ('group_replication_group_name', 'wsrep_on', 'enforce_storage_engine',
        'default_table_encryption', 'sql_require_primary_key') and value not in ('', 'OFF')
    or variable_name = 'disabled_storage_engines' and (value like '%myisam%' or value like '%memory%')
"""


def _new_id() -> str:
    return secrets.token_hex(12)


@dataclass(frozen=True, slots=True)
class MySQLStagingTable:
    """The staging table of one write of a transaction. Without the register, another process has another name."""

    gtrid: str
    write: int
    id: str = field(default_factory=_new_id)

    @property
    def name(self) -> str:
        """The table's name in the datasource's database, quoted for SQL."""
        return f"`{PREFIX}{self.id}`"


class MySQLStaging:
    """The staging tables of one database. Thread-safe: every method opens a connection and closes it.

    `lock_timeout` is how long, in seconds, a drop waits for sessions that still read or write the table. `connect`
    opens the connections in place of the driver.
    """

    def __init__(
        self, datasource: str, driver: Driver, *, lock_timeout: float = 5.0, connect: Callable[[], Any] | None = None
    ) -> None:
        self.datasource = datasource
        self._connect = connect or driver.connect
        self._lock_timeout = max(1, int(lock_timeout))

    # -- for writes ---------------------------------------------------------------------------------------------

    def create(self, table: MySQLStagingTable, columns: Sequence[str]) -> None:
        """Create the table; `columns` are column definitions in SQL. ProgrammingError if that is not allowed."""
        with self._session() as session, self._explained():
            self._create(session, table, columns)

    def ensure(self, table: MySQLStagingTable, columns: Sequence[str]) -> MySQLStagingTable:
        """The staging table of this write that another process has created, or the one that is created now."""
        with self._session() as session, self._explained():
            create_table(session, REGISTER, _COLUMNS)
            return self._found(session, table) or self._create(session, table, columns)

    def found(self, table: MySQLStagingTable) -> MySQLStagingTable:
        """The staging table that the tasks of this write use. OperationalError if there is none."""
        with self._session() as session:
            found = self._found(session, table)
        if found is None:
            raise OperationalError(
                f"{table.gtrid}: the staging table of write {table.write} is gone from {self.datasource}. Nothing of "
                "the write stays: do it again"
            )
        return found

    def create_target(self, table: MySQLStagingTable, name: str, statement: str) -> str:
        """Create the table that a write is to create. It is there at once, and counts once `keep_target` commits.

        Returns what `keep_target` is given. ProgrammingError if the table exists, or may not be created.
        """
        with self._session() as session, self._explained():
            create_table(session, CREATED, _CREATED_COLUMNS)
            number = _new_id()
            session.run(
                f"insert into {CREATED} (id, gtrid, write_number, target) values ({session.quoted(number)}, "
                f"{session.quoted(table.gtrid)}, {table.write}, {session.quoted(name)})"
            )
            try:
                session.run(statement)
            except Exception as error:
                _forget(session, CREATED, number)
                if code_of(error) == _TABLE_EXISTS:
                    raise ProgrammingError(
                        f"{table.gtrid}: {name} was created in {self.datasource} by others meanwhile. The transaction "
                        "rolls back, and nothing of the write stays: do it again"
                    ) from error
                raise
            return number

    def _create(self, session: DriverSession, table: MySQLStagingTable, columns: Sequence[str]) -> MySQLStagingTable:
        create_table(session, REGISTER, _COLUMNS)
        session.run(
            f"insert into {REGISTER} (id, gtrid, write_number) values ({session.quoted(table.id)}, "
            f"{session.quoted(table.gtrid)}, {table.write})"
        )
        if _needs_no_log(session):
            engine = "myisam"
            create_table(session, LIVING, _LIVING_COLUMNS, engine=MEMORY)
            session.run(f"insert into {LIVING} values ({session.quoted(table.id)}, @@server_id)")
        else:
            engine, columns = "innodb", [_ROW, *columns]
        session.run(
            f"create table {table.name} ({', '.join(columns)}) engine = {engine} "
            f"comment = '{table.gtrid}/{table.write}'"
        )
        try:
            session.run(f"update {REGISTER} set chosen = 1 where id = {session.quoted(table.id)}")
        except Exception as error:
            if code_of(error) != _DUPLICATE:
                raise
            found = self._found(session, table)  # another task was first
            _drop_staging(session, table.id)
            if found is None:
                raise
            return found
        return table

    def _found(self, session: Session, table: MySQLStagingTable) -> MySQLStagingTable | None:
        rows = session.run(
            f"select id from {REGISTER} where gtrid = {session.quoted(table.gtrid)} "
            f"and write_number = {table.write} and chosen = 1"
        )
        return MySQLStagingTable(table.gtrid, table.write, str(rows[0][0])) if rows else None

    # -- for the end of a transaction, and for recovery ---------------------------------------------------------------

    def tables(self) -> list[MySQLStagingTable]:
        """All writes that have staging tables, or tables that they were to create, one for each write."""
        with self._session() as session:
            rows = {
                (str(gtrid), int(write))
                for register in (REGISTER, CREATED)
                for gtrid, write in _read(session, f"select distinct gtrid, write_number from {register}")
            }
        return [MySQLStagingTable(gtrid, write) for gtrid, write in sorted(rows) if is_gtrid(gtrid)]

    def drop(self, table: recovery_access.StagingTable) -> None:
        """Drop what this write has created: its staging tables, and a table that its transaction has not kept."""
        write: int = table.write  # type: ignore[attr-defined]
        with self._session() as session:
            whose = f"where gtrid = {session.quoted(table.gtrid)} and write_number = {write}"
            for (number,) in _read(session, f"select id from {REGISTER} {whose}"):
                _drop_staging(session, str(number))
            for number, target in _read(session, f"select id, target from {CREATED} {whose}"):
                _drop_target(session, str(number), target.decode() if isinstance(target, bytes) else str(target))

    @contextmanager
    def _session(self) -> Iterator[DriverSession]:
        with closing(self._connect()) as raw, translated():
            require_database(raw, self.datasource)
            session: DriverSession = raw.session
            waits = f"lock_wait_timeout = {self._lock_timeout}, innodb_lock_wait_timeout = {self._lock_timeout}"
            session.run(f"set session autocommit = 1, {waits}")
            session.run("set session transaction read write")  # what is read-only by default is cleaned up, too
            raw.autocommit_mode = True
            yield session

    @contextmanager
    def _explained(self) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            translate(error)
            if code_of(error) in DENIED:
                raise ProgrammingError(
                    f"{self.datasource}: {error.args[-1]}: this write needs staging tables in the datasource's "
                    "database: grant create, drop, insert, select, update, delete, lock tables on that database to "
                    "this account. Nothing was done"
                ) from error
            raise


def _needs_no_log(session: DriverSession) -> bool:
    """Whether staged rows may be in a table that no log makes outlive the server."""
    if session.raw.is_mariadb:
        ((only_innodb,),) = session.run(_ONLY_INNODB)
        return str(only_innodb) == "0"
    if session.run(_ONLY_INNODB_MYSQL):
        return False
    ((_, database),) = session.run(f"show create database {quoted(session.raw.database_name)}")
    return "ENCRYPTION='Y'" not in str(database)


def require_kept(cursor: SqlCursor, table: MySQLStagingTable) -> None:
    """OperationalError if a server has crashed, or is another one, since the table was made without a log.

    The cursor's session stays with the server that has answered here: what it reads of the table is what was written.
    """
    if _engine_of(cursor, table) == INNODB:
        return
    cursor.execute(f"select 1 from {database_of(cursor)}.{LIVING} where id = %s and server = @@server_id", [table.id])
    if cursor.fetchone() is None:
        raise OperationalError(
            f"{table.gtrid}: the server has been started anew since tasks began to stage rows, which it does not keep, "
            "or recovery has dropped them. The transaction rolls back, and the table is as it was: do it again"
        )


def _engine_of(cursor: SqlCursor, table: MySQLStagingTable) -> str:
    """The engine of a staging table; empty if it is gone."""
    raw = raw_of(cursor)
    if raw.is_mariadb:  # if sql_mode may take the engine out of SHOW CREATE TABLE
        cursor.execute(
            "select engine from information_schema.tables where table_schema = %s and table_name = %s",
            [raw.database_name, f"{PREFIX}{table.id}"],
        )
        found = cursor.fetchone()
        return "" if found is None else str(found[0])
    # A transaction that has read before sees information_schema as it was then.
    try:
        cursor.execute(f"show create table {database_of(cursor)}.{table.name}")
    except Exception as error:
        if code_of(error) == NO_TABLE:
            return ""
        raise
    *_, engine = _ENGINE.findall(str(cursor.fetchone()[1]))  # an ENUM's labels, which come before it, may look like it
    return str(engine)


def keep_target(cursor: SqlCursor, number: str) -> None:
    """Within the cursor's transaction: the table that `create_target` has created counts, if this commits."""
    cursor.execute(f"delete from {database_of(cursor)}.{CREATED} where id = %s", [number])
    if cursor.rowcount != 1:
        raise OperationalError(
            "recovery has taken the table that this write has created for one that is left. The transaction rolls "
            "back, and nothing of the write stays: do it again"
        )


def creator_of(cursor: SqlCursor, name: str) -> str | None:
    """The transaction that has created the table, and has not committed; None if there is none."""
    try:
        cursor.execute(f"select gtrid from {database_of(cursor)}.{CREATED} where target = %s", [name.encode()])
    except Exception as error:
        if code_of(error) in (NO_TABLE, *DENIED):
            return None
        raise
    found = cursor.fetchone()
    return None if found is None else str(found[0])


def _read(session: Session, statement: str) -> tuple[Any, ...]:
    """The rows that a statement returns; none if there is no such table, or it may not be used."""
    try:
        return session.run(statement)
    except Exception as error:
        if code_of(error) in (NO_TABLE, *DENIED):
            return ()
        raise


def _forget(session: Session, register: str, number: str) -> None:
    session.run(f"delete from {register} where id = {session.quoted(number)}")


def _drop_staging(session: Session, number: str) -> None:
    if _ID.fullmatch(number):
        session.run(f"drop table if exists `{PREFIX}{number}`")
        _read(session, f"delete from {LIVING} where id = {session.quoted(number)}")
        _forget(session, REGISTER, number)


def _drop_target(session: Session, number: str, target: str) -> None:
    """Drop a table whose transaction has not kept it, unless somebody has written into it.

    A branch that is prepared to keep it has locked its row: then the server's error, for a lock that is not given.
    """
    row = f"select 1 from {CREATED} where id = {session.quoted(number)} for update"
    if not _FULL_NAME.fullmatch(target) or not session.run(row):
        return
    try:
        session.run(f"lock tables {target} write, {CREATED} write")
    except Exception as error:
        if code_of(error) != NO_TABLE:
            raise
    else:
        try:
            if not session.run(f"select 1 from {target} limit 1"):
                session.run(f"drop table {target}")
        finally:
            session.run("unlock tables")
    _forget(session, CREATED, number)
