"""Adopted branches: other processes, such as Spark's tasks or crashed ones, have prepared them, and this one ends them.

There may be thousands of them in one database. A session executes one command at a time, and most of that time it waits
for the disk. The server flushes the commands of several sessions together. So they share a few connections: each has
one command on its way, and takes the next branch of the queue once that is answered. One thread serves them all.
"""

from __future__ import annotations

import logging
from collections import deque
from time import monotonic
from typing import TYPE_CHECKING, Final

from txpool.errors import described
from txpool.resources.base import BranchOutcome, BranchRecord
from txpool.resources.branches.phase_two import COMMIT, ROLLBACK, PhaseTwoCommand, PhaseTwoVerb, ReleaseWait
from txpool.resources.deadlines import NO_DEADLINES, Deadlines
from txpool.resources.driver.driver import Driver
from txpool.xid import Xid

if TYPE_CHECKING:
    from txpool.resources.driver.raw import RawConnection

logger = logging.getLogger("txpool")

#: How many branches wait for each open connection before another one is opened, which takes as long as a few of them.
BRANCHES_EACH: Final = 16
#: Seconds that a further connection has to open, and to begin its session.
_OPENING: Final = 1.0
_UNKNOWN = BranchOutcome.UNKNOWN


class PhaseTwoConnections:
    """The connections over which a transaction, or a pass of recovery, ends branches in a datasource.

    The first is opened for the first command, and each is closed once nothing is queued behind its answer. Others are
    opened while many branches are queued, at most `phase_two_connections` of the driver, and only if the server grants
    them at once: a failure to open one is no error, and no other is tried then. If a connection is lost, its command is
    tried again as the command itself says, and the others take what is queued; if it was the last one, another is
    opened. If the database cannot be reached, that is tried once, and all branches without an answer are left to
    recovery. One on which the server hangs is closed, and its branch left to recovery.

    Used by one thread at a time. `level` is the log level of failures, and `failures` takes their reasons. `command` is
    the class of the database's commands. An interrupt of any call leaves every other branch as it was.
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
        self._release = ReleaseWait()
        self._most: int = getattr(driver, "phase_two_connections", 1)
        #: The reason why no connection is opened any more; empty if there is none.
        self._unreached = ""
        #: The one whose command was sent first is the first.
        self._connections: deque[_Connection] = deque()
        self._queue: deque[_BranchEnd] = deque()
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
        """Send the branch's command if a connection is free, else queue it; `again` if one was started before."""
        if again:
            self._end_earlier(branch)
        self._failures.pop(branch.record.xid, None)
        self._queue.append(_BranchEnd(branch, COMMIT if committing else ROLLBACK))
        self._send()

    def finish(self, branch: AdoptedBranch) -> BranchOutcome:
        """Wait for the branch's outcome; commands that were sent before its own are finished first."""
        outcomes = self._outcomes
        while branch not in outcomes and self._take_answer():
            pass
        return outcomes.pop(branch, _UNKNOWN)

    def remembers(self, branch: AdoptedBranch) -> bool:
        """Whether the database remembers that it had ended the branch by itself."""
        return branch in self._remembered

    def forget(self, branch: AdoptedBranch) -> None:
        """Let the database forget that, over a connection of its own."""
        command = self._remembered.pop(branch, None)
        if command is not None:
            command.forget_end()

    def close(self) -> None:
        """Close the connections; branches without an answer are left to recovery."""
        self._queue.clear()
        while self._connections:
            self._close(self._connections[0])

    # -- the queue ----------------------------------------------------------------------------------------------

    def _take_answer(self) -> bool:
        """Wait for the answer to what was sent first, and send what is queued; False if nothing is on its way."""
        self._send()  # what an interrupt has kept from being sent
        for connection in self._connections:
            end = connection.end
            if end is not None:
                break
        else:
            return False
        queue, command = self._queue, end.command
        if queue and queue[0] is end:
            queue.popleft()  # which an interrupt has prevented
        outcome = command.finish()
        if outcome is _UNKNOWN:
            self._failures[end.branch.record.xid] = command.failure
        if command.remembered:
            self._remembered[end.branch] = command
        self._outcomes[end.branch] = outcome
        connection.end = None  # last: until then, an interrupt lets the answer be taken again
        if command.overdue:  # the server hangs
            self._unreached = command.failure
            self._close(connection)
        else:
            self._connections.rotate(-1)
        self._send()
        return True

    def _send(self) -> None:
        """Send what is queued over the connections that are free. It may be called again after an interrupt."""
        queue, connections = self._queue, self._connections
        while queue:
            connection = self._free()
            if connection is None:
                return
            end = queue[0]
            if end.begun and any(each.end is end for each in connections):
                queue.popleft()  # which an interrupt has prevented
                continue
            end.begun = True
            earlier = end.branch.command
            end.branch.command = end.command = command = self._command(
                end.branch.record,
                end.verb,
                self._driver,
                self._deadlines,
                answer_lost=earlier is not None and earlier.answer_lost,
                level=self._level,
            )
            command.release = self._release
            connection.end = end
            queue.popleft()
            command.start(connection.raw)
        for each in [each for each in connections if each.end is None]:
            self._close(each)

    def _end_earlier(self, branch: AdoptedBranch) -> None:
        """Take what was begun with the branch from the queue, or wait for its answer."""
        for queued in [each for each in self._queue if each.branch is branch]:
            self._queue.remove(queued)
        while any(each.end is not None and each.end.branch is branch for each in self._connections):
            self._take_answer()
        self._outcomes.pop(branch, None)

    # -- the connections ----------------------------------------------------------------------------------------

    def _free(self) -> _Connection | None:
        """A connection for the next command; None if there is none now. If there never will be, the queue is empty."""
        connections = self._connections
        for connection in reversed(connections):
            if connection.end is None:
                if self._command.can_send(connection.raw):
                    return connection
                self._close(connection)
                return self._free()
        if not connections:
            return self._first()
        count = len(connections)
        wanted = count < self._most and len(self._queue) > count * BRANCHES_EACH
        return self._another() if wanted and not self._unreached else None

    def _first(self) -> _Connection | None:
        until = self._deadlines.after_decision()
        if not self._unreached:
            try:
                return self._opened(until)
            except Exception as error:
                self._unreached = f"no answer, left to recovery: {described(error)}"
                logger.log(
                    self._level,
                    "%d prepared branches are left to recovery, since their database cannot be reached: %s",
                    len(self._queue),
                    error,
                )
        self._failures |= {each.branch.record.xid: self._unreached for each in self._queue}
        self._queue.clear()
        return None

    def _another(self) -> _Connection | None:
        until, soon = self._deadlines.after_decision(), monotonic() + _OPENING
        try:
            return self._opened(soon if until is None else min(soon, until))
        except Exception as error:
            self._most = len(self._connections)
            logger.info("prepared branches are ended over %d connections: %s", self._most, error)
            return None

    def _opened(self, until: float | None) -> _Connection:
        raw = self._driver.connect(None if until is None else until - monotonic())
        try:
            self._command.begin_session(raw, until)
            connection = _Connection(raw)
            self._connections.append(connection)
        except BaseException:
            self._driver.close(raw)
            raise
        return connection

    def _close(self, connection: _Connection) -> None:
        self._driver.close(connection.raw)
        self._connections.remove(connection)


class _Connection:
    __slots__ = ("end", "raw")

    def __init__(self, raw: RawConnection) -> None:
        self.raw = raw
        #: What is on its way over it; None if nothing is.
        self.end: _BranchEnd | None = None


class _BranchEnd:
    """The end of one branch."""

    __slots__ = ("begun", "branch", "command", "verb")

    command: PhaseTwoCommand  #: Once it was begun.

    def __init__(self, branch: AdoptedBranch, verb: PhaseTwoVerb) -> None:
        self.branch = branch
        self.verb = verb
        self.begun = False


class AdoptedBranch:
    """A branch that is prepared already, known by its record alone."""

    __slots__ = ("_connections", "_started", "command", "record")

    def __init__(self, record: BranchRecord, connections: PhaseTwoConnections) -> None:
        self.record = record
        self._connections = connections
        self._started = False
        #: The last one that was made for it.
        self.command: PhaseTwoCommand | None = None

    @property
    def datasource(self) -> str:
        return self.record.datasource

    @property
    def rows_queue(self) -> object:
        """What deletes its row: see `txpool.resources.marked.branch_rows`."""
        return self._connections.rows_queue

    def start_commit(self) -> None:
        self._start(committing=True)

    def await_commit(self) -> BranchOutcome:
        return self._connections.finish(self)

    def start_rollback(self) -> None:
        self._start(committing=False)

    def await_rollback(self) -> BranchOutcome:
        return self._connections.finish(self)

    @property
    def remembers_end(self) -> bool:
        return self._connections.remembers(self)

    def forget_end(self) -> None:
        self._connections.forget(self)

    def _start(self, *, committing: bool) -> None:
        again, self._started = self._started, True
        self._connections.start(self, committing=committing, again=again)
