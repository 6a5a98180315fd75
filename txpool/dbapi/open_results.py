"""Cursors and blobs of the driver that keep a transaction open until they are read to their end, or closed."""

from __future__ import annotations

from typing import Any
from weakref import ref

#: Weak references. One removes itself when its cursor is collected; that is cheaper than a WeakSet.
OpenResults = set[ref[Any]]


def hold_open(holder: Any, result: Any) -> None:
    """Note one in `holder.cursors`: it must be closed when its holder gives the physical connection back."""
    holder.cursors.add(ref(result, holder.cursors.discard))


def close_open(results: OpenResults) -> None:
    """Close all that are left."""
    for reference in list(results):
        result = reference()
        if result is not None:
            result.close()
    results.clear()
