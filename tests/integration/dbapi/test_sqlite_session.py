"""What one user of the pool leaves of a SQLite session, the next one does not find; what is the file's stays."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing, nullcontext, suppress
from pathlib import Path
from typing import Any

import pytest

import txpool
from tests.support.unseen import unseen
from txpool.datasource import DataSource
from txpool.engine import create_engine
from txpool.tm.demarcation.block import transaction

#: What the process has, and not the session: a pragma sets it for every connection, also for the bare driver's.
OF_THE_PROCESS = {"soft_heap_limit", "hard_heap_limit", "temp_store_directory"}
#: What the file has.
OF_THE_FILE = {"user_version", "application_id", "schema_version", "default_cache_size"}
WORDS = {"journal_mode": ["memory"], "locking_mode": ["exclusive"], "encoding": ["'UTF-16'"]}

TABLES = "select name from sqlite_temp_master union all select name from pragma_database_list where name = 'other'"
#: Statements of one user, and what the next one asks.
STATES = {
    "temporary table": ("create temp table stage (n integer)", TABLES),
    "temporary, in full": ("CREATE TEMPORARY TABLE IF NOT EXISTS stage (n)", TABLES),
    "by its schema": ("create table temp.stage (n)", TABLES),
    "by its schema, quoted": ('create table "temp" . stage (n)', TABLES),
    "temporary table as": ("create temp table stage as select 1 as n", TABLES),
    "temporary view": ("create temp view stage as select 1 as n", TABLES),
    "temporary trigger": ("create temp trigger stage after insert on t begin select 1; end", TABLES),
    "virtual table": ("create virtual table temp.stage using fts5(words)", TABLES),
    "behind a comment": ("-- it's mine\ncreate temp table stage (n)", TABLES),
    "behind comments": ("/* a /* b **/ \n\t /**/ create temp table stage (n)", TABLES),
    "attach": ("attach ':memory:' as other", TABLES),
    "AtTaCh": ("\n AtTaCh DATABASE ':memory:' AS other", TABLES),
    "foreign keys": ("PrAgMa foreign_keys = on", "pragma foreign_keys"),
    "foreign keys, called": ("pragma/**/foreign_keys(1)", "pragma foreign_keys"),
    "explained": ("explain pragma cache_size = 7", "pragma cache_size"),
    "of a schema": ("pragma main.cache_size=7;", "pragma cache_size"),
    "behind a byte order mark": ("\ufeffpragma cache_size=7", "pragma cache_size"),
    "like": ("pragma case_sensitive_like = 1", "select 'a' like 'A'"),
}


def with_another_database(connection: Any) -> None:
    with closing(sqlite3.connect(":memory:")) as other:
        other.execute("create table another (n integer)")
        connection.deserialize(other.serialize())


#: Methods of one user, and what the next one asks.
METHODS: dict[str, tuple[Callable[[Any], object], str]] = {
    "authorizer": (lambda it: it.set_authorizer(lambda *_: sqlite3.SQLITE_DENY), "select 1"),
    "function": (lambda it: it.create_function("mine", 0, lambda: 1), "select mine()"),
    "built-in function": (lambda it: it.create_function("upper", 1, lambda x: "mine"), "select upper('a')"),
    "window function": (lambda it: it.create_window_function("mine", 1, Sum), "select mine(1) over ()"),
    "aggregate": (lambda it: it.create_aggregate("mine", 1, Sum), "select mine(1)"),
    "collation": (lambda it: it.create_collation("mine", lambda a, b: 0), "select 1 order by 'a' collate mine"),
    "limit": (lambda it: it.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, 100), "select zeroblob(101)"),
    "progress": (lambda it: it.set_progress_handler(lambda: 1, 1), "select count(*) from t"),
    "database": (with_another_database, "select name from sqlite_master"),
    "method of an own cursor": (lambda it: it.cursor(Staging).stage(), "select name from sqlite_temp_master"),
}
NOT_INSIDE = ("database", True)  # SQLite refuses it


class Staging(sqlite3.Cursor):
    """A cursor of an application's own, whose method executes by itself."""

    def stage(self) -> None:
        self.execute("create temp table stage (n integer)")


class Sum:
    """An aggregate of an application's own."""

    def step(self, value: int) -> None:
        """Nothing."""

    inverse = step

    def finalize(self) -> int:
        return 7

    value = finalize


@pytest.fixture
def single(sqlite_source: DataSource) -> DataSource:
    """A datasource of one connection."""
    sqlite_source.pool.resize(0, 1)
    return sqlite_source


def ask(datasource: DataSource, question: str) -> Any:
    with closing(datasource.connect()) as connection:
        return result(connection, question)


def result(connection: Any, question: str) -> Any:
    try:
        return connection.execute(question).fetchall()
    except sqlite3.Error as error:
        return str(error)


def by_execute(connection: Any, statement: str) -> None:
    connection.execute(statement)


def by_cursor(connection: Any, statement: str) -> None:
    connection.cursor().execute(statement, ())


def by_script(connection: Any, statement: str) -> None:
    connection.executescript(statement)


def by_factory(connection: Any, statement: str) -> None:
    connection.cursor(sqlite3.Cursor).execute(statement)


def by_executemany(connection: Any, statement: str) -> None:
    with suppress(sqlite3.ProgrammingError):  # it is for DML, but a pragma has taken effect by then
        connection.executemany(statement, [()])


@pytest.mark.parametrize("state", STATES)
@pytest.mark.parametrize("leave", [by_execute, by_cursor, by_script, by_factory, by_executemany])
def test_the_next_user_finds_nothing_of_it(single: DataSource, state: str, leave: Callable[[Any, str], None]) -> None:
    statement, question = STATES[state]
    before = ask(single, question)
    with closing(single.connect()) as connection:
        leave(connection, statement)
        if leave is not by_executemany:
            assert connection.execute(question).fetchall() != before
    assert ask(single, question) == before


@pytest.mark.parametrize("how", ["closed", "joined", "rolled back"])
@pytest.mark.parametrize("state", [name for name in STATES if "foreign" not in name])
def test_nor_of_what_an_enlisted_connection_leaves(single: DataSource, state: str, how: str) -> None:
    statement, question = STATES[state]
    before = ask(single, question)
    connection = single.connect()
    if how != "joined":
        connection.close()
    with suppress(ZeroDivisionError), transaction():
        if how != "joined":
            connection = single.connect()
        connection.execute(statement)
        assert connection.execute(question).fetchall() != before
        if how == "rolled back":
            raise ZeroDivisionError
    connection.close()
    assert ask(single, question) == before


@pytest.mark.parametrize(
    ("method", "enlisted"), [(name, how) for name in METHODS for how in (False, True) if (name, how) != NOT_INSIDE]
)
def test_nor_functions_hooks_and_limits(single: DataSource, method: str, enlisted: bool) -> None:
    change, question = METHODS[method]
    fresh = ask(single, question)
    with transaction() if enlisted else nullcontext(), closing(single.connect()) as connection:
        change(connection)
        assert result(connection, question) != fresh
    assert ask(single, question) == fresh


def test_nor_a_trace(single: DataSource) -> None:
    traced: list[str] = []
    with closing(single.connect()) as connection:
        connection.set_trace_callback(traced.append)
        connection.execute("select 1").fetchall()
    assert traced == ["select 1"]
    ask(single, "select 2")
    assert traced == ["select 1"]


def values(connection: Any) -> dict[str, Any]:
    """Of every pragma of this build that tells one value."""
    names = [name for (name,) in connection.execute("pragma pragma_list").fetchall()]
    told = {name: connection.execute(f"pragma {name}").fetchall() for name in names if name not in OF_THE_PROCESS}
    return {name: rows[0][0] for name, rows in told.items() if len(rows) == 1 and len(rows[0]) == 1}


@pytest.mark.parametrize("enlisted", [False, True])
def test_every_pragma_of_this_build(single: DataSource, tmp_path: Path, enlisted: bool) -> None:
    with closing(single.connect()) as connection:
        before = values(connection)
    changed = set()
    for name, value in before.items():
        number = value if isinstance(value, int) else 0
        for other in WORDS.get(name, [number + 1, 0, 1, 2, 3, number * 2]):
            with suppress(sqlite3.Error):
                if enlisted:
                    with transaction():
                        changed |= change(single.connect(), name, other, value)
                else:
                    with closing(single.connect()) as connection:
                        changed |= change(connection, name, other, value)
            bare = sqlite3.connect(tmp_path / "one.db")
            with closing(single.connect()) as connection:
                read = f"pragma {name}"
                told = connection.execute(read).fetchone()
                assert told == bare.execute(read).fetchone(), name
                assert name in OF_THE_FILE or told == (value,) or name in ("data_version", "page_count"), name
            bare.close()
    some = {"cache_size", "busy_timeout", "recursive_triggers", "query_only", "temp_store", "mmap_size", "user_version"}
    assert changed >= (some - {"temp_store"} if enlisted else some | {"foreign_keys", "synchronous", "journal_mode"})
    assert len(changed) > 25


def change(connection: Any, name: str, other: object, value: object) -> set[str]:
    connection.execute(f"pragma {name} = {other}").fetchall()
    return {name} - ({name} if connection.execute(f"pragma {name}").fetchone() == (value,) else set())


def test_always_opens_it_anew_each_time(sqlite_source: DataSource) -> None:
    with DataSource(
        name="a", driver="sqlite3", mode="local", url=sqlite_source.url, pool_max_size=1, pool_reset="always"
    ) as always:
        for _ in range(2):
            with closing(always.connect()) as connection:
                assert connection.total_changes == 0
                connection.execute("insert into t values (null, 'a')")
                connection.commit()
        with transaction():
            assert always.connect().total_changes == 0
        assert always.statistics().created == 1


def test_what_is_the_files_stays(single: DataSource) -> None:
    with closing(single.connect()) as connection:
        connection.execute("pragma journal_mode = wal")
        connection.execute("pragma user_version = 7")
        connection.execute("create table lasting (n integer)")
    assert ask(single, "pragma journal_mode") == [("wal",)]
    assert ask(single, "pragma user_version") == [(7,)]
    assert ask(single, "select count(*) from lasting") == [(0,)]


def test_the_log_of_the_only_connection_stays(single: DataSource, tmp_path: Path) -> None:
    """To write it back, and to make it again, would cost far more than the opening."""
    with closing(single.connect()) as connection:
        connection.execute("pragma journal_mode = wal")
        connection.execute("insert into t values (1, 'a')")
        connection.commit()
        log = tmp_path / "one.db-wal"
        before = log.stat()
        connection.create_function("mine", 0, lambda: 1)
    assert (log.stat().st_ino, log.stat().st_size) == (before.st_ino, before.st_size)
    assert ask(single, "select mine()") == "no such function: mine"


def test_a_marked_datasource_commits_durably_whatever_a_user_has_set(sqlite_source: DataSource) -> None:
    with DataSource(name="m", driver="sqlite3", mode="cmr", url=sqlite_source.url, pool_max_size=1) as marked:
        before = ask(marked, "pragma synchronous")
        with closing(marked.connect()) as connection:
            connection.execute("pragma synchronous = off")
        assert ask(marked, "pragma synchronous") == before == [(3,)]
        with closing(marked.connect()) as connection:
            connection.execute("pragma journal_mode = wal")
        assert ask(marked, "pragma synchronous") == [(2,)]


def test_what_changes_nothing_keeps_the_session(single: DataSource) -> None:
    """Seen by a counter of the physical connection's."""
    with closing(single.connect()) as connection:
        connection.execute("insert into t values (1, 'a')")
        connection.executemany("  -- a comment\n INSERT INTO t values (?, 'b')", [(2,), (3,)])
        connection.commit()
        for told in (
            "pragma table_info(t)",
            'PRAGMA main.table_xinfo("t")',
            "pragma foreign_keys",
            "with a as (select 1) select * from a",
        ):
            connection.execute(told).fetchall()
        connection.row_factory = sqlite3.Row
        connection.execute("update t set v = 'c'")  # left open: rolled back
    with transaction():
        single.connect().execute("insert into t values (4, 'd')")
    with closing(single.connect()) as connection:
        assert connection.total_changes == 7
        assert connection.row_factory is None
        assert connection.execute("select id, v from t").fetchall() == [(1, "a"), (2, "b"), (3, "b"), (4, "d")]


@pytest.mark.parametrize("end", ["commit", "roll back"])
def test_our_own_note_of_a_transaction_is_gone_after_it(single: DataSource, end: str) -> None:
    with suppress(ZeroDivisionError), transaction():
        single.connect().execute("insert into t values (1, 'a')")
        if end == "roll back":
            raise ZeroDivisionError
    assert ask(single, "pragma temp.user_version") == [(0,)]


@pytest.mark.parametrize(("command", "left"), [("commit", [(1,)]), ("rollback", [])])
def test_the_users_own_end_is_told_right_and_leaves_nothing(single: DataSource, command: str, left: list[Any]) -> None:
    said = "committed, and no rollback" if command == "commit" else "undone"
    for _ in range(2):
        with pytest.raises(txpool.Error), transaction():
            connection = single.connect()
            connection.execute("insert or ignore into t values (1, 'a')")
            with pytest.raises(txpool.ProgrammingError, match=said):
                connection.execute(unseen(command))
    assert ask(single, "pragma temp.user_version") == [(0,)]
    assert ask(single, "select id from t") == left


@pytest.mark.parametrize("command", ["commit", "rollback"])
def test_a_commit_is_never_told_as_undone(single: DataSource, command: str) -> None:
    """Not even where the user's authorizer refuses the pragma that would tell."""
    with pytest.raises(txpool.HeuristicError), transaction():
        connection: Any = single.connect()
        connection.execute("insert into t values (1, 'a')")
        connection.set_authorizer(no_pragma)
        with pytest.raises(txpool.ProgrammingError, match="committed, and no rollback"):
            connection.execute(unseen(command))
    assert ask(single, "select id from t") == ([(1,)] if command == "commit" else [])


def test_a_transaction_without_its_note_does_not_begin(single: DataSource) -> None:
    with transaction():
        connection: Any = single.connect()
        connection.set_authorizer(no_pragma)
        for number in (1, 2):
            with pytest.raises(sqlite3.DatabaseError, match="not authorized"):
                connection.execute("insert into t values (?, 'a')", (number,))
        connection.set_authorizer(None)
        connection.execute("insert into t values (3, 'a')")
    assert ask(single, "select id from t") == [(3,)]


def no_pragma(action: int, *_: object) -> int:
    return sqlite3.SQLITE_DENY if action == sqlite3.SQLITE_PRAGMA else sqlite3.SQLITE_OK


def test_a_blob_that_is_left_open_holds_nothing(single: DataSource, tmp_path: Path) -> None:
    with closing(single.connect()) as connection:
        connection.execute("insert into t values (1, zeroblob(4))")
        connection.commit()
        blob = connection.blobopen("t", "v", 1)
        blob.write(b"ab")
    with transaction():
        enlisted = single.connect().blobopen("t", "v", 1, readonly=True)
        assert enlisted.read() == b"ab\0\0"
    for each in (blob, enlisted):
        with pytest.raises(sqlite3.ProgrammingError, match="closed"):
            each.read()
    with closing(sqlite3.connect(tmp_path / "one.db", isolation_level=None, timeout=0)) as raw:
        assert raw.execute("select v from t").fetchone() == (b"ab\0\0",)
        raw.execute("drop table t")


def test_by_sqlalchemy(single: DataSource) -> None:
    sqlalchemy = pytest.importorskip("sqlalchemy")
    engine = create_engine(single)
    for statement, question in (STATES["temporary table"], STATES["foreign keys"]):
        before = ask(single, question)
        with engine.connect() as connection:
            connection.exec_driver_sql(statement)
            assert connection.exec_driver_sql(question).fetchall() != before
        assert ask(single, question) == before
    with engine.begin() as connection:
        connection.execute(sqlalchemy.text("insert into t values (1, 'kept')"))
    assert ask(single, "select id from t") == [(1,)]


@pytest.fixture(autouse=True)
def no_leak(sqlite_source: DataSource) -> Iterator[None]:
    yield
    assert sqlite_source.statistics().taken == 0
    assert sqlite_source.statistics().reset_failures == 0
