"""Rows for one INSERT, bound to the parameters of a prepared statement in the protocol's binary form."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

#: The most parameters that a statement may have.
MOST_PARAMETERS: Final = 65_535
#: The server holds too many prepared statements, or is to hold none.
NO_MORE_STATEMENTS: Final = 1461


@dataclass(frozen=True, slots=True)
class BoundRows:
    """An INSERT, and its rows."""

    #: The statement, with a parameter for each value.
    statement: bytes
    #: For each value, row by row, two bytes with its type. The same for all rows of a statement.
    types: bytes
    #: For each value a bit that says whether it is NULL.
    nulls: bytes
    #: The values that are not NULL.
    values: memoryview

    @property
    def size(self) -> int:
        """About how many bytes the longer one has of the messages that prepare it, and that execute it."""
        return max(len(self.statement), len(self.types) + len(self.nulls) + len(self.values))
