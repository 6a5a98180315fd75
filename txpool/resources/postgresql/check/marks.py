"""Findings about the table of marks in PostgreSQL, and about any other table whose rows must not be lost."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import TYPE_CHECKING, LiteralString

import psycopg

from txpool.config.settings import DataSourceSettings
from txpool.findings.finding import Finding, Severity, failure
from txpool.findings.marks import COLUMNS, CREATE, DECISIONS, EVIDENCE, IS_MARK, mark_count, missing_columns, row_count
from txpool.resources.driver.making import make_driver
from txpool.resources.postgresql.check import trust
from txpool.resources.postgresql.check.connecting import connected, quoted, user_of
from txpool.resources.postgresql.check.server import server_facts
from txpool.resources.postgresql.qualified import qualified

if TYPE_CHECKING:
    from txpool.resources.postgresql.session.raw_connection import PsycopgRawConnection

_IS_MARK: LiteralString = IS_MARK.replace(" like ", " ~~ ")
_RIGHTS = ("SELECT", "INSERT", "UPDATE", "DELETE")
_TABLE: LiteralString = qualified(
    """
    select c.oid, n.nspname, c.relname, c.relkind, c.relpersistence, row_security_active(c.oid),
        has_schema_privilege(n.oid, 'usage'),
        array(select attname::text from pg_attribute where attrelid = c.oid and attnum > 0 and not attisdropped),
        exists (select from pg_index i where i.indrelid = c.oid and i.indisunique and i.indisvalid and i.indimmediate
            and i.indpred is null and i.indnkeyatts = i.indnatts and %(key)s = (select array_agg(attname::text order by
            attname) from pg_attribute where attrelid = c.oid and attnum = any (i.indkey::int2[])))
    from pg_class c join pg_namespace n on n.oid = c.relnamespace where c.oid = to_regclass(%(table)s)
"""
)
_COUNT: LiteralString = qualified(f"select count(*) from {{}} where {_IS_MARK}")
_OLDEST: LiteralString = qualified(
    f"select count(*), extract(epoch from (clock_timestamp() - min(made_at)))::float8 from {{}} where {_IS_MARK}"
)
_MAY: LiteralString = qualified("select has_table_privilege(%s::oid, %s::text)")
_KINDS = {"v": "a view", "m": "a materialized view", "f": "a foreign table", "p": "partitioned", "S": "a sequence"}


def findings(raw: PsycopgRawConnection, settings: DataSourceSettings) -> Iterator[Finding]:
    """Findings about the table of marks, for the datasource's user and for recovery.user."""
    name = settings.cmr_table
    found = list(_faults(raw, settings, name, DECISIONS, "a role that changes a mark changes an outcome"))
    yield from found
    if not any(each.severity is not Severity.WARNING for each in found):
        yield marks(raw, name)


def rows(raw: PsycopgRawConnection, settings: DataSourceSettings) -> Iterator[Finding]:
    """Findings about the table of the branches' rows, for both users."""
    name = settings.xa_evidence_table
    why = "a role that writes a row makes a branch count as committed that is gone"
    found = list(_faults(raw, settings, name, EVIDENCE, why))
    yield from found
    if not any(each.severity is not Severity.WARNING for each in found):
        ((count,),) = raw.execute(_COUNT.format(name).encode()).fetchall()
        yield row_count(name, count)


def _faults(
    raw: PsycopgRawConnection, settings: DataSourceSettings, name: str, holds: str, grants: str
) -> Iterator[Finding]:
    roles = make_driver(settings).roles
    not_trusted = list(trust.owners(raw, [name], roles, holds))
    yield from not_trusted
    if not_trusted:
        return  # a table that is not trusted is not read
    yield from trust.grants(raw, [name], roles, grants)
    found = list(table(raw, name, ["xid"], COLUMNS, missing=CREATE, holds=holds))
    yield from found
    if not found and settings.recovery_user and settings.recovery_user != user_of(settings):
        with connected(settings, recovery=True) as other:
            server_facts(other)
            yield from table(other, name, ["xid"], COLUMNS, missing=CREATE, holds=holds)


def marks(raw: PsycopgRawConnection, name: str) -> Finding:
    """The number of marks in the table."""
    ((count, oldest),) = raw.execute(_OLDEST.format(name).encode()).fetchall()
    return mark_count(name, count, oldest or 0.0)


def table(
    raw: PsycopgRawConnection,
    name: str,
    key: Collection[str],
    columns: Collection[str],
    *,
    missing: str,
    holds: str = DECISIONS,
) -> Iterator[Finding]:
    """What is wrong with a table whose rows are decisions; `missing` is the advice if there is no such table."""
    try:
        row = raw.execute(_TABLE, {"table": name, "key": sorted(key)}).fetchone()
    except psycopg.errors.InsufficientPrivilege:
        row = None
    ((user,),) = raw.execute("select session_user").fetchall()
    if row is None:
        schema = name.partition(".")[0] if "." in name else "public"
        yield failure(
            "table",
            f"there is no table {name} that {user} can see",
            holds,
            f"{missing}; if the table exists, GRANT USAGE ON SCHEMA {schema} TO {quoted(user)};",
        )
        return
    oid, schema, relation, kind, persistence, row_security, usage, present, has_key = row
    whole = f"{quoted(schema)}.{quoted(relation)}"
    if kind != "r":
        yield failure("table", f"{whole} is {_KINDS.get(kind, 'no table')}", "only a plain table keeps marks", missing)
        return
    if persistence != "p":
        what = "unlogged" if persistence == "u" else "temporary"
        yield failure(
            "table",
            f"{whole} is {what}",
            "a crash of the server empties it: transactions with a decision to commit would roll back elsewhere",
            f"ALTER TABLE {whole} SET LOGGED;" if persistence == "u" else missing,
        )
    lacking = [column for column in columns if column not in present]
    if lacking:
        yield missing_columns(whole, lacking, missing)
    elif not has_key:
        yield failure(
            "table",
            f"{whole} has no unique key on {', '.join(key)} alone",
            "it could hold a decision and recovery's abort record of the same transaction: one database would commit, "
            "and another roll back",
            f"ALTER TABLE {whole} ADD PRIMARY KEY ({', '.join(key)});",
        )
    if row_security:
        yield failure(
            "table",
            f"row-level security applies to {user} on {whole}",
            "recovery would not see every decision",
            f"ALTER TABLE {whole} DISABLE ROW LEVEL SECURITY;",
        )
    denied = [right for right in _RIGHTS if raw.execute(_MAY, [oid, right]).fetchall() != [(True,)]]
    if denied or not usage:
        grants = [f"GRANT {', '.join(denied)} ON {whole} TO {quoted(user)};"] if denied else []
        grants += [] if usage else [f"GRANT USAGE ON SCHEMA {quoted(schema)} TO {quoted(user)};"]
        yield failure(
            "privileges",
            f"{user} may not {', '.join(denied) or 'reach'} {'on ' if denied else ''}{whole}",
            "marks are inserted, updated, read and deleted",
            " ".join(grants),
        )
