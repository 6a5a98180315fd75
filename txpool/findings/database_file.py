"""The findings about a database in a file, whatever its kind, and about its table of marks."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

from txpool.errors import ConfigurationError
from txpool.findings import storage
from txpool.findings.finding import Finding, failure, warning
from txpool.findings.marks import COLUMNS, CREATE, DECISIONS, missing_columns

if TYPE_CHECKING:
    from txpool.resources.driver.raw import RawConnection


def opened_findings(
    path: Path,
    connect: Callable[[], RawConnection],
    look: Callable[[RawConnection], Iterator[Finding]],
    unreadable: Callable[[Path, BaseException], Finding],
    *,
    error: type[Exception],
    marked: bool,
) -> Iterator[Finding]:
    """The findings about a file, and those of `look` at an open connection.

    `unreadable` tells why it cannot be opened, or of the driver's `error` in `look`. `marked` says that it is to have a
    table of marks. ConfigurationError as `connect` raises it.
    """
    missing = missing_file(path, marked=marked)
    if missing is not None:
        yield missing
        return
    yield from file_findings(path)
    try:
        raw = connect()
    except ConfigurationError:
        raise
    except Exception as reason:
        yield unreadable(path, reason)
        return
    with closing(raw):
        try:
            yield from look(raw)
        except error as reason:
            yield unreadable(path, reason)


def missing_file(path: Path, *, marked: bool) -> Finding | None:
    """The finding if there is no such file; `marked` says that it is to have a table of marks."""
    if path.is_file():
        return None
    if path.exists():
        return failure("connection", f"{path} is not a file", do="name a file in the url")
    if not path.parent.is_dir():
        return failure("connection", f"there is no folder {path.parent}", do=f"mkdir -p {path.parent}, or correct url")
    if marked:
        return failure("connection", f"{path} does not exist", "an empty database has no table of marks", CREATE)
    return warning(
        "connection",
        f"{path} does not exist",
        "the first connection would create it, empty",
        "correct url if it is a typo",
    )


def file_findings(path: Path) -> Iterator[Finding]:
    """Findings about a file that exists: where it is stored, and who may write it."""
    yield from storage.storage_findings("the database", path)
    if storage.others_may_write(path):
        yield warning(
            "permissions",
            f"everybody on this machine may write {path}",
            "a program that changes a mark changes the outcome of a transaction",
            f"chmod o-w {path}",
        )


def wrong_table(name: str, columns: Collection[str], *, keyed: Callable[[], bool]) -> Finding | None:
    """The finding if a table cannot hold marks: it has these columns, none if there is none.

    `keyed` says whether it has a unique key on xid alone.
    """
    if not columns:
        return failure("table", f"there is no table {name}", DECISIONS, CREATE)
    lacking = [column for column in COLUMNS if column not in columns]
    if lacking:
        return missing_columns(name, lacking, CREATE)
    if keyed():
        return None
    relation = name.rpartition(".")[2]
    return failure(
        "table",
        f"{name} has no unique key on xid alone",
        "it could hold a decision and recovery's abort record of the same transaction: one database would commit, "
        "and another roll back",
        f"CREATE UNIQUE INDEX {relation}_xid ON {relation} (xid);",
    )
