"""`txpool.folder()`: a folder that appears when the transaction commits."""

from __future__ import annotations

from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING

from txpool.datasource import Source, find_source
from txpool.errors import ConfigurationError, ProgrammingError
from txpool.resources.files.place import named
from txpool.resources.files.work import StagedFolder
from txpool.tm.ambient import current
from txpool.tm.rules.enlistment import require_log
from txpool.tm.subordinate import Subordinate

if TYPE_CHECKING:
    from txpool.tm.transaction import Transaction


def folder(target: str | Path | Source, name: str | PathLike[str], *, overwrite: bool = False) -> StagedFolder:
    """A new folder, empty, which appears under this name below the datasource's folder when the transaction commits.

    Write its files by `open()`, or by any library into `path`, and close them before the commit. If the transaction
    rolls back, they are removed. With `overwrite` the folder takes the place of one that is there, in one step. In an
    object store there is no `path`, objects appear one by one, and `overwrite` replaces those of the same names.
    Errors: ConfigurationError; ProgrammingError outside a transaction, without a decision log, and if the name is
    none or is taken; OperationalError if the file system cannot publish it so.
    """
    source = find_source(target)
    if not source.resource_manager.publishes_folders:
        raise ConfigurationError(
            f"datasource {source.name} is {source.resource_manager.database}, where no folders are published: name a "
            "file with driver = files, or s3"
        )
    ambient = enlisting(source, "folder()", "a folder appears", "write_files()")
    try:
        staged: StagedFolder = ambient.enlist_datasource(source).pooled.folder(named(name), overwrite=overwrite)
        return staged
    except BaseException as error:
        if not isinstance(error, Exception):  # it may have been made, and nobody knows of it
            ambient.set_rollback_only(error)
        raise


def enlisting(source: Source, call: str, happens: str, in_spark: str) -> Transaction:
    """The ambient transaction, which may enlist what `call` writes. ProgrammingError if it cannot."""
    ambient = current()
    if ambient is None:
        raise ProgrammingError(
            f"{call} in {source.name} outside a transaction, and nothing was done: {happens} when its "
            "transaction commits. Write `with txpool.transaction():` around it"
        )
    if isinstance(ambient, Subordinate):
        raise ProgrammingError(
            f"{source.name} cannot join {ambient.gtrid} in a Spark task. Call {call} on the driver, or {in_spark}"
        )
    require_log(ambient.gtrid, source.name, logged=ambient.log is not None)
    return ambient
