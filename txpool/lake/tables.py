"""pyiceberg's catalog, tables and transactions, as a transaction of txpool's has them.

A change of a table is staged: the pointer's row changes at the transaction's end. All else that is in the catalog's
tables (names, namespaces, their properties) is changed at once, in the branch of the catalog's datasource.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from pyiceberg.catalog import WAREHOUSE_LOCATION, Catalog, MetastoreCatalog, PropertiesUpdateSummary
from pyiceberg.catalog.sql import IcebergTables, SqlCatalog
from pyiceberg.exceptions import NoSuchNamespaceError, NoSuchTableError, TableAlreadyExistsError
from pyiceberg.partitioning import UNPARTITIONED_PARTITION_SPEC, PartitionSpec
from pyiceberg.serializers import FromInputFile
from pyiceberg.table import CommitTableResponse, Table
from pyiceberg.table.locations import load_location_provider
from pyiceberg.table.metadata import SUPPORTED_TABLE_FORMAT_VERSION, new_table_metadata
from pyiceberg.table.sorting import UNSORTED_SORT_ORDER, SortOrder
from pyiceberg.table.update import update_table_metadata
from sqlalchemy import insert
from sqlalchemy.event import listen
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from txpool.engine.engine import create_engine
from txpool.errors import NotSupportedError
from txpool.lake.changes import DELETES, LakeTable, commit_response, require_safe
from txpool.lake.refusals import explained
from txpool.lake.work import LakeWork, StagedPointer

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyiceberg.io import FileIO
    from pyiceberg.table.metadata import TableMetadata
    from sqlalchemy import Engine

    from txpool.datasource import DataSource
    from txpool.datasource.source import Source
    from txpool.lake.journals.base import WarehouseJournals
    from txpool.resources.iceberg.tables import LakeTables
    from txpool.tm import transaction as tm

#: How many characters names, and all else, have in the catalog's tables. MariaDB cuts the rest if it is not strict.
_NAME, _TEXT = 255, 1000
_engines: WeakKeyDictionary[DataSource, Engine] = WeakKeyDictionary()


@explained
class LakeCatalog(SqlCatalog):
    """The catalog of a warehouse within one transaction, which `txpool.lake.catalog()` returns.

    It is pyiceberg's SqlCatalog, and refuses what cannot be undone: purge_table, create_table_transaction,
    register_table.
    """

    #: Whether all that a transaction can do is to append.
    appends_only = False

    def __init__(self, source: Source, transaction: tm.Transaction) -> None:
        self._work = LakeWork(source, transaction, self._write_staged)
        MetastoreCatalog.__init__(self, source.name, **{WAREHOUSE_LOCATION: self._work.journals.root})
        self._schema_version = "v1"
        self._io = self._work.io

    @property
    def engine(self) -> Engine:  # type: ignore[override]
        datasource = self._work.warehouse.datasource
        with self._work.cursor() as cursor:  # refuses to work elsewhere than in the transaction
            schema = self._work.warehouse.tables.schema(cursor)
        if datasource not in _engines:
            made = create_engine(datasource)
            listen(made, "before_cursor_execute", partial(_spelled, self._work.warehouse.tables), retval=True)
            _engines[datasource] = made
        return _engines[datasource].execution_options(schema_translate_map={None: schema})

    def _load_file_io(self, properties: Mapping[str, str] = {}, location: str | None = None) -> FileIO:
        return self._io

    @property
    def datasource(self) -> DataSource:
        """Where the catalog's tables are."""
        return self._work.warehouse.datasource

    @property
    def journals(self) -> WarehouseJournals:
        """Where the warehouse's files are listed."""
        return self._work.warehouse.journals

    def _write_staged(self, staged: StagedPointer) -> None:
        self._write_metadata(staged.metadata, self._io, staged.after)

    # -- tables -------------------------------------------------------------------------------------------------

    def create_table(  # noqa: PLR0917 - as pyiceberg has it
        self,
        identifier: Any,
        schema: Any,
        location: str | None = None,
        partition_spec: PartitionSpec = UNPARTITIONED_PARTITION_SPEC,
        sort_order: SortOrder = UNSORTED_SORT_ORDER,
        properties: Mapping[str, str] = {},
    ) -> Table:
        require_safe(properties, self.name)
        converted: Any = self._convert_schema_if_needed(schema, int(properties.get("format-version", 2)))  # type: ignore[arg-type]
        namespace, name = self._named(identifier)
        if not name:
            raise ValueError(f"{name!r} is no name of a table")
        if location is None and (f"{namespace}{name}".count("/") or {".", ".."} & {namespace, name}):
            # Its files would be among those of another table, whose orphans they would be.
            raise ValueError(f"{namespace}.{name} is no name for a table's folder")
        _require_held(_NAME, name)
        if not self.namespace_exists(namespace):
            raise NoSuchNamespaceError(f"Namespace does not exist: {namespace}")
        location = self._resolve_table_location(location, namespace, name)
        self._work.warehouse.journals.inside(location)
        provider = load_location_provider(location, dict(properties))
        metadata_location = provider.new_table_metadata_file_location()
        _require_held(_TEXT, metadata_location)
        metadata = new_table_metadata(
            location=location,
            schema=converted,
            partition_spec=partition_spec,
            sort_order=sort_order,
            properties=dict(properties),
        )
        if metadata.format_version > SUPPORTED_TABLE_FORMAT_VERSION:
            raise NotSupportedError(
                f"catalog {self.name}: {namespace}.{name} was not created: tables of format version "
                f"{metadata.format_version} are not written: leave format-version out, or write 2"
            )
        if self.table_exists(identifier):
            raise TableAlreadyExistsError(f"Table {namespace}.{name} already exists")
        self._work.begin_writing()
        with self._work.whole(f"{namespace}.{name}"):
            self._write_metadata(metadata, self._io, metadata_location)
            with Session(self.engine) as session:
                row = self._create_table_row(namespace, name, metadata_location)
                try:
                    session.execute(insert(IcebergTables).values(**row))
                    session.commit()
                except IntegrityError as error:
                    raise TableAlreadyExistsError(f"Table {namespace}.{name} already exists") from error
            self._work.change()
        return self.load_table(identifier)

    def load_table(self, identifier: Any) -> LakeTable:
        namespace, name = self._named(identifier)
        staged = self._work.staged.get((namespace, name))
        if staged is None:
            found: Any = super().load_table(identifier)
            return found  # type: ignore[no-any-return]
        self._work.require()
        return LakeTable((*namespace.split("."), name), staged.metadata, staged.after, self._work, self)

    def _convert_orm_to_iceberg(self, orm_table: IcebergTables) -> Table:
        location = orm_table.metadata_location
        if not location:
            raise NoSuchTableError(f"{orm_table.table_name} has no metadata")
        metadata = FromInputFile.table_metadata(self._io.new_input(location))
        require_safe(metadata.properties, f"{orm_table.table_namespace}.{orm_table.table_name}")
        identifier = (*Catalog.identifier_to_tuple(orm_table.table_namespace), orm_table.table_name)
        return LakeTable(identifier, metadata, location, self._work, self)

    def commit_table(
        self, table: Table, requirements: tuple[Any, ...], updates: tuple[Any, ...]
    ) -> CommitTableResponse:
        key = self._named(table.name())
        before = self._work.staged.get(key)
        # As it was loaded: if others have changed it since, the pointer tells at the transaction's end.
        current = table if before is None else self.load_table(table.name())
        for requirement in requirements:
            requirement.validate(current.metadata)
        # The location of metadata that no pointer has named is not in the log of former metadata.
        former = current.metadata_location if before is None else None
        metadata = _in_order(update_table_metadata(current.metadata, updates, False, former), current.metadata)
        if metadata == current.metadata:
            return commit_response(metadata, current.metadata_location)
        require_safe(metadata.properties, ".".join(key), DELETES)
        self._work.warehouse.journals.inside(metadata.location)
        self._work.begin_writing()
        if before is None:
            provider = load_location_provider(metadata.location, metadata.properties)
            version = self._parse_metadata_version(current.metadata_location) + 1
            after = provider.new_table_metadata_file_location(version)
            _require_held(_TEXT, after)
            staged = StagedPointer(current.metadata_location, after, metadata)
        else:
            staged = StagedPointer(before.before, before.after, metadata)
        self._work.change()
        self._work.staged[key] = staged
        self._work.changed(table, metadata, staged.after)
        return commit_response(metadata, staged.after)

    def _named(self, identifier: Any) -> tuple[str, str]:
        return Catalog.namespace_to_string(Catalog.namespace_from(identifier)), Catalog.table_name_from(identifier)

    def drop_table(self, identifier: Any) -> None:
        self._require_unstaged(identifier)
        super().drop_table(identifier)

    def rename_table(self, from_identifier: Any, to_identifier: Any) -> Table:
        self._require_unstaged(from_identifier)
        _require_held(_NAME, *self._named(to_identifier))
        return super().rename_table(from_identifier, to_identifier)

    def create_namespace(self, namespace: Any, properties: Mapping[str, str] = {}) -> None:
        _require_held(_NAME, Catalog.namespace_to_string(namespace), *properties)
        _require_held(_TEXT, *properties.values())
        super().create_namespace(namespace, dict(properties))

    def update_namespace_properties(
        self, namespace: Any, removals: set[str] | None = None, updates: Mapping[str, str] = {}
    ) -> PropertiesUpdateSummary:
        _require_held(_NAME, *updates)
        _require_held(_TEXT, *updates.values())
        return super().update_namespace_properties(namespace, removals, dict(updates))

    def _require_unstaged(self, identifier: Any) -> None:
        if self._named(identifier) in self._work.staged:
            raise NotSupportedError(
                f"catalog {self.name}: this transaction has changed {'.'.join(self._named(identifier))}, and nothing "
                "was done: drop or rename it in another transaction"
            )

    def _refused(self, what: str, instead: str) -> NotSupportedError:
        return NotSupportedError(f"catalog {self.name} has no {what}, and nothing was done: {instead}")

    def purge_table(self, identifier: Any) -> None:
        raise self._refused("purge_table()", "drop_table(), and remove its files once that has committed")

    def create_table_transaction(self, *_: Any, **__: Any) -> Any:
        raise self._refused("create_table_transaction()", "create_table(), and change it in the same transaction")

    def register_table(self, *_: Any, **__: Any) -> Table:
        raise self._refused("register_table()", "its files may be another catalog's, which removes them")


def _in_order(metadata: TableMetadata, former: TableMetadata) -> TableMetadata:
    """The metadata, no older than the former. Engines refuse to read others, as of a machine whose clock is behind."""
    since = former.last_updated_ms
    if metadata.last_updated_ms >= since:
        return metadata
    later = {
        name: [
            each if each in getattr(former, name) else each.model_copy(update={"timestamp_ms": since})
            for each in getattr(metadata, name)
        ]
        for name in ("snapshots", "snapshot_log")
    }
    return metadata.model_copy(update={"last_updated_ms": since, **later})


def _require_held(longest: int, *texts: str) -> None:
    for each in texts:
        if len(each) > longest:
            raise ValueError(f"{each[:40]!r}… has {len(each)} characters, and the catalog's tables hold {longest}")


def _spelled(  # the arguments are the event's
    tables: LakeTables, _connection: Any, _cursor: Any, statement: str, parameters: Any, _context: Any, _many: bool
) -> tuple[str, Any]:
    """No operator that others have made in a schema of the path runs as ours."""
    return tables.spelled_theirs(statement), parameters
