"""What a statement leaves behind in its session, as far as its text shows it.

A stored function or procedure may leave more than the text of its call shows: `pool.reset = always` is for those.
"""

from __future__ import annotations

import re
from typing import Final

_FIRST_WORD: Final = re.compile(rb"(?:\s++|--[^\n]*+|#[^\n]*+|/\*(?![!M])(?:(?!\*/).)*+\*/|\()*+([a-z]+)", re.I | re.S)
# A statement that begins otherwise may change the session: SET, USE, CALL, CREATE TEMPORARY TABLE, LOCK TABLES, PREPARE
# and the like.
_PLAIN: Final = frozenset(
    {b"select", b"insert", b"update", b"delete", b"replace", b"with", b"values", b"table", b"show", b"describe"}
    | {b"commit", b"rollback", b"begin", b"start", b"savepoint", b"release", b"explain", b"desc", b"xa"}
)
#: A statement that is so long goes in a message of its own.
LONG: Final = 1 << 16
# What commits by no means.
_CHANGES_ROWS: Final = frozenset({b"insert", b"update", b"delete", b"replace", b"select"})
# MariaDB's BEGIN NOT ATOMIC is a program.
_COMPOUND: Final = re.compile(rb"\s*+not\b", re.I)
# A whole statement without a user variable, a user's lock, a comment that is code, or another statement behind it. What
# is in quotes or in a comment is none of these.
_HARMLESS: Final = re.compile(
    rb"(?:'(?:[^'\\]++|\\.|'')*+'|\"(?:[^\"\\]++|\\.|\"\")*+\"|`[^`]*+`|[^'\"`@/#;g-]++|@@|g(?!et_lock)|/(?!\*)"
    rb"|/\*(?![!M])(?:[^*]++|\*(?!/))*+\*/|--(?=\s|\Z)[^\n]*+|-(?!-(?:\s|\Z))|#[^\n]*+)*+(?:;\s*+)?\Z",
    re.I | re.S,
)


def commits_nothing(sql: bytes) -> bool:
    """Whether this statement can be rolled back, in a session that is not in autocommit mode."""
    found = _FIRST_WORD.match(sql)
    return found is not None and found[1].lower() in _CHANGES_ROWS


def changes_session(sql: object) -> bool:
    """Whether this statement may change its session."""
    text = sql.encode(errors="replace") if isinstance(sql, str) else bytes(sql)  # type: ignore[call-overload]
    found = _FIRST_WORD.match(text)
    if found is None or (word := found[1].lower()) not in _PLAIN:
        return True
    if word == b"begin" and _COMPOUND.match(text, found.end()):
        return True
    # Most have none of these characters, and need not be read as a whole.
    if len(text.translate(None, b"'\"`@;/")) == len(text) and b"get_lock" not in text.lower():
        return False
    return _HARMLESS.match(text) is None
