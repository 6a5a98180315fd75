"""The log in PostgreSQL, opened more than once: in this process, and in others as on hosts of their own."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import psycopg
import pytest

from tests.integration.log.tables import NODE, Opener, Spawn
from tests.support.children import children
from txpool.config.secrets import Secret
from txpool.log import SqlLog

if TYPE_CHECKING:
    from tests.conftest import Databases

PROLOGUE = """
import os, signal, sys
from txpool.log import Refused, SqlLog
from txpool.config.secrets import Secret
from txpool.xid import make_gtrid
node, url = sys.argv[1:]
log = SqlLog(url, node=node, create=True, password=Secret("${env:LOG_PASSWORD}"))
def decide(number):
    gtrid = make_gtrid(node, log.incarnation, number)
    log.record(gtrid, [])
    return gtrid
"""


@pytest.fixture
def opener(databases: Databases) -> Iterator[Opener]:
    """Opens the log once more, as another process would, on this host or another."""
    opened: list[SqlLog] = []

    def opening(node: str = NODE, **options: Any) -> SqlLog:
        password = Secret(databases.server.password)
        opened.append(SqlLog(databases.url("one"), node=node, create=True, password=password, **options))
        return opened[-1]

    yield opening
    for log in opened:
        log.close()


@pytest.fixture
def log(opener: Opener) -> SqlLog:
    return opener()


@pytest.fixture
def bare(databases: Databases, log: SqlLog) -> Iterator[psycopg.Connection[Any]]:
    """A session beside the log's own, in a transaction of its own."""
    with psycopg.connect(databases.dsn("one")) as connection:
        yield connection


@pytest.fixture
def apart() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor() as threads:
        yield threads


@pytest.fixture
def spawn(databases: Databases, monkeypatch: pytest.MonkeyPatch) -> Iterator[Spawn]:
    """Start a process of a node over the log, as on a host of its own."""
    monkeypatch.setenv("LOG_PASSWORD", databases.server.password)
    with children(PROLOGUE, "\nlog.close()\n") as start:
        yield lambda source, node=NODE: start(source, node, databases.url("one"))
