"""Adopted branches: other processes, such as Spark's tasks, have prepared them, and this process ends them.

A job may leave hundreds of them in one database. They share one connection, which executes one command at a time. So
Spark's driver needs one connection for each database, and the databases still work at the same time.
"""

from __future__ import annotations

import logging
from collections import deque
from time import monotonic

from txpool.resources.base import BranchOutcome, BranchRecord
from txpool.resources.deadlines import NO_DEADLINES, Deadlines
from txpool.resources.driver import Driver
from txpool.resources.postgresql.libpq import IDLE, Session
from txpool.resources.postgresql.phase_two import PhaseTwoCommand, PhaseTwoVerb

logger = logging.getLogger("txpool")


class PhaseTwoConnection:
    """The one connection over which a transaction ends its adopted branches in a datasource. One thread at a time.

    It is opened for the first command, and closed with the last answer. Where the database cannot be reached, it tries
    once, and all branches that are queued are left to recovery.
    """

    def __init__(self, driver: Driver, deadlines: Deadlines = NO_DEADLINES) -> None:
        self.driver = driver
        self._deadlines = deadlines
        self._session: Session | None = None
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
        session, self._session = self._session, None
        if session is not None:
            self.driver.close(session.raw)

    def _send_next(self) -> None:
        if self._current is not None:
            return
        if not self._queue:
            self.close()
            return
        try:
            session = self._open_session()
        except Exception as error:
            logger.warning(
                "%d prepared branches are left to recovery, since their database cannot be reached: %s",
                len(self._queue),
                error,
            )
            self.close()
            return
        self._current = self._queue.popleft()
        self._current[1].start(session)

    def _open_session(self) -> Session:
        if self._session is not None and self._session.status != IDLE:
            self.driver.close(self._session.raw)
            self._session = None
        if self._session is None:
            until = self._deadlines.after_decision()
            self._session = Session(self.driver.connect(None if until is None else until - monotonic()))
        return self._session


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
