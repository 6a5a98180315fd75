"""What a statement leaves behind in its session, as far as its text shows it.

A stored function or procedure may leave more than the text of its call shows: `pool.reset = always` is for those.
"""

from __future__ import annotations

import re
from typing import Final

from txpool.sql.dialects import MYSQL
from txpool.sql.scanner import Statement

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
# A user variable, and a user's lock.
_KEPT_BY_SESSION: Final = frozenset({"@", "get_lock"})
_MAY_COMMIT: Final = re.compile(
    r"(?:commit|begin|start|stop|change|lock|unlock|alter|truncate|rename|grant|revoke|flush|analyze|check|optimize"
    r"|repair|cache|reset|install|uninstall|backup|load index)\b|(?:create|drop)\b(?! temporary\b)"
    # Programs, whose statements are not in sight.
    r"|(?:call|execute|if|case|for|loop|repeat|while)\b|\w+ :"
)
_ON_COMMIT: Final = frozenset({"autocommit", "password"})
_COMMANDS_BRANCH: Final = re.compile(r"xa (?:start|begin|end|prepare|commit|rollback)\b")


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
    if ";" in text or "/*" in text:
        return MYSQL.any(text, _commits)
    head = MYSQL.first_words(text)
    return _MAY_COMMIT.match(head) is not None or (head.startswith("set ") and MYSQL.any(text, _commits))


def _commits(statement: Statement) -> bool:
    head = statement.head.lstrip("( ")
    return _MAY_COMMIT.match(head) is not None or (
        head.startswith("set ") and not _ON_COMMIT.isdisjoint(statement.words)
    )


def commands_branch(text: str) -> bool:
    """Whether a statement, as `text_of` has it, is or has in it an XA command that starts or ends a branch."""
    if "xa" not in text:  # as most have it nowhere, and need not be searched
        return False
    if ";" in text or "/*" in text:
        return any(map(_commands, MYSQL.readings[0].statements(text)))
    return _COMMANDS_BRANCH.match(MYSQL.first_words(text)) is not None


def _commands(statement: Statement) -> bool:
    return _COMMANDS_BRANCH.match(statement.head.lstrip("( ")) is not None


def commits_nothing(sql: bytes) -> bool:
    """Whether this statement can be rolled back, in a session that is not in autocommit mode."""
    return _first_word(text_of(sql)) in _CHANGES_ROWS


def changes_session(text: str, *, escapes: bool | None = True) -> bool:
    """Whether a statement, as `text_of` has it, may change its session.

    `escapes` says whether a backslash in a literal is no character of its own; None if that is not known.
    """
    word = _first_word(text)
    if word not in _PLAIN or (word == "begin" and MYSQL.first_words(text).startswith("begin not")):
        return True
    # Most have none of these anywhere, and need not be read as a whole.
    if "@" in text or ";" in text or "/*" in text or "get_lock" in text:
        return any(len(each) > 1 or any(map(_leaves_something, each)) for each in MYSQL.read(text, escapes=escapes))
    return False


def _leaves_something(statement: Statement) -> bool:
    return not statement.certain or not _KEPT_BY_SESSION.isdisjoint(statement.words)


def text_of(sql: object) -> str:
    """A statement as text in small letters. What is searched for is ASCII, whatever encoding the bytes are in."""
    if isinstance(sql, str):
        return sql.lower()
    return (sql if isinstance(sql, bytes) else bytes(sql)).decode("latin-1").lower()  # type: ignore[call-overload]


def _first_word(text: str) -> str:
    """The statement's first word; empty if it begins with none."""
    word = text.partition(" ")[0]
    if word in _PLAIN:  # as most begin, for which there is no need to search
        return word
    return MYSQL.first_words(text).partition(" ")[0]
