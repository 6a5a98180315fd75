"""What a statement leaves in the session beyond its transaction, as far as its text shows it: no command tag does.

PostgreSQL answers `select pg_advisory_lock(7)` as any other SELECT. To ask each time would cost a round trip. So the
text is searched for the functions that outlive the transaction. Behind another function they are not seen:
`pool.reset = always` is for those.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TypeVar

S = TypeVar("S", bound=bytes | str)
T = TypeVar("T")

# How many answers are kept, and of which statements: of longer ones they cost more memory than the search is worth.
_MOST_KEPT = 512
_LONGEST_KEPT = 4096
# Its third argument is written out: the setting ends with the transaction.
_LOCAL_SETTING = re.compile(r"set_config\s*\((?:[^()';]|'[^']*')*,\s*true\s*\)")
# What may hide an argument's end from that: comments, and strings other than plain ones.
_OBSCURE = re.compile(r"--|/\*|\\|\$[^0-9]")

# A statement that commits, the first or a further one of a message.
_COMMITS = re.compile(
    r"(?:\A|;)(?:\s|--[^\n]*+|/\*(?:[^*]|\*(?!/))*+\*/)*+(?:commit|end|prepare\s+transaction)\b", re.IGNORECASE
)


class KeptAnswers(dict[S, T]):
    """What a search finds in each statement's text: kept by statement, and found by one operation of a dict.

    functools.lru_cache would make a tuple of every key but a str.
    """

    def __init__(self, search: Callable[[S], T]) -> None:
        super().__init__()
        self._search = search

    def __missing__(self, statement: S) -> T:
        answer = self._search(statement)
        if len(statement) <= _LONGEST_KEPT:
            if len(self) >= _MOST_KEPT:
                self.clear()
            self[statement] = answer
        return answer


def outlives_transaction(statement: bytes | str) -> bool:
    """Whether it may take a session's advisory lock, or change a setting of the session, by a function."""
    return _answers[statement]


def may_commit(statement: bytes | str) -> bool:
    """Whether a message's text shows that it commits the open transaction, or may do so."""
    return _COMMITS.search(text_of(statement)) is not None


def text_of(statement: bytes | str) -> str:
    """A statement as text. What is searched for is ASCII, whatever encoding the bytes are in."""
    return statement if isinstance(statement, str) else statement.decode("latin-1")


def _search(statement: bytes | str) -> bool:
    text = text_of(statement).lower()
    if "advisory_lock" in text:  # pg_advisory_xact_lock and the like end with the transaction
        return True
    settings = text.count("set_config")
    return settings > 0 and (settings > len(_LOCAL_SETTING.findall(text)) or _OBSCURE.search(text) is not None)


_answers: KeptAnswers[bytes | str, bool] = KeptAnswers(_search)
