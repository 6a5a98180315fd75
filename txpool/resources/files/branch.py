"""The branch of a transaction in a place of files, and recovery's access to it."""

from __future__ import annotations

import errno
import logging
import os
from abc import abstractmethod
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

from txpool import failpoints
from txpool.errors import OperationalError, described
from txpool.resources.base import BranchOutcome, BranchRecord, Refused
from txpool.resources.files.place import HIDDEN, Hidden, Manifest, Place
from txpool.resources.files.tree import descended, exchange, make_folder, move_new, opened, read_file, remove_tree
from txpool.resources.files.work import MARKER, SUCCESS, PlaceWork, gtrid_of, require_no_place, sweep
from txpool.resources.own.branch import ResourceBranch, ResourceRecovery, leads_elsewhere
from txpool.resources.own.resource import Resource
from txpool.resources.recovery_access import PreparedBranch, StagingTable
from txpool.xid import parse

logger = logging.getLogger("txpool")

_GENERATION = "generation"
_FOLDER = "folder"
#: What is decided, and cannot be published: a folder for each branch.
KEPT = "unpublished"


class PlaceResource(Resource):
    """A place, as the protocol of branches needs it."""

    def __init__(self, place: Place, file: str) -> None:
        super().__init__(place.name)
        self.place = place
        self.file = file

    def identity(self) -> str:
        return self.place.identity()

    def generation(self) -> str:
        return self.place.generation()

    def begin(self) -> PlaceWork:
        raise NotImplementedError("its work begins with a gtrid")

    @abstractmethod
    def publish(self, xid: str) -> BranchOutcome | None:
        """Publish what is prepared under this name. LOST if a part is neither staged nor published; None: no manifest.

        Errors: OSError, OperationalError.
        """

    @abstractmethod
    def withdraw(self, xid: str) -> BranchOutcome | None:
        """Roll back what is prepared under this name; None: no manifest.

        OSError; OperationalError if its publication has begun.
        """

    @abstractmethod
    def shows(self, name: str, xid: str) -> bool:
        """Whether what is published under a name says that the branch has committed. OSError, OperationalError."""

    def prepared(self) -> list[str]:
        with self.place.open() as hidden:
            return [xid for xid, _ in self.place.listed(hidden)]

    def commit(self, xid: str) -> bool:
        return self.publish(xid) is BranchOutcome.COMMITTED

    def rollback(self, xid: str) -> bool:
        return self.withdraw(xid) is BranchOutcome.ROLLED_BACK


class FolderResource(PlaceResource):
    """A place in which folders are published."""

    def publish(self, xid: str) -> BranchOutcome | None:
        return publish(self.place, xid)

    def withdraw(self, xid: str) -> BranchOutcome | None:
        return withdraw(self.place, xid)

    def shows(self, name: str, xid: str) -> bool:
        *above, last = name.split("/")
        try:
            with self.place.open() as hidden, descended(above, hidden.root) as parent:
                return _is_published(hidden, parent, last, xid)
        except (FileNotFoundError, NotADirectoryError):
            return False


def publish(place: Place, xid: str) -> BranchOutcome | None:
    """Publish what is prepared under this name. LOST if a folder is neither staged nor published; None: no manifest."""
    with place.open() as hidden, place.locked_manifest(xid, hidden) as manifest:
        if manifest is None:
            os.fsync(hidden.prepared)  # whoever has ended it: it may have been killed before this
            return None
        lost = [name for name in _published(place, hidden, manifest) if name]
        for name, _ in manifest.folders:
            if name not in lost:
                _succeed(hidden, name, xid)
        if failpoints.armed:
            failpoints.hit("files.succeeded")
        remove_staged(hidden, manifest)  # of an exchange, the former folder
        if lost:
            keep(hidden, xid)
            logger.error(
                "%s: %s is decided, and was removed by somebody: %s. That %s/%s/%s/%s is there says so: remove it if "
                "you have seen to that",
                *(place.name, xid, ", ".join(lost), place.path, HIDDEN, KEPT, kept_name(xid)),
            )
        forget(hidden, xid)
        return BranchOutcome.LOST if lost else BranchOutcome.COMMITTED


def _published(place: Place, hidden: Hidden, manifest: Manifest) -> list[str]:
    """Publish each folder; the names of those that are gone."""
    lost = []
    for number, (name, overwrite) in enumerate(manifest.folders):
        *above, last = name.split("/")
        with descended(above, hidden.root, make=True) as parent:
            if _is_staged(hidden, manifest, number):
                try:
                    _move(manifest, number, hidden, last, parent, overwrite=overwrite)
                except FileExistsError as error:
                    raise OperationalError(
                        f"{place.path}/{name} was made by somebody since {manifest.xid} was prepared, and is left as "
                        "it is: move it away, and recovery publishes what is decided"
                    ) from error
                except Refused as error:
                    raise OperationalError(f"{place.path}/{error}, and recovery publishes what is decided") from error
                except OSError as error:
                    if error.errno != errno.EXDEV:
                        raise
                    raise OperationalError(
                        f"{place.path}/{name} has become another file system since {manifest.xid} was prepared, and no "
                        "rename leads there: unmount it, and recovery publishes what is decided"
                    ) from error
                if failpoints.armed:
                    failpoints.hit("files.published")
            elif _is_published(hidden, parent, last, manifest.xid):
                os.fsync(parent)  # another has moved it, who may have been killed before this
            else:
                lost.append(name)
    return lost


def _is_staged(hidden: Hidden, manifest: Manifest, number: int) -> bool:
    """Whether the n-th folder of the branch is still where it was staged. After an exchange another is there."""
    try:
        with opened(manifest.staging, hidden.staged) as staging, opened(str(number), staging) as staged:
            return read_file(MARKER, staged, hidden.owners) == manifest.xid
    except (FileNotFoundError, NotADirectoryError):
        return False


def _move(manifest: Manifest, number: int, hidden: Hidden, target: str, parent: int, *, overwrite: bool) -> None:
    with opened(manifest.staging, hidden.staged) as staging:
        while True:
            try:
                move_new(str(number), staging, target, parent)
                break
            except FileExistsError:
                if not overwrite:
                    raise
            try:
                with opened(target, parent) as former:  # a folder, and no link
                    require_no_place(former, manifest.folders[number][0])
                    exchange(str(number), staging, target, parent)
                break
            except FileNotFoundError:
                continue  # somebody has removed it since
        os.fsync(parent)  # first: what has moved is nowhere, if this is lost and the other is not
        os.fsync(staging)


def _is_published(hidden: Hidden, parent: int, name: str, xid: str) -> bool:
    """Whether the folder says so, in a file that is ours: whoever may write here can say anything."""
    with suppress(FileNotFoundError, NotADirectoryError), opened(name, parent) as target:
        return xid in (read_file(MARKER, target, hidden.owners), read_file(SUCCESS, target, hidden.owners))
    return False


def _succeed(hidden: Hidden, name: str, xid: str) -> None:
    """All folders are published: say so in this one. Nothing if it was overwritten, or removed, since."""
    with suppress(FileNotFoundError, NotADirectoryError), descended(name.split("/"), hidden.root) as target:
        if read_file(MARKER, target, hidden.owners) == xid:
            os.rename(MARKER, SUCCESS, src_dir_fd=target, dst_dir_fd=target)
        os.fsync(target)


def withdraw(place: Place, xid: str) -> BranchOutcome | None:
    """Roll back what is prepared under this name; None: no manifest. OperationalError if its publication has begun."""
    with place.open() as hidden, place.locked_manifest(xid, hidden) as manifest:
        if manifest is None:
            os.fsync(hidden.prepared)
            return None
        for number, (name, _) in enumerate(manifest.folders):
            if _is_staged(hidden, manifest, number):
                continue  # whatever somebody has put there
            *above, last = name.split("/")
            with suppress(FileNotFoundError, NotADirectoryError), descended(above, hidden.root) as parent:
                if _is_published(hidden, parent, last, xid):
                    raise OperationalError(f"the publication of {xid} has begun, with {name}: it can only be committed")
        forget(hidden, xid)  # first: what is half removed must not be published
        remove_staged(hidden, manifest)
        return BranchOutcome.ROLLED_BACK


def forget(hidden: Hidden, xid: str) -> None:
    """Remove the manifest of a branch that has ended, durably."""
    os.unlink(xid, dir_fd=hidden.prepared)
    os.fsync(hidden.prepared)


def remove_staged(hidden: Hidden, manifest: Manifest) -> None:
    """Remove what a branch has staged, or leave it to a sweep."""
    try:
        remove_tree(manifest.staging, hidden.staged)
    except OSError as error:  # recovery sweeps it, and says why it cannot
        logger.warning("%s: %s cannot be removed yet: %s", manifest.xid, manifest.staging, described(error))


def kept_name(xid: str) -> str:
    """What a branch's folder is called that says that a part of it is lost. Hadoop's paths have no colons."""
    return xid.replace(":", "+")


def keep(hidden: Hidden, xid: str, staging: str = "") -> None:
    """Say, durably, that a part of a branch is lost: whoever finds it may be killed before anybody was told.

    What is staged under a name is put there, out of the way of sweeps.
    """
    with suppress(FileExistsError):
        make_folder(KEPT, hidden.at, 0o700)
    name = kept_name(xid)
    with opened(KEPT, hidden.at) as kept:
        if staging:
            with suppress(FileNotFoundError):  # somebody has removed it, or the last try has moved it
                os.rename(staging, name, src_dir_fd=hidden.staged, dst_dir_fd=kept)
        with suppress(FileExistsError):
            make_folder(name, kept, 0o700)
        os.fsync(kept)
    os.fsync(hidden.at)


def _is_kept(hidden: Hidden, xid: str) -> bool:
    with suppress(FileNotFoundError):
        os.stat(f"{KEPT}/{kept_name(xid)}", dir_fd=hidden.at, follow_symlinks=False)
        return True
    return False


def _ended(resource: PlaceResource, record: BranchRecord) -> BranchOutcome:
    """How a branch has ended that has no manifest."""
    xid, name = record.xid.joined, record.evidence.get(_FOLDER, "")
    with resource.place.open() as hidden:
        lost = _is_kept(hidden, xid)
    if not lost and name and resource.shows(name, xid):
        return BranchOutcome.COMMITTED
    same = bool(record.identity) and record.evidence.get(_GENERATION) == resource.generation()
    return BranchOutcome.ABSENT if same and not lost else BranchOutcome.LOST


def end_branch(resource: PlaceResource, record: BranchRecord, *, commit: bool) -> tuple[BranchOutcome, str]:
    """End a prepared branch: its outcome, and the reason if that is UNKNOWN. Raises no Exception."""
    try:
        elsewhere = leads_elsewhere(resource, record)
        if elsewhere:
            return BranchOutcome.UNKNOWN, elsewhere
        xid = record.xid.joined
        ended = (resource.publish if commit else resource.withdraw)(xid)
        return (_ended(resource, record) if ended is None else ended), ""
    except OSError as error:
        done = "published" if commit else "removed"
        return BranchOutcome.UNKNOWN, (
            f"{described(error)} in {resource.place.path}: what is prepared there is not {done} yet, and stays until "
            "the file system allows it"
        )
    except Exception as error:
        return BranchOutcome.UNKNOWN, described(error)


class PlaceBranch(ResourceBranch):
    """The branch of a transaction in a place."""

    def __init__(self, resource: PlaceResource, work: PlaceWork, gtrid: str) -> None:
        super().__init__(resource, work, gtrid)
        self._place, self._staged = resource, work

    def start_prepare(self) -> None:
        super().start_prepare()
        evidence = dict(self.record.evidence)
        if self._staged.shown:
            evidence[_FOLDER] = self._staged.shown
        self.record = self.record._replace(evidence=evidence)

    def end_prepared(self, *, commit: bool) -> tuple[BranchOutcome, str]:
        return end_branch(self._place, self.record, commit=commit)


class PlaceRecovery(ResourceRecovery):
    """Recovery's access to the branches of a place. Thread-safe."""

    def __init__(self, resource: PlaceResource) -> None:
        super().__init__(resource)
        self._of = resource

    def recover(self) -> list[PreparedBranch]:
        place, found = self._of.place, []
        evidence = {_GENERATION: place.generation()}
        with place.open() as hidden:
            for name, ours in place.listed(hidden):
                xid = parse(name)
                if xid is not None:
                    found.append(PreparedBranch(xid, roles=None if ours else frozenset(), evidence=evidence))
        return found

    def end(self, record: BranchRecord, *, commit: bool) -> tuple[BranchOutcome, str]:
        return end_branch(self._of, record, commit=commit)


@dataclass(frozen=True, slots=True)
class StagedWork:
    """What one transaction has staged in a place."""

    gtrid: str
    name: str


class StagedInPlace:
    """Recovery's access to what crashes have left staged in a place."""

    def __init__(self, place: Place) -> None:
        self._place = place

    def tables(self) -> Sequence[StagedWork]:
        """What is staged and not prepared, of whatever transaction."""
        with self._place.open() as hidden:
            names = {each.removesuffix("+swept") for each in os.listdir(hidden.staged)}
            prepared = {each.staging for each in self._place.manifests(hidden)}
        found = [(gtrid_of(each), each) for each in sorted(names - prepared)]
        return [StagedWork(gtrid, name) for gtrid, name in found if gtrid]

    def drop(self, table: StagingTable) -> None:
        sweep(self._place, table.name)
