"""Phase two of a prepared branch in PostgreSQL: COMMIT PREPARED or ROLLBACK PREPARED, and what the answer means."""

from __future__ import annotations

from typing import TYPE_CHECKING

import psycopg

from txpool.errors import described
from txpool.resources.base import BranchOutcome
from txpool.resources.branches.phase_two import DONE, PhaseTwoCommand, PhaseTwoReply, ReplyKind
from txpool.resources.postgresql.qualified import qualified
from txpool.resources.postgresql.session.identity import identify
from txpool.resources.postgresql.session.libpq import IDLE, LibpqSession, ends_session, failure, value

if TYPE_CHECKING:
    from txpool.resources.postgresql.session.raw_connection import PsycopgRawConnection

#: The evidence of a transaction that wrote nothing, and so has no id.
NO_XID = "none"

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


class PostgreSQLPhaseTwo(PhaseTwoCommand):
    """COMMIT PREPARED or ROLLBACK PREPARED of one branch."""

    untold = "the server does not tell its timeline, as on a standby"

    def sent(self, raw: PsycopgRawConnection | None, until: float | None, *, again: bool = False) -> PostgreSQLPhaseTwo:
        """It was sent over this connection, None if that failed; `until` is when to stop waiting. Returns itself.

        `again` says that another was begun before, and interrupted.
        """
        self._raw, self._until = raw, until
        self._lost_before, self._answer_lost = again or raw is None, True
        return self

    @staticmethod
    def can_send(raw: PsycopgRawConnection) -> bool:
        return bool(raw.session.status == IDLE)

    def _lift_timeouts(self, raw: PsycopgRawConnection) -> None:
        raw.session.run(NO_TIMEOUTS, self._until)

    def _send(self, raw: PsycopgRawConnection) -> None:
        session: LibpqSession = raw.session
        session.send(f"{self._verb.word} prepared {session.quoted(self._record.xid.joined)}")

    def _receive(self, raw: PsycopgRawConnection) -> PhaseTwoReply:
        session: LibpqSession = raw.session
        results = session.receive(self._until)
        error = failure(results)
        remedy = None if error is None else self._remedy(session, error)
        if remedy is not None:
            raw.changed = True
            session.run(remedy, self._until)
            self._send(raw)
            results = session.receive(self._until)
            error = failure(results)
        if error is None:
            if not results:
                # An interrupt discarded the answer: the next try finds the branch absent, and uses its evidence.
                raise psycopg.OperationalError("the answer was lost in an interrupt")
            return DONE
        if ends_session(error) or error.sqlstate in _TIMED_OUT:
            raise error
        return PhaseTwoReply(ReplyKind.GONE if error.sqlstate == _ABSENT else ReplyKind.REFUSED, described(error))

    def _remedy(self, session: LibpqSession, error: psycopg.Error) -> str | None:
        """The SQL to execute before the command is sent again; None if nothing helps."""
        if error.sqlstate in _TIMED_OUT:
            return NO_TIMEOUTS
        if error.sqlstate == _NOT_ALLOWED:
            return TAKE_ROLE.format(session.quoted(self._record.xid.joined))
        return None

    def _status(self, raw: PsycopgRawConnection) -> BranchOutcome | None:
        xid = self._record.evidence.get("xid", "")
        if xid in ("", NO_XID):
            return None
        try:
            (found,) = raw.session.run(STATUS.format(int(xid)), self._until)
        except psycopg.errors.InvalidParameterValue:
            return BranchOutcome.LOST  # an id that the server has not used yet: it was restored
        except (psycopg.errors.UndefinedFunction, psycopg.errors.UndefinedObject, psycopg.errors.InsufficientPrivilege):
            return None  # it has no such function, or none for this role
        status = value(found)
        return None if status is None else OUTCOMES.get(status, BranchOutcome.UNKNOWN)

    def _identity(self, raw: PsycopgRawConnection) -> str:
        self._now = identify(raw.session, self._until)
        return self._now.identity

    def _wrote_nothing(self, raw: PsycopgRawConnection) -> bool:
        return self._record.evidence.get("xid") == NO_XID

    def _is_same_generation(self, raw: PsycopgRawConnection) -> bool | None:
        timeline = self._record.evidence.get("timeline", "")
        if timeline and not self._now.timeline:
            return None
        return bool(timeline) and timeline == self._now.timeline

    def _why_unproven(self) -> str:
        return (
            "the server has failed over or was restored, or does not tell who it is (prepared in "
            f"{self._record.identity or 'an unknown database'} on timeline "
            f"{self._record.evidence.get('timeline') or 'unknown'}; timeline {self._now.timeline or 'unknown'} now)"
        )
