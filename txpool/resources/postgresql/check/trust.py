"""Findings about other roles in PostgreSQL: owners of tables, schemas and triggers, grants, and who may connect."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

import psycopg

from txpool.findings.finding import Finding, failure, warning
from txpool.resources.postgresql.check.connecting import quoted
from txpool.resources.postgresql.check.server import ServerFacts
from txpool.resources.postgresql.qualified import qualified
from txpool.resources.postgresql.tables.staging import SCHEMA, PostgreSQLStagingTable
from txpool.resources.postgresql.tables.trust import TrustFault, creators, relation_faults, schema_faults, writers

if TYPE_CHECKING:
    from txpool.resources.postgresql.session.raw_connection import PsycopgRawConnection

_TABLES_OF_SCHEMA = qualified(
    "select relname::text from pg_class c join pg_namespace n on n.oid = c.relnamespace "
    "where n.nspname = %s and has_schema_privilege(n.oid, 'usage')"
)
_ANYBODY_CONNECTS = qualified("select has_database_privilege('public'::name, current_database()::text, 'connect')")


def owners(raw: PsycopgRawConnection, tables: Sequence[str], roles: Collection[str], why: str) -> Iterator[Finding]:
    """Failures if a table or its schema is not trusted, looked up on the search path; `why` is for each of them."""
    with suppress(psycopg.errors.InsufficientPrivilege):  # the findings about the table say what to grant
        yield from _failures(relation_faults(raw, tables, roles=roles), why)


def grants(raw: PsycopgRawConnection, tables: Sequence[str], roles: Collection[str], why: str) -> Iterator[Finding]:
    """The roles to which the owner has granted to write tables, or to create triggers on them."""
    try:
        found = writers(raw, tables, roles=roles)
    except psycopg.errors.InsufficientPrivilege:
        return
    for each in found:
        rights = ", ".join(each.privileges)
        everybody = each.role == "PUBLIC"
        yield (failure if everybody else warning)(
            "grants",
            f"{'everybody' if everybody else each.role} may {rights} on {each.table}",
            f"{why}; a trigger runs as the role that writes",
            f"unless that is intended, REVOKE {rights} ON {each.table} FROM {each.role};",
        )


def spark(raw: PsycopgRawConnection, roles: Collection[str]) -> Iterator[Finding]:
    """Failures if the schema of txpool's tables exists and is not trusted, or a table in it."""
    why = (
        "writes of Spark and work with a transaction_id are refused: its owner could change what was recorded as done, "
        "and the owner's triggers would run as this user"
    )
    faults = schema_faults(raw, SCHEMA, roles=roles)
    if not faults:
        names = [name for (name,) in raw.execute(_TABLES_OF_SCHEMA, [SCHEMA]).fetchall()]
        kept = [f"{SCHEMA}.{name}" for name in names if name in ("writes", "partitions")]
        staged = [f'{SCHEMA}."{name}"' for name in names if PostgreSQLStagingTable.parse(name) is not None]
        faults = relation_faults(raw, kept, roles=roles) + relation_faults(raw, staged, roles=roles, types=False)
    yield from _failures(faults, why)


def connect(raw: PsycopgRawConnection, server: ServerFacts, roles: Iterable[str], why: str) -> Iterator[Finding]:
    """A warning if every role of the server may connect; `why` says what such a role could do."""
    ((everybody,),) = raw.execute(_ANYBODY_CONNECTS).fetchall()
    if everybody:
        database = quoted(server.database)
        users = ", ".join(quoted(role) for role in dict.fromkeys([server.user, *roles]))
        yield warning(
            "connect",
            f"every role of the server may connect to {server.database}",
            why,
            f"REVOKE CONNECT ON DATABASE {database} FROM PUBLIC; GRANT CONNECT ON DATABASE {database} TO {users}; and "
            "to all others that work there",
        )


def search_path(raw: PsycopgRawConnection, roles: Collection[str]) -> Iterator[Finding]:
    """A warning for each role that is not trusted and may create in a schema of the search path."""
    for schema, role in creators(raw, roles=roles):
        everybody = role == "PUBLIC"
        yield warning(
            "search path",
            f"{'everybody' if everybody else role} may create in schema {schema}, which is on the search path",
            "a function, an operator or a type there that fits better than the server's own is what the application's "
            "SQL calls, as this user; txpool's own statements name the schema of all that they call",
            f"REVOKE CREATE ON SCHEMA {schema} FROM {role};",
        )


def _failures(faults: Iterable[TrustFault], why: str) -> Iterator[Finding]:
    for fault in faults:
        if fault.owner:
            yield failure("owner", fault.found, why, fault.do)
