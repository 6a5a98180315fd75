"""A subordinate transaction: a part of a global one that runs in another process, and ends prepared.

It has the gtrid of the coordinator's transaction, and names its branches after the task that it is. Once it has sent a
PREPARE it never rolls back: from then on only the coordinator and recovery may.
"""

from __future__ import annotations

from typing import cast

from txpool.coordinator import Coordinator
from txpool.errors import ProgrammingError
from txpool.resources.base import Branch, BranchRecord, Vote
from txpool.transaction import Enlistable, Status, Transaction
from txpool.xid import TaskName, make_xid


class Subordinate(Transaction):
    """One task attempt's part of a global transaction."""

    def __init__(self, gtrid: str, *, write: int, partition: int, attempt: int) -> None:
        super().__init__(gtrid, None, _never_in_doubt)
        self._write = write
        self._partition = partition
        self._attempt = attempt

    def _admit(self, datasource: Enlistable) -> None:
        if datasource.mode != "xa":
            raise ProgrammingError(
                f"datasource {datasource.name} (mode={datasource.mode}) cannot be used inside a task of {self.gtrid}: "
                "only a database that prepares can (mode=xa). Write to it on the driver, in the same transaction."
            )

    def commit(self) -> None:
        raise ProgrammingError(f"{self.gtrid} is decided by its coordinator: a task can only prepare")

    def prepare(self) -> list[BranchRecord]:
        """Prepare every branch and return their records; nothing of it is open in this process any more.

        An exception leaves what has been prepared to the coordinator, and rolls back what has not.
        """
        self._require_open()
        self._call_before()
        if self.doom is not None:
            raise self.doom
        self.status = Status.COMMITTING
        branches = [cast(Branch, e.branch) for e in self._enlistments() if not e.branch.idle]
        for number, branch in enumerate(branches):
            task = TaskName(self._write, self._partition, self._attempt, len(branches))
            branch.name(make_xid(self.gtrid, number, branch.datasource, task=task))
        sent: list[Branch] = []
        voted: list[BranchRecord] = []
        try:
            for branch in branches:
                sent.append(branch)
                branch.start_prepare()
            for branch in branches:
                # A branch that the name counts is a branch that was prepared: there is no read-only vote here.
                if branch.await_prepare() is Vote.COMMIT:
                    voted.append(branch.record)
        finally:
            self.status = Status.PREPARED
            for enlistment in self._enlistments():
                branch = cast(Branch, enlistment.branch)
                if branch not in sent and not branch.idle:
                    branch.start_rollback()
                    branch.await_rollback()
                enlistment.release(reusable=len(voted) == len(branches))
        return voted


def _never_in_doubt(_transaction: Transaction, _coordinator: Coordinator) -> None:
    """A subordinate decides nothing, so nothing of it can be in doubt here."""
