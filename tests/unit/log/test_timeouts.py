"""What every store promises of the largest timeout of an incarnation's transactions."""

from __future__ import annotations

from math import inf

import pytest

from tests.unit.log.stores import Opener, gtrid_of
from txpool.log import DecisionLog, SideRecord
from txpool.xid import make_gtrid


def noted(log: DecisionLog) -> int:
    return len(log.side_records("timeout"))


def test_38_the_largest_stays_and_every_process_reads_it(opener: Opener, log: DecisionLog) -> None:
    assert log.timeouts() == {}
    gtrid = gtrid_of(log)
    for timeout, count in ((2.0, 1), (1.5, 1), (2.0, 1), (30.0, 2), (2.0, 2), (inf, 3), (600.0, 3)):
        log.note_timeout(gtrid, timeout)
        assert noted(log) == count, "written only where it is larger than what was written"
    other = opener()
    other.note_timeout(gtrid_of(other), 5.0)
    assert other.timeouts() == log.timeouts() == {log.incarnation: inf, other.incarnation: 5.0}


def test_38_a_smaller_one_that_lands_late_takes_nothing_back(opener: Opener, log: DecisionLog) -> None:
    gtrid = gtrid_of(log)
    log.note_timeout(gtrid, 30.0)
    opener().note_timeout(gtrid, 2.0)
    assert log.timeouts() == {log.incarnation: 30.0}


def test_38_a_new_incarnation_has_a_note_of_its_own(opener: Opener, log: DecisionLog) -> None:
    former = log.incarnation
    log.note_timeout(gtrid_of(log), 30.0)
    opener().fence(former)
    with pytest.raises(Exception, match="fenced"):
        log.record(make_gtrid("etl-1", former, 2), [])
    log.note_timeout(gtrid_of(log), 2.0)
    assert log.timeouts() == {former: 30.0, log.incarnation: 2.0}


@pytest.mark.parametrize("text", ["{", "[]", '{"format": "2", "seconds": 1}', '{"format": "1", "seconds": "1"}'])
def test_38_what_cannot_be_read_counts_as_no_timeout(log: DecisionLog, text: str) -> None:
    log.note_timeout(gtrid_of(log), 2.0)
    log.put_record(SideRecord("timeout", f"{log.incarnation} later", text, 1.0))
    assert log.timeouts() == {log.incarnation: inf}


def test_notes_go_with_the_incarnations_that_expire(opener: Opener, log: DecisionLog) -> None:
    gone = opener()
    name = gone.incarnation
    for each in (gone, log):
        each.note_timeout(gtrid_of(each), 2.0)
        each.note_timeout(gtrid_of(each), 3.0)
    log.retire_timeouts()
    log.fence(name)
    log.retire_timeouts()
    assert noted(log) == 4
    log.expire([name])
    log.retire_timeouts()
    assert log.timeouts() == {log.incarnation: 3.0}
    assert noted(log) == 2
