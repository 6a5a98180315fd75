"""Which files tables name: what a snapshot has is never removed."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from pyiceberg.serializers import FromInputFile

from txpool.errors import ConfigurationError, OperationalError

if TYPE_CHECKING:
    from pyiceberg.io import FileIO
    from pyiceberg.table.metadata import TableMetadata

    from txpool.lake.journals.base import WarehouseJournals

#: Before all sequence numbers.
_ALWAYS: Final = -1


def named_at(pointers: Iterable[str], journals: WarehouseJournals) -> set[str]:
    """The files that the tables name whose metadata is there, if that is in the warehouse; and that itself.

    OperationalError if a table seems to be in the warehouse under another path, as of a copy or another mount.
    """
    io, inside = journals.reader(), [each for each in pointers if _is_file_inside(each, journals)]
    tables = (FromInputFile.table_metadata(io.new_input(each)) for each in inside)
    return {journals.located(each) for each in inside} | named_by(tables, journals)


def named_by(tables: Iterable[TableMetadata], journals: WarehouseJournals) -> set[str]:
    """The files that these tables name, as `located` returns them. Those outside of the warehouse have none of it.

    OperationalError as of `named_at`.
    """
    io, found = journals.reader(), set[str]()
    for each in tables:
        if _is_inside(each.location, journals):
            found.update(former.metadata_file for former in each.metadata_log)
            found.update(named_files(each, _ALWAYS, io))
        elif each.snapshots:
            _is_file_inside(each.snapshots[-1].manifest_list, journals)
    return {journals.located(each) for each in found}


def _is_inside(location: str, journals: WarehouseJournals) -> bool:
    with suppress(ConfigurationError):
        journals.inside(location)
        return True
    return False


def _is_file_inside(location: str, journals: WarehouseJournals) -> bool:
    """As `_is_inside`. OperationalError if it is outside, and a part of its path leads to a file of the warehouse."""
    if _is_inside(location, journals):
        return True
    parts = location.split("/")
    for place in range(1, len(parts)):
        path = "/".join([journals.root, *parts[place:]])
        if parts[place] and _is_inside(path, journals) and journals.size(journals.inside(path)) is not None:
            raise OperationalError(
                f"{journals.name}: tables name {location}, and the warehouse {journals.root} has such a file, so that "
                "it may be the same one, or a copy. Nothing was removed: mount it where the tables have it, or let "
                "them name what is here"
            )
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
