"""A client of the kit: one program's transaction in the datasource, which works, prepares, and may be dropped."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from txpool.conformance.cases.case import Violation, require
from txpool.resources.base import BranchOutcome, BranchRecord, MarkedBranch, OpenBranch, PrepareVote
from txpool.tm.ambient import ambient_variable
from txpool.tm.completion import dropped
from txpool.tm.completion.status import Status
from txpool.tm.transaction import Transaction
from txpool.xid import Xid, make_xid

if TYPE_CHECKING:
    from txpool.conformance.subject import Subject


class Client:
    """One transaction in the datasource, whose branch the kit drives by hand. Used by one thread at a time."""

    def __init__(self, subject: Subject, xid: Xid) -> None:
        self._subject = subject
        self.xid = xid
        self.transaction = Transaction(xid.gtrid, None, _never_in_doubt)
        self._dropped = False
        with self._here():
            self.work = subject.begin(self.transaction)
        enlistment = self.transaction.enlistment_in(subject.name)
        if enlistment is None:
            raise Violation("the transaction has no branch of the resource that was enlisted")
        self._enlistment = enlistment
        branch: Any = enlistment.settled_branch()
        self.branch = branch
        if subject.mode == "xa":
            self.branch.name(xid)  # before the first statement, for databases that need the name so early

    @contextmanager
    def _here(self) -> Iterator[None]:
        token = ambient_variable.set(self.transaction)
        try:
            yield
        finally:
            ambient_variable.reset(token)

    def do(self, action: Callable[..., None], *arguments: Any) -> None:
        """Do something of the workload within the transaction."""
        with self._here():
            action(self.work, *arguments)

    def write(self) -> str:
        """Write something, and return its key."""
        key = self._subject.new_key()
        self.do(self._subject.workload.write, key)
        return key

    def attempt_write(self) -> str | None:
        """Write something; None if that is refused."""
        try:
            return self.write()
        except Exception:
            return None

    # -- as the coordinator ---------------------------------------------------------------------------------------

    def prepare(self) -> BranchRecord:
        """PREPARE, and the branch's record for a decision. An exception is its vote to roll back."""
        require(self.vote() is PrepareVote.COMMIT, "a branch that has written something voted read-only")
        record: BranchRecord = self.branch.record
        require(record.xid == self.xid, f"its record names the branch {record.xid}, which was named {self.xid}")
        return record

    def vote(self) -> PrepareVote:
        """PREPARE, and its answer. An exception is the vote to roll back."""
        branch: OpenBranch = self.branch
        self._subject.may_be_prepared(BranchRecord(self.xid, self._subject.name, branch.location.identity))
        self.transaction.status = Status.COMMITTING
        branch.start_prepare()
        return branch.await_prepare()

    def commit_prepared(self) -> BranchOutcome:
        """Phase two by the client's own session."""
        self.branch.start_commit()
        outcome: BranchOutcome = self.branch.await_commit()
        return outcome

    def roll_back(self) -> BranchOutcome:
        """Roll back, prepared or not, as a coordinator does after a vote to roll back."""
        self.branch.start_rollback()
        outcome: BranchOutcome = self.branch.await_rollback()
        return outcome

    def mark(self) -> tuple[BranchRecord, ...]:
        """Write the row of a marked branch. It names one other branch, which is none of any database."""
        marked: MarkedBranch = self.branch
        self.transaction.status = Status.COMMITTING
        identity = marked.identity()
        other = make_xid(self.xid.gtrid, 0, "other", decider=self._subject.name, identity=identity)
        records = (BranchRecord(other, "other", "none", {"note": 'it\'s \\ "quoted" ; -- %s ?'}),)
        marked.mark(self.xid.gtrid, records)
        return records

    def decide(self, records: tuple[BranchRecord, ...]) -> None:
        """Commit the marked branch: its row is the decision."""
        self.branch.record(self.xid.gtrid, records)

    def end(self) -> None:
        """Commit the transaction, of which this is the only branch. Errors: as Transaction.commit."""
        self._dropped = True
        self.transaction.end_commit()

    # -- its end --------------------------------------------------------------------------------------------------

    def cancel_statement(self) -> None:
        """Cancel what another thread still executes."""
        if not self._dropped:
            self._enlistment.cancel()

    def drop(self) -> None:
        """Lose the client: its connection is closed without another word."""
        if self._dropped:
            return
        self._dropped = True
        self.transaction.status = Status.PREPARED
        self._enlistment.release(Status.PREPARED, reusable=False)
        dropped.parts.pop(id(self.transaction), None)


def _never_in_doubt(_transaction: Transaction, _coordinator: object) -> None:
    """The kit looks at the data itself."""
