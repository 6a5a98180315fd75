"""What every store of the decision log promises, whatever it is made of; numbers are the rules of the protocol."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.log.stores import Opener, branches_of, gtrid_of
from txpool import failpoints, packed
from txpool.errors import ConfigurationError, LogError
from txpool.log import (
    DecisionLog,
    Heuristic,
    IncarnationState,
    MemoryDisk,
    MemoryLog,
    Refused,
    Resolution,
    SqliteLog,
    decisions,
    folder_of,
    open_log,
)
from txpool.xid import make_gtrid, new_incarnation


def test_a_decision_is_seen_by_every_process_with_all_its_branches(opener: Opener, log: DecisionLog) -> None:
    gtrid = gtrid_of(log)
    log.record(gtrid, branches_of(gtrid))
    decision = opener().decisions()[gtrid]
    assert decision.gtrid == gtrid
    assert decision.branches == tuple(branches_of(gtrid))
    assert decision.recorded_at > 0


def test_the_nodes_to_recover_are_the_own_unless_others_are_asked_for(log: DecisionLog) -> None:
    assert log.nodes() == {"etl-1"}


def test_11_a_decision_is_refused_when_its_incarnation_was_fenced_by_another(opener: Opener, log: DecisionLog) -> None:
    gtrid = gtrid_of(log)
    opener().fence(log.incarnation)
    with pytest.raises(Refused, match=gtrid):
        log.record(gtrid, branches_of(gtrid))
    assert log.decisions() == {}


def test_a_fenced_incarnation_takes_a_new_name_and_goes_on(opener: Opener, log: DecisionLog) -> None:
    old = log.incarnation
    gtrid = gtrid_of(log)
    opener().fence(old)
    with pytest.raises(Refused):
        log.record(gtrid, branches_of(gtrid))
    assert log.incarnation != old
    again = gtrid_of(log)
    log.record(again, branches_of(again))
    assert set(log.decisions()) == {again}
    assert log.incarnations() == {old: IncarnationState.FENCED, log.incarnation: IncarnationState.ALIVE}


def test_a_gtrid_of_an_incarnation_that_this_log_never_registered_is_refused(log: DecisionLog) -> None:
    assert log.incarnation
    gtrid = make_gtrid(log.node, new_incarnation(), 1)
    with pytest.raises(Refused):
        log.record(gtrid, branches_of(gtrid))
    with pytest.raises(Refused):
        log.point(gtrid, "ledger")


def test_25_another_process_may_decide_for_the_living_incarnation_that_named_the_gtrid(
    opener: Opener, log: DecisionLog
) -> None:
    gtrid = gtrid_of(log)
    opener().record(gtrid, branches_of(gtrid))
    assert set(log.decisions()) == {gtrid}


def test_12_an_abort_record_takes_the_place_of_the_decision_for_ever(opener: Opener, log: DecisionLog) -> None:
    gtrid = gtrid_of(log)
    other = opener()
    assert other.abort(gtrid) is Resolution.ABORTED
    assert other.abort(gtrid) is Resolution.ABORTED
    with pytest.raises(Refused, match=r"aborted|settled"):
        log.record(gtrid, branches_of(gtrid))
    assert log.aborted() == {gtrid}
    assert log.decisions() == {}
    assert not log.is_fenced(log.incarnation)


def test_12_an_abort_record_meets_the_decision(opener: Opener, log: DecisionLog) -> None:
    gtrid = gtrid_of(log)
    log.record(gtrid, branches_of(gtrid))
    other = opener()
    assert other.abort(gtrid) is Resolution.COMMITTED
    assert other.abort(gtrid) is Resolution.COMMITTED
    assert log.decisions()[gtrid].branches == tuple(branches_of(gtrid))
    assert log.aborted() == set()


def test_a_fenced_coordinator_still_establishes_the_truth(opener: Opener, log: DecisionLog) -> None:
    decided, lost = gtrid_of(log, 1), gtrid_of(log, 2)
    log.record(decided, branches_of(decided))
    opener().fence(log.incarnation)
    assert log.abort(decided) is Resolution.COMMITTED
    assert log.abort(lost) is Resolution.ABORTED
    assert log.is_fenced(decided.split(":")[2])


def test_a_second_decision_of_a_gtrid_is_an_error_that_is_no_refusal(log: DecisionLog) -> None:
    gtrid = gtrid_of(log)
    log.record(gtrid, branches_of(gtrid))
    with pytest.raises(LogError, match="decided already"):
        log.record(gtrid, [])
    assert log.abort(gtrid) is Resolution.COMMITTED
    assert log.decisions()[gtrid].branches == tuple(branches_of(gtrid))


def test_forgetting_is_lazy_and_close_makes_it_durable(opener: Opener, log: DecisionLog) -> None:
    first, second = gtrid_of(log, 1), gtrid_of(log, 2)
    for gtrid in (first, second):
        log.record(gtrid, branches_of(gtrid))
    log.forget(first)
    log.close()
    assert set(opener().decisions()) == {second}


def test_forgetting_never_drops_an_abort_record(opener: Opener, log: DecisionLog) -> None:
    gtrid = gtrid_of(log)
    log.abort(gtrid)
    log.forget(gtrid)
    log.close()
    assert opener().aborted() == {gtrid}


def test_8_a_pointer_is_refused_when_fenced_or_aborted(opener: Opener, log: DecisionLog) -> None:
    pointed, aborted, late = (gtrid_of(log, number) for number in (1, 2, 3))
    log.point(pointed, "ledger")
    log.point(pointed, "ledger")
    with pytest.raises(Refused, match="ledger decides"):
        log.point(pointed, "billing")
    log.abort(aborted)
    with pytest.raises(Refused):
        log.point(aborted, "ledger")
    opener().fence(log.incarnation)
    with pytest.raises(Refused):
        log.point(late, "ledger")
    assert opener().pointers() == {pointed: "ledger"}
    assert log.incarnation != pointed.split(":")[2]


def test_27_a_fenced_incarnation_stays_in_the_registry(opener: Opener, log: DecisionLog) -> None:
    name = log.incarnation
    other = opener()
    other.fence(name)
    other.fence(name)
    log.close()
    assert opener().incarnations()[name] is IncarnationState.FENCED
    assert other.is_fenced(name)


def test_16_an_incarnation_of_another_log_cannot_be_fenced_and_so_never_becomes_ours(log: DecisionLog) -> None:
    stranger = new_incarnation()
    with pytest.raises(LogError, match="left alone"):
        log.fence(stranger)
    assert not log.is_fenced(stranger)
    assert stranger not in log.incarnations()


def test_an_incarnation_is_alive_until_its_log_is_closed(opener: Opener, log: DecisionLog) -> None:
    name = log.incarnation
    other = opener()
    assert other.incarnations() == {name: IncarnationState.ALIVE}
    assert log.incarnations() == {name: IncarnationState.ALIVE}
    log.close()
    assert other.incarnations() == {name: IncarnationState.DEAD}


def test_reading_a_log_registers_no_incarnation(opener: Opener, log: DecisionLog) -> None:
    log.finish("txp1:etl-1:aaaaaaaaaaaa:1")
    log.abort("txp1:etl-1:aaaaaaaaaaaa:1")
    log.decisions(), log.heuristics(), log.pointers()
    assert opener().incarnations() == {}


def test_5_a_finished_mark_lasts_until_it_is_purged(opener: Opener, log: DecisionLog) -> None:
    gtrid = gtrid_of(log)
    log.finish(gtrid)
    log.finish(gtrid)
    assert opener().finished() == {gtrid}
    opener().purge([gtrid])
    assert log.finished() == set()


def test_purge_drops_decision_mark_pointer_and_abort_record(opener: Opener, log: DecisionLog) -> None:
    decided, aborted, kept = (gtrid_of(log, number) for number in (1, 2, 3))
    log.record(decided, branches_of(decided))
    log.finish(decided)
    log.point(kept, "ledger")
    log.abort(aborted)
    other = opener()
    other.purge([decided, aborted])
    assert (other.decisions(), other.aborted(), other.finished(), other.pointers()) == (
        {},
        set(),
        set(),
        {kept: "ledger"},
    )
    other.purge([kept])
    assert log.pointers() == {}


def test_a_heuristic_outcome_is_kept_as_first_noted_until_it_is_dismissed(opener: Opener, log: DecisionLog) -> None:
    first = Heuristic("g", "1:orders:L", "orders", "commit", "rolled back", 1.0)
    other = Heuristic("h", "1:orders:L", "orders", "rollback", "committed", 2.0)
    for heuristic in (first, other, Heuristic("g", "1:orders:L", "orders", "commit", "lost", 3.0)):
        log.record_heuristic(heuristic)
    assert opener().heuristics() == [first, other]
    log.dismiss_heuristics("g")
    assert opener().heuristics() == [other]


@pytest.mark.parametrize(("point", "landed"), [("log.record", False), ("log.recorded", True)], ids=["before", "after"])
def test_a_failpoint_stands_on_each_side_of_the_decision(log: DecisionLog, point: str, landed: bool) -> None:
    gtrid = gtrid_of(log)
    with failpoints.arming(point), pytest.raises(failpoints.Failpoint):
        log.record(gtrid, branches_of(gtrid))
    assert (gtrid in log.decisions()) is landed


def test_failpoints_stand_before_abort_records_and_marks(log: DecisionLog) -> None:
    gtrid = gtrid_of(log)
    with failpoints.arming("log.abort"), pytest.raises(failpoints.Failpoint):
        log.abort(gtrid)
    with failpoints.arming("log.finish"), pytest.raises(failpoints.Failpoint):
        log.finish(gtrid)
    assert (log.aborted(), log.finished()) == (set(), set())


def test_15_a_log_opened_under_another_nodes_name_is_refused(tmp_path: Path) -> None:
    SqliteLog(tmp_path / "log", node="etl-1", create=True).close()
    with pytest.raises(LogError, match=r"etl-1.*etl-2"):
        SqliteLog(tmp_path / "log", node="etl-2", create=True)
    with pytest.raises(LogError, match=r"etl-1.*etl-2"):
        MemoryLog(MemoryDisk("etl-1"), node="etl-2")


def test_the_url_names_the_store(tmp_path: Path) -> None:
    log = open_log(f"sqlite:///{tmp_path}/log", node="n", create=True)
    assert isinstance(log, SqliteLog)
    log.close()
    assert (tmp_path / "log" / "log.db").exists()
    assert isinstance(open_log("memory:", node="n"), MemoryLog)
    assert folder_of("sqlite:///txlog") == Path("txlog")
    assert folder_of("sqlite:////var/txlog") == Path("/var/txlog")


@pytest.mark.parametrize("url", ["sqlite:///", "sqlite:txlog", "postgres:///x", "txlog"])
def test_a_url_of_no_store_is_refused(url: str) -> None:
    with pytest.raises(ConfigurationError, match="sqlite:///folder"):
        open_log(url, node="n")


@pytest.mark.parametrize("few", [packed.FEW, 3], ids=["few", "very many"])
@pytest.mark.parametrize("count", [0, 3, 7])
def test_decisions_are_read_in_parts(
    opener: Opener, log: DecisionLog, count: int, few: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(decisions, "PAGE", 3)
    monkeypatch.setattr(packed, "FEW", few)
    gtrids = [gtrid_of(log, number) for number in range(3 * count)]
    for place, gtrid in enumerate(gtrids):
        if place % 3 == 0:
            log.record(gtrid, branches_of(gtrid))
        elif place % 3 == 1:
            log.abort(gtrid)
        else:
            log.note_last(gtrid, "ledger")
    found = opener().decisions()
    assert sorted(found) == sorted(gtrids[::3])
    assert {gtrid: each.branches for gtrid, each in found.items()} == {
        gtrid: tuple(branches_of(gtrid)) for gtrid in gtrids[::3]
    }
    assert len(found) == count
