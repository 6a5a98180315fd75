"""Phase two of a prepared branch in MariaDB or MySQL: XA COMMIT or XA ROLLBACK, and what the answer means.

No evidence of how a branch has ended stays on the server, but for the row that it may have written (`branch_rows`). So
absent is not lost. If the answer to a COMMIT is lost, and the same server does not list the branch any more, the branch
has committed. Only an administrator could have ended it otherwise, by hand. Only the row shows that.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from txpool.resources.base import BranchOutcome
from txpool.resources.branches.phase_two import DONE, ROLLBACK, PhaseTwoCommand, PhaseTwoReply, ReplyKind
from txpool.resources.mysql.branches import xa
from txpool.resources.mysql.session.protocol import WARNINGS, ends_session, tells_that_rows_stay
from txpool.resources.mysql.session.server import has_generation

if TYPE_CHECKING:
    from txpool.resources.mysql.session.state import MySQLRawConnection

#: The evidence that a record has of its server: see `session.server.GENERATIONS_TABLE`.
_GENERATION: Final = "generation"


def evidence_of(raw: MySQLRawConnection) -> dict[str, str]:
    """What a record keeps of the server, for a branch that is prepared on it while this session is there."""
    return {_GENERATION: raw.generation} if raw.generation else {}


class MySQLPhaseTwo(PhaseTwoCommand):
    """XA COMMIT or XA ROLLBACK of one branch."""

    place = "server"
    held_by = (
        "the session that has prepared it is still connected. The server ends that "
        f"{xa.HOLD_SECONDS} seconds after its last command"
    )

    @staticmethod
    def can_send(raw: MySQLRawConnection) -> bool:
        return bool(raw.session.is_alive())

    @staticmethod
    def begin_session(raw: MySQLRawConnection, until: float | None) -> None:
        raw.session.run("set autocommit = 1", until)  # else the server takes the end for work outside the branch

    def _send(self, raw: MySQLRawConnection) -> None:
        command = xa.named(self._verb.word, self._record.xid)
        if raw is not self._own:
            raw.session.send(command)
        elif self._verb is ROLLBACK:
            raw.session.send(command, WARNINGS, raw.release_hold_command)
        else:
            raw.session.send(command, raw.release_hold_command)

    def _receive(self, raw: MySQLRawConnection) -> PhaseTwoReply:
        answer, *others = raw.session.receive(self._until)
        own = raw is self._own
        if own and self._verb is ROLLBACK:
            raw.unrollable = raw.unrollable or tells_that_rows_stay(others[0])
        if answer.error is None:
            return DONE
        if ends_session(answer.error):
            raise answer.error
        if answer.code in xa.ROLLED_BACK:
            # Of another session's branch it says that nothing was written, whichever outcome was decided.
            return PhaseTwoReply(ReplyKind.BY_ITSELF, str(answer.error), BranchOutcome.ROLLED_BACK) if own else DONE
        # To the session that has prepared it, too: MySQL lets go of it at PREPARE.
        return PhaseTwoReply(ReplyKind.GONE if answer.code == xa.NOTA else ReplyKind.REFUSED, str(answer.error))

    def _is_listed(self, raw: MySQLRawConnection) -> bool:
        return self._record.xid in xa.listed(raw.session, self._until)

    def _identity(self, raw: MySQLRawConnection) -> str:
        return str(raw.identity)

    def _is_same_generation(self, raw: MySQLRawConnection) -> bool:
        token = self._record.evidence.get(_GENERATION, "")
        return bool(self._record.identity) and has_generation(raw.session, token, self._until)

    def _why_unproven(self) -> str:
        return "the server was restored from a backup since, or does not tell this role who it is (see `txpool check`)"
