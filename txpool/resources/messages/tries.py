"""The tries of single messages that have begun, and of which nobody has written yet how they have ended.

Such a try is counted while the transaction that handles the message holds it, and in a table of its own, since nobody
else could write into the message's row meanwhile. It is written outside that transaction: so it stays if the process is
killed. Who holds a message and finds all its tries there knows that none of them is at work any more.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING, Any, Final, NamedTuple

if TYPE_CHECKING:
    from txpool.datasource import DataSource

#: The number of no part of a topic: the place is the number of a message in a queue's table. A part of the format.
QUEUED: Final = -1

_OF_PART = " where consumer = ? and topic = ? and part = ?"
_OF_PLACE = f"{_OF_PART} and place = ?"
_OF_MESSAGE = f"{_OF_PLACE} and message = ?"
_READ = "select tries from {tries}" + _OF_MESSAGE
_PLACES = "select place from {tries}" + _OF_PART
_COUNT = "update {tries} set tries = tries + 1" + _OF_MESSAGE
_FIRST = "insert into {tries} (consumer, topic, part, place, message, tries) values (?, ?, ?, ?, ?, 1)"
_TAKE_BACK = "update {tries} set tries = tries - 1" + _OF_MESSAGE + " and tries > ?"
_NONE_LEFT = "delete from {tries}" + _OF_MESSAGE + " and tries = 0"
_DROP = "delete from {tries}" + _OF_PLACE


class Tried(NamedTuple):
    """What is tried: the message at a place in a part of a topic, or in a queue."""

    consumer: str
    topic: str
    part: int
    place: int
    #: Its id: a place may be another message's later, in a topic that was created again, say.
    message: str


class TriesTable(ABC):
    """The table of tries in one kind of database. A method with a `cursor` works in that cursor's transaction."""

    #: Whether rows can be locked; else one transaction writes at a time, and the table is in a database of its own.
    locks_rows = True

    @abstractmethod
    def apart(self, source: DataSource) -> AbstractContextManager[Any]:
        """A cursor in the table, outside the pool and any transaction: each statement is one."""

    @abstractmethod
    def _execute(self, cursor: Any, statement: str, values: list[Any]) -> Any: ...

    @abstractmethod
    def queued(self, cursor: Any, queue: str, numbers: Sequence[int]) -> set[int]:
        """Those of the numbers that are in the queue."""

    @contextmanager
    def within(self, source: DataSource, cursor: Any) -> Iterator[Any]:
        """A cursor in the table, in that cursor's transaction if the table is in its database."""
        if self.locks_rows:
            yield cursor
        else:
            with self.apart(source) as own:
                yield own

    def tries(self, cursor: Any, tried: Tried) -> int:
        """How many tries have begun, and not ended."""
        found = self._execute(cursor, _READ, [*tried]).fetchone()
        return 0 if found is None else int(found[0])

    def begin_try(self, cursor: Any, tried: Tried, holding: Any) -> None:
        """Write that one more begins. `holding` is a cursor of the transaction that holds the message."""
        if self._execute(cursor, _COUNT, [*tried]).rowcount != 1:
            self._forget_gone(cursor, tried, cursor if self.locks_rows else holding)
            self._execute(cursor, _FIRST, [*tried])

    def _forget_gone(self, cursor: Any, tried: Tried, looking: Any) -> None:
        """Delete what killed processes have left of messages that are gone: others have done or parked them."""
        places = {int(place) for (place,) in self._execute(cursor, _PLACES, [*tried[:3]]).fetchall()}
        others = sorted(places - {tried.place})
        if others and tried.part == QUEUED:
            places -= self.queued(looking, tried.topic, others)
        for place in places:
            self._execute(cursor, _DROP, [*tried[:3], place])

    def take_back(self, cursor: Any, tried: Tried, others: int = 0) -> None:
        """Write that one has ended, if there are more than `beside`."""
        self._execute(cursor, _TAKE_BACK, [*tried, others])
        self._execute(cursor, _NONE_LEFT, [*tried])

    def forget_tries(self, cursor: Any, tried: Tried) -> None:
        """Write that all have ended."""
        self._execute(cursor, _DROP, [*tried[:4]])
