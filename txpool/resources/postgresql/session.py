"""What a statement leaves in the session beyond its transaction, as far as its text shows it: no command tag does.

PostgreSQL answers `select pg_advisory_lock(7)` as any other SELECT. To ask each time would cost a round trip. So the
text is searched for the functions that outlive the transaction. Behind another function they are not seen:
`pool.reset = always` is for those.
"""

from __future__ import annotations

import re
from functools import lru_cache

# A longer statement costs more than the search.
_LONGEST_KEPT = 4096
_SETTING = re.compile(rb"set_config\s*\(")
# Its third argument is written out: the setting ends with the transaction.
_LOCAL_SETTING = re.compile(rb"set_config\s*\((?:[^()';]|'[^']*')*,\s*true\s*\)")


def outlives_transaction(statement: bytes) -> bool:
    """Whether it may take a session's advisory lock, or change a setting of the session, by a function."""
    return _kept(statement) if len(statement) <= _LONGEST_KEPT else _search(statement)


def _search(statement: bytes) -> bool:
    text = statement.lower()
    if b"advisory_lock" in text:  # pg_advisory_xact_lock and the like end with the transaction
        return True
    return b"set_config" in text and len(_SETTING.findall(text)) > len(_LOCAL_SETTING.findall(text))


_kept = lru_cache(maxsize=512)(_search)
