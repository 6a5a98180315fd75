"""Transaction characteristics, as the SQL standard calls them: how a transaction begins."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

from txpool.errors import ProgrammingError

#: The standard's isolation levels, the weakest first.
IsolationLevel = Literal["read-uncommitted", "read-committed", "repeatable-read", "serializable"]
LEVELS: tuple[str, ...] = get_args(IsolationLevel)


@dataclass(frozen=True, slots=True)
class Characteristics:
    """An isolation level of LEVELS, and whether it is read-only. None is what the datasource, or its database, has."""

    isolation: str | None = None
    read_only: bool | None = None

    @classmethod
    def of(cls, isolation: object, read_only: object) -> Characteristics:
        """Of what a program has given; a level may be written as in SQL. ProgrammingError for anything else."""
        if isolation is None and read_only is None:
            return UNSPECIFIED
        level = None
        if isolation is not None:
            level = "-".join(str(isolation).lower().replace("_", " ").replace("-", " ").split())
            if not isinstance(isolation, str) or level not in LEVELS:
                raise ProgrammingError(
                    f"isolation is {isolation!r}: it is {' or '.join(map(repr, LEVELS))}. Nothing was done"
                )
        if read_only is not None and not isinstance(read_only, bool):
            raise ProgrammingError(f"read_only is {read_only!r}: it is True or False. Nothing was done")
        return cls(level, read_only)

    @property
    def specified(self) -> bool:
        return self.isolation is not None or self.read_only is not None

    def over(self, other: Characteristics) -> Characteristics:
        """These, and the other's if these leave something open."""
        return Characteristics(
            other.isolation if self.isolation is None else self.isolation,
            other.read_only if self.read_only is None else self.read_only,
        )

    def require_allows(self, nested: Characteristics, gtrid: str) -> None:
        """ProgrammingError if a block that asks for `nested` would be a part of a transaction with these."""
        if nested.isolation not in (None, self.isolation) or nested.read_only not in (None, bool(self.read_only)):
            raise ProgrammingError(
                f"{gtrid} was begun with {self}, and a block within it asks for {nested}, which cannot change any "
                'more: begin the outermost block so, or give this one a transaction of its own (propagation "requires_'
                'new"). The transaction is as it was.'
            )

    def require_writable(self, gtrid: str, what: str) -> None:
        """ProgrammingError if a transaction with these is read-only."""
        if self.read_only:
            raise ProgrammingError(f"{gtrid} is read-only, and {what} writes. Nothing was done.")

    def __str__(self) -> str:
        words = [] if self.isolation is None else [f"isolation {self.isolation}"]
        if self.read_only is not None:
            words.append("read-only" if self.read_only else "read-write")
        return " and ".join(words) or "no characteristics of its own"


UNSPECIFIED = Characteristics()
