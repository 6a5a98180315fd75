"""Transactions over MariaDB, MySQL and PostgreSQL, as users write them."""

from __future__ import annotations

import importlib
import logging
import os
import socket
import sqlite3
import threading
from collections.abc import Iterator
from contextlib import closing, nullcontext, suppress
from pathlib import Path
from typing import Any

import pymysql
import pytest

import txpool
from tests.conftest import Databases
from tests.integration.resources.mysql.branches import BranchDatabase
from tests.support.mysql_proxy import Fault
from txpool import failpoints
from txpool.engine import create_engine
from txpool.xid import FORMAT_ID

SLEEPING = "select 1 from information_schema.processlist where info like '%sleep(%' and id <> connection_id()"


@pytest.fixture
def managed(world: BranchDatabase, tmp_path: Path) -> Iterator[BranchDatabase]:
    """The world, with a coordinator and its log, and the table also in the server's second database."""
    world.server.execute("create table work (id int primary key, v int) engine=innodb", database="two")
    txpool.configure(node_name="tests", log_url=f"sqlite:///{tmp_path}/log", log_create=True)
    try:
        yield world
    finally:
        failpoints.disarm()
        txpool.configure()


def both(world: BranchDatabase) -> list[list[int]]:
    read = "select id from work order by id"
    return [[number for (number,) in world.server.execute(read, database=name)] for name in ("one", "two")]


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
    password = txpool.DataSource(
        name="pg", driver="psycopg", url=databases.url("one"), password=databases.server.password
    )
    source = managed.datasource()
    with password:
        with txpool.transaction():
            for each in (password, source):
                each.connect().cursor().execute("insert into work (id) values (%s)", [1])
        with pytest.raises(txpool.Error), txpool.transaction():
            for each in (source, password):
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
    barrier = threading.Barrier(2, timeout=30)
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


@pytest.fixture
def ledger(managed: BranchDatabase, tmp_path: Path) -> Iterator[txpool.DataSource]:
    """A marked SQLite file with the table."""
    made = txpool.DataSource(name="ledger", driver="sqlite3", mode="cmr", url=f"sqlite:///{tmp_path}/ledger.db")
    with made, closing(made.connect()) as connection:
        connection.execute("create table work (id integer)")
        connection.commit()
        made.xids_table().create()  # type: ignore[attr-defined]
        yield made


def in_file(ledger: txpool.DataSource, query: str) -> list[int]:
    with closing(sqlite3.connect(ledger.url.removeprefix("sqlite:///"))) as file:
        return [value for (value,) in file.execute(query)]


def pointers(tmp_path: Path) -> list[tuple[str, str]]:
    with closing(sqlite3.connect(tmp_path / "log/log.db")) as log:
        return log.execute("select gtrid, datasource from pointers").fetchall()


MARKS = "select xid from xids where xid <> 'txp1:identity'"


def work(number: int, *sources: txpool.DataSource) -> None:
    for each in sources:
        each.connect().cursor().execute(f"insert into work (id) values ({number})")


def test_35_a_marked_datasource_beside_it_decides_by_a_pointer_which_goes_after_its_row(
    managed: BranchDatabase, ledger: txpool.DataSource, tmp_path: Path
) -> None:
    source, seen = managed.datasource(), []
    failpoints.arm("coordinator.decided", lambda: seen.append((managed.server.names(), pointers(tmp_path))))
    with txpool.transaction() as tx:
        work(1, ledger, source)
    ((names, pointed),) = seen
    assert names == [f"{tx.gtrid}:1:{source.name}:L"], "named before anybody knew"
    assert [(gtrid, where.split(":")[0]) for gtrid, where in pointed] == [(tx.gtrid, "ledger")]
    assert managed.rows() == in_file(ledger, "select id from work") == [1]
    with pytest.raises(ZeroDivisionError), txpool.transaction():
        work(2, source, ledger)
        raise ZeroDivisionError
    with failpoints.arming("coordinator.prepared", "raise"), pytest.raises(txpool.Error), txpool.transaction():
        work(3, source, ledger)
    assert managed.rows() == in_file(ledger, "select id from work") == [1]
    assert [gtrid for gtrid, _ in pointers(tmp_path)] == in_file(ledger, MARKS) == [tx.gtrid]
    ledger.close()
    assert pointers(tmp_path) == []
    assert in_file(ledger, MARKS) == []


def test_35_rows_and_pointers_go_in_the_same_batches(managed: BranchDatabase, tmp_path: Path) -> None:
    source = managed.datasource()
    options = {"driver": "sqlite3", "mode": "cmr", "url": f"sqlite:///{tmp_path}/ledger.db", "cmr_batch_size": 5}
    with txpool.DataSource(name="ledger", **options) as ledger, closing(ledger.connect()) as connection:
        connection.execute("create table work (id integer)")
        connection.commit()
        ledger.xids_table().create()  # type: ignore[attr-defined]
        most = 0
        for number in range(12):
            with txpool.transaction():
                work(number, source, ledger)
            most = max(most, len(pointers(tmp_path)))
        assert most <= 6
        assert managed.rows() == in_file(ledger, "select id from work") == [*range(12)]
        txpool.configure()  # which closes the log, and so deletes before it what points
        assert pointers(tmp_path) == []


def test_35_a_marked_datasource_in_which_nothing_was_done_decides_nothing(
    managed: BranchDatabase, ledger: txpool.DataSource, databases: Databases, tmp_path: Path
) -> None:
    databases.execute("one", "create table work (id int)")
    password, seen = databases.server.password, []
    source = managed.datasource()
    with txpool.DataSource(name="pg", driver="psycopg", url=databases.url("one"), password=password) as pg:
        failpoints.arm("coordinator.decided", lambda: seen.append((managed.server.names(), pointers(tmp_path))))
        with txpool.transaction() as tx:
            ledger.connect()
            work(1, pg, source)
    assert seen == [([f"{tx.gtrid}:2:{source.name}:L"], [])]
    assert managed.rows() == [1]


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
    managed.until(lambda: not managed.server.execute(SLEEPING))


def test_a_timeout_cancels_the_statement(managed: BranchDatabase) -> None:
    source = managed.datasource()
    kills = "show global status like 'Com_kill'"
    before = managed.server.execute(kills)
    with pytest.raises(txpool.TransactionTimeout), txpool.transaction(timeout=0.5):
        source.connect().cursor().execute("insert into work values (1, 1)")
        source.connect().cursor().execute("select sleep(20)")
    assert managed.server.execute(kills) > before
    assert managed.rows() == []


def test_the_driver_as_it_is(managed: BranchDatabase) -> None:
    managed.require_pymysql()
    source = managed.datasource()
    with source.connect() as connection:
        assert isinstance(connection, pymysql.connections.Connection)
        assert connection.open
        with connection.cursor(pymysql.cursors.DictCursor) as cursor:
            cursor.execute("select 1 as a, 'x' as b")
            assert cursor.fetchone() == {"a": 1, "b": "x"}
            assert [code == txpool.STRING for _, code, *_ in cursor.description] == [False, True]
        with connection.cursor() as cursor:
            assert cursor.executemany("insert into work values (%s, 0)", [(1,), (2,)]) == 2
            assert cursor.execute("select id from work") == 2
        connection.rollback()
        assert connection.escape("it's") == "'it\\'s'"
        assert connection.get_server_info()
    assert not connection.open
    with pytest.raises(managed.module.InterfaceError):
        connection.cursor()
    assert managed.rows() == []


def test_what_a_session_has_set_is_not_the_next_users(managed: BranchDatabase) -> None:
    source = managed.datasource(pool_max_size=1)
    for statement in ("set @a = 7", "set session sql_mode = ''", "create temporary table tt (i int)", "use two"):
        with source.connect() as connection, connection.cursor() as cursor:
            cursor.execute(statement)
        with source.connect() as connection, connection.cursor() as cursor:
            cursor.execute("select @a, @@sql_mode <> '', database(), @@autocommit")
            assert cursor.fetchall() == ((None, 1, "one", 0),), statement
            with pytest.raises(managed.module.ProgrammingError):
                cursor.execute("select * from tt")
    assert source.statistics().created == 1


def test_a_forked_child_leaves_the_parents_session_alone(managed: BranchDatabase) -> None:
    source = managed.datasource()
    with txpool.transaction():
        connection = source.connect()
        cursor = connection.cursor(importlib.import_module(f"{managed.module.__name__}.cursors").SSCursor)
        cursor.execute("insert into work values (1, 1)")
        cursor.execute("select 1 union select 2")
        assert cursor.fetchone() == (1,)
        pid = os.fork()
        if pid == 0:
            try:
                cursor.fetchone()
            except BaseException:
                os._exit(0)
            os._exit(1)
        assert os.waitpid(pid, 0)[1] == 0
        assert cursor.fetchone() == (2,)
        assert cursor.fetchone() is None
    assert managed.rows() == [1]


def test_a_child_that_is_forked_while_a_thread_executes_keeps_no_way_to_the_parents_session(
    managed: BranchDatabase,
) -> None:
    source = managed.datasource()

    def sleep() -> None:
        with txpool.transaction():
            cursor = source.connect().cursor()
            cursor.execute("insert into work values (1, 1)")
            cursor.execute("select sleep(1.5)")

    before = leading_to(managed.server.port)  # other tests' may be open
    executing = threading.Thread(target=sleep)
    executing.start()
    managed.until(lambda: managed.server.execute(SLEEPING))
    (descriptor,) = leading_to(managed.server.port) - before
    pid = os.fork()
    if pid == 0:
        kept = 99
        try:
            kept = descriptor in leading_to(managed.server.port)
        finally:
            os._exit(kept)
    # The frame of the thread that reads keeps PyMySQL's socket, to which nothing is written.
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == (managed.driver_name == "pymysql")
    executing.join()
    assert managed.rows() == [1]


def leading_to(port: int) -> set[int]:
    """The descriptors of this process's sockets that lead to the port."""
    found = set()
    for each in os.listdir("/proc/self/fd"):
        with suppress(OSError), socket.socket(fileno=os.dup(int(each))) as same:
            if same.getpeername()[1:2] == (port,):
                found.add(int(each))
    return found


def test_a_statement_that_failed_leaves_nothing_for_the_next_user(managed: BranchDatabase) -> None:
    managed.server.execute("insert into work values (1, 1)", database="one")
    source = managed.datasource(pool_max_size=1)
    with source.connect() as connection, pytest.raises(managed.module.IntegrityError):
        connection.cursor().execute("insert into work values (1, 1)")
    with txpool.transaction():  # XA START is refused where a transaction is open
        source.connect().cursor().execute("insert into work values (2, 2)")
    assert managed.rows() == [1, 2]
    assert source.statistics().created == 1


def test_a_plain_select_leaves_no_snapshot_for_the_next_user(managed: BranchDatabase) -> None:
    """With autocommit off it has begun a transaction, which only the end of its result shows."""
    source = managed.datasource(pool_max_size=1)
    with source.connect() as connection:
        connection.cursor().execute("select * from work")
    with txpool.transaction():  # XA START is refused where a transaction is open
        source.connect().cursor().execute("insert into work values (2, 2)")
    assert managed.rows() == [2]
    assert source.statistics().created == 1


def test_initial_sql_stays_and_costs_no_reset(managed: BranchDatabase) -> None:
    source = managed.datasource(pool_max_size=1, pool_initial_sql="set @who = 'orders', session sql_mode = ''")
    for statement in ("select 1", "set @who = 'somebody else'", "set session sql_mode = 'ansi'"):
        with source.connect() as connection, connection.cursor() as cursor:
            cursor.execute(statement)
        with source.connect() as connection, connection.cursor() as cursor:
            cursor.execute("select @who = 'orders', @@session.sql_mode")
            assert cursor.fetchall() == ((1, ""),), statement
    assert source.statistics().created == 1


def test_sqlalchemy(managed: BranchDatabase) -> None:
    import sqlalchemy

    source = managed.datasource(managed_commit="join")
    engine = create_engine(source)
    with engine.begin() as connection:
        connection.execute(sqlalchemy.text("insert into work values (1, 1)"))
    with txpool.transaction():
        managed.datasource("two").connect().cursor().execute("insert into work values (1, 1)")
        with engine.begin() as connection:
            connection.execute(sqlalchemy.text("insert into work values (2, 2)"))
        with pytest.raises(ZeroDivisionError), engine.begin() as connection:
            connection.execute(sqlalchemy.text("insert into work values (3, 3)"))
            raise ZeroDivisionError
    assert both(managed) == [[1, 2], [1]]


@pytest.mark.parametrize("mode", ["local", "last-resource", "cmr"])
def test_other_modes(managed: BranchDatabase, databases: Databases, mode: str) -> None:
    databases.execute("one", "create table work (id int)")
    source = managed.datasource(mode=mode, name=mode)
    other = txpool.DataSource(name="pg", driver="psycopg", url=databases.url("one"), password=databases.server.password)
    if mode == "cmr":
        source.xids_table().create()  # type: ignore[attr-defined]
    with other:
        with txpool.transaction():
            source.connect().cursor().execute("insert into work values (1, 1)")
        with pytest.raises(ZeroDivisionError), txpool.transaction():
            source.connect().cursor().execute("insert into work values (2, 2)")
            raise ZeroDivisionError
        assert managed.rows() == [1]
        if mode == "local":
            with pytest.raises(txpool.ProgrammingError, match="must be alone"), txpool.transaction():
                other.connect().cursor().execute("insert into work (id) values (3)")
                source.connect()
            return
        with txpool.transaction():
            for each in (source, other):
                each.connect().cursor().execute("insert into work (id) values (3)")
        with pytest.raises(txpool.Error), txpool.transaction():
            for each in (source, other):
                each.connect().cursor().execute("insert into work (id) values (4)")
            source.connect().cursor().execute("create table x (i int)")  # which commits
        assert managed.rows() == [1, 3, 4], "what the program's own DDL has committed stays"
        assert databases.rows("one", "select id from work") == [(3,)]
        with pytest.raises(txpool.Error), txpool.transaction():
            for each in (source, other):
                each.connect().cursor().execute("insert into work (id) values (5)")
            source.connect().cursor().execute("insert into work (id) values (5)")
        assert managed.rows() == [1, 3, 4]
    assert source.statistics().created <= 2
    assert databases.prepared() == []


def test_what_a_marked_datasource_has_kept_is_told(managed: BranchDatabase, databases: Databases) -> None:
    """The others roll back, and a heuristic outcome says that this one has not, or may not have."""
    databases.execute("one", "create table work (id int)")
    managed.server.execute(
        "create table myisam (id int) engine=myisam",
        "create procedure p() begin commit; insert into work (id) values (9); end",
        database="two",
    )
    password = databases.server.password
    marked = managed.datasource("two", mode="cmr")
    marked.xids_table().create()  # type: ignore[attr-defined]
    with txpool.DataSource(name="pg", driver="psycopg", url=databases.url("one"), password=password) as pg:
        if managed.driver_name == "pymysql":  # mysqlclient does not tell
            with pytest.raises(txpool.HeuristicMixed), txpool.transaction():
                work(1, pg)
                with suppress(txpool.NotSupportedError):
                    marked.connect().cursor().execute("insert into myisam values (1)")
            assert managed.server.execute("select id from myisam", database="two") == [(1,)]
        with pytest.raises(txpool.HeuristicHazard), txpool.transaction():
            work(2, pg, marked)
            marked.connect().cursor().execute("call p()")
            work(3, marked)
    assert databases.rows("one", "select id from work") == []
    assert both(managed)[1] == [2]


@pytest.mark.parametrize("ends", ["commit release", "insert into work (id) values (2); commit"])
@pytest.mark.parametrize("committing", [True, False], ids=["commit", "rollback"])
def test_what_the_programs_own_sql_has_committed_is_told_where_its_session_is_lost(
    managed: BranchDatabase, ends: str, *, committing: bool
) -> None:
    """It ends its session, or leaves answers unread, so that nobody can ask for the savepoint."""
    if ";" in ends and managed.driver_name == "pymysql":
        pytest.skip("PyMySQL takes one statement in a message")
    marked, prepared = managed.datasource("two", mode="cmr"), managed.datasource("one")
    marked.xids_table().create()  # type: ignore[attr-defined]
    txpool.begin()
    for source in (marked, prepared):
        source.connect().cursor().execute("insert into work (id) values (1)")
    cursor = marked.connect().cursor()
    with suppress(txpool.ProgrammingError):  # PyMySQL sees it at the statement
        cursor.execute(ends)
    with pytest.raises((txpool.HeuristicHazard, txpool.HeuristicMixed)):
        (txpool.commit if committing else txpool.rollback)()
    assert managed.rows() == []
    assert (1,) in managed.server.execute("select id from work", database="two")


@pytest.mark.parametrize("mode", ["cmr", "last-resource"])
def test_who_has_written_before_his_own_read_only_transaction_is_no_reader(managed: BranchDatabase, mode: str) -> None:
    """START TRANSACTION has committed what was before it; a reader's end changes no outcome, and is not told."""
    source, others = managed.datasource("one", mode=mode, name=mode), managed.datasource("two")
    if mode == "cmr":
        source.xids_table().create()  # type: ignore[attr-defined]
    with pytest.raises(txpool.HeuristicHazard), txpool.transaction():
        work(1, others, source)
        source.connect().cursor().execute("start transaction read only")
        failpoints.arm("coordinator.prepared", "raise")
    assert both(managed) == [[1], []]


def test_a_session_that_was_killed_just_before_is_attempted_again(managed: BranchDatabase) -> None:
    source, tries = managed.datasource(), []

    @txpool.transactional(attempts=2)
    def insert() -> None:
        tries.append(1)
        source.connect().cursor().execute("insert into work values (%s, 0)", [len(tries)])

    with txpool.transaction():
        connection = source.connect()
        connection.cursor().execute("select 1")
        session = connection.enlistment.raw.session_number  # type: ignore[attr-defined]
    managed.server.end_sessions(session)
    insert()
    assert (managed.rows(), len(tries)) == ([2], 2)


@pytest.mark.parametrize("mode", ["local", "cmr"])
@pytest.mark.parametrize("committing", [True, False], ids=["commit", "rollback"])
def test_a_procedure_may_have_committed_where_the_session_is_lost_behind_it(
    managed: BranchDatabase, mode: str, *, committing: bool
) -> None:
    managed.server.execute("create procedure p() begin commit; insert into work values (2, 2); end", database="one")
    source, other = managed.datasource("one", mode=mode, name=mode), managed.datasource("two")
    if mode == "cmr":
        source.xids_table().create()  # type: ignore[attr-defined]
    txpool.begin()
    cursor = source.connect().cursor()
    cursor.execute("insert into work values (1, 1)")
    if mode == "cmr":
        work(1, other)
    cursor.execute("call p()")
    managed.server.end_sessions(source.connect().enlistment.raw.session_number)  # type: ignore[attr-defined]
    with pytest.raises((txpool.HeuristicError, txpool.TransactionInDoubt)):
        (txpool.commit if committing else txpool.rollback)()
    assert both(managed) == [[1], []]


@pytest.mark.parametrize("ends", ["commit {} one phase", "rollback {}"])
@pytest.mark.parametrize("committing", [True, False], ids=["commit", "rollback"])
@pytest.mark.parametrize("beside", [True, False], ids=["beside another", "alone"])
def test_a_program_cannot_end_its_branch_and_begin_it_again(
    managed: BranchDatabase, ends: str, *, committing: bool, beside: bool
) -> None:
    """The second half would be prepared under the first one's name, and the outcome told be that of a part."""
    source, other = managed.datasource("one"), managed.datasource("two")
    txpool.begin()
    cursor = source.connect().cursor()
    cursor.execute("insert into work values (1, 1)")
    if beside:
        work(1, other)
    xid = source.connect().enlistment.branch.record.xid  # type: ignore[attr-defined]
    name = f"'{xid.gtrid}','{xid.bqual}',{FORMAT_ID}"
    for command in (f"end {name}", ends.format(name), f"start {name}"):
        with pytest.raises(txpool.ProgrammingError, match="Nothing was sent"):
            cursor.execute(f"xa {command}")
    cursor.execute("xa recover")
    cursor.execute("insert into work values (2, 2)")
    (txpool.commit if committing else txpool.rollback)()
    assert both(managed) == ([[1, 2], [1] if beside else []] if committing else [[], []])
    assert source.statistics().destroyed == 0


def test_a_program_commands_its_own_branches_outside_a_transaction(managed: BranchDatabase) -> None:
    with managed.datasource().connect() as connection:
        cursor = connection.cursor()
        for command in ("start 'a'", "end 'a'", "commit 'a' one phase"):
            cursor.execute(f"xa {command}")


def test_a_statement_tells_what_it_tells_without_txpool(managed: BranchDatabase) -> None:
    """How many rows it has changed, and the new row's number: in the server's answer each has one byte, or more."""
    managed.server.execute(
        "create table mine (id bigint auto_increment primary key, v int) engine=innodb",
        "create table bare (id bigint auto_increment primary key, v int) engine=innodb",
        database="one",
    )
    statements = [
        "insert into {} (v) values (1)",
        f"insert into {{}} (v) values {', '.join(['(2)'] * 250)}",
        f"insert into {{}} (v) values {', '.join(['(3)'] * 251)}",
        "insert into {} (v) values (4)",
        "insert into {} values (70000, 5)",
        "insert into {} values (5000000000, 6)",
        "insert ignore into {} (id, v) values (1, 7)",
        "update {} set v = 8",
        "update {} set v = 8",
        "select id, v from {} order by id",
        "delete from {} where v = 9",
    ]

    def told(cursor: Any, table: str) -> list[object]:
        said: list[object] = []
        for statement in statements:
            returned = cursor.execute(statement.format(table))
            warnings = getattr(cursor, "warning_count", None)  # mysqlclient's cursor has none
            said.append((returned, cursor.rowcount, cursor.lastrowid, warnings, cursor.fetchall()))
        return said

    module = importlib.import_module({"pymysql": "pymysql", "mysqlclient": "MySQLdb"}[managed.driver_name])
    server = managed.server
    account = {"host": "127.0.0.1", "port": server.port, "user": server.user, "password": server.password}
    with closing(module.connect(database="one", **account)) as connection:
        expected = told(connection.cursor(), "bare")
    with txpool.transaction(), managed.datasource("one").connect() as connection:
        assert told(connection.cursor(), "mine") == expected
    with managed.datasource("one", name="plain").connect() as connection:
        connection.cursor().execute("delete from mine")
        connection.cursor().execute("alter table mine auto_increment = 1")
        assert told(connection.cursor(), "mine") == expected
