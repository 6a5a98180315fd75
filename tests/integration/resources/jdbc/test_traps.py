"""What each driver's XA does otherwise than it says, on the drivers themselves: no transaction is torn by it."""

from __future__ import annotations

import sqlite3
from contextlib import closing, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import txpool
from tests.support.jdbc_places import KINDS, JdbcPlaces
from tests.support.mysql import MySQLServer
from tests.support.unseen import unseen
from txpool import failpoints
from txpool.datasource import DataSource
from txpool.resources.base import BranchOutcome, BranchRecord, PrepareVote
from txpool.resources.deadlines import NO_DEADLINES
from txpool.xid import FORMAT_ID, make_gtrid, make_xid, new_incarnation

if TYPE_CHECKING:
    from collections.abc import Iterator

NAMES = make_gtrid("tests", new_incarnation(), 1)


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def partner(tmp_path: Path) -> Iterator[DataSource]:
    """A SQLite database, in which the transactions write as well; they are decided in the log."""
    with closing(sqlite3.connect(tmp_path / "partner.db")) as file:
        file.execute("create table t (id int)")
    txpool.configure(node_name="etl-1", log_url=f"sqlite:///{tmp_path}/txlog", log_create=True)
    with DataSource("partner", driver="sqlite3", mode="last-resource", url=f"sqlite:///{tmp_path}/partner.db") as found:
        yield found
    txpool.configure()


def rows_of(partner: DataSource) -> list[int]:
    with closing(sqlite3.connect(partner.settings.url.removeprefix("sqlite:///"))) as file:
        return [number for (number,) in file.execute("select id from t order by id")]


def insert(datasource: DataSource, number: int) -> None:
    datasource.connect().cursor().execute("insert into t (id) values (?)", (number,))


def test_both_commit_and_both_roll_back(jdbc_places: JdbcPlaces, partner: DataSource, kind: str) -> None:
    source = jdbc_places.open(kind)
    with txpool.transaction():
        insert(source, 1)
        insert(partner, 1)
    with pytest.raises(ZeroDivisionError), txpool.transaction():
        insert(source, 2)
        insert(partner, 2)
        raise ZeroDivisionError
    with txpool.transaction():
        insert(source, 3)
    assert (jdbc_places.rows(source), rows_of(partner)) == ([1, 3], [1])
    assert source.branch_recovery().recover() == []


def test_a_failed_statement_is_no_yes(jdbc_places: JdbcPlaces, partner: DataSource, kind: str) -> None:
    """H2, PostgreSQL and MariaDB answer 0 to prepare() after it, and Derby XA_RDONLY."""
    source = jdbc_places.open(kind)
    jdbc_places.execute(source, "insert into t (id) values (0)")
    for number, statements in enumerate((["first", "fails"], ["fails"], ["fails", "last"]), 1):
        with pytest.raises(txpool.TransactionRolledBack, match=r"failed|had rolled it back"), txpool.transaction():
            for each in statements:
                with suppress(txpool.DatabaseError):
                    insert(source, 0 if each == "fails" else number)
            insert(partner, number)
    assert (jdbc_places.rows(source), rows_of(partner)) == ([0], [])
    with txpool.transaction():
        insert(source, 9)
        insert(partner, 9)
    assert (jdbc_places.rows(source), rows_of(partner)) == ([0, 9], [9])


@pytest.mark.parametrize("statement", ["commit", "rollback", "create table made_inside (id int)"])
def test_a_transaction_that_sql_has_ended_is_never_whole(
    jdbc_places: JdbcPlaces, partner: DataSource, kind: str, statement: str
) -> None:
    """H2 accepts all of them in silence, PostgreSQL the SQL COMMIT; the others refuse."""
    source = jdbc_places.open(kind)
    refused = False
    with suppress(txpool.Error), txpool.transaction():
        insert(source, 1)
        try:
            source.connect().cursor().execute(unseen(statement))
        except txpool.Error as error:
            refused = "nothing was done" in str(error)
        with suppress(txpool.Error):
            insert(source, 2)
        insert(partner, 1)
    if statement.startswith("create") and kind in ("derby", "postgresql"):
        assert (jdbc_places.rows(source), rows_of(partner)) == ([1, 2], [1])  # DDL is a part of the transaction there
    elif kind == "h2" and statement != "rollback":
        assert refused
        assert (jdbc_places.rows(source), rows_of(partner)) == ([1, 2], [1])
    else:
        assert rows_of(partner) == []
        assert jdbc_places.rows(source) in ([], [1])


@pytest.mark.parametrize("statement", ["commit", "/* a */ ROLLBACK", "-- a\nrollback work", "commit work"])
def test_what_would_surely_end_it_is_not_sent(
    jdbc_places: JdbcPlaces, partner: DataSource, kind: str, statement: str
) -> None:
    source = jdbc_places.open(kind)
    with txpool.transaction():
        insert(source, 1)
        cursor = source.connect().cursor()
        with pytest.raises(
            txpool.ProgrammingError, match="was not sent: nothing was done, and the transaction goes on"
        ):
            cursor.execute(statement)
        with pytest.raises(txpool.ProgrammingError, match="was not sent"):
            cursor.executemany(statement, [])
        insert(source, 2)
        insert(partner, 1)
    assert (jdbc_places.rows(source), rows_of(partner)) == ([1, 2], [1])


@pytest.mark.parametrize("kind", ["h2", "postgresql"], indirect=True)
@pytest.mark.parametrize("statement", ["insert into t values (9); commit", "select $$;$$; /* ; */ rollback"])
def test_nor_is_it_sent_as_one_of_several(
    jdbc_places: JdbcPlaces, partner: DataSource, kind: str, statement: str
) -> None:
    source = jdbc_places.open(kind)
    with txpool.transaction():
        insert(source, 1)
        with pytest.raises(txpool.ProgrammingError, match="was not sent"):
            source.connect().cursor().execute(statement)
        insert(partner, 1)
    assert (jdbc_places.rows(source), rows_of(partner)) == ([1], [1])


def test_a_rollback_is_seen_whatever_its_comment_says(jdbc_places: JdbcPlaces, partner: DataSource) -> None:
    source = jdbc_places.open("postgresql")
    with pytest.raises(txpool.Error), txpool.transaction():
        insert(source, 1)
        with pytest.raises(txpool.ProgrammingError, match="the SQL ROLLBACK has ended its part"):
            source.connect().cursor().execute(unseen("rollback /* back to start */"))
        insert(partner, 1)
    assert (jdbc_places.rows(source), rows_of(partner)) == ([], [])


def test_a_commit_that_no_text_shows(jdbc_places: JdbcPlaces, partner: DataSource) -> None:
    """A Java procedure of H2's commits, and what follows is another transaction: PREPARE would say yes to it."""
    source = jdbc_places.open("h2")
    jdbc_places.execute(
        source,
        "create alias commit_inside as 'void commitInside(java.sql.Connection c) throws Exception "
        '{ try (java.sql.Statement s = c.createStatement()) { s.execute("COMMIT"); } }\'',
    )
    with pytest.raises(txpool.Error) as raised, txpool.transaction():
        insert(source, 1)
        source.connect().cursor().execute("call commit_inside()")
        insert(source, 2)
        insert(partner, 1)
    assert isinstance(raised.value, txpool.HeuristicError), "a part is committed, and people are told"
    assert rows_of(partner) == []
    assert jdbc_places.rows(source) == [1], "what the procedure has committed stays, and nothing else"


@pytest.mark.parametrize("mode", ["local", "cmr"])
@pytest.mark.parametrize("committing", [True, False], ids=["commit", "rollback"])
@pytest.mark.parametrize("statement", ["call p()", "create table made_inside (id int)"])
def test_a_commit_whose_session_is_lost_may_have_kept_a_part(
    jdbc_places: JdbcPlaces, mariadb: MySQLServer, partner: DataSource, mode: str, statement: str, *, committing: bool
) -> None:
    """Nobody can ask any more whether the transaction is still the one that was begun."""
    source = jdbc_places.open("mariadb", mode)
    mariadb.execute("create procedure p() begin commit; end", database="one")
    with pytest.raises((txpool.HeuristicError, txpool.TransactionInDoubt)), txpool.transaction():
        insert(source, 1)
        cursor = source.connect().cursor()
        cursor.execute("select connection_id()")
        ((session,),) = cursor.fetchall()
        with suppress(txpool.Error):
            cursor.execute(statement)
        mariadb.end_sessions(session)
        if not committing:
            raise ZeroDivisionError
    assert jdbc_places.rows(source) == [1]


@pytest.mark.parametrize("mode", ["local", "cmr", "xa"])
@pytest.mark.parametrize("committing", [True, False], ids=["commit", "rollback"])
def test_what_was_only_written_has_rolled_back_with_its_session(
    jdbc_places: JdbcPlaces, mariadb: MySQLServer, partner: DataSource, mode: str, *, committing: bool
) -> None:
    source = jdbc_places.open("mariadb", mode)
    with pytest.raises(txpool.TransactionRolledBack if committing else ZeroDivisionError), txpool.transaction():
        insert(source, 1)
        cursor = source.connect().cursor()
        cursor.execute("select connection_id()")
        ((session,),) = cursor.fetchall()
        mariadb.end_sessions(session)
        if not committing:
            raise ZeroDivisionError
    assert jdbc_places.rows(source) == []


@pytest.mark.parametrize("mode", ["local", "cmr", "xa"])
def test_rows_without_transactions_stay_and_a_rollback_tells_it(
    jdbc_places: JdbcPlaces, mariadb: MySQLServer, partner: DataSource, mode: str
) -> None:
    source = jdbc_places.open("mariadb", mode)
    mariadb.execute("create table m (id int) engine=myisam", database="one")
    with pytest.raises(txpool.HeuristicCommit), txpool.transaction():
        insert(source, 1)
        source.connect().cursor().execute("insert into m values (1)")
        raise ZeroDivisionError
    with pytest.raises(ZeroDivisionError), txpool.transaction():
        insert(source, 2)
        raise ZeroDivisionError
    assert jdbc_places.rows(source) == []
    assert mariadb.execute("select id from m", database="one") == [(1,)]


def test_rows_without_transactions_stay_behind_a_prepare_too(
    jdbc_places: JdbcPlaces, mariadb: MySQLServer, partner: DataSource
) -> None:
    source, other = jdbc_places.open("mariadb"), jdbc_places.open("derby")
    mariadb.execute("create table m (id int) engine=myisam", database="one")
    refused = pytest.raises(txpool.HeuristicMixed)
    with refused, failpoints.arming("log.record", "raise"), txpool.transaction():
        insert(source, 1)
        insert(other, 1)
        source.connect().cursor().execute("insert into m values (1)")
    assert jdbc_places.rows(source) == jdbc_places.rows(other) == []
    assert mariadb.execute("select id from m", database="one") == [(1,)]


def test_a_session_that_was_killed_just_before_is_not_attempted_again(
    jdbc_places: JdbcPlaces, mariadb: MySQLServer
) -> None:
    txpool.configure()
    source, tries = jdbc_places.open("mariadb", "local"), []

    @txpool.transactional(attempts=2)
    def work() -> None:
        tries.append(1)
        insert(source, len(tries))

    with txpool.transaction():
        cursor = source.connect().cursor()
        cursor.execute("select connection_id()")
        ((session,),) = cursor.fetchall()
    mariadb.end_sessions(session)
    with pytest.raises(txpool.OperationalError):
        work()
    work()
    assert (jdbc_places.rows(source), len(tries)) == ([2], 2)


def test_xa_commands_of_the_programs_own_are_refused_in_a_branch(jdbc_places: JdbcPlaces, partner: DataSource) -> None:
    """MariaDB takes them: the second half would be prepared under the first one's name."""
    source = jdbc_places.open("mariadb")
    with txpool.transaction():
        insert(source, 1)
        insert(partner, 1)
        xid = source.connect().enlistment.branch.record.xid  # type: ignore[attr-defined]
        cursor = source.connect().cursor()
        for command in ("end {}", "rollback {}", "start {}"):
            with pytest.raises(txpool.ProgrammingError, match="Nothing was sent"):
                cursor.execute(f"xa {command}".format(f"'{xid.gtrid}','{xid.bqual}',{FORMAT_ID}"))
        insert(source, 2)
    assert (jdbc_places.rows(source), rows_of(partner)) == ([1, 2], [1])


def test_postgresql_marks_its_transaction(jdbc_places: JdbcPlaces, partner: DataSource) -> None:
    """A COMMIT in one message with what follows: the setting of the first transaction is gone."""
    source = jdbc_places.open("postgresql")
    with pytest.raises(txpool.Error), txpool.transaction():
        insert(source, 1)
        source.connect().cursor().execute("insert into t (id) values (2); commit; insert into t (id) values (3)")
        insert(source, 4)
        insert(partner, 1)
    assert rows_of(partner) == []
    assert 4 not in jdbc_places.rows(source)


def test_h2s_commits_are_accepted_where_the_file_says_so(jdbc_places: JdbcPlaces, partner: DataSource) -> None:
    options = {"h2.accept": "silent-commits"}
    source = jdbc_places.open("h2", **options)
    with txpool.transaction():
        insert(source, 1)
        source.connect().cursor().execute("create table made_inside (id int)")
        insert(source, 2)
        insert(partner, 1)
    assert (jdbc_places.rows(source), rows_of(partner)) == ([1, 2], [1])


def prepared(source: DataSource, number: int) -> tuple[Any, BranchRecord]:
    """A prepared branch, and its record."""
    raw = source.driver_adapter.connect()
    branch = source.resource_manager.branch(source.name, source.driver_adapter, raw, NO_DEADLINES, file="")
    branch.name(make_xid(f"{NAMES}{number}", 0, source.name))
    source.driver_adapter.begin(raw)
    source.driver_adapter.execute(raw, "insert into t (id) values (?)", [number])
    branch.start_prepare()
    assert branch.await_prepare() is PrepareVote.COMMIT
    return branch, branch.record


def test_a_session_that_is_closed_keeps_what_it_has_prepared(jdbc_places: JdbcPlaces, kind: str) -> None:
    """H2 would lose it: the connection stays open until phase two, whoever closes it."""
    source = jdbc_places.open(kind)
    branch, record = prepared(source, 7)
    source.driver_adapter.close(branch._raw)
    recovery = source.branch_recovery()
    assert [each.xid for each in recovery.recover()] == [record.xid]
    assert recovery.commit(record) is BranchOutcome.COMMITTED
    assert jdbc_places.rows(source) == [7]
    assert recovery.recover() == []


def test_an_unknown_xid_has_not_ended(jdbc_places: JdbcPlaces, kind: str) -> None:
    """H2's XAResource answers OK to the end of one, and to a second START under one name."""
    source = jdbc_places.open(kind)
    recovery = source.branch_recovery()
    never = BranchRecord(make_xid(f"{NAMES}aa", 0, source.name), source.name, recovery.identity())
    assert recovery.commit(never) in (BranchOutcome.ABSENT, BranchOutcome.LOST)
    assert recovery.rollback(never) in (BranchOutcome.ABSENT, BranchOutcome.LOST)


def test_the_owner_hears_of_the_end_by_another(jdbc_places: JdbcPlaces, kind: str) -> None:
    """Derby and PostgreSQL let another session end it while the owner is there; H2's owner would say yes again."""
    source = jdbc_places.open(kind)
    branch, record = prepared(source, 7)
    outcome = source.branch_recovery().rollback(record)
    if kind == "mariadb":  # -4, though the branch is there: no answer while its session is connected
        assert outcome is BranchOutcome.UNKNOWN
        assert [each.xid for each in source.branch_recovery().recover()] == [record.xid]
        branch.start_rollback()
        assert branch.await_rollback() is BranchOutcome.ROLLED_BACK
    else:
        assert outcome is BranchOutcome.ROLLED_BACK
        branch.start_commit()
        assert branch.await_commit() in (BranchOutcome.ABSENT, BranchOutcome.ROLLED_BACK)
    assert jdbc_places.rows(source) == []


def test_a_connection_that_ends_its_own_part(jdbc_places: JdbcPlaces, partner: DataSource, kind: str) -> None:
    """managed.commit = join: by savepoints, whose SQL differs."""
    source = jdbc_places.open(kind, **{"managed.commit": "join"})
    with txpool.transaction():
        connection = source.connect()
        for number, end in ((1, connection.commit), (2, connection.rollback), (3, connection.commit)):
            connection.cursor().execute("insert into t (id) values (?)", (number,))
            end()
        insert(partner, 1)
    assert (jdbc_places.rows(source), rows_of(partner)) == ([1, 3], [1])


@pytest.mark.parametrize("mode", ["local", "last-resource", "cmr"])
def test_a_driver_without_an_xa_datasource(jdbc_places: JdbcPlaces, tmp_path: Path, mode: str) -> None:
    text = f"driver = jdbc\nmode = {mode}\njdbc.driver-class = org.h2.Driver\nurl = jdbc:h2:file:{tmp_path}/plain\n"
    classpath = [line for line in jdbc_places.lines("h2").splitlines() if line.startswith("jdbc.classpath")]
    (tmp_path / "plain.properties").write_text(text + "\n".join(["user = sa", "password = sa", *classpath]))
    (tmp_path / "plain.properties").chmod(0o600)
    with DataSource.from_properties(tmp_path / "plain.properties") as source:
        jdbc_places.execute(source, "create table t (id int)")
        with pytest.raises(ZeroDivisionError), txpool.transaction():
            insert(source, 1)
            raise ZeroDivisionError
        with txpool.transaction():
            insert(source, 2)
        assert jdbc_places.rows(source) == [2]
