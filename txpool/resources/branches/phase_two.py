"""Phase two of one prepared branch: the command, its reply, and what became of a branch that is gone.

The steps are the same for every database. A database's own class sends, reads the reply, and shows who its server is.
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from dataclasses import dataclass
from enum import Enum
from time import monotonic
from typing import TYPE_CHECKING, Any, ClassVar, Final

from txpool import failpoints, loops
from txpool.errors import described
from txpool.resources.base import BranchOutcome, BranchRecord
from txpool.resources.deadlines import NO_DEADLINES, Deadlines, in_step
from txpool.resources.marked.branch_rows import ROW, outcome_by_row

if TYPE_CHECKING:
    from txpool.resources.driver.raw import RawConnection

logger = logging.getLogger("txpool")

#: How long, and how often, it is asked whether a session that was just closed has let go of the branch, in seconds.
_RELEASE_WAIT: Final = 1.0
_RELEASE_INTERVAL: Final = 0.02


class PhaseTwoVerb(Enum):
    """The command to a prepared branch."""

    COMMIT = "commit"
    ROLLBACK = "rollback"

    def __init__(self, word: str) -> None:
        self.word = word  # as `value`, which Python finds slowly
        self.outcome = BranchOutcome.COMMITTED if word == "commit" else BranchOutcome.ROLLED_BACK
        self.failpoint = "branch.commit-sent" if word == "commit" else "branch.rollback-sent"


class ReplyKind(Enum):
    """What a database has replied to the command that ends a prepared branch."""

    DONE = "done"
    GONE = "gone"  #: there is no such branch, for this session
    BY_ITSELF = "by itself"  #: the database had ended it by itself
    REFUSED = "refused"  #: the branch is as it was, for all that is known


@dataclass(frozen=True, slots=True)
class PhaseTwoReply:
    """The reply to a command that ends a branch. A lost connection is an exception, and no reply."""

    kind: ReplyKind
    why: str = ""
    #: How it had ended by itself.
    outcome: BranchOutcome = BranchOutcome.UNKNOWN
    #: The database remembers that, until it is told to forget it.
    remembered: bool = False


# Names of their own: Python 3.11 calls a function for each member that is read from an Enum.
COMMIT, ROLLBACK = PhaseTwoVerb
DONE: Final = PhaseTwoReply(ReplyKind.DONE)
_GONE, _BY_ITSELF, _UNKNOWN = ReplyKind.GONE, ReplyKind.BY_ITSELF, BranchOutcome.UNKNOWN


class ReleaseWait:
    """How long sessions that were just closed have to let go of their branches: a time in all, from the first one on.

    The sessions of a host that is gone hold theirs for as long as the server takes them for connected.
    """

    __slots__ = ("_until",)

    def __init__(self) -> None:
        self._until: float | None = None

    def until(self) -> float:
        if self._until is None:
            self._until = monotonic() + _RELEASE_WAIT
        return self._until


class PhaseTwoCommand(ABC):
    """The command that ends one prepared branch, split-phase; tried again once on a fresh connection.

    `answer_lost` says that such a command was sent before, by this process, and that its answer may be lost.
    `was_prepared` is false if PREPARE was not answered: then the branch may still appear, and an earlier command may
    have come before it. `level` is the log level of failures: recovery tries again and again, and logs them itself.
    """

    #: What a datasource leads to, for people.
    place: ClassVar[str] = "database"
    #: Why a branch that is still listed cannot be ended, for people.
    held_by: ClassVar[str] = ""
    #: That the server does not tell its generation now, for people.
    untold: ClassVar[str] = ""

    def __init__(
        self,
        record: BranchRecord,
        verb: PhaseTwoVerb,
        driver: Any,
        deadlines: Deadlines = NO_DEADLINES,
        *,
        answer_lost: bool = False,
        was_prepared: bool = True,
        level: int = logging.WARNING,
    ) -> None:
        self._record = record
        self._verb = verb
        self._driver = driver
        self._deadlines = deadlines
        #: The command may have been executed, and its answer is lost; and the same before it was sent the last time.
        self._answer_lost = self._lost_before = answer_lost
        self._was_prepared = was_prepared
        self._level = level
        #: Those that are ended together share one.
        self.release = ReleaseWait()
        #: When to stop waiting for an answer: see `_set_deadline`.
        self._until: float | None = None
        #: The connection over which it was sent; None if that is lost, or nothing was sent yet.
        self._raw: RawConnection = None
        #: The connection that has prepared the branch, if it was sent over that.
        self._own: Any = None
        #: The reason why the last outcome was UNKNOWN.
        self.failure = ""
        #: True if no answer came before the deadline.
        self.overdue = False
        #: The database had ended the branch by itself, against the command, and remembers that until `forget_end`.
        self.remembered = False

    @property
    def answer_lost(self) -> bool:
        """Whether it, or one before it, may have been executed: then one after it may find the branch gone for that."""
        return self._answer_lost

    # -- the steps ----------------------------------------------------------------------------------------------

    def start(self, raw: RawConnection, *, own: bool = False) -> None:
        """Send the command without waiting. If the connection is lost, `finish` tries again."""
        self._raw = None
        self._own = raw if own else None
        self._set_deadline()
        try:
            if self.can_send(raw):
                self._send_over(raw)
        except Exception as error:
            self._raw = None
            self._note_no_answer(error)
        if failpoints.armed:
            failpoints.hit(self._verb.failpoint)

    def finish(self) -> BranchOutcome:
        """Wait for the outcome. UNKNOWN leaves the branch to recovery."""
        self._set_deadline()
        if self._raw is not None:
            try:
                outcome = self._outcome(self._raw)
                if outcome is not None:
                    return outcome
            except Exception as error:
                self._note_no_answer(error)
        if self.overdue:
            return _UNKNOWN
        if self._own is not None:
            self._driver.close(self._own)  # while it is connected, some servers let no other session end the branch
        return self.run()

    def run(self) -> BranchOutcome:
        """Send the command on a connection of its own, and wait for the outcome; UNKNOWN after any error."""
        raw = None
        try:
            self._set_deadline()
            raw = self._driver.connect(None if self._until is None else self._until - monotonic())
            self.begin_session(raw, self._until)
            self._lift_timeouts(raw)
            self._send_over(raw)
            if failpoints.armed:
                failpoints.hit(self._verb.failpoint)
            return self._outcome(raw) or _UNKNOWN
        except Exception as error:
            self._log(self._level, f"no answer, left to recovery: {described(error)}")
            return _UNKNOWN
        finally:
            if raw is not None:
                self._driver.close(raw)

    def _send_over(self, raw: RawConnection) -> None:
        self._raw = raw
        # From here on it may be executed, whatever the connection does.
        self._lost_before, self._answer_lost = self._answer_lost, True
        self._send(raw)

    def _reply(self, raw: RawConnection) -> PhaseTwoReply:
        reply = self._receive(raw)
        if reply is not DONE:  # an interrupt may still keep that one from whoever waits for it
            self._answer_lost = self._lost_before
        return reply

    def _outcome(self, raw: RawConnection) -> BranchOutcome | None:
        """The outcome, by the reply; None if another session is to be asked. An exception: there was no reply."""
        reply = self._reply(raw)
        return self._verb.outcome if reply is DONE else self._meaning(raw, reply)

    def _meaning(self, raw: RawConnection, reply: PhaseTwoReply) -> BranchOutcome | None:
        if reply.kind is ReplyKind.DONE:
            return self._verb.outcome
        if reply.kind is _GONE:
            return self._outcome_of_gone(raw, reply)
        if reply.kind is _BY_ITSELF:
            if reply.outcome is not self._verb.outcome:
                self._log(self._level, f"the database had ended it by itself: {reply.why}")
                self.remembered = reply.remembered
            elif reply.remembered:
                self._forget(raw)  # it has ended as it was to
            return reply.outcome
        self._log(self._level, f"refused, left to recovery: {reply.why}")
        return _UNKNOWN

    def _outcome_of_gone(self, raw: RawConnection, reply: PhaseTwoReply) -> BranchOutcome | None:
        """What became of a branch that this session does not know: see docs/explanation/a-branch-that-is-gone.md."""
        while self._is_listed(raw):  # it is there, and the session that has prepared it is still connected
            until = self.release.until()
            over = monotonic() > min(until, self._until or until)
            if not over:
                loops.sleep(_RELEASE_INTERVAL)
            self._send_over(raw)
            reply = self._reply(raw)
            if reply.kind is not _GONE:
                return self._meaning(raw, reply)
            if over:
                self._log(self._level, f"left to recovery: {self.held_by} ({reply.why})")
                return _UNKNOWN
        return self._outcome_by_evidence(raw)

    def _outcome_by_evidence(self, raw: RawConnection) -> BranchOutcome:  # noqa: PLR0911 - one for each case
        record = self._record
        status = self._status(raw)
        identity = self._identity(raw)
        if record.identity and record.identity != identity:
            there = identity or "a server that does not tell this role its identity (see `txpool check`)"
            self._log(logging.ERROR, f"left to recovery: the datasource leads to another {self.place} now: {there}")
            return _UNKNOWN
        if ROW in record.evidence:
            return outcome_by_row(self._driver.rows, record, rolling_back=self._verb is ROLLBACK)
        if self._wrote_nothing(raw):
            return self._verb.outcome
        proven = self._is_same_generation(raw)
        if proven is None:
            self._log(self._level, f"left to recovery: {self.untold}")
            return _UNKNOWN
        if not record.identity or not proven or status is BranchOutcome.LOST:
            self._log(self._level, f"gone, and nothing shows how it ended: {self._why_unproven()}")
            return BranchOutcome.LOST
        if status is not None:
            return status
        return self._verb.outcome if self._answer_lost and self._was_prepared else BranchOutcome.ABSENT

    # -- a database's own ---------------------------------------------------------------------------------------

    @staticmethod
    @abstractmethod
    def can_send(raw: RawConnection) -> bool:
        """Whether the connection can take a command, as far as is known without waiting."""

    @staticmethod
    def begin_session(raw: RawConnection, until: float | None) -> None:
        """Prepare a new session for such commands; `until` is when to stop waiting."""

    def _lift_timeouts(self, raw: RawConnection) -> None:
        """Let no timeout of a new session end the second try."""

    @abstractmethod
    def _send(self, raw: RawConnection) -> None:
        """Send the command without waiting. The driver's error if the connection is lost."""

    @abstractmethod
    def _receive(self, raw: RawConnection) -> PhaseTwoReply:
        """Wait for the reply. An exception if this connection gives none."""

    def _is_listed(self, raw: RawConnection) -> bool:
        """Whether a branch that is gone for this session is prepared still."""
        return False

    def _status(self, raw: RawConnection) -> BranchOutcome | None:
        """How the server shows that the branch has ended; None if it does not, LOST if it was restored since."""
        return None

    @abstractmethod
    def _identity(self, raw: RawConnection) -> str:
        """The server's identity now. It is asked last, and again: a pooler may have led the session elsewhere."""

    def _wrote_nothing(self, raw: RawConnection) -> bool:
        """Whether the record shows that the branch wrote nothing, so that its end changes nothing."""
        return False

    @abstractmethod
    def _is_same_generation(self, raw: RawConnection) -> bool | None:
        """Whether the server has the generation that prepared the branch; None if it does not tell that now."""

    @abstractmethod
    def _why_unproven(self) -> str:
        """Why nothing shows how the branch ended, for people."""

    def _forget(self, raw: RawConnection) -> None:
        """Let the database forget what it remembers. If that fails, it goes on answering as before."""

    def forget_end(self) -> None:
        """As `_forget`, over a connection of its own, and an error is logged."""

    # -- its time, and its failures -----------------------------------------------------------------------------

    def _set_deadline(self) -> None:
        """Set when to stop waiting: once for all tries; in recovery, each step has its own time."""
        if self._until is None or in_step():
            self._until = self._deadlines.after_decision()

    def _note_no_answer(self, error: Exception) -> None:
        if self._until is not None and monotonic() >= self._until:
            self.overdue = True
            self._log(self._level, f"left to recovery: {described(error)}")
        else:
            self._log(logging.INFO, f"no answer, tried again on a fresh connection: {described(error)}")

    def _log(self, level: int, failure: str) -> None:
        self.failure = failure
        logger.log(
            level,
            "datasource %s: %s of %s: %s",
            self._record.datasource,
            self._verb.word,
            self._record.xid.joined,
            failure,
        )
