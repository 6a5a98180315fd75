"""Modules of a user's own, which each pass runs after recovery's own ones.

A module reads the snapshot, and acts on what is its own: files, caches, tickets. It ends no branch: a resource with
branches is a datasource (`txpool.resource`). It has a thread of its own, and `recovery.step-timeout` for each pass: one
that fails or hangs is reported by its name, and holds up nobody.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Protocol

from recovery.scan.recovery_pass import RecoveryPass
from recovery.scan.snapshot import Snapshot
from txpool.errors import OperationalError


class RecoveryModule(Protocol):
    """A module of a user's own."""

    def run(self, snapshot: Snapshot) -> object:
        """Called in each pass with what the pass has read. Everything that it does may be repeated."""


class OwnModule:
    """Runs one such module; it is made when it is first run, and again in the next pass if that has failed."""

    def __init__(self, name: str, make: Callable[[], RecoveryModule]) -> None:
        self.name = name
        self._make = make
        self._module: RecoveryModule | None = None

    def run(self, this_pass: RecoveryPass) -> None:
        if this_pass.is_last:  # it is shown all at once
            this_pass.datasources.asking.start(f"module {self.name}", partial(self._run, this_pass.whole))()

    def _run(self, snapshot: Snapshot) -> None:
        try:
            if self._module is None:
                self._module = self._make()
            self._module.run(snapshot)
        except SystemExit as error:  # it would end the thread of recovery
            raise OperationalError(f"it has called sys.exit({error.code!r})") from error
