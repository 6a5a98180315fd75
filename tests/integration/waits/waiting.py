"""Statements that wait for what a dead process has prepared, and what is said of them."""

from __future__ import annotations

from typing import Final

import pytest

import txpool
from tests.support.recovery_site import WRITER, Site

#: The key of the table is checked at COMMIT or PREPARE only.
DEFER: Final = "alter table t drop constraint t_pkey, add unique (id) deferrable initially deferred"


def configure(node: str, after: str = "100ms") -> None:
    """This process is one of that node's; another node has a log of its own, and knows nothing of the first."""
    log = "sqlite:///txlog" if node == "etl-1" else f"sqlite:///{node}"
    txpool.configure(node_name=node, log_url=log, log_create=True, transaction_wait_report=after)


def left_by_a_dead_process(site: Site, *names: str) -> str:
    """The gtrid of what it has prepared in these databases, one of which is PostgreSQL: row 1 is inserted in each."""
    site.killed(WRITER, *names, failpoints="coordinator.prepared=kill")
    (gtrid,) = {":".join(gid.split(":")[:4]) for gid in site.databases.prepared()}
    return gtrid


def execute(statement: str, name: str = "one") -> None:
    """In a transaction of its own."""
    with txpool.transaction():
        txpool.connect(f"{name}.properties").cursor().execute(statement)


def reports(caplog: pytest.LogCaptureFixture) -> list[str]:
    """What is said of statements that wait."""
    return [each.getMessage() for each in caplog.records if "has executed for" in each.getMessage()]


def said(caplog: pytest.LogCaptureFixture) -> list[str]:
    """All that the thread says."""
    return [each.getMessage() for each in caplog.records if each.name == "txpool.waits"]
