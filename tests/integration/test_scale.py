"""The simulation of very many against what servers have done: round trips, flushes and rows of a small run."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import TYPE_CHECKING

import psycopg
import pytest

import txpool
from tests.benchmarks.prepared import adopt, prepared_records
from tests.models.scale import Costs, job, shared_log
from tests.support.server_log import LoggedPostgres, ServerLog
from tests.support.waiting import until
from txpool.config.secrets import Secret
from txpool.log import SqlLog
from txpool.resources.base import BranchRecord
from txpool.xid import make_gtrid, make_xid

if TYPE_CHECKING:
    from tests.conftest import Require

#: Counts do not depend on costs if nobody waits for anybody.
COSTS = Costs(100, 100, 0, 100, 0, 50, 100, 5, 400, 80, 50_000, 3_000_000)
_FSYNCS = "select sum(fsyncs) from pg_stat_io where object = 'wal' and backend_type = 'client backend'"
_OTHERS = "select 1 from pg_stat_activity where backend_type = 'client backend' and pid <> pg_backend_pid()"


@pytest.fixture(scope="module")
def server(require: Require) -> Iterator[LoggedPostgres]:
    """A server that says which statements it was sent. It flushes what it writes, and nobody else does."""
    server = LoggedPostgres()
    server.settings |= {"max_prepared_transactions": "2000", "wal_writer_delay": "10s"}
    with server:
        with psycopg.connect(server.dsn("one"), autocommit=True) as connection:
            connection.execute("create table t (a integer)")
            connection.execute("alter role current_user set log_statement = 'all'")
        yield server


class Watched:
    """What the server does from now on."""

    def __init__(self, server: LoggedPostgres) -> None:
        self._server = server
        self._before = self._fsyncs()
        self._log = ServerLog(server)

    def counts(self, pattern: str) -> tuple[int, int]:
        """How many statements of this pattern it was sent, and how many flushes sessions have waited for."""
        statements = (each.statement or "" for each in self._log.messages())
        return sum(bool(re.match(pattern, each, re.IGNORECASE)) for each in statements), self._fsyncs() - self._before

    def _fsyncs(self) -> int:
        with psycopg.connect(self._server.dsn("postgres"), autocommit=True) as connection:
            until(lambda: not connection.execute(_OTHERS).fetchall())  # a session tells its numbers at its end
            (count,) = connection.execute(_FSYNCS).fetchone() or (0,)
            return int(count)


@pytest.mark.costly
@pytest.mark.parametrize(("branches", "connections"), [(200, 1), (200, 8), (2_000, 8)])
def test_a_job(server: LoggedPostgres, tmp_path: Path, branches: int, connections: int) -> None:
    txpool.configure(node_name="driver", log_url=f"sqlite:///{tmp_path}/txlog", log_create=True)
    with psycopg.connect(server.dsn("one"), autocommit=True) as connection:
        connection.execute("truncate t")
    options = {"driver": "psycopg", "url": server.url("one"), "password": server.password}
    with txpool.DataSource("one", xa_phase_two_connections=connections, **options) as datasource:
        with txpool.transaction() as transaction:
            records = prepared_records(transaction.gtrid, [datasource], [server.dsn("one")], branches)
            adopt(transaction, [datasource], records)
            datasource.close()
            watched = Watched(server)
    round_trips, flushes = watched.counts("commit prepared")
    with psycopg.connect(server.dsn("one")) as connection:
        (rows,) = connection.execute("select count(*) from t").fetchone() or (0,)
    simulated = job(COSTS, branches, connections=connections)
    print(
        f"{branches} branches over {connections}: {round_trips} round trips, {flushes} flushes; simulated {simulated}"
    )
    assert rows == round_trips == simulated.ended.round_trips
    assert simulated.connections == connections
    if connections == 1:  # nobody shares a flush
        assert simulated.ended.flushes == branches
        assert flushes == pytest.approx(branches, rel=0.01, abs=3)  # a background flush may come first
    else:
        for each in (flushes, simulated.ended.flushes):
            assert branches / connections <= each <= branches * 1.01 + 3


@pytest.mark.costly
@pytest.mark.parametrize(("coordinators", "each"), [(4, 50), (10, 150)])
def test_a_shared_log(server: LoggedPostgres, coordinators: int, each: int) -> None:
    _, _, to_register = _decided(server, coordinators, 0)
    rows, round_trips, flushes = _decided(server, coordinators, each)
    simulated = shared_log(COSTS, coordinators, each, rate=1)
    print(f"{coordinators} coordinators, {each} decisions each: {rows} rows, {round_trips} round trips; {simulated}")
    assert rows == simulated.rows
    assert round_trips == simulated.round_trips
    assert simulated.flushes == pytest.approx(round_trips, rel=0.01)  # hardly ever do two decide at once
    assert flushes - to_register == pytest.approx(round_trips, rel=0.01, abs=3)


def _decided(server: LoggedPostgres, coordinators: int, each: int) -> tuple[int, int, int]:
    """Let so many coordinators make so many decisions each, one after the other, and forget them.

    Rows that are left, round trips and flushes, without what a coordinator that is closed forgets at last.
    """
    url, password = server.url("one"), Secret(server.password)
    SqlLog(url, node="first", create=True, password=password).close()
    watched, before = Watched(server), _rows(server)
    with ExitStack() as stack:
        logs = []
        for number in range(coordinators):
            log = stack.enter_context(closing(SqlLog(url, node=f"node-{number}", password=password)))
            logs.append(log)
            assert log.incarnation
        for number in range(each):
            for log in logs:
                gtrid = make_gtrid(log.node, log.incarnation, number)
                log.record(gtrid, [BranchRecord(make_xid(gtrid, 0, "one"), "one")])
                log.forget(gtrid)
        rows = _rows(server) - before
    at_last = coordinators if rows else 0
    round_trips, flushes = watched.counts(r"prepare txpool_record|delete from \S*txpool_decisions")
    prepares = coordinators if each else 0  # each prepares the statement that it then executes
    return rows, round_trips - prepares - at_last, flushes - at_last


def _rows(server: LoggedPostgres) -> int:
    with psycopg.connect(server.dsn("one")) as connection:
        (count,) = connection.execute("select count(*) from txpool_decisions").fetchone() or (0,)
        return int(count)
