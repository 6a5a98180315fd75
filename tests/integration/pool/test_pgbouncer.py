"""pool.enabled = false behind a real PgBouncer: what works in session and in transaction mode, and what does not."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psycopg
import pytest

from tests.support.bouncer import PROGRAM, bouncer
from tests.support.waiting import until
from txpool.check import Severity, check
from txpool.datasource import DataSource
from txpool.resources.base import BranchRecord
from txpool.spark.commit.slots import try_reserve
from txpool.tm.demarcation.block import transaction
from txpool.tm.manager import configure
from txpool.xid import make_gtrid, make_xid, new_incarnation

if TYPE_CHECKING:
    from tests.conftest import Databases, Require

Behind = Callable[..., tuple[DataSource, DataSource]]


@pytest.fixture
def behind(databases: Databases, require: Require) -> Iterator[Behind]:
    """`behind("session")`: datasources of both databases, without pools of their own, behind a bouncer in that mode."""
    require(PROGRAM, "PgBouncer: apt-get install pgbouncer")
    with ExitStack() as stack:

        def behind(mode: str, server_connections: int = 20, **options: Any) -> tuple[DataSource, DataSource]:
            port = stack.enter_context(bouncer(databases.server, mode, server_connections=server_connections))
            if mode == "transaction":
                options = {"driver_prepare_threshold": "none"} | options
            user = databases.server.user
            one, two = (
                stack.enter_context(
                    DataSource(
                        name=name,
                        driver="psycopg",
                        url=f"postgresql://{user}@127.0.0.1:{port}/{name}",
                        pool_enabled=False,
                        **options,
                    )
                )
                for name in ("one", "two")
            )
            return one, two

        yield behind


MODES = pytest.mark.parametrize("mode", ["session", "transaction"])


@MODES
def test_slots_that_a_job_has_reserved_are_free_after_it(behind: Behind, databases: Databases, mode: str) -> None:
    def held() -> int:
        ((count,),) = databases.rows(
            "one", "select count(*) from pg_locks where locktype = 'advisory' and pid is not null"
        )
        return int(count)

    one, _ = behind(mode, transaction_isolation="serializable")
    reservation = try_reserve(one, 5)
    assert reservation.enough
    assert held() == 5
    assert not try_reserve(one, 100_000).enough
    until(lambda: held() == 5)
    waiting = "select backend_xid, backend_xmin from pg_stat_activity where state = 'idle in transaction'"
    assert databases.rows("one", waiting) == [(None, None)], "vacuum has to wait"
    reservation.release()
    until(lambda: held() == 0)
    again = try_reserve(one, 5)
    assert again.enough
    again.release()


@MODES
def test_plain_connections(behind: Behind, databases: Databases, mode: str) -> None:
    databases.execute("one", "create table t (id integer primary key)")
    one, _ = behind(mode)
    for number in range(20):
        with one.connect() as connection:
            connection.execute("insert into t values (%s)", [number])
        connection.close()
    assert databases.rows("one", "select count(*) from t") == [(20,)]
    numbers = one.statistics()
    assert (numbers.created, numbers.size) == (20, 0)


@MODES
def test_a_transaction_over_two_databases(behind: Behind, databases: Databases, mode: str) -> None:
    """PREPARE TRANSACTION and COMMIT PREPARED belong to no session."""
    one, two = behind(mode)
    for name in ("one", "two"):
        databases.execute(name, "create table t (id integer primary key)")
    for number in range(10):
        with transaction():
            for each in (one, two):
                for _ in range(6):  # psycopg prepares a statement from the sixth time on
                    each.connect().execute("select %s::int", [number])
                each.connect().execute("insert into t values (%s)", [number])
    with pytest.raises(RuntimeError), transaction():
        for each in (one, two):
            each.connect().execute("insert into t values (100)")
        raise RuntimeError
    for name in ("one", "two"):
        assert databases.rows(name, "select count(*), max(id) from t") == [(10, 9)]
    assert databases.prepared() == []


@MODES
def test_more_transactions_than_the_bouncer_has_connections(behind: Behind, databases: Databases, mode: str) -> None:
    databases.execute("one", "create table t (id integer primary key)")
    one, _ = behind(mode, 2, pool_max_size=8)

    def work(number: int) -> None:
        with one.connect() as connection:
            connection.execute("insert into t values (%s)", [number])
        connection.close()

    with ThreadPoolExecutor(8) as threads:
        list(threads.map(work, range(100)))
    assert databases.rows("one", "select count(*) from t") == [(100,)]


@MODES
def test_recovery_behind_it(behind: Behind, databases: Databases, mode: str) -> None:
    one, _ = behind(mode)
    xid = make_xid(make_gtrid("tests", new_incarnation(), 1), 0, "one")
    with psycopg.connect(databases.dsn("one")) as connection:
        connection.execute("create table t ()")
        connection.execute(f"prepare transaction '{xid.joined}'".encode())
    recovery = one.branch_recovery()
    assert [branch.xid for branch in recovery.recover()] == [xid]
    recovery.rollback(BranchRecord(xid, "one"))
    assert databases.prepared() == []


def test_in_session_mode_a_session_is_the_users_own(behind: Behind) -> None:
    one, _ = behind("session", 1, pool_initial_sql="set work_mem to '77MB'")
    with closing(one.connect()) as connection:
        connection.execute("create temp table mine (n int)")
        connection.execute("listen news")
        connection.commit()
        connection.execute("insert into mine values (1)")
        assert connection.execute("show work_mem").fetchone() == ("77MB",)
    with closing(one.connect()) as connection:
        assert connection.execute("select to_regclass('mine')").fetchone() == (None,), "PgBouncer runs DISCARD ALL"


def test_in_transaction_mode_what_is_of_a_session_may_be_anothers(behind: Behind) -> None:
    """What docs/operations/pgbouncer.md says breaks, breaks."""
    one, _ = behind("transaction", 2)
    with closing(one.connect()) as first, closing(one.connect()) as second:
        first.execute("set work_mem to '77MB'")
        first.execute("create temp table mine (n int)")
        first.commit()
        second.execute("select 1")  # holds the server's connection that `first` had
        seen = first.execute("select current_setting('work_mem'), to_regclass('mine')::text").fetchone()
        leaked = second.execute("select current_setting('work_mem'), to_regclass('mine')::text").fetchone()
    assert ("77MB", "mine") in (seen, leaked)
    assert seen != leaked


def test_in_transaction_mode_prepared_statements_are_not_found(behind: Behind) -> None:
    one, _ = behind("transaction", 2, driver_prepare_threshold=0)
    with pytest.raises(psycopg.Error), closing(one.connect()) as first, closing(one.connect()) as second:
        for _ in range(3):
            for connection in (first, second):
                connection.execute("select %s::int", [1])
                connection.commit()
            first.execute("select %s::int", [1])
            second.execute("select %s::int", [1])
            second.commit()
            first.commit()


def test_a_log_behind_it_is_a_finding_of_the_check(behind: Behind, tmp_path: Path) -> None:
    """A lease is a lock of a session: behind PgBouncer a process that died may look alive."""
    one, _ = behind("transaction")
    file = tmp_path / "txpool.properties"
    file.write_text(f"node.name = tests\nlog.url = {one.url}\nlog.create = true\n")
    configure(file).close()
    findings = [finding for section in check(file).sections for finding in section.findings]
    assert "pooler" in {finding.topic for finding in findings if finding.severity is Severity.WRONG}
