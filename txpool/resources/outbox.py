"""The outbox in one kind of database: a table of messages, which transactions send and a relay delivers.

A message's number is the database's own, and says nothing across keys: a transaction may commit behind others that have
sent later. So a relay keeps no position. It reads what is there, and deletes what it has delivered. Of one key the
numbers have the order of the commits, since who sends under a key holds a lock of the key until it has ended.
"""

from __future__ import annotations

import logging
import zlib
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterator
from contextlib import AbstractContextManager, closing, contextmanager, nullcontext
from dataclasses import dataclass
from functools import cache
from pkgutil import resolve_name
from time import monotonic
from typing import TYPE_CHECKING, Any, Final, Protocol
from weakref import WeakKeyDictionary, WeakSet

from txpool.errors import ProgrammingError
from txpool.resources.records import ConnectableDatasource

if TYPE_CHECKING:
    from txpool.resources.driver.driver import Driver

logger = logging.getLogger("txpool.outbox")

#: How many locks all keys share. A part of the format: every process must take the same lock for a key.
LOCKS: Final = 1024

_LOCK = "select number from {locks} where number = ? for update"
_INSERT = "insert into {table} (id, message_key, payload, is_text, traceparent) values (?, ?, ?, ?, ?)"
#: As every version has sent: it needs none of the columns that came later.
_INSERT_BEFORE = "insert into {table} (id, message_key, payload, is_text) values (?, ?, ?, ?)"
_WINDOW = "select number, message_key, parked, delivered_by from {table} where number > ? order by number limit ?"
_READ = (
    "select id, message_key, payload, is_text, attempts, parked, delivered_by, traceparent "
    "from {table} where number = ?"
)
_SKIP_LOCKED = " for update skip locked"
_EXISTS = "select count(*) from {table} where number = ?"
_AS_BEGUN = "where number = ? and attempts = ? and delivered_by is null"
_COUNT = "update {table} set attempts = ? " + _AS_BEGUN
_FAIL = "update {table} set parked = ?, error = ?, attempts = ? " + _AS_BEGUN
# An earlier version's relay, which may run beside this one, knows only `attempts`: with the most it delivers no more.
_DELIVERED = "update {table} set delivered_by = ?, attempts = 2147483647 " + _AS_BEGUN
_DELETE = "delete from {table} " + _AS_BEGUN
_DELETE_DELIVERED = "delete from {table} where number = ? and delivered_by = ?"
_STATE = "select count(*), coalesce(sum(parked), 0), {age} from {table}"
_LAST_ERROR = "select error from {table} where parked = 1 order by number desc limit 1"
_PARKED = "select id, message_key, attempts, error from {table} where parked = 1 order by number limit ?"
_RETRY = "update {table} set parked = 0, attempts = 0 where parked = 1"
_RETRY_ONE = f"{_RETRY} and id = ?"


#: Seconds for which a lock of the whole table is awaited: to change it, and to look into it.
_WAIT, _SHORT_WAIT = 10, 2
#: Seconds after which who sends looks again whether an earlier version's table has its columns.
_LOOK_AGAIN = 60.0
_EARLIER: Final = "an earlier version of txpool has made the table of the outbox"


@dataclass(frozen=True, slots=True)
class Row:
    """A message as the table has it."""

    id: str
    key: str | None
    payload: bytes
    is_text: bool
    #: How often its delivery has begun.
    attempts: int
    parked: bool
    #: The transaction that has delivered it, if that has other branches; else None.
    delivered_by: str | None
    #: Its place in the trace of the transaction that has sent it; None if nothing was traced.
    traceparent: str | None


@dataclass(frozen=True, slots=True)
class OutboxContent:
    """What is in an outbox, or in a session's queue and the one for its parked messages, for who only looks."""

    #: None if only a broker knows.
    total: int | None
    parked: int
    #: The seconds since the first message was sent that is not parked; None if there is none.
    oldest: float | None
    #: Of the message that was sent last among those that are parked; None if there is none, or it has no error.
    last_error: str | None


class OutboxDatasource(ConnectableDatasource, Protocol):
    """A datasource, as its outbox uses it."""

    url: str


class OutboxTable(ABC):
    """The table of messages. A method with a `cursor` works in that cursor's transaction. Thread-safe."""

    #: A parameter's placeholder in SQL.
    parameter: str
    #: SQL for the seconds since the oldest message was sent that is not parked.
    age: str
    #: SQL that lets a session wait for a lock for so many seconds.
    limit_waits: str
    #: Whether rows can be locked; else only one relay works at a time.
    locks_rows = True

    def __init__(self) -> None:
        #: The datasources whose table this process has checked.
        self._checked: WeakSet[OutboxDatasource] = WeakSet()
        #: Those whose table an earlier version has made, and when that was seen, by the monotonic clock.
        self._earlier: WeakKeyDictionary[OutboxDatasource, float] = WeakKeyDictionary()

    @abstractmethod
    def create(self, source: OutboxDatasource) -> None:
        """Create the table if it does not exist, or give an earlier version's its columns. Outside any transaction."""

    @abstractmethod
    def outside(self, driver: Driver) -> AbstractContextManager[Any]:
        """A raw connection of its own, in autocommit mode, that is not of the pool."""

    @abstractmethod
    def is_there(self, raw: Any, driver: Driver, datasource: str) -> bool:
        """Whether the table exists. Errors: OperationalError or NotSupportedError if it is not one of txpool's."""

    @abstractmethod
    def lacks(self, raw: Any) -> str:
        """The statement that gives an earlier version's table its columns; empty if it has them, or does not exist."""

    def bring_up_to_date(self, raw: Any) -> None:
        """Give an earlier version's table its columns. It waits some time for transactions that use the table."""
        while statement := self.lacks(raw):
            self._limit_waits(raw, _WAIT)
            try:
                raw.cursor().execute(statement)
            except Exception as error:
                if self.lacks(raw) == statement:  # else another has done it meanwhile
                    error.add_note(f"{_EARLIER}. As its owner, once no transaction uses it: {statement};")
                    raise

    @abstractmethod
    def names(self, cursor: Any) -> dict[str, str]:
        """The names of the `table` of messages, and of that of the `locks`."""

    @contextmanager
    def opened(self, source: OutboxDatasource, *, sends: bool = False) -> Iterator[Any]:
        """A cursor in the ambient transaction; ProgrammingError if there is no table, or an earlier version's.

        Who only `sends` may do so into an earlier version's, too.
        """
        if source not in self._checked and not (sends and self._is_earlier(source)):
            with self.outside(source.driver_adapter) as raw:
                is_there = self.is_there(raw, source.driver_adapter, source.name)
                statement = self.lacks(raw)
            if not is_there:
                raise ProgrammingError(
                    f"datasource {source.name} has no outbox, and nothing was done: make it once, by `txpool outbox "
                    "init` and the datasource's file"
                )
            if not statement:
                self._checked.add(source)
            else:
                do = f"run `txpool outbox init` and the datasource's file, or, as the table's owner: {statement};"
                if not sends:
                    raise ProgrammingError(f"datasource {source.name}: {_EARLIER}, and nothing was done: {do}")
                logger.warning(
                    "datasource %s: %s. What is sent goes into it as that version sends, without a place in a trace: "
                    "%s",
                    source.name,
                    _EARLIER,
                    do,
                )
                self._earlier[source] = monotonic()
        with closing(source.connect()) as connection:
            yield connection.cursor()

    def _is_earlier(self, source: OutboxDatasource) -> bool:
        """Whether an earlier version's table was seen there, and not long ago."""
        seen = self._earlier.get(source)
        return seen is not None and monotonic() - seen < _LOOK_AGAIN

    def look(self, driver: Driver, datasource: str) -> OutboxContent | None:
        """What is in it; None if there is no table. Each statement is for itself: nothing is held."""
        with self.looking(driver) as raw:
            if not self.is_there(raw, driver, datasource):
                return None
            with closing(raw.cursor()) as cursor:
                total, parked, oldest = self.state(cursor)
                last = self._execute(cursor, _LAST_ERROR, []).fetchone() if parked else None
        return OutboxContent(total, parked, oldest, None if last is None else last[0])

    @contextmanager
    def looking(self, driver: Driver) -> Iterator[Any]:
        """A connection for who only looks."""
        with self.outside(driver) as raw:
            self._limit_waits(raw, _SHORT_WAIT)  # else a server's thread would go on waiting once nobody listens
            yield raw

    def _limit_waits(self, raw: Any, seconds: int) -> None:
        raw.cursor().execute(self.limit_waits.format(seconds))

    def alone(self, source: OutboxDatasource) -> AbstractContextManager[bool]:
        """For as long as a relay works: whether it may. False while another does, if only one can."""
        return nullcontext(True)

    # -- what a transaction sends -------------------------------------------------------------------------------

    def send(
        self,
        source: OutboxDatasource,
        message: str,
        key: str | None,
        payload: bytes,
        traceparent: str | None,
        *,
        is_text: bool,
    ) -> None:
        """Insert a message. It waits for other transactions that have sent under the key, until they have ended."""
        with self.opened(source, sends=True) as cursor:
            before = source not in self._checked
            if key is not None and self.locks_rows:
                lock = zlib.crc32(key.encode()) % LOCKS
                take = OutboxTable.take_lock if before else type(self).take_lock
                if not take(self, cursor, lock):
                    raise ProgrammingError(
                        f"the lock {lock} of the outbox is gone, and nothing was sent: run `txpool outbox init` again"
                    )
            values = [message, key, payload, int(is_text)]
            if before:
                self._execute(cursor, _INSERT_BEFORE, values)
            else:
                self._execute(cursor, _INSERT, [*values, traceparent])

    def take_lock(self, cursor: Any, number: int) -> bool:
        """Take a lock of keys until the transaction has ended, also if the server restarts; False if it is gone."""
        return self._execute(cursor, _LOCK, [number]).fetchone() is not None

    # -- what a relay does --------------------------------------------------------------------------------------

    def window(self, cursor: Any, after: int, limit: int) -> list[tuple[int, str | None, bool, str | None]]:
        """The first messages behind a number: number, key, whether it is parked, and what has delivered it."""
        rows = self._execute(cursor, _WINDOW, [after, limit]).fetchall()
        return [(number, key, bool(parked), delivered_by) for number, key, parked, delivered_by in rows]

    def read(self, cursor: Any, number: int) -> Row | None:
        """A message, which the transaction now holds; None if another holds it, or it is gone."""
        found = self._execute(cursor, _READ + (_SKIP_LOCKED if self.locks_rows else ""), [number]).fetchone()
        if found is None:
            return None
        message, key, payload, is_text, attempts, parked, delivered_by, traceparent = found
        return Row(message, key, bytes(payload), bool(is_text), attempts, bool(parked), delivered_by, traceparent)

    def exists(self, cursor: Any, number: int) -> bool:
        """Whether a message is there, whoever holds it."""
        return bool(self._execute(cursor, _EXISTS, [number]).fetchone()[0])

    def count(self, cursor: Any, number: int, attempts: int) -> None:
        """Write that one more delivery than `attempts` begins."""
        self._execute(cursor, _COUNT, [attempts + 1, number, attempts])

    def fail(self, cursor: Any, number: int, attempts: int, error: str, *, parked: bool, counts: bool = True) -> bool:
        """Write why the last of so many deliveries has failed, whether that counts, and whether there is no other.

        False if the message is not as it was when that began.
        """
        return self.changes_one(
            cursor, _FAIL, [int(parked), error, attempts if counts else attempts - 1, number, attempts]
        )

    def delete(self, cursor: Any, number: int, attempts: int) -> bool:
        """Delete a message; False if it is not as it was when this delivery began."""
        return self.changes_one(cursor, _DELETE, [number, attempts])

    def set_delivered(self, cursor: Any, number: int, attempts: int, gtrid: str) -> bool:
        """Note in a message which transaction delivers it; False if it is not as it was when this delivery began.

        The row is changed, since the lock of a row alone does not outlive a restart of every server.
        """
        return self.changes_one(cursor, _DELIVERED, [gtrid, number, attempts])

    def delete_delivered(self, cursor: Any, number: int, gtrid: str) -> bool:
        """Delete a message that this transaction has delivered; False if it is gone."""
        return self.changes_one(cursor, _DELETE_DELIVERED, [number, gtrid])

    def changes_one(self, cursor: Any, statement: str, values: list[Any]) -> bool:
        """Execute a statement that is to change one row; False if there is none."""
        changed: int = self._execute(cursor, statement, values).rowcount
        return changed == 1

    # -- what people ask ----------------------------------------------------------------------------------------

    def state(self, cursor: Any) -> tuple[int, int, float | None]:
        """How many messages there are, how many of them are parked, and the age of the oldest other in seconds."""
        total, parked, age = self._execute(cursor, _STATE, []).fetchone()
        return int(total), int(parked), None if age is None else max(0.0, float(age))

    def parked(self, cursor: Any, limit: int) -> list[tuple[str, str | None, int, str | None]]:
        """The first parked messages: id, key, attempts, error."""
        return [tuple(row) for row in self._execute(cursor, _PARKED, [limit]).fetchall()]

    def retry(self, cursor: Any, message: str | None) -> int:
        """Let a message that is parked, or all of them, be delivered again; returns how many there were."""
        statement, values = (_RETRY, []) if message is None else (_RETRY_ONE, [message])
        changed: int = self._execute(cursor, statement, values).rowcount
        return changed

    def _execute(self, cursor: Any, statement: str, values: list[Any]) -> Any:
        text = statement.format(**self.names(cursor), age=self.age).replace("?", self.parameter)
        cursor.execute(self.spelled(text), values)
        return cursor

    def spelled(self, statement: str) -> str:
        """The statement as the database gets it."""
        return statement


def lacking(table: str, names: Collection[str], *columns: str) -> str:
    """The statement that adds the first column that a table with these names lacks; empty if it has all, or no name."""
    lacks = [each for each in columns if each.split()[0] not in names] if names else []
    return f"alter table {table} add column {lacks[0]}" if lacks else ""


# A cached_property would take a lock, which a fork could leave held.
@cache
def outbox_table(part: str) -> OutboxTable:
    """The table that a resource manager's `outbox` names."""
    made: OutboxTable = resolve_name(part)()
    return made
