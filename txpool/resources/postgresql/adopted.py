"""Adopted branches: other processes, such as Spark's tasks or crashed ones, have prepared them, and this one ends them.

There may be thousands of them in one database. They share one connection, which executes one command at a time. So one
connection for each database is enough, and the databases still work at the same time.
"""

from __future__ import annotations

import logging
from collections import deque
from time import monotonic
from typing import TYPE_CHECKING

from txpool.resources.base import BranchOutcome, BranchRecord
from txpool.resources.deadlines import NO_DEADLINES, Deadlines
from txpool.resources.driver import Driver
from txpool.resources.postgresql.libpq import IDLE
from txpool.resources.postgresql.phase_two import PhaseTwoCommand, PhaseTwoVerb
from txpool.xid import Xid

if TYPE_CHECKING:
    from txpool.resources.postgresql.driver import PsycopgRawConnection

logger = logging.getLogger("txpool")


class PhaseTwoConnection:
    """The one connection over which a transaction, or a pass of recovery, ends branches in a datasource.

    It is opened for the first command, and closed with the last answer. Where it is lost, its command is tried again as
    `PhaseTwoCommand` says, and the next command opens another. Where the database cannot be reached, it tries once, and
    all branches without an answer are left to recovery. Used by one thread at a time. `level` is the log level of
    failures, and `failures` takes their reasons.
    """

    def __init__(
        self,
        driver: Driver,
        deadlines: Deadlines = NO_DEADLINES,
        *,
        level: int = logging.WARNING,
        failures: dict[Xid, str] | None = None,
    ) -> None:
        self.driver = driver
        self._deadlines = deadlines
        self._level = level
        self._failures = {} if failures is None else failures
        #: The reason why the database could not be reached; empty where it was.
        self._unreached = ""
        self._raw: PsycopgRawConnection | None = None
        self._queue: deque[tuple[AdoptedBranch, PhaseTwoCommand]] = deque()
        self._current: tuple[AdoptedBranch, PhaseTwoCommand] | None = None
        self._outcomes: dict[AdoptedBranch, BranchOutcome] = {}

    def branch(self, record: BranchRecord) -> AdoptedBranch:
        """A branch that is prepared already, known by its record alone."""
        return AdoptedBranch(record, self)

    def start(self, branch: AdoptedBranch, verb: PhaseTwoVerb) -> None:
        """Send the branch's command if the connection is free, else queue it."""
        self._outcomes.pop(branch, None)
        self._failures.pop(branch.record.xid, None)
        command = PhaseTwoCommand(branch.record, verb, self.driver.connect, self._deadlines, level=self._level)
        self._queue.append((branch, command))
        self._send_next()

    def finish(self, branch: AdoptedBranch) -> BranchOutcome:
        """Wait for the branch's outcome; commands that were queued before it are finished first."""
        while branch not in self._outcomes and self._current is not None:
            current, command = self._current
            outcome = self._outcomes[current] = command.finish()
            self._current = None
            if outcome is BranchOutcome.UNKNOWN:
                self._failures[current.record.xid] = command.failure
            if command.overdue:
                self.close()  # the server hangs: each of the others would wait as long
            self._send_next()
        return self._outcomes.pop(branch, BranchOutcome.UNKNOWN)

    def close(self) -> None:
        """Close the connection; branches without an answer are left to recovery."""
        self._queue.clear()
        self._current = None
        raw, self._raw = self._raw, None
        if raw is not None:
            self.driver.close(raw)

    def _send_next(self) -> None:
        if self._current is not None:
            return
        if not self._queue:
            self.close()
            return
        raw = None if self._unreached else self._opened()
        if raw is None:
            self._failures |= {branch.record.xid: self._unreached for branch, _ in self._queue}
            self.close()
            return
        self._current = self._queue.popleft()
        self._current[1].start(raw)

    def _opened(self) -> PsycopgRawConnection | None:
        """The connection for the next command; None where the database cannot be reached."""
        raw = self._raw
        if raw is not None and raw.session.status != IDLE:
            self.driver.close(raw)
            raw = self._raw = None
        if raw is None:
            until = self._deadlines.after_decision()
            try:
                raw = self._raw = self.driver.connect(None if until is None else until - monotonic())
            except Exception as error:
                self._unreached = f"no answer, left to recovery: {error}"
                logger.log(
                    self._level,
                    "%d prepared branches are left to recovery, since their database cannot be reached: %s",
                    len(self._queue),
                    error,
                )
        return raw


class AdoptedBranch:
    """A branch that is prepared already, known by its record alone."""

    def __init__(self, record: BranchRecord, connection: PhaseTwoConnection) -> None:
        self.record = record
        self._connection = connection

    @property
    def datasource(self) -> str:
        return self.record.datasource

    def start_commit(self) -> None:
        self._connection.start(self, PhaseTwoVerb.COMMIT)

    def await_commit(self) -> BranchOutcome:
        return self._connection.finish(self)

    def start_rollback(self) -> None:
        self._connection.start(self, PhaseTwoVerb.ROLLBACK)

    def await_rollback(self) -> BranchOutcome:
        return self._connection.finish(self)
