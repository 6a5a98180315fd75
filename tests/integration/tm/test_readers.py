"""What has only read is not prepared, keeps its place until the others have ended, and changes nothing."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, LiteralString

import psycopg
import pytest

import txpool
from txpool import failpoints
from txpool.tm.ambient import make_ambient
from txpool.tm.manager import configure
from txpool.tm.subordinate import Subordinate
from txpool.xid import parse

if TYPE_CHECKING:
    from tests.conftest import Databases

#: The lock that a reader takes: SELECT pg_advisory_xact_lock(7).
LOCK = 7


class EachMode:
    """Datasources `one` and `two` prepare; `book` is marked, and `last` a last resource, both in database one."""

    def __init__(self, databases: Databases, folder: Path) -> None:
        self.databases = databases
        self.folder = folder
        self.opened: dict[str, txpool.DataSource] = {}
        for name in ("one", "two"):
            databases.execute(name, "create table t (n integer)")
        for name, at, mode in (
            ("one", "one", "xa"),
            ("two", "two", "xa"),
            ("book", "one", "cmr"),
            ("last", "one", "last-resource"),
        ):
            self.opened[name] = databases.datasource(at, name, mode=mode)
        self.opened["book"].xids_table().create()  # type: ignore[attr-defined]

    def execute(self, name: str, statement: str) -> Any:
        with closing(self.opened[name].connect()) as connection:
            return connection.cursor().execute(statement)

    def read(self, name: str) -> int:
        """Read, hold a lock by that, and return the server's process."""
        with closing(self.opened[name].connect()) as connection:
            cursor = connection.cursor()
            cursor.execute(f"select pg_backend_pid(), pg_advisory_xact_lock({LOCK}), count(*) from t")
            return int(cursor.fetchone()[0])

    def write(self, *names: str) -> None:
        for name in names:
            self.execute(name, "insert into t values (1)")

    @property
    def held(self) -> tuple[int, int]:
        one, two = (self.databases.rows(name, "select count(*) from t")[0][0] for name in ("one", "two"))
        return one, two

    @property
    def prepared(self) -> list[str]:
        """The datasources with a prepared branch."""
        return [xid.tag for gid in self.databases.prepared() if (xid := parse(gid)) is not None]

    @property
    def locked(self) -> bool:
        return bool(self.databases.rows("one", "select from pg_locks where locktype = 'advisory' and objid = 7"))

    @property
    def decisions(self) -> int:
        with closing(sqlite3.connect(self.folder / "txlog" / "log.db")) as log:
            return int(log.execute("select count(*) from decisions").fetchone()[0])

    def kill(self, pid: int) -> None:
        self.databases.rows("one", "select pg_terminate_backend(%s, 5000)", [pid])


@pytest.fixture
def world(databases: Databases, tmp_path: Path) -> Iterator[EachMode]:
    world = EachMode(databases, tmp_path)
    txpool.configure(node_name="here", log_url=f"sqlite:///{tmp_path}/txlog", log_create=True)
    yield world
    failpoints.disarm()
    for datasource in world.opened.values():
        datasource.close()
    txpool.configure(node_name="tests", log_url="memory:")


@contextmanager
def seeing(**looks: Callable[[], object]) -> Iterator[dict[str, Any]]:
    """What is seen at these points of the protocol (`_` for the dot, and for the dash) once each is reached."""
    seen: dict[str, Any] = {}
    with ExitStack() as stack:
        for name, look in looks.items():
            point = next(each for each in failpoints.POINTS if each.replace(".", "_").replace("-", "_") == name)

            def note(name: str = name, look: Callable[[], object] = look) -> None:
                seen[name] = look()

            stack.enter_context(failpoints.arming(point, note))
        yield seen


def test_two_that_read_write_no_decision_and_prepare_nothing(world: EachMode) -> None:
    with (
        seeing(readers_committing=lambda: (world.prepared, world.locked), log_record=lambda: True) as seen,
        txpool.transaction(),
    ):
        world.read("one")
        world.execute("two", "select count(*) from t")
    assert seen == {"readers_committing": ([], True)}
    assert not world.locked


def test_beside_one_that_writes_it_is_one_phase_and_the_reader_keeps_its_lock_until_that_is_answered(
    world: EachMode,
) -> None:
    looks = {"readers_committing": lambda: (world.held, world.prepared, world.locked, world.decisions)}
    with seeing(**looks, branch_prepare_sent=lambda: True) as seen, txpool.transaction():
        world.read("one")
        world.write("two")
    assert seen == {"readers_committing": ((0, 1), [], True, 0)}
    assert not world.locked


def test_beside_two_that_write_the_log_decides_over_these_alone(world: EachMode) -> None:
    """The marked datasource was only read: it writes no row, and decides nothing."""
    rows: LiteralString = "select xid from xids where xid <> 'txp1:identity'"
    with (
        seeing(
            coordinator_decided=lambda: (
                sorted(world.prepared),
                {parse(gid).decider for gid in world.databases.prepared()},  # type: ignore[union-attr]
                world.decisions,
                world.databases.rows("one", rows),
                world.locked,
            ),
            readers_committing=lambda: (world.locked, world.held, world.prepared),
        ) as seen,
        txpool.transaction(),
    ):
        world.write("one", "two")
        world.read("book")
    assert seen["coordinator_decided"] == (["one", "two"], {None}, 1, [], True)
    assert seen["readers_committing"] == (True, (1, 1), []), "a NOTIFY would tell of what nobody sees yet"
    assert world.held == (1, 1)
    assert world.prepared == []
    assert not world.locked


def test_a_last_resource_that_was_only_read_takes_no_risk(world: EachMode) -> None:
    with seeing(coordinator_decided=lambda: world.prepared, readers_committing=lambda: world.held) as seen:
        with txpool.transaction():
            world.write("two")
            world.read("last")
        assert seen == {"readers_committing": (0, 1)}
        with txpool.transaction():
            world.write("one", "two")
            world.read("last")
    assert sorted(seen["coordinator_decided"]) == ["one", "two"]
    assert world.held == (1, 2)


def listening(world: EachMode) -> psycopg.Connection[Any]:
    connection = psycopg.connect(world.databases.dsn("one"), autocommit=True)
    connection.execute("listen paid")
    return connection


@pytest.mark.parametrize("statement", ["notify paid, 'invoice 42'", "select pg_notify('paid', 'invoice 42')"])
def test_what_a_reader_notifies_is_heard_once_the_others_have_committed(world: EachMode, statement: str) -> None:
    with closing(listening(world)) as listener:
        with txpool.transaction():
            world.execute("one", statement)
            world.write("two")
        assert [(each.payload) for each in listener.notifies(timeout=60, stop_after=1)] == ["invoice 42"]
        with pytest.raises(ZeroDivisionError), txpool.transaction():
            world.execute("one", statement)
            world.write("two")
            raise ZeroDivisionError
        with pytest.raises(txpool.TransactionRolledBack), txpool.transaction():
            world.write("two")
            world.execute("one", statement)
            world.kill(world.read("two"))
        listener.execute("notify paid, 'the end'")
        assert [each.payload for each in listener.notifies(timeout=60, stop_after=1)] == ["the end"]


def test_in_doubt_the_readers_roll_back_at_once(world: EachMode) -> None:
    with closing(listening(world)) as listener:
        with (
            failpoints.arming("log.record"),
            failpoints.arming("log.abort"),
            pytest.raises(txpool.TransactionInDoubt),
            txpool.transaction(),
        ):
            world.write("one", "two")
            world.execute("book", "notify paid")
            world.read("book")
        assert not world.locked
        listener.execute("notify paid, 'the end'")
        assert [each.payload for each in listener.notifies(timeout=60, stop_after=1)] == ["the end"]


WRITES = "create function writes() returns integer language sql as 'insert into t values (5) returning n'"


@pytest.mark.parametrize("why", ["a function writes", "serializable", "a foreign server"])
def test_what_may_have_an_end_of_its_own_is_prepared(world: EachMode, why: str) -> None:
    with ExitStack() as stack:
        first, statement = "select 1", "select count(*) from t"
        if why == "a function writes":
            world.databases.execute("one", WRITES)
            stack.callback(world.databases.execute, "one", "drop function writes")
            statement = "select writes()"
        elif why == "serializable":
            first = "set transaction isolation level serializable"
        else:
            world.databases.execute("one", "create foreign data wrapper elsewhere")
            stack.callback(world.databases.execute, "one", "drop foreign data wrapper elsewhere cascade")
            world.databases.execute("one", "create server elsewhere foreign data wrapper elsewhere")
        with seeing(coordinator_prepared=lambda: sorted(world.prepared)) as seen, txpool.transaction():
            world.execute("one", first)
            world.execute("one", statement)
            world.write("two")
        assert seen == {"coordinator_prepared": ["one", "two"]}
        assert world.held == (1 if why == "a function writes" else 0, 1)


def test_a_cursor_that_outlives_the_transaction_executes_at_its_commit_and_is_refused(world: EachMode) -> None:
    """What it has still to fetch is executed by COMMIT, and may write."""
    world.databases.execute("one", WRITES)
    world.databases.execute(
        "one",
        "create function declares() returns void language plpgsql as "
        "$$ begin execute 'declare c cursor with hold for select writes()'; end $$",
    )
    with pytest.raises(txpool.TransactionRolledBack, match="WITH HOLD"), txpool.transaction():
        world.write("two")
        world.execute("one", "select declares()")
    assert world.held == (0, 0)


def test_only_those_whose_command_tags_show_only_reads_are_asked(world: EachMode) -> None:
    """A savepoint and a setting are no writes; what is copied out shows no tag."""
    asked: LiteralString = (
        "select application_name from pg_stat_activity where strpos(query, 'xact_id_if_assigned') > 0 and "
        "pid <> pg_backend_pid() and state = 'idle in transaction' order by 1"
    )
    for name, work in {
        "nothing else": lambda connection: None,
        "savepoint": lambda connection: connection.transaction().__enter__(),
        "setting": lambda connection: connection.execute("set local work_mem = '1MB'"),
        "cursor of the server": fetched,
        "copy": copy_out,
        "pipeline": pipelined,
        "many": lambda connection: connection.cursor().executemany("insert into t values (%s)", [(1,)]),
        "write": lambda connection: connection.execute("insert into t values (1)"),
    }.items():
        with (
            seeing(readers_apart=lambda: [label for (label,) in world.databases.rows("one", asked)]) as seen,
            txpool.transaction(),
        ):
            with closing(world.opened["one"].connect()) as connection:
                connection.execute(f"set local application_name = '{name}'")
                work(connection)
            world.execute("two", "insert into t values (1)")
        assert seen["readers_apart"] == ([name] if name in READERS else []), name


READERS = ("nothing else", "savepoint", "setting", "cursor of the server")


def fetched(connection: Any) -> None:
    with connection.cursor("it") as cursor:
        cursor.execute("select 1").fetchall()


def copy_out(connection: Any) -> None:
    with connection.cursor().copy("copy t to stdout") as copy:
        list(copy)


def pipelined(connection: Any) -> None:
    with connection.pipeline():
        connection.execute("select 1")


def test_one_alone_is_never_asked(world: EachMode) -> None:
    with seeing(readers_apart=lambda: True) as seen, txpool.transaction():
        world.read("one")
    assert seen == {}
    assert not world.locked


@pytest.mark.parametrize("how", ["lost", "failed"])
def test_a_reader_that_cannot_answer_votes_to_roll_back(world: EachMode, how: str) -> None:
    with pytest.raises(txpool.TransactionRolledBack) as told, txpool.transaction():
        world.write("two")
        pid = world.read("one")
        if how == "lost":
            world.kill(pid)
        else:
            with pytest.raises(psycopg.errors.UndefinedTable):
                world.execute("one", "select from nowhere")
    cause = told.value.__cause__ or told.value
    assert "datasource one voted to roll back" in " ".join([str(cause), *getattr(cause, "__notes__", ())])
    assert world.held == (0, 0)
    assert not world.locked


def test_a_reader_that_loses_its_locks_before_the_decision_votes_to_roll_back(world: EachMode) -> None:
    pids: list[int] = []
    with (
        seeing(coordinator_preparing=lambda: world.kill(pids[0])),
        pytest.raises(txpool.TransactionRolledBack, match="datasource book voted to roll back"),
        txpool.transaction(),
    ):
        world.write("one", "two")
        pids.append(world.read("book"))
    assert world.held == (0, 0)
    assert world.prepared == []


def test_a_reader_whose_end_is_lost_changes_no_outcome_and_its_connection_is_dropped(
    world: EachMode, caplog: pytest.LogCaptureFixture
) -> None:
    pids: list[int] = []
    with seeing(readers_committing=lambda: world.kill(pids[0])) as seen, txpool.transaction():
        world.write("two")
        pids.append(world.read("one"))
    assert seen
    assert world.held == (0, 1)
    told = [record.getMessage() for record in caplog.records if record.name == "txpool"]
    assert len(told) == 1
    assert told[0].startswith("datasource one was only read in this transaction")
    with txpool.transaction():
        assert world.read("one") != pids[0]


def test_a_task_rolls_its_readers_back_once_its_prepares_are_answered(world: EachMode) -> None:
    task = Subordinate("txp1:driver:abcdefghijkl:1", write=1, partition=0, attempt=7)
    make_ambient(task)
    try:
        world.write("one")
        world.read("two")
        with seeing(branch_prepare_sent=lambda: world.locked, readers_rolling_back=lambda: world.prepared) as seen:
            (record,) = task.prepare()
    finally:
        make_ambient(None)
    assert seen == {"branch_prepare_sent": True, "readers_rolling_back": ["one"]}
    assert record.xid.task is not None
    assert record.xid.task.branches == 1
    assert world.prepared == ["one"]
    assert not world.locked
    assert world.opened["two"].statistics().idle == 1


def test_a_task_that_notifies_is_refused_and_one_that_has_only_read_has_no_branch(world: EachMode) -> None:
    for statement, refused in (("notify paid", True), ("select 1", False)):
        task = Subordinate("txp1:driver:abcdefghijkl:1", write=1, partition=0, attempt=7)
        make_ambient(task)
        try:
            world.execute("two", statement)
            if refused:
                with pytest.raises(txpool.Error, match="LISTEN, UNLISTEN, or NOTIFY"):
                    task.prepare()
            else:
                assert task.prepare() == []
        finally:
            make_ambient(None)
        assert world.prepared == []


def test_the_missing_log_is_told_at_the_second_enlistment_whatever_they_do(world: EachMode) -> None:
    configure()
    with pytest.raises(txpool.ProgrammingError, match="two need a decision log"), txpool.transaction():
        world.read("one")
        world.execute("two", "select 1")
