"""Inside SQLAlchemy's asynchronous tests: the dialect of `txpool.create_async_engine()`, under psycopg_async's name.

Its pool is SQLAlchemy's own, since the tests look into that.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import sqlalchemy
import txpool_dropin
from sqlalchemy.pool import AsyncAdaptedQueuePool
from sqlalchemy.util import await_only

from txpool.aio.connection import open_connection
from txpool.aio.engine import AwaitedConnection, _dialect
from txpool.engine.engine import _prepare, part_of

_OURS: Any = sqlalchemy.make_url(_dialect("postgresql+psycopg://")).get_dialect()


class Dialect(_OURS):
    """As psycopg_async, to the tests."""

    poolclass = AsyncAdaptedQueuePool
    supports_statement_cache = True

    @classmethod
    def get_async_dialect_cls(cls, url: sqlalchemy.URL) -> type[Dialect]:
        return cls

    def connect(self, *args: Any, **options: Any) -> Any:
        named = {name: value for name, value in options.items() if name != "context"}
        source = txpool_dropin.of_conninfo("".join(args), 5, named)
        prepare = partial(_prepare, part_of(source), arguments=options)
        return AwaitedConnection(await_only(open_connection(source, None, prepare=prepare)))
