"""The table of marks of a PostgreSQL database, and any other table that must keep what it is given."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Any, LiteralString

import psycopg

from txpool.config.settings import DataSourceSettings
from txpool.findings.finding import Finding, failure
from txpool.findings.marks import COLUMNS, CREATE, IS_MARK, mark_count, missing_columns
from txpool.resources.drivers import make_driver
from txpool.resources.postgresql.check import trust
from txpool.resources.postgresql.check.connecting import connected, quoted, user_of
from txpool.resources.postgresql.check.server import server_facts

_RIGHTS = ("SELECT", "INSERT", "UPDATE", "DELETE")
_TABLE: LiteralString = """
    select c.oid, n.nspname, c.relname, c.relkind, c.relpersistence, row_security_active(c.oid),
        has_schema_privilege(n.oid, 'usage'),
        array(select attname::text from pg_attribute where attrelid = c.oid and attnum > 0 and not attisdropped),
        exists (select from pg_index i where i.indrelid = c.oid and i.indisunique and i.indisvalid and i.indimmediate
            and i.indpred is null and i.indnkeyatts = i.indnatts and %(key)s = (select array_agg(attname::text order by
            attname) from pg_attribute where attrelid = c.oid and attnum = any (i.indkey::int2[])))
    from pg_class c join pg_namespace n on n.oid = c.relnamespace where c.oid = to_regclass(%(table)s)
"""
_KINDS = {"v": "a view", "m": "a materialized view", "f": "a foreign table", "p": "partitioned", "S": "a sequence"}


def findings(raw: Any, settings: DataSourceSettings) -> Iterator[Finding]:
    """About the table of marks, for the datasource's own user and for recovery's."""
    roles = make_driver(settings).roles
    strangers = list(trust.owners(raw, [settings.cmr_table], roles, "the decision of each transaction stands there"))
    yield from strangers
    if strangers:
        return  # nothing of it is read
    yield from trust.grants(raw, [settings.cmr_table], roles, "whoever changes a mark changes an outcome")
    found = list(table(raw, settings.cmr_table, ["xid"], COLUMNS, missing=CREATE))
    yield from found
    if found:
        return
    if settings.recovery_user and settings.recovery_user != user_of(settings):
        with connected(settings, recovery=True) as other:
            server_facts(other)
            yield from table(other, settings.cmr_table, ["xid"], COLUMNS, missing=CREATE)
    yield marks(raw, settings.cmr_table)


def marks(raw: Any, name: str) -> Finding:
    """How many marks wait in a table that is right."""
    count, oldest = raw.execute(
        f"select count(*), extract(epoch from max(clock_timestamp() - made_at))::float8 from {name} "  # noqa: S608
        f"where {IS_MARK}".encode()
    ).fetchone()
    return mark_count(name, count, oldest or 0.0)


def table(raw: Any, name: str, key: Collection[str], columns: Collection[str], *, missing: str) -> Iterator[Finding]:
    """What is wrong with a table whose rows decide; nothing where it is right."""
    try:
        row = raw.execute(_TABLE, {"table": name, "key": sorted(key)}).fetchone()
    except psycopg.errors.InsufficientPrivilege:
        row = None
    (user,) = raw.execute("select session_user").fetchone()
    if row is None:
        schema = name.partition(".")[0] if "." in name else "public"
        yield failure(
            "table",
            f"there is no table {name} that {user} can see",
            "it is where the decision of each transaction stands",
            f"{missing}; where it is there, GRANT USAGE ON SCHEMA {schema} TO {quoted(user)};",
        )
        return
    oid, schema, relation, kind, persistence, secured, usage, has, keyed = row
    whole = f"{quoted(schema)}.{quoted(relation)}"
    if kind != "r":
        yield failure("table", f"{whole} is {_KINDS.get(kind, 'no table')}", "only a plain table keeps marks", missing)
        return
    if persistence != "p":
        what = "unlogged" if persistence == "u" else "temporary"
        yield failure(
            "table",
            f"{whole} is {what}",
            "a crash of the server empties it: transactions that were decided to commit would roll back elsewhere",
            f"ALTER TABLE {whole} SET LOGGED;" if persistence == "u" else missing,
        )
    lacking = [column for column in columns if column not in has]
    if lacking:
        yield missing_columns(whole, lacking, missing)
    elif not keyed:
        yield failure(
            "table",
            f"{whole} has no unique key on {', '.join(key)} alone",
            "a decision and recovery's abort record could both stand there: one database would commit and another "
            "roll back",
            f"ALTER TABLE {whole} ADD PRIMARY KEY ({', '.join(key)});",
        )
    if secured:
        yield failure(
            "table",
            f"row-level security applies to {user} on {whole}",
            "recovery would not see every decision",
            f"ALTER TABLE {whole} DISABLE ROW LEVEL SECURITY;",
        )
    denied = [
        right for right in _RIGHTS if not raw.execute("select has_table_privilege(%s, %s)", [oid, right]).fetchone()[0]
    ]
    if denied or not usage:
        grants = [f"GRANT {', '.join(denied)} ON {whole} TO {quoted(user)};"] if denied else []
        grants += [] if usage else [f"GRANT USAGE ON SCHEMA {quoted(schema)} TO {quoted(user)};"]
        yield failure(
            "privileges",
            f"{user} may not {', '.join(denied) or 'reach'} {'on ' if denied else ''}{whole}",
            "marks are inserted, met (which is an update), read and deleted",
            " ".join(grants),
        )
