"""What a transaction does in a folder of Delta tables: it stages files of rows."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from txpool.errors import Error, OperationalError, ProgrammingError, described
from txpool.resources.base import Refused
from txpool.resources.delta.table import LOG, SOURCE, Append, TableState, load, path_of, write_rows
from txpool.resources.files.place import HIDDEN, Hidden, Manifest, Place, is_name
from txpool.resources.files.tree import descended, give_to_owner, opened, sync_tree
from txpool.resources.files.work import PlaceWork

if TYPE_CHECKING:
    import pyarrow as pa


class DeltaWork(PlaceWork):
    """The rows that one transaction appends to the tables of one folder."""

    def __init__(self, place: Place, gtrid: str) -> None:
        super().__init__(place, gtrid)
        self._states: dict[str, TableState] = {}
        self._adds: dict[str, list[dict[str, Any]]] = {}
        self._writes = 0

    @property
    def shown(self) -> str:
        return next((table for table, adds in self._adds.items() if adds), "")

    @property
    def staged(self) -> Path:
        """Where files of rows are written, each write's in a folder of its own."""
        return self.place.path / HIDDEN / "staged" / self.staging

    def where(self, table: str) -> str:
        """A table, for errors."""
        return f"{self.place.name}.{table}"

    def state(self, table: str) -> TableState:
        """What the table is. ProgrammingError for no name; NoTable; NotSupportedError; OperationalError."""
        self.require_active()
        where = self.where(table)
        if not is_name(table):
            raise ProgrammingError(
                f"{self.place.name}: {table!r} is no name of a table below it: write orders, or sales/orders. Nothing "
                "was done"
            )
        with self.place.open() as hidden:
            try:
                self._require_table(hidden, table)
            except Refused as refusal:
                raise OperationalError(f"{where}: {refusal}. Nothing was done") from None
        _, state = load(self.place.path / table, where)
        state.require_writable(where)
        if self._adds.get(table) and self._states[table] != state:
            raise OperationalError(
                f"{where} was changed since {self.gtrid} wrote rows for it, and nothing was done. Roll back, and begin "
                "again"
            )
        self._states[table] = state
        return state

    def begin_write(self) -> str:
        """The name of a new write, whose folders have names that begin with it, in the folder `staged`."""
        self.require_active()
        with self._lock, self.place.open() as hidden:
            if not self._writes:
                with self._staging():
                    self.begin_staging(hidden)
            self._writes += 1
            return str(self._writes)

    @contextmanager
    def _staging(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise OperationalError(
                f"{self.place.name}: nothing can be staged in {self.place.path}: {described(error)}"
            ) from error

    def append(self, table: str, batches: Iterable[pa.RecordBatch], schema: pa.Schema) -> int:
        """Stage rows of a table whose state is known, in its types; their number."""
        folder, where = self.staged / self.begin_write(), self.where(table)
        with self._staging():
            folder.mkdir()
            rows, adds = write_rows(folder, self._states[table], batches, schema, where)
        self.take(table, adds)
        return rows

    def take(self, table: str, adds: Sequence[dict[str, Any]]) -> None:
        """Files that were staged are to be appended."""
        self._adds.setdefault(table, []).extend(adds)

    def manifest(self, xid: str) -> Manifest:
        appends = [Append(table, self._states[table], adds) for table, adds in self._adds.items() if adds]
        for each in appends:
            try:
                _, now = load(self.place.path / each.table, self.where(each.table))
            except (Error, OSError) as error:
                raise Refused(described(error)) from error
            if now != each.state:
                raise Refused(f"{self.where(each.table)} was changed since its rows were written: begin again")
        return Manifest(xid, self.staging, appends=tuple(each.encode() for each in appends))

    def sync(self, manifest: Manifest, staging: int) -> None:
        for adds in self._adds.values():
            for source in sorted({each[SOURCE] for each in adds}):  # the other folders' tasks may still write
                with opened(source, staging) as folder:
                    give_to_owner(folder, staging)
                    sync_tree(folder, source)
            for each in adds:
                *above, name = [each[SOURCE], *path_of(each).split("/")]
                with descended(above, staging) as folder:
                    found = os.stat(name, dir_fd=folder, follow_symlinks=False).st_size
                if found != each["size"]:
                    raise Refused(f"{each['path']} has {found} bytes, and not the {each['size']} that were written")

    def require_publishable(self, hidden: Hidden) -> None:
        for table in self._adds:
            self._require_table(hidden, table)

    def _require_table(self, hidden: Hidden, table: str) -> None:
        try:
            for parts in (table.split("/"), [*table.split("/"), LOG]):
                with descended(parts, hidden.root) as folder:
                    self.require_movable(folder, hidden, "/".join(parts))
        except FileNotFoundError:
            raise Refused(
                f"there is no Delta table {table} in {self.place.path}: create it by DeltaTable.create(), or correct "
                "the name"
            ) from None
        except OSError as error:
            raise Refused(f"{table} cannot be written: {described(error)}") from error
