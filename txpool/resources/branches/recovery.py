"""The part of recovery's access that ends branches, as every database of mode xa has it."""

from __future__ import annotations

import logging
from typing import ClassVar

from txpool.resources.base import BranchOutcome, BranchRecord
from txpool.resources.branches.adopted import PhaseTwoConnections
from txpool.resources.branches.phase_two import PhaseTwoCommand
from txpool.resources.driver.driver import Driver
from txpool.xid import Xid


class EndsBranches:
    """The part of a `BranchRecovery` that ends branches: those of one pass over a few connections."""

    command: ClassVar[type[PhaseTwoCommand]]

    def __init__(self, driver: Driver) -> None:
        self._driver = driver
        self._failures: dict[Xid, str] = {}

    def phase_two(self) -> PhaseTwoConnections:
        """Ends many branches over a few connections. Used by one thread at a time; closed with the last answer."""
        return PhaseTwoConnections(self.command, self._driver, level=logging.INFO, failures=self._failures)

    def commit(self, record: BranchRecord) -> BranchOutcome:
        branch = self.phase_two().branch(record)
        branch.start_commit()
        return branch.await_commit()

    def rollback(self, record: BranchRecord) -> BranchOutcome:
        branch = self.phase_two().branch(record)
        branch.start_rollback()
        return branch.await_rollback()

    def why_not(self, record: BranchRecord) -> str:
        """The reason why a branch's last commit or rollback was UNKNOWN; empty if it was not."""
        return self._failures.get(record.xid, "")
