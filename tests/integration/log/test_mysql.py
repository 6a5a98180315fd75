"""What a log in MariaDB and MySQL needs beyond what every log on a server does."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pymysql
import pytest

from tests.integration.log.tables import NODE, Opener, Spawn, decided, gtrid_of
from tests.support.children import said
from tests.support.log_places import KINDS, MySQLPlace, place_of
from tests.support.mysql import MODULES, MySQLServer
from tests.support.mysql_proxy import Fault, MySQLProxy
from txpool.config.secrets import Secret
from txpool.errors import ConfigurationError, LogError, LogUnknown
from txpool.log import IncarnationState, Refused, Resolution, SqlLog, adopt_log, open_log
from txpool.resources.mysql.log import connecting
from txpool.xid import make_gtrid

if TYPE_CHECKING:
    from tests.support.mysql import RequireDriver

DRIVERS = dict(zip(MODULES, connecting.DRIVERS, strict=True))


@pytest.fixture(params=KINDS[1:])
def place(request: pytest.FixtureRequest) -> MySQLPlace:
    found = place_of(request.param, request.getfixturevalue)
    assert isinstance(found, MySQLPlace)
    return found


@pytest.fixture(params=DRIVERS)
def driver(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, require_driver: RequireDriver) -> str:
    """The only driver that is installed, as far as the log knows."""
    require_driver(request.param)
    monkeypatch.setattr(connecting, "DRIVERS", (DRIVERS[request.param],))
    return str(request.param)


@pytest.fixture
def mallory(place: MySQLPlace) -> Iterator[Any]:
    """A session of an account that may only connect."""
    place.execute("one", f"create user mallory identified by '{place.password}'")
    with closing(place.server.connect(None, user="mallory")) as session, session.cursor() as cursor:
        yield cursor


@contextmanager
def changed(place: MySQLPlace, variable: str, value: str) -> Iterator[None]:
    """A server's setting, for the block."""
    ((former,),) = place.rows("one", f"select @@global.{variable}")
    place.execute("one", f"set global {variable} = {value}")
    try:
        yield
    finally:
        place.execute("one", f"set global {variable} = {former!r}")


# -- leases -------------------------------------------------------------------------------------------------------


def test_32_a_lock_of_another_session_keeps_nobody_alive(place: MySQLPlace, opener: Opener, mallory: Any) -> None:
    former, log = opener(), opener()
    name = former.incarnation
    ((lease, session),) = place.rows("one", "select lease, session from txpool_incarnations")
    assert log.incarnations() == {name: IncarnationState.ALIVE}
    former.close()
    mallory.execute("select get_lock(%s, 0)", [lease])  # as if it could read the registry
    assert mallory.fetchone() == (1,)
    assert place.rows("one", "select is_used_lock(%s) <=> %s", [lease, session]) == [(0,)]
    assert log.incarnations() == {name: IncarnationState.DEAD}
    adopt_log(place.url(), node=NODE, password=Secret(place.password))


def test_32_no_account_that_may_only_connect_sees_the_name_of_a_lease(
    place: MySQLPlace, log: SqlLog, mallory: Any
) -> None:
    assert log.incarnation
    ((lease,),) = place.rows("one", "select lease from txpool_incarnations")
    assert len(lease) > 40
    for query in (
        "select lease from one.txpool_incarnations",
        "select object_name from performance_schema.metadata_locks",
        "select sql_text from performance_schema.events_statements_history_long",
    ):
        with pytest.raises(pymysql.Error, match="denied"):
            mallory.execute(query)
    mallory.execute("select info from information_schema.processlist")
    assert all(lease not in str(row) for row in mallory.fetchall())


def test_a_lock_goes_with_its_session_though_a_branch_of_it_stays_prepared(place: MySQLPlace, log: SqlLog) -> None:
    place.execute("one", "create table t (id int primary key) engine=innodb")
    with place.session() as other:
        other.execute("select get_lock('txpool:held', 0)")
        for each in ("xa start 'g'", "insert into t values (1)", "xa end 'g'", "xa prepare 'g'"):
            other.execute(each)
    for _ in range(100):
        if place.rows("one", "select is_used_lock('txpool:held')") == [(None,)]:
            break
        time.sleep(0.05)
    assert place.rows("one", "select is_used_lock('txpool:held')") == [(None,)]
    place.execute("one", "xa rollback 'g'")


def test_no_timeout_of_the_server_ends_a_lease(place: MySQLPlace, opener: Opener, driver: str) -> None:
    with changed(place, "wait_timeout", "1"):
        log, other = opener(), opener()
        name = log.incarnation
        time.sleep(2.5)
        assert other.incarnations() == {name: IncarnationState.ALIVE}
        assert log.incarnation == name


# -- both drivers -------------------------------------------------------------------------------------------------


def test_each_driver_reads_what_was_written(place: MySQLPlace, opener: Opener, driver: str) -> None:
    log, other = opener(), opener()
    first, second, third = (gtrid_of(log, number) for number in (1, 2, 3))
    log.record(first, [])
    log.point(second, "büro % %s 'x' \\\" ledger")
    assert other.abort(third) is Resolution.ABORTED
    assert set(other.decisions()) == {first}
    assert other.pointers() == {second: "büro % %s 'x' \\\" ledger"}
    assert other.aborted() == {third}
    other.fence(log.incarnation)
    with pytest.raises(Refused, match="fenced"):
        log.record(make_gtrid(NODE, first.split(":")[2], 4), [])
    assert other.nodes() == {NODE}


def test_a_forked_child_leaves_the_sessions_of_mysqlclient_alone(
    place: MySQLPlace, log: SqlLog, spawn: Spawn, require_driver: RequireDriver
) -> None:
    """As `test_39_…` of the hosts, which is over PyMySQL."""
    require_driver("mysqlclient")
    process = spawn("""
        from txpool.resources.mysql.log import connecting
        log.close()
        connecting.DRIVERS = connecting.DRIVERS[1:]
        log = SqlLog(url, node=node, password=Secret("${env:LOG_PASSWORD}"))
        assert "MySQLdb" in type(log._server.connect()).__name__
        parent, first = log.incarnation, decide(1)
        child = os.fork()
        if child == 0:
            say("child", log.incarnation, decide(2), log.incarnations()[parent].name)
            heard()
            os._exit(0)
        say("parent", parent, decide(3))
        signal.pause()
    """)
    spoken = {words[0]: words[1:] for words in (said(process), said(process))}
    (parent, third), (child, second, life) = spoken["parent"], spoken["child"]
    assert life == "ALIVE"
    assert {second, third} < decided(place)
    process.send_signal(signal.SIGKILL)
    process.wait()
    place.await_lease(parent)  # though the child outlives it
    living = {name for name, state in log.incarnations().items() if state is IncarnationState.ALIVE}
    assert living == {child}


def test_a_driver_that_is_not_installed_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connecting, "DRIVERS", (("txpool.no_such_driver:Driver", "txpool[mariadb]"),))
    with pytest.raises(ConfigurationError, match=r"no driver of theirs is installed: pip install 'txpool\[mariadb\]'"):
        open_log("mysql://app@localhost/log", node=NODE)


@pytest.mark.parametrize("inside", [True, False], ids=["in the url", "as a secret"])
def test_no_error_and_no_text_shows_the_password(place: MySQLPlace, log: SqlLog, driver: str, inside: bool) -> None:
    url = place.url()
    options: dict[str, Any] = {"password": Secret("hunter2hunter2")}
    if inside:
        url, options = url.replace("@", ":hunter2hunter2@"), {}
    with pytest.raises(LogError, match="Access denied") as caught:
        open_log(url, node=NODE, **options)
    error: BaseException | None = caught.value
    while error is not None:
        assert "hunter2" not in str(error)
        error = error.__cause__ or error.__context__
    good = url.replace("hunter2hunter2", place.password)
    opened = SqlLog(good, node=NODE, password=None if inside else Secret(place.password))
    assert opened.incarnation
    assert place.password not in repr(opened) + repr(vars(opened))
    opened.close()


@pytest.mark.parametrize(
    ("url", "problem"),
    [
        ("mysql://app@localhost", "names no database"),
        ("mysql://app@localhost/log?charset=x&colour=red", "has a parameter that MariaDB or MySQL does not know"),
        ("mysql://app@localhost/log?keepalives_idle=soon", "its times are whole numbers"),
    ],
)
def test_a_url_that_names_no_log_is_an_error_of_configuration(url: str, problem: str) -> None:
    with pytest.raises(ConfigurationError, match=problem):
        open_log(url, node=NODE)


def test_the_url_says_how_the_session_is_encrypted(mysql8: MySQLServer, tmp_path: Path, driver: str) -> None:
    place = MySQLPlace(mysql8)
    assert mysql8.folder is not None
    authority, other = tmp_path / "ca.pem", tmp_path / "other.pem"
    authority.write_bytes((mysql8.folder / "data/ca.pem").read_bytes())
    texts = {"ssl_disabled=true": False}
    if driver == "pymysql":
        texts[f"ssl_ca={authority}"] = True
    else:  # the library of MariaDB, over which it is here, also compares the name of the host, which the server's lacks
        with pytest.raises(LogError, match="certificate"):
            open_log(f"{place.url()}?ssl_ca={authority}", node=NODE, password=Secret(place.password))
    for text, cipher in texts.items():
        with closing(SqlLog(f"{place.url()}?{text}", node=NODE, create=True, password=Secret(place.password))) as log:
            raw = log._server.connect()
            ((_, found),) = raw.session.run("show status like 'Ssl_cipher'")
            log._server.close(raw)
            assert bool(found) is cipher
    other.write_bytes((mysql8.folder / "data/public_key.pem").read_bytes())
    with pytest.raises((LogError, OSError)):
        open_log(f"{place.url()}?ssl_ca={other}", node=NODE, password=Secret(place.password))


def test_a_url_may_lead_to_a_socket(place: MySQLPlace, driver: str) -> None:
    url = f"mysql://{place.server.user}@localhost/one?unix_socket={place.server.folder}/socket"
    with closing(SqlLog(url, node=NODE, create=True, password=Secret(place.password))) as log:
        log.record(gtrid_of(log), [])
    assert len(decided(place)) == 1


# -- the server ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("value", [0, 2])
def test_a_server_that_loses_commits_is_refused(place: MySQLPlace, opener: Opener, value: int) -> None:
    log = opener()
    gtrid = gtrid_of(log)
    with changed(place, "innodb_flush_log_at_trx_commit", str(value)):
        message = f"innodb_flush_log_at_trx_commit is {value}.*SET GLOBAL innodb_flush_log_at_trx_commit = 1"
        with pytest.raises(LogError, match=message):
            opener()
        with pytest.raises(Refused, match=message):  # in a session that was opened before
            log.record(gtrid, [])
        with pytest.raises(LogError, match=message):
            log.fence(log.incarnation)
    assert decided(place) == set()
    assert not log.is_fenced(log.incarnation)
    log.record(gtrid, [])
    assert decided(place) == {gtrid}
    assert gtrid.split(":")[2] == log.incarnation, "it was not taken for a fence"


def test_a_server_that_may_not_be_written_is_refused(place: MySQLPlace, opener: Opener) -> None:
    log = opener()
    with changed(place, "read_only", "1"), pytest.raises(LogError, match=r"read_only is ON.*primary server"):
        opener()
    log.record(gtrid_of(log), [])


def test_a_table_without_transactions_is_refused(place: MySQLPlace, opener: Opener, log: SqlLog) -> None:
    place.execute("one", "alter table txpool_decisions engine=myisam")
    with pytest.raises(LogError, match=r"txpool_decisions is .* MYISAM.*ALTER TABLE txpool_decisions ENGINE = InnoDB"):
        opener()


def test_32_no_trigger_of_another_account_runs_in_the_log(place: MySQLPlace, opener: Opener, mallory: Any) -> None:
    opener()
    place.execute(
        "one",
        "create table seen (name varchar(64)) engine=innodb",
        "create definer = mallory trigger t before insert on txpool_incarnations for each row "
        "insert into seen values (new.name)",
    )
    with pytest.raises(LogError, match=r"trigger t of txpool_incarnations belongs to mallory@%.*drop it"):
        opener()


def test_the_session_is_as_the_log_needs_it_whatever_the_server_has_configured(
    place: MySQLPlace, opener: Opener, driver: str
) -> None:
    isolation = "tx_isolation" if place.kind == "mariadb" else "transaction_isolation"
    with (
        changed(place, "autocommit", "0"),
        changed(place, "completion_type", "2"),
        changed(place, isolation, "'SERIALIZABLE'"),
        changed(place, "sql_mode", "'ANSI_QUOTES,NO_BACKSLASH_ESCAPES'"),
        changed(place, "innodb_lock_wait_timeout", "1"),
    ):
        log = opener()
        gtrid = gtrid_of(log)
        log.point(gtrid, "a \\' name")
        log.record(gtrid_of(log, 2), [])
        assert log.pointers() == {gtrid: "a \\' name"}
        raw = log._server.connect()
        ((shown, wait, chain),) = raw.session.run(
            f"select @@{isolation}, @@innodb_lock_wait_timeout, @@completion_type"
        )
        log._server.close(raw)
    assert (shown, wait, chain) == ("READ-COMMITTED", 10, "NO_CHAIN")


def test_names_compare_by_their_bytes(place: MySQLPlace, log: SqlLog) -> None:
    lower, upper = gtrid_of(log, 1), gtrid_of(log, 1).replace("etl-1", "ETL-1")
    log.finish(lower)
    log.finish(upper)
    assert log.finished() == {lower, upper}


def test_a_log_that_was_half_made_is_finished(place: MySQLPlace, opener: Opener) -> None:
    """CREATE is no part of a transaction there: it may end between two tables."""
    opener().close()
    place.execute("one", "drop table txpool_memos", "drop table txpool_decisions", "delete from txpool_meta")
    with pytest.raises(LogError, match="is missing"):
        open_log(place.url(), node=NODE, password=Secret(place.password))
    log = opener()
    log.record(gtrid_of(log), [])


# -- errors -------------------------------------------------------------------------------------------------------


def test_12_a_decision_whose_answer_was_lost_is_unknown_until_an_abort_record_meets_it(place: MySQLPlace) -> None:
    with closing(MySQLProxy(place.server.port)) as proxy:
        url = f"{place.url().replace(str(place.server.port), str(proxy.port))}?ssl_disabled=true"
        with closing(SqlLog(url, node=NODE, create=True, password=Secret(place.password))) as log:
            lands, lost = gtrid_of(log, 1), gtrid_of(log, 2)
            for gtrid, fault, found in ((lands, Fault.CUT_AFTER, True), (lost, Fault.CUT_BEFORE, False)):
                log.decisions()  # over a session that will do
                proxy.fail_at(gtrid.encode(), fault)
                with pytest.raises(LogUnknown, match="may or may not be written"):
                    log.record(gtrid, [])
                assert proxy.failed.wait(60)
                assert log.abort(gtrid) is (Resolution.COMMITTED if found else Resolution.ABORTED)
    assert decided(place) == {lands}


def test_a_decision_that_waits_for_too_long_is_refused_and_was_not_written(
    place: MySQLPlace, opener: Opener, bare: Any
) -> None:
    log = opener(lock_timeout=1)
    gtrid = gtrid_of(log)
    bare.execute("update txpool_incarnations set fenced = 1")
    with pytest.raises(Refused, match=r"nothing was written.*Lock wait timeout"):
        log.record(gtrid, [])
    bare.rollback()
    assert decided(place) == set()
    log.record(gtrid, [])


def test_who_loses_a_deadlock_tries_again(
    place: MySQLPlace, opener: Opener, apart: ThreadPoolExecutor, bare: Any
) -> None:
    """Of several that wait for one key, all but one lose once the row they wait for is rolled back."""
    logs = [opener() for _ in range(4)]
    gtrid = gtrid_of(logs[0])
    bare.execute("insert into txpool_decisions (gtrid, branches, made) values (%s, '[]', 0)", [gtrid])
    aborting = [apart.submit(log.abort, gtrid) for log in logs]
    place.await_blocked(4)
    bare.rollback()
    assert [each.result() for each in aborting] == [Resolution.ABORTED] * 4


def test_08_a_pointer_that_gave_in_to_another_transaction_is_still_refused_once_fenced(
    place: MySQLPlace, opener: Opener
) -> None:
    """A deadlock rolls back the transaction of both rows: the second attempt must be whole, too."""
    log, other = opener(), opener()
    gtrid = gtrid_of(log)
    insert = "insert into txpool_decisions (gtrid, branches, made) values (%s, null, 1)"
    with place.session() as first, place.session() as second, place.session() as third, ThreadPoolExecutor(2) as pool:
        for cursor in (first, second, third):
            cursor.execute("set session transaction isolation level read committed")
            cursor.execute("start transaction")
        third.execute("insert into txpool_pointers (gtrid, datasource) values (%s, 'ledger')", [gtrid])
        first.execute(insert, [gtrid])
        for number in range(50):
            second.execute(insert, [f"heavier-{number}"])  # so that the other one gives in
        pointing = pool.submit(log.point, gtrid, "ledger")
        place.await_blocked(1)
        inserting = pool.submit(second.execute, insert, [gtrid])
        place.await_blocked(2)
        first.execute("rollback")
        inserting.result(60)  # the pointer's transaction was rolled back
        second.execute("rollback")
        time.sleep(0.5)  # it waits for the third
        fencing = pool.submit(other.fence, log.incarnation)
        time.sleep(0.5)
        fenced = fencing.done()
        third.execute("rollback")
        try:
            pointing.result(60)
            pointed = True
        except LogError:
            pointed = False
        fencing.result(60)
    assert not (fenced and pointed), "a pointer was written after the fence"
    assert place.rows("one", "select gtrid from txpool_decisions") == []
