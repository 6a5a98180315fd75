"""What was done to the files below a folder, in order; and the one operation that is to fail."""

from __future__ import annotations

import os
import threading
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

#: A directory's number, where a file has its inode's.
DIRECTORY: Final = 0


@dataclass(frozen=True, slots=True)
class Write:
    file: int
    offset: int
    data: bytes

    def __str__(self) -> str:
        return f"write {len(self.data)} at {self.offset} of file {self.file}"


@dataclass(frozen=True, slots=True)
class Truncate:
    file: int
    size: int

    def __str__(self) -> str:
        return f"truncate file {self.file} to {self.size}"


@dataclass(frozen=True, slots=True)
class Sync:
    """One that failed leaves what it was for in limbo: readable, and no later sync of the file covers it."""

    file: int
    failed: bool = False

    def __str__(self) -> str:
        return f"sync file {self.file}" + ", which fails" * self.failed


@dataclass(frozen=True, slots=True)
class Entries:
    """Names of one directory that change in one step: to a file's number, or to None where it has gone."""

    change: dict[str, int | None]

    @property
    def directory(self) -> str:
        return os.path.dirname(next(iter(self.change)))

    def __str__(self) -> str:
        return f"entries {self.change}"


@dataclass(frozen=True, slots=True)
class SyncDirectory:
    path: str

    def __str__(self) -> str:
        return f"sync directory {self.path or '.'}"


Operation = Write | Truncate | Sync | Entries | SyncDirectory


@dataclass(frozen=True)
class Fault:
    """The n-th operation that can fail so does, and those after it while the disk stays full."""

    kind: str  #: one of KINDS
    nth: int

    def __str__(self) -> str:
        return f"{self.kind} at the {self.nth}. of {', '.join(sorted(KINDS[self.kind]))}"


#: What can fail in which way.
KINDS: Final = {
    "EIO": frozenset({"write", "truncate"}),  # nothing is written
    "EIO, but written": frozenset({"write"}),
    "short write": frozenset({"write"}),
    "ENOSPC": frozenset({"write", "make"}),
    "ENOSPC that lasts": frozenset({"write", "make"}),  # until the log gives its reserve
    "EIO on fsync": frozenset({"sync"}),
    "EIO on fsync, but synced": frozenset({"sync"}),
    "EIO on a directory's fsync": frozenset({"syncdir"}),
    "EIO on read": frozenset({"read"}),
    "EIO on open or unlink": frozenset({"open", "make", "unlink"}),
    "no shared memory": frozenset({"shm"}),
}


@dataclass
class Recording:
    """A recording of everything below `root`; new files get a second name in `attic`, which keeps their numbers."""

    root: Path
    attic: Path
    fault: Fault | None = None
    operations: list[Operation] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)
    #: Where the operation failed, as a position among the operations; None before.
    failed_at: int | None = None
    #: Runs in the place where the next sync of a file is about to happen.
    at_sync: Callable[[], object] | None = None
    #: One operation at a time: they are written down in the order in which they happen.
    lock: threading.RLock = field(default_factory=threading.RLock, repr=False)
    _nth: int = 0
    _lasting: bool = False

    @property
    def passes(self) -> bool:
        """Whether the fault is of one operation alone."""
        return self.fault is None or "lasts" not in self.fault.kind

    def name(self, path: str) -> str | None:
        """The path as seen from the root, which itself is ""; None outside of it."""
        root = str(self.root)
        if path == root or path.startswith(root + os.sep):
            return path[len(root) + 1 :]
        return None

    def fails(self, operation: str) -> str:
        """Count an operation that is about to happen; the kind of its failure, or ""."""
        self.counts[operation] += 1
        fault = self.fault
        if fault is None or operation not in KINDS[fault.kind]:
            return ""
        self._nth += 1
        if self._nth == fault.nth:
            self.failed_at = len(self.operations)
            self._lasting = fault.kind == "ENOSPC that lasts"
        elif not (self._lasting and self._nth > fault.nth):
            return ""
        return fault.kind

    def made(self, name: str) -> int:
        """Write down that this file is there, which it was not before; its number."""
        number = os.stat(self.root / name).st_ino
        os.link(self.root / name, self.attic / str(number))
        self.operations.append(Entries({name: number}))
        return number

    def gone(self, name: str) -> None:
        self.operations.append(Entries({name: None}))
        if os.path.basename(name) == "reserve":
            self._lasting = False
