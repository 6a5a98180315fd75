"""A process that looks into its statements."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

import pytest

import txpool
from tests.integration.waits.waiting import configure
from tests.support.recovery_site import BOTH, Site
from txpool.resources.jdbc.branches.lock_holders import JdbcLockHolders
from txpool.resources.mysql.branches.lock_holders import MySQLLockHolders
from txpool.resources.postgresql.branches.lock_holders import PostgreSQLLockHolders


@pytest.fixture
def watched(site: Site, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> Iterator[Site]:
    """Databases whose row 1 only one transaction can insert; this process looks into statements after 100 ms."""
    for name in BOTH:
        site.databases.execute(name, "alter table t add primary key (id)")
    monkeypatch.chdir(site.folder)
    monkeypatch.setenv("TXPOOL_RECOVERY_BACKOFF", "0")
    caplog.set_level(logging.INFO, "txpool.waits")
    configure("etl-1")
    yield site
    for source in txpool.datasource.opened():
        source.close()
    txpool.configure(node_name="tests", log_url="memory:")


@pytest.fixture
def looks(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many statements each look was into; the look itself is the real one."""
    made = list[int]()
    for kind in (PostgreSQLLockHolders, MySQLLockHolders, JdbcLockHolders):
        monkeypatch.setattr(kind, "holders", counted(kind.holders, made))
    return made


def counted(real: Any, made: list[int]) -> Any:
    def holders(self: Any, waiting: Any) -> Any:
        found = real(self, waiting)
        made.append(len(waiting))
        return found

    return holders
