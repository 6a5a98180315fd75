"""Marked branches on PostgreSQL and SQLite: the row, the tombstone, and who wins. The tables are read."""

from __future__ import annotations

import itertools
import sqlite3
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psycopg
import pytest

from txpool import failpoints
from txpool.drivers import make_driver
from txpool.errors import ConfigurationError, Error, ProgrammingError, TransactionRolledBack
from txpool.log.base import decode
from txpool.resources.base import Answer, BranchRecord, Refused, Settled
from txpool.resources.cleanup import CleanupQueue
from txpool.resources.dialects import IDENTITY
from txpool.resources.local import LocalBranch
from txpool.resources.marked import MarkedBranch
from txpool.resources.xids import Xids
from txpool.secret import Secret
from txpool.settings import DataSourceSettings
from txpool.xid import make_gtrid, make_xid, new_incarnation, parse

if TYPE_CHECKING:
    from tests.conftest import Databases

INCARNATION = new_incarnation()
numbers = itertools.count()


def new_gtrid(node: str = "tests") -> str:
    return make_gtrid(node, INCARNATION, next(numbers))


def others(gtrid: str) -> list[BranchRecord]:
    xid = make_xid(gtrid, 0, "two", decider="ledger")
    return [BranchRecord(xid, "two", "1/two", {"note": 'it\'s \\ "quoted" ; -- %s ?'})]


class Ledger:
    """A marked datasource with a table of work, and branches in it."""

    def __init__(self, settings: DataSourceSettings, look: Callable[[str], list[tuple[Any, ...]]]) -> None:
        self.driver = make_driver(settings)
        self.sqlite = settings.driver == "sqlite3"
        self.look = look
        self.xids = Xids("ledger", self.driver, lock_timeout=0.3)
        self.cleanup = CleanupQueue(self.xids, batch_size=3)
        self.raws: list[Any] = []
        with closing(self.driver.connect()) as raw:
            raw.execute("create table parent (id integer primary key)")
            raw.execute(
                "create table work (id integer, parent integer references parent (id) deferrable initially deferred)"
            )
            raw.commit()

    def branch(self, statement: str | None = "insert into work values (1, null)") -> MarkedBranch:
        raw = self.driver.connect()
        self.raws.append(raw)
        branch = MarkedBranch("ledger", self.driver, raw, self.xids, self.cleanup)
        if statement is not None:
            if self.sqlite:
                raw.execute("pragma foreign_keys = on")
            self.driver.begin(raw)
            raw.execute(statement)
        return branch

    @property
    def raw(self) -> Any:
        return self.raws[-1]

    def marked(self) -> tuple[MarkedBranch, str]:
        branch, gtrid = self.branch(), new_gtrid()
        branch.mark(gtrid, others(gtrid))
        return branch, gtrid

    def decided(self) -> tuple[MarkedBranch, str]:
        branch, gtrid = self.marked()
        branch.record(gtrid, others(gtrid))
        return branch, gtrid

    def write(self, statement: str) -> None:
        """By hand, past all that is known of the table."""
        with closing(self.driver.connect()) as raw:
            raw.execute(statement)
            raw.commit()

    def work(self) -> int:
        return len(self.look("select id from work"))

    def rows(self) -> dict[str, str]:
        """What the table says, by key."""
        return {str(key): str(kind) for key, kind in self.look(f"select xid, kind from xids where xid <> '{IDENTITY}'")}


@contextmanager
def opened(kind: str, tmp_path: Path, request: pytest.FixtureRequest, journal: str = "wal") -> Iterator[Ledger]:
    if kind == "sqlite":
        path = tmp_path / "ledger.db"
        with closing(sqlite3.connect(path)) as first:
            first.execute(f"pragma journal_mode = {journal}")

        def look(query: str) -> list[tuple[Any, ...]]:
            with closing(sqlite3.connect(path)) as reader:
                return reader.execute(query).fetchall()

        settings = DataSourceSettings.load(
            name="ledger", driver="sqlite3", mode="cmr", url=f"sqlite:///{path}", driver_timeout="0.3"
        )
    else:
        databases: Databases = request.getfixturevalue("databases")

        def look(query: str) -> list[tuple[Any, ...]]:
            return databases.rows("one", query)  # type: ignore[arg-type]

        password = Secret(databases.server.password)
        settings = DataSourceSettings.load(
            name="ledger", driver="psycopg", mode="cmr", url=databases.url("one"), password=password
        )
    ledger = Ledger(settings, look)
    yield ledger
    failpoints.disarm()
    for raw in ledger.raws:
        raw.close()


@pytest.fixture(params=["sqlite", "postgresql"])
def bare(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Ledger]:
    with opened(request.param, tmp_path, request) as ledger:
        yield ledger


@pytest.fixture
def ledger(bare: Ledger) -> Ledger:
    bare.xids.create()
    return bare


@pytest.fixture
def pg(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Ledger]:
    with opened("postgresql", tmp_path, request) as ledger:
        ledger.xids.create()
        yield ledger


@pytest.fixture
def lite(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Ledger]:
    with opened("sqlite", tmp_path, request) as ledger:
        ledger.xids.create()
        yield ledger


# -- the row decides --------------------------------------------------------------------------------------------


def test_row_is_committed_with_the_work_and_names_the_others(ledger: Ledger) -> None:
    branch, gtrid = ledger.marked()
    assert ledger.rows() == {}
    assert ledger.work() == 0
    branch.record(gtrid, others(gtrid))
    assert ledger.rows() == {gtrid: "commit"}
    assert ledger.work() == 1
    (row,) = ledger.xids.read()
    assert (row.gtrid, row.node, row.committed) == (gtrid, "tests", True)
    assert list(row.branches) == others(gtrid)
    assert ledger.driver.is_clean(ledger.raw)


def test_the_row_has_the_evidence_of_the_votes_though_it_was_written_before_them(ledger: Ledger) -> None:
    branch, gtrid = ledger.marked()
    voted = [replace(record, evidence={"xid": "77", "timeline": "'1'"}) for record in others(gtrid)]
    branch.record(gtrid, voted)
    assert list(ledger.xids.tombstone(gtrid, branch.identity()).branches) == voted
    assert ledger.work() == 1


def test_a_transaction_that_has_ended_is_not_begun_again_by_the_row(ledger: Ledger) -> None:
    """Its own COMMIT would succeed, with nothing in it."""
    branch, gtrid = ledger.marked()
    ledger.raw.rollback()
    with pytest.raises(Refused, match="ended before it"):
        branch.record(gtrid, others(gtrid))
    branch.rollback()
    assert (ledger.rows(), ledger.work()) == ({}, 0)


def test_rollback_leaves_neither(ledger: Ledger) -> None:
    branch, _ = ledger.marked()
    assert branch.rollback() is Answer.ROLLED_BACK
    assert ledger.rows() == {}
    assert ledger.work() == 0
    assert ledger.driver.is_clean(ledger.raw)


def test_alone_it_writes_no_row(ledger: Ledger) -> None:
    branch = ledger.branch()
    assert not branch.idle
    assert branch.commit_one_phase() is Answer.COMMITTED
    assert branch.idle
    assert ledger.rows() == {}
    assert ledger.work() == 1


def test_failed_commit_is_refused_and_definite(ledger: Ledger) -> None:
    branch, gtrid = ledger.branch("insert into work values (1, 77)"), new_gtrid()
    branch.mark(gtrid, others(gtrid))
    with pytest.raises(Refused) as caught:
        branch.record(gtrid, others(gtrid))
    assert isinstance(caught.value.__cause__, sqlite3.IntegrityError | psycopg.IntegrityError)
    assert branch.rollback() is Answer.ROLLED_BACK
    assert ledger.rows() == {}
    assert ledger.work() == 0


def test_failed_commit_alone_rolls_back(ledger: Ledger) -> None:
    branch = ledger.branch("insert into work values (1, 77)")
    assert branch.commit_one_phase() is Answer.ROLLED_BACK
    assert isinstance(branch.failure, sqlite3.IntegrityError | psycopg.IntegrityError)
    assert ledger.work() == 0


def test_local_branch_must_be_alone(ledger: Ledger) -> None:
    ledger.branch()
    local = LocalBranch("ledger", ledger.driver, ledger.raw)
    local.name(make_xid(new_gtrid(), 0, "ledger"))
    with pytest.raises(Error, match="alone"):
        local.start_prepare()
    local.start_rollback()
    assert local.await_rollback() is Answer.ROLLED_BACK
    assert ledger.work() == 0


@pytest.mark.parametrize(
    ("statement", "answer", "work"),
    [
        ("commit", Answer.COMMITTED, 1),
        ("rollback", Answer.ROLLED_BACK, 0),
    ],
)
def test_users_own_end_is_seen_at_the_mark(ledger: Ledger, statement: str, answer: Answer, work: int) -> None:
    branch, gtrid = ledger.branch(), new_gtrid()
    ended = ledger.driver.ended_by(ledger.raw, ledger.raw.execute(statement))
    assert ended == statement
    branch.disturb(ended)
    with pytest.raises(TransactionRolledBack, match="own SQL"):
        branch.mark(gtrid, others(gtrid))
    assert branch.rollback() is answer
    assert ledger.rows() == {}
    assert ledger.work() == work


def test_failed_transaction_is_not_marked(pg: Ledger) -> None:
    branch, gtrid = pg.branch(), new_gtrid()
    with pytest.raises(psycopg.errors.UndefinedTable):
        pg.raw.execute("select * from nowhere")
    with pytest.raises(Refused, match="failed"):
        branch.mark(gtrid, others(gtrid))
    assert branch.rollback() is Answer.ROLLED_BACK
    assert pg.work() == 0


def test_missing_table_says_who_creates_it(bare: Ledger) -> None:
    branch, gtrid = bare.branch(), new_gtrid()
    with pytest.raises(ConfigurationError, match="txpool-recovery init"):
        branch.mark(gtrid, others(gtrid))
    assert branch.rollback() is Answer.ROLLED_BACK
    assert bare.work() == 0
    with pytest.raises(ConfigurationError, match="txpool-recovery init"):
        bare.xids.tombstone(gtrid)


# -- the tombstone ----------------------------------------------------------------------------------------------


def test_tombstone_wins_over_a_late_row(ledger: Ledger) -> None:
    branch, gtrid = ledger.branch(None), new_gtrid()
    assert not ledger.xids.tombstone(gtrid).committed
    ledger.driver.begin(ledger.raw)
    ledger.raw.execute("insert into work values (1, null)")
    with pytest.raises(Refused, match="abort record"):
        branch.mark(gtrid, others(gtrid))
    assert branch.rollback() is Answer.ROLLED_BACK
    assert ledger.rows() == {gtrid: "abort"}
    assert ledger.work() == 0


def test_tombstone_meets_the_row_and_makes_it_durable(ledger: Ledger) -> None:
    _, gtrid = ledger.decided()
    met = ledger.xids.tombstone(gtrid)
    assert met.committed
    assert list(met.branches) == others(gtrid)
    assert ledger.look(f"select kind, confirmed from xids where xid <> '{IDENTITY}'") == [("commit", 1)]


def test_tombstone_meets_anothers_tombstone(ledger: Ledger) -> None:
    gtrid = new_gtrid()
    assert [ledger.xids.tombstone(gtrid).committed for _ in range(2)] == [False, False]
    assert ledger.look(f"select kind, confirmed from xids where xid <> '{IDENTITY}'") == [("abort", 1)]


def test_meeting_a_row_writes_to_the_disk(lite: Ledger) -> None:
    _, gtrid = lite.decided()
    with closing(lite.driver.connect()) as keeper:  # the last one to close would empty the WAL
        keeper.execute("select 1 from xids").fetchone()
        (path,) = [file for _, name, file in keeper.execute("pragma database_list") if name == "main"]
        before = Path(f"{path}-wal").stat().st_size
        lite.xids.tombstone(gtrid)
        assert Path(f"{path}-wal").stat().st_size > before


def test_tombstone_of_a_row_in_flight_is_undecided_after_the_lock_timeout(ledger: Ledger) -> None:
    branch, gtrid = ledger.marked()
    with pytest.raises((psycopg.errors.LockNotAvailable, sqlite3.OperationalError)):
        ledger.xids.tombstone(gtrid)
    branch.record(gtrid, others(gtrid))
    assert ledger.rows() == {gtrid: "commit"}


@pytest.mark.parametrize("commits", [True, False])
def test_tombstone_waits_for_the_row_in_flight(ledger: Ledger, commits: bool) -> None:
    branch, gtrid = ledger.marked()
    patient = Xids("ledger", ledger.driver, lock_timeout=30)
    with ThreadPoolExecutor(1) as pool:
        met = pool.submit(patient.tombstone, gtrid)
        if ledger.sqlite:
            with pytest.raises(TimeoutError):
                met.result(0.2)
        else:
            while not ledger.look("select 1 from pg_locks where not granted"):
                assert not met.done()
        if commits:
            branch.record(gtrid, others(gtrid))
        else:
            branch.rollback()
        assert met.result(30).committed is commits
    assert ledger.rows() == {gtrid: "commit" if commits else "abort"}
    assert ledger.work() == (1 if commits else 0)


def test_race_of_a_row_with_many_tombstones_has_one_outcome(ledger: Ledger) -> None:
    patient = Xids("ledger", ledger.driver, lock_timeout=30)
    for _ in range(5):
        before = ledger.work()
        branch, gtrid = ledger.branch(None), new_gtrid()
        barrier = threading.Barrier(4)

        def fence(gtrid: str = gtrid, barrier: threading.Barrier = barrier) -> bool:
            barrier.wait()
            return patient.tombstone(gtrid).committed

        def decide(branch: MarkedBranch = branch, gtrid: str = gtrid, barrier: threading.Barrier = barrier) -> bool:
            barrier.wait()
            try:
                while not ledger.raw.in_transaction if ledger.sqlite else False:
                    try:
                        ledger.driver.begin(ledger.raw)
                    except sqlite3.OperationalError:
                        continue
                ledger.raw.execute("insert into work values (1, null)")
                branch.mark(gtrid, others(gtrid))
                branch.record(gtrid, others(gtrid))
            except Refused:
                branch.rollback()
                return False
            return True

        with ThreadPoolExecutor(4) as pool:
            fates: list[Future[bool]] = [pool.submit(fence) for _ in range(3)]
            fates.append(pool.submit(decide))
            outcomes = {fate.result(60) for fate in fates}
        assert len(outcomes) == 1
        assert ledger.rows()[gtrid] == ("commit" if outcomes == {True} else "abort")
        assert ledger.work() - before == (1 if outcomes == {True} else 0)


# -- the table's identity ---------------------------------------------------------------------------------------


def test_branches_name_the_very_table_that_decides(ledger: Ledger) -> None:
    branch = ledger.branch()
    ((identity,),) = ledger.look(f"select action_uid from xids where xid = '{IDENTITY}'")
    assert branch.identity() == identity
    named = make_xid(new_gtrid(), 0, "two", decider="ledger", identity=branch.identity())
    read = parse(named.joined)
    assert read is not None
    assert (read.decider, read.identity) == ("ledger", identity)
    branch.rollback()
    ledger.xids.create()
    assert ledger.look(f"select action_uid from xids where xid = '{IDENTITY}'") == [(identity,)]


def test_an_old_table_gets_its_identity_at_first_use(ledger: Ledger) -> None:
    ledger.write("delete from xids")
    first, second = ledger.marked(), None
    # SQLite's one writer is the transaction itself, which may yet roll back: it names none.
    assert bool(first[0].identity()) is not ledger.sqlite
    first[0].record(first[1], others(first[1]))
    second = ledger.decided()[0].identity()
    assert ledger.look(f"select action_uid from xids where xid = '{IDENTITY}'") == [(second,)]
    assert not ledger.xids.tombstone(new_gtrid(), second).committed


@pytest.mark.parametrize("there", ["another", "none"])
def test_a_tombstone_never_goes_into_another_table(ledger: Ledger, there: str) -> None:
    branch, gtrid = ledger.marked()
    identity = branch.identity()
    branch.rollback()
    ledger.write("delete from xids")
    if there == "another":
        ledger.xids.create()
    with pytest.raises(Error, match="leads to another table"):
        Xids("ledger", ledger.driver).tombstone(gtrid, identity)
    assert ledger.rows() == {}


def test_a_row_never_goes_into_another_table_and_the_next_goes_by_what_is_there(ledger: Ledger) -> None:
    ledger.decided()
    ledger.write("delete from xids")
    ledger.xids.create()
    branch, gtrid = ledger.branch(), new_gtrid()
    with pytest.raises(Refused, match="not the one"):
        branch.mark(gtrid, others(gtrid))
    branch.rollback()
    assert ledger.rows() == {}
    branch, gtrid = ledger.decided()
    assert ledger.rows() == {gtrid: "commit"}
    assert ledger.look(f"select action_uid from xids where xid = '{IDENTITY}'") == [(branch.identity(),)]


def test_marks_are_not_deleted_in_another_table(ledger: Ledger) -> None:
    branch, gtrid = ledger.decided()
    ledger.write(f"update xids set action_uid = 'another00000' where xid = '{IDENTITY}'")
    branch.forget(gtrid)
    with pytest.raises(Error, match="leads to another table"):
        ledger.cleanup.flush()
    assert ledger.rows() == {gtrid: "commit"}
    assert len(ledger.cleanup) == 1


def test_a_restored_copy_is_another_table(pg: Ledger, databases: Databases) -> None:
    """To the letter the same, but for the place: a dump that was restored under another name."""
    identity = pg.branch(None).identity()
    for raw in pg.raws:
        raw.close()
    databases.execute("two", "drop database if exists one_restored")
    databases.execute("two", "create database one_restored template one")
    url = databases.url("one").replace("/one", "/one_restored")
    settings = DataSourceSettings.load(
        name="ledger", driver="psycopg", mode="cmr", url=url, password=Secret(databases.server.password)
    )
    there = Xids("ledger", make_driver(settings))
    try:
        with pytest.raises(Error, match=r"made in .*/one, and this is .*/one_restored"):
            there.tombstone(new_gtrid(), identity)
        # Whoever works there from now on works with a table of its own.
        with closing(make_driver(settings).connect()) as raw:
            assert there.identity(raw) != identity
        assert not there.tombstone(new_gtrid(), there.identity(None)).committed
    finally:
        databases.execute("two", "drop database one_restored with (force)")
    assert pg.rows() == {}


@pytest.mark.parametrize("level", ["repeatable read", "serializable"])
def test_serializable_neighbours_do_not_fail_for_the_identity(pg: Ledger, level: str) -> None:
    pg.decided()
    both = []
    for _ in range(2):
        branch, gtrid = pg.branch(None), new_gtrid()
        pg.raw.isolation_level = psycopg.IsolationLevel[level.replace(" ", "_").upper()]
        pg.raw.execute("insert into work values (1, null)")
        branch.mark(gtrid, others(gtrid))
        both.append((branch, gtrid))
    for branch, gtrid in both:
        branch.record(gtrid, others(gtrid))
    assert {gtrid for _, gtrid in both} <= pg.rows().keys()


# -- an unknown commit ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("point", "settled"), [("marked.commit", Settled.ABORTED), ("marked.committed", Settled.COMMITTED)]
)
def test_abort_establishes_the_truth(ledger: Ledger, point: str, settled: Settled) -> None:
    branch, gtrid = ledger.marked()
    with failpoints.arming(point), pytest.raises(failpoints.Failpoint):
        branch.record(gtrid, others(gtrid))
    assert branch.abort(gtrid) is settled
    assert branch.abort(gtrid) is settled
    committed = settled is Settled.COMMITTED
    if not committed:
        assert branch.rollback() is Answer.ROLLED_BACK
    assert ledger.rows() == {gtrid: "commit" if committed else "abort"}
    assert ledger.work() == (1 if committed else 0)


def test_session_lost_in_commit_is_unknown_until_the_tombstone(pg: Ledger) -> None:
    with closing(pg.driver.connect()) as raw:
        raw.execute(
            "create function nap() returns trigger language plpgsql as 'begin perform pg_sleep(600); return null; end'"
        )
        raw.execute(
            "create constraint trigger slow after insert on work deferrable initially deferred "
            "for each row execute function nap()"
        )
        raw.commit()
    branch, gtrid = pg.marked()
    pid = pg.raw.info.backend_pid
    with ThreadPoolExecutor(1) as pool:
        recording = pool.submit(branch.record, gtrid, others(gtrid))
        while pg.look(f"select wait_event from pg_stat_activity where pid = {pid}") != [("PgSleep",)]:
            assert not recording.done()
        pg.look(f"select pg_terminate_backend({pid}, 5000)")
        with pytest.raises(psycopg.errors.AdminShutdown):
            recording.result(30)
    assert branch.abort(gtrid) is Settled.ABORTED
    assert branch.rollback() is Answer.ROLLED_BACK
    assert pg.rows() == {gtrid: "abort"}
    assert pg.work() == 0


def test_session_that_died_before_commit_is_definite(pg: Ledger) -> None:
    branch, gtrid = pg.marked()
    pg.look(f"select pg_terminate_backend({pg.raw.info.backend_pid}, 5000)")
    with pytest.raises(Refused, match="lost"):
        branch.record(gtrid, others(gtrid))
    assert branch.rollback() is Answer.ROLLED_BACK
    assert pg.rows() == {}


# -- cleaning ---------------------------------------------------------------------------------------------------


def test_finished_rows_ride_in_the_next_marked_transaction(ledger: Ledger) -> None:
    first, old = ledger.decided()
    first.forget(old)
    assert ledger.rows() == {old: "commit"}
    _, new = ledger.decided()
    assert ledger.rows() == {new: "commit"}
    assert len(ledger.cleanup) == 0


@pytest.mark.parametrize("end", ["rollback", "refused", "unknown"])
def test_rides_of_a_transaction_that_does_not_commit_are_put_back(ledger: Ledger, end: str) -> None:
    first, old = ledger.decided()
    first.forget(old)
    branch, gtrid = ledger.branch(f"insert into work values (1, {77 if end == 'refused' else 'null'})"), new_gtrid()
    branch.mark(gtrid, others(gtrid))
    if end == "refused":
        with pytest.raises(Refused):
            branch.record(gtrid, others(gtrid))
    if end == "unknown":
        branch.abort(gtrid)
    branch.rollback()
    assert old in ledger.rows()
    ledger.cleanup.flush()
    assert old not in ledger.rows()


def test_rides_wait_where_the_transaction_cannot_see_them(pg: Ledger) -> None:
    branch, gtrid = pg.branch(None), new_gtrid()
    late = pg.raw
    late.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
    late.execute("insert into work values (2, null)")
    first, old = pg.decided()
    first.forget(old)
    branch.mark(gtrid, others(gtrid))
    branch.record(gtrid, others(gtrid))
    assert set(pg.rows()) == {old, gtrid}
    pg.cleanup.flush()
    assert set(pg.rows()) == {gtrid}


def test_batches_and_immediate_cleanup(ledger: Ledger) -> None:
    decided = [ledger.decided() for _ in range(3)]
    counts = []
    for branch, gtrid in decided:
        branch.forget(gtrid)
        counts.append(len(ledger.rows()))
    assert counts == [3, 3, 0]
    ledger.cleanup = CleanupQueue(ledger.xids, immediate=True)
    branch, gtrid = ledger.decided()
    with failpoints.arming("marked.forget", "count"):
        branch.forget(gtrid)
        assert failpoints.reached("marked.forget") == 1
    assert ledger.rows() == {}


def test_cleaning_that_fails_is_done_later(ledger: Ledger, caplog: pytest.LogCaptureFixture) -> None:
    _, old = ledger.decided()
    cleanup = CleanupQueue(ledger.xids, immediate=True)
    blocker = ledger.driver.connect()
    ledger.driver.begin(blocker)
    blocker.execute("update xids set confirmed = 5")
    cleanup.add(old)
    assert "later" in caplog.text
    blocker.rollback()
    blocker.close()
    assert ledger.rows() == {old: "commit"}
    cleanup.flush()
    assert ledger.rows() == {}


def test_other_nodes_rows_are_never_deleted(ledger: Ledger) -> None:
    mine, theirs = new_gtrid("tests"), new_gtrid("others")
    for gtrid in (mine, theirs):
        ledger.xids.tombstone(gtrid)
    Xids("ledger", ledger.driver, nodes=()).delete([mine, theirs])
    assert set(ledger.rows()) == {mine, theirs}
    Xids("ledger", ledger.driver, nodes={"tests"}).delete([mine, theirs])
    assert set(ledger.rows()) == {theirs}


def test_rows_of_strangers_are_not_read(ledger: Ledger) -> None:
    _, gtrid = ledger.decided()
    with closing(ledger.driver.connect()) as raw:
        raw.execute(
            "insert into xids (xid, transaction_manager_id, action_uid, kind, branches) "
            "values ('narayana', 'n', 'u', 'commit', '?')"
        )
        raw.commit()
    assert [row.gtrid for row in ledger.xids.read()] == [gtrid]


# -- durability, and the right table ----------------------------------------------------------------------------


def test_commit_is_synchronous_where_the_role_says_otherwise(pg: Ledger) -> None:
    branch, gtrid = pg.branch(None), new_gtrid()
    pg.raw.execute("set synchronous_commit = off")
    pg.raw.execute("insert into work values (1, null)")
    branch.mark(gtrid, others(gtrid))
    assert pg.raw.execute("show synchronous_commit").fetchone() == ("on",)
    branch.record(gtrid, others(gtrid))
    assert pg.raw.execute("show synchronous_commit").fetchone() == ("off",)
    pg.raw.rollback()
    stronger = pg.branch(None)
    pg.raw.execute("set synchronous_commit = remote_apply")
    gtrid = new_gtrid()
    stronger.mark(gtrid, others(gtrid))
    assert pg.raw.execute("show synchronous_commit").fetchone() == ("remote_apply",)


@pytest.mark.parametrize(("journal", "level"), [("wal", "normal"), ("delete", "full")])
def test_sqlite_is_not_marked_without_the_sync_it_needs(
    request: pytest.FixtureRequest, tmp_path: Path, journal: str, level: str
) -> None:
    with opened("sqlite", tmp_path, request, journal) as ledger:
        ledger.xids.create()
        ledger.decided()
        branch, gtrid = ledger.branch(None), new_gtrid()
        ledger.raw.execute(f"pragma synchronous = {level}")
        ledger.driver.begin(ledger.raw)
        with pytest.raises(ProgrammingError, match="power"):
            branch.mark(gtrid, others(gtrid))
        branch.rollback()
        assert gtrid not in ledger.rows()


def test_search_path_and_temporary_tables_hide_no_mark(ledger: Ledger) -> None:
    ledger.decided()
    branch, gtrid = ledger.branch(None), new_gtrid()
    ledger.driver.begin(ledger.raw)
    ledger.raw.execute("create temporary table xids as select * from xids")
    if not ledger.sqlite:
        ledger.raw.execute("create schema elsewhere")
        ledger.raw.execute("create table elsewhere.xids (like public.xids including all)")
        ledger.raw.execute("set local search_path = elsewhere")
    branch.mark(gtrid, others(gtrid))
    branch.record(gtrid, others(gtrid))
    assert gtrid in {row.gtrid for row in ledger.xids.read()}


def test_a_row_is_sealed_in_the_table_that_it_was_written_into(pg: Ledger) -> None:
    """Whatever another transaction has found meanwhile: that the datasource leads elsewhere now."""
    branch, gtrid = pg.marked()
    pg.write("create schema elsewhere")
    pg.write("create table elsewhere.xids (like public.xids including all)")
    pg.write("alter database one set search_path = elsewhere, public")
    pg.write(f"update public.xids set action_uid = 'another00000' where xid = '{IDENTITY}'")
    stray, other = pg.branch(), new_gtrid()
    with pytest.raises(Refused, match="not the one"):
        stray.mark(other, others(other))
    voted = [replace(record, evidence={"xid": "77"}) for record in others(gtrid)]
    branch.record(gtrid, voted)
    [(kept,)] = pg.look(f"select branches from public.xids where xid = '{gtrid}'")
    assert list(decode(gtrid, kept)) == voted
