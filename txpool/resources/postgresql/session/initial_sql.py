"""pool.initial-sql in PostgreSQL: it is run when a session begins, and again in the message that resets the session."""

from __future__ import annotations

from typing import TYPE_CHECKING

import psycopg

from txpool.resources.postgresql.session.libpq import IDLE

if TYPE_CHECKING:
    from txpool.resources.postgresql.session.raw_connection import PsycopgRawConnection


def begin_session(raw: PsycopgRawConnection, statement: str, until: float | None) -> None:
    """Run the statement outside a transaction, commit what it leaves open, and keep it for `reset_session`."""
    _run(raw, statement, until)
    raw.initial_sql = statement


def reset_session(raw: PsycopgRawConnection, reset: str, until: float | None) -> None:
    """Reset an idle session by this SQL, and run its initial SQL again, in one message if that is possible."""
    if not raw.initial_sql:
        raw.session.run(reset, until)
        return
    try:
        _run(raw, f"{reset};\n{raw.initial_sql}", until)
    except psycopg.errors.ActiveSqlTransaction:  # some commands refuse others beside them: nothing was done
        raw.session.run(reset, until)
        _run(raw, raw.initial_sql, until)


def _run(raw: PsycopgRawConnection, message: str, until: float | None) -> None:
    session = raw.session
    session.run(message, until)
    if session.status != IDLE:
        session.run("commit", until)
