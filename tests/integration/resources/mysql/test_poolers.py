"""Poolers before MariaDB and MySQL: what they lose, and that no transaction over several databases goes through one."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from threading import Thread
from typing import Any

import pymysql
import pytest
from pymysql.constants.SERVER_STATUS import SERVER_STATUS_IN_TRANS

import txpool
from recovery import RecoveryManager
from tests.integration.check.place import checked
from tests.integration.resources.mysql.branches import BranchDatabase, both
from tests.integration.resources.mysql.test_check import PASSWORD
from tests.support.mysql import MySQLServer
from tests.support.mysql_pooler import MySQLPooler, Pooling
from tests.support.waiting import until
from txpool import DataSource
from txpool.config.secrets import Secret
from txpool.log import open_log
from txpool.resources.base import BranchOutcome
from txpool.resources.marked.xids import Xids
from txpool.resources.mysql.session.pooler import BehindPooler, is_greeted
from txpool.tm.manager import configure

#: The server answers once the administrator has let go of the lock.
_WAIT = "select get_lock('held', 20)"


@pytest.fixture(params=Pooling, ids=lambda pooling: pooling.name.lower())
def pooler(server: MySQLServer, request: pytest.FixtureRequest) -> Iterator[MySQLPooler]:
    """Each kind of pooler, before each server."""
    with closing(MySQLPooler(server, request.param)) as pooler:
        yield pooler


def connected(server: MySQLServer, port: int) -> Any:
    return pymysql.connect(host="127.0.0.1", port=port, user=server.user, password=server.password, database="one")


def _fetched(connection: Any, query: str) -> tuple[tuple[Any, ...], ...]:
    with connection.cursor() as cursor:
        cursor.execute(query)
        return tuple(cursor.fetchall())


# -- what the servers tell, and what poolers do with it ---------------------------------------------------------------


@pytest.mark.parametrize("autocommit", [0, 1])
def test_the_status_is_set_from_xa_start_to_the_end_of_the_branch(server: MySQLServer, autocommit: int) -> None:
    """MySQL from 8.0.29 on lets go of a branch at PREPARE; these servers do not."""
    server.execute("create table work (id int primary key) engine=innodb", database="one")
    with server.connect("one") as session, session.cursor() as cursor:

        def open_after(*statements: str) -> list[bool]:
            found = []
            for statement in statements:
                cursor.execute(statement)
                found.append(bool(session.server_status & SERVER_STATUS_IN_TRANS))
            return found

        # Without autocommit the last one begins a transaction, and the status does not tell.
        assert open_after(f"set autocommit = {autocommit}", "select 1", "select id from work") == [False] * 3
        cursor.execute("rollback")
        branch = "xa start 'g','b',7", "select 1", "insert into work values (1)", "xa end 'g','b',7"
        assert open_after(*branch, "xa prepare 'g','b',7", "set @x = 1") == [True] * 6
        assert open_after("xa commit 'g','b',7", "select get_lock('held', 0)") == [False, False]
        assert open_after("start transaction", "savepoint s", "release savepoint s") == [True] * 3
        assert open_after("commit") == [False]


def test_a_multiplexing_pooler_gives_each_command_outside_a_transaction_to_another_session(server: MySQLServer) -> None:
    """So what precedes a transaction is lost: its isolation level, and that it is read-only."""
    server.execute("create table work (id int primary key) engine=innodb", database="one")
    with (
        closing(MySQLPooler(server, Pooling.MULTIPLEXING)) as pooler,
        connected(server, pooler.port) as client,
        client.cursor() as cursor,
    ):
        seen = [_fetched(client, "select connection_id(), 1") for _ in range(3)]
        assert len({number for ((number, _),) in seen}) == 3
        assert _fetched(client, "select connection_id()") == ((client.thread_id(),),)
        cursor.execute("set transaction read only")
        cursor.execute("start transaction")
        cursor.execute("insert into work values (1)")
        cursor.execute("commit")
    assert server.execute("select id from work", database="one") == [(1,)]


def test_a_pooler_that_pins_keeps_the_session(server: MySQLServer) -> None:
    server.execute("create table work (id int primary key) engine=innodb", database="one")
    with (
        closing(MySQLPooler(server, Pooling.PINNED)) as pooler,
        connected(server, pooler.port) as client,
        client.cursor() as cursor,
    ):
        cursor.execute("set transaction read only")
        cursor.execute("start transaction")
        with pytest.raises(pymysql.Error, match="READ ONLY"):
            cursor.execute("insert into work values (1)")
        seen = {_fetched(client, "select connection_id(), 1") for _ in range(3)}
        assert len(seen) == 1
        assert seen != {((client.thread_id(), 1),)}


@pytest.mark.parametrize(
    ("greeted", "session", "same"),
    [(7, 7, True), (5, 2**32 + 5, True), (0, 2**32, True), (7, 8, False), (0, 7, False), (5, 2**32 + 6, False)],
)
def test_a_greeting_has_32_bits_of_the_number(greeted: int, session: int, same: bool) -> None:
    assert is_greeted(greeted, session) is same


# -- transactions over several databases ------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["xa", "cmr", "last-resource"])
def test_no_transaction_over_two_databases_goes_through_one(
    managed: BranchDatabase, pooler: MySQLPooler, mode: str
) -> None:
    if mode == "cmr":
        Xids("one", managed.driver_of(mode=mode)).create()
    direct = managed.datasource("two")
    through = managed.datasource("one", mode=mode, port=pooler.port)
    with pytest.raises(txpool.ConfigurationError) as refused, txpool.transaction():
        direct.connect().cursor().execute("insert into work values (1, 1)")
        through.connect().cursor().execute("insert into work values (1, 1)")
    assert "datasource one: a pooler or a proxy" in str(refused.value)
    assert "let url lead to the server itself" in str(refused.value)
    with pytest.raises(BehindPooler):
        through.connect()
    assert both(managed) == [[], []]
    assert managed.server.prepared() == []


def test_what_passes_tcp_connections_on_is_no_pooler(managed: BranchDatabase) -> None:
    sources = [managed.datasource(name, port=managed.proxy().port) for name in ("one", "two")]
    with txpool.transaction():
        for source in sources:
            source.connect().cursor().execute("insert into work values (1, 1)")
    assert both(managed) == [[1], [1]]


def test_recovery_leaves_a_branch_alone_until_its_url_leads_to_the_server(
    managed: BranchDatabase, pooler: MySQLPooler, tmp_path: Path
) -> None:
    branch = managed.prepared_branch()
    managed.raws.pop().break_off()
    through = managed.datasource("one", port=pooler.port)
    recovery = through.branch_recovery()
    with pytest.raises(BehindPooler):
        recovery.recover()
    for end in (recovery.commit, recovery.rollback):
        assert end(branch.record) is BranchOutcome.UNKNOWN
    with closing(open_log(f"sqlite:///{tmp_path}/recovered", node="tests", create=True)) as log:
        report = RecoveryManager(log=log, datasources=[through], backoff=0).scan()
    assert "let url lead to the server itself" in report.unreachable["one"]
    assert managed.server.names() == [branch.record.xid.joined]
    until(lambda: managed.recovery.rollback(branch.record) is BranchOutcome.ROLLED_BACK)
    assert managed.server.prepared() == []


def test_a_refusal_leaves_the_poolers_sessions_as_they_were(managed: BranchDatabase, pooler: MySQLPooler) -> None:
    """Others use them, too."""
    through = managed.datasource("one", port=pooler.port, transaction_read_only=True)
    with pytest.raises(BehindPooler):
        through.connect()
    name = "@@session.tx_read_only" if managed.server.is_mariadb else "@@session.transaction_read_only"
    with connected(managed.server, pooler.port) as client:
        assert [_fetched(client, f"select {name}") for _ in range(3)] == [((0,),)] * 3


# -- mode = local -----------------------------------------------------------------------------------------------------


def test_a_local_transaction_works_through_it(managed: BranchDatabase, pooler: MySQLPooler) -> None:
    local = managed.datasource("one", mode="local", port=pooler.port)
    for number in range(4):
        with txpool.transaction():
            local.connect().cursor().execute("insert into work values (%s, 0)", [number])
    with pytest.raises(ZeroDivisionError), txpool.transaction():
        local.connect().cursor().execute("insert into work values (7, 7)")
        raise ZeroDivisionError
    with local.connect() as connection:
        connection.cursor().execute("insert into work values (8, 8)")
        connection.rollback()
    assert managed.rows() == [0, 1, 2, 3]


def test_an_isolation_level_or_read_only_is_refused_and_not_lost(managed: BranchDatabase, pooler: MySQLPooler) -> None:
    local = managed.datasource("one", mode="local", port=pooler.port)
    for asked in ({"read_only": True}, {"isolation": "serializable"}):
        with pytest.raises(BehindPooler, match="begin without"), txpool.transaction(**asked):
            local.connect().cursor().execute("insert into work values (1, 1)")
    reader = managed.datasource("one", name="reader", mode="local", port=pooler.port, transaction_read_only=True)
    with pytest.raises(BehindPooler, match=r"transaction\.read-only"):
        reader.connect()
    assert managed.rows() == []
    with txpool.transaction():
        local.connect().cursor().execute("insert into work values (2, 2)")
    assert managed.rows() == [2]


# -- giving up a statement --------------------------------------------------------------------------------------------


class _Waiting:
    """A statement of somebody else, on a session with the server, that waits until the administrator lets it go on."""

    def __init__(self, session: Any) -> None:
        self._session = session
        self.answers: list[Any] = []
        self._thread = Thread(target=self._wait)
        self._thread.start()

    def _wait(self) -> None:
        with self._session.cursor() as cursor:
            try:
                cursor.execute(_WAIT)
                self.answers += cursor.fetchall()
            except pymysql.Error as error:
                self.answers.append(error)

    def join(self) -> None:
        self._thread.join()


def _statements_that_wait(server: MySQLServer) -> int:
    query = "select count(*) from information_schema.processlist where info like 'select get_lock(%'"
    ((count,),) = server.execute(query)
    return int(count)


def test_a_strangers_statement_is_not_killed(managed: BranchDatabase, pooler: MySQLPooler) -> None:
    """The number that the pooler gave its client may be that of anybody's session."""
    server = managed.server
    local = managed.datasource("one", mode="local", port=pooler.port)
    with server.connect() as administrator, server.connect() as stranger:
        administrator.cursor().execute("select get_lock('held', 0)")
        waiting = _Waiting(stranger)
        until(lambda: _statements_that_wait(server) == 1)
        pooler.number_next(stranger.thread_id())
        with pytest.raises(txpool.Error), txpool.transaction(timeout=0.5):
            local.connect().cursor().execute(_WAIT)
        assert waiting.answers == []
        administrator.cursor().execute("select release_lock('held')")
        waiting.join()
    assert waiting.answers == [(1,)]


def test_a_strangers_statement_on_another_server_is_not_killed(
    mariadb: MySQLServer, mysql8: MySQLServer, tmp_path: Path
) -> None:
    """A balancer of TCP connections, as before a cluster, may lead the session that kills to another server."""
    for server in (mariadb, mysql8):
        server.empty()
        server.execute("create user app@'%' identified by 'app'", "grant all on *.* to app@'%'")
    world = BranchDatabase(mariadb)
    proxy = world.proxy()
    url = f"mysql://app@127.0.0.1:{proxy.port}/one"
    options = {"mode": "local", "url": url, "password": Secret("app"), "driver_ssl_disabled": "true"}
    with closing(mysql8.connect()) as other:  # its numbers may be ahead
        while mariadb.connect().thread_id() <= other.thread_id():
            pass
    with (
        DataSource(name="one", driver="pymysql", **options) as local,
        mariadb.connect() as near,
        mysql8.connect() as far,
    ):
        connection = local.connect()
        ((number,),) = _fetched(connection, "select connection_id()")
        connection.close()
        stranger = mysql8.connect()
        while stranger.thread_id() < number:
            stranger.close()
            stranger = mysql8.connect()
        assert stranger.thread_id() == number
        for administrator in (near, far):
            administrator.cursor().execute("select get_lock('held', 0)")
        waiting = _Waiting(stranger)
        until(lambda: _statements_that_wait(mysql8) == 1)
        txpool.configure(node_name="tests", log_url=f"sqlite:///{tmp_path}/log", log_create=True)
        try:
            with pytest.raises(txpool.Error), txpool.transaction(timeout=0.5):
                cursor = local.connect().cursor()
                assert _fetched(cursor.connection, "select connection_id()") == ((number,),)
                proxy.lead_to(mysql8.port)
                cursor.execute(_WAIT)
        finally:
            txpool.configure()
        assert waiting.answers == []
        far.cursor().execute("select release_lock('held')")
        waiting.join()
        stranger.close()
    world.close()
    assert waiting.answers == [(1,)]


# -- the log, and the check -------------------------------------------------------------------------------------------


def test_a_log_is_refused_behind_one_and_nothing_is_written(
    server: MySQLServer, pooler: MySQLPooler, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(PASSWORD, server.password)
    file = tmp_path / "txpool.properties"
    text = f"node.name = tests\nlog.url = {pooler.url('one')}\nlog.password = ${{env:{PASSWORD}}}\nlog.create = true\n"
    file.write_text(text)
    file.chmod(0o600)
    with pytest.raises(txpool.LogError, match=r"let log\.url lead to the server itself"):
        txpool.configure(file)
    assert server.execute("show tables", database="one") == []
    answer = checked(file)
    (finding,) = answer.about("pooler")
    assert (finding["severity"], finding["do"]) == ("wrong", "let log.url lead to the server itself")
    file.write_text(text.replace(f":{pooler.port}/", f":{server.port}/"))
    configure(file).close()
    assert "pooler" not in checked(file).bad


@pytest.mark.parametrize("mode", ["xa", "cmr", "last-resource", "local"])
def test_the_check_names_it(
    world: BranchDatabase, pooler: MySQLPooler, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: str
) -> None:
    monkeypatch.setenv(PASSWORD, world.server.password)
    file = tmp_path / "orders.properties"
    text = f"driver = {world.driver_name}\nmode = {mode}\nurl = {pooler.url('one')}\npassword = ${{env:{PASSWORD}}}\n"
    file.write_text(text)
    file.chmod(0o600)
    answer = checked(file)
    (finding,) = answer.about("pooler")
    assert finding["severity"] == ("warning" if mode == "local" else "wrong")
    assert "let url lead to the server itself" in finding["do"]
    file.write_text(text.replace(f":{pooler.port}/", f":{world.server.port}/"))
    assert checked(file).about("pooler") == []
