"""What a statement leaves behind in its session: temporary objects, pragmas, attached databases."""

from __future__ import annotations

import re
from typing import Final

from txpool.sql.dialects import SQLITE
from txpool.sql.kept import KeptAnswers

# An execute takes one statement, so that its first word tells what it can change. EXPLAIN is not among these, since
# EXPLAIN PRAGMA may take effect; nor are CREATE and ANALYZE, which may create something temporary in a dozen spellings.
_IN_THE_FILE_ALONE: Final = frozenset(
    {"select", "insert", "update", "delete", "replace", "with", "values"}
    | {"begin", "commit", "end", "rollback", "savepoint", "release"}
    | {"alter", "drop", "reindex", "vacuum"}
)
# A pragma without a value only tells one; with these the value in parentheses says what to tell. There is no comment in
# it, and it is shorter than a head is at most.
_TELLING_PRAGMA = re.compile(
    r"pragma (?:(?:\w+|\") \. )?(?:\w+|(?:table_x?info|table_list|index_x?info|index_list|foreign_key_list"
    r"|foreign_key_check|integrity_check|quick_check|optimize|wal_checkpoint|incremental_vacuum) \( [^()]+ \))\Z"
)
_LONGEST: Final = 1000
_MOST: Final = 1000

#: Statements that are known to leave the session as it was. Each step on it is atomic.
PLAIN: set[str] = set()


def changes_session(sql: object) -> bool:
    """Whether this statement may change its session; if it surely does not, it is added to PLAIN."""
    if not isinstance(sql, str):
        return True
    head = SQLITE.readings[0].head(sql)
    word = head.partition(" ")[0]
    if word not in _IN_THE_FILE_ALONE and not (word == "pragma" and _only_tells(sql, head)):
        return True
    if len(sql) <= _LONGEST:
        if len(PLAIN) >= _MOST:
            PLAIN.clear()
        PLAIN.add(sql)
    return False


def _only_tells(sql: str, head: str) -> bool:
    return "--" not in sql and "/*" not in sql and _TELLING_PRAGMA.match(head) is not None


def _search(sql: str) -> bool:
    reading = SQLITE.readings[0]
    if "begin" not in sql.lower() or reading.head(sql).partition(" ")[0] != "begin":
        return False
    return len([*reading.statements(sql)]) == 1  # else sqlite3 refuses it, and what follows BEGIN would be lost


#: By statement, whether it is a BEGIN, and nothing else.
BEGINS: KeptAnswers[str, bool] = KeptAnswers(_search)
