"""Staging tables: Spark's tasks write rows into them, and Spark's driver moves the rows into the target table.

They are unlogged tables in the schema of txpool's tables. A staging table's name is the gtrid and the write's number,
so that recovery knows to which transaction it belongs. The gtrid's prefix is also the number of the format: tables of
another format are left alone. A crash of the server empties unlogged tables, so the rows are counted when they are
moved.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, LiteralString

import psycopg

from txpool.errors import translate, translated
from txpool.resources import recovery_access
from txpool.resources.driver.driver import Driver
from txpool.resources.postgresql.qualified import qualified
from txpool.resources.postgresql.tables.trust import OUR_ROLES, require_relations, require_schema
from txpool.xid import is_gtrid

if TYPE_CHECKING:
    from txpool.resources.postgresql.session.raw_connection import PsycopgRawConnection

#: The schema of txpool's tables. Another role than the writer may have created it.
SCHEMA = "txpool_spark"
_NAME = re.compile(r"(txp1:[A-Za-z0-9_.-]+:[a-z0-9]+:[0-9a-z]+):([0-9]+)")
# Only tables of trusted owners: any role that may create tables in the schema can use such a name.
_LIST: LiteralString = qualified(
    f"""
    with recursive {OUR_ROLES} select relname::text from pg_class c join pg_namespace n on n.oid = c.relnamespace
    where n.nspname = %(schema)s and c.relkind = 'r' and c.relowner = any (table ours) order by c.oid
"""
)
_HAS_SCHEMA: LiteralString = qualified(f"select to_regnamespace('{SCHEMA}'::text) is not null")

#: The errors of a CREATE while another session creates the same table: which one depends on how far that has come.
MADE_MEANWHILE = (psycopg.errors.DuplicateTable, psycopg.errors.DuplicateObject, psycopg.errors.UniqueViolation)


@dataclass(frozen=True, slots=True)
class PostgreSQLStagingTable:
    """The staging table of one write of a transaction."""

    gtrid: str
    write: int

    @property
    def name(self) -> str:
        """The table's full name, quoted for SQL; without the schema it has at most 63 bytes."""
        return f'{SCHEMA}."{self.gtrid}:{self.write}"'

    @classmethod
    def parse(cls, name: str) -> PostgreSQLStagingTable | None:
        """The staging table of this name; None if the name is not exactly a staging table's."""
        found = _NAME.fullmatch(name)
        if found is None or not is_gtrid(found[1]):
            return None
        return cls(found[1], int(found[2]))


class Staging:
    """The staging tables of one database. Thread-safe: every method opens a connection and closes it.

    `lock_timeout` is how long, in seconds, a drop waits for sessions that still read or write the table. `connect`
    opens the connections in place of the driver: an application's are in the role that its sessions take on, which
    writes and reads the tables.
    """

    def __init__(
        self,
        datasource: str,
        driver: Driver,
        *,
        lock_timeout: float = 5.0,
        connect: Callable[[], Any] | None = None,
    ) -> None:
        self.datasource = datasource
        self._driver = driver
        self._connect = connect or driver.connect
        self._lock_timeout = lock_timeout

    def create(self, table: PostgreSQLStagingTable, columns: Sequence[str]) -> None:
        """Create the table, and the schema if it does not exist; `columns` are column definitions in SQL."""
        with self._session() as raw:
            create_schema(raw, self._driver.roles)
            raw.execute(f"create unlogged table {table.name} ({', '.join(columns)}) with (autovacuum_enabled = off)")

    def ensure(self, table: PostgreSQLStagingTable, columns: Sequence[str]) -> PostgreSQLStagingTable:
        """Create the table, if it does not exist; OperationalError if another role owns the one that does."""
        with suppress(*MADE_MEANWHILE):
            self.create(table, columns)
            return table
        with self._session() as raw:
            require_relations(raw, table.name, roles=self._driver.roles, types=False)
        return table

    def found(self, table: PostgreSQLStagingTable) -> PostgreSQLStagingTable:
        """The staging table that the tasks of a write use: its name says all."""
        return table

    def tables(self) -> list[PostgreSQLStagingTable]:
        """All staging tables of trusted owners."""
        with self._session() as raw:
            parameters = {"schema": SCHEMA, "roles": [*self._driver.roles]}
            found = [PostgreSQLStagingTable.parse(name) for (name,) in raw.execute(_LIST, parameters).fetchall()]
        return [table for table in found if table is not None]

    def drop(self, table: recovery_access.StagingTable) -> None:
        """Drop the table, if it exists."""
        with self._session() as raw:
            raw.execute(f"drop table if exists {table.name}")

    @contextmanager
    def _session(self) -> Iterator[Any]:
        with closing(self._connect()) as raw:
            try:
                with translated():
                    raw.autocommit = True
                    # What is read-only by default may be written by a transaction that says so, and is cleaned up then.
                    write = "set default_transaction_read_only = off"
                    raw.execute(f"set lock_timeout = {int(self._lock_timeout * 1000)}; {write}")
                    yield raw
            except psycopg.Error as error:
                translate(error)
                error.add_note(f"datasource {self.datasource}: staging tables are in its schema {SCHEMA}")
                raise


def create_schema(raw: PsycopgRawConnection, roles: Collection[str] = ()) -> None:
    """Create the schema of txpool's tables, if it does not exist; OperationalError if another role owns it.

    If the role may not create it, the driver's error has a note that says what to do.
    """
    ((exists,),) = raw.execute(_HAS_SCHEMA).fetchall()
    if not exists:
        try:
            raw.execute(f"create schema {SCHEMA}")
        except (psycopg.errors.DuplicateSchema, psycopg.errors.UniqueViolation):
            pass  # another session has created it
        except psycopg.errors.InsufficientPrivilege as error:
            error.add_note(f"Let an administrator create it: create schema {SCHEMA} authorization <this user>")
            raise
    require_schema(raw, SCHEMA, roles=roles)
