"""Orders that locks make, between a decision and a fence, an abort record or a pointer."""

from __future__ import annotations

import random
import threading
import time
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pytest

from tests.integration.log.tables import NODE, Opener, decided, gtrid_of
from tests.support.log_places import LogPlace
from txpool.errors import LogError
from txpool.log import Refused, Resolution, SqlLog
from txpool.xid import make_gtrid


def behind_a_fence(place: LogPlace, log: SqlLog, bare: Any, apart: ThreadPoolExecutor) -> tuple[str, Future[None]]:
    """A decision that waits for somebody's fence, which is not committed yet."""
    gtrid = gtrid_of(log)
    bare.execute("UPDATE txpool_incarnations SET fenced = 1 WHERE name = %s", [log.incarnation])
    deciding = apart.submit(log.record, gtrid, [])
    place.await_blocked()
    return gtrid, deciding


def test_10_a_decision_waits_for_the_fence_in_flight_and_is_refused(
    place: LogPlace, log: SqlLog, bare: Any, apart: ThreadPoolExecutor
) -> None:
    _, deciding = behind_a_fence(place, log, bare, apart)
    bare.commit()
    with pytest.raises(Refused, match="fenced"):
        deciding.result()
    assert decided(place) == set()


def test_10_a_decision_that_waited_for_a_fence_that_came_to_nothing_is_made(
    place: LogPlace, log: SqlLog, bare: Any, apart: ThreadPoolExecutor
) -> None:
    gtrid, deciding = behind_a_fence(place, log, bare, apart)
    bare.rollback()
    deciding.result()
    assert decided(place) == {gtrid}


def test_10_a_fence_waits_for_the_decision_in_flight_and_then_sees_it(
    place: LogPlace, opener: Opener, log: SqlLog, bare: Any, apart: ThreadPoolExecutor
) -> None:
    gtrid, name, other = gtrid_of(log), log.incarnation, opener()
    # Somebody else's row under the same key holds our decision up, when it has locked its incarnation.
    bare.execute("INSERT INTO txpool_decisions (gtrid, branches, made) VALUES (%s, NULL, 0)", [gtrid])
    deciding = apart.submit(log.record, gtrid, [])
    place.await_blocked()

    def fence() -> set[str]:
        other.fence(name)
        return set(other.decisions())

    fencing: Future[set[str]] = apart.submit(fence)
    place.await_blocked(2)
    assert not fencing.done()
    bare.rollback()
    deciding.result()
    assert fencing.result() == {gtrid}


@pytest.mark.parametrize("_round", range(8))
def test_10_after_a_fence_no_decision_appears_that_it_did_not_see(
    place: LogPlace, opener: Opener, apart: ThreadPoolExecutor, _round: int
) -> None:
    seed = random.randrange(10**9)
    print(f"seed {seed}")
    chance = random.Random(seed)
    log, other = opener(), opener("etl-2", nodes="*")
    name, numbers = log.incarnation, iter(range(100_000))
    fenced = threading.Event()
    made: list[str] = []

    def decide() -> bool:
        while True:
            gtrid = make_gtrid(NODE, name, next(numbers))
            try:
                log.record(gtrid, [])
            except Refused:
                return fenced.is_set() or other.is_fenced(name)
            made.append(gtrid)

    deciding = [apart.submit(decide) for _ in range(4)]
    time.sleep(chance.uniform(0.0, 0.2))
    other.fence(name)
    seen = decided(place)
    fenced.set()
    assert all(each.result() for each in deciding)
    assert decided(place) == seen == set(made)


@pytest.mark.parametrize("lands", [True, False], ids=["it lands", "it does not"])
def test_12_an_abort_record_waits_for_the_decision_in_flight(
    place: LogPlace, log: SqlLog, bare: Any, apart: ThreadPoolExecutor, lands: bool
) -> None:
    gtrid = gtrid_of(log)
    bare.execute("INSERT INTO txpool_decisions (gtrid, branches, made) VALUES (%s, '[]', 0)", [gtrid])
    aborting = apart.submit(log.abort, gtrid)
    place.await_blocked()
    if lands:
        bare.commit()
    else:
        bare.rollback()
    assert aborting.result() is (Resolution.COMMITTED if lands else Resolution.ABORTED)
    assert decided(place) == ({gtrid} if lands else set())


def test_12_what_is_in_flight_for_too_long_cannot_be_known_now(
    place: LogPlace, opener: Opener, log: SqlLog, bare: Any
) -> None:
    gtrid, other = gtrid_of(log), opener(lock_timeout=0.2)
    bare.execute("INSERT INTO txpool_decisions (gtrid, branches, made) VALUES (%s, '[]', 0)", [gtrid])
    with pytest.raises(LogError, match=r"(?i)lock (wait )?timeout"):
        other.abort(gtrid)
    bare.commit()
    assert other.abort(gtrid) is Resolution.COMMITTED


def test_8_an_abort_record_waits_for_the_pointer_in_flight(
    place: LogPlace, log: SqlLog, bare: Any, apart: ThreadPoolExecutor
) -> None:
    gtrid = gtrid_of(log)
    bare.execute("INSERT INTO txpool_pointers (gtrid, datasource) VALUES (%s, 'ledger')", [gtrid])
    pointing = apart.submit(log.point, gtrid, "ledger")
    place.await_blocked()
    aborting = apart.submit(lambda: (log.abort(gtrid), log.pointers()))
    place.await_blocked(2)
    bare.rollback()
    pointing.result()
    assert aborting.result() == (Resolution.ABORTED, {gtrid: "ledger"})


def test_8_a_pointer_waits_for_the_abort_record_in_flight_and_is_refused(
    place: LogPlace, log: SqlLog, bare: Any, apart: ThreadPoolExecutor
) -> None:
    gtrid = gtrid_of(log)
    bare.execute("INSERT INTO txpool_decisions (gtrid, branches, made) VALUES (%s, NULL, 0)", [gtrid])
    pointing = apart.submit(log.point, gtrid, "ledger")
    place.await_blocked()
    bare.commit()
    with pytest.raises(Refused, match="aborted"):
        pointing.result()
    assert place.rows("one", "SELECT * FROM txpool_pointers") == []
