"""What is found in a statement's text, kept for the next time that it comes."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

S = TypeVar("S", bound=bytes | str)
T = TypeVar("T")

# How many answers are kept.
_MOST_KEPT = 512
#: The longest statement of which they are: of longer ones they cost more memory than the search is worth.
LONGEST_KEPT = 4096


class KeptAnswers(dict[S, T]):
    """What a search finds in each statement's text: kept by statement, and found by one operation of a dict.

    Thread-safe. functools.lru_cache would make a tuple of every key but a str.
    """

    def __init__(self, search: Callable[[S], T]) -> None:
        super().__init__()
        self._search = search

    def __missing__(self, statement: S) -> T:
        answer = self._search(statement)
        if len(statement) <= LONGEST_KEPT:
            if len(self) >= _MOST_KEPT:
                self.clear()
            self[statement] = answer
        return answer


def text_of(statement: bytes | str) -> str:
    """A statement as text. What is searched for is ASCII, whatever encoding the bytes are in."""
    return statement if isinstance(statement, str) else statement.decode("latin-1")
