"""A prepared branch for a coordinator that is traced."""

from __future__ import annotations

from typing import Any

from txpool.resources.base import BranchOutcome, BranchRecord
from txpool.xid import make_xid


class Prepared:
    """A branch that a task has prepared."""

    datasource, idle = "a", False
    record: Any = None

    def start_commit(self) -> None: ...

    def await_commit(self) -> BranchOutcome:
        return BranchOutcome.COMMITTED


def make_record(gtrid: str) -> Any:
    return BranchRecord(make_xid(gtrid, 0, "a"), "a", "", {"xid": "7"})
