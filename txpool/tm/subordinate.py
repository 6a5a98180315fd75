"""A subordinate transaction: a part of a global one that runs in another process, and ends prepared.

It has the gtrid of the coordinator's transaction, and names its branches after the task that it is. Once it has sent a
PREPARE it never rolls back: from then on only the coordinator and recovery may.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import cast

from txpool.errors import ProgrammingError
from txpool.resources.base import BranchRecord, LocationKey, OpenBranch, PrepareLocation, PrepareVote, Role
from txpool.tm import dropped, statistics
from txpool.tm.coordinator import Coordinator, Phase
from txpool.tm.participants import Enlistable
from txpool.tm.readers import Readers
from txpool.tm.transaction import Status, Transaction, _quietly
from txpool.xid import TaskName, make_xid


class Subordinate(Transaction):
    """One task attempt's part of a global transaction. Whoever made it ends it: by prepare(), or by rollback()."""

    def __init__(
        self, gtrid: str, *, write: int, partition: int, attempt: int, places: Collection[LocationKey] | None = None
    ) -> None:
        """`places` are those that the log has notes of; None where whoever coordinates sees to them."""
        super().__init__(gtrid, None, _never_in_doubt)
        # As in a block: commit() and rollback() of the ambient transaction are not for the code that works in it.
        self.scoped = True
        self.label = f"{gtrid}/{write}/{partition}"
        self._write = write
        self._partition = partition
        self._attempt = attempt
        self._locations = places

    def _require_atomic(self, datasource: Enlistable) -> None:
        if datasource.role is not Role.PREPARED:
            raise ProgrammingError(
                f"datasource {datasource.name} (mode={datasource.mode}) cannot be used inside a task of {self.gtrid}: "
                "only a database that prepares can (mode=xa). Write to it on the driver, in the same transaction."
            )

    def commit(self, *, leaving: bool = False) -> None:
        raise ProgrammingError(f"{self.gtrid} is decided by its coordinator: a task can only prepare")

    def rollback(self, *, leaving: bool = True) -> None:
        super().rollback(leaving=leaving)

    def prepare(self) -> list[BranchRecord]:
        """Prepare every branch that wrote something, and return their records; nothing stays open in this process.

        What has only read keeps its locks until then, and ends by a rollback.

        An exception leaves to the coordinator whatever PREPARE was sent to: it may be prepared, now or later. As long
        as it is not `ended`, nothing was sent, and rollback() is due.
        """
        self._require_open()
        self._call_before()
        if self.rollback_cause is not None:
            raise self.rollback_cause
        self.status = Status.COMMITTING
        try:
            working = [cast(OpenBranch, e.branch) for e in self._enlistments() if not e.branch.idle]
        except BaseException:  # it was interrupted while it waited for another thread's statement
            self._reopen()
            raise
        voted: list[OpenBranch] = []
        readers = Readers()
        if self.trace is not None:
            self.trace.phase(Phase.PREPARE)
        try:
            readers.find(working, committing=False)
            working = [branch for branch in working if branch not in readers]
            for number, branch in enumerate(working):
                task = TaskName(self._write, self._partition, self._attempt, len(working))
                branch.name(make_xid(self.gtrid, number, branch.datasource, task=task))
            for branch in working:
                self._require_noted(branch.location)
            for branch in working:
                branch.start_prepare()
            for branch in working:
                if branch.await_prepare() is PrepareVote.COMMIT:
                    voted.append(branch)
            return [branch.record for branch in voted]
        finally:
            self.status = Status.PREPARED
            readers.roll_back()
            statistics.prepared()
            for enlistment in self._enlistments():
                # To close a connection rolls back what was not sent a PREPARE, and cannot touch what was.
                certain = enlistment.branch not in working or enlistment.branch in voted
                _quietly(enlistment.release, self.status.value, reusable=certain)
            dropped.release(self)
            self._call_after()
            if readers.interrupt is not None:
                raise readers.interrupt

    def _require_noted(self, site: PrepareLocation) -> None:
        """Nothing is prepared where recovery would not look for it after a crash."""
        if self._locations is None or site.key in self._locations:
            return
        if any(identity == site.identity for identity, _ in self._locations):
            why = (
                f"this task logs in as another role (oid {site.role}) than the driver does: give both the same user, "
                "whose secret the executors find by spark.executorEnv.…"
            )
        else:
            why = (
                "the driver did not know, before the job, that its tasks work there: pass "
                f"datasources=[…] with {site.datasource} among them, or open it on the driver"
            )
        raise ProgrammingError(
            f"datasource {site.datasource}: nothing was prepared there for {self.gtrid}, since after a crash nobody "
            f"would find it: {why}. The task's work is rolled back"
        )


def _never_in_doubt(_transaction: Transaction, _coordinator: Coordinator) -> None:
    """A subordinate decides nothing, so nothing of it can be in doubt here."""
