"""Servers crash at every step, run out of slots, time out, change their passwords, and are meddled with by hand.

One in five of each test's cases over a log in a folder and over one on a server of its own, others with each seed
(TXPOOL_CRASH_SEED); all with TXPOOL_CRASH_FULL=1. What happens to that server itself is test_log_server's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing

import psycopg
import pytest

from recovery import RecoveryManager
from tests.crash.evidence import Count, Evidence
from tests.crash.fork_server import ForkServer
from tests.crash.site import DONE, PASSWORD, UNDONE, CrashSite
from tests.support.proxy import Proxy
from txpool import failpoints
from txpool.demo.server import EmbeddedPostgres

pytestmark = pytest.mark.part(5)
SAMPLE = 6
PLAIN = ("one", "two")
LEDGER = ("one", "two", "ledger")
BOOK = ("one", "two", "book")


@pytest.fixture(params=["sqlite", "sql"])
def store(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def log_server(log_only_server: EmbeddedPostgres) -> EmbeddedPostgres:
    return log_only_server


def by_hand(world: CrashSite, verb: str, *names: str) -> None:
    """Finish what these databases hold prepared of ours, as a person would."""
    for name in names:
        query = "select gid from pg_prepared_xacts where database = current_database()"
        for (gid,) in world.session(name).execute(query).fetchall():
            world.session(name).execute(psycopg.sql.SQL(f"{verb} prepared {{}}").format(gid))


def left_by(fork_server: ForkServer, world: CrashSite, names: tuple[str, ...], point: str) -> None:
    """What a process leaves behind that is killed there, with row number 1."""
    assert fork_server.transact(1, names, f"{point}=kill") == {"status": -9}
    world.wait_for_sessions()


# -- crashes ------------------------------------------------------------------------------------------------------

#: Where the server crashes, and what the caller is told; None where that is a matter of who was faster.
CRASHES: dict[tuple[str, ...], dict[str, str | None]] = {
    PLAIN: {
        "coordinator.begin": UNDONE,
        "branch.prepare-sent": UNDONE,
        "coordinator.preparing": None,
        "coordinator.prepared": DONE,
        "log.record": DONE,
        "log.recorded": DONE,
        "coordinator.decided": DONE,
        "branch.commit-sent": DONE,
        "coordinator.committing": DONE,
        "coordinator.one-committed": DONE,
        "coordinator.committed": DONE,
    },
    LEDGER: {
        "marked.row": UNDONE,
        "coordinator.marked": UNDONE,
        "coordinator.preparing": None,
        "coordinator.prepared": DONE,
        "marked.commit": DONE,
        "marked.committed": DONE,
        "coordinator.committing": DONE,
    },
    BOOK: {
        "marked.row": UNDONE,
        "coordinator.marked": UNDONE,
        "coordinator.preparing": UNDONE,
        "coordinator.prepared": UNDONE,
        "marked.commit": UNDONE,
        "marked.committed": DONE,
        "coordinator.committing": DONE,
        "marked.forget": DONE,
    },
}
AT_EACH = [
    pytest.param(names, point, said, id=f"{names[-1]}-{point}")
    for names, points in CRASHES.items()
    for point, said in points.items()
]


@pytest.mark.parametrize(("names", "point", "said"), AT_EACH)
def test_the_server_crashes_and_comes_back(
    world: CrashSite, names: tuple[str, ...], point: str, said: str | None, evidence: Evidence
) -> None:
    with world.coordinator():
        world.attempt(0, *names)
        failpoints.arm(point, lambda: world.server.restart("immediate"))
        heard = world.attempt(1, *names)
        assert failpoints.reached(point)
        failpoints.disarm()
        assert heard == said or said is None
        world.scan()
        assert world.prepared() == []
    assert not world.scan().errors
    world.assert_settled(1, names, heard)
    evidence.hit([point])
    evidence.add(Count.KILLS)


@pytest.mark.parametrize("names", [PLAIN, LEDGER], ids=["log", "mark"])
@pytest.mark.parametrize(
    ("point", "said"),
    [("coordinator.rolling-back", UNDONE), ("coordinator.prepared", DONE), ("branch.commit-sent", DONE)],
)
def test_the_server_stays_away(
    world: CrashSite, names: tuple[str, ...], point: str, said: str, evidence: Evidence
) -> None:
    """Recovery can do nothing, and says so; what is decided stays so until the server is back."""
    with world.coordinator():
        world.attempt(0, *names)
        failpoints.arm(point, lambda: world.server.stop("immediate"))
        if said == UNDONE:
            failpoints.arm("coordinator.prepared", "raise")
        assert world.attempt(1, *names) == said
        failpoints.disarm()
    report = world.scan()
    assert {"one", "two"} <= report.unreachable.keys()
    assert report.committed == report.rolled_back == ()
    world.server.start()
    world.scan()
    assert world.assert_settled(1, names, said) is (said == DONE)
    evidence.hit([point])
    evidence.add(Count.KILLS)


# -- limits -------------------------------------------------------------------------------------------------------


def test_no_slot_is_left_for_the_last_branch(world: CrashSite) -> None:
    (limit,) = world.session("three").execute("show max_prepared_transactions").fetchone() or ("0",)
    for number in range(int(limit) - 1):
        world.session("three").execute(
            f"begin; insert into t values (-1); prepare transaction 'somebody-else-{number}'"
        )
    try:
        with world.coordinator():
            assert world.attempt(1, *PLAIN) == UNDONE
            assert world.attempt(2, *LEDGER) == UNDONE
        assert world.scan().left_alone == ()
        world.assert_settled(1, PLAIN, UNDONE)
        world.assert_settled(2, LEDGER, UNDONE)
        others = world.session("three").execute("select count(*) from pg_prepared_xacts").fetchone()
        assert others == (int(limit) - 1,), "recovery has touched what is not ours"
    finally:
        by_hand(world, "rollback", "three")


# PostgreSQL's statement_timeout does not count while PREPARE or COMMIT runs its deferred triggers; these two do.
_DEFERRED = """
    create function deferred() returns trigger language plpgsql as $$
        begin perform pg_advisory_xact_lock(1); return null; end $$;
    create constraint trigger deferred after insert on t deferrable initially deferred for each row
        execute function deferred()
"""


@pytest.mark.parametrize("timeout", ["lock_timeout", "transaction_timeout"])
@pytest.mark.parametrize("names", [PLAIN, LEDGER, ("two", "book", "one")], ids=["log", "ledger", "book"])
def test_a_timeout_strikes_at_prepare(world: CrashSite, names: tuple[str, ...], timeout: str) -> None:
    world.describe("one", more=f"driver.options = -c {timeout}=1000")
    world.session("one").execute(_DEFERRED)
    with psycopg.connect(world.server.dsn("one")) as other, world.coordinator():
        other.execute("select pg_advisory_lock(1)")
        failpoints.arm("coordinator.preparing", "count")
        assert world.attempt(1, *names) == UNDONE
        assert failpoints.reached("coordinator.preparing") == 1
        assert world.prepared() == []
    world.scan()
    world.assert_settled(1, names, UNDONE)


def test_a_lock_timeout_strikes_in_one_of_three(world: CrashSite) -> None:
    world.describe("one", more="driver.options = -c lock_timeout=100")
    with psycopg.connect(world.server.dsn("one")) as other, world.coordinator():
        other.execute("lock table t in exclusive mode")
        assert world.attempt(1, "two", "ledger", "one") == UNDONE
        other.rollback()
    world.scan()
    world.assert_settled(1, ("two", "ledger", "one"), UNDONE)


# Wait until the session of the transaction has ended.
_ENDED = (
    "do $$ begin while exists (select from pg_stat_activity where application_name = 'txpool-under-attack' and "
    "datname = '{}') loop perform pg_sleep(0.005); perform pg_stat_clear_snapshot(); end loop; end $$"
)


@pytest.mark.parametrize(("names", "idle"), [(PLAIN, "one"), (LEDGER, "two"), (BOOK, "book"), (("one",), "one")])
def test_a_session_that_is_idle_too_long_is_ended(world: CrashSite, names: tuple[str, ...], idle: str) -> None:
    world.describe(idle, more="driver.options = -c idle_in_transaction_session_timeout=50")
    with world.coordinator():
        assert world.attempt(1, *names, doing=lambda: world.session("one").execute(_ENDED.format(idle))) == UNDONE
    world.scan()
    world.assert_settled(1, names, UNDONE)


def test_a_session_has_ended_and_its_connection_still_looks_open(world: CrashSite) -> None:
    """COMMIT is sent, and answered by a farewell that is older: nothing is committed, and nothing is unknown."""
    proxy = Proxy(world.server.port)
    proxy.tells_the_end = False
    world.describe("one", port=proxy.port, more="driver.options = -c idle_in_transaction_session_timeout=50")
    try:
        with world.coordinator():
            assert world.attempt(1, "one", doing=lambda: world.session("one").execute(_ENDED.format("one"))) == UNDONE
    finally:
        proxy.close()
    world.assert_settled(1, ("one",), UNDONE)


# -- people -------------------------------------------------------------------------------------------------------

#: Where somebody does what, and where; what the caller is told, and which databases have the row in the end.
BY_HAND = {
    "one-of-two-rolled-back": (PLAIN, "coordinator.decided", "rollback", ("one",), "HeuristicMixed", {"two"}),
    "both-rolled-back": (PLAIN, "coordinator.decided", "rollback", PLAIN, "HeuristicRollback", set()),
    "rolled-back-beside-the-mark": (LEDGER, "marked.committed", "rollback", PLAIN, "HeuristicMixed", {"ledger"}),
    "committed": (PLAIN, "coordinator.rolling-back", "commit", ("two",), "HeuristicMixed", {"two"}),
    "all-committed": (PLAIN, "coordinator.rolling-back", "commit", PLAIN, "HeuristicCommit", set(PLAIN)),
    "the-same": (PLAIN, "coordinator.decided", "commit", PLAIN, DONE, set(PLAIN)),
}


@pytest.mark.parametrize("case", BY_HAND)
def test_somebody_finishes_a_branch_before_its_transaction_does(world: CrashSite, case: str) -> None:
    names, point, verb, where, said, holders = BY_HAND[case]
    with world.coordinator():
        failpoints.arm(point, lambda: by_hand(world, verb, *where))
        if verb == "commit" and said != DONE:
            failpoints.arm("coordinator.prepared", "raise")
        assert world.attempt(1, *names) == said
        failpoints.disarm()
    _assert_heuristics_are_kept(world, 0 if said == DONE else len(where))
    assert world.holders(1) == holders
    world.assert_nothing_is_left()


@pytest.mark.parametrize(
    ("names", "point", "where", "holders"),
    [
        (PLAIN, "coordinator.decided", ("one",), {"two"}),
        (LEDGER, "marked.committed", ("two",), {"one", "ledger"}),
        (BOOK, "marked.committed", PLAIN, {"book"}),
    ],
    ids=["log", "ledger", "book"],
)
def test_somebody_finishes_a_branch_before_recovery_does(
    world: CrashSite,
    fork_server: ForkServer,
    names: tuple[str, ...],
    point: str,
    where: tuple[str, ...],
    holders: set[str],
) -> None:
    left_by(fork_server, world, names, point)
    by_hand(world, "rollback", *where)
    found = world.scan().heuristics
    assert {each.datasource for each in found} == set(where)
    _assert_heuristics_are_kept(world, len(found))
    assert world.holders(1) == holders
    world.assert_nothing_is_left()


def _assert_heuristics_are_kept(world: CrashSite, count: int) -> None:
    """Listed scan after scan, reported once, until somebody forgets them."""
    assert world.scan().heuristics == ()
    with closing(RecoveryManager(world.conf)) as manager:
        listed = manager.in_doubt()
        assert sum(len(each.heuristics) for each in listed) == count
        assert world.kept() == ({"heuristics": count} if count else {})
        assert sum(manager.forget(each.gtrid) for each in listed) == count


@pytest.fixture
def role(world: CrashSite) -> Iterator[str]:
    """A role of its own in the database `one`, which is no superuser."""
    one = world.session("one")
    one.execute(f"create role worker login password '{world.server.password}'")
    one.execute("grant all on schema public to worker; grant all on t to worker")
    world.describe("one", user="worker")
    yield "worker"
    session = world.session("one")
    by_hand(world, "rollback", "one")
    session.execute("drop owned by worker; drop role worker")


Change = tuple[Callable[[CrashSite], object], Callable[[CrashSite], object], str]


def _password(text: Callable[[CrashSite], str]) -> Callable[[CrashSite], object]:
    return lambda world: world.session("one").execute(f"alter role worker password '{text(world)}'")


PASSWORD_CHANGED: Change = (_password(lambda _: "another"), _password(lambda world: world.server.password), "one")
MAY_NOT_LOG_IN: Change = (
    lambda world: world.session("one").execute("alter role worker nologin"),
    lambda world: world.session("one").execute("alter role worker login"),
    "one",
)


@pytest.mark.parametrize("change", [PASSWORD_CHANGED, MAY_NOT_LOG_IN], ids=["password", "nologin"])
@pytest.mark.parametrize(("point", "committed"), [("coordinator.decided", True), ("coordinator.prepared", False)])
def test_recovery_may_not_enter(
    world: CrashSite, fork_server: ForkServer, role: str, change: Change, point: str, committed: bool
) -> None:
    spoil, mend, name = change
    left_by(fork_server, world, PLAIN, point)
    spoil(world)
    for _ in range(2):
        report = world.scan()
        assert name in report.unreachable
        assert world.server.password not in f"{report!r}"
    assert any(f":{name}:" in gid for gid in world.prepared())
    assert world.kept() == ({"decisions": 1} if committed else {})
    mend(world)
    world.scan()
    assert world.assert_settled(1, PLAIN) is committed


@pytest.mark.parametrize(
    ("names", "point", "removed", "committed"),
    [
        (PLAIN, "coordinator.decided", "one", True),
        (PLAIN, "coordinator.prepared", "one", False),
        (LEDGER, "marked.committed", "ledger", True),
        (LEDGER, "marked.commit", "ledger", False),
        (LEDGER, "marked.committed", "one", True),
        (BOOK, "marked.committed", "book", True),
        (BOOK, "marked.commit", "one", False),
    ],
)
def test_a_datasource_is_missing_from_the_configuration(
    world: CrashSite, fork_server: ForkServer, names: tuple[str, ...], point: str, removed: str, committed: bool
) -> None:
    left_by(fork_server, world, names, point)
    world.write_recovery([name for name in ("one", "two", "three", "book", "ledger") if name != removed])
    file = world.folder / f"{removed}.properties"
    away = file.rename(file.with_suffix(".away"))  # else what the log has noted of it leads there
    before = world.kept(), world.marks()
    for _ in range(2):
        report = world.scan()
        assert not report.errors
        if committed or removed in ("ledger", "book"):
            assert removed in " ".join(left.reason for left in report.pending)
    assert committed <= ((world.kept(), world.marks()) == before), "evidence is gone"
    assert world.prepared() != []
    away.rename(file)
    world.write_recovery(("one", "two", "three", "book", "ledger"))
    world.scan()
    assert world.assert_settled(1, names) is committed


def test_the_password_stands_in_no_file(world: CrashSite) -> None:
    texts = [path.read_text() for path in world.folder.rglob("*.properties")]
    assert all(PASSWORD in text for text in texts if "postgresql" in text)
    assert not any(server.password in text for text in texts for server in (world.server, world.log_server))
