"""Reads the description of the table to write to, outside of any transaction, so that it is what tasks will see."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from contextvars import Context
from typing import TYPE_CHECKING, LiteralString

import psycopg

from txpool.datasource import DataSource
from txpool.errors import NotSupportedError, ProgrammingError
from txpool.resources.base import Role
from txpool.resources.postgresql.qualified import qualified
from txpool.spark.table.target import Target, create_statement
from txpool.spark.types.columns import Column

if TYPE_CHECKING:
    from txpool.dbapi.connection import PEP249Connection
    from txpool.dbapi.cursor import PEP249Cursor

_TABLE: LiteralString = qualified(
    """
    select c.oid, format('%%I.%%I', n.nspname, c.relname), c.relkind::text, has_any_column_privilege(c.oid, 'insert'),
        row_security_active(c.oid)
    from pg_class c join pg_namespace n on n.oid = c.relnamespace where c.oid = to_regclass(%s)
"""
)
# The type of a domain is its base type. The type modifier of a numeric has its scale in eleven bits, with a sign; that
# of a text is its length and 4; that of a time or an interval, its digits below a second.
_COLUMNS: LiteralString = qualified(
    """
    with recursive base(attnum, oid, typmod) as (
        select attnum, atttypid, atttypmod from pg_attribute where attrelid = %(table)s and attnum > 0
        union all
        select b.attnum, t.typbasetype, t.typtypmod from base b join pg_type t on t.oid = b.oid where t.typtype = 'd'
    )
    select a.attname::text, format_type(a.atttypid, a.atttypmod), coalesce(e.typname, t.typname)::text,
        coalesce(e.oid, t.oid)::int8, e.oid is not null, coalesce(e.typtype, t.typtype) = 'e',
        case when coalesce(e.typname, t.typname) = 'numeric' and b.typmod > 3
            then (((b.typmod - 4) & 2047) # 1024) - 1024
            when coalesce(e.typname, t.typname) = any (array['time', 'timestamp', 'timestamptz', 'interval']::name[])
                and b.typmod >= 0
            then b.typmod end,
        a.attnotnull and not a.atthasdef and a.attidentity = '', a.attgenerated <> '',
        case when coalesce(e.typname, t.typname) = any (array['varchar', 'bpchar']::name[]) and b.typmod > 4
            then b.typmod - 4 end
    from pg_attribute a join base b on b.attnum = a.attnum join pg_type t on t.oid = b.oid and t.typtype <> 'd'
        left join pg_type e on t.typcategory = 'A' and e.oid = t.typelem
    where a.attrelid = %(table)s and not a.attisdropped order by a.attnum
"""
)
_KEYS: LiteralString = qualified(
    """
    select array_agg(a.attname::text) from pg_index i
        join pg_attribute a on a.attrelid = i.indrelid and a.attnum = any (i.indkey[0:i.indnkeyatts - 1])
    where i.indrelid = %s and i.indisunique and i.indisvalid and i.indimmediate
        and i.indpred is null and i.indexprs is null
    group by i.indexrelid
"""
)
_PARSED: LiteralString = qualified("select parse_ident(%s), current_schema()")
_FULL_NAME: LiteralString = qualified("select format('%%I.%%I', %s::text, %s::text)")
_IS_LOCKED: LiteralString = qualified(
    "select count(*) from pg_locks where pid = pg_backend_pid() and locktype = 'relation' and granted "
    "and relation = to_regclass(%s) and mode <> 'AccessShareLock' and mode <> 'RowShareLock'"
)
#: In bytes.
_LONGEST_NAME = 63
_KINDS = {"v": "a view", "m": "a materialized view", "f": "a foreign table", "S": "a sequence"}


def read_target(
    datasource: DataSource,
    table: str,
    new: Sequence[tuple[str, str]] | None = None,
    keys: Sequence[str] = (),
    *,
    created_by: str = "create=True",
    gtrid: str = "",
) -> Target:
    """Describe the table, or for a missing one what it would be with the columns `new`; nothing stays.

    `created_by` is how the caller's user has a missing table created, for the error.

    Errors: ProgrammingError if the table is missing and `new` is None, or if the user may not write to it;
    NotSupportedError if it is a view or the like.
    """
    try:
        return Context().run(_read_target, datasource, table, new, keys, created_by)
    except psycopg.errors.InsufficientPrivilege as error:
        raise ProgrammingError(
            f"{datasource.name}: {str(error).splitlines()[0]}, for {table}: grant usage on its schema to that user, "
            "and create if the table is to be created. Nothing was done."
        ) from error


def _read_target(
    datasource: DataSource, table: str, new: Sequence[tuple[str, str]] | None, keys: Sequence[str], created_by: str
) -> Target:
    # Closing the connection rolls back the table that may have been created to describe it.
    with closing(datasource.connect()) as connection:
        cursor = connection.cursor()
        if len(table.encode()) > _LONGEST_NAME:
            _require_whole(cursor, table)
        found = cursor.execute(_TABLE, [table]).fetchone()
        exists = found is not None
        if not exists:
            name = _full_name(cursor, table)
            if new is None:
                raise ProgrammingError(
                    f"there is no table {name} in {datasource.name}: name an existing table, or create it by "
                    f"{created_by}. Nothing was done."
                )
            cursor.execute(create_statement(name, new, keys))
            found = cursor.execute(_TABLE, [name]).fetchone()
        oid, name, kind, allowed, row_security = found
        if kind not in ("r", "p"):
            raise NotSupportedError(
                f"{name} in {datasource.name} is {_KINDS.get(kind, 'not a table')}: name the table behind it"
            )
        if not allowed:
            raise ProgrammingError(f"the user of {datasource.name} may not write to {name}: grant insert on {name}")
        found = cursor.execute(_COLUMNS, {"table": oid}).fetchall()
        columns = [Column(*row) for row in found]
        unique = [frozenset(names) for (names,) in cursor.execute(_KEYS, [oid]).fetchall()]
        return Target(name, tuple(columns), tuple(unique), exists, row_security)


def _require_whole(cursor: PEP249Cursor, table: str) -> None:
    """ProgrammingError for a name of which the server would take the beginning, which may be another table's."""
    parts, _ = cursor.execute(_PARSED, [table]).fetchone()
    for part in parts:
        if len(part.encode()) > _LONGEST_NAME:
            raise ProgrammingError(f"{part!r} has more than {_LONGEST_NAME} bytes: PostgreSQL has no such names.")


def _full_name(cursor: PEP249Cursor, table: str) -> str:
    """The full name of a new table. ProgrammingError if the name has too many parts."""
    (parts, schema) = cursor.execute(_PARSED, [table]).fetchone()
    if len(parts) > 2:
        raise ProgrammingError(f"{table!r} has too many parts: write table, or schema.table. Nothing was done.")
    parts = parts if len(parts) == 2 else [schema or "public", *parts]
    (name,) = cursor.execute(_FULL_NAME, parts).fetchone()
    return str(name)


def is_written_by(connection: PEP249Connection, name: str) -> bool:
    """Whether the connection's transaction holds a lock on the table for which other writers may have to wait."""
    (found,) = connection.cursor().execute(_IS_LOCKED, [name]).fetchone()
    return bool(found)


def why_staged(datasource: DataSource, target: Target, mode: str) -> str | None:
    """Why tasks cannot write into the table itself; None if they can."""
    if datasource.role is not Role.PREPARED:
        return f"{datasource.name} (mode={datasource.mode}) cannot prepare"
    if mode in ("overwrite", "upsert"):
        return f"{mode} is one statement over all rows"
    if target.row_security:
        return f"{target.name} has row-level security policies, with which COPY is not possible"
    if not target.exists:
        return f"{target.name} is created in the driver's branch, where tasks cannot see it"
    return None
