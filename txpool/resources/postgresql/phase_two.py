"""Phase two of a prepared branch in PostgreSQL: COMMIT PREPARED or ROLLBACK PREPARED, and what the answer means."""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import closing
from enum import Enum
from time import monotonic
from typing import Any

import psycopg

from txpool import failpoints
from txpool.resources.base import BranchOutcome, BranchRecord
from txpool.resources.deadlines import NO_DEADLINES, Deadlines
from txpool.resources.postgresql.libpq import ReplyTimeout, Session, ends_session, failure, value

logger = logging.getLogger("txpool")

#: The evidence of a transaction that wrote nothing, and so has no id.
NO_XID = "none"

_NO_TIMEOUTS = "set statement_timeout = 0; set lock_timeout = 0"
_ABSENT = "42704"
_NOT_ALLOWED = "42501"
# Only the role that prepared a transaction may end it, or a superuser: a member of that role does SET ROLE first.
_TAKE_ROLE = """select set_config('role', owner::text, false) from pg_prepared_xacts
    where gid = {} and database = current_database()"""
# The server cancelled the command by statement_timeout or lock_timeout: it is sent again without them.
_TIMED_OUT = frozenset({"57014", "55P03"})
_OUTCOMES = {
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


class PhaseTwoCommand:
    """COMMIT PREPARED or ROLLBACK PREPARED of one branch, split-phase; tried again once on a fresh connection.

    `level` is the log level of failures: recovery tries again and again, and logs them itself.
    """

    def __init__(
        self,
        record: BranchRecord,
        verb: PhaseTwoVerb,
        connect: Callable[[float | None], Any],
        deadlines: Deadlines = NO_DEADLINES,
        *,
        level: int = logging.WARNING,
    ) -> None:
        self._record = record
        self._verb = verb
        self._connect = connect
        self._deadlines = deadlines
        #: When to stop waiting for an answer; set by the first start.
        self._until: float | None = None
        self._level = level
        #: The reason why the last outcome was UNKNOWN.
        self.failure = ""
        #: True where no answer came before the deadline.
        self.overdue = False
        #: The connection over which it was sent; None where it was lost, or nothing was sent yet.
        self._raw: Any = None

    def start(self, raw: Any) -> None:
        """Send the command without waiting. Where the connection is lost, `finish` tries again."""
        self._raw = raw
        self._until = self._until or self._deadlines.after_decision()
        session: Session = raw.session
        try:
            session.send(self._statement(session))
        except psycopg.Error:
            self._raw = None
        if failpoints.armed:
            failpoints.hit(self._verb.failpoint)

    def sent(self, raw: Any | None, until: float | None) -> PhaseTwoCommand:
        """It was sent over this connection, or to none yet; `until` is when to stop waiting. Returns itself."""
        self._raw, self._until = raw, until
        return self

    def finish(self) -> BranchOutcome:
        """Wait for the outcome. UNKNOWN leaves the branch to recovery; LOST is absent without evidence."""
        if self._raw is not None:
            try:
                return self._read(self._raw)
            except ReplyTimeout as error:
                self.overdue = True
                self._log(logging.WARNING, f"left to recovery: {error}")
                return BranchOutcome.UNKNOWN
            except psycopg.Error as error:
                self._log(logging.INFO, f"no answer, tried again on a fresh connection: {error}")
        return self.run()

    def run(self) -> BranchOutcome:
        """Send the command on a connection of its own, and wait for the outcome; UNKNOWN after any error."""
        try:
            self._until = self._until or self._deadlines.after_decision()
            remaining = None if self._until is None else self._until - monotonic()
            with closing(self._connect(remaining)) as raw:
                raw.session.run(_NO_TIMEOUTS, self._until)
                self.start(raw)
                return self._read(raw) if self._raw is not None else BranchOutcome.UNKNOWN
        except Exception as error:
            self._log(self._level, f"no answer, left to recovery: {error}")
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
        self._log(self._level, f"refused, left to recovery: {error}")
        return BranchOutcome.UNKNOWN

    def _remedy(self, session: Session, error: psycopg.Error) -> str | None:
        """The SQL to execute before the command is sent again; None where nothing helps."""
        if error.sqlstate in _TIMED_OUT:
            return _NO_TIMEOUTS
        if error.sqlstate == _NOT_ALLOWED:
            return _TAKE_ROLE.format(session.quoted(self._record.xid.joined))
        return None

    def _outcome_of_absent(self, raw: Any) -> BranchOutcome:
        """The outcome of a branch that is not prepared (any more), by the id of its transaction."""
        if self._record.identity not in ("", raw.identity):
            self._log(logging.ERROR, f"left to recovery: the datasource leads to another database now: {raw.identity}")
            return BranchOutcome.UNKNOWN
        evidence = self._record.evidence
        xid = evidence.get("xid")
        if xid == NO_XID:
            return self._verb.outcome
        if xid is None or evidence.get("timeline", "") != raw.timeline:
            return BranchOutcome.LOST
        try:
            (found,) = raw.session.run(f"select pg_xact_status('{int(xid)}'::xid8)", self._until)
        except psycopg.errors.InvalidParameterValue:  # the server has not used that id yet: an older state was restored
            return BranchOutcome.LOST
        return _OUTCOMES.get(value(found) or "", BranchOutcome.LOST)

    def _log(self, level: int, failure: str) -> None:
        self.failure = failure
        logger.log(
            level,
            "datasource %s: %s of %s: %s",
            self._record.datasource,
            self._verb.value,
            self._record.xid.joined,
            failure,
        )
