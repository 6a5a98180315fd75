"""The journals of a warehouse in a folder: files, each locked while an attempt, or a REST catalog's branch, uses it.

A transaction's is named by the gtrid; an attempt's has the numbers of write, partition and attempt behind that.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import stat
from collections.abc import Iterable, Iterator, Mapping, Set
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from txpool import failpoints
from txpool.errors import ConfigurationError, OperationalError, described
from txpool.lake.journals.base import FOLDER, WarehouseJournals
from txpool.process.durable import create_file, generation_in, identity_in, sync
from txpool.process.locked_files import LockedFile, open_to_lock, unlock

if TYPE_CHECKING:
    from pyiceberg.io.pyarrow import PyArrowFileIO

    from txpool.lake.journals.base import MakesFiles

_ENDING: Final = ".journal"
_ATTEMPT: Final = ".attempt"
_ATTEMPTS: Final = re.compile(rf"(.+)\.\d+\.\d+\.\d+{re.escape(_ATTEMPT)}")
_FORMAT: Final = "txpool lake journal 1"


@dataclass(frozen=True, slots=True)
class Journals(WarehouseJournals):
    """The journals of a warehouse in a folder, as plain data."""

    name: str
    #: The folder, without links.
    root: str

    @property
    def folder(self) -> Path:
        return Path(self.root, FOLDER)

    def identity(self) -> str:
        if not os.path.isdir(self.root):
            raise ConfigurationError(
                f"{self.name}: the warehouse {self.root} is no folder: make it, on a local file system"
            )
        try:
            found = identity_in(self.folder / "identity")
            self.require_own_folder()
        except OSError as error:
            raise OperationalError(
                f"{self.name}: the warehouse {self.root} cannot be used: {described(error)}. Nothing was done"
            ) from error
        return found

    def generation(self) -> str:
        return generation_in(self.folder / "generation")

    def key(self) -> str:
        if os.stat(self.folder).st_mode & 0o077:
            raise OperationalError(
                f"{self.name}: others may read {self.folder}, and its key shows which references are ours. Nothing was "
                f"done; chmod 700 {self.folder}"
            )
        return identity_in(self.folder / "key")

    def binding(self, token: str) -> str:
        file = self.folder / "catalog"
        with suppress(FileExistsError):
            create_file(file, token.encode("ascii"))
        return file.read_text(encoding="ascii")

    def reader(self) -> PyArrowFileIO:
        from pyiceberg.io.pyarrow import PyArrowFileIO

        return PyArrowFileIO({})

    def io(self, work: MakesFiles) -> PyArrowFileIO:
        from txpool.lake.journals.files import JournaledFileIO

        return JournaledFileIO(work)

    def make_once(self, path: str, content: bytes) -> None:
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with suppress(FileExistsError):
            create_file(path, content)
        self.sync([path])

    def size(self, path: str) -> int | None:
        with suppress(FileNotFoundError):
            return os.path.getsize(path)
        return None

    def discard(self, path: str) -> None:
        with suppress(FileNotFoundError):
            os.unlink(path)

    def sync(self, paths: Iterable[str]) -> None:
        sync_files(self.root, paths)

    def shown(self, gtrid: str) -> str:
        return str(self.path_of(gtrid))

    def exists(self, gtrid: str) -> bool:
        return self.path_of(gtrid).exists()

    def close(self, journal: LockedFile) -> None:
        close_journal(journal)

    def is_removed(self, journal: LockedFile) -> bool:
        return is_removed(journal)

    def located(self, location: str) -> str:
        return path_of(location)

    def inside(self, location: str) -> str:
        """Its absolute path."""
        path = path_of(location)
        relative = os.path.relpath(path, self.root)
        if relative.split(os.sep)[0] in ("..", FOLDER, "."):
            raise ConfigurationError(
                f"{self.name}: the warehouse is {self.root}, and {location} is not in it: tables have their files "
                "there. Not written"
            )
        return path

    def require_own_folder(self) -> None:
        """Whoever can write there could list any file for removal."""
        found = os.lstat(self.folder)
        if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid() or found.st_mode & 0o022:
            raise OperationalError(
                f"{self.name}: {self.folder} belongs to user {found.st_uid}, or others may write there, and it says "
                "which files are removed. Nothing was done; work as its owner, or chmod 700 it"
            )

    # -- a transaction's ----------------------------------------------------------------------------------------

    def path_of(self, gtrid: str) -> Path:
        """Where the transaction's journal is."""
        return self.folder / f"{_spelled(gtrid)}{_ENDING}"

    def open(self, gtrid: str) -> LockedFile:
        """A child that is forked meanwhile does not have it."""
        return self._open(self.path_of(gtrid), gtrid)

    def reopen(self, gtrid: str) -> LockedFile:
        """It is locked."""
        journal = open_to_lock(self.path_of(gtrid), append=True)
        try:
            self.hold(journal, gtrid)
            if is_removed(journal):
                raise FileNotFoundError(self.path_of(gtrid))
        except BaseException:
            journal.close()
            raise
        return journal

    def list_files(self, journal: LockedFile, *paths: str) -> None:
        self._write(journal, [os.path.relpath(path, self.root) for path in paths])

    def note(self, journal: LockedFile, fact: Mapping[str, Any]) -> None:
        self._write(journal, [fact])

    def _write(self, journal: LockedFile, found: Iterable[Any]) -> None:
        text = b"".join(json.dumps(each).encode("ascii") + b"\n" for each in found)
        end = os.fstat(journal.fileno()).st_size
        if os.write(journal.fileno(), text) != len(text):
            os.ftruncate(journal.fileno(), end)  # or the next line would be one with the torn one
            raise OperationalError(f"{self.name}: the journal could not be written, and nothing was made")
        os.fdatasync(journal.fileno())

    def list_new(self, journal: LockedFile, path: str) -> str:
        """Its path; its folder is made, too."""
        if os.path.lexists(path):
            raise OperationalError(f"{self.name}: {path} exists, and was left as it is")
        self.list_files(journal, path)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        return path

    def listed(self, gtrid: str) -> list[str]:
        """The files that a transaction's journal lists; none if it has gone."""
        with suppress(FileNotFoundError):
            return self._read(self.path_of(gtrid), gtrid)
        return []

    def notes(self, gtrid: str) -> list[dict[str, Any]]:
        with suppress(FileNotFoundError):
            return [each for each in self._lines(self.path_of(gtrid), gtrid) if isinstance(each, dict)]
        return []

    def hold(self, journal: LockedFile, gtrid: str) -> None:
        """OperationalError if another process holds it."""
        try:
            fcntl.flock(journal, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise OperationalError(
                f"{self.name}: somebody works with what {gtrid} has staged: another process, or this transaction by "
                "another file that describes the warehouse. Nothing was done here"
            ) from error

    @contextmanager
    def held_alone(self, gtrid: str, *, sweeping: bool = False) -> Iterator[LockedFile | None]:
        """It is locked, and so is that of whoever still works."""
        try:
            journal = self.reopen(gtrid)
        except FileNotFoundError:
            yield None
            return
        try:
            yield journal
        finally:
            close_journal(journal)

    def remove(self, gtrid: str) -> None:
        with suppress(FileNotFoundError):
            self.path_of(gtrid).unlink()
        sync(self.folder)

    def gtrids(self) -> Iterator[str]:
        names = os.listdir(self.folder)
        sync(self.folder)  # a journal that is gone stays so
        for name in names:
            if name.endswith(_ENDING):
                yield _unspelled(name.removesuffix(_ENDING))
            elif found := _ATTEMPTS.fullmatch(name):
                yield _unspelled(found[1])

    # -- an attempt's -------------------------------------------------------------------------------------------

    @contextmanager
    def attempt(self, gtrid: str, numbers: str) -> Iterator[LockedFile]:
        """A new attempt's journal, locked for the length of the block, in which it makes files."""
        if not self.exists(gtrid):
            raise OperationalError(
                f"{self.name}: {self.path_of(gtrid)} is not there for this task. Either {gtrid} has ended, or this "
                "executor does not have the driver's folder under that path, as a mount of one file system"
            )
        self.require_own_folder()
        stem = f"{gtrid}.{numbers}"
        journal = self._open(self.folder / f"{_spelled(stem)}{_ATTEMPT}", stem)
        try:
            fcntl.flock(journal, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if is_removed(journal):
                raise OperationalError(f"{self.name}: {gtrid} has ended, and what this task would write with it")
            yield journal
        finally:
            close_journal(journal)

    def attempts(self, gtrid: str) -> list[tuple[str, Path]]:
        """The names and paths of a transaction's attempts' journals."""
        found = []
        for path in self.folder.glob(f"{_spelled(gtrid)}.*{_ATTEMPT}"):
            parts = _ATTEMPTS.fullmatch(path.name)
            if parts is not None and _unspelled(parts[1]) == gtrid:
                found.append((_unspelled(path.name.removesuffix(_ATTEMPT)), path))
        return sorted(found)

    @contextmanager
    def held(self, stem: str, path: Path) -> Iterator[list[str]]:
        """The files that an attempt's journal lists, while no task works with it; the journal goes with the block.

        OperationalError if a task still writes: whatever it makes has to be seen first.
        """
        try:
            journal = open_to_lock(path)
        except FileNotFoundError:
            yield []
            return
        try:
            try:
                fcntl.flock(journal, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                raise OperationalError(
                    f"{self.name}: a task of Spark's still writes files for {stem}, whose transaction has ended: they "
                    "are removed once it has ended, too"
                ) from error
            yield [] if is_removed(journal) else self._read(path, stem)
            with suppress(FileNotFoundError):
                path.unlink()
        finally:
            close_journal(journal)

    def clear(self, gtrid: str) -> None:
        # First: once it is gone, so are the attempts that it has published.
        self.clear_but(gtrid, set(self.listed(gtrid)))

    def clear_but(self, gtrid: str, kept: Set[str], held: LockedFile | None = None) -> None:
        attempts = self.attempts(gtrid)
        remove_files(path for path in self.listed(gtrid) if path not in kept)
        for stem, path in attempts:
            with self.held(stem, path) as made:
                remove_files(set(made).difference(kept))
        if attempts:
            sync(self.folder)
        self.remove(gtrid)

    def _open(self, path: Path, stem: str) -> LockedFile:
        create_file(path, f"{_FORMAT} {stem}\n".encode("ascii"))
        return open_to_lock(path, append=True)

    def _read(self, path: Path, stem: str) -> list[str]:
        """The files that a journal lists."""
        lines = self._lines(path, stem)
        return [self.inside(os.path.join(self.root, each)) for each in lines if isinstance(each, str)]

    def _lines(self, path: Path, stem: str) -> list[Any]:
        """The lines of a journal. One that a crash has cut off is of what was never done."""
        lines = path.read_text(encoding="ascii").split("\n")
        if lines[0] != f"{_FORMAT} {stem}":
            raise OperationalError(f"{self.name}: {path} is no journal of {stem}. Nothing was removed")
        return [json.loads(line) for line in lines[1:-1]]


def is_removed(journal: LockedFile) -> bool:
    """Whether an open journal has its name no more."""
    return not os.fstat(journal.fileno()).st_nlink


def close_journal(journal: LockedFile) -> None:
    """Close a journal; its lock goes with it. Nothing in a child of a fork, where it is closed."""
    try:
        unlock(journal)
    finally:
        journal.close()


def path_of(location: str) -> str:
    """The absolute path of a location, without links."""
    path = location.removeprefix("file:")  # with two slashes or, as Hadoop writes it, none
    return os.path.realpath(path[2:] if path.startswith("//") else path)


def remove_files(paths: Iterable[str]) -> None:
    """Remove files that nothing names, durably."""
    for path in paths:
        if failpoints.armed:
            failpoints.hit("lake.sweeping")
        with suppress(FileNotFoundError):
            os.unlink(path)
            sync(os.path.dirname(path))


def sync_files(root: str, paths: Iterable[str]) -> None:
    """Make files durable, and the folders below the root that lead to them: side by side, as they share flushes."""
    from pyiceberg.utils.concurrent import ExecutorFactory

    found = set(paths)
    for path in [*found]:
        above = os.path.dirname(path)
        while above not in found and above.startswith(root):
            found.add(above)
            above = os.path.dirname(above)
    for _ in ExecutorFactory.get_or_create().map(sync, sorted(found)):
        pass  # the first error is raised


def _spelled(stem: str) -> str:
    return stem.replace(":", "+")


def _unspelled(name: str) -> str:
    return name.replace("+", ":")
