"""What a program does to its session: it is neither the next user's, nor a way out of the transaction."""

from __future__ import annotations

import importlib
import threading
from collections.abc import Callable
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import Any

import pytest

import txpool
from tests.integration.resources.mysql.branches import BranchDatabase
from tests.support.mysql_proxy import Fault
from tests.support.waiting import until
from txpool.config.secrets import Secret
from txpool.resources.base import BranchOutcome
from txpool.resources.branches.phase_two import PhaseTwoVerb
from txpool.resources.mysql.branches.phase_two import MySQLPhaseTwo
from txpool.resources.mysql.session.statement_text import changes_session, text_of

#: What a session has, as far as these tests change it.
STATE = "select @a, @@sql_mode <> '', database(), current_user(), @@character_set_client, @@collation_connection"


def executes(statement: str) -> Callable[[Any], object]:
    return lambda connection: connection.cursor().execute(statement)


@pytest.mark.parametrize("buffered", [True, False], ids=["buffered", "unbuffered"])
def test_a_cursor_that_a_thread_closes_waits_for_the_statement_of_another(
    managed: BranchDatabase, *, buffered: bool
) -> None:
    cursors = importlib.import_module(f"{managed.module.__name__}.cursors")
    closed = threading.Event()
    with txpool.transaction(), managed.datasource().connect() as connection:
        cursor = connection.cursor(cursors.Cursor if buffered else cursors.SSCursor)
        cursor.execute("select 1")

        def close() -> None:
            cursor.close()
            closed.set()

        thread = threading.Thread(target=close)
        with connection.enlistment.lock:  # as while a statement executes
            thread.start()
            assert not closed.wait(0.2)
        thread.join()
        assert closed.is_set()
        connection.cursor().execute("select 2")


#: By driver where only one has it.
CHANGES: dict[str, tuple[str, Callable[[Any], object]]] = {
    "an apostrophe in a comment": ("", executes("select 1 /* don't */, @a := 5")),
    "an apostrophe in a comment's line": ("", executes("select 1 -- don't\n, @a := 5")),
    "behind a system variable": ("", executes("select @@version, @a := 5")),
    "a second statement": ("mysqlclient", executes("select 1; set session sql_mode = ''")),
    "another database": ("", lambda connection: connection.select_db("two")),
    "another character set": ("", lambda connection: connection.set_character_set("latin1")),
    "another user": ("mysqlclient", lambda connection: connection.change_user("other", "secret", "two")),
}


@pytest.mark.parametrize("enlisted", [False, True], ids=["plain", "enlisted"])
@pytest.mark.parametrize("change", list(CHANGES))
def test_no_change_of_a_session_reaches_its_next_user(managed: BranchDatabase, change: str, enlisted: bool) -> None:
    driver, do = CHANGES[change]
    if driver not in ("", managed.driver_name) or (enlisted and change == "another user"):
        pytest.skip("not of this driver, or not in a transaction")
    managed.server.execute("create user other identified by 'secret'", "grant all on two.* to other")
    source = managed.datasource(pool_max_size=1)

    def state() -> object:
        with source.connect() as connection, connection.cursor() as cursor:
            cursor.execute(STATE)
            return cursor.fetchall()

    before = state()
    if enlisted:
        with pytest.raises(LookupError), txpool.transaction():
            connection = source.connect()
            connection.cursor().execute("insert into work values (1, 1)")
            do(connection)
            raise LookupError
    else:
        with source.connect() as connection:
            do(connection)
    assert state() == before
    with txpool.transaction():
        source.connect().cursor().execute("insert into work values (2, 2)")
    assert managed.rows() == [2]


@pytest.mark.parametrize("mode", ["xa", "local"])
@pytest.mark.parametrize("asked", ["inside", "by the one before"])
def test_a_session_that_is_lost_is_not_replaced_in_silence(managed: BranchDatabase, mode: str, asked: str) -> None:
    """What follows would be in no transaction, and commit by itself."""
    source = managed.datasource(mode=mode, name=mode, pool_max_size=1)
    if asked == "by the one before":
        with source.connect() as connection:
            connection.ping(True)
    with pytest.raises(txpool.Error), txpool.transaction():
        connection = source.connect()
        cursor = connection.cursor()
        cursor.execute("insert into work values (1, 1)")
        cursor.execute("select connection_id()")
        ((session,),) = cursor.fetchall()
        if asked == "inside":
            connection.ping(True)
        managed.server.end_sessions(session)
        for number in (2, 3):
            with suppress(txpool.Error):
                source.connect().cursor().execute("insert into work values (%s, 0)", [number])
    assert managed.rows() == []
    with txpool.transaction():
        source.connect().cursor().execute("insert into work values (4, 4)")
    assert managed.rows() == [4]


def test_an_option_file_that_lets_sessions_be_replaced_is_refused(managed: BranchDatabase, tmp_path: Path) -> None:
    if managed.driver_name == "pymysql":
        pytest.skip("PyMySQL reads no such option")
    file = tmp_path / "my.cnf"
    source = managed.datasource(driver_read_default_file=str(file))
    for text in ("[client]\n# reconnect=1\nconnect-timeout=9\n", "[client]\nreconnect=0\n"):
        file.write_text(text)
        source.connect().close()
    source.flush("idle")
    file.write_text("[client]\nreconnect = 1\n")
    with pytest.raises(txpool.ConfigurationError, match="reconnect"):
        source.connect()


def test_nothing_is_sent_past_the_transaction(managed: BranchDatabase) -> None:
    if managed.driver_name == "pymysql":
        pytest.skip("PyMySQL has no send_query()")
    source = managed.datasource(pool_max_size=1)
    with source.connect() as connection, pytest.raises(txpool.NotSupportedError, match="query"):
        connection.send_query(b"insert into work values (1, 1)")
    with pytest.raises(txpool.NotSupportedError, match="query"), txpool.transaction():
        source.connect().send_query(b"insert into work values (1, 1)")
    with source.connect() as connection:
        connection.query("insert into work values (2, 2)")
        connection.commit()
    assert managed.rows() == [2]


@pytest.mark.parametrize("mode", ["xa", "local"])
def test_nothing_gives_a_transactions_connection_another_session(managed: BranchDatabase, mode: str) -> None:
    source = managed.datasource(mode=mode)
    with txpool.transaction():
        connection = source.connect()
        connection.cursor().execute("insert into work values (1, 1)")
        with pytest.raises(txpool.ProgrammingError, match="Nothing was done"):
            if managed.driver_name == "pymysql":
                connection.connect()
            else:
                connection.change_user(managed.server.user, managed.server.password, "one")
        connection.cursor().execute("insert into work values (2, 2)")
        assert managed.rows() == []
    assert managed.rows() == [1, 2]


@pytest.mark.parametrize("swallowed", [False, True])
@pytest.mark.parametrize("mode", ["xa", "local"])
def test_a_row_that_has_changed_since_the_snapshot_rolls_all_back(
    managed: BranchDatabase, mode: str, swallowed: bool
) -> None:
    server = managed.server
    if not server.is_mariadb:
        pytest.skip("MySQL has no innodb_snapshot_isolation")
    server.execute("insert into work values (1, 1)", database="one")
    source = managed.datasource(mode=mode)
    server.execute("set global innodb_snapshot_isolation = on")
    try:
        with pytest.raises(txpool.Error) as told, txpool.transaction(isolation="repeatable-read") as transaction:
            cursor = source.connect().cursor()
            cursor.execute("insert into work values (5, 5)")
            cursor.execute("select * from work")
            server.execute("update work set v = 2 where id = 1", database="one")
            with suppress(managed.module.Error) if swallowed else nullcontext():
                cursor.execute("update work set v = 3 where id = 1")
    finally:
        server.execute("set global innodb_snapshot_isolation = off")
    assert managed.rows() == [1]
    assert transaction.status is txpool.Status.ROLLED_BACK
    assert "1020" in "\n".join([str(told.value), *getattr(told.value, "__notes__", ())])


@pytest.mark.filterwarnings("ignore:Previous unbuffered")
@pytest.mark.parametrize("mode", ["xa", "local"])
def test_where_results_are_not_read_commit_is_not_sent_or_all_is_read(managed: BranchDatabase, mode: str) -> None:
    source = managed.datasource(mode=mode)
    cursors = importlib.import_module(f"{managed.module.__name__}.cursors")
    with suppress(txpool.TransactionRolledBack), txpool.transaction() as transaction:
        connection = source.connect()
        connection.cursor().execute("insert into work values (1, 1)")
        cursor = connection.cursor(cursors.SSCursor)
        cursor.execute("select 1 union select 2")
    committed = managed.driver_name == "pymysql"  # which reads the rest; mysqlclient refuses to send
    assert transaction.status is (txpool.Status.COMMITTED if committed else txpool.Status.ROLLED_BACK)
    assert managed.rows() == [1] * committed


@pytest.mark.parametrize("short", ["xid", "branches"])
def test_a_row_that_the_server_has_cut_is_no_decision(managed: BranchDatabase, short: str) -> None:
    marked = managed.datasource(mode="cmr", driver_init_command="set session sql_mode = ''")
    other = managed.datasource("two")
    lengths = {"xid": 64, "branches": 2000} | {short: 12}
    managed.server.execute(
        f"create table xids (xid varchar({lengths['xid']}) character set ascii collate ascii_bin primary key, "
        "transaction_manager_id varchar(64) not null, action_uid varchar(64) not null, kind varchar(6) not null, "
        f"branches varchar({lengths['branches']}) not null, confirmed integer not null default 0, "
        "made_at timestamp not null default current_timestamp) engine=innodb",
        database="one",
    )
    with pytest.raises(txpool.TransactionRolledBack, match="too short"), txpool.transaction():
        for source in (marked, other):
            source.connect().cursor().execute("insert into work values (1, 1)")
    assert managed.rows() == []
    assert managed.server.execute("select id from work", database="two") == []
    assert managed.server.prepared() == []


def test_a_commit_that_the_server_refuses_has_rolled_back(managed: BranchDatabase) -> None:
    server = managed.server
    server.execute("create user app identified by 'secret'", "grant all on one.* to app")
    url = server.url("one").replace(server.user, "app", 1)
    source = managed.datasource(mode="local", url=url, password=Secret("secret"))
    try:
        with pytest.raises(txpool.Error) as told, txpool.transaction() as transaction:
            source.connect().cursor().execute("insert into work values (1, 1)")
            server.execute("set global read_only = 1")
    finally:
        server.execute("set global read_only = 0")
    assert "1290" in repr(told.value)
    assert transaction.status is txpool.Status.ROLLED_BACK
    assert managed.rows() == []


def test_an_interrupt_while_another_connection_ends_a_branch_is_raised(
    managed: BranchDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    branch = managed.prepared_branch()
    managed.kill()
    connect = managed.driver.connect

    def connect_and_interrupt(timeout: float | None = None) -> Any:
        raw = connect(timeout)
        where = (raw, "receive_all") if managed.driver_name == "pymysql" else (type(raw.session), "_answer")
        real = getattr(*where)

        def interrupt(*arguments: Any) -> Any:
            monkeypatch.setattr(*where, real)
            raise KeyboardInterrupt

        monkeypatch.setattr(*where, interrupt)
        return raw

    monkeypatch.setattr(managed.driver, "connect", connect_and_interrupt)
    with pytest.raises(KeyboardInterrupt):
        MySQLPhaseTwo(branch.record, PhaseTwoVerb.COMMIT, managed.driver).run()


def test_the_reason_why_a_branch_was_left_is_the_real_one(managed: BranchDatabase) -> None:
    proxy = managed.proxy()
    driver = managed.driver_of(port=proxy.port)
    branch = managed.prepared_branch()
    managed.kill()
    proxy.fail_at(b"xa commit", Fault.CUT_AFTER)
    command = MySQLPhaseTwo(branch.record, PhaseTwoVerb.COMMIT, driver)
    assert command.run() is BranchOutcome.UNKNOWN
    assert "2013" in command.failure


HARMLESS = """select 1;
select 'don''t; @a', "it's", `o'x`
select 5--1 -- it's
select @@version
select 4/2 # @a
/* hi */ begin
select 'a\\'@b'
select 'open
INSERT into work values (1, 'a # b -- c')
(select 4/2)
begin
insert into work values (1, -1) /* get_lock */"""
LEAVING = """select get_lock('a', 1)
select 5--@a
select 1 /*! , @a := 1 */
select 1; select 2
select 'open, @a
SELECT 1, Get_Lock('a', 1)
SET @a = 1
/* hi */ begin  not atomic select 1; end
begin not atomic set @a = 1; end
select @@version, @a := 1
select 1 /* don't */, @a := 1
set @a = 1"""


@pytest.mark.parametrize("statement", HARMLESS.splitlines())
def test_a_statement_that_leaves_nothing_costs_no_reset(statement: str) -> None:
    assert not changes_session(text_of(statement))


@pytest.mark.parametrize("statement", LEAVING.splitlines())
def test_a_statement_that_may_leave_something_costs_one(statement: str) -> None:
    assert changes_session(text_of(statement))


def test_a_read_only_datasource_knows_its_server(world: BranchDatabase) -> None:
    """A transaction of it may ask to write, and its branch then keeps what proves how it ended."""
    raw = world.driver_of(transaction_read_only=True).connect()
    world.raws.append(raw)
    assert raw.identity
    assert raw.generation


def test_a_connection_that_the_program_connects_again_is_another_session_and_leaves_the_pool(
    managed: BranchDatabase,
) -> None:
    managed.require_pymysql()
    source = managed.datasource(mode="local")
    with source.connect() as connection:
        former = connection.raw_connection().session_number
        connection.connect()
        raw = connection.raw_connection()
        cursor = connection.cursor()
        cursor.execute("select connection_id()")
        assert cursor.fetchone() == (raw.session_number,)
        assert raw.session_number != former
        assert raw.session.is_alive()
        source.driver_adapter.cancel(raw)  # of the session that it has now
        managed.kill(raw)
        until(lambda: not raw.session.is_alive())
    with source.connect() as connection:
        assert connection.raw_connection() is not raw


def test_a_connection_of_another_user_leaves_the_pool(managed: BranchDatabase) -> None:
    if managed.driver_name != "mysqlclient":
        pytest.skip("PyMySQL has no change_user()")
    source = managed.datasource(mode="local")
    with source.connect() as connection:
        raw = connection.raw_connection()
        connection.change_user(managed.server.user, managed.server.password, "one")
    with source.connect() as connection:
        assert connection.raw_connection() is not raw
