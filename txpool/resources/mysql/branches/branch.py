"""The branch of a transaction in MariaDB or MySQL: XA START to XA PREPARE, and its end."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from txpool import failpoints
from txpool.errors import described
from txpool.resources.base import BranchOutcome, PrepareVote
from txpool.resources.branches.branch import LOST, PREPARED, REFUSED, SENT, UNSENT, YES, BranchNamedAtStart
from txpool.resources.deadlines import NO_DEADLINES, Deadlines
from txpool.resources.marked.branch_rows import RowsDriver, RowsQueue
from txpool.resources.mysql.branches import xa
from txpool.resources.mysql.branches.phase_two import MySQLPhaseTwo, evidence_of
from txpool.resources.mysql.session.protocol import OUT_OF_STEP, WARNINGS, code_of, ends_session, tells_that_rows_stay
from txpool.resources.mysql.tables.marks import is_hidden

if TYPE_CHECKING:
    from txpool.resources.mysql.session.state import MySQLRawConnection

logger = logging.getLogger("txpool")

_COMMITTED, _ROLLED_BACK, _UNKNOWN = BranchOutcome.COMMITTED, BranchOutcome.ROLLED_BACK, BranchOutcome.UNKNOWN


class MySQLBranch(BranchNamedAtStart):
    """A branch on one raw connection, whose session is nobody else's until it has ended."""

    command = MySQLPhaseTwo

    def __init__(
        self, datasource: str, driver: RowsDriver, raw: MySQLRawConnection, deadlines: Deadlines = NO_DEADLINES
    ) -> None:
        BranchNamedAtStart.__init__(self, datasource, driver, raw, deadlines)  # as in that
        self._driver: RowsDriver = driver
        self._session = raw.session
        #: The server has answered as to a branch that was there still.
        self._found = False
        #: What deletes its row; None if it writes none.
        self.rows_queue: RowsQueue | None = driver.rows_queue
        self._evidence = evidence_of(raw)
        if self.rows_queue is not None:
            self._evidence |= driver.rows.evidence(raw)

    @property
    def idle(self) -> bool:
        return self._prepare is UNSENT and not self._raw.started

    # -- phase one ----------------------------------------------------------------------------------------------

    def start_prepare(self) -> None:
        """Send END and PREPARE in one message, and between them how long the session may be silent from then on.

        If the branch writes a row, that is the first command of the message.
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
        self._prepare = SENT
        try:
            row = [] if self.rows_queue is None else [self._driver.rows.insert(xid)]
            self._session.send(*row, xa.named("end", xid), self._raw.hold_command, xa.named("prepare", xid))
        except Exception as error:
            self._prepare = LOST
            self._note_rollback_vote(error)
            raise
        if failpoints.armed:
            failpoints.hit("branch.prepare-sent")

    def await_prepare(self) -> PrepareVote:
        """Read the answers; only that of PREPARE is a yes."""
        try:
            *row, ended, _, prepared = self._session.receive(self._deadlines.before_decision())
        except Exception as error:
            self._prepare = LOST
            self._note_rollback_vote(error)
            raise
        self._found = ended.error is None
        # If END was refused, as after a deadlock, PREPARE was as well, and END's error says why.
        failed = ended.error or prepared.error
        if failed is None:
            self._prepare = PREPARED
            if row and row[0].error is not None:  # prepared without its row: a rollback ends it
                self._note_rollback_vote(row[0].error)
                raise row[0].error
            if self.record.xid.task is not None:
                # Another process ends it, and cannot do so while this session is connected.
                self._driver.close(self._raw)
            return YES
        self._prepare = LOST if ends_session(failed) else REFUSED
        self._note_rollback_vote(failed)
        if self._raw.rolled_back:
            failed.add_note(f"the server had rolled it back, and its error was caught: {self._raw.rolled_back}")
        raise failed

    # -- its end ------------------------------------------------------------------------------------------------

    def _left(self, outcome: BranchOutcome) -> BranchOutcome:
        outcome = BranchNamedAtStart._left(self, outcome)  # not by super(), which the mutations of the tests cannot
        unrollable = self._raw.unrollable and outcome is _ROLLED_BACK
        return _COMMITTED if unrollable else outcome

    # -- alone, or not prepared ---------------------------------------------------------------------------------

    def commit_one_phase(self) -> BranchOutcome:
        """Commit the branch without preparing it. UNKNOWN if the answer was lost."""
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
        if committed.error is None:  # END is refused if the program has sent it before
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
        """Roll back what is not prepared: the server does so by itself if the session is lost."""
        raw = self._raw
        until = self._deadlines.after_decision()
        outcome = _ROLLED_BACK
        if raw.unread:  # a statement was interrupted: the server would go on with it, and hold its locks
            self._dialect.rollback(self._driver, raw, until)
        elif raw.started and self._session.is_alive():
            try:
                # END is refused if the branch can only roll back, and ROLLBACK is not.
                self._session.send(
                    xa.named("end", raw.xid), xa.named("rollback", raw.xid), WARNINGS, raw.release_hold_command
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
