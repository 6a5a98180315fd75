"""Staging tables: where Spark's tasks put rows that their driver will move, and what is left of dead drivers.

They stand in a schema of ours, are unlogged, and have the name of their write: gtrid and number. So recovery knows
whose each of them is, and of which format: a gtrid of another number does not parse, and is left alone. A server
crash empties them without a word: whoever moves their rows counts them.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from typing import Any, LiteralString

import psycopg

from txpool.errors import translate, translated
from txpool.resources import base
from txpool.resources.driver import Driver
from txpool.resources.postgresql.trust import OUR_ROLES, require_relations, require_schema
from txpool.xid import split_gtrid

#: The schema of all tables that are ours; whoever may create it need not be whoever writes.
SCHEMA = "txpool_spark"
_NAME = re.compile(r"(txp1:[A-Za-z0-9_.-]+:[a-z0-9]+:[0-9a-z]+):([0-9]+)")
# Anybody can give a table such a name, where he may make one there.
_LIST: LiteralString = f"""
    with recursive {OUR_ROLES} select relname::text from pg_class c join pg_namespace n on n.oid = c.relnamespace
    where n.nspname = %(schema)s and c.relkind = 'r' and c.relowner in (table ours) order by c.oid
"""  # noqa: S608 - a constant

#: What CREATE meets of another's, by how far that had come: the table, its row type, or their names in the catalogue.
MADE_MEANWHILE = (psycopg.errors.DuplicateTable, psycopg.errors.DuplicateObject, psycopg.errors.UniqueViolation)


@dataclass(frozen=True, slots=True)
class StagingTable:
    """The staging table of one write of a transaction."""

    gtrid: str
    write: int

    @property
    def name(self) -> str:
        """Its full name, as SQL wants it; at most 63 bytes are its own."""
        return f'{SCHEMA}."{self.gtrid}:{self.write}"'

    @classmethod
    def parse(cls, name: str) -> StagingTable | None:
        """The one that a table's name stands for, or None where it is none of ours to the letter."""
        found = _NAME.fullmatch(name)
        if found is None:
            return None
        try:
            split_gtrid(found[1])
        except ValueError:
            return None
        return cls(found[1], int(found[2]))


class Staging:
    """The staging tables of one database. Thread-safe: every method opens a connection and closes it.

    `lock_timeout` is how long a drop waits, in seconds, for whoever still reads or writes the table.
    """

    def __init__(self, datasource: str, driver: Driver, *, lock_timeout: float = 5.0) -> None:
        self.datasource = datasource
        self._driver = driver
        self._lock_timeout = lock_timeout

    def create(self, table: StagingTable, columns: Sequence[str]) -> None:
        """Create it, and the schema where that is missing; `columns` are declared as SQL has them."""
        with self._session() as raw:
            create_schema(raw, self._driver.roles)
            raw.execute(f"create unlogged table {table.name} ({', '.join(columns)}) with (autovacuum_enabled = off)")

    def ensure(self, table: StagingTable, columns: Sequence[str]) -> None:
        """Create it, unless another has meanwhile; OperationalError where that is none of ours."""
        with suppress(*MADE_MEANWHILE):
            self.create(table, columns)
            return
        with self._session() as raw:
            require_relations(raw, table.name, roles=self._driver.roles, types=False)

    def tables(self) -> list[StagingTable]:
        """All that are there, and ours."""
        with self._session() as raw:
            asked = {"schema": SCHEMA, "roles": [*self._driver.roles]}
            found = [StagingTable.parse(name) for (name,) in raw.execute(_LIST, asked).fetchall()]
        return [table for table in found if table is not None]

    def drop(self, table: base.StagingTable) -> None:
        """Drop it, where it is still there."""
        with self._session() as raw:
            raw.execute(f"drop table if exists {table.name}")

    @contextmanager
    def _session(self) -> Iterator[Any]:
        with closing(self._driver.connect()) as raw:
            try:
                with translated():
                    raw.autocommit = True
                    raw.execute(f"set lock_timeout = {int(self._lock_timeout * 1000)}")
                    yield raw
            except psycopg.Error as error:
                translate(error)
                error.add_note(f"datasource {self.datasource}: staging tables are in its schema {SCHEMA}")
                raise


def create_schema(raw: Any, roles: Collection[str] = ()) -> None:
    """Create the schema of our own tables; whoever may not, is told what to do. OperationalError for a stranger's."""
    (there,) = raw.execute(f"select to_regnamespace('{SCHEMA}') is not null").fetchone()
    if not there:
        try:
            raw.execute(f"create schema {SCHEMA}")
        except (psycopg.errors.DuplicateSchema, psycopg.errors.UniqueViolation):
            pass  # another was faster
        except psycopg.errors.InsufficientPrivilege as error:
            error.add_note(f"Let somebody who may create it for you: create schema {SCHEMA} authorization <this user>")
            raise
    require_schema(raw, SCHEMA, roles=roles)
