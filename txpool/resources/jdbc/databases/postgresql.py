"""PostgreSQL: PREPARE TRANSACTION by SQL, under the name that psycopg's branches have as well.

pgJDBC's XAResource would prepare under another name, and answers 0 if nothing is prepared. So it is left alone, and
the server is asked as psycopg's branches ask it: either driver recovers what the other has prepared. What pgJDBC itself
has prepared under a name of txpool's form is listed and ended as well.

Each transaction begins with a setting of its own, SET LOCAL. It is read back in the message of PREPARE, before that:
after a COMMIT or ROLLBACK of the program's own it is gone, and then a division by zero keeps PREPARE from executing.
"""

from __future__ import annotations

import base64
import re
import secrets
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from txpool.errors import described
from txpool.resources.base import BranchOutcome, BranchRecord, Refused
from txpool.resources.branches.phase_two import DONE, PhaseTwoReply, PhaseTwoVerb, ReplyKind
from txpool.resources.jdbc.databases.by_sql import DatabaseBySQL
from txpool.resources.jdbc.databases.database import DatabaseIdentity, EndedUnseen, PreparedVote
from txpool.resources.jdbc.dbapi.errors import call
from txpool.resources.jdbc.marks import JdbcPostgreSQLMarks
from txpool.resources.postgresql.branches.lock_holders import HOLDERS, held_by
from txpool.resources.postgresql.branches.phase_two import NO_TIMEOUTS, NO_XID, OUTCOMES, STATUS, TAKE_ROLE
from txpool.resources.postgresql.branches.recovery import PREPARED, branches_of
from txpool.resources.postgresql.qualified import qualified
from txpool.resources.postgresql.session.identity import IDENTITY, ROLE, TIMELINE
from txpool.resources.postgresql.statements.statement_text import may_commit, outlives_transaction
from txpool.resources.recovery_access import PreparedBranch
from txpool.sql.dialects import POSTGRESQL
from txpool.xid import FORMAT_ID, Xid, parse

if TYPE_CHECKING:
    from txpool.resources.jdbc.session import XaConnection

_MARKER: Final = "txpool.begun"
_CHECKED: Final = qualified(f"1 / case when current_setting('{_MARKER}', true) = '{{token}}' then 1 else 0 end")
_ROLE: Final = qualified(f"select ({ROLE})::text")
_ROLE_OF: Final = qualified("select to_regrole(quote_ident(?::text))::oid::text")
_ID: Final = qualified("pg_current_xact_id_if_assigned()::text")
_DIVISION_BY_ZERO: Final = "22012"
_ABORTED: Final = "25P02"
_NO_SUCH_TRANSACTION: Final = "42704"
_NOT_ALLOWED: Final = "42501"
_TIMED_OUT: Final = ("57014", "55P03")
_UNUSED_ID: Final = "22023"
#: The server ends the session, and whether it has executed the command is not known.
_SESSION_ENDING: Final = ("08", "57P", "25P03")
# As pgJDBC writes a name: the format, and both parts in base64.
_ENCODED: Final = re.compile(rf"{FORMAT_ID}_([A-Za-z0-9+/]+={{0,2}})_([A-Za-z0-9+/]+={{0,2}})")
_PREPARED_BY_PGJDBC: Final = PREPARED.replace("'txp1:'", f"'{FORMAT_ID}_'").replace("_.:-]+$'", "_+/=]+$'")
_TIMELINE_EVIDENCE: Final = "timeline"
_XID_EVIDENCE: Final = "xid"


class PostgreSQLDatabase(DatabaseBySQL):
    name = "PostgreSQL"
    sql = POSTGRESQL
    products = ("postgresql",)
    marks = JdbcPostgreSQLMarks()
    has_network_timeout = True

    def identify(self, raw: XaConnection, *, writes: bool) -> DatabaseIdentity:
        role = _one(raw, _ROLE)
        try:
            identity, timeline = _one(raw, f"select {IDENTITY}"), _one(raw, f"select {TIMELINE}")
        except Exception as error:
            if getattr(error, "sqlstate", "") != _NOT_ALLOWED:
                raise
            identity = timeline = ""
        return DatabaseIdentity(identity, timeline, role)

    def role_of(self, raw: XaConnection, user: str) -> str:
        rows = raw.run(_ROLE_OF, [user]).fetchall()
        return str(rows[0][0] or "")

    def begin(self, raw: XaConnection) -> None:
        raw.autocommit = False
        raw.begun_as = secrets.token_hex(8)
        raw.run(f"set local {_MARKER} = '{raw.begun_as}'").close()

    def may_commit(self, raw: XaConnection, statement: str) -> bool:
        return may_commit(statement)  # a procedure cannot, inside a transaction

    def leaves_something(self, statement: str) -> bool:
        return outlives_transaction(statement)

    def require_begun(self, raw: XaConnection) -> None:
        try:
            raw.run(f"select {_CHECKED.format(token=raw.begun_as)}").fetchall()
        except Exception as error:
            raise _refused(raw, error) from error

    def prepare(self, raw: XaConnection, xid: Xid) -> PreparedVote:
        checked = _CHECKED.format(token=raw.begun_as)
        try:
            cursor = raw.run(f"select {_ID}, {checked}; prepare transaction '{xid.joined}'")
        except Exception as error:
            raise _refused(raw, error) from error
        ((transaction, _),) = cursor.fetchall()
        cursor.close()
        raw.in_transaction = False
        return PreparedVote(evidence={_XID_EVIDENCE: transaction or NO_XID, _TIMELINE_EVIDENCE: raw.generation})

    def end_command(self, record: BranchRecord, verb: PhaseTwoVerb) -> str:
        return f"{verb.word} prepared '{record.xid.joined}'"

    def is_gone(self, error: Exception) -> bool:
        return getattr(error, "sqlstate", "") == _NO_SUCH_TRANSACTION

    def remedy(self, raw: XaConnection, record: BranchRecord, error: Exception) -> bool:
        state = getattr(error, "sqlstate", "")
        if state in _TIMED_OUT:
            self.before_finishing(raw)
        elif state == _NOT_ALLOWED:
            raw.changed = True
            raw.run(TAKE_ROLE.format(f"'{record.xid.joined}'")).close()
        else:
            return False
        return True

    def refusal(self, error: Exception) -> PhaseTwoReply:
        if getattr(error, "sqlstate", "").startswith(_SESSION_ENDING):
            raise error
        return PhaseTwoReply(ReplyKind.REFUSED, str(error))

    def before_finishing(self, raw: XaConnection) -> None:
        raw.changed = True
        for statement in NO_TIMEOUTS.split(";"):
            raw.run(statement).close()

    def finish(self, raw: XaConnection, record: BranchRecord, verb: PhaseTwoVerb, *, own: bool) -> PhaseTwoReply:
        answer = super().finish(raw, record, verb, own=own)
        if answer.kind is ReplyKind.GONE and not own:
            try:
                raw.run(f"{verb.word} prepared '{encoded(record.xid)}'").close()
            except Exception as error:
                if not self.is_gone(error):
                    raise
            else:
                return DONE
        return answer

    def listed(self, raw: XaConnection) -> list[PreparedBranch]:
        rows = raw.run(PREPARED).fetchall()
        rows += [(_decoded(str(row[0])), *row[1:]) for row in raw.run(_PREPARED_BY_PGJDBC).fetchall()]
        return branches_of(
            [(*row[:4], _bytes(row[4]), row[5], _bytes(row[6]), row[7]) for row in rows],
            system=raw.identity.partition("/")[0],
            encoding="utf-8",
            timeline=raw.generation,
            role=raw.role if raw.logs_in_as_itself else None,
            owners=raw.settings.prepared_owners,
        )

    def lock_holders(self, raw: XaConnection, waiting: Sequence[Any]) -> list[list[PreparedBranch]]:
        pids = [0 if each.lost else int(call(each.java.getBackendPID)) for each in waiting]
        rows = raw.run(HOLDERS.replace("%s", f"'{{{','.join(map(str, pids))}}}'")).fetchall()
        return held_by(pids, rows, self.listed(raw) if rows else ())

    def status_of(self, raw: XaConnection, record: BranchRecord) -> BranchOutcome | None:
        evidence = record.evidence
        transaction = evidence.get(_XID_EVIDENCE, "")
        if transaction in ("", NO_XID):
            return None
        try:
            status = _one(raw, STATUS.format(int(transaction)))
        except Exception as error:
            if raw.lost:
                raise
            # An id that the server has not used yet shows that it was restored.
            return BranchOutcome.LOST if getattr(error, "sqlstate", "") == _UNUSED_ID else None
        return OUTCOMES.get(status, BranchOutcome.UNKNOWN) if status else None

    def wrote_nothing(self, record: BranchRecord) -> bool:
        return record.evidence.get(_XID_EVIDENCE) == NO_XID

    def is_same_generation(self, raw: XaConnection, record: BranchRecord) -> bool:
        timeline = record.evidence.get(_TIMELINE_EVIDENCE, "")
        return bool(timeline) and timeline == _one(raw, f"select {TIMELINE}")


def encoded(xid: Xid) -> str:
    """A name as pgJDBC writes it."""
    gtrid, bqual = (base64.b64encode(part.encode()).decode() for part in xid)
    return f"{FORMAT_ID}_{gtrid}_{bqual}"


def _decoded(gid: str) -> str:
    """Such a name as txpool writes it; empty if it is none of txpool's."""
    found = _ENCODED.fullmatch(gid)
    if found is None:
        return ""
    try:
        gtrid, bqual = (base64.b64decode(part, validate=True).decode("ascii") for part in found.groups())
    except ValueError:
        return ""
    xid = parse(f"{gtrid}:{bqual}")
    return xid.joined if xid is not None and xid.gtrid == gtrid and encoded(xid) == gid else ""


def _refused(raw: XaConnection, error: Exception) -> Exception:
    """The error of the message that reads the setting back, as what it says: `Refused`, or itself."""
    state = getattr(error, "sqlstate", "")
    # Without a state it is none of the server's: as what a signal's handler raises once PREPARE has been answered.
    if raw.lost or not state or state.startswith(_SESSION_ENDING):
        return error
    if state == _DIVISION_BY_ZERO:
        return EndedUnseen()
    if state == _ABORTED:
        return Refused("a statement before it had failed, and PostgreSQL has rolled the transaction back")
    return Refused(f"the database refused it: {described(error)}")


def _one(raw: XaConnection, query: str) -> str:
    ((found,),) = raw.run(query).fetchall()
    return "" if found is None else str(found)


def _bytes(value: Any) -> bytes | None:
    return None if value is None else bytes(value)
