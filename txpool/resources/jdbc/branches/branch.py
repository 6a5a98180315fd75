"""The branch of a transaction over JDBC: START to PREPARE, and its end. Java's calls block: a start does the work."""

from __future__ import annotations

from time import monotonic
from typing import TYPE_CHECKING, Final

from txpool import failpoints
from txpool.resources.base import BranchOutcome, PrepareVote, Refused
from txpool.resources.branches.branch import ENDED, LOST, PREPARED, REFUSED, SENT, UNSENT, BranchNamedAtStart
from txpool.resources.branches.phase_two import PhaseTwoVerb
from txpool.resources.deadlines import NO_DEADLINES, Deadlines
from txpool.resources.driver.driver import Driver
from txpool.resources.jdbc.branches.phase_two import JdbcPhaseTwo
from txpool.resources.jdbc.databases.database import EndedUnseen

if TYPE_CHECKING:
    from txpool.resources.jdbc.session import XaConnection

#: Seconds after PREPARE from which on it is asked first whether the session is still there: a server may have ended one
#: that was silent, and somebody else its branch.
_MAY_BE_GONE_AFTER: Final = 1.0
_PING_SECONDS: Final = 5.0


class JdbcBranch(BranchNamedAtStart):
    """A branch on one raw connection, whose session is nobody else's until it has ended."""

    command = JdbcPhaseTwo

    def __init__(self, datasource: str, driver: Driver, raw: XaConnection, deadlines: Deadlines = NO_DEADLINES) -> None:
        super().__init__(datasource, driver, raw, deadlines)
        self._vote = PrepareVote.COMMIT
        self._prepared_at = 0.0
        self._failure: BaseException | None = None

    @property
    def idle(self) -> bool:
        return self._prepare is UNSENT and not self._raw.started and not self._ended_commands

    # -- phase one ----------------------------------------------------------------------------------------------

    def start_prepare(self) -> None:
        """End and prepare the branch. An error is raised here if nothing was sent, and else by `await_prepare`."""
        raw, gtrid = self._raw, self.record.xid.gtrid
        if self._ended_commands:
            raise self._ended_by_sql_error(gtrid)
        if raw.lost:
            raise self._rollback_vote("the connection was lost before the end")
        if not raw.started:
            raise self._rollback_vote("its part has ended before")
        try:
            raw.require_no_failure()
        except Refused as refusal:
            raise self._rollback_vote(str(refusal)) from refusal.__cause__
        self._failure = None
        self._prepare = SENT
        until = self._deadlines.before_decision()
        try:
            self._wait_until(until)
            found = raw.database.prepare(raw, self.record.xid)
            self.record = self.record._replace(evidence=found.evidence)
            self._vote = found.vote
            raw.holds_branch = raw.database.keeps_open
            self._prepare = PREPARED
            self._prepared_at = monotonic()
            self._wait_until(None)
        except Refused as refusal:
            self._prepare = REFUSED
            raw.ended_unseen = isinstance(refusal, EndedUnseen) and raw.failed is None
            self._failure = self._rollback_vote(str(refusal))
            self._failure.__cause__ = refusal.__cause__
        except Exception as error:
            if self._prepare is SENT:
                self._prepare = LOST
                self._note_rollback_vote(error)
                self._failure = error
        if failpoints.armed:
            failpoints.hit("branch.prepare-sent")

    def await_prepare(self) -> PrepareVote:
        if self._failure is not None:
            failure, self._failure = self._failure, None
            raise failure
        if self._prepare is not PREPARED:
            self._prepare = LOST
            raise self._rollback_vote("the answer to PREPARE was lost in an interrupt")
        if self._vote is PrepareVote.READ_ONLY:
            self._left(BranchOutcome.COMMITTED)
        elif self.record.xid.task is not None:
            # Another process ends it, which some servers allow only once this session is gone.
            self._driver.close(self._raw)
        return self._vote

    def _wait_until(self, until: float | None) -> None:
        raw = self._raw
        if raw.database.has_network_timeout and not raw.lost:
            raw.set_network_timeout(None if until is None else max(until - monotonic(), 0.1))

    # -- phase two ----------------------------------------------------------------------------------------------

    def _start(self, verb: PhaseTwoVerb) -> None:
        if self._vote is PrepareVote.READ_ONLY:
            return
        if monotonic() > self._prepared_at + _MAY_BE_GONE_AFTER and not self._raw.lost:
            try:
                self._raw.ping(_PING_SECONDS)
            except Exception:  # so what comes is not sent over it, and no answer of it can be lost
                self._raw.abort()
        super()._start(verb)

    def _finish(self, verb: PhaseTwoVerb) -> BranchOutcome:
        return self._left(verb.outcome) if self._vote is PrepareVote.READ_ONLY else super()._finish(verb)

    @property
    def remembers_end(self) -> bool:
        return self._phase_two is not None and self._phase_two.remembered

    def forget_end(self) -> None:
        if self._phase_two is not None:
            self._phase_two.forget_end()

    def _leave(self) -> None:
        self._raw.holds_branch = False
        super()._leave()
        try:
            self._raw.autocommit = False
        except Exception:
            self._driver.close(self._raw)

    def _roll_back_unanswered(self) -> BranchOutcome:
        self._raw.holds_branch = False
        return super()._roll_back_unanswered()

    # -- alone, or not prepared ---------------------------------------------------------------------------------

    def commit_one_phase(self) -> BranchOutcome:
        """Commit the branch without preparing it. UNKNOWN if the answer was lost."""
        raw = self._raw
        if self._ended_commands:
            self.failure = self._ended_by_sql_error(self.record.xid.gtrid)
            return self._rolled_back_outcome()
        if not raw.started:
            return BranchOutcome.COMMITTED
        try:
            if raw.lost:
                raise Refused("the connection was lost before the end")
            raw.require_no_failure()
            raw.database.commit_one_phase(raw, self.record.xid)
        except Refused as refusal:
            raw.ended_unseen = isinstance(refusal, EndedUnseen) and raw.failed is None
            self.failure = self._rollback_vote(str(refusal))
            self.failure.__cause__ = refusal.__cause__
            return self._rolled_back_outcome()
        except Exception as error:
            error.add_note(f"datasource {self.datasource}: the reply to COMMIT was lost")
            self.failure = error
            self._driver.close(raw)
            return BranchOutcome.UNKNOWN
        return self._left(BranchOutcome.COMMITTED)

    def rollback(self) -> BranchOutcome:
        """Roll back what is not prepared: the database does so by itself if the session is lost."""
        if self._prepare is ENDED:
            return BranchOutcome.ROLLED_BACK
        outcome = super().rollback()
        self._raw.xid = None
        return outcome
