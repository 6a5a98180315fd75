"""SQLAlchemy over a datasource: an Engine that takes its connections from the datasource's pool."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from txpool.datasource import DataSource, find
from txpool.errors import ConfigurationError, NotSupportedError

if TYPE_CHECKING:
    from pathlib import Path

    from sqlalchemy import Engine
    from sqlalchemy.ext.asyncio import AsyncEngine

    from txpool.resources.parts import SQLAlchemyPart

# Arguments of SQLAlchemy's own pool and connecting, and the datasource's key in their place.
_DATASOURCES = {
    "connect_args": "driver.… for each",
    "client_encoding": "driver.client_encoding",
    "pool_size": "pool.max-size",
    "max_overflow": "pool.max-size",
    "pool_timeout": "pool.max-wait",
    "pool_use_lifo": "",
    "pool": "",
    "poolclass": "",
    "creator": "",
}


def create_engine(datasource: str | Path | DataSource, **options: Any) -> Engine:
    """An Engine whose connections are the datasource's; `options` are those of sqlalchemy.create_engine.

    SQLAlchemy commits and rolls back by itself, which inside a transaction needs `managed.commit = join`. Its own
    two-phase commit (`begin_twophase()`, `Session(twophase=True)`) works outside a transaction, if the database's
    driver has it. It and AUTOCOMMIT are refused inside a transaction, and the options of a pool and of connecting
    always (ConfigurationError).
    """
    import sqlalchemy

    found, part = _checked(datasource, options, "create_engine")
    engine = sqlalchemy.create_engine(part.url, poolclass=sqlalchemy.NullPool, **options)

    @sqlalchemy.event.listens_for(engine, "do_connect")
    def connect(_dialect: Any, _record: Any, _args: Any, arguments: dict[str, Any]) -> Any:
        connection = found.connect()
        try:
            if part.connected is not None:
                part.connected(connection, arguments)
        except BaseException:
            connection.close()
            raise
        return connection

    return engine


def create_async_engine(datasource: str | Path | DataSource, **options: Any) -> AsyncEngine:
    """As create_engine(), for SQLAlchemy's AsyncSession and AsyncConnection in an event loop.

    Inside an `async with txpool.transaction()` they join that. Errors: as create_engine(); ConfigurationError if
    greenlet is not installed.
    """
    found, part = _checked(datasource, options, "create_async_engine")
    from txpool.aio.engine import make_engine

    return make_engine(found, part, options)


def _checked(
    datasource: str | Path | DataSource, options: dict[str, Any], function: str
) -> tuple[DataSource, SQLAlchemyPart]:
    """The datasource, and how SQLAlchemy uses it; these options are SQLAlchemy's own."""
    found = find(datasource)
    for name in options.keys() & _DATASOURCES.keys():
        instead = f"set {_DATASOURCES[name]} in its file" if _DATASOURCES[name] else "its keys begin with pool."
        raise ConfigurationError(
            f"datasource {found.name}: {function}() does not take {name}, since the connections and their pool are "
            f"the datasource's: {instead}"
        )
    part = found.resource_manager.sqlalchemy
    if part is None:
        raise NotSupportedError(f"datasource {found.name}: SQLAlchemy cannot use connections of driver {found.driver}")
    return found, part
