"""A subordinate transaction: the part of a global one that runs in another process (a Spark task), and ends prepared.

It has the gtrid of the coordinator's transaction, and its branches are named after the task. Once it has sent a PREPARE
it never rolls back: from then on only the coordinator and recovery may.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from itertools import filterfalse
from operator import attrgetter
from typing import TYPE_CHECKING, Any, cast

from txpool.errors import ProgrammingError
from txpool.resources.base import BranchRecord, LocationKey, OpenBranch, PrepareLocation, PrepareVote, Role
from txpool.sql.characteristics import UNSPECIFIED, Characteristics
from txpool.tm.background import statistics
from txpool.tm.commit.coordinator import Coordinator
from txpool.tm.commit.phase import Phase
from txpool.tm.commit.readers import Readers, checks_of
from txpool.tm.completion import dropped
from txpool.tm.completion.status import MARKED_ROLLBACK, Status
from txpool.tm.completion.synchronizations import call_logging_errors
from txpool.tm.transaction import Transaction
from txpool.xid import TaskName, Xid, make_xid

if TYPE_CHECKING:
    from txpool.tm.enlistment import TakesPart


class Subordinate(Transaction):
    """One task attempt's part of a global transaction. The task ends it, by prepare() or rollback()."""

    def __init__(
        self,
        gtrid: str,
        *,
        write: int,
        partition: int,
        attempt: int,
        locations: Collection[LocationKey] | None = None,
        characteristics: Characteristics = UNSPECIFIED,
    ) -> None:
        """`locations` are those that the log has notes of; None if the coordinator writes the notes itself."""
        super().__init__(gtrid, None, _never_in_doubt)
        # As in a block, the code that works in it cannot end it by txpool.commit() or txpool.rollback().
        self.scoped = True
        self.characteristics = characteristics
        self.label = f"{gtrid}/{write}/{partition}"
        self._write = write
        self._partition = partition
        self._attempt = attempt
        self._locations = locations

    def _require_atomic(self, datasource: TakesPart[Any]) -> None:
        if datasource.role is not Role.PREPARED:
            raise ProgrammingError(
                f"datasource {datasource.name} (mode={datasource.mode}) cannot be used inside a task of {self.gtrid}: "
                "only a database that prepares can (mode=xa). Write to it on the driver, in the same transaction."
            )

    def commit(self) -> None:
        raise ProgrammingError(
            f"{self.gtrid} is decided by Spark's driver, and no task commits it: let the function return"
        )

    end_commit = commit

    def rollback(self) -> None:
        """Roll back everywhere. Errors: HeuristicError if a branch had committed by itself."""
        self.end_rollback()

    def prepare(self) -> list[BranchRecord]:
        """Prepare every branch that wrote something, and return their records; nothing stays open in this process.

        A branch that has only read keeps its locks until the others are prepared, and ends by a rollback.

        After an exception, the branches that were sent a PREPARE are left to the coordinator: they may be prepared, now
        or later. If the transaction is not `ended` then, no PREPARE was sent, and the caller must call rollback().
        """
        self._require_open()
        self._call_before_completion()
        if self.rollback_cause is not None:
            raise self.rollback_cause
        votes: dict[OpenBranch, PrepareVote] = {}
        readers = Readers()
        self.status = Status.COMMITTING
        try:
            enlisted = [cast(OpenBranch, each.settled_branch()) for each in self._enlistments()]
            working = list(filterfalse(attrgetter("idle"), enlisted))
        except BaseException:  # it was interrupted while it waited for another thread's statement
            self.status = MARKED_ROLLBACK  # here, since an interrupt in a function of ours would leave it as it is
            raise
        try:
            if self.trace is not None:
                self.trace.phase(Phase.PREPARE)
            readers.find(checks_of(working, committing=False))
            working = list(filterfalse(readers.__contains__, working))
            numbers, whole = list(self._enlisted), self._task(len(working))
            for branch in working:
                name, in_part = branch.datasource, getattr(branch, "listed_in_part", False)
                task = self._task(0) if in_part else whole  # which is never all: no retry adopts it
                branch.name(make_xid(self.gtrid, numbers.index(name), name, task=task))
            for branch in working:
                self._require_noted(branch.location)
            for branch in working:
                branch.start_prepare()
            for branch in working:
                votes[branch] = branch.await_prepare()
        finally:
            self.status = Status.PREPARED
            try:
                statistics.prepared()
                interrupt = self._leave(readers, working, votes)
            except BaseException as error:
                interrupt = error
                try:
                    self._leave(readers, working, votes)
                except BaseException:  # a second one: those whom it concerns are told all the same
                    self._leave(readers, working, votes)
            if interrupt is not None:
                raise interrupt
        return [branch.record for branch, vote in votes.items() if vote is PrepareVote.COMMIT]

    def _leave(
        self, readers: Readers, working: Collection[OpenBranch], votes: Mapping[OpenBranch, PrepareVote]
    ) -> BaseException | None:
        """Give everything back, and call those after completion; returns the first interrupt. May be called again."""
        readers.roll_back()
        for enlistment in self._enlistments():
            # Closing its connection rolls a branch back that was not sent a PREPARE, and no other.
            branch = enlistment.branch
            outcome_known = branch not in working or votes.get(branch) is PrepareVote.COMMIT
            call_logging_errors(enlistment.release, self.status, reusable=outcome_known)
        dropped.parts.pop(id(self), None)
        in_callbacks = None
        if self._synchronizations is not None:
            in_callbacks = self._synchronizations.call_after(self.status)
        return readers.interrupt or in_callbacks

    def early_name(self, datasource: str) -> Xid:
        """As a transaction's. How many branches there will be is not known yet: the name says 0, which is never all."""
        return make_xid(self.gtrid, list(self._enlisted).index(datasource), datasource, task=self._task(0))

    def _task(self, branches: int) -> TaskName:
        return TaskName(self._write, self._partition, self._attempt, branches)

    def _require_noted(self, location: PrepareLocation) -> None:
        """ProgrammingError if the log has no note of the location: recovery would not look there after a crash."""
        if self._locations is None or location.key in self._locations:
            return
        if any(identity == location.identity for identity, _ in self._locations):
            reason = (
                f"this task logs in as another role (oid {location.role}) than the driver does: give both the same "
                "user, whose secret the executors find by spark.executorEnv.…"
            )
        else:
            reason = (
                "the driver did not know, before the job, that its tasks work there: pass "
                f"datasources=[…] with {location.datasource} among them, or open it on the driver"
            )
        raise ProgrammingError(
            f"datasource {location.datasource}: nothing was prepared there for {self.gtrid}, since after a crash "
            f"nobody would find it: {reason}. The task's work is rolled back"
        )


def _never_in_doubt(_transaction: Transaction, _coordinator: Coordinator) -> None:
    """A subordinate decides nothing, so nothing of it can be in doubt here."""
