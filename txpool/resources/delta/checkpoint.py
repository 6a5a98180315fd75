"""The checkpoints of a table's log: without them, each commit would read and sync every entry that there ever was."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from txpool.errors import OperationalError
from txpool.resources.delta.table import LOG, TableState, delta, entries
from txpool.resources.files.tree import descended, make_folder, opened, remove_tree, sync_file

#: After how many versions, if the table does not say it: as Spark.
_INTERVAL = "10"
_COPY = "checkpoint"
_LAST = "_last_checkpoint"


def is_due(version: int, state: TableState) -> bool:
    """Whether the table asks for a checkpoint at this version, in the one form that every reader knows."""
    interval = state.metadata["configuration"].get("delta.checkpointInterval", _INTERVAL)
    if "v2Checkpoint" in (state.protocol.get("writerFeatures") or ()) or not interval.isdecimal():
        return False
    return int(interval) > 0 and version % int(interval) == 0


def checkpoint(version: int, path: Path, log: int, staged: Path, staging: int, *, where: str) -> None:
    """Make one of a table's open log; the folder `staged` is open as `staging`. Errors: Error, OSError.

    deltalake would sync nothing, and a power loss could leave a checkpoint without contents, with which nobody could
    read the table. So it makes it in a folder of ours, whose entries are links to the table's.
    """
    remove_tree(_COPY, staging)  # of another table
    make_folder(_COPY, staging)
    with opened(_COPY, staging) as copy:
        make_folder(LOG, copy)
    for name in entries(log):
        if name[:20] <= f"{version:020}":
            (staged / _COPY / LOG / name).symlink_to((path / LOG / name).absolute())
    with delta(where) as deltalake:
        table = deltalake.DeltaTable(str(staged / _COPY))
        if table.version() != version:
            raise OperationalError(f"{where}: version {version} cannot be read any more")
        table.create_checkpoint()
    made = f"{version:020}.checkpoint.parquet"
    with descended([_COPY, LOG], staging) as copy:
        for name in (made, _LAST):
            sync_file(name, copy, give=True)
        with suppress(FileExistsError):  # somebody else's
            os.link(made, made, src_dir_fd=copy, dst_dir_fd=log)
        os.fsync(log)  # first: the other says that it is there
        os.rename(_LAST, _LAST, src_dir_fd=copy, dst_dir_fd=log)
