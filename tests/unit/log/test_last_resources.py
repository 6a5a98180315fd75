"""What every store promises of the note of a last resource, which commits before the decision (rule 38)."""

from __future__ import annotations

import pytest

from tests.unit.log.stores import Opener, branches_of, gtrid_of
from txpool.errors import LogError
from txpool.log import DecisionLog, Refused, Resolution
from txpool.xid import make_gtrid


def test_38_a_note_is_no_decision_and_gives_its_place_to_one(opener: Opener, log: DecisionLog) -> None:
    gtrid = gtrid_of(log)
    log.note_last(gtrid, "ledger")
    other = opener()
    assert (other.last_resources(), other.decisions(), other.aborted()) == ({gtrid: "ledger"}, {}, set())
    log.note_last(gtrid, "ledger")
    log.record(gtrid, branches_of(gtrid))
    assert other.last_resources() == {}
    assert other.decisions()[gtrid].branches == tuple(branches_of(gtrid))
    assert other.abort(gtrid) is other.abort_noted(gtrid) is Resolution.COMMITTED
    with pytest.raises(LogError):
        log.note_last(gtrid, "ledger")
    with pytest.raises(LogError):
        log.record(gtrid, branches_of(gtrid))


def test_38_note_and_abort_record_exclude_each_other(opener: Opener, log: DecisionLog) -> None:
    noted, aborted = gtrid_of(log, 1), gtrid_of(log, 2)
    log.note_last(noted, "ledger")
    assert opener().abort(noted) is Resolution.NOTED
    assert log.aborted() == set()
    log.record(noted, branches_of(noted))
    assert opener().abort(aborted) is Resolution.ABORTED
    with pytest.raises(Refused, match="aborted"):
        log.note_last(aborted, "ledger")
    assert log.last_resources() == {}


def test_38_its_coordinator_or_a_person_aborts_it_for_ever(opener: Opener, log: DecisionLog) -> None:
    gtrid = gtrid_of(log)
    log.note_last(gtrid, "ledger")
    assert opener().abort_noted(gtrid) is Resolution.ABORTED
    assert (log.last_resources(), log.aborted()) == ({}, {gtrid})
    for write in (lambda: log.record(gtrid, branches_of(gtrid)), lambda: log.note_last(gtrid, "ledger")):
        with pytest.raises(Refused, match="aborted"):
            write()
    assert log.abort_noted(gtrid_of(log, 2)) is Resolution.ABORTED


def test_38_a_fence_refuses_the_decision_and_keeps_the_note(opener: Opener, log: DecisionLog) -> None:
    gtrid = gtrid_of(log)
    log.note_last(gtrid, "ledger")
    opener().fence(log.incarnation)
    for write in (lambda: log.record(gtrid, branches_of(gtrid)), lambda: log.note_last(gtrid, "other")):
        with pytest.raises(Refused, match="fenced"):
            write()
    assert log.last_resources() == {gtrid: "ledger"}
    with pytest.raises(Refused, match="fenced"):
        log.note_last(make_gtrid("etl-1", gtrid.split(":")[2], 2), "ledger")


def test_38_a_note_is_forgotten_and_purged_like_a_decision(opener: Opener, log: DecisionLog) -> None:
    one, two = gtrid_of(log, 1), gtrid_of(log, 2)
    for gtrid in (one, two):
        log.note_last(gtrid, 'a "ledger"')
    log.forget(one)
    log.purge([two])
    log.abort(gtrid_of(log, 3))  # a write, with which what was forgotten goes; or the log's end
    log.close()
    assert opener().last_resources() == {}
