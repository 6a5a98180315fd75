"""The findings of `txpool check` about a datasource in DuckDB. Nothing is created, and every write is rolled back."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import duckdb

from txpool.findings.database_file import opened_findings, wrong_table
from txpool.findings.finding import Finding, failure, ok, warning
from txpool.findings.marks import IS_MARK, mark_count
from txpool.resources.base import Role
from txpool.resources.duckdb.driver import SCHEME, DuckDBDriver, has_other_process

if TYPE_CHECKING:
    from txpool.config.settings import DataSourceSettings
    from txpool.resources.duckdb.connection import DuckDBRawConnection

_COLUMNS = (
    "select column_name from duckdb_columns() where database_name = ? and lower(schema_name) = lower(?) "
    "and lower(table_name) = lower(?)"
)
_KEYS = (
    "select 1 from duckdb_constraints() where database_name = ? and lower(schema_name) = lower(?) "
    "and lower(table_name) = lower(?) and constraint_type in ('PRIMARY KEY', 'UNIQUE') "
    "and constraint_column_names = ['xid']"
)
_INDEXES = (
    "select 1 from duckdb_indexes() where database_name = ? and lower(schema_name) = lower(?) and lower(table_name) = "
    "lower(?) and is_unique and expressions in ('[xid]', 'xid')"
)


def findings(settings: DataSourceSettings) -> Iterator[Finding]:
    """As `ResourceManager.findings`, about the file that the url names."""
    path = Path(settings.url.removeprefix(SCHEME))
    return opened_findings(
        path,
        lambda: DuckDBDriver(settings, recovery=True).connect(),
        lambda raw: _opened(raw, path, settings),
        _unreadable,
        error=duckdb.Error,
        marked=Role(settings.mode) is Role.MARKED,
    )


def _unreadable(path: Path, error: BaseException) -> Finding:
    if has_other_process(error.__cause__ or error):
        return warning(
            "lock",
            f"another process has {path} open",
            "DuckDB lets one process at a time open a file: what is in doubt there waits for that one's end, or for a "
            "RecoveryManager in it",
            f"find the process: fuser -v {path}",
        )
    return failure("connection", f"{path}: {error}")


def _opened(raw: DuckDBRawConnection, path: Path, settings: DataSourceSettings) -> Iterator[Finding]:
    yield ok("version", f"DuckDB {duckdb.__version__}")
    if Role(settings.mode) is Role.MARKED:
        yield from _table(raw, settings.cmr_table)
    try:
        raw.begin()
        raw.db.execute("create table main.txpool_check (one integer)")
    except duckdb.Error as error:
        yield _unreadable(path, error)
    else:
        yield ok("write", f"{path} can be written")
    finally:
        raw.rollback()


def _table(raw: DuckDBRawConnection, name: str) -> Iterator[Finding]:
    schema, _, relation = name.rpartition(".")
    place = [raw.catalog, schema or "main", relation]
    columns = [column for (column,) in raw.db.execute(_COLUMNS, place).fetchall()]

    def keyed() -> bool:
        return any(raw.db.execute(query, place).fetchone() for query in (_KEYS, _INDEXES))

    wrong = wrong_table(name, columns, keyed=keyed)
    if wrong is not None:
        yield wrong
        return
    query = f"select count(*), epoch(cast(now() as timestamp) - min(made_at)) from {name} where {IS_MARK}"
    count, oldest = raw.db.execute(query).fetchone()  # type: ignore[misc]
    yield mark_count(name, count, max(0.0, oldest or 0.0))
