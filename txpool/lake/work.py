"""What one transaction does in one warehouse: its journal, its row, and the pointers that it swaps at its end."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from contextlib import closing, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary, ref

from txpool import failpoints
from txpool.errors import OperationalError, ProgrammingError, described
from txpool.lake.staged import StagedFiles
from txpool.lake.warehouse import Warehouse
from txpool.resources.iceberg.manager import LakeConflict
from txpool.tm.ambient import ambient
from txpool.tm.completion.status import Status

if TYPE_CHECKING:
    from collections.abc import Iterator

    from txpool.datasource.source import Source
    from txpool.lake.journals.base import WarehouseJournals
    from txpool.tm.transaction import Transaction

logger = logging.getLogger("txpool")

#: The key of a transaction's list of its works.
_WORKS = "txpool.lake"
#: Seconds that the sweep of what has been rolled back waits for a lock.
_LOCK_TIMEOUT = 5.0
#: The journals of the warehouses that this process has found to be bound.
_bound: WeakKeyDictionary[Source, WarehouseJournals] = WeakKeyDictionary()


@dataclass(slots=True)
class StagedPointer:
    """A table's new metadata, which its pointer gets at the transaction's end."""

    before: str
    after: str
    metadata: Any


class LakeWork(StagedFiles):
    """One transaction's work in one warehouse. The thread that works in the transaction uses it; files any thread."""

    def __init__(self, source: Source, transaction: Transaction, write: Callable[[StagedPointer], object]) -> None:
        self.warehouse = _warehouse(source, transaction)
        super().__init__(self.warehouse.name, self.warehouse.journals, transaction.gtrid)
        self.staged: dict[tuple[str, str], StagedPointer] = {}
        self._owner = ref(transaction)
        self._write = write
        self._changes = 0

    def _transaction(self) -> Transaction | None:
        return self._owner()

    # -- while the transaction is active ------------------------------------------------------------------------

    @contextmanager
    def cursor(self) -> Iterator[Any]:
        """A cursor in the branch of the catalog's datasource."""
        transaction = self.require()
        if ambient() is not transaction:
            raise ProgrammingError(
                f"catalog {self.name} is used outside its transaction {self.gtrid}, and nothing was done. "
                "Call txpool.lake.catalog() in each transaction, and in each thread that works in one"
            )
        with closing(self.warehouse.datasource.connect()) as connection:
            yield connection.cursor()

    def _begin(self, transaction: Transaction) -> None:
        """The journal, and the row."""
        tables, name = self.warehouse.tables, self.name
        with self.cursor() as cursor:

            def insert(_: object) -> None:
                tables.insert(cursor, name, self.gtrid, "0")
                self._require_journal()

            transaction.after_completion(self._after)
            self._register(transaction)
            self._open(transaction, insert)

    def _register(self, transaction: Transaction) -> None:
        """All works of one transaction end together: see `_finish`."""
        works = transaction.values.get(_WORKS)
        if works is None:
            works = transaction.values[_WORKS] = []
            transaction.before_completion(lambda: _finish(works), interposed=True)
        works.append(self)

    def _require_journal(self) -> None:
        if not self.journals.exists(self.gtrid):
            raise OperationalError(
                f"catalog {self.name}: either recovery has swept {self.gtrid}, which it took for dead, or somebody has "
                "removed its journal. The transaction rolls back; begin another one"
            )

    def change(self) -> None:
        """Count a change in the row: a savepoint that takes it back is noticed at the end."""
        self._changes += 1
        with self.cursor() as cursor:
            self.warehouse.tables.set_state(cursor, self.name, self.gtrid, str(self._changes))

    # -- at its end ---------------------------------------------------------------------------------------------

    def make_durable(self) -> None:
        """Write the new metadata, and sync every file and folder."""
        self._require_finished()
        for _, staged in sorted(self.staged.items()):
            self._write(staged)
        self._completing = True
        if failpoints.armed:
            failpoints.hit("lake.written")
        self._require_journal()
        self.journals.sync(self._files)

    def lock_and_swap(self) -> None:
        """Lock the rows in the order of their names, then change each if it is as it was."""
        tables, name = self.warehouse.tables, self.name
        with self.cursor() as cursor:
            if tables.state(cursor, name, self.gtrid) != str(self._changes):
                raise OperationalError(
                    f"catalog {name}: a savepoint of datasource {self.warehouse.datasource.name} was rolled back, and "
                    f"would have taken back some changes of Iceberg tables and not others: {self.gtrid} rolls back"
                )
            for table, staged in sorted(self.staged.items()):
                if tables.pointer(cursor, name, table) != staged.before:
                    raise LakeConflict(
                        f"catalog {name}: table {'.'.join(table)} was changed by another transaction since "
                        f"{self.gtrid} read it, which rolls back. Begin again, or write attempts=3"
                    )
            for table, staged in sorted(self.staged.items()):
                if not tables.swap(cursor, name, table, staged.before, staged.after):
                    raise OperationalError(f"catalog {name}: the row of table {'.'.join(table)} did not change")
        if failpoints.armed:
            failpoints.hit("lake.swapped")

    @property
    def place(self) -> tuple[str, str]:
        """Where its rows are, for the order of locks."""
        return self.warehouse.datasource.name, self.name

    def _after(self, status: Status) -> None:
        self._over = True
        self._close()
        if os.getpid() != self._pid:
            return
        if failpoints.armed:
            failpoints.hit("lake.ended")
        if status is Status.COMMITTED:
            self._leave(self._published)
        elif status is Status.ROLLED_BACK:
            self._leave(self._withdraw)

    def _withdraw(self) -> None:
        if self.journals.exists(self.gtrid):
            self.warehouse.sweep(self.gtrid, _LOCK_TIMEOUT, own=True)

    def _published(self) -> None:
        self.warehouse.journals.clear(self.gtrid)
        transaction = self._transaction()
        if transaction is not None and self.warehouse.datasource.name not in transaction.unanswered:
            self.warehouse.forget(self.gtrid)

    def _leave(self, work: Callable[[], object]) -> None:
        """Do what recovery does if it fails."""
        try:
            work()
        except Exception:
            logger.warning("catalog %s: what %s has left stays for recovery", self.name, self.gtrid, exc_info=True)


def _warehouse(source: Source, transaction: Transaction) -> Warehouse:
    """The warehouse of a file; this process looks once whether its folder and its catalog are each other's."""
    found = Warehouse(source.settings, _bound.get(source))
    if source not in _bound:
        try:
            found.bind()
        except OperationalError as error:
            name = found.datasource.name
            if type(error) is OperationalError or transaction.enlistment_in(name) is None:  # none of the driver's
                raise
            raise OperationalError(
                f"catalog {found.name}: its tables cannot be made beside what {transaction.gtrid} has done in {name}: "
                f"{described(error)}. Nothing was done here: call txpool.lake.catalog() before that work, or let "
                f"`txpool check {source.settings.file}` make the tables once"
            ) from error
        _bound[source] = found.journals
    return found


def _finish(works: list[LakeWork]) -> None:
    """The last work before completion: all files first, since the locks are held from then on."""
    for work in works:
        work.make_durable()
    for work in sorted(works, key=lambda each: each.place):
        work.lock_and_swap()
