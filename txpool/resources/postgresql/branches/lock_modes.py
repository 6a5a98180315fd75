"""Which modes of PostgreSQL's locks conflict."""

from __future__ import annotations

from typing import Final

#: PostgreSQL's lock modes 1 to 8, each with the numbers of the modes that it conflicts with.
_CONFLICTS: Final = {
    "AccessShareLock": {8},
    "RowShareLock": {7, 8},
    "RowExclusiveLock": {5, 6, 7, 8},
    "ShareUpdateExclusiveLock": {4, 5, 6, 7, 8},
    "ShareLock": {3, 4, 6, 7, 8},
    "ShareRowExclusiveLock": {3, 4, 5, 6, 7, 8},
    "ExclusiveLock": {2, 3, 4, 5, 6, 7, 8},
    "AccessExclusiveLock": {1, 2, 3, 4, 5, 6, 7, 8},
}
_MODES: Final = {mode: number for number, mode in enumerate(_CONFLICTS, 1)}


def conflict(wanted: str, held: str) -> bool:
    """Whether who wants a lock in one mode waits for who holds it in another; by their names in pg_locks."""
    return _MODES.get(held) in _CONFLICTS[wanted]
