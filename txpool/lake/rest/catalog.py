"""pyiceberg's catalog of a REST server within one transaction: its tables take appends, and nothing else changes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pyiceberg.table import CommitTableResponse, Table
from pyiceberg.table.refs import MAIN_BRANCH
from pyiceberg.table.snapshots import Operation
from pyiceberg.table.update import AddSnapshotUpdate, SetSnapshotRefUpdate, update_table_metadata

from txpool.errors import NotSupportedError
from txpool.lake.changes import LakeChanges, LakeTable, commit_response, require_safe
from txpool.lake.refusals import explained
from txpool.lake.rest.client import RestClient
from txpool.lake.rest.work import StagedAppend

if TYPE_CHECKING:
    from pyiceberg.table.snapshots import Summary

    from txpool.datasource import DataSource
    from txpool.lake.journals.base import WarehouseJournals
    from txpool.lake.rest.work import ReferencesWork

WHY = (
    "was not done: in a REST catalog others may change a table between the decision and its commit, and only an append "
    "can be put on top of whatever they have committed. Append, or have the catalog in a datasource "
    "(catalog = lake.properties)"
)


def _refuse(catalog: RestLakeCatalog, *_: Any, **__: Any) -> Any:
    raise NotSupportedError(
        f"catalog {catalog.name}: this {WHY}. What is no part of a transaction is done by a catalog of your own"
    )


@explained
class RestLakeCatalog(RestClient):
    """The catalog within one transaction, which `txpool.lake.catalog()` returns. Its tables can be appended to."""

    appends_only = True
    #: It is in none.
    datasource: DataSource | None = None

    def __init__(self, work: ReferencesWork) -> None:
        self._work = work
        super().__init__(work.name, work.io, **work.place.properties())

    @property
    def journals(self) -> WarehouseJournals:
        """Where the warehouse's files are listed."""
        return self._work.journals

    def load_table(self, identifier: Any) -> AppendedTable:
        self._work.require()
        found = super().load_table(identifier)
        staged = self._work.staged.get(found.name())
        metadata = found.metadata if staged is None else staged.metadata
        require_safe(metadata.properties, ".".join(found.name()))
        self.journals.inside(metadata.location)
        return AppendedTable(found.name(), metadata, found.metadata_location, self._work, self)

    def commit_table(
        self, table: Table, requirements: tuple[Any, ...], updates: tuple[Any, ...]
    ) -> CommitTableResponse:
        self._work.require()
        require_append(updates, ".".join(table.name()))
        before = self._work.staged.get(table.name())
        current = table.metadata if before is None else before.metadata  # what others commit is looked at by PREPARE
        for requirement in requirements:
            requirement.validate(current)
        metadata = update_table_metadata(current, updates)
        if metadata != current:
            self._work.begin_writing()
            theirs = frozenset(each.snapshot_id for each in current.snapshots) if before is None else before.theirs
            self._work.staged[table.name()] = StagedAppend(metadata, theirs)
            self._work.changed(table, metadata, table.metadata_location)
        return commit_response(metadata, table.metadata_location)

    create_table = create_table_transaction = register_table = drop_table = purge_table = rename_table = _refuse
    create_view = drop_view = register_view = _refuse
    create_namespace = drop_namespace = update_namespace_properties = _refuse


@explained
class AppendedTable(LakeTable):
    """A table within one transaction, which can be appended to."""

    def transaction(self) -> AppendChanges:
        self._work.begin_writing()
        return AppendChanges(self)


class AppendChanges(LakeChanges):
    """pyiceberg's transaction of one table, of appends alone."""

    def _refused(self, what: str) -> NotSupportedError:
        return NotSupportedError(f"{'.'.join(self._table.name())}: {what} {WHY}")

    def _stage(self, updates: Any, requirements: Any = ()) -> Any:
        require_append(updates, ".".join(self._table.name()))
        return super()._stage(updates, requirements)

    def overwrite(self, df: Any, *args: Any, **options: Any) -> None:
        raise self._refused("overwrite()")

    def dynamic_partition_overwrite(self, df: Any, *args: Any, **options: Any) -> None:
        raise self._refused("dynamic_partition_overwrite()")

    def upsert(self, df: Any, *args: Any, **options: Any) -> Any:
        raise self._refused("upsert()")

    def delete(self, *args: Any, **options: Any) -> None:
        raise self._refused("delete()")


def require_append(updates: tuple[Any, ...], where: str) -> None:
    """NotSupportedError if a change of a table does more than to append to main."""
    added = set()
    for each in updates:
        if isinstance(each, AddSnapshotUpdate) and _appends(each.snapshot.summary):
            added.add(each.snapshot.snapshot_id)
        elif (
            not isinstance(each, SetSnapshotRefUpdate) or each.ref_name != MAIN_BRANCH or each.snapshot_id not in added
        ):
            raise NotSupportedError(f"{where}: {each.action} {WHY}")


def _appends(summary: Summary | None) -> bool:
    return summary is not None and summary.operation is Operation.APPEND
