"""Phase two of a branch that PostgreSQL holds prepared: COMMIT or ROLLBACK PREPARED, and what its answer means."""

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

#: In evidence, the id of a transaction that wrote nothing.
NO_XID = "none"

_NO_TIMEOUTS = "set statement_timeout = 0; set lock_timeout = 0"
_ABSENT = "42704"
_NOT_ALLOWED = "42501"
# Only the role that prepared it may finish it, or a superuser: a member of that role takes it on first.
_TAKE_ROLE = """select set_config('role', owner::text, false) from pg_prepared_xacts
    where gid = {} and database = current_database()"""
# Cancelled by statement_timeout, or a lock's: here neither may have a say.
_TIMED_OUT = frozenset({"57014", "55P03"})
_OUTCOMES = {
    "committed": BranchOutcome.COMMITTED,
    "aborted": BranchOutcome.ROLLED_BACK,
    "in progress": BranchOutcome.UNKNOWN,
}


class PhaseTwoVerb(Enum):
    """What a prepared branch is told."""

    COMMIT = "commit"
    ROLLBACK = "rollback"

    @property
    def outcome(self) -> BranchOutcome:
        return BranchOutcome.COMMITTED if self is PhaseTwoVerb.COMMIT else BranchOutcome.ROLLED_BACK


_SENT_FAILPOINTS = {PhaseTwoVerb.COMMIT: "branch.commit-sent", PhaseTwoVerb.ROLLBACK: "branch.rollback-sent"}


class PhaseTwoCommand:
    """One verb to one prepared branch: started, then finished, once more on a fresh connection where one was lost."""

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
        #: Until when an answer is awaited, from the first start on.
        self._until: float | None = None
        #: Of what is said where there is no answer; recovery asks again and again, and says so once itself.
        self._level = level
        #: What came in place of an answer.
        self.failure = ""
        #: Whether the server hangs, as far as could be awaited.
        self.overdue = False
        self._session: Session | None = None

    def start(self, session: Session) -> None:
        """Send it, without waiting; a lost connection is `finish`'s matter."""
        self._session = session
        self._until = self._until or self._deadlines.after_decision()
        try:
            session.send(self._statement(session))
        except psycopg.Error:
            self._session = None
        if failpoints.armed:
            failpoints.hit(_SENT_FAILPOINTS[self._verb])

    def finish(self) -> BranchOutcome:
        """Await the answer. UNKNOWN leaves the branch to recovery, LOST says that it is gone, who knows how."""
        if self._session is not None:
            try:
                return self._read(self._session)
            except ReplyTimeout as error:
                self.overdue = True
                self._log(logging.WARNING, f"it is left to recovery, as {error}")
                return BranchOutcome.UNKNOWN
            except psycopg.Error as error:
                self._log(logging.INFO, f"no answer on this session, trying once more on a fresh one: {error}")
        return self.run()

    def run(self) -> BranchOutcome:
        """The whole of it on a connection of its own; an error leaves it UNKNOWN."""
        try:
            self._until = self._until or self._deadlines.after_decision()
            remaining = None if self._until is None else self._until - monotonic()
            with closing(self._connect(remaining)) as raw:
                session = Session(raw)
                session.run(_NO_TIMEOUTS, self._until)
                self.start(session)
                return self._read(session) if self._session is not None else BranchOutcome.UNKNOWN
        except Exception as error:
            self._log(self._level, f"no answer, so the branch is left to recovery: {error}")
            return BranchOutcome.UNKNOWN

    def _statement(self, session: Session) -> str:
        return f"{self._verb.value} prepared {session.quoted(self._record.xid.joined)}"

    def _read(self, session: Session) -> BranchOutcome:
        """The answer's meaning; psycopg.Error where this session cannot give it."""
        results = session.receive(self._until)
        error = failure(results)
        mend = None if error is None else self._remedy(session, error)
        if mend is not None:
            session.raw.changed = True
            session.run(mend, self._until)
            session.send(self._statement(session))
            results = session.receive(self._until)
            error = failure(results)
        if error is None:
            if not results:
                # An interrupt has swallowed it; the same question again meets "absent", and its evidence.
                raise psycopg.OperationalError("the answer was lost in an interrupt")
            return self._verb.outcome
        if ends_session(error) or error.sqlstate in _TIMED_OUT:
            raise error
        if error.sqlstate == _ABSENT:
            return self._outcome_of_absent(session)
        self._log(self._level, f"not done, so the branch is left to recovery: {error}")
        return BranchOutcome.UNKNOWN

    def _remedy(self, session: Session, error: psycopg.Error) -> str | None:
        """What to execute before it is tried once more; None where nothing helps."""
        if error.sqlstate in _TIMED_OUT:
            return _NO_TIMEOUTS
        if error.sqlstate == _NOT_ALLOWED:
            return _TAKE_ROLE.format(session.quoted(self._record.xid.joined))
        return None

    def _outcome_of_absent(self, session: Session) -> BranchOutcome:
        """It is not prepared here (any more): its transaction's own id tells how it ended."""
        identity, timeline = session.raw.identity, session.raw.timeline
        if self._record.identity not in ("", identity):
            self._log(logging.ERROR, f"the datasource leads to another server now: {identity}")
            return BranchOutcome.UNKNOWN
        evidence = self._record.evidence
        xid = evidence.get("xid")
        if xid == NO_XID:
            return self._verb.outcome
        if xid is None or evidence.get("timeline", "") != timeline:
            return BranchOutcome.LOST
        try:
            (found,) = session.run(f"select pg_xact_status('{int(xid)}'::xid8)", self._until)
        except psycopg.errors.InvalidParameterValue:  # it is of the future: an older state was restored
            return BranchOutcome.LOST
        return _OUTCOMES.get(value(found) or "", BranchOutcome.LOST)

    def _log(self, level: int, what: str) -> None:
        self.failure = what
        logger.log(
            level,
            "datasource %s: %s of %s: %s",
            self._record.datasource,
            self._verb.value,
            self._record.xid.joined,
            what,
        )
