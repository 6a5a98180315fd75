"""What one transaction does in one warehouse: its journal, its row, and the pointers that it swaps at its end."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from weakref import WeakSet, ref

from txpool import failpoints
from txpool.errors import OperationalError, ProgrammingError
from txpool.lake.journals import sync_files
from txpool.lake.warehouse import Warehouse
from txpool.locks import Lock
from txpool.resources.iceberg.manager import LakeConflict
from txpool.tm.ambient import ambient
from txpool.tm.completion.status import Status

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from txpool.datasource.source import Source
    from txpool.tm.transaction import Transaction

logger = logging.getLogger("txpool")

#: The key of a transaction's list of its works.
_WORKS = "txpool.lake"
#: Seconds that the sweep of what has been rolled back waits for a lock.
_LOCK_TIMEOUT = 5.0
#: The warehouses that this process has found to be bound.
_bound: WeakSet[Source] = WeakSet()


@dataclass(slots=True)
class StagedPointer:
    """A table's new metadata, which its pointer gets at the transaction's end."""

    before: str
    after: str
    metadata: Any


class LakeWork:
    """One transaction's work in one warehouse. The thread that works in the transaction uses it; files any thread."""

    def __init__(self, source: Source, transaction: Transaction, write: Callable[[StagedPointer], object]) -> None:
        self.warehouse = _warehouse(source)
        self.staged: dict[tuple[str, str], StagedPointer] = {}
        #: What has begun to change a table, and is neither staged nor undone: for people.
        self.unfinished: dict[int, str] = {}
        self._gtrid = transaction.gtrid
        self._transaction = ref(transaction)
        self._write = write
        self._pid = os.getpid()
        self._lock = Lock()
        self._journal: int | None = None
        self._files: set[str] = set()
        self._changes = 0
        self._ending = self._over = False

    # -- while the transaction is active ------------------------------------------------------------------------

    def require(self) -> Transaction:
        """The transaction, if work may be done in it here. ProgrammingError if not."""
        transaction = self._transaction()
        if transaction is None or self._over or transaction.ended or os.getpid() != self._pid:
            raise ProgrammingError(
                f"catalog {self.warehouse.name}: its transaction {self._gtrid} has ended, and nothing was done. Call "
                "txpool.lake.catalog() again, within the next one"
            )
        return transaction

    @contextmanager
    def cursor(self) -> Iterator[Any]:
        """A cursor in the branch of the catalog's datasource."""
        transaction = self.require()
        if ambient() is not transaction:
            raise ProgrammingError(
                f"catalog {self.warehouse.name} is used outside its transaction {self._gtrid}, and nothing was done. "
                "Call txpool.lake.catalog() in each transaction, and in each thread that works in one"
            )
        with closing(self.warehouse.datasource.connect()) as connection:
            yield connection.cursor()

    def begin_writing(self) -> None:
        """Open the journal and write the row, before the first file."""
        transaction = self.require()
        if self._ending:
            raise ProgrammingError(
                f"catalog {self.warehouse.name}: {self._gtrid} is committing its changes already, and nothing was done"
            )
        transaction.require_active()
        if self._journal is not None:
            return
        tables, name = self.warehouse.tables, self.warehouse.name
        with self.cursor() as cursor:
            transaction.after_completion(self._after)
            self._register(transaction)
            try:
                self._journal = self.warehouse.journals.open(self._gtrid)
                if failpoints.armed:
                    failpoints.hit("lake.journal")
                tables.insert(cursor, name, self._gtrid, "0")
                self._require_journal()
            except BaseException as error:
                transaction.set_rollback_only(error)
                self._close()
                self._over = True
                if isinstance(error, FileExistsError):  # then it is another work's, which lists files
                    raise ProgrammingError(
                        f"catalog {name}: {self._gtrid} works in this warehouse by another file that describes it, and "
                        "rolls back. Name the same file each time"
                    ) from error
                # It lists no file, and none is made any more.
                self.warehouse.journals.remove(self._gtrid)
                raise

    def _register(self, transaction: Transaction) -> None:
        """All works of one transaction end together: see `_finish`."""
        works = transaction.values.get(_WORKS)
        if works is None:
            works = transaction.values[_WORKS] = []
            transaction.before_completion(lambda: _finish(works), interposed=True)
        works.append(self)

    def _require_journal(self) -> None:
        if not self.warehouse.journals.path_of(self._gtrid).exists():
            raise OperationalError(
                f"catalog {self.warehouse.name}: recovery has swept {self._gtrid}, which it took for dead. The "
                "transaction rolls back; begin another one"
            )

    def file(self, location: str) -> str:
        """List a file that is about to be made; its path. Any thread."""
        path = self.warehouse.journals.inside(location)
        with self._open_journal() as journal:
            if path not in self._files:
                self.warehouse.journals.list_new(journal, path)
                self._files.add(path)
        if failpoints.armed:
            failpoints.hit("lake.file")
        return path

    @contextmanager
    def making(self) -> Iterator[None]:
        """For the time in which a listed file comes to be: what has been swept already does not."""
        with self._open_journal():
            yield

    @contextmanager
    def _open_journal(self) -> Iterator[int]:
        self.require()
        with self._lock:
            if self._journal is None or self._over:
                raise ProgrammingError(
                    f"catalog {self.warehouse.name}: no file was made, since {self._gtrid} has begun no change there: "
                    "change tables by the methods of the tables of txpool.lake.catalog()"
                )
            yield self._journal

    def discard(self, location: str) -> None:
        """Remove a file that pyiceberg has made in this transaction and does not need."""
        self.require()
        path = self.warehouse.journals.inside(location)
        with self._lock:
            if self._over or path not in self._files:
                raise ProgrammingError(
                    f"catalog {self.warehouse.name}: {location} was not removed: {self._gtrid} has not made it"
                )
            with suppress(FileNotFoundError):
                os.unlink(path)
            self._files.discard(path)

    def take(self, files: Mapping[str, int]) -> None:
        """List files that tasks have made, with their sizes, as this transaction's: a commit publishes them."""
        self.require()
        made = {self.warehouse.journals.inside(location): size for location, size in files.items()}
        for path, size in made.items():
            if not os.path.exists(path) or os.path.getsize(path) != size:
                raise OperationalError(
                    f"catalog {self.warehouse.name}: a task has written {path}, which is not there, or not whole: "
                    "every executor must have the warehouse under this path, as a mount of one file system"
                )
        with self._lock:
            if self._journal is None or self._over:
                raise ProgrammingError(f"catalog {self.warehouse.name}: {self._gtrid} takes no files: it has ended")
            if made:
                self.warehouse.journals.list_files(self._journal, *made)
                self._files.update(made)
        if failpoints.armed:
            failpoints.hit("lake.taken")

    @property
    def file_count(self) -> int:
        return len(self._files)

    @contextmanager
    def whole(self, what: str, since: int | None = None) -> Iterator[None]:
        """Let the transaction roll back if the block fails when it has made files, which nothing would name."""
        before = self.file_count if since is None else since
        try:
            yield
        except BaseException as error:
            self.failed(error, what, before)
            raise

    def failed(self, error: BaseException, what: str, before: int) -> None:
        """A change has failed that began when there were so many files: see `whole`."""
        transaction = self._transaction()
        if transaction is not None and (self.file_count != before or not isinstance(error, Exception)):
            transaction.set_rollback_only(error)
            error.add_note(f"a change of {what} failed when it was done in part, so {self._gtrid} rolls back")

    def change(self) -> None:
        """Count a change in the row: a savepoint that takes it back is noticed at the end."""
        self._changes += 1
        with self.cursor() as cursor:
            self.warehouse.tables.set_state(cursor, self.warehouse.name, self._gtrid, str(self._changes))

    # -- at its end ---------------------------------------------------------------------------------------------

    def make_durable(self) -> None:
        """Write the new metadata, and sync every file and folder."""
        for what in self.unfinished.values():
            raise ProgrammingError(
                f"catalog {self.warehouse.name}: a change of {what} was begun and not committed by "
                f"commit_transaction(), so {self._gtrid} rolls back"
            )
        for _, staged in sorted(self.staged.items()):
            self._write(staged)
        self._ending = True
        if failpoints.armed:
            failpoints.hit("lake.written")
        self._require_journal()
        sync_files(self.warehouse.root, self._files)

    def lock_and_swap(self) -> None:
        """Lock the rows in the order of their names, then change each if it is as it was."""
        tables, name = self.warehouse.tables, self.warehouse.name
        with self.cursor() as cursor:
            if tables.state(cursor, name, self._gtrid) != str(self._changes):
                raise OperationalError(
                    f"catalog {name}: a savepoint of datasource {self.warehouse.datasource.name} was rolled back, and "
                    f"would have taken back some changes of Iceberg tables and not others: {self._gtrid} rolls back"
                )
            for table, staged in sorted(self.staged.items()):
                if tables.pointer(cursor, name, table) != staged.before:
                    raise LakeConflict(
                        f"catalog {name}: table {'.'.join(table)} was changed by another transaction since "
                        f"{self._gtrid} read it, which rolls back. Begin again, or write attempts=3"
                    )
            for table, staged in sorted(self.staged.items()):
                if not tables.swap(cursor, name, table, staged.before, staged.after):
                    raise OperationalError(f"catalog {name}: the row of table {'.'.join(table)} did not change")
        if failpoints.armed:
            failpoints.hit("lake.swapped")

    @property
    def place(self) -> tuple[str, str]:
        """Where its rows are, for the order of locks."""
        return self.warehouse.datasource.name, self.warehouse.name

    def _after(self, status: Status) -> None:
        self._over = True
        self._close()
        if os.getpid() != self._pid:
            return
        if failpoints.armed:
            failpoints.hit("lake.ended")
        if status is Status.COMMITTED:
            self._leave(self._published)
        elif status is Status.ROLLED_BACK and self.warehouse.journals.path_of(self._gtrid).exists():
            self._leave(lambda: self.warehouse.sweep(self._gtrid, _LOCK_TIMEOUT))

    def _published(self) -> None:
        self.warehouse.clear(self._gtrid, published=True)
        transaction = self._transaction()
        if transaction is not None and self.warehouse.datasource.name not in transaction.unanswered:
            self.warehouse.forget(self._gtrid)

    def _leave(self, work: Callable[[], object]) -> None:
        """Do what recovery does if it fails."""
        try:
            work()
        except Exception:
            logger.warning(
                "catalog %s: what %s has left stays for recovery", self.warehouse.name, self._gtrid, exc_info=True
            )

    def _close(self) -> None:
        with self._lock:
            journal, self._journal = self._journal, None
        if journal is not None:
            os.close(journal)


def _warehouse(source: Source) -> Warehouse:
    """The warehouse of a file; this process looks once whether its folder and its catalog are each other's."""
    found = Warehouse(source.settings)
    if source not in _bound:
        found.bind()
        _bound.add(source)
    return found


def _finish(works: list[LakeWork]) -> None:
    """The last work before completion: all files first, since the locks are held from then on."""
    for work in works:
        work.make_durable()
    for work in sorted(works, key=lambda each: each.place):
        work.lock_and_swap()
