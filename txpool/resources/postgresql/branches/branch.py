"""PostgreSQL's branch: PREPARE TRANSACTION and its answer."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from contextlib import suppress
from typing import TYPE_CHECKING

import psycopg
from psycopg.pq.abc import PGresult

from txpool import failpoints
from txpool.errors import described
from txpool.resources.base import BranchOutcome, BranchRecord, PrepareVote, ReadOnlyCheck
from txpool.resources.branches.branch import LOST, PREPARED, REFUSED, SENT, UNSENT, YES, XABranch
from txpool.resources.branches.phase_two import COMMIT, ROLLBACK, PhaseTwoVerb
from txpool.resources.deadlines import NO_DEADLINES, Deadlines
from txpool.resources.driver.local import LocalTransaction
from txpool.resources.marked.branch_rows import RowsDriver, RowsQueue, without_row
from txpool.resources.postgresql.branches.phase_two import NO_XID, PostgreSQLPhaseTwo
from txpool.resources.postgresql.qualified import qualified
from txpool.resources.postgresql.session.libpq import (
    ACTIVE,
    IDLE,
    INTRANS,
    LibpqSession,
    ends_session,
    failure,
    value,
    why_not_open,
)
from txpool.xid import Xid

if TYPE_CHECKING:
    from txpool.resources.postgresql.session.raw_connection import PsycopgRawConnection

logger = logging.getLogger("txpool")

_DUPLICATE = "42710"
_OWNER = qualified("select owner::text, database::text from pg_prepared_xacts where gid = {}")
_PREPARE = qualified("select pg_current_xact_id_if_assigned(); prepare transaction ")


# The answers to the commands of phase two.
_COMMITTED, _ROLLED_BACK = b"COMMIT PREPARED", b"ROLLBACK PREPARED"
_NO_EVIDENCE: Mapping[str, str] = {}
_new = tuple.__new__


class PostgreSQLBranch(XABranch):
    """A branch in a PostgreSQL database, on one raw connection of the driver `psycopg`."""

    __slots__ = ("_again", "_begun", "_quoted", "_row", "_sent", "_until")

    #: Set by `name`: its xid as an SQL literal, and the statement that writes its row, or nothing.
    _quoted: str
    _row: str
    #: Set with `_begun`: whether one was begun before, and interrupted; whether the command could be sent, and when to
    #: stop waiting for its answer.
    _again: bool
    _sent: bool
    _until: float | None

    def __init__(
        self, datasource: str, driver: RowsDriver, raw: PsycopgRawConnection, deadlines: Deadlines = NO_DEADLINES
    ) -> None:
        """Errors: as `BranchRows.evidence`, if it writes a row before its PREPARE."""
        LocalTransaction.__init__(self, datasource, driver, raw, deadlines)  # super() costs more than all the rest here
        self._prepare = UNSENT
        self._evidence = _NO_EVIDENCE  # until PREPARE is answered
        #: What deletes its row; None if it writes none.
        self.rows_queue: RowsQueue | None = driver.rows_queue
        if self.rows_queue is not None:
            self._evidence = driver.rows.evidence(raw)
        self._begun: PhaseTwoVerb | None = None  #: What phase two has begun.

    @property
    def idle(self) -> bool:
        status = self._raw.pgconn.transaction_status
        return status == IDLE and self._prepare is UNSENT and not self._ended_commands

    def read_only_check(self, *, committing: bool) -> ReadOnlyCheck | None:
        return None if self._raw.wrote else super().read_only_check(committing=committing)

    @property
    def record(self) -> BranchRecord:
        return _new(BranchRecord, (self._xid, self.datasource, self._raw.identity, self._evidence))  # see `make_xid`

    def name(self, xid: Xid) -> None:
        self._xid = xid
        self._quoted = f"'{xid.gtrid}:{xid.bqual}'"  # no character of a name of ours must be escaped in a literal
        self._row = "" if self.rows_queue is None else f"{self.rows_queue.rows.insert(xid)}; "

    # -- phase one ----------------------------------------------------------------------------------------------

    def start_prepare(self) -> None:
        """Send PREPARE, and in the same message the query for the transaction's id, which is the evidence."""
        if self._ended_commands:
            raise self._ended_by_sql_error(self._xid.gtrid)
        raw = self._raw
        session: LibpqSession = raw.session
        if not session.is_alive() or raw.pgconn.transaction_status != INTRANS:
            # PostgreSQL would answer ROLLBACK without an error, which psycopg's tpc_prepare() takes for a yes.
            raise self._rollback_vote(why_not_open(raw))
        self._prepare = SENT
        try:
            session.send(f"{self._row}{_PREPARE}{self._quoted}")
        except psycopg.Error as error:
            self._prepare = LOST
            self._note_rollback_vote(error)
            raise
        if failpoints.armed:
            failpoints.hit("branch.prepare-sent")

    def await_prepare(self) -> PrepareVote:
        """Read both answers; only the tag of PREPARE TRANSACTION is a yes."""
        session: LibpqSession = self._raw.session
        try:
            session.receive(self._deadlines.before_decision())
        except psycopg.Error as error:
            self._prepare = LOST
            self._note_rollback_vote(error)
            raise
        finally:
            self._keep_evidence(session.results)
        results = session.results
        if results and results[-1].command_status == b"PREPARE TRANSACTION":
            self._prepare = PREPARED
            return YES
        raise self._refused(results)

    def _keep_evidence(self, results: list[PGresult]) -> None:
        if self._row:
            results = results[1:]
        if results and results[0].ntuples:
            found = {"xid": value(results[0]) or NO_XID, "timeline": self._raw.timeline}
            self._evidence = {**self._evidence, **found} if self._row else found

    def _refused(self, results: list[PGresult]) -> Exception:
        """The error of a PREPARE with any other answer than its tag."""
        failed = failure(results)
        if failed is not None:
            # After an ERROR nothing is prepared. A FATAL may have come after PREPARE was executed.
            self._prepare = LOST if ends_session(failed) else REFUSED
            self._note_rollback_vote(failed)
            if failed.sqlstate == _DUPLICATE:
                self._note_owner(failed)
            return failed
        if results and results[-1].command_status == b"ROLLBACK":
            self._prepare = REFUSED
            return self._rollback_vote("the database answered PREPARE TRANSACTION by ROLLBACK")
        self._prepare = LOST
        return self._rollback_vote("the answer to PREPARE TRANSACTION was lost in an interrupt")

    def _note_owner(self, error: psycopg.Error) -> None:
        """Add to the error who has prepared a transaction of the same name.

        Any role that may connect can do that; it changes no outcome.
        """
        session = self._raw.session
        if session.status != IDLE:
            return
        with suppress(psycopg.Error):
            (found,) = session.run(_OWNER.format(self._quoted), self._deadlines.after_decision())
            owner, database = found.get_value(0, 0), found.get_value(0, 1)
            if owner is not None and database is not None:
                error.add_note(
                    f"{self._xid.joined} is prepared already in database {database.decode()}, and belongs to "
                    f"the role {owner.decode()}. If that role is not this application's, an administrator of the "
                    "server has to roll it back"
                )

    # -- phase two ----------------------------------------------------------------------------------------------

    def _start(self, verb: PhaseTwoVerb) -> None:
        self._again = self._begun is not None
        self._begun, self._sent = verb, False
        self._until = self._deadlines.after_decision()
        try:
            self._raw.session.send(f"{verb.word} prepared {self._quoted}")
            self._sent = True
        except psycopg.Error as error:
            logger.debug("%s", described(error))  # `_finish` tries again
        if failpoints.armed:
            failpoints.hit(verb.failpoint)

    def _finish(self, verb: PhaseTwoVerb) -> BranchOutcome:
        """What the expected answer does not tell, a `PostgreSQLPhaseTwo` finds out."""
        if self._begun is not verb:
            self._start(verb)
        if self._sent:
            try:
                results = self._raw.session.receive(self._until)
                if len(results) == 1 and results[0].command_status == (_COMMITTED if verb is COMMIT else _ROLLED_BACK):
                    return verb.outcome
            except psycopg.Error as error:
                logger.debug("%s", described(error))  # the command meets it again
        command = PostgreSQLPhaseTwo(self.record, verb, self._driver, self._deadlines)
        return command.sent(self._raw if self._sent else None, self._until, again=self._again).finish()

    def _roll_back_unanswered(self) -> BranchOutcome:
        session: LibpqSession = self._raw.session
        if session.status == ACTIVE:
            return BranchOutcome.UNKNOWN  # the server hangs: another command would hang as well
        # Without the evidence that it wrote nothing: the branch may still appear prepared.
        evidence = {} if self._evidence.get("xid") == NO_XID else without_row(self._evidence)
        record = self.record._replace(evidence=evidence)
        command = PostgreSQLPhaseTwo(record, ROLLBACK, self._driver, self._deadlines, was_prepared=False)
        answered = session.is_alive() and session.status == IDLE
        if answered:
            command.start(self._raw)
        outcome = command.finish()
        if outcome not in (BranchOutcome.ABSENT, BranchOutcome.LOST):
            return outcome
        # The branch is absent. If the session has executed PREPARE, it stays so; else the branch may still appear.
        return BranchOutcome.ROLLED_BACK if answered else BranchOutcome.UNKNOWN
