"""Transactions over MariaDB, MySQL and PostgreSQL, as users write them."""

from __future__ import annotations

import logging
import os
import threading
from contextlib import nullcontext

import pytest

import txpool
from tests.conftest import Databases
from tests.integration.resources.mysql.branches import SLEEPING, BranchDatabase, both
from tests.support.mysql_proxy import Fault
from tests.support.waiting import until
from txpool import failpoints
from txpool.tm.ambient import make_ambient
from txpool.tm.subordinate import Subordinate


def test_two_databases_of_one_server(managed: BranchDatabase) -> None:
    sources = managed.datasource("one"), managed.datasource("two")
    for number in (1, 2):
        with txpool.transaction():
            for source in sources:
                with source.connect() as connection, connection.cursor() as cursor:
                    assert cursor.execute("insert into work values (%s, %s)", [number, 0]) == 1
    assert both(managed) == [[1, 2], [1, 2]]
    with pytest.raises(ZeroDivisionError), txpool.transaction():
        for source in sources:
            source.connect().cursor().execute("insert into work values (3, 3)")
        raise ZeroDivisionError
    assert both(managed) == [[1, 2], [1, 2]]
    assert managed.server.prepared() == []
    for source in sources:  # each has used one session throughout, which needed no reset
        statistics = source.statistics()
        assert (statistics.created, statistics.destroyed) == (1, 0)


@pytest.mark.parametrize("enlisted", [False, True])
def test_a_statement_by_the_drivers_name_for_it(managed: BranchDatabase, enlisted: bool) -> None:
    with txpool.transaction() if enlisted else nullcontext(), managed.datasource().connect() as connection:
        cursor = connection.cursor()
        assert cursor.execute(query="insert into work values (%s, 1)", args=(1,)) == 1
        assert cursor.executemany(query="insert into work values (%s, 1)", args=[(2,), (3,)]) == 2
        assert cursor.execute(query="select id from work order by id") == 3
        for method in (cursor.execute, cursor.executemany):
            with pytest.raises(TypeError, match="'query'"):
                method()


def test_with_postgresql(managed: BranchDatabase, databases: Databases) -> None:
    databases.execute("one", "create table work (id int)")
    postgresql = databases.datasource("one", "pg")
    source = managed.datasource()
    with postgresql:
        with txpool.transaction():
            for each in (postgresql, source):
                each.connect().cursor().execute("insert into work (id) values (%s)", [1])
        with pytest.raises(txpool.Error), txpool.transaction():
            for each in (source, postgresql):
                each.connect().cursor().execute("insert into work (id) values (%s)", [2])
            source.connect().cursor().execute("insert into work (id) values (%s)", [2])
    assert managed.rows() == [1]
    assert databases.rows("one", "select id from work") == [(1,)]


def test_a_lost_reply_to_commit_is_success_and_no_heuristic(
    managed: BranchDatabase, caplog: pytest.LogCaptureFixture
) -> None:
    proxy = managed.proxy()
    sources = managed.datasource("one", port=proxy.port), managed.datasource("two")
    with txpool.transaction() as tx:
        for source in sources:
            source.connect().cursor().execute("insert into work values (1, 1)")
        proxy.fail_at(b"xa commit", Fault.CUT_AFTER)
    assert proxy.failed.is_set()
    assert tx.status.value == "committed"
    assert both(managed) == [[1], [1]]
    assert [each for each in caplog.records if each.levelno >= logging.WARNING] == []


def test_phases_overlap(managed: BranchDatabase) -> None:
    """Both PREPAREs are sent before an answer is read, and so are both COMMITs."""
    sources = managed.datasource("one"), managed.datasource("two")
    unread: dict[str, list[int]] = {}
    raws: list[object] = []

    def look(point: str) -> None:
        unread[point] = [raw.unread for raw in raws]  # type: ignore[attr-defined]

    with txpool.transaction():
        for source in sources:
            connection = source.connect()
            connection.cursor().execute("insert into work values (1, 1)")
            raws.append(connection.enlistment.raw)
        for point in ("coordinator.preparing", "coordinator.committing"):
            failpoints.arm(point, lambda point=point: look(point))
    assert unread == {"coordinator.preparing": [3, 3], "coordinator.committing": [2, 2]}


def test_a_deadlock_is_transient(managed: BranchDatabase) -> None:
    managed.server.execute("insert into work values (1, 0), (2, 0)", database="one")
    source = managed.datasource()
    barrier = threading.Barrier(2, timeout=60)
    tries: list[int] = []

    @txpool.transactional(attempts=5)
    def swap(first: int, second: int) -> None:
        tries.append(first)
        cursor = source.connect().cursor()
        cursor.execute("update work set v = v + 1 where id = %s", [first])
        if len(tries) <= 2:
            barrier.wait()
        cursor.execute("update work set v = v + 1 where id = %s", [second])

    threads = [threading.Thread(target=swap, args=order) for order in ((1, 2), (2, 1))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(tries) == 3
    assert managed.server.execute("select v from work", database="one") == [(2,), (2,)]


def test_a_read_only_transaction_is_neither_prepared_nor_decided(managed: BranchDatabase) -> None:
    managed.server.execute("insert into work values (1, 0)", database="one")
    reader = managed.datasource("one", transaction_read_only=True)
    writer = managed.datasource("two")
    failpoints.arm("coordinator.decided", "raise")
    with txpool.transaction():
        writer.connect().cursor().execute("insert into work values (7, 7)")
        cursor = reader.connect().cursor()
        cursor.execute("select id from work")
        assert cursor.fetchall() == ((1,),)
        with pytest.raises(txpool.Error) as refused:
            cursor.execute("insert into work values (2, 2)")
        assert refused.value.args[0] == 1792
    assert not failpoints.reached("coordinator.decided")
    assert both(managed) == [[1], [7]]


@pytest.mark.parametrize("isolation", ["read-uncommitted", "read-committed", "repeatable-read", "serializable"])
def test_isolation(managed: BranchDatabase, isolation: str) -> None:
    source = managed.datasource()
    name = "@@tx_isolation" if managed.server.is_mariadb else "@@transaction_isolation"
    managed.server.execute("insert into work values (1, 0)", database="one")
    with txpool.transaction(isolation=isolation):
        cursor = source.connect().cursor()
        cursor.execute("select v from work")
        assert cursor.fetchall() == ((0,),)
        managed.server.execute("update work set v = 1", database="one") if isolation != "serializable" else None
        cursor.execute("select v from work")
        changed = isolation in ("read-uncommitted", "read-committed")
        assert cursor.fetchall() == ((1 if changed else 0,),)
    with source.connect() as connection, connection.cursor() as cursor:
        cursor.execute(f"select {name}")
        assert cursor.fetchall() == (("REPEATABLE-READ",),), "the next user's is the server's default"


def test_commit_in_a_transaction_is_refused_and_join_has_savepoints(managed: BranchDatabase) -> None:
    strict, joining = managed.datasource("one"), managed.datasource("two", managed_commit="join")
    with txpool.transaction():
        connection = strict.connect()
        connection.cursor().execute("insert into work values (1, 1)")
        with pytest.raises(txpool.ProgrammingError):
            connection.commit()
        with pytest.raises(txpool.ProgrammingError):
            connection.autocommit(True)
        with pytest.raises(txpool.ProgrammingError):
            connection.begin()
        connection.autocommit(False)
        library = joining.connect()
        cursor = library.cursor()
        cursor.execute("insert into work values (1, 1)")
        library.commit()
        cursor.execute("insert into work values (2, 2)")
        library.rollback()
        cursor.execute("insert into work values (3, 3)")
        library.commit()
    assert both(managed) == [[1], [1, 3]]


def test_an_interrupted_statement_rolls_everything_back(managed: BranchDatabase) -> None:
    sources = managed.datasource("one"), managed.datasource("two")
    with pytest.raises(KeyboardInterrupt), txpool.transaction():
        for source in sources:
            connection = source.connect()
            connection.cursor().execute("insert into work values (1, 1)")
        timer = threading.Timer(0.3, lambda: os.kill(os.getpid(), 2))
        timer.start()
        # mysqlclient waits for the answer, whatever signal comes.
        connection.cursor().execute(f"select sleep({60 if managed.driver_name == 'pymysql' else 3})")
    assert both(managed) == [[], []]
    assert managed.server.prepared() == []
    until(lambda: not managed.server.execute(SLEEPING))


def test_a_timeout_cancels_the_statement(managed: BranchDatabase) -> None:
    source = managed.datasource()
    kills = "show global status like 'Com_kill'"
    before = managed.server.execute(kills)
    with pytest.raises(txpool.TransactionTimeout), txpool.transaction() as tx:

        def expire() -> None:
            until(lambda: managed.server.execute(SLEEPING))
            tx.expire(0.5)  # as its timer does

        threading.Thread(target=expire).start()
        source.connect().cursor().execute("insert into work values (1, 1)")
        source.connect().cursor().execute("select sleep(600)")
    assert managed.server.execute(kills) > before
    assert managed.rows() == []


@pytest.mark.parametrize("commits", [True, False])
def test_what_tasks_have_prepared_may_be_adopted_twice(managed: BranchDatabase, commits: bool) -> None:
    """As by a Spark write that is interrupted behind its adoption, and then adopts all that is listed."""
    source, tx = managed.datasource(), txpool.begin()
    txpool.suspend()
    task = Subordinate(tx.gtrid, write=1, partition=0, attempt=0)
    make_ambient(task)
    source.connect().cursor().execute("insert into work values (1, 1)")
    records = task.prepare()
    make_ambient(None)
    for _ in range(2):
        tx.adopt([source.prepared_branch(record) for record in records], late_branches=True)
    (tx.commit if commits else tx.rollback)()
    assert managed.rows() == [1] * commits
    assert managed.server.prepared() == []
    assert tx.log is not None
    assert tx.log.heuristics() == []
