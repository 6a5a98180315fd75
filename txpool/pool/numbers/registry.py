"""All pools of this process: for their numbers, and for what a fork means to them."""

from __future__ import annotations

import ctypes
import os
import weakref
from typing import TYPE_CHECKING, Any

from txpool.pool.numbers.statistics import PoolStatistics

if TYPE_CHECKING:
    from txpool.pool.pool import Pool

pools: weakref.WeakSet[Pool[Any]] = weakref.WeakSet()
#: Kept for ever by a forked child: were they collected, the parent's connections would be closed.
inherited: list[object] = []
# Also by the child's interpreter when it exits: SQLite, closing, would roll back what the parent has open in the file.
ctypes.pythonapi.Py_IncRef(ctypes.py_object(inherited))


def all_statistics() -> list[PoolStatistics]:
    """The numbers of every pool of this process that has ever been used."""
    found = [pool.statistics() for pool in list(pools)]
    return [numbers for numbers in found if numbers.size or numbers.created or numbers.connect_failures]


def _after_fork_in_child() -> None:
    for pool in list(pools):
        pool.begin_in_child()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)
