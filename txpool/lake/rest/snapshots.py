"""Snapshots of appends: which is ours, how one is made of files that are there, and which files are named."""

from __future__ import annotations

import hmac
import json
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from pyiceberg.manifest import ManifestEntryStatus
from pyiceberg.table import Table, Transaction, snapshots
from pyiceberg.table.refs import MAIN_BRANCH
from pyiceberg.table.snapshots import Operation, Summary, ancestors_of
from pyiceberg.table.update import (
    AddSnapshotUpdate,
    AssertRefSnapshotId,
    RemoveSnapshotRefUpdate,
    RemoveSnapshotsUpdate,
    SetSnapshotRefUpdate,
)

from txpool.lake.changes import require_safe

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog
    from pyiceberg.io import FileIO
    from pyiceberg.manifest import DataFile
    from pyiceberg.table.metadata import TableMetadata
    from pyiceberg.table.snapshots import Snapshot

#: The names of what pyiceberg counts of each snapshot.
COUNTS: Final = {value for name, value in vars(snapshots).items() if name.isupper() and isinstance(value, str)}
_XID: Final = "txpool.xid"
_PROOF: Final = "txpool.proof"


class Reference(NamedTuple):
    """What a branch has in one table: its snapshot, and the table's last sequence number before that."""

    table: tuple[str, ...]
    uuid: str
    snapshot: int
    since: int


def encode(references: Iterable[Reference]) -> str:
    """For the evidence of a decision."""
    return json.dumps([list(each) for each in references])


def decode(found: Iterable[Any]) -> list[Reference]:
    """What `encode` wrote, once json has read it."""
    return [Reference(tuple(table), uuid, snapshot, since) for table, uuid, snapshot, since in found]


@dataclass(frozen=True, slots=True)
class Proof:
    """Shows that a snapshot is ours: only who can read the warehouse's key can have made it."""

    key: str

    def signed(self, snapshot: Snapshot, former: Iterable[Snapshot], xid: str, uuid: str) -> Snapshot:
        """The snapshot, with the xid and the proof in its summary, and what the former ones say beside their counts."""
        said = {
            key: value
            for each in (*former, snapshot)
            for key, value in ({} if each.summary is None else each.summary.additional_properties).items()
            if each is snapshot or not (key in COUNTS or key.startswith(snapshots.CHANGED_PARTITION_PREFIX))
        }
        more = {**said, _XID: xid, _PROOF: self._of(snapshot.snapshot_id, xid, uuid)}
        return snapshot.model_copy(update={"summary": Summary(Operation.APPEND, **more)})

    def holds(self, snapshot: Snapshot | None, xid: str, uuid: str) -> bool:
        """Whether the branch of this name has made this snapshot of the table."""
        summary = None if snapshot is None else snapshot.summary
        if snapshot is None or summary is None or summary[_XID] != xid:
            return False
        return hmac.compare_digest(str(summary[_PROOF]), self._of(snapshot.snapshot_id, xid, uuid))

    def published(self, metadata: TableMetadata, xid: str) -> bool:
        """Whether main has, or has had, a snapshot of this branch's."""
        uuid = str(metadata.table_uuid)
        numbers = {each.snapshot_id for each in metadata.snapshot_log}
        numbers |= {each.snapshot_id for each in ancestors_of(metadata.current_snapshot(), metadata)}
        return any(self.holds(metadata.snapshot_by_id(each), xid, uuid) for each in numbers)

    def _of(self, snapshot: int, xid: str, uuid: str) -> str:
        return hmac.digest(self.key.encode("ascii"), f"{xid} {uuid} {snapshot}".encode("ascii"), "sha256").hex()


def is_reached(metadata: TableMetadata, snapshot: int, *, but: str) -> bool:
    """Whether another reference leads to a snapshot."""
    return any(
        each.snapshot_id == snapshot
        for name, reference in metadata.refs.items()
        if name != but
        for each in ancestors_of(metadata.snapshot_by_id(reference.snapshot_id), metadata)
    )


def added_files(metadata: TableMetadata, snapshots: Collection[int], io: FileIO) -> list[DataFile]:
    """The files that these snapshots add."""
    found = {}
    for number in snapshots:
        snapshot = metadata.snapshot_by_id(number)
        for manifest in () if snapshot is None else snapshot.manifests(io):
            if manifest.added_snapshot_id == number:
                for entry in manifest.fetch_manifest_entry(io):
                    if entry.status == ManifestEntryStatus.ADDED and entry.snapshot_id in snapshots:
                        found[entry.data_file.file_path] = entry.data_file
    return list(found.values())


class _Append(Transaction):
    """What pyiceberg would commit, which nobody does."""

    def __init__(self, table: Table) -> None:
        super().__init__(table)
        self.added: list[Snapshot] = []

    def _stage(self, updates: Any, requirements: Any = ()) -> Transaction:
        self.added += [each.snapshot for each in updates if isinstance(each, AddSnapshotUpdate)]
        return super()._stage(updates, requirements)


def appended(table: Table, files: Collection[DataFile], schema: int, spec: int, io: FileIO) -> Snapshot:
    """A snapshot on top of main that adds files, which were written by this schema and this partition spec."""
    require_safe(table.metadata.properties, ".".join(table.name()))
    catalog: Catalog = table.catalog
    as_then = table.metadata.model_copy(update={"current_schema_id": schema, "default_spec_id": spec})
    changes = _Append(Table(table.name(), as_then, table.metadata_location, io, catalog))
    with changes.update_snapshot().fast_append() as producer:
        for each in files:
            producer.append_data_file(each)
    (added,) = changes.added
    # A server refuses a snapshot that is older than the table's last change, as where this machine's clock is behind.
    return added.model_copy(update={"timestamp_ms": max(added.timestamp_ms, table.metadata.last_updated_ms)})


# -- the parts of a commit; pyiceberg's classes have their fields by other names than mypy knows


def requires(name: str, snapshot: int | None) -> AssertRefSnapshotId:
    """That a reference leads to a snapshot; None: that there is no such reference."""
    return AssertRefSnapshotId.model_validate({"ref": name, "snapshot-id": snapshot})


def leads(name: str, snapshot: int) -> SetSnapshotRefUpdate:
    """A reference leads to a snapshot from now on. However old it becomes, no expiry of snapshots drops it."""
    kept = {} if name == MAIN_BRANCH else {"max-ref-age-ms": 2**63 - 1}
    return SetSnapshotRefUpdate.model_validate({"ref-name": name, "type": "branch", "snapshot-id": snapshot, **kept})


def drops(name: str) -> RemoveSnapshotRefUpdate:
    """A reference is dropped."""
    return RemoveSnapshotRefUpdate.model_validate({"ref-name": name})


def forgets(snapshot: int) -> RemoveSnapshotsUpdate:
    """The table does not have a snapshot any more."""
    return RemoveSnapshotsUpdate.model_validate({"snapshot-ids": [snapshot]})
