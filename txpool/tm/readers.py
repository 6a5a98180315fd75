"""The branches of a transaction that have only read.

They are neither named nor prepared, and decide nothing. Each stays open, with its locks and its snapshot, until the
others have ended, and its own end changes no outcome.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from functools import partial

from txpool import failpoints
from txpool.resources.base import Participant, ReadOnlyCheck

logger = logging.getLogger("txpool")


class Readers:
    """One transaction's. Used by one thread at a time."""

    __slots__ = ("_open", "interrupt")

    def __init__(self) -> None:
        self._open: dict[Participant, ReadOnlyCheck] = {}
        #: A KeyboardInterrupt, or its like, that came while one of them ended.
        self.interrupt: BaseException | None = None

    def __contains__(self, part: Participant) -> bool:
        return part in self._open

    def find(self, parts: Iterable[Participant], *, committing: bool = True) -> None:
        """Ask all that seem to be readers, at the same time. An error is a vote to roll back.

        With `committing` false they will end by `rollback`, and what is sent at a COMMIT only must be prepared.
        """
        failures: list[Exception] = []
        asked: dict[Participant, ReadOnlyCheck] = {}
        for part in parts:
            reading = part.read_only_check(committing=committing)
            if reading is not None:
                asked[part] = reading
        for part, reading in list(asked.items()):
            try:
                reading.start_asking()
            except Exception as error:
                failures.append(error)
                del asked[part]
        # Each answer is read, whatever the others are: a session with an answer to read is of no use.
        for part, reading in list(asked.items()):
            try:
                if not reading.await_answer():
                    del asked[part]
            except Exception as error:
                failures.append(error)
        if failures:
            raise failures[0]
        self._open = asked

    def require_alive(self) -> None:
        """The last moment for one of them to vote: what it has read was locked until here."""
        for reading in self._open.values():
            reading.require_alive()

    def commit(self) -> None:
        """The others have committed. Raises nothing: a failure is logged, and its connection dropped."""
        if failpoints.armed and self._open:
            self._quietly(partial(failpoints.hit, "readers.committing"), None)
        started = [each for each in self._open.values() if self._quietly(each.start_commit, each)]
        for each in started:
            self._quietly(each.await_commit, each)
        self._open = {}

    def roll_back(self) -> None:
        """The others roll back, or nobody knows; in a task, they are prepared. Raises nothing."""
        if failpoints.armed and self._open:
            self._quietly(partial(failpoints.hit, "readers.rolling-back"), None)
        for part, each in self._open.items():
            self._quietly(part.rollback, each)
        self._open = {}

    def _quietly(self, step: Callable[[], object], reading: ReadOnlyCheck | None) -> bool:
        try:
            step()
        except BaseException as error:
            if not isinstance(error, Exception):
                self.interrupt = error
            if reading is not None:
                logger.warning(
                    "datasource %s, which was only read in this transaction, has not ended its part well, which "
                    "changes no outcome, but a NOTIFY in it may be lost; the connection is dropped: %s",
                    reading.datasource,
                    error,
                )
                reading.drop()
            return False
        return True
