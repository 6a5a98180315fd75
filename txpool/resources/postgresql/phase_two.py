"""Phase two of a prepared branch in PostgreSQL: COMMIT PREPARED or ROLLBACK PREPARED, and what the answer means."""

from __future__ import annotations

import logging
from contextlib import closing
from enum import Enum
from time import monotonic
from typing import Any

import psycopg

from txpool import failpoints
from txpool.errors import described
from txpool.resources.base import BranchOutcome, BranchRecord
from txpool.resources.branch_rows import ROW, RowsDriver, outcome_by_row
from txpool.resources.deadlines import NO_DEADLINES, Deadlines
from txpool.resources.phase_two import EndingCommand
from txpool.resources.postgresql.qualified import qualified
from txpool.resources.postgresql.session.identity import identify
from txpool.resources.postgresql.session.libpq import ReplyTimeout, Session, ends_session, failure, value

#: The evidence of a transaction that wrote nothing, and so has no id.
NO_XID = "none"

#: What the server answers of an id that it has not used yet.
_UNUSED = "unused"

NO_TIMEOUTS = "set statement_timeout = 0; set lock_timeout = 0"
_ABSENT = "42704"
_NOT_ALLOWED = "42501"
# Only the role that prepared a transaction may end it, or a superuser: a member of that role does SET ROLE first.
TAKE_ROLE = qualified("""select set_config('role', owner::text, false) from pg_prepared_xacts
    where gid = {} and database = current_database()""")
#: How a transaction has ended, by its id.
STATUS = qualified("select pg_xact_status('{}'::xid8)")
# The server cancelled the command by statement_timeout or lock_timeout: it is sent again without them.
_TIMED_OUT = frozenset({"57014", "55P03"})
OUTCOMES = {
    "committed": BranchOutcome.COMMITTED,
    "aborted": BranchOutcome.ROLLED_BACK,
    "in progress": BranchOutcome.UNKNOWN,
}


class PhaseTwoVerb(Enum):
    """The command to a prepared branch."""

    COMMIT = "commit"
    ROLLBACK = "rollback"

    def __init__(self, word: str) -> None:
        self.sql = f"{word} prepared "
        self.tag = self.sql.strip().upper().encode()
        self.outcome = BranchOutcome.COMMITTED if word == "commit" else BranchOutcome.ROLLED_BACK
        self.failpoint = "branch.commit-sent" if word == "commit" else "branch.rollback-sent"


class PhaseTwoCommand(EndingCommand):
    """COMMIT PREPARED or ROLLBACK PREPARED of one branch, split-phase.

    `was_prepared` is false where PREPARE was not answered: then the branch may still appear, and an earlier command may
    have come before it.
    """

    def __init__(
        self,
        record: BranchRecord,
        verb: PhaseTwoVerb,
        driver: RowsDriver,
        deadlines: Deadlines = NO_DEADLINES,
        *,
        level: int = logging.WARNING,
        was_prepared: bool = True,
    ) -> None:
        super().__init__(record, verb.value, deadlines, level=level)
        self._was_prepared = was_prepared
        self._verb = verb
        self._driver = driver
        #: The connection over which it was sent; None where it was lost, or nothing was sent yet.
        self._raw: Any = None

    def start(self, raw: Any) -> None:
        """Send the command without waiting. Where the connection is lost, `finish` tries again."""
        self._raw = raw
        self._set_deadline()
        session: Session = raw.session
        try:
            session.send(self._statement(session))
        except psycopg.Error:
            self._raw, self._answer_lost = None, True
        if failpoints.armed:
            failpoints.hit(self._verb.failpoint)

    def sent(self, raw: Any | None, until: float | None) -> PhaseTwoCommand:
        """It was sent over this connection, None where that failed; `until` is when to stop waiting. Returns itself."""
        self._raw, self._until, self._answer_lost = raw, until, raw is None
        return self

    def finish(self) -> BranchOutcome:
        self._set_deadline()
        if self._raw is not None:
            try:
                return self._read(self._raw)
            except ReplyTimeout as error:
                self.overdue = True
                self._log(self._level, f"left to recovery: {error}")
                return BranchOutcome.UNKNOWN
            except psycopg.Error as error:
                self._answer_lost = True
                self._log(logging.INFO, f"no answer, tried again on a fresh connection: {described(error)}")
        return self.run()

    def run(self) -> BranchOutcome:
        """Send the command on a connection of its own, and wait for the outcome; UNKNOWN after any error."""
        try:
            self._set_deadline()
            remaining = None if self._until is None else self._until - monotonic()
            with closing(self._driver.connect(remaining)) as raw:
                raw.session.run(NO_TIMEOUTS, self._until)
                self.start(raw)
                return self._read(raw) if self._raw is not None else BranchOutcome.UNKNOWN
        except Exception as error:
            self._log(self._level, f"no answer, left to recovery: {described(error)}")
            return BranchOutcome.UNKNOWN

    def _statement(self, session: Session) -> str:
        return self._verb.sql + session.quoted(self._record.xid.joined)

    def _read(self, raw: Any) -> BranchOutcome:
        """The outcome, by the answer; psycopg.Error where this connection gives none."""
        session: Session = raw.session
        results = session.receive(self._until)
        error = failure(results)
        remedy = None if error is None else self._remedy(session, error)
        if remedy is not None:
            raw.changed = True
            session.run(remedy, self._until)
            session.send(self._statement(session))
            results = session.receive(self._until)
            error = failure(results)
        if error is None:
            if not results:
                # An interrupt discarded the answer: the next try finds the branch absent, and uses its evidence.
                raise psycopg.OperationalError("the answer was lost in an interrupt")
            return self._verb.outcome
        if ends_session(error) or error.sqlstate in _TIMED_OUT:
            raise error
        if error.sqlstate == _ABSENT:
            return self._outcome_of_absent(raw)
        self._log(self._level, f"refused, left to recovery: {described(error)}")
        return BranchOutcome.UNKNOWN

    def _remedy(self, session: Session, error: psycopg.Error) -> str | None:
        """The SQL to execute before the command is sent again; None where nothing helps."""
        if error.sqlstate in _TIMED_OUT:
            return NO_TIMEOUTS
        if error.sqlstate == _NOT_ALLOWED:
            return TAKE_ROLE.format(session.quoted(self._record.xid.joined))
        return None

    def _outcome_of_absent(self, raw: Any) -> BranchOutcome:
        """The outcome of a branch that is not prepared any more: by the status of its transaction, if that is proven.

        The server is asked last who it is, and not believed to be the one that the session began with: a pooler may
        have led the session elsewhere.
        """
        evidence = self._record.evidence
        xid, timeline = evidence.get("xid", ""), evidence.get("timeline", "")
        status = self._transaction_status(raw.session, xid)
        server = identify(raw.session, self._until)
        if self._record.identity and self._record.identity != server.identity:
            there = server.identity or "a server that does not tell this role its identity (see `txpool check`)"
            self._log(logging.ERROR, f"left to recovery: the datasource leads to another database now: {there}")
            return BranchOutcome.UNKNOWN
        if ROW in evidence or xid == NO_XID:
            return self._outcome_by_row() if ROW in evidence else self._verb.outcome
        if timeline and not server.timeline:
            self._log(self._level, "left to recovery: the server does not tell its timeline, as on a standby")
            return BranchOutcome.UNKNOWN
        if not (self._record.identity and timeline and timeline == server.timeline) or status == _UNUSED:
            self._log(
                self._level,
                "gone, and nothing shows how it ended: the server has failed over or was restored, or does not tell "
                f"who it is (prepared in {self._record.identity or 'an unknown database'} on timeline "
                f"{timeline or 'unknown'}; timeline {server.timeline or 'unknown'} now)",
            )
            return BranchOutcome.LOST
        if status is not None:
            return OUTCOMES.get(status, BranchOutcome.UNKNOWN)
        return self._verb.outcome if self._answer_lost and self._was_prepared else BranchOutcome.ABSENT

    def _outcome_by_row(self) -> BranchOutcome:
        return outcome_by_row(self._driver.rows, self._record, rolling_back=self._verb is PhaseTwoVerb.ROLLBACK)

    def _transaction_status(self, session: Session, xid: str) -> str | None:
        """The server's word on a transaction, or `_UNUSED`; None where it has none, or none for this role."""
        if xid in ("", NO_XID):
            return None
        try:
            (found,) = session.run(STATUS.format(int(xid)), self._until)
        except psycopg.errors.InvalidParameterValue:
            return _UNUSED
        except (psycopg.errors.UndefinedFunction, psycopg.errors.UndefinedObject, psycopg.errors.InsufficientPrivilege):
            return None
        return value(found)
