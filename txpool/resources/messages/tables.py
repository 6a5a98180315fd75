"""The tables that messages need in one kind of database: queues, and the positions of consumers of other brokers.

A taken message is a deleted row: it is gone if the transaction commits. A number says nothing across transactions,
since one may commit behind others that have sent later. So a queue keeps no position, and reads what is there.
"""

from __future__ import annotations

import json
import zlib
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, closing, contextmanager
from dataclasses import dataclass
from functools import cache
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from weakref import WeakSet

from txpool.errors import NotSupportedError
from txpool.resources.outbox import OutboxContent

if TYPE_CHECKING:
    from txpool.datasource import DataSource
    from txpool.resources.driver.driver import Driver

#: The header with the id that a session of txpool's gives to a message, if the broker has no other place for it.
ID_HEADER: Final = "txpool-id"
#: How many locks the keys of all ordered queues share. A part of the format.
LOCKS: Final = 1024
#: The number of no part of a topic: the place is the number of a message in a queue's table. A part of the format.
QUEUED: Final = -1
#: How many rows are looked at together.
WINDOW: Final = 1000
#: How many rows one statement names: SQLite's expressions have at most 1,000 levels.
_TOGETHER = 500
_MAX_ERROR = 1000
_UNREAD = "txpool-headers"

_LOCK = "select number from {locks} where number = ? for update skip locked"
_INSERT = (
    "insert into {messages} (queue, id, message_key, body, headers, sent_at, due, error) "
    "values (?, ?, ?, ?, ?, {now}, {now} + ?, ?)"
)
_WINDOW = (
    "select number, message_key, due <= {now}, id from {messages} where queue = ? and number > ? "
    "order by number limit ?"
)
READ = (
    "select number, id, message_key, body, headers, sent_at, tries, due <= {now} from {messages} "
    "where queue = ? and ({numbers}) order by number"
)
DELETE = "delete from {messages} where queue = ? and ({numbers})"
_QUEUED = "select number from {messages} where queue = ? and ({numbers})"
_LATER = "update {messages} set due = {now} + ?, error = ?, tries = tries + 1 where number = ? and queue = ?"
_PARK = "update {messages} set queue = ?, due = {now}, error = ?, tries = 0 where number = ? and queue = ?"
_STATE = "select count(*), {now} - min(sent_at) from {messages} where queue = ?"
_LAST_ERROR = "select error from {messages} where queue = ? order by number desc limit 1"
_OF_PART = " where consumer = ? and topic = ? and part = ?"
_POSITION = "select position, tries from {positions}" + _OF_PART
_HOLD = " for update skip locked"
_START = "insert into {positions} (consumer, topic, part, position) values (?, ?, ?, ?)"
_ADVANCE = "update {positions} set position = ?, tries = 0" + _OF_PART + " and position = ?"
_FAILED = "update {positions} set tries = tries + 1" + _OF_PART + " and position = ?"
_OF_PLACE = f"{_OF_PART} and place = ?"
_OF_MESSAGE = f"{_OF_PLACE} and message = ?"
_TRIES = "select tries from {tries}" + _OF_MESSAGE
_PLACES = "select place from {tries}" + _OF_PART
_COUNT_TRY = "update {tries} set tries = tries + 1" + _OF_MESSAGE
_FIRST_TRY = "insert into {tries} (consumer, topic, part, place, message, tries) values (?, ?, ?, ?, ?, 1)"
_TAKE_BACK = "update {tries} set tries = tries - 1" + _OF_MESSAGE + " and tries > ?"
_NONE_LEFT = "delete from {tries}" + _OF_MESSAGE + " and tries = 0"
_DROP_TRIES = "delete from {tries}" + _OF_PLACE


class Outgoing(NamedTuple):
    """A message that is sent."""

    id: str
    body: bytes | None
    key: str | None
    headers: Mapping[str, str]
    #: Seconds after which it can be received.
    delay: float


class TopicPart(NamedTuple):
    """A part of a topic, and who consumes it."""

    consumer: str
    topic: str
    part: int


class Tried(NamedTuple):
    """What is tried: the message at a place in a part of a topic, or in a queue."""

    consumer: str
    topic: str
    part: int
    place: int
    #: Its id: a place may be another message's later, in a topic that was created again, say.
    message: str


@dataclass(frozen=True, slots=True)
class QueuedRow:
    """A message as the table has it."""

    number: int
    id: str
    key: str | None
    body: bytes | None
    headers: Mapping[str, str]
    #: Seconds since 1970, by the database's clock.
    sent_at: float
    #: How often a consumer has tried it by itself, and failed.
    tries: int
    due: bool


class MessageTables(ABC):
    """The tables in one kind of database. A method with a `cursor` works in that cursor's transaction. Thread-safe."""

    #: A parameter's placeholder in SQL.
    parameter: str
    #: SQL for the seconds since 1970.
    now: str
    #: Whether what a transaction reads is as old as its first read, and not the latest.
    reads_snapshots = False
    #: Whether rows can be locked; else one transaction writes at a time, and the tries are in a database of their own.
    locks_rows = True
    #: The statements about rows that are named by their numbers. They neither lock others nor wait for them.
    reads, deletes = READ, DELETE

    def __init__(self) -> None:
        #: The datasources whose tables this process has created, or found.
        self._checked: WeakSet[DataSource] = WeakSet()

    @abstractmethod
    def create(self, source: DataSource) -> None:
        """Create the tables that do not exist, outside any transaction. Errors: as for other tables of txpool's."""

    @abstractmethod
    def names(self, cursor: Any) -> dict[str, str]:
        """The names of the tables `messages`, `positions`, `locks` and `tries`."""

    @abstractmethod
    def apart(self, source: DataSource) -> AbstractContextManager[Any]:
        """A cursor in the table of tries, outside the pool and any transaction: each statement is one."""

    @abstractmethod
    def is_there(self, raw: Any, driver: Driver, datasource: str) -> bool:
        """Whether they exist. Errors: OperationalError or NotSupportedError if they are not txpool's."""

    def look(self, raw: Any, driver: Driver, datasource: str, queue: str | None, parking: str) -> OutboxContent:
        """What waits in a queue, if it has one here, and what is parked. Each statement is for itself."""
        if not self.is_there(raw, driver, datasource):
            return OutboxContent(0 if queue else None, 0, None, None)
        with closing(raw.cursor()) as cursor:
            waiting, oldest = self.state(cursor, queue) if queue else (None, None)
            parked, _ = self.state(cursor, parking)
            last = self._execute(cursor, _LAST_ERROR, [parking]).fetchone() if parked else None
        total = None if waiting is None else waiting + parked
        return OutboxContent(total, parked, oldest, None if last is None else last[0])

    def ensure(self, source: DataSource) -> None:
        """Create the tables, unless this process has seen them."""
        if source not in self._checked:
            self.create(source)
            self._checked.add(source)

    # -- queues -------------------------------------------------------------------------------------------------

    def insert(self, cursor: Any, queue: str, sent: Outgoing, error: str | None = None) -> None:
        """Insert a message, with the error for which it is parked."""
        why = None if error is None else readable(error)
        headers = json.dumps(dict(sent.headers))
        self._execute(cursor, _INSERT, [queue, sent.id, sent.key, sent.body, headers, sent.delay, why])

    def window(self, cursor: Any, queue: str, after: int) -> list[tuple[int, str | None, bool, str]]:
        """The first rows behind a number: number, key, whether it is due, id."""
        rows = self._execute(cursor, _WINDOW, [queue, after, WINDOW]).fetchall()
        return [(int(number), key, bool(due), message) for number, key, due, message in rows]

    def hold_key(self, cursor: Any, key: str) -> bool:
        """Hold the key until the transaction's end; False if another transaction holds it."""
        lock = zlib.crc32(key.encode()) % LOCKS
        return not self.locks_rows or self._execute(cursor, _LOCK, [lock]).fetchone() is not None

    def read(self, cursor: Any, queue: str, numbers: Sequence[int], *, wait: bool = False) -> list[QueuedRow]:
        """Those rows of the queue: the transaction holds them now. Without `wait`, not those that others hold."""
        lock = (" for update" if wait else " for update skip locked") if self.locks_rows else ""
        rows = [row for found in self._of(cursor, self.reads + lock, queue, numbers) for row in found.fetchall()]
        return [
            QueuedRow(int(number), message, key, _bytes(body), _headers_in(headers), float(sent), int(tries), bool(due))
            for number, message, key, body, headers, sent, tries, due in rows
        ]

    def delete(self, cursor: Any, queue: str, numbers: Sequence[int]) -> int:
        """Delete rows of the queue, which the transaction holds; returns how many there were."""
        return sum(deleted.rowcount for deleted in self._of(cursor, self.deletes, queue, numbers))

    def queued(self, cursor: Any, queue: str, numbers: Sequence[int]) -> set[int]:
        found = self._of(cursor, _QUEUED, queue, numbers)
        return {int(number) for each in found for (number,) in each.fetchall()}

    def later(self, cursor: Any, queue: str, number: int, delay: float, error: str) -> None:
        """Write that a try of the message has failed, if it is there. It is due again after `delay` seconds."""
        self._execute(cursor, _LATER, [delay, readable(error), number, queue])

    def park(self, cursor: Any, queue: str, number: int, parking: str, error: str) -> bool:
        """Move the message into another queue, whose consumers have not tried it yet; False if it is gone."""
        changed: int = self._execute(cursor, _PARK, [parking, readable(error), number, queue]).rowcount
        return changed == 1

    def state(self, cursor: Any, queue: str) -> tuple[int, float | None]:
        """How many messages a queue has, and the age of the oldest in seconds."""
        count, age = self._execute(cursor, _STATE, [queue]).fetchone()
        return int(count), None if age is None else max(0.0, float(age))

    # -- positions ----------------------------------------------------------------------------------------------

    def position(self, cursor: Any, part: TopicPart, *, hold: bool = False) -> tuple[int, int] | None:
        """The position there, and how many tries of the message at it have failed; None if there is none yet.

        With `hold` the transaction holds it then; None also if another one does.
        """
        found = self._execute(cursor, _POSITION + _HOLD * (hold and self.locks_rows), [*part]).fetchone()
        return None if found is None else (int(found[0]), int(found[1]))

    def start(self, cursor: Any, part: TopicPart, position: int) -> None:
        """Insert the first position. IntegrityError if there is one."""
        self._execute(cursor, _START, [*part, position])

    def advance(self, cursor: Any, part: TopicPart, begun: int, position: int) -> bool:
        """Compare and set: from the position at which the work began. False if that has changed since."""
        changed: int = self._execute(cursor, _ADVANCE, [position, *part, begun]).rowcount
        return changed == 1

    def failed(self, cursor: Any, part: TopicPart, position: int) -> None:
        """Write that a try of the message at the position has failed, if the position is still there."""
        self._execute(cursor, _FAILED, [*part, position])

    # -- tries of single messages that have begun, and of which nobody has written yet how they have ended --------
    #
    # Such a try is counted while the transaction that handles the message holds it, and in a table of its own, since
    # nobody else could write into the message's row meanwhile. It is written outside that transaction: so it stays if
    # the process is killed. Who holds a message and finds all its tries there knows that none of them is at work.

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
        found = self._execute(cursor, _TRIES, [*tried]).fetchone()
        return 0 if found is None else int(found[0])

    def begin_try(self, cursor: Any, tried: Tried, holding: Any) -> None:
        """Write that one more begins. `holding` is a cursor of the transaction that holds the message."""
        if self._execute(cursor, _COUNT_TRY, [*tried]).rowcount != 1:
            self._forget_gone(cursor, tried, cursor if self.locks_rows else holding)
            self._execute(cursor, _FIRST_TRY, [*tried])

    def _forget_gone(self, cursor: Any, tried: Tried, looking: Any) -> None:
        """Delete what killed processes have left of messages that are gone: others have done or parked them."""
        places = {int(place) for (place,) in self._execute(cursor, _PLACES, [*tried[:3]]).fetchall()}
        others = sorted(places - {tried.place})
        if others and tried.part == QUEUED:
            places -= self.queued(looking, tried.topic, others)
        for place in places:
            self._execute(cursor, _DROP_TRIES, [*tried[:3], place])

    def take_back(self, cursor: Any, tried: Tried, others: int = 0) -> None:
        """Write that one has ended, if there are more than `others`."""
        self._execute(cursor, _TAKE_BACK, [*tried, others])
        self._execute(cursor, _NONE_LEFT, [*tried])

    def forget_tries(self, cursor: Any, tried: Tried) -> None:
        """Write that all have ended."""
        self._execute(cursor, _DROP_TRIES, [*tried[:4]])

    def _of(self, cursor: Any, statement: str, queue: str, numbers: Sequence[int]) -> Iterator[Any]:
        """Execute a statement for those rows of a queue, and for some of them at a time."""
        for first in range(0, len(numbers), _TOGETHER):
            some = numbers[first : first + _TOGETHER]
            where = " or ".join(["number = ?"] * len(some))
            yield self._execute(cursor, statement.replace("{numbers}", where), [queue, *some])

    def _execute(self, cursor: Any, statement: str, values: list[Any]) -> Any:
        text = statement.format(**self.names(cursor), now=self.now).replace("?", self.parameter)
        cursor.execute(self.spelled(text), values)
        return cursor

    def spelled(self, statement: str) -> str:
        """The statement as the database gets it."""
        return statement


def _bytes(found: Any) -> bytes | None:
    return None if found is None else bytes(found)


def _headers_in(text: str) -> Mapping[str, str]:
    """The headers in a row. What is none, as whoever may write rows may have written, stands in a header of its own."""
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        found = None
    if isinstance(found, dict) and all(isinstance(each, str) for each in found.values()):
        return found
    return {_UNREAD: text}


def readable(error: str) -> str:
    """An error's text as every database takes it: PostgreSQL has no NUL in a text."""
    return error.replace("\0", "?").encode("utf-8", "replace").decode()[:_MAX_ERROR]


def take_id(headers: dict[str, str], name: str, otherwise: str) -> str:
    """The id that a session has sent in the header of this name, which is taken out.

    It is `otherwise` if there is none, or one that neither a log nor every database could keep: that is another
    program's, and gets another name.
    """
    made = headers.pop(name, None)
    if made and readable(made) == made:
        return made
    if made is not None:
        headers[name.replace("id", "other")] = made
    return otherwise


@cache
def _tables(part: str) -> MessageTables:
    made: MessageTables = resolve_name(part)()
    return made


def tables_of(source: DataSource) -> MessageTables:
    """The tables in a datasource. NotSupportedError if its database has none."""
    part = source.resource_manager.messages
    if part is None:
        raise NotSupportedError(
            f"datasource {source.name} ({source.resource_manager.database}) has no queues, and no positions of "
            "consumers: use PostgreSQL, MariaDB, MySQL or SQLite. Nothing was done"
        )
    return _tables(part)
