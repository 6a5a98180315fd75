"""A transaction's first statement in one message with its BEGIN: that saves a round trip."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import psycopg

from txpool.resources.postgresql.psycopg_private import executing_after

if TYPE_CHECKING:
    from txpool.resources.postgresql.driver import PsycopgRawConnection

# Behind another command libpq takes no COPY, and one statement alone. What psycopg would send as a simple query must
# mean the same otherwise: so it has no `$1`.
_WORDS = ("select", "insert", "update", "delete", "merge", "with")
_REFUSED = (";", "$")
_OPTIONS = frozenset({"params", "prepare"})

# How many answers are kept, and of which statements.
_MOST_KEPT = 512
_LONGEST_KEPT = 4096
_answers: dict[str, bool] = {}


def execute_first(
    raw: PsycopgRawConnection,
    cursor: psycopg.Cursor[Any],
    statement: Any,
    args: tuple[Any, ...],
    options: dict[str, Any],
) -> None:
    """As `BeginsWithStatement.execute_first`."""
    shares = type(cursor) is psycopg.Cursor and len(args) < 2 and (not options or options.keys() <= _OPTIONS)
    if shares and may_share(statement):
        with raw.lock:
            raw.wait(executing_after(raw.beginning or raw.begin_message(), cursor, statement, *args, **options))
    else:
        raw.session.run(raw.begin_message())
        cursor.execute(statement, *args, **options)


def may_share(statement: object) -> bool:
    """Whether a statement may be in one message with a BEGIN, as far as its text shows it."""
    if type(statement) is not str:
        return False
    try:
        return _answers[statement]
    except KeyError:
        text = statement.strip().rstrip("; \t\n").lower()
        answer = text.startswith(_WORDS) and not any(sign in text for sign in _REFUSED)
        if len(statement) <= _LONGEST_KEPT:
            if len(_answers) >= _MOST_KEPT:
                _answers.clear()
            _answers[statement] = answer
        return answer
