"""create_engine(): an Engine over a datasource, and how any Engine takes its connections there."""

from __future__ import annotations

import re
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any

from txpool.datasource import DataSource, find
from txpool.dbapi.managed_commit import give_up, why_invalid
from txpool.errors import ConfigurationError, NotSupportedError, ProgrammingError
from txpool.tm.ambient import ambient

if TYPE_CHECKING:
    from pathlib import Path

    from sqlalchemy import Dialect, Engine
    from sqlalchemy.ext.asyncio import AsyncEngine

    from txpool.dbapi.connection import PEP249Connection
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
    "async_creator": "",
}

_TEMPORARY = re.compile(r"\s*(?:create|drop)\s+temporary\b", re.IGNORECASE)


def create_engine(datasource: str | Path | DataSource, **options: Any) -> Engine:
    """An Engine whose connections are the datasource's; `options` are those of sqlalchemy.create_engine.

    Inside a transaction, SQLAlchemy's commit() keeps what its connection has done, and its rollback() undoes it: the
    transaction decides. Its own two-phase commit (`begin_twophase()`, `Session(twophase=True)`) works outside a
    transaction, if the database's driver has it. It and AUTOCOMMIT are refused inside a transaction, and the options of
    a pool and of connecting always (ConfigurationError).

    `sqlalchemy.create_engine("txpool:///conf/orders.properties")` makes the same Engine, for what takes a url, and
    SQLAlchemy's own create_async_engine() with that url the same as ours.
    """
    import sqlalchemy

    found = _checked(datasource, options, "create_engine")
    engine = sqlalchemy.create_engine(part_of(found).url, poolclass=sqlalchemy.NullPool, **options)
    connect_by(engine, found)
    _name_place(engine, found)
    return engine


def create_async_engine(datasource: str | Path | DataSource, **options: Any) -> AsyncEngine:
    """As create_engine(), for SQLAlchemy's AsyncSession and AsyncConnection in an event loop.

    Inside an `async with txpool.transaction()` they join that. Errors: as create_engine(); ConfigurationError if
    greenlet is not installed.
    """
    found = _checked(datasource, options, "create_async_engine")
    from txpool.aio.engine import make_engine

    part = part_of(found)
    engine = make_engine(found, part.url, partial(_prepare, part), options)
    _refuse_tables(engine.sync_engine, found, part)
    _name_place(engine.sync_engine, found)
    return engine


def _name_place(engine: Engine, datasource: DataSource) -> None:
    """Let the Engine's url say where it leads, without a user or a password, for who asks: as dlt does."""
    import sqlalchemy

    with suppress(sqlalchemy.exc.ArgumentError, ValueError):
        there = sqlalchemy.make_url(datasource.settings.url)
        engine.url = engine.url.set(host=there.host, port=there.port, database=there.database)


def _checked(datasource: str | Path | DataSource, options: dict[str, Any], function: str) -> DataSource:
    """The datasource; ConfigurationError if an option is the datasource's matter."""
    found = find(datasource)
    for name in options.keys() & _DATASOURCES.keys():
        instead = f"set {_DATASOURCES[name]} in its file" if _DATASOURCES[name] else "its keys begin with pool."
        raise ConfigurationError(
            f"datasource {found.name}: {function}() does not take {name}, since the connections and their pool are "
            f"the datasource's: {instead}"
        )
    return found


def part_of(datasource: DataSource) -> SQLAlchemyPart:
    """What its resource manager says of SQLAlchemy. NotSupportedError if that cannot use its connections."""
    part = datasource.resource_manager.sqlalchemy
    if part is None:
        raise NotSupportedError(
            f"datasource {datasource.name}: SQLAlchemy cannot use connections of driver {datasource.driver}"
        )
    return part


def connect_by(engine: Engine, datasource: DataSource) -> None:
    """Let the Engine take its connections from the datasource, as ones whose commits join the transaction around."""
    import sqlalchemy

    part = part_of(datasource)
    _keep_isolation(engine.dialect, datasource, part)
    if engine.dialect.is_async:
        from txpool.aio import engine as awaited

        awaited.connect_by(engine, datasource, partial(_prepare, part))
        _refuse_tables(engine, datasource, part)
        return

    @sqlalchemy.event.listens_for(engine, "do_connect")
    def connect(_dialect: Any, _record: Any, _args: Any, arguments: dict[str, Any]) -> Any:
        connection = datasource.connect()
        try:
            _prepare(part, connection, arguments)
        except BaseException:
            connection.close()
            raise
        return connection

    sqlalchemy.event.listen(engine, "invalidate", lambda connection, _, error: give_up(connection, why_invalid(error)))
    _refuse_tables(engine, datasource, part)


def _prepare(part: SQLAlchemyPart, connection: PEP249Connection, arguments: dict[str, Any]) -> None:
    """Make a new connection an Engine's."""
    connection.join_commits()
    if part.connected is not None:
        part.connected(connection, arguments)


def _keep_isolation(dialect: Dialect, datasource: DataSource, part: SQLAlchemyPart) -> None:
    """Let the dialect set no isolation level inside a transaction if it commits for that, and reset none."""
    set_level = dialect.set_isolation_level

    def set_outside(dbapi_connection: Any, level: Any) -> None:
        transaction = ambient() if part.commits_for_levels else None
        if transaction is not None and level != "AUTOCOMMIT":  # which the connection refuses
            raise ProgrammingError(
                f"datasource {datasource.name}: isolation_level {level!r} was not set inside {transaction.gtrid}, "
                f"since SQLAlchemy commits to set one in {datasource.resource_manager.database}: nothing was done, and "
                "the transaction goes on. Begin it by txpool.transaction(isolation=…), or write transaction.isolation "
                "in the datasource's file"
            )
        set_level(dbapi_connection, level)

    dialect.set_isolation_level = set_outside  # type: ignore[method-assign]
    # Each connection is closed behind it, and its pool resets it. Inside a transaction nobody else could.
    dialect.reset_isolation_level = lambda dbapi_connection: None  # type: ignore[method-assign]


def _refuse_tables(engine: Engine, datasource: DataSource, part: SQLAlchemyPart) -> None:
    """Let the Engine refuse to make tables inside a transaction, if the database would commit before that."""
    import sqlalchemy

    if part.commits_for_tables:
        sqlalchemy.event.listen(engine, "before_cursor_execute", partial(_refuse_table, datasource))


def _refuse_table(  # the arguments are the event's
    datasource: DataSource, _connection: Any, _cursor: Any, statement: str, _parameters: Any, context: Any, _many: bool
) -> None:
    """ProgrammingError, before it is sent, if the statement would make or change a table inside a transaction."""
    transaction = ambient()
    if transaction is None or context is None or not context.isddl or _TEMPORARY.match(statement):
        return
    raise ProgrammingError(
        f"datasource {datasource.name}: {' '.join(statement.split()[:3])} inside {transaction.gtrid} was not sent, "
        f"since {datasource.resource_manager.database} would commit before it: nothing was done, and the transaction "
        "goes on. Create the table before the transaction, as to_sql() and create_all() do outside of any."
    )
