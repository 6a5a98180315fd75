"""The hidden folder `.txpool` of a place: what is staged, the manifests of what is prepared, and their locks.

    .txpool/identity, .txpool/generation    as `txpool.process.durable` has them
    .txpool/staged/<gtrid>+<random>/<n>     the n-th folder of a transaction: the journal of what is not published
    .txpool/staged/…/manifest               the manifest's draft, until it has its name
    .txpool/prepared/<xid>                  the manifest, which is the yes: it says what is published where
    .txpool/lock                            held while a manifest is made

A name in it is a claim. It counts only if the folder's owner, a configured one or root owns it.
"""

from __future__ import annotations

import fcntl
import io
import json
import os
import pwd
import re
import stat
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple

from txpool.errors import OperationalError, described
from txpool.process.durable import generation_in, identity_within
from txpool.process.locked_files import LockedFile, open_to_lock, unlock
from txpool.resources.files.tree import give_to_owner, make_folder, opened, sync_file, why_no_renames, write_file

HIDDEN: Final = ".txpool"
#: How long another process's step in the same place is waited for, in seconds.
WAIT: Final = 30.0
_PAUSE: Final = 0.01
_STAGING = re.compile(r"[A-Za-z0-9_.+-]{1,200}")
_DRAFT = "manifest"
#: Of a manifest that publishes folders, and of one that appends to tables.
_FORMATS: Final = (1, 2)


class Manifest(NamedTuple):
    """What a prepared branch publishes: its n-th staged folder under the n-th name, and whether that may be there."""

    xid: str
    staging: str
    folders: tuple[tuple[str, bool], ...] = ()
    #: What it appends to the Delta tables of the place, as `txpool.resources.delta` has it.
    appends: tuple[Any, ...] = ()

    def encode(self) -> str:
        return json.dumps({"format": _FORMATS[bool(self.appends)], **self._asdict()})


def decode(xid: str, content: bytes) -> Manifest:
    """OperationalError if it is damaged, of a later version, or another branch's."""
    try:
        found = json.loads(content)
        folders = tuple((str(target), bool(overwrite)) for target, overwrite in found["folders"])
        if (
            found["format"] in _FORMATS
            and found["xid"] == xid
            and _STAGING.fullmatch(found["staging"])
            and all(is_name(target) for target, _ in folders)
        ):
            return Manifest(xid, found["staging"], folders, tuple(found.get("appends", ())))
    except (KeyError, TypeError, ValueError) as error:
        raise OperationalError(f"the manifest {xid} is damaged: {described(error)}") from error
    raise OperationalError(f"the manifest {xid} is a later txpool's, or was written for another branch")


def named(target: Any) -> Any:
    """What a path says, or the same: a name is a path, too."""
    return os.fspath(target) if isinstance(target, os.PathLike) else target


def leads_below(target: Any) -> bool:
    """Whether it leads below where it begins, by slashes, and to nothing that is hidden there."""
    return isinstance(target, str) and not {"", ".", "..", HIDDEN} & {*target.split("/")}


def is_name(target: Any) -> bool:
    """Whether it is the name of a folder below the place, with slashes."""
    return leads_below(target) and target.isprintable()


@dataclass(frozen=True, slots=True)
class Hidden:
    """The place's folders, open: whoever renames one meanwhile leads no step elsewhere. And whose files count there."""

    root: int
    at: int
    prepared: int
    staged: int
    owners: frozenset[int]


class Place:
    """One folder in which a datasource publishes. Thread-safe."""

    def __init__(self, name: str, path: str, owners: tuple[str, ...] = ()) -> None:
        self.name = name
        self.path = Path(path)
        self.owners = owners
        self._proven = False

    # -- whose it is ----------------------------------------------------------------------------------------------

    @contextmanager
    def open(self) -> Iterator[Hidden]:
        """Its folders, which are made if they are not there. OperationalError if somebody else may have made them."""
        with ExitStack() as stack:
            try:
                found = self._open(stack)
            except FileNotFoundError as error:
                raise OperationalError(f"{self.name}: the folder {self.path} is not there. Is it mounted?") from error
            except OSError as error:
                raise OperationalError(
                    f"{self.name}: {self.path} cannot be used: {described(error)}. Nothing was done"
                ) from error
            yield found

    def _open(self, stack: ExitStack) -> Hidden:
        root = stack.enter_context(opened(str(self.path.resolve(strict=True))))
        owner = os.fstat(root).st_uid
        owners = self.trusted(owner)
        if os.geteuid() not in owners and HIDDEN not in os.listdir(root):  # it would keep the owner out
            raise OperationalError(
                f"{self.name}: this process is user {os.geteuid()}'s, and {self.path} is user {owner}'s, so that what "
                "it prepared there would prove nothing. Nothing was done. Let the folder's owner run this, or write "
                "prepared.owners = the other user"
            )
        self._make(HIDDEN, root)
        if not stat.S_ISDIR(os.stat(HIDDEN, dir_fd=root, follow_symlinks=False).st_mode):
            raise OperationalError(f"{self.name}: {self.path}/{HIDDEN} is no folder, or a link to one: remove it")
        hidden = stack.enter_context(opened(HIDDEN, root))
        self._require_ours(hidden, owners)
        for name in ("prepared", "staged"):
            self._make(name, hidden)
        prepared = stack.enter_context(opened("prepared", hidden))
        staged = stack.enter_context(opened("staged", hidden))
        self._require_ours(prepared, owners)
        self._require_ours(staged, owners)
        return Hidden(root, hidden, prepared, staged, owners)

    def _make(self, name: str, within: int) -> None:
        with suppress(FileExistsError):
            make_folder(name, within, 0o700)
            os.fsync(within)

    def trusted(self, owner: int) -> frozenset[int]:
        """The numbers of the users whose manifests count, if this one owns the folder."""
        found = {0, owner}
        for each in self.owners:
            with suppress(KeyError):
                found.add(int(each) if each.isdecimal() else pwd.getpwnam(each).pw_uid)
        return frozenset(found)

    def _require_ours(self, descriptor: int, owners: frozenset[int]) -> None:
        found = os.fstat(descriptor)
        if found.st_uid not in owners:
            raise OperationalError(
                f"{self.name}: {self.path}/{HIDDEN} is user {found.st_uid}'s, and {self.path} is not, so that what is "
                "prepared there proves nothing. Nothing was done. Let the folder's owner run this, or write "
                "prepared.owners = that user"
            )
        if found.st_mode & 0o022:
            raise OperationalError(
                f"{self.name}: others may write to {self.path}/{HIDDEN}, and could forge what is prepared there. "
                f"Nothing was done: chmod -R go-w {self.path}/{HIDDEN}"
            )

    def owner(self) -> int:
        """The number of the user whose the hidden folder is, and with it what is staged."""
        with self.open() as hidden:
            return os.fstat(hidden.at).st_uid

    def identity(self) -> str:
        with self.open() as hidden:
            file = _path(hidden.at) / "identity"
            if not file.exists():
                os.fsync(hidden.root)  # first: whoever finds the identity relies on the folder
            return identity_within(file)

    def generation(self) -> str:
        with self.open() as hidden:
            return generation_in(_path(hidden.at) / "generation")

    def require_renames(self, within: int) -> None:
        """OperationalError if the file system cannot publish a folder in one step."""
        if not self._proven:
            missing = why_no_renames(within)
            if missing:
                raise OperationalError(
                    f"{self.name}: the file system of {self.path} cannot publish a folder: {missing}"
                )
            self._proven = True

    # -- manifests ------------------------------------------------------------------------------------------------

    def listed(self, hidden: Hidden) -> list[tuple[str, bool]]:
        """The names of the manifests, and whether each one's owner is ours."""
        found = []
        with os.scandir(hidden.prepared) as entries:
            for entry in entries:
                with suppress(FileNotFoundError):  # it has ended since
                    status = entry.stat(follow_symlinks=False)
                    found.append((entry.name, stat.S_ISREG(status.st_mode) and status.st_uid in hidden.owners))
        return sorted(found)

    def manifests(self, hidden: Hidden) -> Iterator[Manifest]:
        """Those that are ours, and can be read."""
        for xid, ours in self.listed(hidden):
            if ours:
                with suppress(FileNotFoundError), open_to_lock(xid, within=hidden.prepared) as file:
                    yield decode(xid, file.readall())

    def draft(self, manifest: Manifest, staging: int) -> None:
        """Write it, durably, to where it means nothing yet."""
        write_file(_DRAFT, manifest.encode(), staging)
        sync_file(_DRAFT, staging)

    def add(self, manifest: Manifest, staging: int, hidden: Hidden) -> None:
        """Give it its name, durably: from then on the branch is prepared. FileExistsError if the name is taken."""
        os.link(_DRAFT, manifest.xid, src_dir_fd=staging, dst_dir_fd=hidden.prepared)  # a rename would replace
        os.fsync(hidden.prepared)

    @contextmanager
    def changing(self, hidden: Hidden) -> Iterator[None]:
        """Nobody else makes a manifest, or sweeps what is staged, within the block."""
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        with suppress(FileExistsError), io.FileIO(os.open("lock", flags, 0o600, dir_fd=hidden.at)) as made:
            give_to_owner(made.fileno(), hidden.at)
        with open_to_lock("lock", within=hidden.at) as lock, _locked(lock, f"{self.name}: {self.path}/{HIDDEN}/lock"):
            yield

    @contextmanager
    def locked_manifest(self, xid: str, hidden: Hidden, *, appends: bool = False) -> Iterator[Manifest | None]:
        """The manifest, locked until its branch has ended; None if there is none. OperationalError if it is not ours.

        `appends` says whether it is to append to tables: whoever publishes folders would take that for nothing. Two who
        had both looked would otherwise both exchange, and the old folder would be back.
        """
        try:
            held = open_to_lock(xid, within=hidden.prepared)
        except FileNotFoundError:
            yield None
            return
        with held as file, _locked(file, f"{self.name}: the manifest {xid}"):
            status = os.fstat(file.fileno())
            if not _names(xid, hidden.prepared, status):
                yield None  # another has ended it
                return
            if status.st_uid not in hidden.owners:
                raise OperationalError(
                    f"the manifest {xid} is user {status.st_uid}'s, who may have forged it: it is left as it is"
                )
            manifest = decode(xid, file.readall())
            if manifest.folders if appends else manifest.appends:  # one of neither is of work that came to nothing
                wanted, has = ("files", "delta") if appends else ("delta", "files")
                raise OperationalError(
                    f"{xid} was prepared by driver = {wanted}, and {self.name} has driver = {has} now: write that one "
                    "again until recovery has ended it. Nothing was done"
                )
            yield manifest


def _path(folder: int) -> Path:
    """An open folder, for what takes a path."""
    return Path(f"/proc/self/fd/{folder}")


def _names(name: str, within: int, status: os.stat_result) -> bool:
    """Whether this file still has this name."""
    with suppress(FileNotFoundError):
        return os.path.samestat(os.stat(name, dir_fd=within, follow_symlinks=False), status)
    return False


@contextmanager
def _locked(file: LockedFile, shown: str) -> Iterator[None]:
    try:
        _take(file, shown)
        yield
    finally:
        unlock(file)


def _take(file: LockedFile, shown: str) -> None:
    deadline = time.monotonic() + WAIT
    while True:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            if time.monotonic() >= deadline:
                raise OperationalError(f"{shown} has been held by another process for {WAIT:g} s") from None
            time.sleep(_PAUSE)
