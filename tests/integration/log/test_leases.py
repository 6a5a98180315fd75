"""Leases: who looks at one, who has lost one, and who is fenced."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from tests.integration.log.tables import NODE, Opener, decided, fences, gtrid_of
from tests.support.log_places import LogPlace
from txpool.errors import LogError
from txpool.log import IncarnationState, Refused, SqlLog
from txpool.resources.postgresql.log.server import key_of
from txpool.xid import make_gtrid, new_incarnation, split_gtrid


@pytest.mark.parametrize("place", ["postgresql"], indirect=True)
def test_two_that_look_at_once_do_not_take_each_other_for_the_owner(opener: Opener, log: SqlLog, bare: Any) -> None:
    former = opener()
    name = former.incarnation
    assert log.incarnations() == {name: IncarnationState.ALIVE}
    former.close()
    bare.execute("SELECT pg_advisory_xact_lock_shared(%s)", [key_of(name)])  # as another that is looking now
    assert log.incarnations() == {name: IncarnationState.DEAD}


def test_11_who_lost_the_lease_and_was_fenced_is_refused_and_goes_on_under_a_new_name(
    place: LogPlace, opener: Opener, log: SqlLog
) -> None:
    old, gtrid, other = log.incarnation, gtrid_of(log), opener()
    place.cut_lease(NODE)
    assert other.incarnations() == {old: IncarnationState.DEAD}
    other.fence(old)
    with pytest.raises(Refused, match=f"{gtrid} was not decided, and rolls back.*fenced by recovery"):
        log.record(gtrid, [])
    new = log.incarnation
    again = gtrid_of(log)
    log.record(again, [])
    assert decided(place) == {again}
    assert other.incarnations() == {old: IncarnationState.FENCED, new: IncarnationState.ALIVE}


def test_who_lost_the_lease_notices_before_the_next_transaction_and_fences_the_old_name(
    place: LogPlace, log: SqlLog
) -> None:
    old, late = log.incarnation, gtrid_of(log, 1)
    log.record(gtrid_of(log, 2), [])
    place.cut_lease(NODE)
    new = log.incarnation
    assert new != old
    assert log.incarnation == new
    assert fences(place) == {old: 1, new: 0}
    with pytest.raises(Refused):
        log.record(late, [])


def test_a_lost_lease_alone_refuses_nothing(place: LogPlace, log: SqlLog) -> None:
    gtrid = gtrid_of(log)
    place.cut_lease(NODE)
    log.record(gtrid, [])
    assert decided(place) == {gtrid}


def test_threads_that_notice_at_once_take_one_new_name(place: LogPlace, log: SqlLog, apart: ThreadPoolExecutor) -> None:
    old = log.incarnation
    place.cut_lease(NODE)
    names = set(apart.map(lambda _: log.incarnation, range(20)))
    assert len(names) == 1
    assert set(fences(place)) == {old, *names}


def test_22_a_restart_of_the_server_frees_every_lease_and_all_go_on(place: LogPlace, opener: Opener) -> None:
    first, second = opener("etl-1"), opener("etl-2", nodes="*")
    old, gtrid = first.incarnation, gtrid_of(first)
    first.record(gtrid, [])
    place.server.restart("immediate")
    assert second.incarnations() == {old: IncarnationState.DEAD}
    assert decided(place) == {gtrid}
    new = first.incarnation
    assert second.incarnations() == {old: IncarnationState.FENCED, new: IncarnationState.ALIVE}
    first.record(gtrid_of(first, 2), [])


def test_24_each_fence_is_a_write(place: LogPlace, log: SqlLog, opener: Opener) -> None:
    name, other = log.incarnation, opener()
    for times in (1, 2, 3):
        other.fence(name)
        assert fences(place) == {name: times}


def test_an_unknown_incarnation_is_left_alone(place: LogPlace, log: SqlLog) -> None:
    gtrid = make_gtrid(NODE, new_incarnation(), 1)
    with pytest.raises(Refused, match="not registered"):
        log.record(gtrid, [])
    with pytest.raises(LogError, match="left alone"):
        log.fence(split_gtrid(gtrid).incarnation)
    assert decided(place) == set()
    assert fences(place) == {}
