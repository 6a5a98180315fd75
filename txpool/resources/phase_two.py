"""Phase two of one prepared branch, as every database has it: the command, and what is known of its answer."""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from enum import Enum

from txpool.resources.base import BranchOutcome, BranchRecord
from txpool.resources.deadlines import Deadlines, in_step

logger = logging.getLogger("txpool")


class PhaseTwoVerb(Enum):
    """The command to a prepared branch."""

    COMMIT = "commit"
    ROLLBACK = "rollback"

    def __init__(self, word: str) -> None:
        self.word = word  # as `value`, which Python finds slowly
        self.outcome = BranchOutcome.COMMITTED if word == "commit" else BranchOutcome.ROLLED_BACK
        self.failpoint = "branch.commit-sent" if word == "commit" else "branch.rollback-sent"


class EndingCommand(ABC):
    """The command that ends one prepared branch; tried again once on a fresh connection.

    `word` is the command's, for the log. `answer_lost` says that such a command was sent before, by this process, and
    that its answer may be lost. `level` is the log level of failures: recovery tries again and again, and logs them
    itself.
    """

    def __init__(
        self, record: BranchRecord, word: str, deadlines: Deadlines, *, answer_lost: bool = False, level: int
    ) -> None:
        self._record = record
        self._word = word
        self._deadlines = deadlines
        #: The command may have been executed, and its answer is lost.
        self._answer_lost = answer_lost
        self._level = level
        #: When to stop waiting for an answer: see `_set_deadline`.
        self._until: float | None = None
        #: The reason why the last outcome was UNKNOWN.
        self.failure = ""
        #: True where no answer came before the deadline.
        self.overdue = False
        #: The database had ended the branch by itself, against the command, and remembers that until `forget_end`.
        self.remembered = False

    @abstractmethod
    def finish(self) -> BranchOutcome:
        """Wait for the outcome. UNKNOWN leaves the branch to recovery."""

    def forget_end(self) -> None:  # noqa: B027 - most databases remember nothing
        """Let the database forget what it remembers. An error is logged: who asks again is told again."""

    def _set_deadline(self) -> None:
        """Set when to stop waiting: once for all tries; in recovery, each step has its own time."""
        if self._until is None or in_step():
            self._until = self._deadlines.after_decision()

    def _log(self, level: int, failure: str) -> None:
        self.failure = failure
        logger.log(
            level,
            "datasource %s: %s of %s: %s",
            self._record.datasource,
            self._word,
            self._record.xid.joined,
            failure,
        )
