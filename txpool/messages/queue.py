"""The session of `driver = sql-queue`: a queue in a table of a datasource."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from txpool.errors import OperationalError, ProgrammingError
from txpool.messages.session import MessageSession, ReceivedMessage, apart, database_of, looked
from txpool.resources.messages.tables import QUEUED, Outgoing, QueuedRow, Tried, readable, tables_of
from txpool.tm.ambient import current
from txpool.tm.demarcation.block import transaction

if TYPE_CHECKING:
    from txpool.datasource import DataSource, Source
    from txpool.tm.transaction import Transaction

#: The seconds between two looks into the table.
_POLL = 0.05


class QueueSession(MessageSession):
    """Sends into and receives from a queue of a datasource, in the datasource's branch of the transaction."""

    def __init__(self, source: Source) -> None:
        super().__init__(source)
        settings = source.settings
        self._datasource = database_of(source, settings.queue_datasource, "queue.datasource")
        self._tables = tables_of(self._datasource)
        self._queue: str = settings.queue or ""
        self._ordered = settings.queue_ordered

    @property
    def datasource(self) -> DataSource:
        return self._datasource

    def _send(self, sent: Outgoing) -> None:
        if sent.key is not None and readable(sent.key) != sent.key:
            raise ProgrammingError("a message's key has a NUL or a surrogate in it, and nothing was sent")
        with self._cursor() as cursor:
            self._tables.insert(cursor, self._queue, sent)
        self._sent_by(current()).add(sent.id)

    # -- receiving ----------------------------------------------------------------------------------------------

    def _receive(self, ambient: Transaction, most: int, timeout: float) -> list[ReceivedMessage]:
        def take() -> list[QueuedRow]:
            ambient.require_active()
            rows = self._held(most)
            if rows:
                self._delete(rows)
            return rows

        return [_message(row) for row in looked(take, timeout, _POLL)]

    def _held(self, most: int) -> list[QueuedRow]:
        """The first rows that can be received, which the transaction holds now."""
        held: list[QueuedRow] = []
        keys: dict[str | None, bool] = {}
        after = -1
        while len(held) < most and (window := self._window(after)):
            after = window[-1][0]
            with self._cursor() as cursor:
                held += self._hold(cursor, window, most - len(held), keys)
        return held

    def _window(self, after: int) -> list[tuple[int, str | None, bool]]:
        # In a snapshot, what the transaction reads may be older than the messages.
        return apart(lambda: self._look(after)) if self._tables.reads_snapshots else self._look(after)

    def _look(self, after: int) -> list[tuple[int, str | None, bool]]:
        with self._cursor() as cursor:
            rows = self._tables.window(cursor, self._queue, after)
        own = self._sent_by(current())
        return [(number, key, due) for number, key, due, message in rows if message not in own]

    def _sent_by(self, ambient: Transaction | None) -> set[str]:
        """The ids of what a transaction has sent itself, by whatever session: it is received once it has committed."""
        return set() if ambient is None else ambient.values.setdefault(QueueSession, set())

    def _hold(
        self, cursor: Any, window: list[tuple[int, str | None, bool]], most: int, keys: dict[str | None, bool]
    ) -> list[QueuedRow]:
        """The first of those rows that are due and that nobody else has; the transaction holds them then.

        `keys` says whether messages of a key may be taken, as far as that is known of the rows before.
        """
        if not self._ordered:
            due = [number for number, _, is_due in window if is_due]
            held: list[QueuedRow] = []
            while due and len(held) < most:
                some, due = due[: most - len(held)], due[most - len(held) :]
                held += [row for row in self._tables.read(cursor, self._queue, some) if row.due]
            return held
        found: list[QueuedRow] = []
        rest = iter(window)  # whole, before any row behind it: others may have taken some of its rows since the look
        while len(found) < most:
            numbers: list[int] = []
            for number, key, is_due in rest:
                if key is None or not is_due:
                    keys[key] = key is None
                elif key not in keys:
                    keys[key] = self._tables.hold_key(cursor, key)
                if keys[key] and is_due:
                    numbers.append(number)
                if len(numbers) >= most - len(found):
                    break
            if not numbers:
                break
            for row in self._tables.read(cursor, self._queue, numbers, wait=True):
                if row.key is not None:  # it may have failed since the look
                    keys[row.key] = keys[row.key] and row.due
                if row.due and keys[row.key]:
                    found.append(row)
        return found

    def _delete(self, rows: list[QueuedRow]) -> None:
        with self._cursor() as cursor:
            if self._tables.delete(cursor, self._queue, [row.number for row in rows]) != len(rows):
                raise OperationalError(
                    f"{self.name}: messages that this transaction holds are gone from the queue {self._queue}: "
                    "somebody has deleted their rows. The transaction is to roll back, and nothing is received"
                )

    # -- for the loop of a consumer -----------------------------------------------------------------------------

    def wait(self, timeout: float) -> bool:
        return looked(lambda: apart(self._any_due), timeout, _POLL)

    def _any_due(self) -> bool:
        waiting: set[str | None] = set()  # keys of which a message is not due yet
        after = -1
        while window := self._look(after):
            after = window[-1][0]
            for _, key, due in window:
                if due and not (self._ordered and key in waiting):
                    return True
                if key is not None and not due:
                    waiting.add(key)
        return False

    def take_one(self) -> ReceivedMessage | None:
        found = self._held(1)
        if found and found[0].tries < self.parking_after:
            self._delete(found)
        return _message(found[0]) if found else None

    def _tried(self, message: ReceivedMessage) -> Tried:
        return Tried("", self._queue, QUEUED, message.place, message.id)

    def failed(self, message: ReceivedMessage, error: str, delay: float, *, is_open: bool) -> None:
        with transaction(), self._cursor() as cursor:
            self._tables.later(cursor, self._queue, message.place, delay, error)
            if is_open:
                with self._tables.within(self._datasource, cursor) as tries:
                    self._tables.take_back(tries, self._tried(message))

    def park(self, message: ReceivedMessage, error: str) -> str:
        with transaction(), self._cursor() as cursor:
            was_there = self._tables.park(cursor, self._queue, message.place, self.parking, error)
            with self._tables.within(self._datasource, cursor) as tries:
                self._tables.forget_tries(tries, self._tried(message))
        return self.parking if was_there else ""


def _message(row: QueuedRow) -> ReceivedMessage:
    return ReceivedMessage(row.body, row.key, row.headers, row.id, row.sent_at, row.number, row.tries)
