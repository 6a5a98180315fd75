"""What a statement leaves behind in its session, as far as its text shows it.

A stored function or procedure may leave more than the text of its call shows: `pool.reset = always` is for those.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final

# What may be ahead of it.
_AHEAD: Final = r"(?:\s++|--[^\n]*+|#[^\n]*+|/\*(?!M?!)(?:(?!\*/).)*+\*/|\()*+"
_FIRST_WORD: Final = re.compile(_AHEAD + r"([a-z]+)", re.I | re.A | re.S)
# A statement that begins otherwise may change the session: SET, USE, CALL, CREATE TEMPORARY TABLE, LOCK TABLES, PREPARE
# and the like.
_PLAIN: Final = frozenset(
    {"select", "insert", "update", "delete", "replace", "with", "values", "table", "show", "describe"}
    | {"commit", "rollback", "begin", "start", "savepoint", "release", "explain", "desc", "xa"}
)
#: A statement that is so long goes in a message of its own.
LONG: Final = 1 << 16
# What commits by no means.
_CHANGES_ROWS: Final = frozenset({"insert", "update", "delete", "replace", "select"})
# MariaDB's BEGIN NOT ATOMIC is a program.
_COMPOUND: Final = re.compile(_AHEAD + r"begin\s*+not\b", re.I | re.A | re.S)
# A whole statement without a user variable, a user's lock, a comment that is code, or another statement behind it. What
# is in quotes or in a comment is none of these.
_HARMLESS: Final = re.compile(
    r"(?:'(?:[^'\\]++|\\.|'')*+'|\"(?:[^\"\\]++|\\.|\"\")*+\"|`[^`]*+`|[^'\"`@/#;g-]++|@@|g(?!et_lock)|/(?!\*)"
    r"|/\*(?!M?!)(?:[^*]++|\*(?!/))*+\*/|--(?=\s|\Z)[^\n]*+|-(?!-(?:\s|\Z))|#[^\n]*+)*+(?:;\s*+)?\Z",
    re.I | re.A | re.S,
)

# What is ahead of a further statement in the same text, or of one in a comment that is code.
_FURTHER: Final = r"(?:;|/\*M?!\d*)"
# Text in front of that which is not in quotes, nor in a comment.
_OUTSIDE_QUOTES: Final = (
    r"(?:'(?:[^'\\]++|\\.|'')*+'|\"(?:[^\"\\]++|\\.|\"\")*+\"|`[^`]*+`|/\*(?!M?!)(?:(?!\*/).)*+\*/|/\*M?!"
    r"|--(?=\s|\Z)[^\n]*+|-(?!-(?:\s|\Z))|#[^\n]*+|/(?!\*)|[^'\"`/#-])*?"
)


def _finder(statement: str, *, cautious: bool = False) -> Callable[[str], bool]:
    """Whether such a statement begins anywhere in a text: also as the second of several.

    With `cautious`, also where it is in quotes, unless these are without doubt: a session may take a backslash for a
    character as any other (NO_BACKSLASH_ESCAPES).
    """
    first, further, outside_quotes = (
        re.compile(before + _AHEAD + statement, re.I | re.A | re.S)
        for before in ("", _FURTHER, _OUTSIDE_QUOTES + _FURTHER)
    )

    def found(text: str) -> bool:
        if first.match(text) is not None:
            return True
        if ";" not in text and "/*" not in text:
            return False
        if further.search(text) is None:
            return False
        return (cautious and "\\" in text) or outside_quotes.match(text) is not None  # which takes longest

    return found


_may_commit: Final = _finder(
    r"(?:(?:commit|begin|start|stop|change|lock|unlock|alter|truncate|rename|grant|revoke|flush|analyze|check|optimize"
    r"|repair|cache|reset|install|uninstall|backup|load\s+index)\b|(?:create|drop)\b(?!\s+temporary\b)"
    r"|set\b[^;]*\b(?:autocommit|password)\b"
    # Programs, whose statements are not in sight.
    r"|(?:call|execute|if|case|for|loop|repeat|while)\b|\w+\s*:)",
    cautious=True,
)
_commands_branch: Final = _finder(r"xa\b" + _AHEAD + r"(?:start|begin|end|prepare|commit|rollback)\b")


#: The error of an XA command inside a branch: the server would take one that ends the branch, and begins another of its
#: name, and nobody would see that.
XA_REFUSED: Final = (
    "an XA command inside a transaction, whose branch here is txpool's: leave it out, and end the transaction by "
    "`txpool.commit()` or `txpool.rollback()`. Nothing was sent."
)


def may_commit(text: str) -> bool:
    """Whether a statement, as `text_of` has it, shows that it commits the open local transaction, or may do so.

    So may a call of a procedure, whose text is not in sight.
    """
    return _may_commit(text)


def commands_branch(text: str) -> bool:
    """Whether a statement, as `text_of` has it, is or has in it an XA command that starts or ends a branch."""
    return "xa" in text and _commands_branch(text)  # most have it nowhere, and need not be searched


def commits_nothing(sql: bytes) -> bool:
    """Whether this statement can be rolled back, in a session that is not in autocommit mode."""
    return _first_word(text_of(sql)) in _CHANGES_ROWS


def changes_session(text: str) -> bool:
    """Whether a statement, as `text_of` has it, may change its session."""
    word = _first_word(text)
    if word not in _PLAIN or (word == "begin" and _COMPOUND.match(text) is not None):
        return True
    # Most have none of these anywhere, and need not be read as a whole.
    if "@" in text or ";" in text or "/*" in text or "get_lock" in text:
        return _HARMLESS.match(text) is None
    return False


def text_of(sql: object) -> str:
    """A statement as text in small letters. What is searched for is ASCII, whatever encoding the bytes are in."""
    if isinstance(sql, str):
        return sql.lower()
    return (sql if isinstance(sql, bytes) else bytes(sql)).decode("latin-1").lower()  # type: ignore[call-overload]


def _first_word(text: str) -> str:
    """The statement's first word; empty where it begins with none."""
    word = text.partition(" ")[0]
    if word in _PLAIN:  # as most begin, for which there is no need to search
        return word
    found = _FIRST_WORD.match(text)
    return "" if found is None else found[1]
