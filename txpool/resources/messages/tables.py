"""The tables that messages need in one kind of database: queues, and the positions of consumers of other brokers.

A taken message is a deleted row: it is gone if the transaction commits. A number says nothing across transactions,
since one may commit behind others that have sent later. So a queue keeps no position, and reads what is there.
"""

from __future__ import annotations

import json
import zlib
from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import cache
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from weakref import WeakSet

from txpool.errors import NotSupportedError
from txpool.resources.messages.tries import TriesTable
from txpool.resources.outbox import OutboxContent

if TYPE_CHECKING:
    from txpool.datasource import DataSource
    from txpool.resources.driver.driver import Driver

#: How many locks the keys of all ordered queues share. A part of the format.
LOCKS: Final = 1024
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
_READ = (
    "select number, id, message_key, body, headers, sent_at, tries, due <= {now} from {messages} "
    "where queue = ? and ({numbers}) order by number"
)
_DELETE = "delete from {messages} where queue = ? and ({numbers})"
_QUEUED = "select number from {messages} where queue = ? and ({numbers})"
_LATER = "update {messages} set due = {now} + ?, error = ?, tries = tries + 1 where number = ? and queue = ?"
_PARK = "update {messages} set queue = ?, due = {now}, error = ?, tries = 0 where number = ? and queue = ?"
_STATE = "select count(*), {now} - min(sent_at) from {messages} where queue = ?"
_LAST_ERROR = "select error from {messages} where queue = ? order by number desc limit 1"
_POSITION = "select position, tries from {positions} where consumer = ? and topic = ? and part = ?"
_HOLD = " for update skip locked"
_START = "insert into {positions} (consumer, topic, part, position) values (?, ?, ?, ?)"
_ADVANCE = (
    "update {positions} set position = ?, tries = 0 where consumer = ? and topic = ? and part = ? and position = ?"
)
_FAILED = "update {positions} set tries = tries + 1 where consumer = ? and topic = ? and part = ? and position = ?"


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


class MessageTables(TriesTable):
    """The tables in one kind of database. A method with a `cursor` works in that cursor's transaction. Thread-safe."""

    #: A parameter's placeholder in SQL.
    parameter: str
    #: SQL for the seconds since 1970.
    now: str
    #: Whether what a transaction reads is as old as its first read, and not the latest.
    reads_snapshots = False

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
        rows = [row for found in self._of(cursor, _READ + lock, queue, numbers) for row in found.fetchall()]
        return [
            QueuedRow(int(number), message, key, _bytes(body), _headers_in(headers), float(sent), int(tries), bool(due))
            for number, message, key, body, headers, sent, tries, due in rows
        ]

    def delete(self, cursor: Any, queue: str, numbers: Sequence[int]) -> int:
        """Delete rows of the queue, which the transaction holds; returns how many there were."""
        return sum(deleted.rowcount for deleted in self._of(cursor, _DELETE, queue, numbers))

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
