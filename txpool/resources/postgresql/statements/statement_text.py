"""What a statement leaves in the session beyond its transaction, as far as its text shows it: no command tag does.

PostgreSQL answers `select pg_advisory_lock(7)` as any other SELECT. To ask each time would cost a round trip. So the
text is searched for the functions that it calls. If not all of them are known to leave nothing, the session is reset.
What a trigger, a view or the like calls is in no text: of that the server reports some settings by itself.
"""

from __future__ import annotations

import re
from contextlib import suppress
from itertools import chain, zip_longest

from psycopg import sql

from txpool.resources.postgresql.session.psycopg_private import Template
from txpool.resources.postgresql.statements.harmless import is_certain
from txpool.sql.dialects import POSTGRESQL
from txpool.sql.kept import LONGEST_KEPT, KeptAnswers, text_of
from txpool.sql.scanner import Statement

# Its third argument is written out: the setting ends with the transaction.
_LOCAL_SETTING = re.compile(r"set_config\s*\((?:[^()';]|'[^']*')*,\s*true\s*\)")
# What may hide an argument's end from that: comments, and strings other than plain ones.
_OBSCURE = re.compile(r"--|/\*|\\|\$[^0-9]")
_COMMITTING = re.compile(r"(?:commit|end|prepare transaction)\b")
_ENDING = re.compile(r"(?:commit|end|prepare transaction|abort|rollback(?!(?: work| transaction)? to\b))\b")
_BEGINNING = re.compile(r"(?:begin|start transaction)\b")


def text_of_query(query: object) -> bytes | str:
    """A query that psycopg takes, as text; empty if that is not known. No I/O.

    Of a template string a parameter is `$0`.
    """
    if isinstance(query, sql.Composable):
        with suppress(Exception):  # psycopg raises it again when it executes
            return query.as_bytes()
    if isinstance(query, Template):
        parts = (text_of(text_of_query(each.value)) or "$0" for each in query.interpolations)
        return "".join(chain(*zip_longest(query.strings, parts, fillvalue="")))
    return ""


def outlives_transaction(statement: bytes | str) -> bool:
    """Whether it may leave something in the session, as a lock or a setting, which its tag does not show.

    It does so by a function, or by an UPDATE of pg_settings, whose rule calls one. Long texts are not searched: that
    takes longer than to reset the session.
    """
    return OUTLIVING[statement]


def may_commit(statement: bytes | str) -> bool:
    """Whether a message's text shows that it commits the open transaction, or may do so."""
    return POSTGRESQL.any(text_of(statement), _commits)


def _commits(statement: Statement) -> bool:
    return _COMMITTING.match(statement.head) is not None


def may_begin_anew(statement: bytes | str) -> bool:
    """Whether a message's text shows that it may end the open transaction and begin another."""
    return any(map(_begins_anew, POSTGRESQL.read(text_of(statement))))


def _begins_anew(statements: list[Statement]) -> bool:
    ended = False
    for each in statements:
        if ended and _BEGINNING.match(each.head) is not None:
            return True
        if _ENDING.match(each.head) is not None:
            ended = True
            if " and chain" in each.head:
                return True
    return False


def _search(statement: bytes | str) -> bool:
    if len(statement) > LONGEST_KEPT:
        return True
    text = text_of(statement).lower()
    return names_what_stays(text) or not is_certain(text)


def names_what_stays(text: str) -> bool:
    """Whether a text, in small letters, names what takes a session's lock, or may change one of its settings."""
    # pg_advisory_xact_lock and the like end with the transaction. A name in U&"…" may be that of any function.
    if "advisory_lock" in text or 'u&"' in text or ("pg_settings" in text and "update" in text):
        return True
    settings = text.count("set_config")
    return settings > 0 and (settings > len(_LOCAL_SETTING.findall(text)) or _OBSCURE.search(text) is not None)


#: By statement, what `outlives_transaction` answers.
OUTLIVING: KeptAnswers[bytes | str, bool] = KeptAnswers(_search)
