"""Adopted branches: other processes, such as Spark's tasks or crashed ones, have prepared them, and this one ends them.

There may be thousands of them in one database. They share one connection, which executes one command at a time. So one
connection for each database is enough, and the databases still work at the same time.
"""

from __future__ import annotations

import logging
from collections import deque
from time import monotonic
from typing import TYPE_CHECKING, Any, ClassVar

from txpool.errors import described
from txpool.resources.base import BranchOutcome, BranchRecord
from txpool.resources.branches.phase_two import COMMIT, ROLLBACK, PhaseTwoCommand
from txpool.resources.deadlines import NO_DEADLINES, Deadlines
from txpool.resources.driver.driver import Driver
from txpool.xid import Xid

if TYPE_CHECKING:
    from txpool.resources.driver.raw import RawConnection

logger = logging.getLogger("txpool")


class PhaseTwoConnection:
    """The one connection over which a transaction, or a pass of recovery, ends branches in a datasource.

    It is opened for the first command, and closed with the last answer. If it is lost, its command is tried again as
    the command itself says, and the next command opens another. If the database cannot be reached, it tries once,
    and all branches without an answer are left to recovery. Used by one thread at a time. `level` is the log level of
    failures, and `failures` takes their reasons. `command` is the class of the database's commands.
    """

    def __init__(
        self,
        command: type[PhaseTwoCommand],
        driver: Driver,
        deadlines: Deadlines = NO_DEADLINES,
        *,
        level: int = logging.WARNING,
        failures: dict[Xid, str] | None = None,
    ) -> None:
        self._command = command
        self._driver = driver
        self._deadlines = deadlines
        self._level = level
        self._failures = {} if failures is None else failures
        #: The reason why the database could not be reached; empty if it was.
        self._unreached = ""
        self._raw: RawConnection = None
        self._queue: deque[tuple[AdoptedBranch, PhaseTwoCommand]] = deque()
        self._current: tuple[AdoptedBranch, PhaseTwoCommand] | None = None
        self._outcomes: dict[AdoptedBranch, BranchOutcome] = {}
        #: The commands whose database remembers that it had ended the branch by itself.
        self._remembered: dict[AdoptedBranch, PhaseTwoCommand] = {}

    @property
    def rows_queue(self) -> object:
        return getattr(self._driver, "rows_queue", None)

    def branch(self, record: BranchRecord) -> AdoptedBranch:
        """A branch that is prepared already, known by its record alone."""
        return AdoptedBranch(record, self)

    def start(self, branch: AdoptedBranch, *, committing: bool, again: bool) -> None:
        """Send the branch's command if the connection is free, else queue it; `again` if one was started before."""
        self._outcomes.pop(branch, None)
        self._failures.pop(branch.record.xid, None)
        verb = COMMIT if committing else ROLLBACK
        command = self._command(
            branch.record, verb, self._driver, self._deadlines, answer_lost=again, level=self._level
        )
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
            if command.remembered:
                self._remembered[current] = command
            if command.overdue:
                self.close()  # the server hangs: each of the others would wait as long
            self._send_next()
        return self._outcomes.pop(branch, BranchOutcome.UNKNOWN)

    def remembers(self, branch: AdoptedBranch) -> bool:
        """Whether the database remembers that it had ended the branch by itself."""
        return branch in self._remembered

    def forget(self, branch: AdoptedBranch) -> None:
        """Let the database forget that, over a connection of its own."""
        command = self._remembered.pop(branch, None)
        if command is not None:
            command.forget_end()

    def close(self) -> None:
        """Close the connection; branches without an answer are left to recovery."""
        self._queue.clear()
        self._current = None
        raw, self._raw = self._raw, None
        if raw is not None:
            self._driver.close(raw)

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

    def _opened(self) -> Any:
        """The connection for the next command; None if the database cannot be reached."""
        raw = self._raw
        if raw is not None and not self._command.can_send(raw):
            self._driver.close(raw)
            raw = self._raw = None
        if raw is None:
            until = self._deadlines.after_decision()
            try:
                raw = self._raw = self._driver.connect(None if until is None else until - monotonic())
                self._command.begin_session(raw, until)
            except Exception as error:
                self._unreached = f"no answer, left to recovery: {described(error)}"
                logger.log(
                    self._level,
                    "%d prepared branches are left to recovery, since their database cannot be reached: %s",
                    len(self._queue),
                    error,
                )
                return None
        return raw


class AdoptedBranch:
    """A branch that is prepared already, known by its record alone."""

    def __init__(self, record: BranchRecord, connection: PhaseTwoConnection) -> None:
        self.record = record
        self._connection = connection
        self._started = False

    @property
    def datasource(self) -> str:
        return self.record.datasource

    @property
    def rows_queue(self) -> object:
        """What deletes its row: see `txpool.resources.marked.branch_rows`."""
        return self._connection.rows_queue

    def start_commit(self) -> None:
        self._start(committing=True)

    def await_commit(self) -> BranchOutcome:
        return self._connection.finish(self)

    def start_rollback(self) -> None:
        self._start(committing=False)

    def await_rollback(self) -> BranchOutcome:
        return self._connection.finish(self)

    @property
    def remembers_end(self) -> bool:
        return self._connection.remembers(self)

    def forget_end(self) -> None:
        self._connection.forget(self)

    def _start(self, *, committing: bool) -> None:
        again, self._started = self._started, True
        self._connection.start(self, committing=committing, again=again)


class RecoveryOverOneConnection:
    """The part of a `BranchRecovery` that ends branches: those of one pass over one connection."""

    command: ClassVar[type[PhaseTwoCommand]]

    def __init__(self, driver: Driver) -> None:
        self._driver = driver
        self._failures: dict[Xid, str] = {}

    def phase_two(self) -> PhaseTwoConnection:
        """Ends many branches over one connection. Used by one thread at a time; closed with the last answer."""
        return PhaseTwoConnection(self.command, self._driver, level=logging.INFO, failures=self._failures)

    def commit(self, record: BranchRecord) -> BranchOutcome:
        branch = self.phase_two().branch(record)
        branch.start_commit()
        return branch.await_commit()

    def rollback(self, record: BranchRecord) -> BranchOutcome:
        branch = self.phase_two().branch(record)
        branch.start_rollback()
        return branch.await_rollback()

    def why_not(self, record: BranchRecord) -> str:
        """The reason why a branch's last commit or rollback was UNKNOWN; empty if it was not."""
        return self._failures.get(record.xid, "")
