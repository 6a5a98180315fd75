"""Listens to what the log does to files without SQLite: makes, links, renames, removes, and syncs of directories."""

from __future__ import annotations

import errno
import io
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.crash.disk.recording import DIRECTORY, Entries, Recording, Sync, SyncDirectory

_REAL = {name: getattr(os, name) for name in ("open", "fsync", "link", "rename", "unlink", "mkdir")}
_REAL_OPEN = io.open


@contextmanager
def recording(recording: Recording) -> Iterator[None]:
    """Python's calls that change what is below the recording's root are on the recording, and happen."""
    calls = _Calls(recording)
    try:
        for name in _REAL:
            setattr(os, name, getattr(calls, name))
        io.open = calls.opening
        yield
    finally:
        for name, real in _REAL.items():
            setattr(os, name, real)
        io.open = _REAL_OPEN


class _Calls:
    def __init__(self, recording: Recording) -> None:
        self._recording = recording

    def open(self, path: Any, flags: int, *arguments: Any, **keywords: Any) -> int:
        return int(self._made(path, lambda: _REAL["open"](path, flags, *arguments, **keywords)))

    def opening(self, file: Any, *arguments: Any, **keywords: Any) -> Any:
        return self._made(file, lambda: _REAL_OPEN(file, *arguments, **keywords))

    def fsync(self, descriptor: int) -> None:
        with self._recording.lock:
            path = os.readlink(f"/proc/self/fd/{descriptor}")
            name = self._recording.name(path)
            if name is None:
                _REAL["fsync"](descriptor)
            elif os.path.isdir(path):
                self._may("syncdir", path)
                self._recording.operations.append(SyncDirectory(name))
            else:
                self._may("sync", path)
                self._recording.operations.append(Sync(os.fstat(descriptor).st_ino))

    def link(self, old: Any, new: Any, **keywords: Any) -> None:
        def change(name: str) -> Entries:
            return Entries({name: os.stat(old).st_ino})

        self._changed("make", new, change, lambda: _REAL["link"](old, new, **keywords))

    def rename(self, old: Any, new: Any, **keywords: Any) -> None:
        def change(name: str) -> Entries:
            before = self._recording.name(os.fspath(old))
            assert before is not None, "nothing is moved into the log's folder"
            return Entries({name: os.stat(new).st_ino, before: None})

        self._changed("unlink", new, change, lambda: _REAL["rename"](old, new, **keywords))

    def unlink(self, path: Any, **keywords: Any) -> None:
        name = self._name(path)
        if name is None:
            _REAL["unlink"](path, **keywords)
            return
        with self._recording.lock:
            self._may("unlink", path)
            _REAL["unlink"](path, **keywords)
            self._recording.gone(name)

    def mkdir(self, path: Any, *arguments: Any, **keywords: Any) -> None:
        def change(name: str) -> Entries:
            return Entries({name: DIRECTORY})

        self._changed("make", path, change, lambda: _REAL["mkdir"](path, *arguments, **keywords))

    def _name(self, path: Any) -> str | None:
        return self._recording.name(os.fspath(path)) if isinstance(path, (str, Path)) else None

    def _may(self, operation: str, path: Any) -> None:
        failure = self._recording.fails(operation)
        if failure:
            number = errno.ENOSPC if failure.startswith("ENOSPC") else errno.EIO
            raise OSError(number, os.strerror(number), os.fspath(path))

    def _made(self, path: Any, act: Callable[[], Any]) -> Any:
        name = self._name(path)
        if name is None:
            return act()
        with self._recording.lock:
            new = not os.path.exists(path)
            self._may("make" if new else "open", path)
            opened = act()
            if new:
                self._recording.made(name)
            return opened

    def _changed(self, operation: str, path: Any, change: Callable[[str], Entries], act: Callable[[], object]) -> None:
        name = self._name(path)
        if name is None:
            act()
            return
        with self._recording.lock:
            self._may(operation, path)
            act()
            self._recording.operations.append(change(name))
