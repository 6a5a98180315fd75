"""XA COMMIT and XA ROLLBACK: lost answers, sessions that hold on, and what is said of a branch that is gone."""

from __future__ import annotations

import logging
import shutil
import time
from contextlib import suppress
from pathlib import Path

import pymysql
import pytest

from tests.integration.resources.mysql.branches import BranchDatabase, new_xid
from tests.support.mysql import MySQLServer
from tests.support.mysql_proxy import Fault
from tests.support.waiting import until
from txpool.resources.base import BranchOutcome, BranchRecord
from txpool.resources.branches import phase_two
from txpool.resources.mysql.branches import xa

ENDS = [("commit", BranchOutcome.COMMITTED, [1]), ("rollback", BranchOutcome.ROLLED_BACK, [])]


@pytest.mark.parametrize(("verb", "outcome", "rows"), ENDS)
def test_a_session_that_is_lost_between_the_phases(
    world: BranchDatabase, verb: str, outcome: BranchOutcome, rows: list[int]
) -> None:
    branch = world.prepared_branch()
    world.kill()
    getattr(branch, f"start_{verb}")()
    assert getattr(branch, f"await_{verb}")() is outcome
    assert world.rows() == rows
    assert world.server.prepared() == []


@pytest.mark.parametrize("verb", ["commit", "rollback"])
def test_another_session_ends_it_while_its_own_is_connected(world: BranchDatabase, verb: str) -> None:
    """From 8.0.29 on MySQL lets it: then the branch's own session does not find it. Before that nobody else can."""
    branch = world.prepared_branch()
    expected = BranchOutcome.ABSENT if world.server.lets_go else BranchOutcome.COMMITTED
    with suppress(pymysql.Error):
        world.server.execute(xa.named(verb, branch.record.xid))
    branch.start_commit()
    assert branch.await_commit() is expected
    assert world.rows() == ([] if verb == "rollback" and expected is BranchOutcome.ABSENT else [1])


@pytest.mark.crash
@pytest.mark.parametrize("mode", ["fast", "immediate"])
@pytest.mark.parametrize(("verb", "outcome", "rows"), ENDS)
def test_the_server_restarts_between_the_phases(
    world: BranchDatabase, mode: str, verb: str, outcome: BranchOutcome, rows: list[int]
) -> None:
    branch = world.prepared_branch()
    world.server.restart(mode)
    getattr(branch, f"start_{verb}")()
    assert getattr(branch, f"await_{verb}")() is outcome
    assert world.rows() == rows
    assert world.server.prepared() == []


@pytest.mark.parametrize(("verb", "outcome", "rows"), ENDS)
def test_the_answer_is_lost(world: BranchDatabase, verb: str, outcome: BranchOutcome, rows: list[int]) -> None:
    proxy = world.proxy()
    branch = world.prepared_branch(driver=world.driver_of(port=proxy.port))
    proxy.fail_at(f"xa {verb}".encode(), Fault.CUT_AFTER)
    getattr(branch, f"start_{verb}")()
    assert getattr(branch, f"await_{verb}")() is outcome
    assert proxy.failed.is_set()
    assert world.rows() == rows
    assert world.server.prepared() == []


def test_the_commit_never_arrives(world: BranchDatabase) -> None:
    proxy = world.proxy()
    branch = world.prepared_branch(driver=world.driver_of(port=proxy.port))
    proxy.fail_at(b"xa commit", Fault.CUT_BEFORE)
    branch.start_commit()
    assert branch.await_commit() is BranchOutcome.COMMITTED
    assert proxy.failed.is_set()
    assert world.rows() == [1]


def test_a_first_commit_that_finds_nothing_is_no_success(world: BranchDatabase) -> None:
    branch = world.prepared_branch()
    world.kill()
    world.server.execute(xa.named("rollback", branch.record.xid))  # by an administrator's hand
    branch.start_commit()
    assert branch.await_commit() is BranchOutcome.ABSENT
    assert world.rows() == []


def test_an_interrupted_commit_may_have_been_sent(world: BranchDatabase) -> None:
    branch = world.prepared_branch()
    branch.start_commit()
    until(lambda: world.rows() == [1])  # then the interrupt comes, and the coordinator starts anew
    branch.start_commit()
    assert branch.await_commit() is BranchOutcome.COMMITTED
    assert world.server.prepared() == []


def test_while_its_session_is_connected_nobody_else_can_end_it(world: BranchDatabase) -> None:
    if world.server.lets_go:
        pytest.skip("this server's sessions let go of a branch at PREPARE")
    branch = world.prepared_branch()
    for end in (world.recovery.commit, world.recovery.rollback):
        assert end(branch.record) is BranchOutcome.UNKNOWN
        assert "still connected" in world.recovery.why_not(branch.record)
    assert [each.xid for each in world.recovery.recover()] == [branch.record.xid]
    world.raws[-1].break_off()
    assert world.recovery.commit(branch.record) is BranchOutcome.COMMITTED
    assert world.recovery.why_not(branch.record) == ""
    assert world.rows() == [1]


def test_many_that_their_sessions_hold_are_waited_for_together(
    world: BranchDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    if world.server.lets_go:
        pytest.skip("this server's sessions let go of a branch at PREPARE")
    slept: list[float] = []

    def sleep(seconds: float) -> None:
        slept.append(seconds)
        time.sleep(seconds)

    monkeypatch.setattr(phase_two.loops, "sleep", sleep)
    records = [world.prepared_branch(f"insert into work values ({n}, 1)").record for n in range(6)]
    ends = world.recovery.phase_two()
    branches = [ends.branch(record) for record in records]
    for branch in branches:
        branch.start_commit()
    assert [branch.await_commit() for branch in branches] == [BranchOutcome.UNKNOWN] * 6
    assert sum(slept) < 1.1
    for raw in world.raws:
        raw.break_off()
    assert [world.recovery.commit(record) for record in records] == [BranchOutcome.COMMITTED] * 6


@pytest.mark.parametrize("before", ["", "set @mine = 1; "], ids=["known", "noted"])
def test_a_session_that_hangs_lets_go_by_itself(
    world: BranchDatabase, monkeypatch: pytest.MonkeyPatch, before: str
) -> None:
    monkeypatch.setattr(xa, "HOLD", xa.HOLD.replace(f"= {xa.HOLD_SECONDS}", "= 1"))
    monkeypatch.setattr(xa, "HOLD_SECONDS", 1)
    branch = world.branch(before.rstrip("; ") or None)
    world.execute("insert into work values (1, 1)")
    branch.start_prepare()
    branch.await_prepare()
    until(lambda: world.recovery.commit(branch.record) is BranchOutcome.COMMITTED)
    assert world.rows() == [1]
    # Its coordinator goes on: the branch is gone, and it reads that recovery has fenced it.
    branch.start_commit()
    assert branch.await_commit() is BranchOutcome.ABSENT


@pytest.mark.parametrize("set_by", ["the server", "init_command", "initial-sql", "a statement", "a statement before"])
@pytest.mark.parametrize("verb", ["commit", "rollback"])
def test_the_sessions_own_wait_timeout_comes_back(world: BranchDatabase, set_by: str, verb: str) -> None:
    setting = "set session wait_timeout = 1234"
    driver = world.driver_of(driver_init_command=setting) if set_by == "init_command" else world.driver
    branch = world.branch(None, driver=driver)
    raw = branch._raw
    if set_by == "initial-sql":
        driver.start_session(raw, setting, None)  # type: ignore[attr-defined]
    elif set_by.startswith("a statement"):
        world.execute(setting)
        if set_by == "a statement before":  # the reset brings back the server's, which may be another one by then
            world.server.execute("set global wait_timeout = 1234")
            try:
                driver.reset(raw)
            finally:
                world.server.execute("set global wait_timeout = 28800")
            branch = world.branch(None, driver=driver, raw=raw)
    world.execute("insert into work values (1, 1)")
    branch.start_prepare()
    branch.await_prepare()
    read = "select @@session.wait_timeout"
    assert raw.session.run(read) == ((xa.HOLD_SECONDS,),)
    getattr(branch, f"start_{verb}")()
    assert getattr(branch, f"await_{verb}")().value in ("committed", "rolled back")
    assert raw.session.run(read) == ((28800 if set_by == "the server" else 1234,),)


def test_a_rollback_without_a_prepare_leaves_the_sessions_wait_timeout(world: BranchDatabase) -> None:
    for statement in ("insert into work values (1, 1)", "set session wait_timeout = 1234"):
        branch = world.branch(statement)
        assert branch.rollback() is BranchOutcome.ROLLED_BACK
        expected = 1234 if statement.startswith("set") else 28800
        assert branch._raw.session.run("select @@session.wait_timeout") == ((expected,),)


def test_what_is_gone_is_no_heuristic_on_the_server_that_prepared_it(
    world: BranchDatabase, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    branch = world.prepared_branch()
    world.raws[-1].break_off()
    assert world.recovery.commit(branch.record) is BranchOutcome.COMMITTED
    assert world.recovery.commit(branch.record) is BranchOutcome.ABSENT, "to recovery, as after a lost answer"
    assert world.recovery.rollback(branch.record) is BranchOutcome.ABSENT
    unknown = branch.record._replace(identity="")
    assert world.recovery.commit(unknown) is BranchOutcome.LOST, "the server may be another one"
    restored = branch.record._replace(evidence={"generation": "of a later time"})
    assert world.recovery.commit(restored) is BranchOutcome.LOST, "the server may be older than that"
    assert "restored from a backup" in caplog.text
    elsewhere = branch.record._replace(identity="another/7")
    assert world.recovery.commit(elsewhere) is BranchOutcome.UNKNOWN
    assert "another server" in world.recovery.why_not(elsewhere)


@pytest.mark.parametrize("verb", ["commit", "rollback"])
def test_a_detached_branch_that_has_only_read(world: BranchDatabase, verb: str) -> None:
    world.server.execute("insert into work values (1, 1)", database="one")
    branch = world.prepared_branch("select * from work")
    assert len(world.server.prepared()) == 1
    world.raws[-1].break_off()
    ended = getattr(world.recovery, verb)(branch.record)
    assert ended is (BranchOutcome.COMMITTED if verb == "commit" else BranchOutcome.ROLLED_BACK)
    assert world.server.prepared() == []


@pytest.mark.parametrize("refusing", ["read_only", "lock"])
def test_a_server_that_refuses_for_now_is_asked_again(world: BranchDatabase, refusing: str) -> None:
    if refusing == "read_only" and not world.server.is_mariadb:
        pytest.skip("MySQL ends branches on a server that is read-only")
    world.server.execute(
        "create user plain identified by 'plain'",
        "grant select, insert, update, delete on one.* to plain",
        *([] if world.server.is_mariadb else ["grant xa_recover_admin on *.* to plain"]),
    )
    url = f"mysql://plain@127.0.0.1:{world.server.port}/one"
    driver = world.driver_of(url=url, password="plain")
    branch = world.prepared_branch(driver=driver)
    record = BranchRecord(branch.record.xid, "one", "")
    world.raws[-1].break_off()
    recovery = type(world.recovery)(driver)
    blocker = world.server.connect()
    try:
        with blocker.cursor() as cursor:
            if refusing == "read_only":
                cursor.execute("set global read_only = 1")
                assert recovery.commit(record) is BranchOutcome.UNKNOWN
                cursor.execute("set global read_only = 0")
            else:
                limited = world.driver_of(url=url, password="plain", driver_init_command="set lock_wait_timeout = 1")
                cursor.execute("flush tables with read lock")
                assert type(world.recovery)(limited).commit(record) is BranchOutcome.UNKNOWN
                cursor.execute("unlock tables")
    finally:
        blocker.close()
        world.server.execute("set global read_only = 0")
    until(lambda: recovery.commit(record) is BranchOutcome.COMMITTED)
    assert world.rows() == [1]


def test_the_listing_has_only_names_of_ours(world: BranchDatabase) -> None:
    branch = world.prepared_branch()
    name = branch.record.xid
    foreign = new_xid()  # the server takes a name for a duplicate also where its format differs
    others = [
        f"'{foreign.gtrid}','{foreign.bqual}',1",
        "'it''s','\\'',9",
        "x'ff00fe','',1952477233",
        "'a','',1952477233",
    ]
    # Both parts joined are those of a name of ours, and the border between them is elsewhere.
    joined = new_xid()
    shifted = f"'{joined.gtrid}:','{joined.bqual}',{1952477233}"
    sessions = [world.server.connect("one") for _ in (*others, shifted)]
    try:
        for session, other in zip(sessions, (*others, shifted), strict=True):
            with session.cursor() as cursor:
                for statement in (f"xa start {other}", f"xa end {other}", f"xa prepare {other}"):
                    cursor.execute(statement)
        assert len(world.server.prepared()) == len(others) + 2
        assert [each.xid for each in world.recovery.recover()] == [name]
        assert all(each.owner is None and each.roles is None for each in world.recovery.recover())
    finally:
        for session in sessions:
            session.close()


def test_one_phase(world: BranchDatabase) -> None:
    assert world.branch().commit_one_phase() is BranchOutcome.COMMITTED
    assert world.rows() == [1]
    assert world.server.prepared() == []


def test_the_answer_to_one_phase_is_lost(world: BranchDatabase) -> None:
    proxy = world.proxy()
    branch = world.branch(driver=world.driver_of(port=proxy.port))
    proxy.fail_at(b"one phase", Fault.CUT_AFTER)
    assert branch.commit_one_phase() is BranchOutcome.UNKNOWN
    assert isinstance(branch.failure, world.module.Error)
    assert world.rows() == [1]


@pytest.mark.costly
@pytest.mark.crash
def test_a_server_that_was_restored_from_an_older_backup_proves_nothing(world: BranchDatabase, tmp_path: Path) -> None:
    """The branch is decided, and the server that comes back has never had it: that is no success, in no process."""
    world.driver.connect().break_off()  # the server has its identity
    server = world.server
    server.stop()
    assert server.folder is not None
    shutil.copytree(server.folder / "data", tmp_path / "backup")
    server.start()
    process = world.driver_of()
    branch = world.prepared_branch(driver=process)
    server.stop("immediate")
    shutil.rmtree(server.folder / "data")
    shutil.move(tmp_path / "backup", server.folder / "data")
    for path in (server.folder / "data", *(server.folder / "data").rglob("*")):
        shutil.chown(path, *server_account(server))
    server.start()
    assert world.recovery.commit(branch.record) is BranchOutcome.LOST
    branch.start_commit()
    assert branch.await_commit() is BranchOutcome.LOST
    world.branch("insert into work values (2, 2)", driver=process).commit_one_phase()
    assert world.rows() == [2]
    tokens = {token for (token,) in server.execute("select token from txpool.generations")}
    assert branch.record.evidence["generation"] not in tokens, "not even by the process that goes on"


def server_account(server: MySQLServer) -> tuple[int, int]:
    """The user and group that own the server's data."""
    assert server.folder is not None
    status = server.folder.stat()
    return status.st_uid, status.st_gid


def test_only_so_many_tokens_of_generations_are_kept(world: BranchDatabase, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("txpool.resources.mysql.session.server._GENERATIONS", 3)
    for _ in range(5):
        world.driver_of().connect().break_off()
    assert len(world.server.execute("select token from txpool.generations")) == 3
