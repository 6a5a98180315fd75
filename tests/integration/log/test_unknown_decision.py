"""A decision of which nobody knows whether it was written, until an abort record has established it."""

from __future__ import annotations

import itertools
import signal
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from tests.integration.log.tables import Spawn, decided, gtrid_of
from tests.support.children import said, tell
from tests.support.log_places import LogPlace
from txpool.errors import LogError, LogUnknown
from txpool.log import Refused, Resolution, SqlLog
from txpool.xid import make_gtrid

_TOUCHED = "SELECT touched FROM txpool_decisions"  # InnoDB writes nothing for an update that changes nothing


def test_12_a_server_that_crashes_under_the_decision_leaves_it_unknown_until_an_abort_record_wins(
    place: LogPlace, log: SqlLog, apart: ThreadPoolExecutor
) -> None:
    gtrid = gtrid_of(log)
    bare = place.connect(autocommit=False)
    bare.execute("SELECT name FROM txpool_incarnations FOR UPDATE")
    deciding = apart.submit(log.record, gtrid, [])
    place.await_blocked()
    place.server.stop("immediate")
    bare.close()
    with pytest.raises(LogUnknown, match="may or may not be written"):
        deciding.result()
    with pytest.raises(LogError):
        log.abort(gtrid)
    place.server.start()
    assert log.abort(gtrid) is Resolution.ABORTED
    with pytest.raises(Refused):
        log.record(gtrid, [])
    assert place.rows("one", "SELECT gtrid, branches FROM txpool_decisions") == [(gtrid, None)]


@pytest.mark.parametrize("place", ["postgresql"], indirect=True)
def test_12_a_decision_that_landed_though_its_answer_was_lost_is_met_by_the_abort_record(
    place: LogPlace, log: SqlLog, apart: ThreadPoolExecutor
) -> None:
    incarnation = log.incarnation  # registered before there is anything to wait for
    # A commit that waits for a standby that is not there is on disk already.
    place.execute("one", "ALTER SYSTEM SET synchronous_standby_names = 'nobody'")
    place.execute("one", "SELECT pg_reload_conf()")
    try:
        waiting = "SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity WHERE wait_event = 'SyncRep'"
        ended: list[tuple[Any, ...]] = []
        for number in itertools.count(1):
            gtrid = make_gtrid(log.node, incarnation, number)
            deciding = apart.submit(log.record, gtrid, [])
            while not deciding.done() and not ended:
                ended = place.rows("one", waiting)
            if ended:
                break  # the server took its time to hear of the standby; those before this one did not wait
        with pytest.raises(LogUnknown):
            deciding.result()
    finally:
        place.execute("one", "ALTER SYSTEM RESET synchronous_standby_names")
        place.execute("one", "SELECT pg_reload_conf()")
    assert log.abort(gtrid) is Resolution.COMMITTED
    assert gtrid in decided(place)


def test_12_an_abort_record_that_meets_the_decision_writes_before_it_answers(place: LogPlace, log: SqlLog) -> None:
    """What was read may have been made by a server that nobody flushed: the write behind it is."""
    gtrid = gtrid_of(log)
    log.record(gtrid, [])
    version = "SELECT xmin::text FROM txpool_decisions" if place.kind == "postgresql" else _TOUCHED
    ((before,),) = place.rows("one", version)
    assert log.abort(gtrid) is Resolution.COMMITTED
    ((after,),) = place.rows("one", version)
    assert before != after


def test_an_interrupt_leaves_the_decision_unknown_and_the_log_usable(
    place: LogPlace, spawn: Spawn, bare: Any, log: SqlLog
) -> None:
    process = spawn("""
        gtrid = make_gtrid(node, log.incarnation, 1)
        say("ready"); heard()
        try:
            log.record(gtrid, [])
        except KeyboardInterrupt:
            say("interrupted", log.abort(gtrid).name); heard()
            say(decide(2))
    """)
    assert said(process) == ["ready"]
    bare.execute("SELECT name FROM txpool_incarnations FOR UPDATE")
    tell(process, "go")
    place.await_blocked()
    process.send_signal(signal.SIGINT)
    assert said(process) == ["interrupted", "ABORTED"]
    bare.rollback()
    tell(process, "go")
    assert set(said(process)) == decided(place) != set()
