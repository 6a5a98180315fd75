"""Very many transactions in doubt: what is printed of them is never in memory as a whole."""

from __future__ import annotations

import io
import json
import sys
import tracemalloc
from collections.abc import Iterator
from dataclasses import asdict

import pytest

from recovery.operator import streams
from recovery.operator.listing import BranchState, InDoubt
from recovery.scan.report import Ended, ScanReport
from tests.models.recovery import RecoveryWorld
from txpool.log.base import Heuristic
from txpool.xid import make_gtrid, make_xid


def some(count: int, *, heuristic: int = -1) -> Iterator[InDoubt]:
    for number in range(count):
        gtrid = f"txp1:etl-1:abcdefghijkl:{number}"
        found = (Heuristic(gtrid, "0:a:L", "a", "commit", "rolled back"),) * (number == heuristic)
        branches = tuple(BranchState(f"{gtrid}:{each}:{each}:L", each, "prepared") for each in "ab")
        yield InDoubt(gtrid, "etl-1", "abcdefghijkl", "dead", 1.5, "undecided", "", branches, "roll back", found)


@pytest.mark.parametrize("count", [0, 1, 3])
def test_the_array_is_that_of_json(count: int, capsys: pytest.CaptureFixture[str]) -> None:
    streams.write_array(some(count, heuristic=1))
    assert capsys.readouterr().out == json.dumps([asdict(each) for each in some(count, heuristic=1)], indent=2) + "\n"


def test_a_report_is_that_of_json(capsys: pytest.CaptureFixture[str]) -> None:
    report = ScanReport((Ended("gid", "a", "why"),), forgotten=("gtrid",))
    streams.write_json(report)
    assert capsys.readouterr().out == json.dumps(report.as_dict(), indent=2) + "\n"


@pytest.mark.parametrize("limit", [None, 1, 2, 3, 9])
def test_a_limit_leaves_out_the_others_and_looks_at_them(limit: int | None) -> None:
    listed = streams.Counted(some(3, heuristic=2), limit)
    shown = list(listed)
    assert len(shown) == (3 if limit is None else min(limit, 3))
    assert listed.left_out == 3 - len(shown)
    assert listed.heuristic
    assert listed.attention


def test_what_is_printed_is_never_in_memory_as_a_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    class Counting(io.TextIOBase):
        length = 0

        def write(self, text: str) -> int:
            self.length += len(text)
            return len(text)

    out = Counting()
    monkeypatch.setattr(sys, "stdout", out)
    tracemalloc.start()
    try:
        streams.write_array(some(500))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert out.length > 250_000
    assert peak < 500_000  # all 500 and their text are more than 1,000,000


def test_each_is_described_when_it_is_its_turn_and_in_the_order_of_the_list() -> None:
    world = RecoveryWorld()
    gtrids = [make_gtrid(world.log.node, world.incarnation, number) for number in range(3)]
    for gtrid in gtrids:
        world.a.prepare(make_xid(gtrid, 0, "a"))
    world.log.record_heuristic(Heuristic(gtrids[2], "1:b:L", "b", "rollback", "committed"))
    each = world.recovery.each_in_doubt()
    world.a.prepared.clear()
    assert [found.gtrid for found in each] == [gtrids[2], *gtrids[:2]]
