"""What a transaction does in a place: it stages folders, and prepares them by a manifest."""

from __future__ import annotations

import os
import secrets
import stat
from abc import abstractmethod
from contextlib import AbstractContextManager, ExitStack, nullcontext, suppress
from pathlib import Path
from typing import IO, Any, Final

from txpool import failpoints
from txpool.errors import OperationalError, ProgrammingError, described
from txpool.locks import Lock
from txpool.resources.base import Refused
from txpool.resources.files.place import HIDDEN, Hidden, Manifest, Place, is_name, leads_below, named
from txpool.resources.files.tree import (
    descended,
    found_within,
    make_folder,
    mount_of,
    opened,
    remove_tree,
    sync_tree,
    write_file,
    written_to,
)
from txpool.resources.own.resource import Work
from txpool.xid import parse

#: What a folder has from its PREPARE on, with the xid: by it the two sides of a rename are told apart.
MARKER: Final = "_txpool"
#: What the marker is called once all folders of the branch are published.
SUCCESS: Final = "_SUCCESS"


def new_staging(gtrid: str) -> str:
    """A new name under which a transaction stages. Hadoop's paths have no colons."""
    return f"{gtrid.replace(':', '+')}+{secrets.token_hex(4)}"


def gtrid_of(staging: str) -> str:
    """The transaction that has staged under this name; empty if it is none of ours."""
    gtrid, _, _ = staging.rpartition("+")
    xid = parse(f"{gtrid.replace('+', ':')}:0:files:L")
    return "" if xid is None else xid.gtrid


class StagedFolder(os.PathLike[str]):
    """A folder that appears under its name when the transaction commits, whole. Until then it is at `path`."""

    def __init__(self, work: FolderWork, name: str, path: Path) -> None:
        self._work = work
        self.name = name  #: The name under which it is published.
        self._path = path

    @property
    def path(self) -> Path:
        """Where it is written: for whatever writes files."""
        return self._path

    def filling(self) -> AbstractContextManager[Path]:
        """The folder into which Spark's writer writes within the block."""
        return nullcontext(self.path)

    def __fspath__(self) -> str:
        return str(self.path)

    def __repr__(self) -> str:
        return f"<StagedFolder {self.name} in {self.path}>"

    def open(self, file: str | os.PathLike[str], mode: str = "w", **options: Any) -> IO[Any]:
        """Open a file in it, as the built-in open() does; folders between are made. Close it before the commit."""
        self._work.require_active()
        file = named(file)
        if not leads_below(file) or file == SUCCESS:
            raise ProgrammingError(f"{file!r} is no name of a file in the folder {self.name}. Nothing was written")
        path = self.path / file
        path.parent.mkdir(parents=True, exist_ok=True)
        return path.open(mode, **options)


class PlaceWork(Work):
    """What one transaction stages in one place, under a name of its own, and prepares by a manifest."""

    def __init__(self, place: Place, gtrid: str) -> None:
        self.place = place
        self.gtrid = gtrid
        self.staging = new_staging(gtrid)
        self._begun = False
        self._lock = Lock()

    @property
    def idle(self) -> bool:
        return not self._begun

    @property
    @abstractmethod
    def shown(self) -> str:
        """The name by which it is seen whether the branch has committed; empty if nothing was staged."""

    def begin_staging(self, hidden: Hidden) -> None:
        """Make its folder, durably: before the first file, so that recovery finds whatever a crash leaves."""
        self._begun = True  # first: an interrupt may come behind the next line
        with suppress(FileExistsError):  # what comes after it has failed before
            make_folder(self.staging, hidden.staged, 0o700)
        os.fsync(hidden.staged)
        if failpoints.armed:
            failpoints.hit("files.staged")

    @abstractmethod
    def manifest(self, xid: str) -> Manifest:
        """What is to be published. `Refused` if that is not whole."""

    @abstractmethod
    def sync(self, manifest: Manifest, staging: int) -> None:
        """Make the manifest's files durable, in the open staging folder."""

    @abstractmethod
    def require_publishable(self, hidden: Hidden) -> None:
        """`Refused` if a commit could not publish it, while nobody else prepares: a commit cannot say no any more."""

    def prepare(self, xid: str) -> None:
        manifest = self.manifest(xid)
        with self.place.open() as hidden, ExitStack() as stack:
            try:
                staging = stack.enter_context(opened(self.staging, hidden.staged))
                self.sync(manifest, staging)
                self.place.draft(manifest, staging)
                os.fsync(staging)
                os.fsync(hidden.staged)
            except OSError as error:
                raise Refused(
                    f"what is staged in {self.place.path} cannot be made durable: {described(error)}"
                ) from error
            except OperationalError as error:
                raise Refused(str(error)) from error
            if failpoints.armed:
                failpoints.hit("files.synced")
            with self.place.changing(hidden):
                self._require_there(hidden, staging)
                self.require_publishable(hidden)
                try:
                    self.place.add(manifest, staging, hidden)
                except FileExistsError as error:
                    raise Refused(f"a manifest {xid} is there already") from error

    def _require_there(self, hidden: Hidden, staging: int) -> None:
        """What was synced is what the manifest names, and nobody has swept it."""
        with suppress(OSError):
            there = os.stat(self.staging, dir_fd=hidden.staged, follow_symlinks=False)
            if os.path.samestat(there, os.fstat(staging)):
                return
        raise Refused(f"what {self.gtrid} has staged was swept: recovery has taken its process for dead")

    def require_movable(self, folder: int, hidden: Hidden, shown: str) -> None:
        """`Refused` if nothing that is staged can be moved or linked into a folder."""
        if mount_of(folder) != mount_of(hidden.staged):
            raise Refused(f"{shown} is another file system than {self.place.path}, into which no rename leads")
        if os.fstatvfs(folder).f_flag & os.ST_RDONLY:
            raise Refused(f"{shown} is in a read-only file system")
        if not os.access(f"/proc/self/fd/{folder}", os.W_OK | os.X_OK):
            raise Refused(f"this process may not write to {shown}")

    def rollback(self) -> None:
        """Remove what is staged, unless a manifest names it."""
        if self._begun:
            sweep(self.place, self.staging)


class FolderWork(PlaceWork):
    """The folders of one transaction in one place."""

    def __init__(self, place: Place, gtrid: str) -> None:
        super().__init__(place, gtrid)
        self.folders: list[tuple[StagedFolder, bool]] = []

    @property
    def shown(self) -> str:
        return self.folders[0][0].name if self.folders else ""

    def folder(self, name: str, *, overwrite: bool) -> StagedFolder:
        """A new folder, which is published under this name below the place."""
        self.require_active()
        if not is_name(name):
            raise ProgrammingError(
                f"{self.place.name}: {name!r} is no name of a folder below it: write orders/2026-11-27, or the like. "
                "Nothing was done"
            )
        parts = name.split("/")
        with self._lock, self.place.open() as hidden:
            taken = [each.name for each, _ in self.folders if overlap(each.name, name)]
            if taken:
                raise ProgrammingError(
                    f"{self.place.name}: {self.gtrid} writes {taken[0]} already, and {name} is that, or above or below "
                    "it: write both into one folder. The transaction is as it was"
                )
            try:
                self._require_free(hidden, parts, overwrite=overwrite)
            except Refused as refusal:
                raise ProgrammingError(f"{self.place.name}: {refusal}. The transaction is as it was") from None
            number = str(len(self.folders))
            try:
                self._stage(number, hidden)
            except OSError as error:
                raise OperationalError(
                    f"{self.place.name}: {name} cannot be staged in {self.place.path}: {described(error)}. No such "
                    "folder is in the transaction"
                ) from error
            found = StagedFolder(self, name, self.place.path / HIDDEN / "staged" / self.staging / number)
            self.folders.append((found, overwrite))
            return found

    def _stage(self, number: str, hidden: Hidden) -> None:
        if not self.folders:
            self.begin_staging(hidden)
        with opened(self.staging, hidden.staged) as staging:
            self.place.require_renames(staging)
            make_folder(number, staging)

    def manifest(self, xid: str) -> Manifest:
        still = written_to(os.path.realpath(self.place.path / HIDDEN / "staged" / self.staging))
        if still:
            raise Refused(f"{still[0]} is still open, and what it holds back would be lost: close it before the commit")
        return Manifest(xid, self.staging, tuple((each.name, overwrite) for each, overwrite in self.folders))

    def sync(self, manifest: Manifest, staging: int) -> None:
        for number, (folder, _) in enumerate(self.folders):
            with opened(str(number), staging) as staged:
                for each in (SUCCESS, f".{SUCCESS}.crc"):  # what Spark has written: ours comes last
                    with suppress(FileNotFoundError):
                        os.unlink(each, dir_fd=staged)
                if MARKER in os.listdir(staged):
                    raise Refused(f"the name {MARKER} in {folder.name} is txpool's own: give your file another one")
                write_file(MARKER, manifest.xid, staged)
                sync_tree(staged, folder.name)

    def require_publishable(self, hidden: Hidden) -> None:
        for other in self.place.manifests(hidden):
            self._require_apart(other)
        for folder, overwrite in self.folders:
            self._require_free(hidden, folder.name.split("/"), overwrite=overwrite)

    def _require_apart(self, other: Manifest) -> None:
        for name, _ in other.folders:
            for folder, _ in self.folders:
                if overlap(name, folder.name):
                    raise Refused(
                        f"another transaction, {other.xid}, is prepared to publish {name}, and {folder.name} is that, "
                        "or above or below it. Try again once that has ended: `txpool-recovery list` shows it"
                    )

    def _require_free(self, hidden: Hidden, parts: list[str], *, overwrite: bool) -> None:
        """`Refused` if the folder could not be published under this name: a commit cannot say no any more."""
        shown, at = "/".join(parts), 0
        try:
            while at < len(parts):  # the folders above that are there
                with descended(parts[:at], hidden.root) as above:
                    self.require_movable(above, hidden, "/".join([str(self.place.path), *parts[:at]]))
                    try:
                        found = os.stat(parts[at], dir_fd=above, follow_symlinks=False)
                    except FileNotFoundError:
                        return
                    if not stat.S_ISDIR(found.st_mode):
                        raise Refused(f"{'/'.join(parts[: at + 1])} is there, and is no folder (or a link): remove it")
                at += 1
            if not overwrite:
                raise Refused(f"the folder {shown} is there already: choose another name, or overwrite=True")
            with descended(parts, hidden.root) as target:
                self.require_movable(target, hidden, shown)
                require_no_place(target, shown)
        except OSError as error:
            raise Refused(f"{shown} cannot be published: {described(error)}") from error


def require_no_place(folder: int, shown: str) -> None:
    """`Refused` if another datasource's hidden folder is in a folder, which would go with it."""
    found = found_within(folder, {HIDDEN, MARKER})
    if found:
        raise Refused(f"{shown}/{found}, what another datasource has prepared, would go with {shown}: move it away")


def overlap(name: str, other: str) -> bool:
    """Whether one is the other, or above or below it."""
    return f"{name}/".startswith(f"{other}/") or f"{other}/".startswith(f"{name}/")


def sweep(place: Place, staging: str) -> None:
    """Remove what was staged under this name and is not prepared. OperationalError if a manifest names it."""
    with place.open() as hidden:
        swept = f"{staging}+swept"
        with place.changing(hidden):
            for manifest in place.manifests(hidden):
                if manifest.staging == staging:
                    raise OperationalError(f"{staging} is prepared as {manifest.xid}, and is not removed")
            with suppress(FileNotFoundError):  # in one step: whoever would still prepare it sees that
                remove_tree(swept, hidden.staged)
                os.rename(staging, swept, src_dir_fd=hidden.staged, dst_dir_fd=hidden.staged)
        if failpoints.armed:
            failpoints.hit("files.sweeping")
        remove_tree(swept, hidden.staged)
