"""The datasources that take part in one transaction, and their enlistments."""

from __future__ import annotations

from threading import Lock
from typing import TYPE_CHECKING, cast

from txpool.resources.base import MarkedBranch, OpenBranch, Role

if TYPE_CHECKING:
    from txpool.datasource import DataSource
    from txpool.dbapi.enlistment import Enlistment
    from txpool.tm.commit_request import CommitRequest
    from txpool.tm.transaction import Transaction


class EnlistedDataSource:
    """A datasource that takes part, and its enlistment: opened once, by the first thread that needs it."""

    __slots__ = ("_opening", "datasource", "enlistment")

    def __init__(self, datasource: DataSource) -> None:
        self.datasource = datasource
        self.enlistment: Enlistment | None = None
        self._opening = Lock()

    def open(self, transaction: Transaction, timeout: float | None) -> Enlistment:
        """Its enlistment; where it is not open yet, wait `timeout` seconds for a connection."""
        with self._opening:
            if self.enlistment is None:
                if transaction.trace is not None:
                    transaction.trace.enlisting(self.datasource)
                self.enlistment = self.datasource.open_enlistment(transaction, timeout)
            return self.enlistment


def add_branch(request: CommitRequest, enlistment: Enlistment) -> None:
    """Add the enlistment's branch to the request, in its role; waits for the statement that executes on it."""
    branch = enlistment.branch
    if branch.role is Role.MARKED:
        request.marked = cast(MarkedBranch, branch)
    elif branch.role is Role.LAST:
        request.last = cast(OpenBranch, branch)
    else:
        request.branches.append(cast(OpenBranch, branch))
