"""The table that a write goes to, and what its columns must be."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from txpool.errors import ProgrammingError
from txpool.spark.types.columns import Column
from txpool.spark.types.identifiers import quoted, quoted_list


@dataclass(frozen=True, slots=True)
class Target:
    """A table, or one that is to be created."""

    #: Schema and name, quoted if necessary.
    name: str
    columns: tuple[Column, ...] = ()
    #: The columns of each unique index.
    keys: tuple[frozenset[str], ...] = ()
    exists: bool = True
    #: Row-level security is active for this user.
    row_security: bool = False
    #: The clause of INSERT for identity columns.
    overriding: str = "overriding system value"


def require_unique(target: Target, keys: Sequence[str], names: Sequence[str]) -> None:
    """ProgrammingError if `keys` are not among the written columns `names`, or have no unique index."""
    for key in keys:
        if key not in names:
            raise ProgrammingError(f"key {key!r} is not among the columns that are written: {', '.join(names)}.")
    if keys and frozenset(keys) not in target.keys:
        raise ProgrammingError(
            f"upsert into {target.name} needs a unique index on ({', '.join(keys)}), and there is none: create one, or "
            "name the columns of an existing one. Nothing was done."
        )


def create_statement(name: str, definitions: Sequence[tuple[str, str]], keys: Sequence[str] = ()) -> str:
    """The CREATE TABLE statement; `definitions` are pairs of column and declaration."""
    parts = [f"{quoted(column)} {kind}" for column, kind in definitions]
    if keys:
        parts.append(f"primary key ({quoted_list(keys)})")
    return f"create table {name} ({', '.join(parts)})"
