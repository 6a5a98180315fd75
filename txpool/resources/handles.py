"""The handles of each driver: what its connections and cursors have beyond PEP 249."""

from __future__ import annotations

from txpool.dbapi.connection import Connection
from txpool.resources.postgresql.handle import PsycopgConnection
from txpool.resources.sqlite.handle import SQLiteConnection

#: By the name of the driver.
HANDLES: dict[str, type[Connection]] = {"psycopg": PsycopgConnection, "sqlite3": SQLiteConnection}
