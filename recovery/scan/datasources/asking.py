"""How one pass asks its datasources: each within its time, and none again in this pass once it has not answered."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Protocol, TypeVar

from recovery.scan.datasources.workers import NoAnswer, Workers
from txpool.config.secrets import describe_error
from txpool.resources.recovery_access import MarkedRow, StagingArea, StagingTable, XidsTable
from txpool.xid import Xid

T = TypeVar("T")


class Asking(Protocol):
    """Asks datasources, by their names."""

    def start(self, name: str, act: Callable[[], T]) -> Callable[[], T]:
        """Start to ask a datasource. Returns what waits for the answer, and returns or raises it."""

    def tidy(self, name: str, act: Callable[[], object]) -> None:
        """Close what was used to ask."""


class AskedInTurn:
    """Asks in the caller's own thread, and waits for as long as it takes: for models, which answer at once."""

    def start(self, name: str, act: Callable[[], T]) -> Callable[[], T]:
        try:
            result = act()
        except Exception as error:
            return partial(_raise, error)
        return lambda: result

    def tidy(self, name: str, act: Callable[[], object]) -> None:
        act()


class AskedByWorkers:
    """Asks in the workers of a recovery manager. Used for one pass, by one thread."""

    def __init__(self, workers: Workers) -> None:
        self._workers = workers
        #: The datasources that have not answered in time, with the errors: they are not asked again in this pass.
        self._silent: dict[str, str] = {}

    def start(self, name: str, act: Callable[[], T]) -> Callable[[], T]:
        if name in self._silent:
            return partial(_raise, NoAnswer(self._silent[name]))
        call = self._workers.start(name, act)

        def wait() -> T:
            try:
                return call.wait()
            except NoAnswer as error:
                self._silent[name] = str(error)
                raise
            finally:
                if call.overdue:
                    self._silent.setdefault(name, call.words())

        return wait

    def tidy(self, name: str, act: Callable[[], object]) -> None:
        self._workers.tidy(name, act)


def collect(started: Mapping[str, Callable[[], T]]) -> tuple[dict[str, T], dict[str, str]]:
    """The barrier: wait until each has answered or its time is over. Returns the answers, and the errors."""
    answers: dict[str, T] = {}
    errors: dict[str, str] = {}
    for name, wait in started.items():
        try:
            answers[name] = wait()
        except Exception as error:
            errors[name] = describe_error(error)
    return answers, errors


class AskedTable:
    """A table of marks, asked within its time."""

    def __init__(self, asking: Asking, name: str, table: XidsTable) -> None:
        self._start = partial(asking.start, name)
        self._table = table

    def start_read(self) -> Callable[[], list[MarkedRow]]:
        """Start to read it. Returns what waits for the rows."""
        return self._start(self._table.read)

    def read(self) -> list[MarkedRow]:
        return self.start_read()()

    def tombstone(self, gtrid: str, identity: str = "") -> MarkedRow:
        return self._start(partial(self._table.tombstone, gtrid, identity))()

    def delete(self, gtrids: Iterable[str]) -> None:
        self._start(partial(self._table.delete, gtrids))()


class AskedStaging:
    """Staging tables, asked for within their time."""

    def __init__(self, asking: Asking, name: str, area: StagingArea) -> None:
        self._start = partial(asking.start, name)
        self._area = area

    def start_tables(self) -> Callable[[], Sequence[StagingTable]]:
        """Start to ask for the tables. Returns what waits for them."""
        return self._start(self._area.tables)

    def drop(self, table: StagingTable) -> None:
        self._start(partial(self._area.drop, table))()


class BranchRowsTable(Protocol):
    """A table of the rows that branches have written: `txpool.resources.marked.branch_rows`."""

    def xids(self) -> list[Xid]:
        """The branches that have rows."""

    def delete(self, gtrids: Iterable[str]) -> None:
        """Delete the rows of these branches, by their whole names."""


class AskedRows:
    """The rows of branches, asked for within their time."""

    def __init__(self, asking: Asking, name: str, table: BranchRowsTable) -> None:
        self._start = partial(asking.start, name)
        self._table = table

    def start_xids(self) -> Callable[[], Sequence[Xid]]:
        """Start to ask for the branches that have rows. Returns what waits for them."""
        return self._start(self._table.xids)

    def delete(self, gtrids: Iterable[str]) -> None:
        self._start(partial(self._table.delete, gtrids))()


def _raise(error: Exception) -> T:  # type: ignore[type-var]
    raise error
