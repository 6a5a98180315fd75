"""Findings about functions that leave something in a session, which pool.reset = auto does not see."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, LiteralString

from txpool.config.settings import DataSourceSettings
from txpool.findings.finding import Finding, warning
from txpool.resources.postgresql.session.statement_text import outlives_transaction

# The functions of extensions are not the application's.
_FUNCTIONS: LiteralString = """
    select pg_catalog.format('%I.%I', n.nspname, p.proname), p.prosrc
    from pg_catalog.pg_proc p join pg_catalog.pg_namespace n on n.oid = p.pronamespace
    where n.nspname !~ '^pg_' and n.nspname <> 'information_schema'
        and p.prosrc ~* 'advisory_lock|set_config|create\\s+(local\\s+)?temp'
        and not exists (select from pg_catalog.pg_depend d where d.objid = p.oid and d.deptype = 'e'
            and d.classid = 'pg_catalog.pg_proc'::pg_catalog.regclass)
    order by 1
"""
_TEMPORARY = re.compile(r"create\s+(local\s+)?temp(?!.*\bon\s+commit\s+drop\b)", re.IGNORECASE | re.DOTALL)
_NAMED = 5


def findings(raw: Any, settings: DataSourceSettings) -> Iterator[Finding]:
    """A finding where the database has such functions, and the pool does not reset each session."""
    if settings.pool_reset == "always":
        return
    names = [
        name
        for name, source in raw.execute(_FUNCTIONS).fetchall()
        if outlives_transaction(source) or _TEMPORARY.search(source)
    ]
    if names:
        more = f", and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
        yield warning(
            "session",
            f"functions that leave an advisory lock, a setting or a temporary table in the session: "
            f"{', '.join(names[:_NAMED])}{more}",
            "pool.reset = auto sees what statements leave by their text and command tag, and not what is within a "
            "function: the pool's next user finds it in the session",
            "set pool.reset = always where the application calls one of them and does not undo it, for a round trip "
            "each time a connection is given back",
        )
