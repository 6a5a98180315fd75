"""H2: PREPARE COMMIT by SQL.

H2 takes a COMMIT and DDL inside a transaction without a word. So each transaction begins with a row of its own, and the
transaction's id then tells whether it is still the same one. If branches are prepared, that row is written and
deleted in a table of txpool's. One in a temporary table would break the file: if a prepared transaction has written
to one, H2 cannot read its undo log from the second start after a crash on, and never opens the file again.

A session that is closed takes what it has prepared along: it stays open until phase two. A COMMIT is not on the disk
once it is answered, and the end of a branch may not be: `checkpoint sync` follows each. Only an administrator of the
database may prepare.
"""

from __future__ import annotations

import os
import secrets
from typing import TYPE_CHECKING, Final

from txpool.errors import described
from txpool.locks import Lock
from txpool.resources.base import BranchRecord, Refused
from txpool.resources.branches.phase_two import PhaseTwoReply, PhaseTwoVerb, ReplyKind
from txpool.resources.jdbc.databases import own_tables
from txpool.resources.jdbc.databases.by_sql import DatabaseBySQL
from txpool.resources.jdbc.databases.database import GENERATION, DatabaseIdentity, EndedUnseen, PreparedVote, is_program
from txpool.resources.jdbc.dbapi.errors import call
from txpool.resources.jdbc.marks import H2Marks
from txpool.resources.recovery_access import PreparedBranch
from txpool.sql.dialects import H2 as H2_SQL
from txpool.xid import Xid, parse

if TYPE_CHECKING:
    from txpool.resources.jdbc.session import XaConnection

_CREATE_MARKER: Final = (
    "create local temporary table if not exists txpool_begun (one integer) on commit delete rows transactional"
)
_SET_MARKER: Final = ("insert into txpool_begun values (1)",)
_CREATE_TABLE: Final = "create table if not exists txpool.begun (token char(16) not null primary key)"
_SET_AND_DELETE: Final = (
    "insert into txpool.begun values ('{0}')",
    "delete from txpool.begun where token = '{0}'",
)
_TEMPORARY: Final = "select table_name from information_schema.tables where table_type like '%TEMPORARY'"
_TRANSACTION: Final = "select transaction_id()"
_ADMIN: Final = "select is_admin from information_schema.users where user_name = current_user"
_LISTED: Final = "select transaction_name from information_schema.in_doubt"
_SYNC: Final = "checkpoint sync"
_NO_SUCH_TRANSACTION: Final = 90129
_MEMORY: Final = "memory:"
#: H2 does not survive two that end one branch at once: both are told yes, or its file is damaged. Of a file that one
#: process has, this lock lets in one at a time.
_ending_branch = Lock()
#: Of a server's database, the row of its identity does: whoever ends a branch holds it by a session beside.
_HOLD: Final = "select one from txpool.server where one = 1 for update"
_HOLD_WAIT: Final = "set lock_timeout 5000"
_SERVED: Final = ("jdbc:h2:tcp:", "jdbc:h2:ssl:")


def _after_fork_in_child() -> None:
    global _ending_branch
    _ending_branch = Lock()


os.register_at_fork(after_in_child=_after_fork_in_child)


class H2(DatabaseBySQL):
    name = "H2"
    sql = H2_SQL
    products = ("h2",)
    marks = H2Marks()
    keeps_open = True
    failures_doom = True
    ends_outside = False  # to switch autocommit on would commit what is prepared

    def identify(self, raw: XaConnection, *, writes: bool) -> DatabaseIdentity:
        raw.accepts_silent_commits = raw.settings.h2_accept == "silent-commits"
        identity = own_tables.identity(raw, writes=writes)
        if not raw.accepts_silent_commits and not raw.marker:
            raw.run(_CREATE_MARKER if raw.xa is None else _CREATE_TABLE).close()
            token = secrets.token_hex(8)
            raw.marker = _SET_MARKER if raw.xa is None else tuple(each.format(token) for each in _SET_AND_DELETE)
        url = url_of(raw)
        raw.is_served = is_served(url)
        if identity and url.startswith("jdbc:h2:mem:"):
            identity = f"{_MEMORY}{identity}"
        return DatabaseIdentity(identity)

    def why_not_xa(self, raw: XaConnection) -> str:
        ((admin,),) = raw.run(_ADMIN).fetchall() or ((False,),)
        if admin in (True, "TRUE", "YES"):
            return ""
        return (
            "in H2 only an administrator of the database may commit, roll back and list what is prepared: as one, "
            "ALTER USER … ADMIN TRUE; or write mode = cmr"
        )

    add_generation = staticmethod(own_tables.add_generation)
    has_generation = staticmethod(own_tables.has_generation)

    def begin(self, raw: XaConnection) -> None:
        raw.autocommit = False
        raw.begun_as = ""
        if not raw.accepts_silent_commits:
            for statement in raw.marker:
                raw.run(statement).close()
            raw.begun_as = _transaction(raw)

    def require_begun(self, raw: XaConnection) -> None:
        if raw.accepts_silent_commits:
            return
        now = _transaction(raw)
        if not raw.begun_as or now != raw.begun_as:
            raise EndedUnseen()

    def may_commit(self, raw: XaConnection, statement: str) -> bool:
        # Its branches are local transactions until they prepare.
        return not raw.accepts_silent_commits and is_program(raw, statement)

    def make_durable(self, raw: XaConnection) -> None:
        raw.run(_SYNC).close()

    def prepare(self, raw: XaConnection, xid: Xid) -> PreparedVote:
        try:
            self.require_begun(raw)
            # H2 prepares under a name as often as it is asked to.
            taken = xid.joined in self.names(raw)
            temporary = [] if raw.identity.startswith(_MEMORY) else raw.run(_TEMPORARY).fetchall()
        except Refused:
            raise
        except Exception as error:
            if raw.lost:
                raise
            raise Refused(f"PREPARE was not sent: {described(error)}") from error
        if taken:
            raise Refused(f"{xid.joined} is prepared already")
        if temporary:
            raise Refused(
                f"its session has the temporary table {temporary[0][0]}. H2 may never open its file again if it "
                "crashes while a branch is prepared that has written to one: drop it, or write mode = cmr"
            )
        raw.run(f"prepare commit {_quoted(xid.joined)}").close()
        self.make_durable(raw)
        raw.in_transaction = False
        return PreparedVote(evidence={GENERATION: raw.generation} if raw.generation else {})

    def finish(self, raw: XaConnection, record: BranchRecord, verb: PhaseTwoVerb, *, own: bool) -> PhaseTwoReply:
        if not raw.is_served:
            with _ending_branch:
                return self._finish_alone(raw, record, verb, own=own)
        held = False
        try:
            self._hold(raw)
            held = True
            return self._finish_alone(raw, record, verb, own=own)
        except Exception as error:
            if held:
                raise
            return PhaseTwoReply(
                ReplyKind.REFUSED, f"nothing was sent, since another process ends a branch there: {described(error)}"
            )
        finally:
            self._release(raw)

    def _finish_alone(self, raw: XaConnection, record: BranchRecord, verb: PhaseTwoVerb, *, own: bool) -> PhaseTwoReply:
        # The session that has prepared does not notice that another one has ended its branch, and says yes to both.
        if own and record.xid.joined not in self.names(raw):
            return PhaseTwoReply(ReplyKind.GONE)
        return super().finish(raw, record, verb, own=own)

    def _hold(self, raw: XaConnection) -> None:
        """Wait until no other process ends a branch there, and keep it so until `_release`."""
        if raw.second_session is None or raw.second_session.lost:
            raw.second_session = raw.open_second_session()
            raw.second_session.run(_HOLD_WAIT).close()
        raw.second_session.run(_HOLD).fetchall()

    def _release(self, raw: XaConnection) -> None:
        if raw.second_session is None:
            return
        try:
            raw.second_session.rollback()
        except BaseException as error:
            second_session, raw.second_session = raw.second_session, None
            second_session.drop()  # with which it ends, too
            if not isinstance(error, Exception):
                raise

    def end_command(self, record: BranchRecord, verb: PhaseTwoVerb) -> str:
        return f"{verb.word} transaction {_quoted(record.xid.joined)}"

    def is_gone(self, error: Exception) -> bool:
        return getattr(error, "vendor_code", 0) == _NO_SUCH_TRANSACTION

    def listed(self, raw: XaConnection) -> list[PreparedBranch]:
        evidence = {GENERATION: raw.generation} if raw.generation else {}
        found = {xid for xid in map(parse, self.names(raw)) if xid is not None}
        return [PreparedBranch(xid, evidence=evidence) for xid in sorted(found)]

    def names(self, raw: XaConnection) -> set[str]:
        return {str(name) for (name,) in raw.run(_LISTED).fetchall()}


def url_of(raw: XaConnection) -> str:
    return str(call(call(raw.java.getMetaData).getURL))


def is_served(url: str) -> bool:
    """Whether several processes can have the database of such a url open."""
    return url.startswith(_SERVED) or "AUTO_SERVER=TRUE" in url.upper()


def _transaction(raw: XaConnection) -> str:
    ((found,),) = raw.run(_TRANSACTION).fetchall()
    return "" if found is None else str(found)


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'
