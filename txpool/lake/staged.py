"""The files that one transaction makes in a warehouse: each is in the transaction's journal before it is made."""

from __future__ import annotations

import os
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any
from weakref import WeakSet

from txpool import failpoints
from txpool.errors import OperationalError, ProgrammingError
from txpool.locks import Lock

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from txpool.lake.changes import LakeChanges, LakeTable
    from txpool.lake.journals.base import WarehouseJournals
    from txpool.tm.transaction import Transaction


class StagedFiles:
    """One transaction's files in one warehouse. Any thread makes some; all else is the transaction's thread's."""

    def __init__(self, name: str, journals: WarehouseJournals, gtrid: str) -> None:
        self.name = name
        self.journals = journals
        #: The changes that are begun, and neither staged nor undone, and what each is of.
        self.unfinished: dict[LakeChanges, LakeTable] = {}
        #: The tables that were loaded: each may be there several times.
        self.tables: WeakSet[LakeTable] = WeakSet()
        self.gtrid = gtrid
        #: Makes its files, and reads any.
        self.io = journals.io(self)
        self._pid = os.getpid()
        self._lock = Lock()
        self._journal: Any = None
        #: What each file is made by.
        self._files: dict[str, Any] = {}
        self._completing = self._over = False

    def _transaction(self) -> Transaction | None:
        """The transaction; None once it was dropped."""
        raise NotImplementedError

    def begin_writing(self) -> None:
        """Open the journal, before the first file."""
        transaction = self.require()
        if self._completing:
            raise ProgrammingError(
                f"catalog {self.name}: {self.gtrid} is committing its changes already, and nothing was done"
            )
        transaction.require_active()
        if self._journal is None:
            self._begin(transaction)

    def _begin(self, transaction: Transaction) -> None:
        """Call `_open`."""
        raise NotImplementedError

    def _open(self, transaction: Transaction, then: Callable[[Any], object]) -> None:
        """Open the journal, and do what makes it this work's. The transaction rolls back if that fails."""
        try:
            self._journal = journal = self.journals.open(self.gtrid)
            if failpoints.armed:
                failpoints.hit("lake.journal")
            then(journal)
        except BaseException as error:
            transaction.set_rollback_only(error)
            self._close()
            self._over = True
            if isinstance(error, FileExistsError):  # then it is another work's, which lists files
                raise ProgrammingError(
                    f"catalog {self.name}: {self.gtrid} works in this warehouse by another file that describes it, and "
                    "rolls back. Name the same file each time"
                ) from error
            # It lists no file, and none is made any more.
            self.journals.remove(self.gtrid)
            raise

    def require(self) -> Transaction:
        """The transaction, if work may be done in it here. ProgrammingError if not."""
        transaction = self._transaction()
        if transaction is None or self._over or transaction.ended or os.getpid() != self._pid:
            raise ProgrammingError(
                f"catalog {self.name}: its transaction {self.gtrid} has ended, and nothing was done. Call "
                "txpool.lake.catalog() again, within the next one"
            )
        return transaction

    def changed(self, table: Any, metadata: Any, location: str) -> None:
        """A table has changed: so have the others that were loaded under its name, but for what is being changed."""
        passed_over = [table, *self.unfinished.values()]
        for each in self.tables:
            if any(each is other for other in passed_over):
                continue
            if each.name() == table.name() and each.metadata.table_uuid == metadata.table_uuid:
                each.metadata, each.metadata_location = metadata, location

    def file(self, location: str) -> Any:
        """List a file that is about to be made; what it is made by. Any thread."""
        path = self.journals.inside(location)
        with self._open_journal() as journal:
            if path not in self._files:
                self._files[path] = self.journals.list_new(journal, path)
            made = self._files[path]
        if failpoints.armed:
            failpoints.hit("lake.file")
        return made

    @contextmanager
    def making(self) -> Iterator[None]:
        """For the time in which a listed file comes to be: what has been swept already does not."""
        with self._open_journal():
            yield

    @contextmanager
    def _open_journal(self) -> Iterator[Any]:
        self.require()
        with self._lock:
            if self._journal is None or self._over:
                raise ProgrammingError(
                    f"catalog {self.name}: no file was made, since {self.gtrid} has begun no change there: "
                    "change tables by the methods of the tables of txpool.lake.catalog()"
                )
            yield self._journal

    def discard(self, location: str) -> None:
        """Remove a file that pyiceberg has made in this transaction and does not need."""
        self.require()
        path = self.journals.inside(location)
        with self._lock:
            if self._over or path not in self._files:
                raise ProgrammingError(f"catalog {self.name}: {location} was not removed: {self.gtrid} has not made it")
            self.journals.discard(path)
            del self._files[path]

    def take(self, files: Mapping[str, int]) -> None:
        """List files that tasks have made, with their sizes, as this transaction's: a commit publishes them."""
        self.require()
        made = {self.journals.inside(location): size for location, size in files.items()}
        for path, size in made.items():
            if self.journals.size(path) != size:
                raise OperationalError(
                    f"catalog {self.name}: a task has written {path}, which is not there, or not whole: every executor "
                    "must have the same warehouse there; a folder is a mount of one file system"
                )
        with self._lock:
            if self._journal is None or self._over:
                raise ProgrammingError(f"catalog {self.name}: {self.gtrid} takes no files: it has ended")
            if made:
                self.journals.list_files(self._journal, *made)
                self._files.update(dict.fromkeys(made))
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
            error.add_note(f"a change of {what} failed when it was done in part, so {self.gtrid} rolls back")

    def _require_finished(self) -> None:
        """ProgrammingError if a change was begun, and is not staged."""
        for each in self.unfinished.values():
            raise ProgrammingError(
                f"catalog {self.name}: a change of {'.'.join(each.name())} was begun and not committed by "
                f"commit_transaction(), so {self.gtrid} rolls back"
            )

    def _close(self) -> None:
        with self._lock:
            journal, self._journal = self._journal, None
        if journal is not None:
            self.journals.close(journal)
