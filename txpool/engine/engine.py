"""create_engine(): an Engine over a datasource, and how any Engine takes its connections there."""

from __future__ import annotations

import re
from functools import partial
from typing import TYPE_CHECKING, Any

from txpool.datasource import DataSource, find
from txpool.errors import ConfigurationError, NotSupportedError, ProgrammingError
from txpool.tm.ambient import ambient

if TYPE_CHECKING:
    from pathlib import Path

    from sqlalchemy import Engine

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

_TEMPORARY = re.compile(r"\s*(?:create|drop)\s+temporary\b", re.IGNORECASE)


def create_engine(datasource: str | Path | DataSource, **options: Any) -> Engine:
    """An Engine whose connections are the datasource's; `options` are those of sqlalchemy.create_engine.

    Inside a transaction, SQLAlchemy's commit() keeps what its connection has done, and its rollback() undoes it: the
    transaction decides. Its own two-phase commit (`begin_twophase()`, `Session(twophase=True)`) works outside a
    transaction, if the database's driver has it. It and AUTOCOMMIT are refused inside a transaction, and the options of
    a pool and of connecting always (ConfigurationError).

    `sqlalchemy.create_engine("txpool:///conf/orders.properties")` makes the same Engine, for what takes a url.
    """
    import sqlalchemy

    found = find(datasource)
    for name in options.keys() & _DATASOURCES.keys():
        instead = f"set {_DATASOURCES[name]} in its file" if _DATASOURCES[name] else "its keys begin with pool."
        raise ConfigurationError(
            f"datasource {found.name}: create_engine() does not take {name}, since the connections and their pool are "
            f"the datasource's: {instead}"
        )
    engine = sqlalchemy.create_engine(part_of(found).url, poolclass=sqlalchemy.NullPool, **options)
    connect_by(engine, found)
    return engine


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

    @sqlalchemy.event.listens_for(engine, "do_connect")
    def connect(_dialect: Any, _record: Any, _args: Any, arguments: dict[str, Any]) -> Any:
        connection = datasource.connect()
        try:
            connection.join_commits()
            if part.connected is not None:
                part.connected(connection, arguments)
        except BaseException:
            connection.close()
            raise
        return connection

    if part.commits_for_tables:
        sqlalchemy.event.listen(engine, "before_cursor_execute", partial(_refuse_tables, datasource))


def _refuse_tables(  # the arguments are the event's
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
