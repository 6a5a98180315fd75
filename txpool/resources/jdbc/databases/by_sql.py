"""Branches by SQL, of databases that prepare by a statement under a name of txpool's own: PostgreSQL and H2."""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING, ClassVar

from txpool.errors import described
from txpool.resources.base import BranchRecord, Refused
from txpool.resources.branches.phase_two import DONE, PhaseTwoReply, PhaseTwoVerb, ReplyKind
from txpool.resources.jdbc.databases.database import JdbcDatabase, PreparedVote
from txpool.resources.jdbc.dbapi.errors import Error
from txpool.xid import Xid

if TYPE_CHECKING:
    from txpool.resources.jdbc.session import XaConnection


class DatabaseBySQL(JdbcDatabase):
    """A database whose branches are local transactions until they prepare."""

    failures_doom = False
    #: Whether the statement that ends a branch wants no transaction around it, also in the session that has prepared.
    ends_outside: ClassVar[bool] = True

    def start(self, raw: XaConnection, xid: Xid) -> None:
        self.begin(raw)

    def leave(self, raw: XaConnection, xid: Xid) -> None:
        raw.rollback()

    def commit_one_phase(self, raw: XaConnection, xid: Xid) -> None:
        self.require_begun(raw)
        try:
            raw.commit()
            self.make_durable(raw)
        except Exception as error:
            if self.is_refusal(raw, error):
                raise Refused(f"the database refused to commit: {described(error)}") from error
            raise

    def is_refusal(self, raw: XaConnection, error: Exception) -> bool:
        """Whether the error of a COMMIT says that nothing was committed, nor ever will be."""
        return not raw.lost and getattr(error, "sqlstate", "")[:2] in ("23", "40")

    @abstractmethod
    def prepare(self, raw: XaConnection, xid: Xid) -> PreparedVote: ...

    @abstractmethod
    def end_command(self, record: BranchRecord, verb: PhaseTwoVerb) -> str:
        """The statement that ends a prepared branch."""

    @abstractmethod
    def is_gone(self, error: Exception) -> bool:
        """Whether the error says that there is no such branch."""

    def remedy(self, raw: XaConnection, record: BranchRecord, error: Exception) -> bool:
        """Whether something was done for the statement to succeed when it is sent again."""
        return False

    def finish(self, raw: XaConnection, record: BranchRecord, verb: PhaseTwoVerb, *, own: bool) -> PhaseTwoReply:
        if not own or self.ends_outside:
            raw.autocommit = True
        for again in (True, False):
            try:
                raw.run(self.end_command(record, verb)).close()
                self.make_durable(raw)
            except Exception as error:
                if raw.lost or not isinstance(error, Error):  # no answer of the database's
                    raise
                if self.is_gone(error):
                    return PhaseTwoReply(ReplyKind.GONE, described(error))
                if not again or not self.remedy(raw, record, error):
                    return self.refusal(error)
            else:
                break
        return DONE

    def refusal(self, error: Exception) -> PhaseTwoReply:
        """What any other error of the statement means."""
        return PhaseTwoReply(ReplyKind.REFUSED, str(error))
