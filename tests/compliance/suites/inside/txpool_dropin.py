"""Inside a suite's process: what stands in for the drivers' own connect(), as a program would that replaces it.

`psycopg.connect(…)` and `sqlite3.connect(…)` make a DataSource of their arguments, one for all calls that have the
same, and return `DataSource.connect()`. What a DataSource has no setting for is set on the connection. In an event loop
`psycopg.AsyncConnection.connect(…)` gives what `txpool.aconnect()` does, and SQLAlchemy's dialect `psycopg_async` is
the one of `txpool.create_async_engine()`.
"""

from __future__ import annotations

import os
import sqlite3
from importlib.util import find_spec
from threading import Lock
from typing import Any

import psycopg
from psycopg import conninfo

import txpool

_POOL = {"pool_max_size": "40"}
_lock = Lock()
_datasources: dict[Any, txpool.DataSource] = {}
_connect_psycopg = psycopg.Connection.connect.__func__  # type: ignore[attr-defined]
_aconnect_psycopg = psycopg.AsyncConnection.connect.__func__  # type: ignore[attr-defined]
_connect_sqlite3 = sqlite3.connect


def install() -> None:
    """Replace both drivers' connect()."""
    psycopg.Connection.connect = classmethod(_psycopg)  # type: ignore[assignment]
    psycopg.connect = psycopg.Connection.connect
    psycopg.AsyncConnection.connect = classmethod(_psycopg_async)  # type: ignore[assignment]
    sqlite3.connect = sqlite3.dbapi2.connect = _sqlite3  # type: ignore[assignment]
    if find_spec("sqlalchemy") is not None:
        from sqlalchemy.dialects import registry

        registry.register("postgresql.psycopg_async", "txpool_sqlalchemy", "Dialect")


def _datasource(*, instance: int = 0, **options: str) -> txpool.DataSource:
    # The drivers read these when they connect.
    environment = {name: value for name, value in os.environ.items() if name.startswith("PG")}
    key = (instance, *sorted((options | environment).items()))
    with _lock:
        if key not in _datasources:
            _datasources[key] = txpool.DataSource(name=f"suite-{len(_datasources) + 1}", **options, **_POOL)
        return _datasources[key]


def _psycopg(
    cls: type,
    dsn: str = "",
    *,
    autocommit: bool = False,
    prepare_threshold: int | None = 5,
    context: Any = None,
    row_factory: Any = None,
    cursor_factory: Any = None,
    **parameters: Any,
) -> Any:
    if cls is not psycopg.Connection:  # txpool's own class, and a user's
        parameters |= {"row_factory": row_factory, "cursor_factory": cursor_factory, "context": context}
        return _connect_psycopg(cls, dsn, autocommit=autocommit, prepare_threshold=prepare_threshold, **parameters)
    connection: Any = of_conninfo(dsn, prepare_threshold, parameters).connect()
    try:
        if context is not None:
            connection.use_adapters(context)
        for name, value in {"row_factory": row_factory, "cursor_factory": cursor_factory}.items():
            if value is not None:
                setattr(connection, name, value)
        if autocommit:
            connection.autocommit = True
    except BaseException:
        connection.close()
        raise
    return connection


def of_conninfo(dsn: str, prepare_threshold: int | None, parameters: dict[str, Any]) -> txpool.DataSource:
    """The datasource of psycopg's arguments."""
    named = {name: str(value) for name, value in conninfo.conninfo_to_dict(dsn, **parameters).items()}
    options = {name: named.pop(name) for name in ("user", "password") if name in named}
    options |= {f"driver_{name}": value for name, value in named.items()}
    threshold = str(prepare_threshold)
    return _datasource(driver="psycopg", url="postgresql://", driver_prepare_threshold=threshold, **options)


async def _psycopg_async(
    cls: type,
    dsn: str = "",
    *,
    autocommit: bool = False,
    prepare_threshold: int | None = 5,
    context: Any = None,
    row_factory: Any = None,
    cursor_factory: Any = None,
    **parameters: Any,
) -> Any:
    if cls is not psycopg.AsyncConnection:
        parameters |= {"row_factory": row_factory, "cursor_factory": cursor_factory, "context": context}
        parameters |= {"autocommit": autocommit, "prepare_threshold": prepare_threshold}
        return await _aconnect_psycopg(cls, dsn, **parameters)
    connection: Any = await txpool.aconnect(of_conninfo(dsn, prepare_threshold, parameters))
    try:
        if context is not None:
            connection.handle.use_adapters(context)
        for name, value in {"row_factory": row_factory, "cursor_factory": cursor_factory}.items():
            if value is not None:
                setattr(connection, name, value)
        if autocommit:
            await connection.set_autocommit(True)
    except BaseException:
        await connection.close()
        raise
    return connection


def _sqlite3(database: Any, *args: Any, **options: Any) -> Any:
    uri, path = options.get("uri", False), os.fspath(database)
    # One that is in memory is its connection's own: there is no datasource of it.
    if args or uri or not isinstance(path, str) or path in ("", ":memory:") or "factory" in options:
        return _connect_sqlite3(database, *args, **options)
    options.pop("check_same_thread", None)  # a pool's connections may change threads
    own = {name: options.pop(name) for name in ("isolation_level", "autocommit") if name in options}
    passed = {f"driver_{name}": str(value) for name, value in options.items() if name != "uri"}
    connection: Any = _of_file(os.path.abspath(path), passed).connect()
    for name, value in own.items():
        setattr(connection, name, value)
    return connection


def _of_file(path: str, options: dict[str, str]) -> txpool.DataSource:
    """The datasource of a file; where the file was removed, and made again, it is another."""
    with open(path, "ab") as file:
        made = os.fstat(file.fileno()).st_ino
    return _datasource(driver="sqlite3", mode="local", url=f"sqlite:///{path}", instance=made, **options)
