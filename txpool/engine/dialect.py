"""The dialect of SQLAlchemy's urls that name a datasource's file: txpool:///conf/orders.properties.

Three slashes come before a relative path, four before an absolute one, as in sqlite:///. A url is a path and nothing
else: what connects, and who, the file says.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import TYPE_CHECKING, Any

import sqlalchemy
from sqlalchemy.engine import default

from txpool.datasource import DataSource, find_file
from txpool.dbapi.connection import PEP249Connection
from txpool.engine.engine import connect_by, part_of
from txpool.errors import ConfigurationError

if TYPE_CHECKING:
    from sqlalchemy import Engine
    from sqlalchemy.engine import URL
    from sqlalchemy.engine.interfaces import ConnectArgsType, Dialect

_PARTS = ("username", "password", "host", "port", "query")


class DatasourceDialect:
    """The entry point of group `sqlalchemy.dialects`: it gives way to the dialect of the datasource's database."""

    @classmethod
    def get_dialect_cls(cls, url: URL) -> type[Dialect]:
        """The dialect of the file's database, whose Engines connect by the file. ConfigurationError."""
        return _over(_dialect_of(url), PEP249Connection)

    @classmethod
    def get_async_dialect_cls(cls, url: URL) -> type[Dialect]:
        """The same for create_async_engine() of SQLAlchemy's own."""
        from txpool.aio.engine import AwaitedConnection, awaited

        return _over(awaited(_dialect_of(url)), AwaitedConnection)

    @classmethod
    def engine_created(cls, engine: Engine) -> None:
        """Called by create_engine(), and by create_async_engine()."""
        datasource = _datasource_of(engine.url)
        if type(engine.pool) is not sqlalchemy.NullPool:
            raise _not_ours(datasource, "poolclass or pool", "its keys begin with pool.")

        @sqlalchemy.event.listens_for(engine, "do_connect")
        def check(_dialect: Any, _record: Any, _args: Any, arguments: dict[str, Any]) -> None:
            if arguments.keys() - engine.dialect.create_connect_args(engine.url)[1].keys():
                raise _not_ours(datasource, "connect_args", "set driver.… for each in its file")

        connect_by(engine, datasource)  # behind it, since the first listener that connects is the last


class _OfDatasource(default.DefaultDialect):
    """What a dialect does otherwise if its url names a datasource's file."""

    #: The class of the connections that its Engines take from the datasource.
    connections: type

    @classmethod
    def get_pool_class(cls, url: URL) -> type[sqlalchemy.Pool]:
        return sqlalchemy.NullPool

    def create_connect_args(self, url: URL) -> ConnectArgsType:
        plain = sqlalchemy.make_url(part_of(_datasource_of(url)).url)
        return super().create_connect_args(plain)

    def on_connect_url(self, url: URL) -> Callable[[Any], Any]:
        on_connect = super().on_connect_url(url)

        def check(connection: Any) -> None:
            if not issubclass(type(connection), self.connections):
                raise _not_ours(_datasource_of(url), "creator", "leave it out")
            if on_connect is not None:
                on_connect(connection)

        return check


# By the dialect's class, so that SQLAlchemy's caches of statements serve all Engines of one.
@cache
def _over(dialect: Any, connections: Any) -> type[Dialect]:
    own = {"supports_statement_cache": True, "connections": connections, "__module__": dialect.__module__}
    return type(dialect.__name__, (_OfDatasource, dialect), own)


def _dialect_of(url: URL) -> Any:
    """The class of the database's."""
    return sqlalchemy.make_url(part_of(_datasource_of(url)).url).get_dialect()


def _datasource_of(url: URL) -> DataSource:
    wrong = [name for name in _PARTS if getattr(url, name)]
    if wrong or not url.database:
        raise ConfigurationError(
            f"{_shown(url)}: the url of a datasource is its file's path and nothing else, as "
            "txpool:///conf/orders.properties, or txpool:////etc/orders.properties"
            + (f": leave out {', '.join(wrong)}, which the file has" if wrong else "")
        )
    return find_file(url.database)


def _shown(url: URL) -> str:
    """The url without what may be a secret."""
    return f"txpool:///{url.database or ''}"


def _not_ours(datasource: DataSource, option: str, instead: str) -> ConfigurationError:
    return ConfigurationError(
        f"datasource {datasource.name}: create_engine() does not take {option}, since the connections and their pool "
        f"are the datasource's: {instead}"
    )
