"""SQLAlchemy over a datasource: our pool under its engine, and our transactions around its work."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from txpool.datasource import DataSource, find

if TYPE_CHECKING:
    from pathlib import Path

    from sqlalchemy import Engine

_URLS = {"psycopg": "postgresql+psycopg://", "sqlite3": "sqlite+pysqlite://"}


def create_engine(datasource: str | Path | DataSource, **options: Any) -> Engine:
    """An Engine whose connections are the datasource's; `options` are those of sqlalchemy.create_engine.

    SQLAlchemy commits and rolls back by itself: inside a transaction that takes `managed.commit = join`. Its own
    two-phase commit, and AUTOCOMMIT inside a transaction, are refused.
    """
    import sqlalchemy

    found = find(datasource)
    return sqlalchemy.create_engine(
        _URLS[found.driver], creator=found.connect, poolclass=sqlalchemy.NullPool, **options
    )
