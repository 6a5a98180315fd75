"""MariaDB and MySQL over Connector/J: by XAResource, and as the drivers of Python name and identify the server.

While the session that has prepared is connected, no other can end its branch, and XAER_NOTA is no answer. So a session
that is silent after PREPARE is ended by the server itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from txpool.resources.base import BranchOutcome, BranchRecord
from txpool.resources.branches.phase_two import PhaseTwoReply, PhaseTwoVerb, ReplyKind
from txpool.resources.jdbc.databases.by_xa import DatabaseByXA, XaError
from txpool.resources.jdbc.databases.database import DatabaseIdentity
from txpool.resources.jdbc.dbapi.errors import call
from txpool.resources.jdbc.marks import MariaDBMarks
from txpool.resources.mysql.branches import xa
from txpool.resources.mysql.branches.lock_holders import NOT_ALLOWED, behind_prepared
from txpool.resources.mysql.session import pooler
from txpool.resources.mysql.session import server as servers
from txpool.resources.mysql.session.proof import warn_unproven
from txpool.resources.mysql.session.protocol import WARNINGS, CommandResult, tells_that_rows_stay
from txpool.resources.mysql.session.statement_text import changes_session, commands_branch, may_commit, text_of
from txpool.resources.recovery_access import PreparedBranch
from txpool.sql.dialects import MYSQL

if TYPE_CHECKING:
    from txpool.resources.jdbc.session import XaConnection


class MariaDB(DatabaseByXA):
    name = "MariaDB or MySQL"
    sql = MYSQL
    products = ("mariadb", "mysql")
    marks = MariaDBMarks()
    has_network_timeout = True
    knows_holders = False

    def identify(self, raw: XaConnection, *, writes: bool) -> DatabaseIdentity:
        return DatabaseIdentity(self._server(raw, writes=writes).identity)

    def _server(self, raw: XaConnection, *, writes: bool = False) -> servers.Server:
        found = servers.ask(MySQLSession(raw))
        if not found.direct:
            # In mode = local, too: to give up a statement, the driver sends KILL with the number that it was given.
            raise pooler.refused(raw.settings.name)
        if not found.identity and writes and servers.assign_identity(MySQLSession(raw)):
            found = servers.ask(MySQLSession(raw))
        return found

    def warn_unproven(self, raw: XaConnection) -> None:
        warn_unproven(raw.settings, MySQLSession(raw), identified=bool(raw.identity))

    def why_not_xa(self, raw: XaConnection) -> str:
        return self._server(raw).why_not_xa()

    def add_generation(self, raw: XaConnection) -> str:
        return servers.add_generation(MySQLSession(raw))

    def has_generation(self, raw: XaConnection, generation: str) -> bool:
        return servers.has_generation(MySQLSession(raw), generation)

    def may_commit(self, raw: XaConnection, statement: str) -> bool:
        return bool(raw.begun) and may_commit(text_of(statement))  # inside a branch it refuses

    def leaves_something(self, statement: str) -> bool:
        return changes_session(text_of(statement), escapes=None)

    def rows_stay(self, raw: XaConnection) -> bool:
        session = MySQLSession(raw)
        session.send(WARNINGS)
        (warnings,) = session.receive()
        return tells_that_rows_stay(warnings)

    def finish(self, raw: XaConnection, record: BranchRecord, verb: PhaseTwoVerb, *, own: bool) -> PhaseTwoReply:
        answer = super().finish(raw, record, verb, own=own)
        if own and verb is PhaseTwoVerb.ROLLBACK and answer.kind is ReplyKind.DONE and self.rows_stay(raw):
            why = "rows in a table without transactions stay, which no rollback undoes"
            return PhaseTwoReply(ReplyKind.BY_ITSELF, why, BranchOutcome.COMMITTED)
        return answer

    def commands_branch(self, statement: str) -> bool:
        return commands_branch(text_of(statement))

    def lock_holders(self, raw: XaConnection, waiting: Sequence[Any]) -> list[list[PreparedBranch]]:
        try:
            held = behind_prepared(MySQLSession(raw))
            candidates = self.listed(raw) if held else []
        except Exception as error:
            if getattr(error, "vendor_code", 0) in NOT_ALLOWED:
                return [[] for _ in waiting]
            raise
        return [candidates if _greeted(each.java) in held else [] for each in waiting]

    def between_end_and_prepare(self, raw: XaConnection) -> None:
        raw.run(xa.HOLD).close()
        raw.holds = True

    def after_finishing(self, raw: XaConnection) -> None:
        if raw.holds:
            raw.holds = False
            raw.run(xa.RELEASE_HOLD).close()

    def before_finishing(self, raw: XaConnection) -> None:
        raw.autocommit = True  # else the server takes the end for work outside the branch

    def rolled_back(self, error: XaError, verb: PhaseTwoVerb, *, own: bool) -> PhaseTwoReply:
        # Of another session's branch it says that nothing was written, whichever outcome was decided.
        outcome = BranchOutcome.ROLLED_BACK if own else verb.outcome
        return PhaseTwoReply(ReplyKind.BY_ITSELF, str(error), outcome)


class MySQLSession:
    """A raw connection as the functions that are shared with Python's drivers use it: each statement at once."""

    def __init__(self, raw: XaConnection) -> None:
        self.raw = raw
        raw.is_mariadb = "mariadb" in raw.product or "mariadb" in raw.version.lower()
        raw.session_number = _greeted(raw.java)
        self._answers: list[CommandResult] = []

    def is_alive(self) -> bool:
        return not self.raw.lost

    def send(self, *statements: str) -> None:
        self._answers = [self._executed(each) for each in statements]

    def _executed(self, statement: str) -> CommandResult:
        try:
            cursor = self.raw.run(statement)
            rows = () if cursor.description is None else tuple(cursor.fetchall())
            answer = CommandResult(None, rows, max(cursor.rowcount, 0))
            cursor.close()
        except Exception as error:
            if self.raw.lost:
                raise
            return CommandResult(error)
        return answer

    def receive(self, until: float | None = None) -> list[CommandResult]:
        answers, self._answers = self._answers, []
        return answers

    def run(self, statement: str, until: float | None = None) -> tuple[Any, ...]:
        (answer,) = [self._executed(statement)]
        if answer.error is not None:
            raise answer.error
        return answer.rows

    def ping(self, until: float | None, timeout: float | None) -> None:
        self.raw.ping(timeout)

    def quoted(self, text: str) -> str:
        """The text as an SQL literal: none of txpool's own has a quote or a backslash in it."""
        if "'" in text or "\\" in text:
            raise ValueError("a text with a quote or a backslash in it")
        return f"'{text}'"


def _greeted(java: Any) -> int | None:
    """The number that the driver was greeted with; None if it does not tell."""
    for name in ("getThreadId", "getId"):  # MariaDB's driver, and MySQL's
        method = getattr(java, name, None)
        if method is not None:
            return int(call(method))
    return None
