"""Log records have the gtrid of the transaction that they are about."""

from __future__ import annotations

import logging
import re
from typing import Any

import pytest

import txpool
from tests.support.repository import ROOT
from tests.unit.tracing.prepared import Prepared, make_record
from txpool import tracing
from txpool.log.memory import MemoryDisk, MemoryLog
from txpool.resources.base import BranchOutcome
from txpool.tm.transaction import Transaction
from txpool.xid import make_gtrid


def test_our_own_records_have_the_gtrid(caplog: pytest.LogCaptureFixture) -> None:
    loggers = [logging.getLogger(f"txpool{name}") for name in ("", ".pool", ".recovery", ".recovery.audit")]
    with txpool.transaction() as tx:
        for logger in loggers:
            logger.warning("within")
    logging.getLogger("txpool").warning("outside")
    logging.getLogger("txpool").warning("of another", extra={"gtrid": "another"})
    gtrids = [record.gtrid for record in caplog.records]  # type: ignore[attr-defined]
    assert gtrids == [tx.gtrid] * 4 + ["", "another"]


def test_every_logger_of_the_package_is_among_them() -> None:
    """A new one would log records without it."""
    sources = "".join(p.read_text() for folder in ("txpool", "recovery") for p in (ROOT / folder).rglob("*.py"))
    named = {*re.findall(r'getLogger\("([\w.]+)"\)', sources)}
    assert {name for name in named if name.startswith("txpool")} == {*tracing.logs._LOGGERS}


def test_a_handler_with_the_filter_shows_the_gtrid_of_everybodys_records() -> None:
    lines: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: lines.append(handler.format(record))  # type: ignore[method-assign]
    handler.addFilter(tracing.GtridFilter())
    handler.setFormatter(logging.Formatter("[%(gtrid)s] %(message)s"))
    logger = logging.getLogger("tests.somebody")
    logger.addHandler(handler)
    try:
        with txpool.transaction() as tx:
            logger.warning("within")
        logger.warning("outside")
    finally:
        logger.removeHandler(handler)
    assert lines == [f"[{tx.gtrid}] within", "[] outside"]


def test_what_a_coordinator_warns_of_has_its_gtrid_wherever_it_runs(caplog: pytest.LogCaptureFixture) -> None:
    log = MemoryLog(MemoryDisk("etl-1"), node="etl-1")
    branch: Any = Prepared()
    tx = Transaction(make_gtrid("etl-1", log.incarnation, 1), log, lambda *_: None)
    branch.record = make_record(tx.gtrid)

    def lost() -> BranchOutcome:
        raise OSError("lost")

    branch.await_commit = lost
    tx.adopt([branch], late_branches=False)
    tx.commit()
    assert [record.gtrid for record in caplog.records if "lost" in record.message] == [tx.gtrid]  # type: ignore[attr-defined]
