"""Phase two of the branches that a pass ends: each is started, and its answer awaited later.

So the databases work at the same time, and a database goes on while recovery notes what the last branch has answered.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Protocol, TypeVar, runtime_checkable

from txpool.resources.base import Branch, BranchOutcome, BranchRecord
from txpool.resources.recovery_access import BranchRecovery, SharedPhaseTwo

T = TypeVar("T")


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


@runtime_checkable
class SharesConnection(Protocol):
    """A resource manager whose branches share a connection."""

    def phase_two(self) -> SharedPhaseTwo: ...


class BranchEnds:
    """Ends the branches of one pass, by datasource. Used by one thread."""

    def __init__(self, managers: Mapping[str, BranchRecovery]) -> None:
        self._managers = managers
        self._phase_twos: dict[str, SharedPhaseTwo] = {}

    def branch(self, datasource: str, record: BranchRecord) -> Branch:
        """A prepared branch in this datasource."""
        found = self._phase_twos.get(datasource)
        if found is None:
            manager = self._managers[datasource]
            found = manager.phase_two() if isinstance(manager, SharesConnection) else _OneByOne(manager)
            self._phase_twos[datasource] = found
        return found.branch(record)

    def close(self) -> None:
        """Close the connections. A branch without an answer is left to the next pass."""
        for phase_two in self._phase_twos.values():
            phase_two.close()
        self._phase_twos.clear()


class _OneByOne:
    """Ends each branch by `BranchRecovery.commit` or `rollback`, when its answer is awaited."""

    def __init__(self, manager: BranchRecovery) -> None:
        self._manager = manager

    def branch(self, record: BranchRecord) -> Branch:
        return _Blocking(self._manager, record)

    def close(self) -> None:
        """Nothing: there is no connection."""


class _Blocking:
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
