"""pyiceberg's tables and their transactions, as a transaction of txpool's has them: what they make is staged."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

from pyiceberg.expressions import AlwaysTrue
from pyiceberg.io.pyarrow import schema_to_pyarrow
from pyiceberg.table import CommitTableResponse, Table, Transaction

from txpool.errors import NotSupportedError
from txpool.lake import corrections
from txpool.lake.refusals import explained, explaining
from txpool.lake.values import arrow_of, require_partitionable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from pyiceberg.catalog import Catalog
    from pyiceberg.io import FileIO
    from pyiceberg.manifest import DataFile
    from pyiceberg.table.metadata import TableMetadata

    from txpool.lake.staged import StagedFiles

    #: Files of the table that go as others are published, and what takes the place of each.
    Replaced = Callable[["LakeChanges", Sequence[DataFile]], Iterable[tuple[DataFile, Sequence[DataFile]]]]

corrections.correct()
#: Properties of a table that name code, which whoever writes the metadata would have us run.
_CODE: Final = ("py-io-impl", "write.py-location-provider.impl")
#: Deletes metadata before the transaction has committed.
DELETES: Final = "write.metadata.delete-after-commit.enabled"


@explained
class LakeTable(Table):
    """A table within one transaction."""

    def __init__(
        self, identifier: Any, metadata: TableMetadata, location: str, work: StagedFiles, catalog: Catalog
    ) -> None:
        super().__init__(identifier, metadata, location, work.io, catalog)
        self._work = work
        work.tables.add(self)

    __hash__ = object.__hash__  # pyiceberg's tables are equal by their contents, and these are told apart

    @property
    def inspect(self) -> Any:
        return explaining(super().inspect, self)

    @property
    def maintenance(self) -> Any:
        return explaining(super().maintenance, self)

    def transaction(self) -> LakeChanges:
        self._work.begin_writing()
        return LakeChanges(self)


@explained
class LakeChanges(Transaction):
    """pyiceberg's transaction of one table, which takes frames. If it fails in part, the whole rolls back."""

    _table: LakeTable

    def __init__(self, table: LakeTable) -> None:
        super().__init__(table)
        self._files_before = table._work.file_count

    def _arrow(self, frame: Any) -> Any:
        self._table._work.require()
        where = ".".join(self._table.name())
        table = arrow_of(frame, schema_to_pyarrow(self.table_metadata.schema(), include_field_ids=False), where)
        require_partitionable(table, self.table_metadata, where)
        return table

    def _stage(self, updates: Any, requirements: Any = ()) -> Transaction:
        self._table._work.unfinished[self] = self._table
        return super()._stage(updates, requirements)

    def append(self, df: Any, *args: Any, **options: Any) -> None:
        self._try(super().append, self._arrow(df), *args, **options)

    def overwrite(self, df: Any, *args: Any, **options: Any) -> None:
        self._try(super().overwrite, self._arrow(df), *args, **options)

    def dynamic_partition_overwrite(self, df: Any, *args: Any, **options: Any) -> None:
        self._try(super().dynamic_partition_overwrite, self._arrow(df), *args, **options)

    def upsert(self, df: Any, *args: Any, **options: Any) -> Any:
        return self._try(super().upsert, self._arrow(df), *args, **options)

    def delete(self, *args: Any, **options: Any) -> None:
        self._try(super().delete, *args, **options)

    @property
    def files(self) -> FileIO:
        """Reads the table's files, and makes those of this transaction."""
        return self._table.io

    def publish(self, files: Sequence[DataFile], *, overwrite: bool, replaced: Replaced | None = None) -> None:
        """Append files that Spark's tasks have made, or replace all rows by theirs, or what is in some other files."""
        self._try(self._publish, files, overwrite, replaced)

    def _publish(self, files: Sequence[DataFile], overwrite: bool, replaced: Replaced | None) -> None:
        self._table._work.take({each.file_path: each.file_size_in_bytes for each in files})
        if overwrite and self.table_metadata.current_snapshot() is not None:
            super().delete(AlwaysTrue())
        if not files:
            return
        former = [] if replaced is None else list(replaced(self, files))
        snapshot = self.update_snapshot()
        with snapshot.overwrite() if former else snapshot.fast_append() as producer:
            for gone, rest in former:
                producer.delete_data_file(gone)
                for each in rest:
                    producer.append_data_file(each)
            for each in files:
                producer.append_data_file(each)

    def commit_transaction(self) -> Table:
        try:
            made: Table = self._try(super().commit_transaction)
            return made
        finally:
            self._table._work.unfinished.pop(self, None)

    def __exit__(self, exctype: Any, excinst: BaseException | None, exctb: Any) -> None:
        if excinst is None:
            self.commit_transaction()
            return
        self._table._work.unfinished.pop(self, None)
        self._table._work.failed(excinst, ".".join(self._table.name()), self._files_before)

    def add_files(self, *_: Any, **__: Any) -> None:
        raise NotSupportedError(f"{'.'.join(self._table.name())}: add_files() was not done: append() what is in them")

    def _try(self, work: Any, *args: Any, **options: Any) -> Any:
        with self._table._work.whole(".".join(self._table.name()), since=self._files_before):
            return work(*args, **options)


def commit_response(metadata: TableMetadata, location: str) -> CommitTableResponse:
    return CommitTableResponse.model_construct(metadata=metadata, metadata_location=location)


def require_safe(properties: Mapping[str, str], where: str, *more: str) -> None:
    for key in (*_CODE, *more):
        if properties.get(key, "false").lower() != "false":
            raise NotSupportedError(
                f"{where} has the property {key}, and nothing was done: it would "
                f"{'delete files before the transaction has committed' if key == DELETES else 'run code of others'}. "
                "Remove it by a catalog of your own"
            )


def namespaces(
    catalog: Catalog, within: tuple[str, ...] = (), *, passed_over: tuple[type[Exception], ...] = ()
) -> Iterator[tuple[str, ...]]:
    """All namespaces of a catalog, and those in them. Errors that are passed over are of what is within one."""
    with suppress(*(passed_over if within else ())):
        for found in catalog.list_namespaces(within):
            yield found
            yield from namespaces(catalog, found, passed_over=passed_over)
