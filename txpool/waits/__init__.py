"""Statements that wait: one thread of the process looks into those that execute for longer than
`transaction.wait-report`.

If such a statement waits for a lock that a prepared branch of txpool's holds, a warning says so. Nobody but recovery
ends such a branch once its process is dead.
"""

from __future__ import annotations

from txpool.waits import watcher

__all__ = ["watcher"]
