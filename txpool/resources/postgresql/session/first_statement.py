"""A transaction's first statement in one message with its BEGIN: that saves a round trip."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import psycopg
from psycopg.pq.abc import PGresult

from txpool.resources.postgresql.session.identity import SESSION
from txpool.resources.postgresql.session.libpq import OPEN
from txpool.resources.postgresql.session.psycopg_private import cancel_message, executing_after
from txpool.sql.kept import KeptAnswers

if TYPE_CHECKING:
    from txpool.resources.postgresql.session.raw_connection import PsycopgRawConnection

# Behind another command libpq takes no COPY, and one statement alone. What has no parameters psycopg would send as a
# simple query, and it must mean the same otherwise: it has no `$1`, and is no write, of which a rule may return rows.
_WORDS = ("select", "insert", "update", "delete", "merge", "with")
_ALONE = "select"
_REFUSED = (";", "$")
_OPTIONS = frozenset({"params", "prepare"})

NEVER, WITH_PARAMETERS, ALWAYS = range(3)


def execute_first(
    raw: PsycopgRawConnection,
    cursor: psycopg.Cursor[Any],
    statement: Any,
    args: tuple[Any, ...],
    options: dict[str, Any],
) -> bool:
    """As `BeginsWithStatement.execute_first`."""
    if type(cursor) is not psycopg.Cursor or len(args) > 1 or (options and not options.keys() <= _OPTIONS):
        return _apart(raw, statement)
    shares = _answers[statement] if type(statement) is str else NEVER  # `may_share`, without its call
    if shares is not ALWAYS:
        given = args[0] if args else options.get("params")
        if shares is NEVER or not given:
            return _apart(raw, statement)
    if raw.behind_pooler:
        raw.begun = answers = list[PGresult]()
        options = {**options, "question": SESSION, "answers": answers}
    with raw.lock:
        try:
            raw.wait(executing_after(raw.beginning or raw.begin_message(), cursor, statement, *args, **options))
        except BaseException:
            # The answers would be taken for the next statement's, or that would wait for ever. No call is before this
            # `try`: a second interrupt would come with it, and leave the message where it is.
            pgconn = raw.pgconn
            try:
                cancel_message(raw)
            finally:
                if pgconn.status == OPEN and pgconn.pipeline_status:
                    pgconn.finish()
            raise
    return True


def _apart(raw: PsycopgRawConnection, statement: object) -> bool:
    """False: the statement is to be in a message of its own. Behind a pooler, begin with the question who executes it.

    That has a snapshot. So it is asked only before a statement that has one, too: not before a SET TRANSACTION.
    """
    if raw.behind_pooler and isinstance(statement, str) and statement.lstrip().lower().startswith(_WORDS):
        raw.begun = raw.session.run(f"{raw.begin_message()}; {SESSION}")
    return False


def may_share(statement: object) -> int:
    """Whether a statement may be in one message with a BEGIN, as far as its text shows it."""
    return _answers[statement] if type(statement) is str else NEVER


def _search(statement: str) -> int:
    text = statement.strip().rstrip("; \t\n").lower()
    if not text.startswith(_WORDS) or any(sign in text for sign in _REFUSED) or not psycopg.Pipeline.is_supported():
        return NEVER
    if text.startswith(_ALONE):
        return ALWAYS
    return WITH_PARAMETERS if "%" in text.replace("%%", "") else NEVER


_answers: KeptAnswers[str, int] = KeptAnswers(_search)
