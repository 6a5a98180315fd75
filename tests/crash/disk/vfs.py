"""Listens to SQLite's own I/O: in the very library that `sqlite3` is linked to, under the unchanged log.

The default file system of SQLite is wrapped: a file below the recording's root gets a copy of its method table, in
which reads, writes, truncations and syncs are recorded. Locks and shared memory stay SQLite's own. What is
synced of directories is observed too, at the system call: SQLite syncs some by itself, and tells nobody.
"""

from __future__ import annotations

import _sqlite3
import ctypes
import os
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from ctypes import CFUNCTYPE, POINTER, c_char_p, c_int, c_int64, c_void_p
from typing import Final

from tests.crash.disk.recording import Recording, Sync, SyncDirectory, Truncate, Write

_OK, _READ, _WRITE, _SYNC, _TRUNCATE, _DELETE, _SHM = 0, 266, 778, 1034, 1546, 2570, 5386
_FULL, _CANTOPEN = 13, 14
_CREATE: Final = 4  # a flag of open

_Open = CFUNCTYPE(c_int, c_void_p, c_void_p, c_void_p, c_int, c_void_p)
_Delete = CFUNCTYPE(c_int, c_void_p, c_char_p, c_int)
_Transfer = CFUNCTYPE(c_int, c_void_p, c_void_p, c_int, c_int64)
_Size = CFUNCTYPE(c_int, c_void_p, c_int64)
_Flags = CFUNCTYPE(c_int, c_void_p, c_int)
_Map = CFUNCTYPE(c_int, c_void_p, c_int, c_int, c_int, c_void_p)
_Directory = CFUNCTYPE(c_int, c_char_p, c_void_p)
_Set = CFUNCTYPE(c_int, c_void_p, c_char_p, c_void_p)
_Get = CFUNCTYPE(c_void_p, c_void_p, c_char_p)


class _Methods(ctypes.Structure):
    """sqlite3_io_methods."""

    _fields_ = (
        ("iVersion", c_int),
        ("xClose", c_void_p),
        ("xRead", _Transfer),
        ("xWrite", _Transfer),
        ("xTruncate", _Size),
        ("xSync", _Flags),
        *((name, c_void_p) for name in ("xFileSize", "xLock", "xUnlock", "xCheckReservedLock", "xFileControl")),
        ("xSectorSize", c_void_p),
        ("xDeviceCharacteristics", c_void_p),
        ("xShmMap", _Map),
        *((name, c_void_p) for name in ("xShmLock", "xShmBarrier", "xShmUnmap", "xFetch", "xUnfetch")),
    )


class _Vfs(ctypes.Structure):
    """sqlite3_vfs."""

    _fields_ = (
        ("iVersion", c_int),
        ("szOsFile", c_int),
        ("mxPathname", c_int),
        ("pNext", c_void_p),
        ("zName", c_char_p),
        ("pAppData", c_void_p),
        ("xOpen", _Open),
        ("xDelete", _Delete),
        *((name, c_void_p) for name in ("xAccess", "xFullPathname", "xDlOpen", "xDlError", "xDlSym", "xDlClose")),
        *((name, c_void_p) for name in ("xRandomness", "xSleep", "xCurrentTime", "xGetLastError")),
        ("xCurrentTimeInt64", c_void_p),
        ("xSetSystemCall", _Set),
        ("xGetSystemCall", _Get),
        ("xNextSystemCall", c_void_p),
    )


def library() -> ctypes.CDLL | None:
    """The SQLite that Python's own `sqlite3` uses; None where its symbols cannot be reached from outside."""
    for path in (_sqlite3.__file__, None):  # symbols are looked up in what a library is linked to, too
        found = ctypes.CDLL(path)
        if hasattr(found, "sqlite3_vfs_find"):
            found.sqlite3_vfs_find.restype = POINTER(_Vfs)
            found.sqlite3_vfs_find.argtypes = [c_char_p]
            found.sqlite3_vfs_register.argtypes = [POINTER(_Vfs), c_int]
            found.sqlite3_vfs_unregister.argtypes = [POINTER(_Vfs)]
            return found
    return None


class FileSystem:
    """SQLite's default file system, recorded within a block. Connections may outlive the block that made them."""

    def __init__(self, sqlite: ctypes.CDLL) -> None:
        self.active: Recording | None = None
        self._sqlite = sqlite
        self._real: _Vfs = sqlite.sqlite3_vfs_find(None).contents
        self._files: dict[int, tuple[_Methods, int]] = {}  # an open file's own methods, and its number
        self._tables: dict[int, _Methods] = {}
        self._own = _Vfs()
        ctypes.pointer(self._own)[0] = self._real
        self._own.zName = b"recorded"
        self._own.xOpen = _Open(self._open)
        self._own.xDelete = _Delete(self._delete)
        self._methods = {
            "xRead": _Transfer(self._read),
            "xWrite": _Transfer(self._write),
            "xTruncate": _Size(self._truncate),
            "xSync": _Flags(self._sync),
            "xShmMap": _Map(self._map),
        }
        real = self._real.xGetSystemCall(ctypes.addressof(self._real), b"openDirectory")
        self._real_directory = ctypes.cast(real, _Directory)
        self._directory = _Directory(self._open_directory)

    @contextmanager
    def recording(self, recording: Recording) -> Iterator[Recording]:
        """Every connection that is opened in the block, below the recording's root, is on the recording."""
        self.active = recording
        real = ctypes.addressof(self._real)
        self._sqlite.sqlite3_vfs_register(self._own, 1)
        self._real.xSetSystemCall(real, b"openDirectory", ctypes.cast(self._directory, c_void_p))
        try:
            yield recording
        finally:
            self._real.xSetSystemCall(real, b"openDirectory", None)
            self._sqlite.sqlite3_vfs_register(self._real, 1)
            self._sqlite.sqlite3_vfs_unregister(self._own)
            self.active = None

    def _open(self, _: int, path: int, file: int, flags: int, out: int) -> int:
        real = ctypes.addressof(self._real)
        text = os.fsdecode(ctypes.string_at(path)) if path else ""
        recording = self.active
        name = recording.name(text) if recording else None
        if recording is None or name is None:
            return int(self._real.xOpen(real, path, file, flags, out))
        with recording.lock:
            new = not os.path.exists(text)
            if recording.fails("make" if new and flags & _CREATE else "open"):
                ctypes.cast(file, POINTER(c_void_p))[0] = None
                return _CANTOPEN
            result = int(self._real.xOpen(real, path, file, flags, out))
            if result == _OK:
                self._exchange(file, recording.made(name) if new else os.stat(text).st_ino)
            return result

    def _exchange(self, file: int, number: int) -> None:
        slot = ctypes.cast(file, POINTER(c_void_p))
        address = slot[0]
        real = _Methods.from_address(address)
        if address not in self._tables:
            table = self._tables[address] = _Methods()
            ctypes.pointer(table)[0] = real
            for name, method in self._methods.items():
                setattr(table, name, method)
        slot[0] = ctypes.addressof(self._tables[address])
        self._files[file] = real, number

    def _delete(self, _: int, path: bytes, sync: int) -> int:
        real = ctypes.addressof(self._real)
        text = os.fsdecode(path)
        recording = self.active
        name = recording.name(text) if recording else None
        if recording is None or name is None:
            return int(self._real.xDelete(real, path, sync))
        with recording.lock:
            if recording.fails("unlink"):
                return _DELETE
            there = os.path.exists(text)
            if there:
                recording.gone(name)  # first, since the directory may be synced with it
            return int(self._real.xDelete(real, path, sync))

    def _read(self, file: int, data: int, size: int, offset: int) -> int:
        methods, _ = self._files[file]
        if self.active is not None and self.active.fails("read"):
            return _READ
        return int(methods.xRead(file, data, size, offset))

    def _write(self, file: int, data: int, size: int, offset: int) -> int:
        methods, number = self._files[file]
        recording = self.active
        if recording is None:
            return int(methods.xWrite(file, data, size, offset))
        with recording.lock:
            failure = recording.fails("write")
            size = {"": size, "EIO, but written": size, "short write": size // 2}.get(failure, 0)
            if size:
                recording.operations.append(Write(number, offset, ctypes.string_at(data, size)))
                result = int(methods.xWrite(file, data, size, offset))
                assert result == _OK, "the machine's own disk has failed"
        if failure:
            return _WRITE if failure.startswith("EIO") else _FULL
        return _OK

    def _truncate(self, file: int, size: int) -> int:
        methods, number = self._files[file]
        recording = self.active
        if recording is None:
            return int(methods.xTruncate(file, size))
        with recording.lock:
            if recording.fails("truncate"):
                return _TRUNCATE
            recording.operations.append(Truncate(number, size))
            return int(methods.xTruncate(file, size))

    def _sync(self, file: int, flags: int) -> int:
        methods, number = self._files[file]
        recording = self.active
        if recording is None:
            return int(methods.xSync(file, flags))
        hook, recording.at_sync = recording.at_sync, None
        if hook is not None:
            hook()
        with recording.lock:
            failure = recording.fails("sync")
            recording.operations.append(Sync(number, failure == "EIO on fsync"))
            if failure:
                return _SYNC
            return int(methods.xSync(file, flags))

    def _map(self, file: int, region: int, size: int, extend: int, out: int) -> int:
        methods, _ = self._files[file]
        if self.active is not None and self.active.fails("shm"):
            return _SHM
        return int(methods.xShmMap(file, region, size, extend, out))

    def _open_directory(self, path: bytes, out: int) -> int:
        """SQLite opens the directory of this file in order to sync it."""
        recording = self.active
        name = recording.name(os.path.dirname(os.fsdecode(path))) if recording else None
        if recording is not None and name is not None:
            with recording.lock:
                if recording.fails("syncdir"):
                    return _CANTOPEN
                recording.operations.append(SyncDirectory(name))
        return int(self._real_directory(path, out))

    def is_in_use(self) -> bool:
        """Whether Python's `sqlite3` knows it: the library that was found may be another copy of SQLite."""
        self._sqlite.sqlite3_vfs_register(self._own, 0)
        try:
            sqlite3.connect("file::memory:?vfs=recorded", uri=True).close()
        except sqlite3.OperationalError:
            return False
        finally:
            self._sqlite.sqlite3_vfs_unregister(self._own)
        return True


_known: list[FileSystem] = []


def file_system() -> FileSystem | None:
    """The one of this process, kept for its whole life since SQLite points into it; None where it cannot be."""
    if not _known:
        sqlite = library()
        if sqlite is None:
            return None
        _known.append(FileSystem(sqlite))
    return _known[0] if _known[0].is_in_use() else None
