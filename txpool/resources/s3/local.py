"""The folder into which Spark's writer writes, until its files are in the store. All executors have it.

It is a place of `txpool.resources.files`, in which nothing is published. Recovery sweeps what a crash leaves there.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from txpool import failpoints
from txpool.errors import OperationalError, described
from txpool.resources.files.place import HIDDEN, Place
from txpool.resources.files.tree import make_folder
from txpool.resources.files.work import SUCCESS, new_staging, sweep

logger = logging.getLogger("txpool")

#: What Spark leaves beside its files: that it has written all, and what lost attempts have written.
_NOT_READ: Final = frozenset({SUCCESS, "_temporary"})


@contextmanager
def local_folder(place: Place, gtrid: str) -> Iterator[Path]:
    """A new folder, which goes at the end of the block."""
    staging = new_staging(gtrid)
    try:
        with place.open() as hidden:
            make_folder(staging, hidden.staged, 0o700)
            os.fsync(hidden.staged)
        if failpoints.armed:
            failpoints.hit("files.staged")
        yield place.path / HIDDEN / "staged" / staging
    finally:
        try:
            sweep(place, staging)
        except Exception as error:
            logger.warning("%s: what is staged in %s stays for recovery: %s", gtrid, place.path, described(error))


def written_in(folder: Path) -> list[str]:
    """The names of the files in a folder that hold rows. OperationalError for what is neither file nor folder."""
    found = []
    for above, folders, files in os.walk(folder):
        folders[:] = [each for each in folders if "=" in each or _is_read(each)]  # a partition may begin with a point
        for path in (Path(above, each) for each in (*folders, *(file for file in files if _is_read(file)))):
            if path.is_symlink() or not (path.is_file() or path.is_dir()):
                raise OperationalError(f"{path} is neither a file nor a folder, and is not published")
            if path.is_file():
                found.append(str(path.relative_to(folder)))
    return sorted(found)


def _is_read(name: str) -> bool:
    return name not in _NOT_READ and not name.startswith(".")
