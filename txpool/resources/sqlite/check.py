"""The findings of `txpool check` about a datasource in SQLite. Nothing is created, and every write is rolled back."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

from txpool.config.settings import DataSourceSettings
from txpool.findings.database_file import opened_findings, wrong_table
from txpool.findings.finding import Finding, failure, ok, warning
from txpool.findings.marks import IS_MARK, mark_count
from txpool.resources.base import Role
from txpool.resources.sqlite.driver import SQLiteDriver

if TYPE_CHECKING:
    from txpool.resources.sqlite.driver import SQLiteRawConnection

_LEVELS = {0: "off", 1: "normal", 2: "full", 3: "extra"}


def findings(settings: DataSourceSettings) -> Iterator[Finding]:
    """As `ResourceManager.findings`, about the file that the url names."""
    path = Path(settings.url.removeprefix("sqlite:///"))
    return opened_findings(
        path,
        lambda: SQLiteDriver(settings, recovery=True).connect(),
        lambda raw: _opened(raw, path, settings),
        unreadable,
        error=sqlite3.Error,
        marked=Role(settings.mode) is Role.MARKED,
    )


def unreadable(path: Path, error: BaseException | None) -> Finding:
    """The finding about a file that SQLite cannot use, by SQLite's error."""
    code = getattr(error, "sqlite_errorcode", 0) & 0xFF
    if code in (sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_CORRUPT):
        return failure(
            "damage",
            f"{path} is damaged, or no SQLite database: {error}",
            "its decisions cannot be read, and must not be guessed: branches in other databases stay prepared",
            f"restore it from a backup, or save what is readable: sqlite3 {path} .recover",
        )
    if code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
        return warning(
            "lock",
            f"another connection holds the write lock of {path}: {error}",
            "SQLite has one writer at a time; a transaction that waits longer than driver.timeout (5 s) fails",
            f"find the process that has it open: fuser -v {path}",
        )
    if code in (sqlite3.SQLITE_READONLY, sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_PERM):
        return failure(
            "permissions",
            f"{path} cannot be written: {error}",
            "the file, its folder and the files -wal and -shm beside it must be writable for the user of the program",
            f"chown them to that user; then chmod u+rw {path} and chmod u+rwx {path.parent}",
        )
    return failure("connection", f"{path}: {error}")


def _opened(raw: SQLiteRawConnection, path: Path, settings: DataSourceSettings) -> Iterator[Finding]:
    (journal,) = raw.execute("pragma journal_mode").fetchone()
    (level,) = raw.execute("pragma synchronous").fetchone()
    yield ok("version", f"SQLite {sqlite3.sqlite_version}, journal_mode={journal}, synchronous={_LEVELS[level]}")
    if Role(settings.mode) is Role.MARKED:
        yield from _table(raw, settings.cmr_table)
        if journal != "wal":
            yield ok(
                "journal", "journal_mode=wal would commit several times faster, as safely: pragma journal_mode=wal"
            )
    elif Role(settings.mode) is Role.LAST:
        yield ok(
            "mode", "mode = last-resource: after a crash during its commit nobody can know the outcome; cmr is safe"
        )
    try:
        raw.execute("pragma busy_timeout = 200")
        raw.execute("begin immediate")
        # SQLite does not open the file for writing before something is written.
        raw.execute("create table txpool_check (one integer)")
    except sqlite3.Error as error:
        yield unreadable(path, error)
    else:
        yield ok("write", f"{path} can be written")
    finally:
        raw.rollback()


def _table(raw: SQLiteRawConnection, name: str) -> Iterator[Finding]:
    schema, _, relation = name.rpartition(".")
    with closing(raw.cursor()) as cursor:
        prefix = f"{schema}." if schema else ""
        columns = {row[1]: row for row in cursor.execute(f"pragma {prefix}table_info({relation})")}
        wrong = wrong_table(name, columns, keyed=lambda: _keyed(cursor, prefix, relation, columns))
        if wrong is not None:
            yield wrong
            return
        problems = [row[0] for row in cursor.execute(f"pragma {prefix}quick_check({relation})")]
        if problems != ["ok"]:
            yield failure("damage", f"{name} is damaged: {problems[0]}", do="restore the database from a backup")
            return
        count, oldest = cursor.execute(
            f"select count(*), max(julianday('now') - julianday(made_at)) * 86400 from {name} where {IS_MARK}"
        ).fetchone()
        yield mark_count(name, count, oldest or 0.0)


def _keyed(cursor: Any, prefix: str, relation: str, columns: dict[str, Any]) -> bool:
    if [column for column, row in columns.items() if row[5]] == ["xid"]:
        return True
    for _, index, unique, _, partial in cursor.execute(f"pragma {prefix}index_list({relation})").fetchall():
        inside = [row[2] for row in cursor.execute(f"pragma {prefix}index_info('{index}')")]
        if unique and not partial and inside == ["xid"]:
            return True
    return False
