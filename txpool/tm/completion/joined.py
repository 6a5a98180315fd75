"""The blocks that have joined a transaction, and are open. Each commits as a whole, or not at all.

In the task that ends the transaction there is none. One of another task or thread would commit by half.
"""

from __future__ import annotations

from typing import Any, Final, Protocol
from weakref import WeakSet

_OPEN: Final = object()


class HasValues(Protocol):
    """A transaction, which keeps what other modules have for it."""

    values: dict[Any, Any]


def note_joined(transaction: HasValues, block: object) -> None:
    """The block has joined it. An interrupt may keep it from being left: it counts for as long as somebody has it."""
    transaction.values.setdefault(_OPEN, WeakSet()).add(block)


def note_left(transaction: HasValues, block: object) -> None:
    """The block was left."""
    transaction.values.get(_OPEN, WeakSet()).discard(block)


def is_joined(transaction: HasValues, block: object) -> bool:
    """Whether the block has joined it, and was not left."""
    return block in transaction.values.get(_OPEN, ())


def has_open_blocks(transaction: HasValues) -> bool:
    """Whether one of another task or thread is open: asked by who ends the transaction."""
    return bool(transaction.values.get(_OPEN))


def why_open(transaction: HasValues, deferring: int) -> str:
    """Why it cannot commit, since others work in it; empty if nobody does. `deferring` is how many defer its commit."""
    if deferring:
        return "another thread was still adding work to it"
    if has_open_blocks(transaction):
        return "a block that had joined it was still open, as that of a task or thread that nobody has awaited"
    return ""
