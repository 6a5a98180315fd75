"""Phase two of a prepared branch over JDBC: commit or rollback, and what the answer means."""

from __future__ import annotations

import logging
from contextlib import suppress
from time import monotonic, sleep
from typing import Any, Final

from txpool import failpoints
from txpool.errors import described
from txpool.resources.base import BranchOutcome, BranchRecord
from txpool.resources.deadlines import NO_DEADLINES, Deadlines, within_step
from txpool.resources.driver import Driver
from txpool.resources.jdbc.databases.database import Answer, Ended
from txpool.resources.jdbc.driver import let_go
from txpool.resources.phase_two import EndingCommand, PhaseTwoVerb

#: How long, and how often, it is asked whether a session that was just closed has let go of the branch, in seconds.
_LET_GO_WAIT: Final = 1.0
_LET_GO_INTERVAL: Final = 0.02


class PhaseTwoCommand(EndingCommand):
    """Commit or rollback of one branch."""

    def __init__(
        self,
        record: BranchRecord,
        verb: PhaseTwoVerb,
        driver: Driver,
        deadlines: Deadlines = NO_DEADLINES,
        *,
        answer_lost: bool = False,
        level: int = logging.WARNING,
    ) -> None:
        super().__init__(record, verb.word, deadlines, answer_lost=answer_lost, level=level)
        self._verb = verb
        self._driver = driver
        self._outcome: BranchOutcome | None = None
        self._own_raw: Any = None

    def start(self, raw: Any, *, own: bool = False) -> None:
        """Send the command, and wait. Where there is no answer, `finish` tries again."""
        self._set_deadline()
        self._own_raw = raw if own else None
        try:
            if not raw.lost:
                self._outcome = self._execute(raw, own=own)
        except Exception as error:
            self._note_no_answer(error)
        if failpoints.armed:
            failpoints.hit(self._verb.failpoint)

    def finish(self) -> BranchOutcome:
        if self._outcome is not None:
            return self._outcome
        if self.overdue:
            return BranchOutcome.UNKNOWN
        if self._own_raw is not None:
            # While it is connected, some servers let no other session end the branch; in others, closing would lose it.
            self._driver.close(self._own_raw)
        return self.run()

    def run(self) -> BranchOutcome:
        """Send the command on a connection of its own, and wait for the outcome; UNKNOWN after any error."""
        raw = None
        try:
            self._set_deadline()
            raw = self._driver.connect(None if self._until is None else self._until - monotonic())
            raw.autocommit = True
            raw.database.before_finishing(raw)
            if failpoints.armed:
                failpoints.hit(self._verb.failpoint)
            return self._execute(raw, own=False) or BranchOutcome.UNKNOWN
        except Exception as error:
            self._log(self._level, f"no answer, left to recovery: {described(error)}")
            return BranchOutcome.UNKNOWN
        finally:
            if raw is not None:
                self._driver.close(raw)

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

    def _note_no_answer(self, error: Exception) -> None:
        if self._until is not None and monotonic() >= self._until:
            self.overdue = True
            self._log(self._level, f"left to recovery: {described(error)}")
        else:
            self._log(logging.INFO, f"no answer, tried again on a fresh connection: {described(error)}")

    def _execute(self, raw: Any, *, own: bool) -> BranchOutcome | None:
        """The outcome, by the answer; None where another session is to be asked. An exception: there was no answer."""
        if raw.database.has_network_timeout and self._until is not None:
            raw.set_network_timeout(max(self._until - monotonic(), 0.1))
        within_step()  # nothing is sent once the step is over
        sent_before, self._answer_lost = self._answer_lost, True  # until the answer is here
        answer = raw.database.finish(raw, self._record, self._verb, own=own)
        self._answer_lost = sent_before
        if own and answer.ended is Ended.GONE:
            return None
        outcome = self._meaning(raw, answer)
        if not own and raw.database.keeps_open and outcome is not BranchOutcome.UNKNOWN:
            let_go(self._record.xid)
        if own and outcome is not BranchOutcome.UNKNOWN:
            with suppress(Exception):
                raw.database.after_finishing(raw)
                if raw.database.has_network_timeout and self._until is not None:
                    raw.set_network_timeout(None)
        return outcome

    def _meaning(self, raw: Any, answer: Answer) -> BranchOutcome:
        if answer.ended is Ended.DONE:
            return self._verb.outcome
        if answer.ended is Ended.BY_ITSELF:
            if answer.outcome is not self._verb.outcome:
                self._log(self._level, f"the database had ended it by itself: {answer.why}")
                self.remembered = answer.remembered
            elif answer.remembered:
                with suppress(Exception):  # it has ended as it was to: nothing is lost if that is told again
                    raw.database.forget(raw, self._record.xid)
            return answer.outcome
        if answer.ended is Ended.GONE:
            return self._outcome_of_absent(raw, answer)
        self._log(self._level, f"refused, left to recovery: {answer.why}")
        return BranchOutcome.UNKNOWN

    def _outcome_of_absent(self, raw: Any, answer: Answer) -> BranchOutcome:  # noqa: PLR0911 - one for each case
        """What became of a branch that this session does not know: see docs/explanation/a-branch-that-is-gone.md."""
        database, record = raw.database, self._record
        until = monotonic() + _LET_GO_WAIT
        while any(each.xid == record.xid and not each.elsewhere for each in database.listed(raw)):
            if monotonic() > min(until, self._until or until):
                self._log(
                    self._level, f"left to recovery: another session holds it, which is still connected ({answer.why})"
                )
                return BranchOutcome.UNKNOWN
            sleep(_LET_GO_INTERVAL)
            answer = database.finish(raw, record, self._verb, own=False)
            if answer.ended is not Ended.GONE:
                return self._meaning(raw, answer)
        status: BranchOutcome | None = database.status_of(raw, record)
        # Asked last, and again: a pooler may have led the session elsewhere.
        identity = database.identify(raw, writes=False).identity
        if record.identity and record.identity != identity:
            there = identity or "a server that does not tell this role its identity (see `txpool check`)"
            self._log(logging.ERROR, f"left to recovery: the datasource leads to another database now: {there}")
            return BranchOutcome.UNKNOWN
        if database.wrote_nothing(record):
            return self._verb.outcome
        if not record.identity or status is BranchOutcome.LOST or not database.is_same_generation(raw, record):
            self._log(
                self._level,
                "gone, and nothing shows how it ended: the server has failed over or was restored, or does not tell "
                "who it is (see `txpool check`)",
            )
            return BranchOutcome.LOST
        if status is not None:
            return status
        return self._verb.outcome if self._answer_lost else BranchOutcome.ABSENT
