"""Findings about functions that leave something in a session, if they run where pool.reset = auto does not see them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, LiteralString

from txpool.config.settings import DataSourceSettings
from txpool.findings.finding import Finding, warning
from txpool.resources.postgresql.qualified import qualified
from txpool.resources.postgresql.statements.statement_text import names_what_stays

if TYPE_CHECKING:
    from txpool.resources.postgresql.session.raw_connection import PsycopgRawConnection

# The functions of extensions are not the application's.
_FUNCTIONS: LiteralString = qualified(
    """
    select format('%I.%I', n.nspname, p.proname), p.prosrc
    from pg_proc p join pg_namespace n on n.oid = p.pronamespace
    where n.nspname !~ '^pg_' and n.nspname <> 'information_schema'
        and p.prosrc ~* 'advisory_lock|set_config|create\\s+(local\\s+)?temp'
        and not exists (select from pg_depend d where d.objid = p.oid and d.deptype = 'e'
            and d.classid = 'pg_proc'::regclass::oid)
    order by 1
"""
)
_TEMPORARY = re.compile(r"create\s+(local\s+)?temp(?!.*\bon\s+commit\s+drop\b)", re.IGNORECASE | re.DOTALL)
_NAMED = 5


def findings(raw: PsycopgRawConnection, settings: DataSourceSettings) -> Iterator[Finding]:
    """A finding if the database has such functions, and the pool does not reset each session."""
    if settings.pool_reset == "always":
        return
    names = [
        name
        for name, source in raw.execute(_FUNCTIONS).fetchall()
        if names_what_stays(source.lower()) or _TEMPORARY.search(source)
    ]
    if names:
        more = f", and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
        yield warning(
            "session",
            f"functions that leave an advisory lock, a setting or a temporary table in the session: "
            f"{', '.join(names[:_NAMED])}{more}",
            "pool.reset = auto cleans a session if a statement calls one of them by its name; if a trigger, a view, a "
            "default or an operator calls it, the pool's next user may find what it has left",
            "set pool.reset = always if one of them is called so and does not undo it, for a round trip each time a "
            "connection is given back",
        )
