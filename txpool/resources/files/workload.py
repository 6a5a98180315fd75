"""What the conformance kit publishes, and reads: each key is a folder with one file."""

from __future__ import annotations

import shutil
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from txpool.resources.files.work import FolderWork


class KitFolders:
    """Folders with the kit's keys as names."""

    def __init__(self, place: str) -> None:
        self._place = Path(place)
        self._keys: set[str] = set()

    def write(self, work: FolderWork, key: str) -> None:
        """Stage a folder."""
        self._keys.add(key)
        with work.folder(key, overwrite=False).open("key") as file:
            file.write(key)

    def visible(self, key: str) -> bool:
        """Whether its file is there, and whole."""
        with suppress(FileNotFoundError):
            return (self._place / key / "key").read_text() == key
        return False

    def close(self) -> None:
        """Remove all that was published."""
        for key in self._keys:
            with suppress(FileNotFoundError):
                shutil.rmtree(self._place / key)
