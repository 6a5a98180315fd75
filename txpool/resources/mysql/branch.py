"""The branch of a transaction in MariaDB or MySQL: XA START to XA PREPARE, and its end.

XA names a branch before its first statement, when nobody knows yet where the transaction will be decided. So its name
says that the log decides.
"""

from __future__ import annotations

import logging
from enum import Enum
from typing import Any

from txpool import failpoints
from txpool.errors import TransactionRolledBack, described, translate
from txpool.resources.base import BranchOutcome, BranchRecord, PrepareLocation, PrepareVote, Role
from txpool.resources.branch_rows import RowsDriver, RowsQueue, without_row
from txpool.resources.deadlines import NO_DEADLINES, Deadlines
from txpool.resources.local import LocalTransaction
from txpool.resources.mysql import xa
from txpool.resources.mysql.marks import is_hidden
from txpool.resources.mysql.phase_two import PhaseTwoCommand, evidence_of
from txpool.resources.mysql.wire import OUT_OF_STEP, WARNINGS, code_of, ends_session, tells_that_rows_stay
from txpool.resources.phase_two import PhaseTwoVerb
from txpool.xid import Xid

logger = logging.getLogger("txpool")


class _PrepareState(Enum):
    """The state of a branch's PREPARE."""

    UNSENT = "unsent"
    SENT = "sent"  #: sent, and its answer not read
    PREPARED = "prepared"
    REFUSED = "refused"  #: not prepared, and the session can still roll back
    LOST = "lost"  #: the session was lost before the answer: the branch may appear prepared later
    ENDED = "ended"


# As names of their own: Python finds a member of an Enum slowly.
_UNSENT, _SENT, _PREPARED = _PrepareState.UNSENT, _PrepareState.SENT, _PrepareState.PREPARED
_REFUSED, _LOST, _ENDED = _PrepareState.REFUSED, _PrepareState.LOST, _PrepareState.ENDED
_COMMIT, _ROLLBACK = PhaseTwoVerb.COMMIT, PhaseTwoVerb.ROLLBACK
_COMMITTED, _ROLLED_BACK, _UNKNOWN = BranchOutcome.COMMITTED, BranchOutcome.ROLLED_BACK, BranchOutcome.UNKNOWN
_YES = PrepareVote.COMMIT
_new = tuple.__new__


class MySQLBranch(LocalTransaction):
    """A branch on one raw connection, whose session is nobody else's until it has ended."""

    role = Role.PREPARED
    #: Set by `name`.
    record: BranchRecord

    def __init__(self, datasource: str, driver: RowsDriver, raw: Any, deadlines: Deadlines = NO_DEADLINES) -> None:
        super().__init__(datasource, driver, raw, deadlines)
        self._driver: RowsDriver = driver
        self._session = raw.session
        self._prepare = _UNSENT
        #: The server has answered as to a branch that was there still.
        self._found = False
        self._phase_two: PhaseTwoCommand | None = None
        #: What deletes its row; None where it writes none.
        self.rows_queue: RowsQueue | None = driver.rows_queue
        self._evidence = evidence_of(raw)
        if self.rows_queue is not None:
            self._evidence |= driver.rows.evidence(raw)
        raw.xid = None

    @property
    def idle(self) -> bool:
        return self._prepare is _UNSENT and not self._raw.started

    @property
    def location(self) -> PrepareLocation:
        location: PrepareLocation = self._raw.location
        return location

    def name(self, xid: Xid) -> None:
        """The first name stays: XA START sends it. It says that the log decides."""
        if getattr(self, "record", None) is None:
            self._raw.xid = xid
            self.record = _new(
                BranchRecord, (xid, self.datasource, self._raw.identity, self._evidence)
            )  # see `make_xid`

    # -- phase one ----------------------------------------------------------------------------------------------

    def start_prepare(self) -> None:
        """Send END and PREPARE in one message, and between them how long the session may be silent from then on.

        Where the branch writes a row, that is the first command of the message.
        """
        if self._ended_commands:
            raise self._ended_by_sql_error(self.record.xid.gtrid)
        if self._raw.unrollable:
            raise self._rollback_vote("a table without transactions was written, which no rollback undoes")
        if not self._session.is_alive():
            raise self._rollback_vote("the connection was lost before the end")
        if self.rows_queue is not None and is_hidden(self._raw, self._driver.rows.table):
            raise self._rollback_vote(f"a temporary table hides {self._driver.rows.table}: give it another name")
        xid = self.record.xid
        self._prepare = _SENT
        try:
            row = [] if self.rows_queue is None else [self._driver.rows.insert(xid)]
            self._session.send(*row, xa.named("end", xid), self._raw.hold_command, xa.named("prepare", xid))
        except Exception as error:
            self._prepare = _LOST
            self._note_rollback_vote(error)
            raise
        if failpoints.armed:
            failpoints.hit("branch.prepare-sent")

    def await_prepare(self) -> PrepareVote:
        """Read the answers; only that of PREPARE is a yes."""
        try:
            *row, ended, _, prepared = self._session.receive(self._deadlines.before_decision())
        except Exception as error:
            self._prepare = _LOST
            self._note_rollback_vote(error)
            raise
        self._found = ended.error is None
        # Where END was refused, as after a deadlock, PREPARE was as well, and END's error says why.
        failed = ended.error or prepared.error
        if failed is None:
            self._prepare = _PREPARED
            if row and row[0].error is not None:  # prepared without its row: a rollback ends it
                self._note_rollback_vote(row[0].error)
                raise row[0].error
            if self.record.xid.task is not None:
                # Another process ends it, and cannot do so while this session is connected.
                self._driver.close(self._raw)
            return _YES
        self._prepare = _LOST if ends_session(failed) else _REFUSED
        self._note_rollback_vote(failed)
        if self._raw.rolled_back:
            failed.add_note(f"the server had rolled it back, and its error was caught: {self._raw.rolled_back}")
        raise failed

    def _rollback_vote(self, why: str) -> TransactionRolledBack:
        gtrid = self.record.xid.gtrid
        return TransactionRolledBack(
            f"datasource {self.datasource} voted to roll back {gtrid}: {why}", gtrid=gtrid, datasource=self.datasource
        )

    def _note_rollback_vote(self, error: Exception) -> None:
        translate(error)
        error.add_note(f"datasource {self.datasource} voted to roll back {self.record.xid.gtrid}")

    # -- phase two ----------------------------------------------------------------------------------------------

    def start_commit(self) -> None:
        self._start(_COMMIT)

    def await_commit(self) -> BranchOutcome:
        return self._finish(_COMMIT)

    def start_rollback(self) -> None:
        """Send XA ROLLBACK if the branch is prepared; in any other state `await_rollback` does the work."""
        if self._prepare is _PREPARED:
            self._start(_ROLLBACK)

    def await_rollback(self) -> BranchOutcome:
        if self._prepare is _SENT:
            try:
                self.await_prepare()
            except Exception as error:
                logger.info("%s", described(error))
            if self._prepare is _SENT:  # interrupted once more
                self._prepare = _LOST
        if self._prepare is _PREPARED:
            return self._finish(_ROLLBACK)
        if self._prepare is _LOST:
            return self._roll_back_unanswered()
        return self.rollback()

    def _start(self, verb: PhaseTwoVerb) -> None:
        # One that was started before, and interrupted, may have been sent.
        before = self._phase_two is not None
        self._phase_two = PhaseTwoCommand(self.record, verb, self._driver, self._deadlines, answer_lost=before)
        self._phase_two.start(self._session, own=True)

    def _finish(self, verb: PhaseTwoVerb) -> BranchOutcome:
        if self._phase_two is None:
            self._start(verb)
        assert self._phase_two is not None  # noqa: S101 - _start has just made it
        return self._left(self._phase_two.finish())

    def _left(self, outcome: BranchOutcome) -> BranchOutcome:
        """Note that the session has left the branch; where that is not known, close it."""
        if outcome is _UNKNOWN or self._raw.lost:
            self._driver.close(self._raw)
        else:
            self._raw.left()
            self._raw.xid = None
        self._prepare = _ENDED
        unrollable = self._raw.unrollable and outcome is _ROLLED_BACK
        return _COMMITTED if unrollable else outcome

    def _roll_back_unanswered(self) -> BranchOutcome:
        """Roll back what PREPARE may have left prepared, where the session was lost before its answer.

        UNKNOWN where the branch is absent: it may still appear.
        """
        self._driver.close(self._raw)
        record = self.record._replace(evidence=without_row(self.record.evidence))
        command = PhaseTwoCommand(record, _ROLLBACK, self._driver, self._deadlines)
        outcome = command.run()
        return _UNKNOWN if outcome in (BranchOutcome.ABSENT, BranchOutcome.LOST) else outcome

    # -- alone, or not prepared ---------------------------------------------------------------------------------

    def commit_one_phase(self) -> BranchOutcome:
        """Commit the branch without preparing it. UNKNOWN where the answer was lost."""
        raw, xid = self._raw, self._raw.xid
        if self._ended_commands or raw.unrollable or not self._session.is_alive():
            self.failure = self._rollback_vote_alone()
            return self._rolled_back_outcome()
        try:
            self._session.send(xa.named("end", xid), xa.one_phase(xid))
            ended, committed = self._session.receive()
        except Exception as error:
            self.failure = error
            self._driver.close(raw)
            if code_of(error) == OUT_OF_STEP:
                error.add_note(f"datasource {self.datasource}: COMMIT was not sent")
                return self._rolled_back_outcome()
            error.add_note(f"datasource {self.datasource}: the reply to COMMIT was lost")
            return _UNKNOWN
        if committed.error is None:  # END is refused where the program has sent it before
            return self._left(_COMMITTED)
        self._found = ended.error is None or committed.code not in _NOT_FOUND
        failed = ended.error or committed.error
        self._note_refusal(failed)
        if ended.error is None and (ends_session(failed) or committed.code not in _REFUSALS):
            self._driver.close(raw)
            return _UNKNOWN
        return self._rolled_back_outcome()

    def _note_refusal(self, error: Exception) -> None:
        error.add_note(f"datasource {self.datasource} refused to commit")
        if self._raw.rolled_back:
            error.add_note(f"the server had rolled it back, and its error was caught: {self._raw.rolled_back}")
        self.failure = error

    def _rollback_vote_alone(self) -> BaseException:
        if self._ended_commands:
            return self._ended_by_sql_error(self.record.xid.gtrid)
        if self._raw.unrollable:
            return self._rollback_vote("a table without transactions was written, which no rollback undoes")
        return self._rollback_vote("the connection was lost before the end")

    def rollback(self) -> BranchOutcome:
        """Roll back what is not prepared: the server does so by itself where the session is lost."""
        raw = self._raw
        until = self._deadlines.after_decision()
        outcome = _ROLLED_BACK
        if raw.unread:  # a statement was interrupted: the server would go on with it, and hold its locks
            self._dialect.rollback(self._driver, raw, until)
        elif raw.started and self._session.is_alive():
            try:
                # END is refused where the branch can only roll back, and ROLLBACK is not.
                self._session.send(
                    xa.named("end", raw.xid), xa.named("rollback", raw.xid), WARNINGS, raw.let_go_command
                )
                _, rolled_back, warnings, _ = self._session.receive(until)
                raw.unrollable = raw.unrollable or tells_that_rows_stay(warnings)
                if rolled_back.code not in _ROLLED_BACK_CODES:
                    self._driver.close(raw)
                elif rolled_back.error is not None and not self._found:
                    # XA commands of the program's own have ended it, and may have committed it.
                    outcome = BranchOutcome.LOST
            except Exception as error:
                logger.info(
                    "datasource %s: the session was closed, which rolls back: %s", self.datasource, described(error)
                )
                self._driver.close(raw)
        if not self._session.is_alive():
            self._driver.close(raw)
        return self._left(outcome)


#: What the server answers to ROLLBACK: done, or that a COMMIT which it has refused had ended the branch already.
_ROLLED_BACK_CODES = frozenset({0, xa.NOTA, xa.OUTSIDE})
#: What it answers to an end of a branch that is gone.
_NOT_FOUND = frozenset({xa.NOTA, xa.OUTSIDE, xa.RMFAIL})
#: What the server answers to a COMMIT in one phase that it has not done, and never will.
_REFUSALS = xa.ROLLED_BACK | {xa.RMFAIL, xa.NOTA, xa.OUTSIDE, xa.DEADLOCK, 1290, 1792, 1836}
