"""The findings of `txpool check` about a decision log in PostgreSQL."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import psycopg

from txpool.findings.finding import Finding, NotConnected, failure
from txpool.log.sql.statements import TABLES
from txpool.resources.postgresql.check import marks, trust
from txpool.resources.postgresql.check import settings as server_settings
from txpool.resources.postgresql.check.connecting import diagnosed
from txpool.resources.postgresql.check.server import ServerFacts, server_facts

if TYPE_CHECKING:
    from txpool.resources.postgresql.log.server import PostgreSQLLogServer

# The tables, with the columns of the key and all columns.
_TABLES = {
    "txpool_incarnations": (["name"], ["name", "node", "lease", "fenced"]),
    "txpool_decisions": (["gtrid"], ["gtrid", "branches", "made"]),
    "txpool_finished": (["gtrid"], ["gtrid"]),
    "txpool_pointers": (["gtrid"], ["gtrid", "datasource"]),
    "txpool_heuristics": (["gtrid", "bqual"], ["gtrid", "bqual", "datasource", "decided", "ended", "noted"]),
    "txpool_expired": (["name"], ["name", "node", "lease", "since"]),
    "txpool_memos": (["kind", "name"], ["kind", "name", "text", "made"]),
}
_INIT = "run `txpool-recovery init` once"


def findings(server: PostgreSQLLogServer) -> Iterator[Finding]:
    """Findings about the log's server and its tables."""
    try:
        with server.connect("txpool check") as raw:
            facts = server_facts(raw)
            yield from _server(facts)
            for name, (key, columns) in _TABLES.items():
                yield from marks.table(raw, name, key, columns, missing=_INIT)
            yield from trust.grants(raw, TABLES, (), "a role that writes the log can change decisions and leases")
            yield from trust.connect(raw, facts, (), "only roles that write the log need to connect")
    except psycopg.Error as error:
        raise NotConnected(diagnosed(server.url, error)) from error


def _server(facts: ServerFacts) -> Iterator[Finding]:
    yield from server_settings.durability(facts)
    if facts.pooled:
        yield failure(
            "pooler",
            "a pooler such as PgBouncer is between here and the log's server",
            "a process holds its lease in a session of its own; a pooler that shares sessions (transaction mode) keeps "
            "the session after the process has died, and recovery would wait for ever",
            "let log.url lead to the server itself",
        )
    yield server_settings.clock(facts.clock_ahead)
