"""A warehouse: its folder, or its part of a bucket, bound to one catalog, and the sweep of what its journals list.

The row of `LakeTables` comes right after a transaction's journal. So whoever sweeps inserts that row's key first: if
the row is there already, the files that the transaction's own journal lists are published, and stay. Else it can never
commit, and its files go, but for those that a table names; the journal goes last. A transaction that inserts its row
after all finds its journal gone, and gives up.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from dataclasses import dataclass
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

from txpool.datasource.lookup import find
from txpool.errors import ConfigurationError, IntegrityError, NotSupportedError, OperationalError, described
from txpool.lake.journals.base import WarehouseJournals
from txpool.lake.journals.kinds import journals_of
from txpool.resources.iceberg.tables import SWEPT, LakeTables, lake_tables_of
from txpool.tm.demarcation.transactional import transactional
from txpool.xid import is_gtrid

if TYPE_CHECKING:
    from txpool.config.settings import DataSourceSettings
    from txpool.datasource import DataSource
    from txpool.resources.recovery_access import StagingTable
    from txpool.tm.demarcation.propagation import Propagation


@dataclass(frozen=True, slots=True)
class LakeFiles:
    """What a transaction has left in a warehouse: a journal, or a row that outlives its journal."""

    gtrid: str
    name: str
    #: Only the row is left.
    row_only: bool = False


class Warehouse:
    """A warehouse and its catalog's datasource. Thread-safe. Errors: ConfigurationError, OperationalError, OSError."""

    def __init__(
        self, settings: DataSourceSettings, journals: WarehouseJournals | None = None, *, recovery: bool = False
    ) -> None:
        catalog = settings.catalog or ""  # the resource manager has checked it
        self.name = settings.name
        self._error: Callable[[str, str], ConfigurationError] = settings.properties.error
        try:
            self.datasource: DataSource = find(catalog)
        except (ConfigurationError, NotSupportedError) as error:
            raise self._error("catalog", f"names no database for it: {described(error)}") from error
        self.tables: LakeTables = lake_tables_of(self.datasource)
        self.journals = journals or journals_of(settings, recovery=recovery)

    # -- one catalog, one folder --------------------------------------------------------------------------------

    def bind(self) -> None:
        """Bind the place and the catalog to each other, or find that they are: else two of them would mix."""
        place = self.journals.identity()
        self.tables.ensure(self.datasource)
        known, _, catalog = self._token(place).partition(":")
        if known != place or self.journals.binding(catalog) != catalog:
            raise self._error(
                "warehouse",
                f"is {self.journals.root}, and the catalog {self.name} in datasource {self.datasource.name} has "
                "another folder, or that folder another catalog: each warehouse has a file, a name and a folder of its "
                "own. Nothing was done",
            )

    def _token(self, folder: str) -> str:
        found = self._known()
        if found is None:
            with suppress(IntegrityError):  # another process was faster
                apart(self.datasource, partial(self._insert_token, folder))
            found = self._known()
        return found or ""

    def _known(self) -> str | None:
        """Read outside of any transaction: in SQLite the one around may have the lock of the file."""

        def read(cursor: Any) -> str | None:
            self.tables.require_version(cursor, self.name)
            return self.tables.state(cursor, self.name, "")

        found: str | None = apart(self.datasource, read, "not_supported")
        return found

    def _insert_token(self, folder: str, cursor: Any) -> None:
        self.tables.insert(cursor, self.name, "", f"{folder}:{secrets.token_hex(16)}")

    # -- what recovery does -------------------------------------------------------------------------------------

    def left(self) -> Iterator[LakeFiles]:
        """The journals, and the rows without one. Rows first: a journal is older than its row."""
        self.bind()
        rows = apart(self.datasource, lambda cursor: self.tables.rows(cursor, self.name))
        journals = set(self.journals.gtrids())
        for gtrid in sorted(journals):
            if is_gtrid(gtrid):
                yield LakeFiles(gtrid, self.journals.shown(gtrid))
        for gtrid in rows:
            if gtrid not in journals and is_gtrid(gtrid):
                yield LakeFiles(gtrid, f"row {gtrid} of catalog {self.name}", row_only=True)

    def sweep(self, gtrid: str, lock_timeout: float, *, own: bool = False) -> bool:
        """Win the transaction's key and remove its files, or find that they are published; then the journals go.

        Whether it was won. `own` says that this process knows that it has not committed; else no file is removed that a
        table names. Errors: the database's own, as when a branch is in doubt; nothing was removed then.
        """
        won = self._win(gtrid, lock_timeout)
        if won:
            self.journals.clear_but(gtrid, set() if own else self._named())
        else:
            self.journals.clear(gtrid)
        self.forget(gtrid)
        return won

    def _named(self) -> set[str]:
        """The files that the catalog's tables name. A journal may be of what has committed, whose row is forgotten.

        A restore has brought it back then, or a replica of the bucket has kept it.
        """
        try:
            from txpool.lake.named import named_at
        except ImportError as error:
            raise ConfigurationError(
                f"{self.name}: whether tables name what is to be removed is read by pyiceberg: pip install "
                f"'txpool[lake]' ({described(error)}). Nothing was removed"
            ) from error
        return named_at(apart(self.datasource, lambda cursor: self.tables.pointers(cursor, self.name)), self.journals)

    def _win(self, gtrid: str, lock_timeout: float) -> bool:
        """Whether the key is the sweep's, durably: the transaction cannot commit then, and never has."""
        try:
            apart(self.datasource, partial(self._insert_swept, gtrid, lock_timeout))
        except IntegrityError:
            return bool(apart(self.datasource, partial(self._was_swept, gtrid)))
        return True

    def _insert_swept(self, gtrid: str, lock_timeout: float, cursor: Any) -> None:
        self.tables.wait_at_most(cursor, lock_timeout)
        self.tables.insert(cursor, self.name, gtrid, SWEPT)

    def _was_swept(self, gtrid: str, cursor: Any) -> bool:
        found = self.tables.state(cursor, self.name, gtrid)
        if found is None:
            raise OperationalError(f"{self.name}: the row of {gtrid} is gone again. Nothing was removed; try again")
        self.tables.set_state(cursor, self.name, gtrid, found)
        return found == SWEPT

    def forget(self, gtrid: str) -> None:
        """Delete the row of a transaction whose journal is gone, durably."""
        apart(self.datasource, lambda cursor: self.tables.delete(cursor, self.name, gtrid))


def apart(datasource: DataSource, work: Callable[[Any], Any], propagation: Propagation = "requires_new") -> Any:
    """Work over a cursor of the datasource, in a transaction of its own, or outside of any."""

    def run() -> Any:
        with closing(datasource.connect()) as connection:
            return work(connection.cursor())

    return transactional(propagation)(run)()


class LakeStaging:
    """Recovery's access to what dead transactions have left in a warehouse."""

    def __init__(self, settings: DataSourceSettings, lock_timeout: float) -> None:
        self._settings = settings
        self._lock_timeout = lock_timeout

    @cached_property
    def _warehouse(self) -> Warehouse:
        return Warehouse(self._settings, recovery=True)

    def tables(self) -> list[LakeFiles]:
        return list(self._warehouse.left())

    def drop(self, table: StagingTable) -> None:
        warehouse = self._warehouse
        if isinstance(table, LakeFiles) and table.row_only:
            warehouse.forget(table.gtrid)
        else:
            warehouse.sweep(table.gtrid, self._lock_timeout)
