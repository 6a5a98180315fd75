"""Connections in a forked child: they are the parent's. Nothing that the child does or collects reaches its sockets."""

from __future__ import annotations

import os
from typing import Protocol
from weakref import ref


class _Inherited(Protocol):
    def abandon(self) -> None:
        """In a forked child: keep no way to the parent's session, and send nothing."""


# By the id of each connection of this process. Each step is one operation of a dict: there is no lock, which a fork
# could leave locked.
_opened: dict[int, ref[_Inherited]] = {}


def abandon_after_fork(raw: _Inherited) -> None:
    """From now on each forked child lets go of this connection."""
    key = id(raw)
    _opened[key] = ref(raw, lambda _: _opened.pop(key, None))


def _after_fork_in_child() -> None:
    inherited = [raw for each in list(_opened.values()) if (raw := each()) is not None]
    _opened.clear()
    for raw in inherited:
        raw.abandon()


os.register_at_fork(after_in_child=_after_fork_in_child)
