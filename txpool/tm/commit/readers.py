"""The branches of a transaction that have only read.

They are neither named nor prepared, and take no part in the decision. Each stays open, with its locks and its snapshot,
until the other branches have ended. How it ends changes no outcome.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from functools import partial

from txpool import failpoints
from txpool.resources.base import Participant, ReadOnlyCheck

logger = logging.getLogger("txpool")


class Readers:
    """One transaction's readers. Used by one thread at a time."""

    __slots__ = ("_open", "interrupt")

    def __init__(self) -> None:
        self._open: dict[Participant, ReadOnlyCheck] = {}
        #: A KeyboardInterrupt or its like that came while one of them was ended.
        self.interrupt: BaseException | None = None

    def __contains__(self, participant: Participant) -> bool:
        return participant in self._open

    def find(self, checks: dict[Participant, ReadOnlyCheck]) -> None:
        """Ask all that seem to be readers, at the same time. An error is a vote to roll back."""
        failures: list[Exception] = []
        for participant, check in list(checks.items()):
            try:
                check.start_asking()
            except Exception as error:
                failures.append(error)
                del checks[participant]
        # Every answer is read, also after an error: a session with an unread answer cannot be used.
        for participant, check in list(checks.items()):
            try:
                if not check.await_answer():
                    del checks[participant]
            except Exception as error:
                failures.append(error)
        if failures:
            raise failures[0]
        self._open = checks

    def require_alive(self) -> None:
        """Raise, just before the decision, if a reader's session is lost: its locks may be gone since."""
        for check in self._open.values():
            check.require_alive()

    def commit(self) -> None:
        """Commit the readers, once the others have committed. A failure is logged, and its connection closed."""
        if failpoints.armed and self._open:
            self._log_failure_of(partial(failpoints.hit, "readers.committing"), None)
        started = [check for check in self._open.values() if self._log_failure_of(check.start_commit, check)]
        for check in started:
            self._log_failure_of(check.await_commit, check)
        self._open = {}

    def roll_back(self) -> None:
        """Roll the readers back. A failure is logged, and its connection closed."""
        if failpoints.armed and self._open:
            self._log_failure_of(partial(failpoints.hit, "readers.rolling-back"), None)
        for participant, check in self._open.items():
            self._log_failure_of(participant.rollback, check)
        self._open = {}

    def _log_failure_of(self, step: Callable[[], object], check: ReadOnlyCheck | None) -> bool:
        """Do the step; whether it succeeded."""
        try:
            step()
        except BaseException as error:
            if not isinstance(error, Exception):
                self.interrupt = error
            if check is not None:
                logger.warning(
                    "datasource %s was only read in this transaction, and ending its part failed. That changes no "
                    "outcome, but a NOTIFY in it may be lost; the connection is closed: %s",
                    check.datasource,
                    error,
                )
                check.drop()
            return False
        return True


def checks_of(participants: Iterable[Participant], *, committing: bool = True) -> dict[Participant, ReadOnlyCheck]:
    """The checks of the participants that seem to be readers.

    With `committing` false the readers will end by a rollback: then one that has sent a NOTIFY, which only a commit
    delivers, is no reader.
    """
    checks = {}
    for participant in participants:
        check = participant.read_only_check(committing=committing)
        if check is not None:
            checks[participant] = check
    return checks
