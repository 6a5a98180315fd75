"""Phase two of the branches that a pass ends: each is started, and its answer awaited later.

So the databases work at the same time, and a database goes on while recovery notes what the last branch has answered.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from functools import partial
from typing import Any, TypeVar

from recovery.scan.datasources.asking import Asking
from recovery.scan.datasources.workers import NoAnswer
from txpool.config.secrets import describe_error
from txpool.resources.base import Branch, BranchOutcome, BranchRecord, forget_ends, remembers_end
from txpool.resources.recovery_access import BranchRecovery, SharedPhaseTwo, optional

T = TypeVar("T")
#: Starts a call in a datasource's worker; returns what waits for it.
Start = Callable[[Callable[[], Any]], Callable[[], Any]]


def wait_for(started: Iterable[Callable[[], T]]) -> list[T]:
    """The results of what was started. All are waited for, also after an error; then the first one is raised."""
    results, errors = [], []
    for finish in started:
        try:
            results.append(finish())
        except Exception as error:
            errors.append(error)
    if errors:
        raise errors[0]
    return results


class BranchEnds:
    """Ends the branches of one pass, by datasource, each within its time. Used by one thread."""

    def __init__(self, managers: Mapping[str, BranchRecovery], asking: Asking) -> None:
        self._managers = managers
        self._asking = asking
        self._phase_twos: dict[str, SharedPhaseTwo] = {}
        #: What waits until the commands are on their way that were started.
        self._sending: list[Callable[[], None]] = []

    def branch(self, datasource: str, record: BranchRecord) -> AskedBranch:
        """A prepared branch in this datasource."""
        found = self._phase_twos.get(datasource)
        if found is None:
            manager = self._managers[datasource]
            share = optional(manager, "phase_two")
            found = _EndedWhenAwaited(manager) if share is None else share()
            self._phase_twos[datasource] = found
        return AskedBranch(found.branch(record), partial(self._asking.start, datasource), self._sending)

    def close(self) -> None:
        """Close the connections. A branch without an answer is left to the next pass."""
        for name, phase_two in self._phase_twos.items():
            self._asking.tidy(name, phase_two.close)
        self._phase_twos.clear()


class AskedBranch:
    """A branch whose commit and rollback have a time; UNKNOWN if its database has not answered when that is over."""

    def __init__(self, branch: Branch, start: Start, sending: list[Callable[[], None]]) -> None:
        self.record = branch.record
        self._branch = branch
        self._start = start
        self._sending = sending
        self._sent: Callable[[], None] | None = None
        #: Why the last outcome is UNKNOWN, if no answer came in time.
        self.why_unknown = ""

    @property
    def datasource(self) -> str:
        return self._branch.datasource

    def start_commit(self) -> None:
        self._send(self._branch.start_commit)

    def await_commit(self) -> BranchOutcome:
        return self._outcome(self._branch.await_commit)

    def start_rollback(self) -> None:
        self._send(self._branch.start_rollback)

    def await_rollback(self) -> BranchOutcome:
        return self._outcome(self._branch.await_rollback)

    @property
    def remembers_end(self) -> bool:
        return remembers_end(self._branch)

    def forget_end(self) -> None:
        with suppress(NoAnswer):  # the database is asked again, and tells it again
            self._start(partial(forget_ends, [self._branch]))()

    def _send(self, start: Callable[[], None]) -> None:
        self._sent = self._start(start)
        self._sending.append(self._sent)

    def _outcome(self, wait: Callable[[], BranchOutcome]) -> BranchOutcome:
        # All databases work before the answer of any is awaited.
        while self._sending:
            with suppress(Exception):
                self._sending.pop()()
        try:
            if self._sent is not None:
                self._sent()
            outcome: BranchOutcome = self._start(wait)()
            return outcome
        except NoAnswer as error:
            self.why_unknown = describe_error(error)
            return BranchOutcome.UNKNOWN


class _EndedWhenAwaited:
    """Ends each branch by `BranchRecovery.commit` or `rollback`, when its answer is awaited.

    Not when it is started, as `BlockingBranch` does: of several in one datasource, each has the whole time of a step.
    """

    def __init__(self, manager: BranchRecovery) -> None:
        self._manager = manager

    def branch(self, record: BranchRecord) -> Branch:
        return _BranchEndedWhenAwaited(self._manager, record)

    def close(self) -> None:
        """Nothing: there is no connection."""


class _BranchEndedWhenAwaited:
    def __init__(self, manager: BranchRecovery, record: BranchRecord) -> None:
        self.record = record
        self._manager = manager

    @property
    def datasource(self) -> str:
        return self.record.datasource

    def start_commit(self) -> None:
        """Nothing: `commit` sends and waits."""

    def await_commit(self) -> BranchOutcome:
        return self._manager.commit(self.record)

    def start_rollback(self) -> None:
        """Nothing: `rollback` sends and waits."""

    def await_rollback(self) -> BranchOutcome:
        return self._manager.rollback(self.record)
