"""A tree of folders on a disk that keeps of each file, and of each folder's names, what the last sync has made durable.

Renames of whole folders are in it, which `image` does not know: each folder is known by its inode's number.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.crash.disk.image import Loss

_Names = dict[str, tuple[int, bool]]


class SyncedTree:
    """What is below `root`, and what of it was synced; before each operation, `at_operation` is called."""

    def __init__(self, root: Path, at_operation: Callable[[str], object]) -> None:
        self._root = root
        self._contents: dict[int, bytes] = {}
        self._names: dict[int, _Names] = {}
        self._at_operation = at_operation
        self._looking = False
        self.sync_all()

    def sync_all(self) -> None:
        """All that is there is durable."""
        for folder, _, files in os.walk(self._root):
            self._names[os.stat(folder).st_ino] = _names_in(folder)
            for file in files:
                path = Path(folder, file)
                self._contents[path.stat().st_ino] = path.read_bytes()

    @contextmanager
    def watching(self, rename: tuple[Any, str]) -> Iterator[None]:
        """Within the block, this process's operations are seen; `rename` is the module and name of renameat2."""
        module, attribute = rename
        names = ("mkdir", "unlink", "rmdir", "rename", "link", "write")
        places = [(os, name) for name in names] + [(module, attribute), (os, "fsync")]
        real = [getattr(place, name) for place, name in places]
        for (place, name), call in zip(places, real, strict=True):
            setattr(place, name, self._seen(name, call))
        try:
            yield
        finally:
            for (place, name), call in zip(places, real, strict=True):
                setattr(place, name, call)

    def _seen(self, name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def seen(*arguments: Any, **keywords: Any) -> Any:
            if self._looking:
                return call(*arguments, **keywords)
            self._looking = True
            try:
                self._at_operation(name)
            finally:
                self._looking = False
            answer = call(*arguments, **keywords)
            if name == "fsync":
                self._synced(arguments[0])
            return answer

        return seen

    def _synced(self, descriptor: int) -> None:
        path, number = os.readlink(f"/proc/self/fd/{descriptor}"), os.fstat(descriptor).st_ino
        if os.path.isdir(path):
            self._names[number] = _names_in(path)
        else:
            self._contents[number] = Path(path).read_bytes()

    def write(self, image: Path, loss: Loss) -> None:
        """Make a folder as a crash leaves the tree now; numbers are new."""
        current = {os.stat(folder).st_ino: folder for folder, _, _ in os.walk(self._root)}
        data = {}
        for folder in current.values():
            for name, (number, is_folder) in _names_in(folder).items():
                if not is_folder:
                    data[number] = Path(folder, name).read_bytes()
        if not loss.keeps_data:
            data = {}
        image.mkdir(mode=0o755)
        self._build(self._root.stat().st_ino, image, current if loss.keeps_entries else {}, data)

    def _build(self, number: int, image: Path, current: dict[int, str], data: dict[int, bytes]) -> None:
        names = _names_in(current[number]) if number in current else self._names.get(number, {})
        for name, (inner, is_folder) in names.items():
            if is_folder:
                (image / name).mkdir(mode=0o700)
                self._build(inner, image / name, current, data)
            else:
                (image / name).write_bytes(data.get(inner, self._contents.get(inner, b"")))


def _names_in(folder: str) -> _Names:
    with os.scandir(folder) as entries:
        return {each.name: (each.inode(), each.is_dir(follow_symlinks=False)) for each in entries}
