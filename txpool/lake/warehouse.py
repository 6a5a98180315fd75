"""A warehouse: its folder, bound to one catalog; the journals in it, and the sweep of what they list.

A journal is made, durably, before the first file of its transaction, and lists each file before that is made. The row
of `LakeTables` comes right after the journal. So whoever sweeps inserts that row's key first: if the row is there
already, the files are published, and stay. Else the transaction can never commit, and its files go; the journal goes
last. A transaction that inserts its row after all finds its journal gone, and gives up.
"""

from __future__ import annotations

import json
import os
import secrets
import stat
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from txpool import failpoints
from txpool.datasource.lookup import find
from txpool.errors import ConfigurationError, IntegrityError, OperationalError
from txpool.process.durable import create_file, identity_in, sync
from txpool.resources.iceberg.tables import SWEPT, LakeTables, lake_tables_of
from txpool.tm.demarcation.transactional import transactional
from txpool.xid import split_gtrid

if TYPE_CHECKING:
    from txpool.config.settings import DataSourceSettings
    from txpool.datasource import DataSource
    from txpool.resources.recovery_access import StagingTable

FOLDER: Final = "_txpool"
_ENDING: Final = ".journal"
_FORMAT: Final = "txpool lake journal 1"


@dataclass(frozen=True, slots=True)
class LakeFiles:
    """What a transaction has left in a warehouse: a journal, or a row that outlives its journal."""

    gtrid: str
    name: str
    #: Only the row is left.
    row_only: bool = False


class Warehouse:
    """A warehouse and its catalog's datasource. Thread-safe. Errors: ConfigurationError, OperationalError, OSError."""

    def __init__(self, settings: DataSourceSettings) -> None:
        catalog, root = settings.catalog or "", settings.warehouse or ""  # the resource manager has checked them
        self.name = settings.name
        self._error: Callable[[str, str], ConfigurationError] = settings.properties.error
        self.datasource: DataSource = find(catalog)
        self.tables: LakeTables = lake_tables_of(self.datasource)
        self.root = os.path.realpath(root)
        self._journals = Path(self.root, FOLDER)

    # -- one catalog, one folder --------------------------------------------------------------------------------

    def bind(self) -> None:
        """Bind the folder and the catalog to each other, or find that they are: else two of them would mix."""
        if not os.path.isdir(self.root):
            raise self._error("warehouse", f"leads to {self.root}, which is no folder: make it, on a local file system")
        self.tables.ensure(self.datasource)
        folder = identity_in(self._journals / "identity")
        self._require_own_folder()
        token = apart(self.datasource, partial(self._bound, folder))
        known, _, catalog = token.partition(":")
        file = self._journals / "catalog"
        with suppress(FileExistsError):
            if known == folder:
                create_file(file, catalog.encode("ascii"))
        if known != folder or file.read_text(encoding="ascii") != catalog:
            raise self._error(
                "warehouse",
                f"is {self.root}, and the catalog {self.name} in datasource {self.datasource.name} has another folder, "
                "or that folder another catalog: each warehouse has a file, a name and a folder of its own. Nothing "
                "was done",
            )

    def _bound(self, folder: str, cursor: Any) -> str:
        found = self.tables.state(cursor, self.name, "")
        if found is None:
            found = f"{folder}:{secrets.token_hex(16)}"
            self.tables.insert(cursor, self.name, "", found)
        return found

    def _require_own_folder(self) -> None:
        """Whoever can write there could list any file for removal."""
        found = os.lstat(self._journals)
        if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid() or found.st_mode & 0o022:
            raise OperationalError(
                f"{self.name}: {self._journals} belongs to user {found.st_uid}, or others may write there, and it says "
                f"which files are removed. Nothing was done; work as its owner, or chmod 700 it"
            )

    # -- journals -----------------------------------------------------------------------------------------------

    def inside(self, location: str) -> str:
        """The absolute path of a location in the warehouse. ConfigurationError if it is elsewhere."""
        path = os.path.realpath(location.removeprefix("file://"))
        relative = os.path.relpath(path, self.root)
        if relative.split(os.sep)[0] in ("..", FOLDER, "."):
            raise self._error(
                "warehouse", f"is {self.root}, and {location} is not in it: tables have their files there. Not written"
            )
        return path

    def path_of(self, gtrid: str) -> Path:
        """Where the transaction's journal is."""
        return self._journals / f"{gtrid.replace(':', '+')}{_ENDING}"

    def open_journal(self, gtrid: str) -> int:
        """A new journal, durable; its descriptor."""
        path = self.path_of(gtrid)
        create_file(path, f"{_FORMAT} {gtrid}\n".encode("ascii"))
        return os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC)

    def list_file(self, journal: int, path: str) -> None:
        """Write a file's path into a journal, durably; the file may be made then."""
        line = json.dumps(os.path.relpath(path, self.root)).encode("ascii") + b"\n"
        if os.write(journal, line) != len(line):
            raise OperationalError(f"{self.name}: the journal could not be written, and {path} was not made")
        os.fdatasync(journal)

    def remove_journal(self, gtrid: str) -> None:
        """Remove a journal, durably."""
        with suppress(FileNotFoundError):
            self.path_of(gtrid).unlink()
        sync(self._journals)

    def _listed(self, gtrid: str) -> list[str]:
        """The files that a journal lists. A line that a crash has cut off names a file that was never made."""
        lines = self.path_of(gtrid).read_text(encoding="ascii").split("\n")
        if lines[0] != f"{_FORMAT} {gtrid}":
            raise OperationalError(f"{self.name}: {self.path_of(gtrid)} is no journal of {gtrid}. Nothing was removed")
        return [self.inside(os.path.join(self.root, json.loads(line))) for line in lines[1:-1]]

    # -- what recovery does -------------------------------------------------------------------------------------

    def left(self) -> Iterator[LakeFiles]:
        """The journals, and the rows without one. Rows first: a journal is older than its row."""
        self.bind()
        rows = apart(self.datasource, lambda cursor: self.tables.rows(cursor, self.name))
        names = [each.removesuffix(_ENDING) for each in os.listdir(self._journals) if each.endswith(_ENDING)]
        journals = {name.replace("+", ":") for name in names}
        sync(self._journals)  # a journal that is gone stays so
        for gtrid in sorted(journals):
            if _is_ours(gtrid):
                yield LakeFiles(gtrid, str(self.path_of(gtrid)))
        for gtrid in rows:
            if gtrid not in journals and _is_ours(gtrid):
                yield LakeFiles(gtrid, f"row {gtrid} of catalog {self.name}", row_only=True)

    def sweep(self, gtrid: str, lock_timeout: float) -> bool:
        """Win the transaction's key and remove its files, or find that they are published; then the journal goes.

        Whether it was won. Errors: the database's own, as when a branch is in doubt; nothing was removed then.
        """
        won = self._win(gtrid, lock_timeout)
        if won:
            for path in self._listed(gtrid):
                if failpoints.armed:
                    failpoints.hit("lake.sweeping")
                with suppress(FileNotFoundError):
                    os.unlink(path)
        self.remove_journal(gtrid)
        self.forget(gtrid)
        return won

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


def _is_ours(gtrid: str) -> bool:
    try:
        split_gtrid(gtrid)
    except ValueError:
        return False
    return True


def apart(datasource: DataSource, work: Callable[[Any], Any]) -> Any:
    """Work over a cursor of the datasource, in a transaction of its own."""

    def run() -> Any:
        with closing(datasource.connect()) as connection:
            return work(connection.cursor())

    return transactional("requires_new")(run)()


class LakeStaging:
    """Recovery's access to what dead transactions have left in a warehouse."""

    def __init__(self, settings: DataSourceSettings, lock_timeout: float) -> None:
        self._settings = settings
        self._lock_timeout = lock_timeout

    def tables(self) -> list[LakeFiles]:
        return list(Warehouse(self._settings).left())

    def drop(self, table: StagingTable) -> None:
        warehouse = Warehouse(self._settings)
        if isinstance(table, LakeFiles) and table.row_only:
            warehouse.forget(table.gtrid)
        else:
            warehouse.sweep(table.gtrid, self._lock_timeout)
