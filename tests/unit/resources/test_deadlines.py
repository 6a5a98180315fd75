"""How long phase two waits: for the transaction's time, and in recovery for no longer than its step."""

from __future__ import annotations

from time import monotonic
from typing import Any

import pytest

from txpool.errors import OperationalError
from txpool.resources.base import BranchOutcome, BranchRecord
from txpool.resources.branches.phase_two import COMMIT, PhaseTwoCommand, PhaseTwoReply
from txpool.resources.deadlines import NO_DEADLINES, Deadlines, step_until, within_step
from txpool.xid import make_gtrid, make_xid

RECORD = BranchRecord(make_xid(make_gtrid("etl-1", "k3v9x2m7q4wd", 1), 0, "one"), "one", "")


class Command(PhaseTwoCommand):
    """Waits for nothing, and tells until when it would have waited."""

    def __init__(self, deadlines: Deadlines) -> None:
        super().__init__(RECORD, COMMIT, None, deadlines)

    def run(self) -> BranchOutcome:
        return BranchOutcome.UNKNOWN

    def _send(self, raw: Any) -> None: ...

    def _receive(self, raw: Any) -> PhaseTwoReply:
        raise NotImplementedError

    def _identity(self, raw: Any) -> str:
        return ""

    def _is_same_generation(self, raw: Any) -> bool:
        return False

    def _why_unproven(self) -> str:
        return ""

    @staticmethod
    def can_send(raw: Any) -> bool:
        return True

    def waits_until(self) -> float | None:
        self.finish()
        return self._until


@pytest.mark.parametrize("deadlines", [NO_DEADLINES, Deadlines(None, 7200.0), Deadlines(monotonic() + 7200, 7200.0)])
def test_phase_two_waits_no_longer_than_the_step(deadlines: Deadlines) -> None:
    command = Command(deadlines)
    for seconds in (3600, 3700):  # a later step has a time of its own
        until = monotonic() + seconds
        with step_until(until):
            assert command.waits_until() == until


def test_without_a_step_all_tries_have_one_time_together() -> None:
    command = Command(Deadlines(None, 3600.0))
    assert command.waits_until() == command.waits_until()
    assert Command(NO_DEADLINES).waits_until() is None


def test_nothing_more_is_sent_once_the_step_is_over() -> None:
    with step_until(monotonic()), pytest.raises(OperationalError, match="the time for this step"):
        within_step()
