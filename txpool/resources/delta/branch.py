"""How what is staged for Delta tables is published: files appear in the tables' folders, then a commit names them."""

from __future__ import annotations

import io
import logging
import os
from collections.abc import Callable, Iterable
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

from txpool import failpoints
from txpool.errors import DataError, NotSupportedError, OperationalError, described
from txpool.resources.base import BranchOutcome
from txpool.resources.delta.checkpoint import checkpoint, is_due
from txpool.resources.delta.table import (
    LOG,
    SOURCE,
    Append,
    NoTable,
    TableState,
    commit,
    decode_append,
    has_committed,
    load,
    path_of,
    staged_rows,
    sync_log,
    write_rows,
)
from txpool.resources.files.branch import KEPT, PlaceResource, forget, keep, kept_name, remove_staged
from txpool.resources.files.place import HIDDEN, Hidden, Manifest
from txpool.resources.files.tree import descended, opened, remove_tree, sync_file

logger = logging.getLogger("txpool")

#: How often a commit looks again that others are faster than.
_TRIES = 50
_PART = 1 << 20
#: Where rows are tried that were written for a table as it was.
_TRIAL = "trial"
_REMOVED = "what was staged was removed by somebody"


class DeltaResource(PlaceResource):
    """A folder of Delta tables."""

    def publish(self, xid: str) -> BranchOutcome | None:
        with self.place.open() as hidden, self.place.locked_manifest(xid, hidden, appends=True) as manifest:
            if manifest is None:
                os.fsync(hidden.prepared)  # whoever has ended it: it may have been killed before this
                return None
            appends = [decode_append(each) for each in manifest.appends]
            due: dict[str, int] = {}
            lost = {each.table: why for each in appends if (why := self._append(hidden, manifest, each, due))}
            for each in appends:
                if each.table in lost and not self.shows(each.table, xid):
                    self._unlink(hidden, manifest, each)
            if failpoints.armed:
                failpoints.hit("delta.published")
            if lost:
                keep(hidden, xid, manifest.staging)
            forget(hidden, xid)
            if not lost:
                for table, version in due.items():
                    self._checkpoint(hidden, manifest, table, version)
                remove_staged(hidden, manifest)
            for table, why in lost.items():
                logger.error(
                    "%s.%s: %s is decided, and its rows are not in the table: %s. They are in the files of "
                    "%s/%s/%s/%s: append them by hand, or remove them",
                    *(self.name, table, xid, why, self.place.path, HIDDEN, KEPT, kept_name(xid)),
                )
            return BranchOutcome.LOST if lost else BranchOutcome.COMMITTED

    def _append(self, hidden: Hidden, manifest: Manifest, append: Append, due: dict[str, int]) -> str:
        """Append the rows to one table, unless that was done; it is durable then. Why the table cannot take them.

        If the table asks for a checkpoint then, its version is put into `due`.
        """
        where, name = f"{self.name}.{append.table}", append.table.split("/")
        for _ in range(_TRIES):
            try:
                table, state = load(self.place.path / append.table, where)
            except NoTable:
                return "there is no such table any more"
            if has_committed(table, manifest.xid, where):
                with descended([*name, LOG], hidden.root) as log:
                    sync_log(log)
                return self._again_there(hidden, manifest, append)
            try:
                why = "" if state == append.state else self._why_not(hidden, manifest, append, state)
                if why:
                    return why
                self._link(hidden, manifest, append)
            except FileNotFoundError:
                if _missing(append.adds, lambda each: [manifest.staging, each[SOURCE]], hidden.staged):
                    return _REMOVED
                continue  # then a folder of the table is gone, as by a VACUUM that has found it empty
            if failpoints.armed:
                failpoints.hit("delta.linked")
            with descended([*name, LOG], hidden.root) as log, opened(manifest.staging, hidden.staged) as staging:
                sync_log(log)  # first: an entry without those before it could not be read
                version = table.version() + 1
                made = commit(version, append, manifest.xid, staging, log)
                if failpoints.armed:
                    failpoints.hit("delta.appended")
                if made:
                    sync_log(log, version)
                    if is_due(version, state):
                        due[append.table] = version
                    return self._again_there(hidden, manifest, append)
        raise OperationalError(f"{where} was changed by others whenever {manifest.xid} was to be appended")

    def _checkpoint(self, hidden: Hidden, manifest: Manifest, name: str, version: int) -> None:
        """Make a table's checkpoint, after all else is done; or let a later commit make the next one."""
        where = f"{self.name}.{name}"
        try:
            with (
                opened(manifest.staging, hidden.staged) as staging,
                descended([*name.split("/"), LOG], hidden.root) as log,
            ):
                checkpoint(version, self.place.path / name, log, self._staged(manifest), staging, where=where)
        except Exception:
            logger.warning("%s: there is no checkpoint of version %d", where, version, exc_info=True)

    def _again_there(self, hidden: Hidden, manifest: Manifest, append: Append) -> str:
        """Give back what the table's log names, and somebody had removed before it did. Why that cannot be."""
        gone = _missing(append.adds, lambda _: append.table.split("/"), hidden.root)
        if gone:
            table, _ = load(self.place.path / append.table, f"{self.name}.{append.table}")
            named = {each.rpartition("/")[2] for each in table.file_uris()}
            gone = [each for each in gone if path_of(each).rpartition("/")[2] in named]
        if gone:
            try:
                self._link(hidden, manifest, append._replace(adds=gone))
            except FileNotFoundError:
                return _REMOVED
        return ""

    def _why_not(self, hidden: Hidden, manifest: Manifest, append: Append, state: TableState) -> str:
        """Why rows that were staged for a table as it was are none for it as it is; empty if it takes them."""
        why = state.why_not(append.state)
        if why:
            return why
        where = f"{self.name}.{append.table}"
        staged = self._staged(manifest)
        with opened(manifest.staging, hidden.staged) as folder:
            remove_tree(_TRIAL, folder)
            try:
                state.require_writable(where)
                schema = state.arrow(where)
                for source in sorted({each[SOURCE] for each in append.adds}):
                    rows = staged_rows(staged / source, schema, where)
                    (staged / _TRIAL / source).mkdir(parents=True)
                    write_rows(staged / _TRIAL / source, state, rows.to_batches(), schema, where)
            except (DataError, NotSupportedError, ValueError) as error:  # also Arrow's
                return f"it was changed since, and does not take them: {described(error)}"
            finally:
                remove_tree(_TRIAL, folder)
        return ""

    def _staged(self, manifest: Manifest) -> Path:
        return self.place.path / HIDDEN / "staged" / manifest.staging

    def _link(self, hidden: Hidden, manifest: Manifest, append: Append) -> None:
        """Give the files their names in the table's folder, durably. FileNotFoundError if one is not staged."""
        folders = set()
        with (
            descended(append.table.split("/"), hidden.root) as table,
            opened(manifest.staging, hidden.staged) as staging,
        ):
            for each in append.adds:
                *above, name = path_of(each).split("/")
                with descended([each[SOURCE], *above], staging) as source:
                    os.utime(name, dir_fd=source, follow_symlinks=False)  # a VACUUM removes what is old
                    with descended(above, table, make=True) as target:
                        try:
                            os.link(name, name, src_dir_fd=source, dst_dir_fd=target, follow_symlinks=False)
                        except FileExistsError:
                            sync_file(name, target)  # it may be a copy, of a restore
                            if not _same(name, source, target):
                                raise OperationalError(
                                    f"{self.name}.{append.table}: {each['path']} is somebody else's, and is left as it "
                                    "is: move it away, and recovery appends what is decided"
                                ) from None
                        folders.add("/".join(above))
            for folder in sorted(folders):
                with descended(folder.split("/") if folder else [], table) as target:
                    os.fsync(target)

    def withdraw(self, xid: str) -> BranchOutcome | None:
        with self.place.open() as hidden, self.place.locked_manifest(xid, hidden, appends=True) as manifest:
            if manifest is None:
                os.fsync(hidden.prepared)
                return None
            for append in map(decode_append, manifest.appends):
                if self.shows(append.table, xid):
                    raise OperationalError(
                        f"the publication of {xid} has begun, with {append.table}: it can only be committed"
                    )
            for append in map(decode_append, manifest.appends):
                self._unlink(hidden, manifest, append)
            forget(hidden, xid)  # first: what is half removed must not be published
            remove_staged(hidden, manifest)
            return BranchOutcome.ROLLED_BACK

    def _unlink(self, hidden: Hidden, manifest: Manifest, append: Append) -> None:
        """Remove what a commit that went no further has left in the table's folder: the log does not name it."""
        for each in append.adds:
            *above, name = path_of(each).split("/")
            with (
                suppress(FileNotFoundError, NotADirectoryError),
                descended([manifest.staging, each[SOURCE], *above], hidden.staged) as source,
                descended([*append.table.split("/"), *above], hidden.root) as target,
            ):
                if _same(name, source, target):
                    os.unlink(name, dir_fd=target)

    def shows(self, name: str, xid: str) -> bool:
        where = f"{self.name}.{name}"
        try:
            table, _ = load(self.place.path / name, where)
        except NoTable:
            return False
        if not has_committed(table, xid, where):
            return False
        with self.place.open() as hidden, descended([*name.split("/"), LOG], hidden.root) as log:
            sync_log(log)
        return True


def _missing(
    adds: Iterable[dict[str, Any]], folder: Callable[[dict[str, Any]], list[str]], within: int
) -> list[dict[str, Any]]:
    """Those of these files that are not there, each below its folder."""
    missing = []
    for each in adds:
        *above, name = path_of(each).split("/")
        try:
            with descended([*folder(each), *above], within) as found:
                os.stat(name, dir_fd=found, follow_symlinks=False)
        except FileNotFoundError:
            missing.append(each)
    return missing


def _same(name: str, source: int, target: int) -> bool:
    """Whether the two are one file, or a restore has made two of one."""
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    with ExitStack() as stack:
        files = [stack.enter_context(io.FileIO(os.open(name, flags, dir_fd=each))) for each in (source, target)]
        ours, there = (os.fstat(each.fileno()) for each in files)
        if os.path.samestat(ours, there) or ours.st_size != there.st_size:
            return os.path.samestat(ours, there)
        return all(each == files[1].read(_PART) for each in iter(lambda: files[0].read(_PART), b""))
