"""PostgreSQL's branch against real servers: each step, and each way in which it can be lost. The databases are read."""

from __future__ import annotations

import itertools
import os
import signal
import socket
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from typing import TYPE_CHECKING, Any

import psycopg
import pytest
from psycopg import sql

from txpool import failpoints
from txpool.drivers import Driver, make_driver
from txpool.drivers.psycopg import Connection, PsycopgDriver
from txpool.errors import IntegrityError, OperationalError, TransactionRolledBack
from txpool.patience import Patience
from txpool.resources.adopted import AdoptedBranch, Channel
from txpool.resources.base import Answer, BranchRecord, Vote
from txpool.resources.postgresql import PostgreSQLBranch, PostgreSQLManager
from txpool.secret import Secret
from txpool.settings import DataSourceSettings
from txpool.xid import Xid, make_gtrid, make_xid, new_incarnation

if TYPE_CHECKING:
    from tests.conftest import Databases

INCARNATION = new_incarnation()
numbers = itertools.count()

SLOW = """
    create table work (id int primary key);
    create function nap() returns trigger language plpgsql as 'begin perform pg_sleep(1); return null; end';
    create constraint trigger slow after insert on work deferrable initially deferred
        for each row execute function nap()
"""


def new_xid(datasource: str = "one") -> Xid:
    return make_xid(make_gtrid("tests", INCARNATION, next(numbers)), 0, datasource)


def driver_of(databases: Databases, name: str, **options: Any) -> Driver:
    password = Secret(databases.server.password)
    settings = {"driver": "psycopg", "url": databases.url(name), "password": password, **options}
    return make_driver(DataSourceSettings.load(name=name, **settings))


class World:
    """One database, branches in it, and ways to lose their sessions."""

    def __init__(self, databases: Databases, name: str = "one") -> None:
        self.databases = databases
        self.name = name
        self.driver = driver_of(databases, name)
        self.raws: list[Any] = []

    def branch(self, statement: str | None = "insert into work values (1)") -> PostgreSQLBranch:
        raw = self.driver.connect()
        self.raws.append(raw)
        branch = PostgreSQLBranch(self.name, self.driver, raw)
        branch.name(new_xid(self.name))
        if statement is not None:
            raw.execute(statement)
        return branch

    def prepared_branch(self, statement: str = "insert into work values (1)") -> PostgreSQLBranch:
        branch = self.branch(statement)
        branch.start_prepare()
        assert branch.await_prepare() is Vote.COMMIT
        assert branch.record.xid.joined in self.databases.prepared()
        return branch

    @property
    def raw(self) -> Any:
        """The last branch's session."""
        return self.raws[-1]

    def rows(self) -> list[int]:
        return [number for (number,) in self.databases.rows(self.name, "select id from work order by id")]

    def kill(self) -> None:
        """End the session on the server."""
        self.databases.rows(self.name, "select pg_terminate_backend(%s, 5000)", [self.raw.info.backend_pid])

    def cut(self) -> None:
        """Lose what the server has answered, or will: put a socket whose other end is closed in the place."""
        ours, theirs = socket.socketpair()
        theirs.close()
        os.dup2(ours.fileno(), self.raw.fileno())
        ours.close()

    def until(self, true: Callable[[], object]) -> None:
        """The server works while we look."""
        while not true():
            pass


@pytest.fixture
def world(databases: Databases) -> Iterator[World]:
    databases.execute("one", "create table work (id int primary key deferrable initially deferred)")
    world = World(databases)
    yield world
    failpoints.disarm()
    for raw in world.raws:
        raw.close()


# -- votes ------------------------------------------------------------------------------------------------------


def test_failed_transaction_votes_no_where_psycopg_says_yes(world: World) -> None:
    branch = world.branch()
    with pytest.raises(psycopg.errors.UndefinedTable):
        world.raw.execute("select * from nowhere")
    # The program has swallowed the error, and goes on to commit.
    with pytest.raises(TransactionRolledBack, match="voted to roll back") as caught:
        branch.start_prepare()
    assert caught.value.gtrid == branch.record.xid.gtrid
    branch.start_rollback()
    assert branch.await_rollback() is Answer.ROLLED_BACK
    assert world.databases.prepared() == []
    assert world.rows() == []
    assert world.driver.is_clean(world.raw)

    with closing(world.driver.connect()) as plain:  # the yes that is not one
        plain.tpc_begin("gtrid")
        plain.execute("insert into work values (1)")
        with pytest.raises(psycopg.errors.UndefinedTable):
            plain.execute("select * from nowhere")
        plain.tpc_prepare()
        assert world.databases.prepared() == []


def test_prepare_and_commit(world: World) -> None:
    branch = world.prepared_branch()
    record = branch.record
    assert record.identity == world.raw.identity
    branch.start_commit()
    assert branch.await_commit() is Answer.COMMITTED
    assert world.rows() == [1]
    assert world.databases.prepared() == []
    status = world.databases.rows("one", "select pg_xact_status(%s::text::xid8)", [record.evidence["xid"]])
    assert status == [("committed",)]
    assert world.driver.is_clean(world.raw)


def test_prepare_and_roll_back(world: World) -> None:
    branch = world.prepared_branch()
    branch.start_rollback()
    assert branch.await_rollback() is Answer.ROLLED_BACK
    assert world.rows() == []
    assert world.databases.prepared() == []


def test_branch_is_idle_until_something_is_executed(world: World) -> None:
    branch = world.branch(None)
    assert branch.idle
    world.raw.execute("select 1")
    assert not branch.idle
    world.raw.rollback()


@pytest.mark.parametrize(
    ("statement", "answer", "rows"),
    [("commit", Answer.COMMITTED, [1]), ("rollback", Answer.ROLLED_BACK, [])],
)
def test_users_own_end_of_the_transaction_is_a_no(
    world: World, statement: str, answer: Answer, rows: list[int]
) -> None:
    branch = world.branch()
    ended = world.driver.ended_by(world.raw, world.raw.execute(statement))
    assert ended is not None
    branch.disturb(ended)
    assert not branch.idle
    world.raw.execute("insert into work values (2)")
    with pytest.raises(TransactionRolledBack, match="own SQL"):
        branch.start_prepare()
    branch.start_rollback()
    assert branch.await_rollback() is answer
    assert world.rows() == rows
    assert world.databases.prepared() == []


def test_transaction_that_ended_unseen_is_a_no(world: World) -> None:
    branch = world.branch()
    world.raw.execute("commit")
    with pytest.raises(TransactionRolledBack):
        branch.start_prepare()
    assert world.databases.prepared() == []


def test_deferred_constraint_is_a_no_at_prepare(world: World) -> None:
    branch = world.branch("insert into work values (1), (1)")
    branch.start_prepare()
    with pytest.raises(psycopg.errors.UniqueViolation) as caught:
        branch.await_prepare()
    assert isinstance(caught.value, IntegrityError)
    assert branch.record.xid.gtrid in caught.value.__notes__[0]
    branch.start_rollback()
    assert branch.await_rollback() is Answer.ROLLED_BACK
    assert world.databases.prepared() == []
    assert world.driver.is_clean(world.raw)


def test_no_slot_left_is_a_no_and_the_manager_frees_the_slots(world: World) -> None:
    ((slots,),) = world.databases.rows("one", "select current_setting('max_prepared_transactions')::int")
    holder = world.branch(None)
    for number in range(slots):
        world.raw.execute("insert into work values (%s)", [number])
        holder.name(new_xid())
        holder.start_prepare()
        assert holder.await_prepare() is Vote.COMMIT
    branch = world.branch("insert into work values (-1)")
    branch.start_prepare()
    with pytest.raises(psycopg.errors.OutOfMemory):
        branch.await_prepare()
    branch.start_rollback()
    assert branch.await_rollback() is Answer.ROLLED_BACK
    manager = PostgreSQLManager("one", world.driver)
    listed = manager.recover()
    assert sorted(b.xid.joined for b in listed) == world.databases.prepared()
    assert {b.owner for b in listed} == {world.databases.server.user}
    assert {manager.rollback(BranchRecord(b.xid, "one")) for b in listed} == {Answer.ROLLED_BACK}
    assert world.databases.prepared() == []
    assert world.rows() == []


def test_both_databases_work_before_any_answer_is_read(world: World) -> None:
    world.databases.execute("two", "create table work (id int)")
    other = World(world.databases, "two")
    branches = [world.branch(), other.branch()]
    for branch in branches:
        branch.start_prepare()
    names = sorted(branch.record.xid.joined for branch in branches)
    world.until(lambda: world.databases.prepared() == names)
    assert [branch.await_prepare() for branch in branches] == [Vote.COMMIT, Vote.COMMIT]
    for branch in branches:
        branch.start_commit()
    world.until(lambda: world.databases.prepared() == [])
    assert [branch.await_commit() for branch in branches] == [Answer.COMMITTED, Answer.COMMITTED]
    assert world.rows() == other.rows() == [1]
    other.raw.close()


# -- lost sessions in phase one ---------------------------------------------------------------------------------


def test_session_lost_before_prepare(world: World) -> None:
    branch = world.branch()
    world.kill()
    with pytest.raises(TransactionRolledBack, match=r"voted to roll back .* connection was lost"):
        branch.start_prepare()
    branch.start_rollback()
    assert branch.await_rollback() is Answer.ROLLED_BACK  # nothing was sent, so nothing can appear
    assert world.databases.prepared() == []
    assert world.rows() == []


def test_session_lost_and_nothing_sent(world: World) -> None:
    branch = world.branch()
    world.kill()
    branch.start_rollback()
    assert branch.await_rollback() is Answer.ROLLED_BACK
    assert world.rows() == []


def test_answer_to_prepare_lost(world: World) -> None:
    branch = world.branch()
    branch.start_prepare()
    world.until(world.databases.prepared)
    world.cut()
    with pytest.raises(OperationalError):
        branch.await_prepare()
    branch.start_rollback()
    assert branch.await_rollback() is Answer.ROLLED_BACK
    assert world.databases.prepared() == []
    assert world.rows() == []


def test_prepare_that_appears_late_is_unknown(world: World) -> None:
    world.databases.execute("one", "drop table work")
    world.databases.execute("one", SLOW)
    branch = world.branch()
    branch.start_prepare()
    world.cut()
    with pytest.raises(OperationalError):
        branch.await_prepare()
    branch.start_rollback()
    assert branch.await_rollback() is Answer.UNKNOWN  # it might still appear
    world.until(world.databases.prepared)  # there it is
    assert PostgreSQLManager("one", world.driver).rollback(branch.record) is Answer.ROLLED_BACK
    assert world.rows() == []


def test_session_killed_while_it_prepares_is_told_by_the_transactions_id(world: World) -> None:
    world.databases.execute("one", "drop table work")
    world.databases.execute("one", SLOW)
    branch = world.branch()
    branch.start_prepare()
    pid = world.raw.info.backend_pid
    asleep = "select 1 from pg_stat_activity where pid = %s and wait_event = 'PgSleep'"
    world.until(lambda: world.databases.rows("one", asleep, [pid]))
    world.kill()
    with pytest.raises(psycopg.errors.AdminShutdown):
        branch.await_prepare()
    branch.start_rollback()
    assert branch.await_rollback() is Answer.ROLLED_BACK
    assert world.databases.prepared() == []
    assert world.rows() == []


def test_prepare_answered_after_the_rollback_began(world: World) -> None:
    branch = world.branch()
    branch.start_prepare()
    branch.start_rollback()
    assert branch.await_rollback() is Answer.ROLLED_BACK
    assert world.databases.prepared() == []
    assert world.driver.is_clean(world.raw)


def test_keyboard_interrupt_while_prepare_is_awaited(world: World) -> None:
    world.databases.execute("one", "drop table work")
    world.databases.execute("one", SLOW)
    branch = world.branch()
    branch.start_prepare()
    signal.setitimer(signal.ITIMER_REAL, 0.2)
    previous = signal.signal(signal.SIGALRM, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            branch.await_prepare()
    finally:
        signal.signal(signal.SIGALRM, previous)
    branch.start_rollback()
    assert branch.await_rollback() is Answer.ROLLED_BACK
    assert world.databases.prepared() == []
    assert world.rows() == []
    assert world.driver.is_clean(world.raw)


def test_rollback_of_an_interrupted_statement(world: World) -> None:
    branch = world.branch()
    world.raw.pgconn.send_query(b"select pg_sleep(600)")
    world.raw.pgconn.flush()
    # A cancel that overtakes its statement has nothing to stop.
    world.until(lambda: world.databases.rows("one", "select 1 from pg_stat_activity where wait_event = 'PgSleep'"))
    branch.start_rollback()
    assert branch.await_rollback() is Answer.ROLLED_BACK
    assert not world.driver.is_clean(world.raw)
    world.until(lambda: not world.databases.rows("one", "select 1 from pg_locks where relation = 'work'::regclass"))
    assert world.rows() == []


# -- lost sessions in phase two ---------------------------------------------------------------------------------


def test_session_lost_between_the_phases(world: World) -> None:
    branch = world.prepared_branch()
    world.kill()
    branch.start_commit()
    assert branch.await_commit() is Answer.COMMITTED
    assert world.rows() == [1]
    assert world.databases.prepared() == []


@pytest.mark.parametrize(("verb", "rows"), [("commit", [1]), ("rollback", [])])
def test_answer_lost_in_phase_two_is_told_by_the_transactions_id(world: World, verb: str, rows: list[int]) -> None:
    branch = world.prepared_branch()
    getattr(branch, f"start_{verb}")()
    world.until(lambda: not world.databases.prepared())
    world.cut()
    answer = getattr(branch, f"await_{verb}")()
    assert answer is (Answer.COMMITTED if rows else Answer.ROLLED_BACK)
    assert world.rows() == rows


@pytest.mark.parametrize("verb", ["commit", "rollback"])
@pytest.mark.parametrize("by_hand", ["commit", "rollback"])
def test_finished_by_hand(world: World, verb: str, by_hand: str) -> None:
    branch = world.prepared_branch()
    with psycopg.connect(world.databases.dsn("one"), autocommit=True) as dba:
        dba.execute(f"{by_hand} prepared '{branch.record.xid.joined}'")
    getattr(branch, f"start_{verb}")()
    answer = getattr(branch, f"await_{verb}")()
    assert answer is (Answer.COMMITTED if world.rows() == [1] else Answer.ROLLED_BACK)
    assert world.rows() == ([1] if by_hand == "commit" else [])


def test_cancels_that_come_late_do_not_stop_phase_two(world: World) -> None:
    raw = world.driver.connect()
    world.raws.append(raw)
    branches = []
    for number in range(60):
        raw.execute("insert into work values (%s)", [number])
        branch = PostgreSQLBranch("one", world.driver, raw)
        branch.name(new_xid())
        branch.start_prepare()
        assert branch.await_prepare() is Vote.COMMIT
        branches.append(branch)
    storm = "do $$ begin loop perform pg_cancel_backend({}); end loop; end $$"
    with psycopg.connect(world.databases.dsn("one"), autocommit=True) as caller, ThreadPoolExecutor(1) as pool:
        calling = pool.submit(caller.execute, sql.SQL(storm).format(raw.info.backend_pid))  # type: ignore[arg-type]
        try:
            world.until(
                lambda: world.databases.rows("one", "select 1 from pg_stat_activity where query like 'do $$%%'")
            )
            answers = []
            for branch in branches:
                branch.start_commit()
                answers.append(branch.await_commit())
        finally:
            caller.cancel_safe()
            with pytest.raises(psycopg.errors.QueryCanceled):
                calling.result()
    assert answers == [Answer.COMMITTED] * 60
    assert world.rows() == list(range(60))


def test_server_restarted_while_prepared(world: World) -> None:
    branch = world.prepared_branch()
    world.databases.server.restart("immediate")
    branch.start_commit()
    assert branch.await_commit() is Answer.COMMITTED
    assert world.rows() == [1]


def test_server_that_cannot_be_reached_has_not_answered(world: World) -> None:
    branch = world.prepared_branch()
    world.databases.server.stop("immediate")
    try:
        branch.start_commit()
        assert branch.await_commit() is Answer.UNKNOWN
    finally:
        world.databases.server.start()
    manager = PostgreSQLManager("one", world.driver)
    assert [b.xid for b in manager.recover()] == [branch.record.xid]
    assert manager.commit(branch.record) is Answer.COMMITTED
    assert world.rows() == [1]


# -- one phase --------------------------------------------------------------------------------------------------


def test_one_phase(world: World) -> None:
    branch = world.branch()
    assert branch.commit_one_phase() is Answer.COMMITTED
    assert world.rows() == [1]


def test_one_phase_of_a_failed_transaction(world: World) -> None:
    branch = world.branch()
    with pytest.raises(psycopg.errors.UndefinedTable):
        world.raw.execute("select * from nowhere")
    assert branch.commit_one_phase() is Answer.ROLLED_BACK
    assert "failed" in str(branch.failure)
    assert world.rows() == []


def test_one_phase_that_the_database_refuses(world: World) -> None:
    branch = world.branch("insert into work values (1), (1)")
    assert branch.commit_one_phase() is Answer.ROLLED_BACK
    assert isinstance(branch.failure, psycopg.errors.UniqueViolation)
    assert world.rows() == []


def test_one_phase_over_a_session_that_is_known_to_be_dead(world: World) -> None:
    branch = world.branch()
    world.kill()
    assert branch.commit_one_phase() is Answer.ROLLED_BACK
    assert world.rows() == []


def test_one_phase_whose_answer_is_lost(world: World) -> None:
    world.databases.execute("one", "drop table work")
    world.databases.execute("one", SLOW)
    branch = world.branch()
    pid = world.raw.info.backend_pid
    signal.setitimer(signal.ITIMER_REAL, 0.3)
    previous = signal.signal(
        signal.SIGALRM, lambda *_: world.databases.execute("one", f"select pg_terminate_backend({pid})")
    )  # type: ignore[arg-type]
    try:
        assert branch.commit_one_phase() is Answer.UNKNOWN
    finally:
        signal.signal(signal.SIGALRM, previous)
    assert isinstance(branch.failure, OperationalError)


@pytest.mark.parametrize(
    ("statement", "answer", "rows"),
    [
        ("commit", Answer.COMMITTED, [1, 2]),
        ("rollback", Answer.ROLLED_BACK, []),
    ],
)
def test_one_phase_after_the_users_own_end(world: World, statement: str, answer: Answer, rows: list[int]) -> None:
    branch = world.branch()
    branch.disturb(world.driver.ended_by(world.raw, world.raw.execute(statement)) or "")
    world.raw.execute("insert into work values (2)")
    assert branch.commit_one_phase() is answer
    assert world.rows() == rows


# -- the manager ------------------------------------------------------------------------------------------------


def test_recover_lists_ours_in_this_database_only(world: World) -> None:
    world.databases.execute("two", "create table work (id int)")
    other = World(world.databases, "two")
    here, there = world.prepared_branch(), other.prepared_branch()
    with closing(world.driver.connect()) as stranger:
        stranger.execute("insert into work values (9)")
        stranger.execute("prepare transaction 'txp1:somebody:else'")
    manager = PostgreSQLManager("one", world.driver)
    (found,) = manager.recover()
    assert found.xid == here.record.xid
    assert found.age is not None
    assert found.age >= 0
    assert manager.identity() == here.record.identity
    # "Belongs to another database" is not "absent".
    assert manager.commit(there.record) is Answer.UNKNOWN
    assert len(world.databases.prepared()) == 3
    other.raw.close()


def test_absent_without_evidence_is_lost(world: World) -> None:
    manager = PostgreSQLManager("one", world.driver)
    record = BranchRecord(new_xid(), "one")
    assert manager.commit(record) is Answer.LOST
    assert manager.rollback(record) is Answer.LOST


def test_absent_is_not_believed_on_another_server_or_timeline(world: World) -> None:
    branch = world.prepared_branch()
    branch.start_commit()
    assert branch.await_commit() is Answer.COMMITTED
    manager = PostgreSQLManager("one", world.driver)
    record = branch.record
    assert manager.commit(record) is Answer.COMMITTED
    elsewhere = BranchRecord(record.xid, "one", "1/one", record.evidence)
    assert manager.commit(elsewhere) is Answer.UNKNOWN
    branched_off = {**record.evidence, "timeline": "00000007"}
    assert manager.commit(BranchRecord(record.xid, "one", record.identity, branched_off)) is Answer.LOST
    future = {**record.evidence, "xid": str(int(record.evidence["xid"]) + 10**9)}
    assert manager.commit(BranchRecord(record.xid, "one", record.identity, future)) is Answer.LOST


def test_transaction_that_wrote_nothing_has_every_ending(world: World) -> None:
    branch = world.prepared_branch("select * from work")
    with psycopg.connect(world.databases.dsn("one"), autocommit=True) as dba:
        dba.execute(f"rollback prepared '{branch.record.xid.joined}'")
    branch.start_commit()
    assert branch.await_commit() is Answer.COMMITTED


def test_role_that_may_not_finish_a_branch_has_not_answered(world: World) -> None:
    world.databases.execute("one", "drop role if exists guest; create role guest login password 'guest'")
    branch = world.prepared_branch()
    guest = driver_of(
        world.databases, "one", url=world.databases.url("one").replace("txpool@", "guest@"), password=Secret("guest")
    )
    manager = PostgreSQLManager("one", guest)
    assert manager.commit(branch.record) is Answer.UNKNOWN
    assert [b.xid for b in manager.recover()] == [branch.record.xid]
    branch.start_commit()
    assert branch.await_commit() is Answer.COMMITTED


# -- adopted branches -------------------------------------------------------------------------------------------


def adopted(world: World, count: int) -> list[AdoptedBranch]:
    channel = Channel(world.driver)
    records = []
    for number in range(count):
        records.append(world.prepared_branch(f"insert into work values ({number})").record)
        world.raw.close()
    return [AdoptedBranch(record, channel) for record in records]


@pytest.mark.parametrize("verb", ["commit", "rollback"])
def test_adopted_branches_share_one_connection(world: World, verb: str) -> None:
    branches = adopted(world, 5)
    for branch in branches:
        getattr(branch, f"start_{verb}")()
    mine = "select count(*) from pg_stat_activity where datname = 'one' and pid <> pg_backend_pid()"
    world.until(lambda: world.databases.rows("one", mine) == [(1,)])
    answers = [getattr(branch, f"await_{verb}")() for branch in branches]
    assert answers == [Answer.COMMITTED if verb == "commit" else Answer.ROLLED_BACK] * 5
    assert world.rows() == (list(range(5)) if verb == "commit" else [])
    assert world.databases.prepared() == []
    world.until(lambda: world.databases.rows("one", mine) == [(0,)])


class _Stalling(PsycopgDriver):
    """Each session that it opens stands still on the server."""

    opened: list[int]

    def connect(self, timeout: float | None = None) -> Connection:
        raw = super().connect(timeout)
        self.opened.append(raw.info.backend_pid)
        os.kill(raw.info.backend_pid, signal.SIGSTOP)
        return raw


def test_a_server_that_hangs_is_waited_for_once_whatever_it_holds(world: World) -> None:
    driver = _Stalling(world.driver._settings)  # type: ignore[attr-defined]
    driver.opened = []
    channel = Channel(driver, Patience(None, 0.2))
    branches = [AdoptedBranch(branch.record, channel) for branch in adopted(world, 3)]
    for branch in branches:
        branch.start_commit()
    assert [branch.await_commit() for branch in branches] == [Answer.UNKNOWN] * 3
    assert len(driver.opened) == 1
    assert len(world.databases.prepared()) == 3
    os.kill(driver.opened[0], signal.SIGCONT)
    manager = PostgreSQLManager("one", world.driver)
    # The first may have been committed meanwhile, by what had been sent.
    assert {manager.commit(branch.record) for branch in branches} <= {Answer.COMMITTED, Answer.UNKNOWN}
    world.until(lambda: manager.commit(branches[0].record) is Answer.COMMITTED)
    assert world.rows() == [0, 1, 2]


def test_adopted_branches_do_not_wait_for_ever_for_a_connection() -> None:
    with ThreadPoolExecutor(1) as pool, socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"postgresql://me@127.0.0.1:{silent.getsockname()[1]}/db"
        driver = make_driver(DataSourceSettings.load(name="one", driver="psycopg", url=url))
        branch = AdoptedBranch(BranchRecord(new_xid(), "one", ""), Channel(driver, Patience(None, 0.2)))
        pool.submit(branch.start_commit).result(20)
        assert branch.await_commit() is Answer.UNKNOWN


def test_adopted_branches_outlive_a_lost_connection(world: World) -> None:
    branches = adopted(world, 4)
    for branch in branches:
        branch.start_commit()
    assert branches[1].await_commit() is Answer.COMMITTED
    world.databases.execute(
        "one",
        "select pg_terminate_backend(pid, 5000) from pg_stat_activity "
        "where datname = current_database() and pid <> pg_backend_pid()",
    )
    assert [branches[n].await_commit() for n in (0, 2, 3)] == [Answer.COMMITTED] * 3
    assert world.rows() == [0, 1, 2, 3]


def test_adopted_branches_of_a_server_that_is_down_are_left_to_recovery(world: World) -> None:
    branches = adopted(world, 3)
    world.databases.server.stop("immediate")
    try:
        for branch in branches:
            branch.start_commit()
        assert [branch.await_commit() for branch in branches] == [Answer.UNKNOWN] * 3
    finally:
        world.databases.server.start()
    assert len(world.databases.prepared()) == 3


# -- failpoints -------------------------------------------------------------------------------------------------


def test_failpoints_strike_after_the_message_was_sent(world: World) -> None:
    branch = world.branch()
    with failpoints.arming("branch.prepare-sent"), pytest.raises(failpoints.Failpoint):
        branch.start_prepare()
    world.until(world.databases.prepared)
    with failpoints.arming("branch.rollback-sent", "count"):
        branch.start_rollback()
        assert branch.await_rollback() is Answer.ROLLED_BACK
        assert failpoints.reached("branch.rollback-sent") == 1
    assert world.databases.prepared() == []
    branch = world.prepared_branch()
    with failpoints.arming("branch.commit-sent"), pytest.raises(failpoints.Failpoint):
        branch.start_commit()
    world.until(lambda: world.rows() == [1])
    assert branch.await_commit() is Answer.COMMITTED
