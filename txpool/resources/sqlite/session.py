"""What a statement leaves behind in its session: temporary objects, pragmas, attached databases."""

from __future__ import annotations

import re
from typing import Final

# White space and comments as SQLite reads them, then a word. Anything else before the word ends the match.
_FIRST_WORD = re.compile(r"(?:\s++|--[^\n]*+|/\*(?:(?!\*/).)*+\*/)*+([a-z]+)", re.IGNORECASE | re.DOTALL)
# An execute takes one statement, so that its first word tells what it can change. EXPLAIN is not among these, since
# EXPLAIN PRAGMA may take effect; nor are CREATE and ANALYZE, which may create something temporary in a dozen spellings.
_IN_THE_FILE_ALONE: Final = frozenset(
    {"select", "insert", "update", "delete", "replace", "with", "values"}
    | {"begin", "commit", "end", "rollback", "savepoint", "release"}
    | {"alter", "drop", "reindex", "vacuum"}
)
# A pragma without a value only tells one; with these the value in parentheses says what to tell.
_TELLING_PRAGMA = re.compile(
    r"\s++(?:\w++\s*+\.\s*+|\"\w++\"\s*+\.\s*+)?+"
    r"(?:\w++|(?:table_x?info|table_list|index_x?info|index_list|foreign_key_list|foreign_key_check|integrity_check"
    r"|quick_check|optimize|wal_checkpoint|incremental_vacuum)\s*+\([^()]*+\))\s*+;?+\s*+\Z",
    re.IGNORECASE,
)
_LONGEST: Final = 1000
_MOST: Final = 1000

#: Statements that are known to leave the session as it was. Each step on it is atomic.
PLAIN: set[str] = set()


def changes_session(sql: object) -> bool:
    """Whether this statement may change its session; where it surely does not, it is added to PLAIN."""
    if not isinstance(sql, str):
        return True
    found = _FIRST_WORD.match(sql)
    word = "" if found is None else found[1].lower()
    if word not in _IN_THE_FILE_ALONE and not (
        found is not None and word == "pragma" and _TELLING_PRAGMA.match(sql, found.end())
    ):
        return True
    if len(sql) <= _LONGEST:
        if len(PLAIN) >= _MOST:
            PLAIN.clear()
        PLAIN.add(sql)
    return False
