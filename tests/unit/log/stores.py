"""Decisions for the tests of every store."""

from __future__ import annotations

from collections.abc import Callable

from txpool.log import DecisionLog
from txpool.resources.base import BranchRecord
from txpool.xid import make_gtrid, make_xid

Opener = Callable[[], DecisionLog]


def gtrid_of(log: DecisionLog, number: int = 1) -> str:
    return make_gtrid(log.node, log.incarnation, number)


def branches_of(gtrid: str) -> list[BranchRecord]:
    orders = BranchRecord(make_xid(gtrid, 1, "orders"), "orders", "7412/5", {"xid": "771"})
    return [orders, BranchRecord(make_xid(gtrid, 2, "audit"), "audit")]
