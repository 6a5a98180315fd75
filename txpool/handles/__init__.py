"""The handles of each driver: what its connections and cursors have beyond PEP 249."""

from __future__ import annotations

from txpool.connection import Connection
from txpool.handles.psycopg import PsycopgConnection
from txpool.handles.sqlite import SQLiteConnection

#: By the name of the driver.
HANDLES: dict[str, type[Connection]] = {"psycopg": PsycopgConnection, "sqlite3": SQLiteConnection}
