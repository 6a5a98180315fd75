"""Decisions as rows: read by anybody, never taken for absent, and gone once they are forgotten."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest

import txpool
from tests.integration.log.tables import NODE, decided, gtrid_of
from tests.support.log_places import LogPlace
from txpool.config.secrets import Secret
from txpool.errors import LogError
from txpool.log import SqlLog
from txpool.resources.base import BranchRecord
from txpool.tm.manager import configure
from txpool.xid import make_xid

if TYPE_CHECKING:
    from tests.conftest import Databases


def test_a_decision_is_a_row_that_anybody_can_read(place: LogPlace, log: SqlLog) -> None:
    gtrid = gtrid_of(log)
    log.record(gtrid, [BranchRecord(make_xid(gtrid, 1, "orders"), "orders", "7412/5", {"xid": "771"})])
    rows = place.rows("one", "SELECT gtrid, branches FROM txpool_decisions")
    assert rows == [(gtrid, '[["1:orders:L","orders","7412/5",{"xid":"771"}]]')]
    rows = place.rows("one", "SELECT name, node, fenced FROM txpool_incarnations")
    assert rows == [(log.incarnation, NODE, 0)]


def test_a_damaged_decision_is_an_error_and_never_absent(place: LogPlace, log: SqlLog) -> None:
    log.record(gtrid_of(log), [])
    place.execute("one", "UPDATE txpool_decisions SET branches = '[[1'")
    with pytest.raises(LogError, match=r"is damaged.*Nothing was done"):
        log.decisions()


def test_what_was_forgotten_goes_in_batches_and_at_close(place: LogPlace, log: SqlLog) -> None:
    gtrids = [gtrid_of(log, number) for number in range(101)]
    for gtrid in gtrids:
        log.record(gtrid, [])
    for gtrid in gtrids[:99]:
        log.forget(gtrid)
    assert len(decided(place)) == 101
    log.forget(gtrids[99])
    assert decided(place) == {gtrids[100]}
    log.forget(gtrids[100])
    log.close()
    assert decided(place) == set()
    with pytest.raises(LogError, match="closed"):
        log.abort(gtrids[0])


def test_more_threads_than_connections_decide_each_their_own(
    place: LogPlace, log: SqlLog, apart: ThreadPoolExecutor
) -> None:
    gtrids = [gtrid_of(log, number) for number in range(200)]
    list(apart.map(lambda gtrid: log.record(gtrid, []), gtrids))
    assert decided(place) == set(gtrids)


def test_a_transaction_over_two_databases_decides_in_the_shared_log(databases: Databases, place: LogPlace) -> None:
    for name in ("one", "two"):
        databases.execute(name, "CREATE TABLE t (id integer PRIMARY KEY)")
    manager = configure(node_name=NODE, log_url=place.url(), log_password=Secret(place.password), log_create=True)
    sources = [databases.datasource(name, mode="xa") for name in ("one", "two")]
    try:
        with txpool.transaction() as transaction:
            for source in sources:
                source.connect().cursor().execute("INSERT INTO t VALUES (1)")
        assert decided(place) == {transaction.gtrid}  # to be forgotten lazily
        assert databases.rows("one", "SELECT id FROM t") == databases.rows("two", "SELECT id FROM t") == [(1,)]
    finally:
        for source in sources:
            source.close()
        manager.close()
    assert decided(place) == set()
    assert databases.prepared() == []
