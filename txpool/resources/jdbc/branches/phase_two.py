"""Phase two of a prepared branch over JDBC: commit or rollback. Java's calls block: a start does the work."""

from __future__ import annotations

from contextlib import suppress
from time import monotonic
from typing import TYPE_CHECKING

from txpool.errors import described
from txpool.resources.base import BranchOutcome
from txpool.resources.branches.phase_two import PhaseTwoCommand, PhaseTwoReply
from txpool.resources.deadlines import within_step
from txpool.resources.jdbc.driver import close_kept

if TYPE_CHECKING:
    from txpool.resources.jdbc.session import XaConnection


class JdbcPhaseTwo(PhaseTwoCommand):
    """Commit or rollback of one branch."""

    held_by = "another session holds it, which is still connected"
    _answer: PhaseTwoReply

    @staticmethod
    def can_send(raw: XaConnection) -> bool:
        return not raw.lost

    @staticmethod
    def begin_session(raw: XaConnection, until: float | None) -> None:
        raw.autocommit = True
        raw.database.before_finishing(raw)

    def _send_over(self, raw: XaConnection) -> None:
        if raw.database.has_network_timeout and self._until is not None:
            raw.set_network_timeout(max(self._until - monotonic(), 0.1))
        within_step()  # nothing is sent once the step is over
        super()._send_over(raw)

    def _send(self, raw: XaConnection) -> None:
        self._answer = raw.database.finish(raw, self._record, self._verb, own=raw is self._own)

    def _receive(self, raw: XaConnection) -> PhaseTwoReply:
        return self._answer

    def _outcome(self, raw: XaConnection) -> BranchOutcome | None:
        outcome = super()._outcome(raw)
        if outcome is None or outcome is BranchOutcome.UNKNOWN:
            return outcome
        if raw is not self._own:
            if raw.database.keeps_open:
                close_kept(self._record.xid)
            return outcome
        with suppress(Exception):
            raw.database.after_finishing(raw)
            if raw.database.has_network_timeout and self._until is not None:
                raw.set_network_timeout(None)
        return outcome

    def _outcome_of_gone(self, raw: XaConnection, reply: PhaseTwoReply) -> BranchOutcome | None:
        return None if raw is self._own else super()._outcome_of_gone(raw, reply)

    def _is_listed(self, raw: XaConnection) -> bool:
        return any(each.xid == self._record.xid and not each.elsewhere for each in raw.database.listed(raw))

    def _status(self, raw: XaConnection) -> BranchOutcome | None:
        status: BranchOutcome | None = raw.database.status_of(raw, self._record)
        return status

    def _identity(self, raw: XaConnection) -> str:
        return str(raw.database.identify(raw, writes=False).identity)

    def _wrote_nothing(self, raw: XaConnection) -> bool:
        return bool(raw.database.wrote_nothing(self._record))

    def _is_same_generation(self, raw: XaConnection) -> bool:
        return bool(self._record.identity) and raw.database.is_same_generation(raw, self._record)

    def _why_unproven(self) -> str:
        return "the server has failed over or was restored, or does not tell who it is (see `txpool check`)"

    def _forget(self, raw: XaConnection) -> None:
        with suppress(Exception):
            raw.database.forget(raw, self._record.xid)

    def forget_end(self) -> None:
        until = self._deadlines.after_decision()
        try:
            raw = self._driver.connect(None if until is None else until - monotonic())
            try:
                raw.autocommit = True
                raw.database.forget(raw, self._record.xid)
            finally:
                self._driver.close(raw)
        except Exception as error:
            self._log(self._level, f"the database still remembers that it had ended it by itself: {described(error)}")
