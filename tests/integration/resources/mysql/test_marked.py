"""The marked datasource in MariaDB and MySQL: what the program's own SQL, the server and its settings do to a mark.

What it shares with other databases is in tests/integration/resources/marked.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from threading import Thread
from typing import Any

import pymysql
import pytest

import txpool
from tests.integration.resources.marked.ledger import Ledger, new_gtrid, opened, others
from tests.support.mysql import MySQLServer, mariadb_program
from txpool.errors import Error, NotSupportedError, ProgrammingError
from txpool.resources.base import BranchOutcome, Refused
from txpool.resources.marked.branch import MarkedTransaction
from txpool.resources.marked.cleanup import CleanupQueue
from txpool.resources.marked.xids import Xids


@pytest.fixture(params=["mariadb", "mysql8"])
def ledger(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Ledger]:
    with opened(request.param, tmp_path, request) as ledger:
        ledger.xids.create()
        ledger.server = request.getfixturevalue(request.param)  # type: ignore[attr-defined]
        yield ledger


def delete_that_waits(ledger: Ledger, cursor: Any) -> Thread:
    """The thread in which it deletes a row that another transaction has locked, once it waits for that."""
    waiting = Thread(target=lambda: cursor.execute("delete from parent where id = 1"))
    waiting.start()
    running = "select 1 from information_schema.innodb_trx where trx_state = 'LOCK WAIT'"
    while not ledger.query_rows(running):
        assert waiting.is_alive()
        time.sleep(0.15)  # InnoDB's view stays as it was while it is read more often
    return waiting


def server_of(ledger: Ledger) -> MySQLServer:
    found: MySQLServer = ledger.server  # type: ignore[attr-defined]
    return found


DDL = ["create table x (i int)", "truncate table parent"]
ENDS = ["commit", "rollback", "begin", *DDL, "set autocommit = 1", "call p()"]


@pytest.mark.parametrize("again", [False, True], ids=["first on its connection", "second"])
@pytest.mark.parametrize("ends", ENDS)
def test_what_ends_the_transaction_is_found_by_the_savepoint(ledger: Ledger, ends: str, again: bool) -> None:
    """Though the program goes on, so that a transaction is open again, and nobody has looked at each statement."""
    server_of(ledger).execute("create procedure p() begin commit; end", database="one")
    before = {}
    if again:
        _, decided = ledger.decided()
        before = {decided: "commit"}
        branch = MarkedTransaction("ledger", ledger.driver, ledger.raw, xids=ledger.xids, cleanup=ledger.cleanup)
        ledger.driver.begin(ledger.raw)
        ledger.raw.execute("insert into work values (1, null)")
    else:
        branch = ledger.branch()
    gtrid = new_gtrid()
    ledger.raw.execute(ends)
    ledger.raw.execute("insert into work values (2, null)")
    with pytest.raises(Refused, match="ended before it"):
        branch.mark(gtrid, others(gtrid))
    assert branch.rollback() is BranchOutcome.LOST, "a part of it may be committed"
    assert ledger.rows() == before
    assert (2,) not in ledger.query_rows("select id from work") or ends == "set autocommit = 1"


@pytest.mark.parametrize("ends", ENDS[:-1])
def test_what_ends_the_transaction_is_seen_at_the_statement(ledger: Ledger, ends: str) -> None:
    ledger.branch()
    ended = ledger.driver.ended_by(ledger.raw, ledger.raw.execute(ends))
    if ends == "begin":  # a transaction is open, and it is another one: only the savepoint knows
        assert ended is None
    else:
        assert ended == ("rollback" if ends == "rollback" else "commit")


@pytest.mark.parametrize("marked", [True, False])
def test_a_deadlock_that_was_swallowed_commits_no_half(ledger: Ledger, marked: bool) -> None:
    ledger.write("insert into parent values (1), (2), (3), (4), (5)")
    branch, gtrid = ledger.branch(), new_gtrid()
    ledger.raw.execute("delete from parent where id = 1")
    other = server_of(ledger).connect("one", autocommit=False)
    with other.cursor() as cursor:
        cursor.execute("delete from parent where id > 1")
        waiting = delete_that_waits(ledger, cursor)
        with pytest.raises(pymysql.OperationalError) as caught:
            ledger.raw.execute("delete from parent where id = 2")
        waiting.join()
    other.rollback()
    other.close()
    ledger.driver.note_failure(ledger.raw, None, caught.value)
    ledger.raw.execute("select 1")
    ledger.raw.execute("insert into work values (2, null)")
    if marked:
        with pytest.raises(Refused, match="Deadlock"):
            branch.mark(gtrid, others(gtrid))
        assert branch.rollback() is BranchOutcome.ROLLED_BACK
    else:
        assert branch.commit_one_phase() is BranchOutcome.ROLLED_BACK
    assert ledger.work() == 0


def test_a_deadlock_over_the_row_has_rolled_back(ledger: Ledger) -> None:
    """The server answers it to the INSERT, and the savepoint is gone: nobody has committed a part."""
    ledger.write("insert into parent values (1), (2), (3), (4), (5)")
    branch, gtrid = ledger.branch(), new_gtrid()
    ledger.raw.execute("delete from parent where id = 1")
    other = server_of(ledger).connect("one", autocommit=False)
    with other.cursor() as cursor:
        cursor.execute(
            "insert into xids (xid, transaction_manager_id, action_uid, kind, branches) "
            "values (%s, 'x', 'x', 'abort', '')",
            [gtrid],
        )
        cursor.execute("delete from parent where id > 1")
        waiting = delete_that_waits(ledger, cursor)
        with pytest.raises((Refused, pymysql.OperationalError), match="Deadlock"):
            branch.mark(gtrid, others(gtrid))
        waiting.join()
    other.rollback()
    other.close()
    assert branch.rollback() is BranchOutcome.ROLLED_BACK
    assert (ledger.rows(), ledger.work()) == ({}, 0)


def test_a_table_without_transactions_is_refused(ledger: Ledger) -> None:
    ledger.write("create table m (id int) engine = myisam")
    branch, gtrid = ledger.branch(), new_gtrid()
    cursor = ledger.raw.execute("insert into m values (1)")
    with pytest.raises(NotSupportedError, match="MyISAM"):
        ledger.driver.ended_by(ledger.raw, cursor)
    with pytest.raises(Refused, match="without transactions"):
        branch.mark(gtrid, others(gtrid))
    assert branch.rollback() is BranchOutcome.COMMITTED, "of the table without transactions"
    assert (ledger.rows(), ledger.work()) == ({}, 0)
    assert ledger.query_rows("select id from m") == [(1,)]


@pytest.mark.parametrize("ends", ["call p()", "commit and chain", "create table x (i int)", "select 1"])
def test_a_rollback_says_where_a_part_may_be_committed(ledger: Ledger, ends: str) -> None:
    """Also where nothing was to commit, so that nobody has asked for the savepoint before."""
    server_of(ledger).execute(
        "create procedure p() begin commit; insert into work values (7, null); end", database="one"
    )
    branch = ledger.branch()
    ledger.raw.execute(ends)
    ledger.raw.execute("insert into work values (2, null)")
    assert branch.rollback() is (BranchOutcome.ROLLED_BACK if ends == "select 1" else BranchOutcome.LOST)
    assert ledger.query_rows("select id from work") == ([] if ends == "select 1" else [(1,)])
    ledger.driver.reset(ledger.raw)
    again = MarkedTransaction("ledger", ledger.driver, ledger.raw, xids=ledger.xids, cleanup=ledger.cleanup)
    ledger.driver.begin(ledger.raw)
    ledger.raw.execute("insert into work values (3, null)")
    assert again.rollback() is BranchOutcome.ROLLED_BACK, "what was noted is of the transaction before"


@pytest.mark.parametrize("before", ["begin", "create table x (i int)", "set autocommit = 1", "call p()", "select 1"])
def test_a_session_that_is_lost_behind_what_commits_may_have_committed_a_part(ledger: Ledger, before: str) -> None:
    """Nobody can ask for the savepoint any more, and what a procedure does is not in sight."""
    server_of(ledger).execute("create procedure p() begin commit; end", database="one")
    branch = ledger.branch()
    ledger.raw.execute(before)
    ledger.raw.execute("insert into work values (2, null)")
    server_of(ledger).end_sessions(ledger.raw.session_number)
    nothing = before == "select 1"
    assert branch.rollback() is (BranchOutcome.ROLLED_BACK if nothing else BranchOutcome.LOST)
    assert ((1,) in ledger.query_rows("select id from work")) is not nothing


def test_a_mark_shows_that_nothing_was_committed_before_it(ledger: Ledger) -> None:
    """Also where a statement might have: the savepoint is there. So it is known once the session is lost."""
    branch, gtrid = ledger.branch(), new_gtrid()
    with suppress(pymysql.Error):
        ledger.raw.execute("create nonsense")
    branch.mark(gtrid, others(gtrid))
    server_of(ledger).end_sessions(ledger.raw.session_number)
    assert branch.rollback() is BranchOutcome.ROLLED_BACK
    assert (ledger.rows(), ledger.work()) == ({}, 0)


def test_a_server_that_rolls_all_back_after_a_lock_timeout_has_kept_nothing(require: Any, tmp_path: Path) -> None:
    program = mariadb_program()
    require(program, "MariaDB: apt-get install mariadb-server")
    assert program is not None
    txpool.configure(node_name="tests", log_url=f"sqlite:///{tmp_path}/log", log_create=True)
    settings = ("--innodb-rollback-on-timeout=ON", "--innodb-lock-wait-timeout=1")
    with MySQLServer(program, settings=settings) as server:
        server.execute(
            "create table work (id int primary key) engine=innodb", "insert into work values (1)", database="one"
        )
        source = txpool.DataSource(
            name="one", driver="pymysql", mode="local", url=server.url("one"), password=server.password
        )
        with source, server.connect("one", autocommit=False) as other, other.cursor() as cursor:
            cursor.execute("delete from work where id = 1")
            with pytest.raises(txpool.TransactionRolledBack), txpool.transaction():
                mine = source.connect().cursor()
                mine.execute("insert into work values (2)")
                with suppress(pymysql.Error):
                    mine.execute("delete from work where id = 1")
                mine.execute("insert into work values (3)")
            other.rollback()
        assert server.execute("select id from work", database="one") == [(1,)]


def test_a_table_of_marks_without_transactions_is_refused(ledger: Ledger) -> None:
    ledger.write("alter table xids engine = myisam")
    ledger.xids = Xids("ledger", ledger.driver)  # of a process that begins now
    branch, gtrid = ledger.branch(), new_gtrid()
    with pytest.raises(ProgrammingError, match="ENGINE = InnoDB"):
        branch.mark(gtrid, others(gtrid))
    branch.rollback()
    with pytest.raises(ProgrammingError, match="ENGINE = InnoDB"):
        ledger.xids.tombstone(gtrid)
    assert (ledger.rows(), ledger.work()) == ({}, 0)


@pytest.mark.parametrize("setting", [0, 2])
def test_a_server_that_loses_commits_is_refused(ledger: Ledger, setting: int) -> None:
    server = server_of(ledger)
    branch, gtrid = ledger.branch(), new_gtrid()
    server.execute(f"set global innodb_flush_log_at_trx_commit = {setting}")
    try:
        with pytest.raises(Error, match=f"innodb_flush_log_at_trx_commit = {setting} does not survive"):
            branch.mark(gtrid, others(gtrid))
    finally:
        server.execute("set global innodb_flush_log_at_trx_commit = 1")
    branch.rollback()
    assert (ledger.rows(), ledger.work()) == ({}, 0)


@pytest.mark.crash
def test_the_mark_survives_the_server(ledger: Ledger) -> None:
    _, gtrid = ledger.decided()
    server_of(ledger).restart("immediate")
    assert ledger.rows() == {gtrid: "commit"}
    assert ledger.xids.tombstone(gtrid).committed


@pytest.mark.crash
@pytest.mark.parametrize("dies", ["session", "server"])
def test_the_tombstone_wins_where_the_owner_is_dead(ledger: Ledger, dies: str) -> None:
    branch, gtrid = ledger.marked()
    server = server_of(ledger)
    if dies == "server":
        server.restart("immediate")
    else:
        server.end_sessions(ledger.raw.thread_id())
    for _ in range(100):
        try:
            met: Any = ledger.xids.tombstone(gtrid)
            break
        except pymysql.OperationalError:  # the server has not let go of it yet
            continue
    assert not met.committed
    with pytest.raises(Refused, match="lost"):
        branch.record(gtrid, others(gtrid))
    assert (ledger.rows(), ledger.work()) == ({gtrid: "abort"}, 0)


def test_many_marks_at_once_with_deletes(ledger: Ledger) -> None:
    failures: list[BaseException] = []
    branches = [ledger.branch(None) for _ in range(6)]
    raws = list(ledger.raws)

    def work(number: int) -> None:
        try:
            for each in range(20):
                raw, branch = raws[number], branches[number]
                ledger.driver.begin(raw)
                raw.execute(f"insert into work values ({number * 1000 + each}, null)")
                gtrid = new_gtrid()
                branch.mark(gtrid, others(gtrid))
                branch.record(gtrid, others(gtrid))
                branch.forget(gtrid)
        except BaseException as error:
            failures.append(error)

    threads = [Thread(target=work, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    assert ledger.work() == 120
    ledger.cleanup.flush()
    assert ledger.rows() == {}


def test_finished_marks_are_deleted_while_another_mark_is_not_committed(ledger: Ledger) -> None:
    """For many keys at once a server reads the whole table, and waits for the other's row."""
    ledger.cleanup = CleanupQueue(ledger.xids, batch_size=50)
    finished = [ledger.decided()[1] for _ in range(20)]
    other, _ = ledger.marked()
    for gtrid in finished:
        ledger.cleanup.add(gtrid)
    branch = ledger.branch()
    ledger.raw.execute("set session innodb_lock_wait_timeout = 1")
    gtrid = new_gtrid()
    branch.mark(gtrid, others(gtrid))
    branch.record(gtrid, others(gtrid))
    assert other.rollback() is BranchOutcome.ROLLED_BACK
    assert [*ledger.rows()] == [gtrid]
