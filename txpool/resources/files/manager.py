"""The resource manager of folders of files: `driver = files`."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator, Sequence
from contextlib import suppress
from itertools import islice
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from txpool.errors import described
from txpool.findings.finding import Finding, failure, ok, warning
from txpool.resources.files.branch import FolderResource, PlaceBranch, PlaceRecovery, PlaceResource, StagedInPlace
from txpool.resources.files.place import HIDDEN, Place
from txpool.resources.files.tree import mount_of, why_no_renames
from txpool.resources.files.work import FolderWork, PlaceWork
from txpool.resources.manager import ResourceManager

if TYPE_CHECKING:
    from txpool.config.settings import DataSourceSettings
    from txpool.datasource.source import Source
    from txpool.resources.base import BegunBy
    from txpool.resources.recovery_access import PreparedBranch

logger = logging.getLogger("txpool")

_made: WeakKeyDictionary[Any, PlaceResource] = WeakKeyDictionary()


class Places(ResourceManager):
    """What is published in a folder of a local or mounted file system, on Linux."""

    resource: type[PlaceResource]
    work: type[PlaceWork]

    def check(self, settings: DataSourceSettings) -> None:
        if settings.folder is None:
            folder = self.url_example.removeprefix(self.schemes[0])
            raise settings.properties.error("folder", f"is missing: write folder = {folder}")

    def begin(self, source: Source, transaction: BegunBy, timeout: float | None) -> tuple[PlaceWork, PlaceBranch]:
        found = _made.get(source)
        if found is None:
            found = _made.setdefault(source, self._resource(source.settings))
            _warn_of_another_owner(found.place)
        work = self.work(found.place, transaction.gtrid)
        return work, PlaceBranch(found, work, transaction.gtrid)

    def _resource(self, settings: DataSourceSettings) -> PlaceResource:
        return self.resource(self._place(settings), settings.file)

    def _place(self, settings: DataSourceSettings) -> Place:
        return Place(settings.name, str(settings.folder), settings.prepared_owners)

    def branch_recovery(self, settings: DataSourceSettings, *, recovery: bool = True) -> PlaceRecovery:
        return PlaceRecovery(self._resource(settings))

    def staging(self, settings: DataSourceSettings, *, lock_timeout: float) -> StagedInPlace:
        return StagedInPlace(self._place(settings))


def _warn_of_another_owner(place: Place) -> None:
    owner = place.owner()
    if owner != os.geteuid():
        logger.warning(
            "%s: this process is user %s's, and %s is user %s's, whose recovery cannot remove all that a crash leaves "
            "before a PREPARE: let that user work there, or root run recovery, too",
            *(place.name, os.geteuid(), place.path, owner),
        )


def _of_others(place: Place) -> Iterator[tuple[str, int]]:
    """What is staged and is not the hidden folder's owner's, who can neither publish nor remove it; and whose it is."""
    owner = place.owner()
    for folder, folders, files in os.walk(place.path / HIDDEN / "staged"):
        for name in (*folders, *files):
            with suppress(FileNotFoundError):
                found = os.lstat(os.path.join(folder, name)).st_uid
                if found != owner:
                    yield os.path.join(folder, name), found


def of_place(name: str, place: Place, branches: Sequence[PreparedBranch]) -> Iterator[Finding]:
    """What every place is asked: who it is, what is prepared and staged there, and who may write."""
    staged = len(StagedInPlace(place).tables())
    yield ok(
        "connection",
        f"{name} is {place.path}, with the identity {place.identity()}; {len(branches)} branches are prepared "
        f"there, and {staged} transactions stage",
    )
    foreign = [each for each in branches if each.roles is not None]
    if foreign:
        yield warning(
            "owners",
            f"{len(foreign)} manifests in {place.path} are of users who are not ours",
            "whoever made them may have made up their names: they are listed, and never ended",
            "remove them, or write their user into prepared.owners",
        )
    for path, user in islice(_of_others(place), 1):
        yield warning(
            "owners",
            f"{path} is user {user}'s, and what is staged in {place.path} user {place.owner()}'s",
            "that user's recovery can neither publish nor remove it; of a transaction that goes on it is theirs from "
            "the PREPARE on",
            f"once that has ended: chown -hR {place.owner()} {place.path}/{HIDDEN}/staged. Let the folder's "
            "owner work there",
        )
    if os.stat(place.path).st_mode & 0o002:
        yield warning(
            "owners",
            f"everybody may write to {place.path}",
            "anybody can take a name away, or put a folder in its place",
            f"chmod o-w {place.path}",
        )


class Files(Places):
    """Folders of files."""

    driver = "files"
    database = "a folder of files"
    schemes = ("files:",)
    url_example = "files:/srv/exports"
    publishes_folders = True
    instead_of_connecting = "it is a folder, and txpool.folder() writes there"
    resource = FolderResource
    work = FolderWork

    def workload(self, source: Source) -> Any:
        from txpool.resources.files.workload import KitFolders

        return KitFolders(str(source.settings.folder))

    def findings(self, settings: DataSourceSettings, *, stale_after: float, timeout: float | None) -> Iterator[Finding]:
        place = self._place(settings)
        try:
            found = [*of_place(settings.name, place, self.branch_recovery(settings).recover())]
            with place.open() as hidden:
                with place.changing(hidden):
                    missing = why_no_renames(hidden.staged)
                apart = mount_of(hidden.root) != mount_of(hidden.staged)
        except Exception as error:
            yield failure("connection", f"{settings.name}: {place.path} cannot be used: {described(error)}")
            return
        yield from found
        why = "a folder is published by one rename, which a reader sees whole or not at all"
        if missing or apart:
            lacks = missing or f"{place.path}/.txpool is another file system"
            do = "name a folder in ext4, xfs or btrfs; of NFS and FUSE few can do it"
            yield failure("renames", f"{place.path} cannot publish a folder: {lacks}", why, do)
        else:
            yield ok("renames", f"{place.path} renames and exchanges folders in one step, and syncs them")


MANAGER = Files()
