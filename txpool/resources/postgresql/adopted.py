"""Adopted branches: other processes, such as Spark's tasks, have prepared them, and this process ends them.

A job may leave hundreds of them in one database. They share one connection, which executes one command at a time. So
Spark's driver needs one connection for each database, and the databases still work at the same time.
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

if TYPE_CHECKING:
    from txpool.resources.postgresql.driver import PsycopgRawConnection

logger = logging.getLogger("txpool")


class PhaseTwoConnection:
    """The one connection over which a transaction ends its adopted branches in a datasource. One thread at a time.

    It is opened for the first command, and closed with the last answer. Where the database cannot be reached, it tries
    once, and all branches that are queued are left to recovery.
    """

    def __init__(self, driver: Driver, deadlines: Deadlines = NO_DEADLINES) -> None:
        self.driver = driver
        self._deadlines = deadlines
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
        self._queue.append((branch, PhaseTwoCommand(branch.record, verb, self.driver.connect, self._deadlines)))
        self._send_next()

    def finish(self, branch: AdoptedBranch) -> BranchOutcome:
        """Wait for the branch's outcome; commands that were queued before it are finished first."""
        while branch not in self._outcomes and self._current is not None:
            current, command = self._current
            self._outcomes[current] = command.finish()
            self._current = None
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
        try:
            raw = self._opened()
        except Exception as error:
            logger.warning(
                "%d prepared branches are left to recovery, since their database cannot be reached: %s",
                len(self._queue),
                error,
            )
            self.close()
            return
        self._current = self._queue.popleft()
        self._current[1].start(raw)

    def _opened(self) -> PsycopgRawConnection:
        raw = self._raw
        if raw is not None and raw.session.status != IDLE:
            self.driver.close(raw)
            raw = None
        if raw is None:
            until = self._deadlines.after_decision()
            raw = self._raw = self.driver.connect(None if until is None else until - monotonic())
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
