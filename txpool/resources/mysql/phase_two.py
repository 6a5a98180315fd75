"""Phase two of a prepared branch in MariaDB or MySQL: XA COMMIT or XA ROLLBACK, and what the answer means.

No evidence of how a branch has ended stays on the server, but for the row that it may have written (`branch_rows`). So
absent is not lost. After a COMMIT whose answer was lost, a branch that is listed no more, on the server that has
prepared it, has committed: nobody else ends it otherwise, but an administrator by hand, which only the row shows.
"""

from __future__ import annotations

import logging
from contextlib import closing
from time import monotonic, sleep
from typing import Any, Final

from txpool import failpoints
from txpool.errors import described
from txpool.resources.base import BranchOutcome, BranchRecord
from txpool.resources.branch_rows import ROW, RowsDriver, outcome_by_row
from txpool.resources.deadlines import NO_DEADLINES, Deadlines
from txpool.resources.mysql import xa
from txpool.resources.mysql.server import has_generation
from txpool.resources.mysql.wire import WARNINGS, Answer, Session, ends_session, tells_that_rows_stay
from txpool.resources.phase_two import EndingCommand, PhaseTwoVerb

#: The evidence that a record has of its server: see `server.GENERATIONS_TABLE`.
_GENERATION: Final = "generation"
_ROLLBACK: Final = PhaseTwoVerb.ROLLBACK
#: How long, and how often, it is asked whether a session that was just closed has let go of the branch, in seconds.
_LET_GO_WAIT: Final = 1.0
_LET_GO_INTERVAL: Final = 0.02


def evidence_of(raw: Any) -> dict[str, str]:
    """What a record keeps of the server, for a branch that is prepared on it while this session is there."""
    return {_GENERATION: raw.generation} if raw.generation else {}


class PhaseTwoCommand(EndingCommand):
    """XA COMMIT or XA ROLLBACK of one branch, split-phase."""

    def __init__(
        self,
        record: BranchRecord,
        verb: PhaseTwoVerb,
        driver: RowsDriver,
        deadlines: Deadlines = NO_DEADLINES,
        *,
        answer_lost: bool = False,
        level: int = logging.WARNING,
    ) -> None:
        super().__init__(record, verb.word, deadlines, answer_lost=answer_lost, level=level)
        self._verb = verb
        self._driver = driver
        self._session: Session | None = None
        #: The session is the one that has prepared.
        self._own = False
        self._own_raw: Any = None

    def start(self, session: Session, *, own: bool = False) -> None:
        """Send the command without waiting. Where the connection is lost, `finish` tries again."""
        self._session, self._own = session, own
        self._own_raw = session.raw if own else None
        self._set_deadline()
        try:
            if session.is_alive():
                # From here on it may be executed, whatever the connection does.
                commands = [xa.named(self._verb.word, self._record.xid)]
                if own and self._verb is _ROLLBACK:
                    commands.append(WARNINGS)
                if own:
                    commands.append(session.raw.let_go_command)
                session.send(*commands)
            else:
                self._session = None
        except Exception as error:
            self._answer_lost = True
            self._session = None
            self._log(logging.INFO, f"not sent, tried again on a fresh connection: {described(error)}")
        if failpoints.armed:
            failpoints.hit(self._verb.failpoint)

    def finish(self) -> BranchOutcome:
        self._set_deadline()
        if self._session is not None:
            try:
                return self._outcome(self._session)
            except Exception as error:
                self._answer_lost = True
                if self._until is not None and monotonic() >= self._until:
                    self.overdue = True
                    self._log(self._level, f"left to recovery: {described(error)}")
                    return BranchOutcome.UNKNOWN
                self._log(logging.INFO, f"no answer, tried again on a fresh connection: {described(error)}")
        if self._own_raw is not None:
            self._own_raw.break_off()  # while it is connected, no other session can end the branch
        return self.run()

    def run(self) -> BranchOutcome:
        """Send the command on a connection of its own, and wait for the outcome; UNKNOWN after any error."""
        try:
            self._set_deadline()
            remaining = None if self._until is None else self._until - monotonic()
            with closing(self._driver.connect(remaining)) as raw:
                session: Session = raw.session
                session.run("set autocommit = 1", self._until)  # else the server takes it for work outside the branch
                self.start(session)
                if self._session is None:
                    return BranchOutcome.UNKNOWN
                return self._outcome(session)
        except Exception as error:
            self._answer_lost = True
            self._log(self._level, f"no answer, left to recovery: {described(error)}")
            return BranchOutcome.UNKNOWN

    def _outcome(self, session: Session) -> BranchOutcome:
        """The outcome, by the answer. An exception where this session gives none."""
        answers = session.receive(self._until)
        if self._own and self._verb is _ROLLBACK:
            session.raw.unrollable = session.raw.unrollable or tells_that_rows_stay(answers[1])
        return self._meaning(session, answers[0])

    def _meaning(self, session: Session, answer: Answer) -> BranchOutcome:
        if answer.error is None:
            return self._verb.outcome
        if ends_session(answer.error):
            raise answer.error
        if answer.code in xa.ROLLED_BACK:
            # Of another session's branch it says that nothing was written, whichever outcome was decided.
            return BranchOutcome.ROLLED_BACK if self._own else self._verb.outcome
        if answer.code == xa.NOTA:  # to the session that has prepared it, too: MySQL lets go of it at PREPARE
            return self._outcome_of_absent(session, answer)
        self._log(self._level, f"refused, left to recovery: {answer.error}")
        return BranchOutcome.UNKNOWN

    def _outcome_of_absent(self, session: Session, answer: Answer) -> BranchOutcome:
        """XAER_NOTA is no answer while the branch is listed: the session that has prepared it is still connected."""
        until = monotonic() + _LET_GO_WAIT
        while answer.code == xa.NOTA and self._record.xid in xa.listed(session, self._until):
            if monotonic() > min(until, self._until or until):
                self._log(
                    self._level,
                    "left to recovery: the session that has prepared it is still connected. The server ends that "
                    f"{xa.HOLD_SECONDS} seconds after its last command ({answer.error})",
                )
                return BranchOutcome.UNKNOWN
            sleep(_LET_GO_INTERVAL)
            session.send(xa.named(self._verb.word, self._record.xid))
            (answer,) = session.receive(self._until)
        if answer.code != xa.NOTA:
            return self._meaning(session, answer)
        identity = session.raw.identity
        if self._record.identity not in ("", identity):
            self._log(logging.ERROR, f"left to recovery: the datasource leads to another server now: {identity}")
            return BranchOutcome.UNKNOWN
        if ROW in self._record.evidence:
            return outcome_by_row(self._driver.rows, self._record, rolling_back=self._verb is _ROLLBACK)
        token = self._record.evidence.get(_GENERATION, "")
        if not self._record.identity or not has_generation(session, token, self._until):
            self._log(
                self._level,
                "gone, and nothing shows how it ended: the server was restored from a backup since, or does not tell "
                "this role who it is (see `txpool check`)",
            )
            return BranchOutcome.LOST
        return self._verb.outcome if self._answer_lost else BranchOutcome.ABSENT
