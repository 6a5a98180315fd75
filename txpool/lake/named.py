"""Which files tables name: what a snapshot has is never removed."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from pyiceberg.serializers import FromInputFile

from txpool.errors import ConfigurationError

if TYPE_CHECKING:
    from pyiceberg.io import FileIO
    from pyiceberg.table.metadata import TableMetadata

    from txpool.lake.journals.base import WarehouseJournals

#: Before all sequence numbers.
_ALWAYS: Final = -1


def named_at(pointers: Iterable[str], journals: WarehouseJournals) -> set[str]:
    """The files that the tables name whose metadata is there, if that is in the warehouse; and that itself."""
    io, inside = journals.reader(), [each for each in pointers if _is_inside(each, journals)]
    tables = (FromInputFile.table_metadata(io.new_input(each)) for each in inside)
    return {journals.located(each) for each in inside} | named_by(tables, journals)


def named_by(tables: Iterable[TableMetadata], journals: WarehouseJournals) -> set[str]:
    """The files that these tables name, as `located` returns them. Those outside of the warehouse have none of it."""
    io, found = journals.reader(), set[str]()
    for each in tables:
        if _is_inside(each.location, journals):
            found.update(former.metadata_file for former in each.metadata_log)
            found.update(named_files(each, _ALWAYS, io))
    return {journals.located(each) for each in found}


def _is_inside(location: str, journals: WarehouseJournals) -> bool:
    with suppress(ConfigurationError):
        journals.inside(location)
        return True
    return False


def named_files(metadata: TableMetadata, since: int, io: FileIO) -> Iterator[str]:
    """The locations that the table's snapshots name, but for data files that it had at this sequence number."""
    read = set()
    for snapshot in metadata.snapshots:
        yield snapshot.manifest_list
        if _is_older(metadata, snapshot.sequence_number, since):
            continue
        for manifest in snapshot.manifests(io):
            if manifest.manifest_path not in read and not _is_older(metadata, manifest.sequence_number, since):
                read.add(manifest.manifest_path)
                yield manifest.manifest_path
                for entry in manifest.fetch_manifest_entry(io, discard_deleted=False):
                    yield entry.data_file.file_path


def _is_older(metadata: TableMetadata, number: int | None, since: int) -> bool:
    return metadata.format_version > 1 and number is not None and number <= since
