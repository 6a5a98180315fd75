"""The work that the kit does in a transaction, and how it looks at what became of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from threading import Timer
from typing import TYPE_CHECKING, Any, Protocol

from txpool.datasource import DataSource
from txpool.errors import InterfaceError, translated
from txpool.locks import Lock

if TYPE_CHECKING:
    from txpool.resources.driver.raw import RawConnection

_LOCK_WAIT = 5.0  # seconds that the kit's own statements wait at most


class Workload(Protocol):
    """Work of one kind of resource. `work` is what a transaction works with: a connection, or what enlist() returned.

    Each key is written by one transaction. `visible` is called from several threads, the others from one at a time.
    """

    def write(self, work: Any, key: str) -> None:
        """Do something in the transaction that is there, under this key, once it has committed."""

    def visible(self, key: str) -> bool:
        """Whether it is there, as any other program sees it. Waits for no transaction that is open or prepared."""

    def close(self) -> None:
        """Remove all that was written."""


class StatementWorkload(Workload, Protocol):
    """Work that consists of statements, some of which fail, and some of which end transactions."""

    def read(self, work: Any) -> None:
        """Only read something in the transaction."""

    def fail(self, work: Any) -> None:
        """Execute a statement that fails. Raises its error."""

    def end_by_hand(self, work: Any, command: str) -> None:
        """Execute `commit` or `rollback` as a user's own statement. Raises what the database or txpool answers."""


class TableWork:
    """Rows of a table of the kit's own, by SQL that every database understands."""

    def __init__(self, datasource: DataSource, table: str) -> None:
        self._datasource = datasource
        self._driver = datasource.driver_adapter
        self._table = table
        self._created = False
        #: Reads what has become of the work. One for all, since a connection takes longer than what is read.
        self._reader: Any = None
        self._reading = Lock()
        self._closed = False

    def create(self) -> None:
        """Create the table, with one row. The database's own error if the user may not."""
        self._created = True  # first: it may be there after an interrupt, or if the connection is lost
        with self._session() as raw:
            try:
                self._commit(f"create table {self._table} (id varchar(60) not null primary key)", raw)
            except Exception:
                self._created = not self._driver.is_open(raw)  # else the database has refused
                raise
        self._commit(f"insert into {self._table} values ('first')")

    def write(self, work: Any, key: str) -> None:
        _execute(work, f"insert into {self._table} values ('{key}')")

    def read(self, work: Any) -> None:
        _execute(work, f"select id from {self._table} where id = 'first'")

    def fail(self, work: Any) -> None:
        _execute(work, f"insert into {self._table} values ('first')")

    def end_by_hand(self, work: Any, command: str) -> None:
        # What might be a parameter has an odd name: so it is not certain what the text does, and it is sent.
        _execute(work, f"{command} /* %(;) */")

    def visible(self, key: str) -> bool:
        with self._reading:
            if self._reader is None:
                self._reader = self._datasource.open_session()
            if self._closed:  # a case that was given up goes on after the kit's end
                self._close_reader()
                raise InterfaceError("the kit has ended")
            try:
                cursor = self._driver.execute(self._reader, f"select id from {self._table} where id = '{key}'")
                found = cursor.fetchone() is not None
                cursor.close()
                self._reader.rollback()  # the next look has a new snapshot
            except BaseException as error:
                self._close_reader()
                if self._datasource.resource_manager.is_transient(error, at_its_end=False):
                    return False  # a database without snapshots lets nobody read what is not committed
                raise
        return found

    def _close_reader(self) -> None:
        reader, self._reader = self._reader, None
        if reader is not None:
            self._driver.close(reader)

    def close(self) -> None:
        self._closed = True
        self._close_reader()
        if self._created:
            self.drop()
            self._created = False

    def drop(self) -> None:
        """Drop the table, if it is there."""
        try:
            self._commit(f"drop table if exists {self._table}")
        except self._driver.module.ProgrammingError:  # Derby does not know IF EXISTS
            self._commit(f"drop table {self._table}")

    def _commit(self, statement: str, raw: RawConnection = None) -> None:
        session = self._session() if raw is None else nullcontext(raw)
        with session as used, self._cancelled_after(used), translated():
            self._driver.execute(used, statement).close()
            used.commit()

    @contextmanager
    def _session(self) -> Iterator[Any]:
        raw = self._datasource.open_session()
        try:
            yield raw
        finally:
            self._driver.close(raw)

    @contextmanager
    def _cancelled_after(self, raw: RawConnection) -> Iterator[None]:
        """Cancel the block's statement if it takes long: a branch that is left prepared locks the table."""
        timer = Timer(_LOCK_WAIT, self._driver.cancel, [raw])
        timer.daemon = True
        timer.start()
        try:
            yield
        finally:
            timer.cancel()


def _execute(connection: Any, statement: str) -> None:
    cursor = connection.cursor()
    try:
        cursor.execute(statement)
        if cursor.description is not None:
            cursor.fetchall()
    finally:
        with suppress(Exception):
            cursor.close()


def attempted(action: Callable[..., object], *arguments: Any) -> Exception | None:
    """Do what may be refused; the error, if it was."""
    try:
        action(*arguments)
    except Exception as error:
        return error
    return None
