"""What is on the disk after a power loss: what was synced, and of the rest whatever one likes.

Sectors are 512 bytes. Of a write that was not synced any of its sectors may be there, in any order, and the last one
torn; bytes beside what was written stay as they were (SQLite calls that power-safe overwrite, and relies on it). Of the
entries of a directory that was not synced each change may be there or not.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Final

from tests.crash.disk.recording import DIRECTORY, Entries, Operation, Sync, SyncDirectory, Truncate, Write

_SECTOR: Final = 512


@dataclass(frozen=True)
class Loss:
    """What a power loss, or a kill, does to what was not synced."""

    name: str
    keeps_data: bool = True
    keeps_entries: bool = True
    #: The seed by which both are decided, for each sector and each entry; overrules what is above.
    seed: str = ""

    def __str__(self) -> str:
        return self.name + f" (seed {self.seed})" * bool(self.seed)


KILLED: Final = Loss("a kill: all is kept that was written")
LOST: Final = Loss("all is lost that was not synced", False, False)
#: Those without a seed.
LOSSES: Final = (
    KILLED,
    LOST,
    Loss("entries are forgotten, data is kept", True, False),
    Loss("data is lost, entries are kept", False, True),
)


@dataclass
class _File:
    """What is surely there, and after it what may be; those that are sure among them have `True`."""

    content: bytearray = field(default_factory=bytearray)
    since: list[tuple[bool, Write | Truncate]] = field(default_factory=list)
    limbo: int = 0  # so many of `since` are of syncs that failed: no later one makes them sure

    def sync(self, failed: bool) -> None:
        if failed:
            self.limbo = len(self.since)
            return
        self.since[self.limbo :] = [(True, change) for _, change in self.since[self.limbo :]]
        while self.since and self.since[0][0]:
            _apply(self.content, self.since.pop(0)[1])

    def after(self, loss: Loss, random: Random, share: float) -> bytearray:
        content = bytearray(self.content)
        for sure, change in self.since:
            if sure or (loss.keeps_data and not loss.seed):
                _apply(content, change)
            elif loss.seed:
                for piece in _torn(change, random, share):
                    _apply(content, piece)
        return content


@dataclass
class Disk:
    """The state after a number of operations."""

    files: dict[int, _File] = field(default_factory=dict)
    entries: dict[str, int] = field(default_factory=dict)
    since: list[Entries] = field(default_factory=list)

    def apply(self, operation: Operation) -> None:
        match operation:
            case Write() | Truncate():
                self._file(operation.file).since.append((False, operation))
            case Sync(number, failed):
                self._file(number).sync(failed)
            case Entries():
                self.since.append(operation)
            case SyncDirectory(path):
                for change in self.since:
                    if change.directory == path:
                        _enter(self.entries, change)
                self.since = [change for change in self.since if change.directory != path]

    def after(self, loss: Loss) -> Disk:
        """What is there once that has happened: all of it is sure."""
        random = Random(loss.seed)
        entries = dict(self.entries)
        for change in self.since:
            if random.random() < 0.5 if loss.seed else loss.keeps_entries:
                _enter(entries, change)
        share = random.choice((0.1, 0.5, 0.9))
        files = {number: _File(file.after(loss, random, share)) for number, file in sorted(self.files.items())}
        return Disk(files, entries)

    def write(self, folder: Path, attic: Path) -> None:
        """Make the folder so; files keep the numbers that they had, by which the log knows itself."""
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        for name, number in sorted(self.entries.items()):  # a directory comes before what is in it
            path = folder / name
            if path.parent.is_dir():
                if number == DIRECTORY:
                    path.mkdir(mode=0o700)
                else:
                    os.link(attic / str(number), path)
        for number in set(self.entries.values()) - {DIRECTORY}:
            (attic / str(number)).write_bytes(self._file(number).content)

    def copy(self) -> Disk:
        """So that what follows can be tried out."""
        files = {n: _File(bytearray(f.content), [*f.since], f.limbo) for n, f in self.files.items()}
        return Disk(files, dict(self.entries), [*self.since])

    def _file(self, number: int) -> _File:
        return self.files.setdefault(number, _File())


def _enter(entries: dict[str, int], change: Entries) -> None:
    for name, number in change.change.items():
        if number is None:
            entries.pop(name, None)
        else:
            entries[name] = number


def _apply(content: bytearray, change: Write | Truncate) -> None:
    end = change.size if isinstance(change, Truncate) else change.offset
    if len(content) < end:
        content.extend(bytes(end - len(content)))
    if isinstance(change, Truncate):
        del content[change.size :]
    else:
        content[change.offset : change.offset + len(change.data)] = change.data


def _torn(change: Write | Truncate, random: Random, share: float) -> Iterator[Write | Truncate]:
    """Those sectors that arrive, and maybe a part of one more."""
    if isinstance(change, Truncate):
        if random.random() < share:
            yield change
        return
    first = change.offset
    end = first + len(change.data)
    while first < end:
        last = min(end, first - first % _SECTOR + _SECTOR)
        kept = last - first
        if random.random() >= share:
            kept = random.randrange(kept) if random.random() < 0.1 else 0
        if kept:
            start = first - change.offset
            yield Write(change.file, first, change.data[start : start + kept])
        first = last
