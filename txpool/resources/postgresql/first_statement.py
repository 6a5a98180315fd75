"""A transaction's first statement in one message with its BEGIN: that saves a round trip."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import psycopg

from txpool.resources.postgresql.psycopg_private import executing_after, leave_message

if TYPE_CHECKING:
    from txpool.resources.postgresql.driver import PsycopgRawConnection

# Behind another command libpq takes no COPY, and one statement alone. What has no parameters psycopg would send as a
# simple query, and it must mean the same otherwise: it has no `$1`, and is no write, of which a rule may return rows.
_WORDS = ("select", "insert", "update", "delete", "merge", "with")
_ALONE = "select"
_REFUSED = (";", "$")
_OPTIONS = frozenset({"params", "prepare"})

NEVER, WITH_PARAMETERS, ALWAYS = range(3)

# How many answers are kept, and of which statements.
_MOST_KEPT = 512
_LONGEST_KEPT = 4096
_answers: dict[str, int] = {}


def execute_first(
    raw: PsycopgRawConnection,
    cursor: psycopg.Cursor[Any],
    statement: Any,
    args: tuple[Any, ...],
    options: dict[str, Any],
) -> bool:
    """As `BeginsWithStatement.execute_first`."""
    if type(cursor) is not psycopg.Cursor or len(args) > 1 or (options and not options.keys() <= _OPTIONS):
        return False
    shares = may_share(statement)
    if shares is not ALWAYS:
        given = args[0] if args else options.get("params")
        if shares is NEVER or not given:
            return False
    with raw.lock:
        try:
            raw.wait(executing_after(raw.beginning or raw.begin_message(), cursor, statement, *args, **options))
        except BaseException:
            leave_message(raw)
            raise
    return True


def may_share(statement: object) -> int:
    """Whether a statement may be in one message with a BEGIN, as far as its text shows it."""
    if type(statement) is not str:
        return NEVER
    try:
        return _answers[statement]
    except KeyError:
        text = statement.strip().rstrip("; \t\n").lower()
        if not text.startswith(_WORDS) or any(sign in text for sign in _REFUSED) or not psycopg.Pipeline.is_supported():
            answer = NEVER
        elif text.startswith(_ALONE):
            answer = ALWAYS
        else:
            answer = WITH_PARAMETERS if "%" in text else NEVER
        if len(statement) <= _LONGEST_KEPT:
            if len(_answers) >= _MOST_KEPT:
                _answers.clear()
            _answers[statement] = answer
        return answer
