"""Branches of mode xa: the states of their PREPARE, and how they come to their end.

`XABranch` is every branch's. `BranchNamedAtStart` is one that XA START names before its first statement, when nobody
knows yet if the transaction will be decided: so its name says that the log decides.
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Mapping
from enum import Enum
from typing import TYPE_CHECKING, Any, ClassVar

from txpool.errors import TransactionRolledBack, described, translate
from txpool.resources.base import BranchOutcome, BranchRecord, PrepareLocation, PrepareVote, Role
from txpool.resources.branches.phase_two import COMMIT, ROLLBACK, PhaseTwoCommand, PhaseTwoVerb
from txpool.resources.deadlines import NO_DEADLINES, Deadlines
from txpool.resources.driver.local import LocalTransaction
from txpool.resources.marked.branch_rows import without_row
from txpool.xid import Xid

if TYPE_CHECKING:
    from txpool.resources.driver.raw import RawConnection

logger = logging.getLogger("txpool")


class PrepareState(Enum):
    """The state of a branch's PREPARE."""

    UNSENT = "unsent"
    SENT = "sent"  #: sent, and its answer not read
    PREPARED = "prepared"
    REFUSED = "refused"  #: nothing is prepared, nor ever will be
    LOST = "lost"  #: the session was lost before the answer: the branch may appear prepared later
    ENDED = "ended"  #: the session has left the branch, or is closed


# Names of their own: Python 3.11 calls a function for each member that is read from an Enum.
UNSENT, SENT, PREPARED, REFUSED, LOST, ENDED = PrepareState
YES = PrepareVote.COMMIT
_NO_EVIDENCE: Mapping[str, str] = {}
_UNKNOWN = BranchOutcome.UNKNOWN
_new = tuple.__new__


class XABranch(LocalTransaction, ABC):
    """A branch on one raw connection, whose session is nobody else's until it has ended."""

    __slots__ = ("_evidence", "_prepare", "_xid", "rows_queue")

    role = Role.PREPARED
    #: Set by `name`.
    _xid: Xid
    _prepare: PrepareState
    #: What its record keeps of the server, and of the branch.
    _evidence: Mapping[str, str]

    @property
    def location(self) -> PrepareLocation:
        location: PrepareLocation = self._raw.location
        return location

    # -- phase one ----------------------------------------------------------------------------------------------

    @abstractmethod
    def await_prepare(self) -> PrepareVote: ...

    def _rollback_vote(self, why: str) -> TransactionRolledBack:
        gtrid = self._xid.gtrid
        return TransactionRolledBack(
            f"datasource {self.datasource} voted to roll back {gtrid}: {why}", gtrid=gtrid, datasource=self.datasource
        )

    def _note_rollback_vote(self, error: Exception) -> None:
        translate(error)
        error.add_note(f"datasource {self.datasource} voted to roll back {self._xid.gtrid}")

    # -- phase two ----------------------------------------------------------------------------------------------

    def start_commit(self) -> None:
        self._start(COMMIT)

    def await_commit(self) -> BranchOutcome:
        return self._finish(COMMIT)

    def start_rollback(self) -> None:
        """Roll back the branch if it is prepared; in any other state `await_rollback` does the work."""
        if self._prepare is PREPARED:
            self._start(ROLLBACK)

    def await_rollback(self) -> BranchOutcome:
        if self._prepare is SENT:
            try:
                self.await_prepare()
            except Exception as error:
                logger.info("%s", described(error))
            if self._prepare is SENT:  # interrupted once more
                self._prepare = LOST
        if self._prepare is PREPARED:
            return self._finish(ROLLBACK)
        if self._prepare is LOST:
            return self._roll_back_unanswered()
        return self.rollback()

    @abstractmethod
    def _start(self, verb: PhaseTwoVerb) -> None:
        """Send the command over the branch's own connection, without waiting."""

    @abstractmethod
    def _finish(self, verb: PhaseTwoVerb) -> BranchOutcome:
        """Wait for the outcome; send the command first if that was not done."""

    @abstractmethod
    def _roll_back_unanswered(self) -> BranchOutcome:
        """Roll back what PREPARE may have left prepared. UNKNOWN if the branch is absent, and may still appear."""


class BranchNamedAtStart(XABranch):
    """A branch whose first name stays: its START has sent that."""

    #: Sends the commands of its phase two.
    command: ClassVar[type[PhaseTwoCommand]]
    #: Set by `name`.
    record: BranchRecord

    def __init__(self, datasource: str, driver: Any, raw: RawConnection, deadlines: Deadlines = NO_DEADLINES) -> None:
        LocalTransaction.__init__(self, datasource, driver, raw, deadlines)  # super() costs more than all the rest here
        self._prepare = UNSENT
        self._evidence = _NO_EVIDENCE
        self._phase_two: PhaseTwoCommand | None = None
        raw.xid = None

    def name(self, xid: Xid) -> None:
        """The first name stays: START sends it. It says that the log decides."""
        if getattr(self, "record", None) is None:
            self._raw.xid = self._xid = xid
            self.record = _new(
                BranchRecord, (xid, self.datasource, self._raw.identity, self._evidence)
            )  # see `make_xid`

    def _start(self, verb: PhaseTwoVerb) -> None:
        # One that was started before, and interrupted, may have been sent.
        before = self._phase_two is not None
        self._phase_two = self.command(self.record, verb, self._driver, self._deadlines, answer_lost=before)
        self._phase_two.start(self._raw, own=True)

    def _finish(self, verb: PhaseTwoVerb) -> BranchOutcome:
        if self._phase_two is None:
            self._start(verb)
        assert self._phase_two is not None  # noqa: S101 - _start has just made it
        return self._left(self._phase_two.finish())

    def _left(self, outcome: BranchOutcome) -> BranchOutcome:
        """Note that the session has left the branch; if that is not known, close it."""
        if outcome is _UNKNOWN or self._raw.lost:
            self._driver.close(self._raw)
        else:
            self._leave()
        self._prepare = ENDED
        return outcome

    def _leave(self) -> None:
        self._raw.left()
        self._raw.xid = None

    def _roll_back_unanswered(self) -> BranchOutcome:
        self._driver.close(self._raw)
        record = self.record._replace(evidence=without_row(self.record.evidence))
        command = self._phase_two = self.command(record, ROLLBACK, self._driver, self._deadlines, was_prepared=False)
        outcome = command.run()
        if outcome in (BranchOutcome.ABSENT, BranchOutcome.LOST) and not command.remembered:
            return _UNKNOWN
        return outcome
