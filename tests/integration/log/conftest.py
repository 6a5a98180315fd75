"""The log on a server, opened more than once: in this process, and in others as on hosts of their own."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from tests.integration.log.tables import NODE, Opener, Spawn
from tests.support.children import children
from tests.support.log_places import KINDS, LogPlace, place_of
from txpool.log import SqlLog

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


@pytest.fixture(params=KINDS)
def place(request: pytest.FixtureRequest) -> LogPlace:
    """Where the log is: on a server of each kind."""
    return place_of(request.param, request.getfixturevalue)


@pytest.fixture
def opener(place: LogPlace) -> Iterator[Opener]:
    """Opens the log once more, as another process would, on this host or another."""
    opened: list[SqlLog] = []

    def opening(node: str = NODE, **options: Any) -> SqlLog:
        opened.append(place.open(node, **options))
        return opened[-1]

    yield opening
    for log in opened:
        log.close()


@pytest.fixture
def log(opener: Opener) -> SqlLog:
    return opener()


@pytest.fixture
def bare(place: LogPlace, log: SqlLog) -> Iterator[Any]:
    """A session beside the log's own, in a transaction of its own."""
    with place.session(autocommit=False) as connection:
        yield connection


@pytest.fixture
def apart() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor() as threads:
        yield threads


@pytest.fixture
def spawn(place: LogPlace, monkeypatch: pytest.MonkeyPatch) -> Iterator[Spawn]:
    """Start a process of a node over the log, as on a host of its own."""
    monkeypatch.setenv("LOG_PASSWORD", place.password)
    with children(PROLOGUE, "\nlog.close()\n") as start:
        yield lambda source, node=NODE: start(source, node, place.url())
