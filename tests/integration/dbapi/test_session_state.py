"""What one user of the pool leaves of a session, the next one does not find."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import closing, nullcontext, suppress
from typing import TYPE_CHECKING, Any

import psycopg
import pytest

from txpool.datasource import DataSource
from txpool.resources.postgresql.statements.harmless import CHANGES_NO_SESSION, KNOWN
from txpool.tm.demarcation.block import transaction

if TYPE_CHECKING:
    from tests.conftest import Databases

LOCKS = "select count(*) from pg_locks where locktype = 'advisory'"
#: A statement of one user, and what the next one asks.
STATES = {
    "set": ("set search_path to nowhere", "show search_path"),
    "set behind another": ("select 1; set search_path to nowhere", "show search_path"),
    "set role": ("set role pg_monitor", "select current_user"),
    "listen": ("listen news", "select pg_listening_channels()"),
    "temporary table": ("create temp table if not exists stage (n int)", "select to_regclass('stage')"),
    "temporary table as": ("create temp table stage as select 1 as n", "select to_regclass('stage')"),
    "temporary table as, empty": (
        "create temp table stage as select 1 as n with no data",
        "select to_regclass('stage')",
    ),
    "select into": ("select 1 as n into temp stage", "select to_regclass('stage')"),
    "temporary view": ("create temp view stage as select 1 as n", "select to_regclass('stage')"),
    "temporary sequence": ("create temp sequence stage", "select to_regclass('stage')"),
    "of other kinds": (
        "create domain pg_temp.stage as int; create collation pg_temp.stage (locale = 'C');"
        "create procedure pg_temp.stage() language sql as 'select 1';"
        "create operator pg_temp.=== (function = int4eq, leftarg = int, rightarg = int)",
        "select to_regtype('stage'), to_regproc('pg_temp.stage'), to_regoper('pg_temp.===')",
    ),
    "explain analyze": ("explain analyze create temp table stage as select 1", "select to_regclass('stage')"),
    "prepare": ("prepare mine as select 1", "select name from pg_prepared_statements where from_sql"),
    "cursor with hold": ("declare far cursor with hold for select 1", "select name from pg_cursors"),
    "set in a block": ("do $$ begin execute 'set work_mem = ''1MB'''; end $$", "show work_mem"),
    "set_config in a block": ("do $$ begin perform set_config('work_mem', '1MB', false); end $$", "show work_mem"),
    "listen in a block": ("do $$ begin execute 'listen news'; end $$", "select pg_listening_channels()"),
    "prepare in a block": (
        "do $$ begin execute 'prepare mine as select 1'; end $$",
        "select name from pg_prepared_statements where from_sql",
    ),
    "advisory lock": ("select pg_advisory_lock(7)", LOCKS),
    "shared advisory lock, tried": ("SELECT PG_TRY_ADVISORY_LOCK_SHARED(7, 8) AS taken", LOCKS),
    "advisory lock of many rows": ("select n, pg_advisory_lock(n) from generate_series(1, 3) as n", LOCKS),
    "set_config": ("select set_config('work_mem', '1MB', false)", "show work_mem"),
    "set_config twice": (
        "select set_config('work_mem', '2MB', true), pg_catalog.set_config('work_mem', '1MB', not true)",
        "show work_mem",
    ),
    **{
        f"pg_settings, {name}": (f"UPDATE pg_settings SET setting = '{value}' WHERE name = '{name}'", f"show {name}")
        for name, value in {
            "search_path": "nowhere",
            "synchronous_commit": "off",
            "default_transaction_read_only": "on",
            "timezone": "Asia/Tokyo",
        }.items()
    },
    "a name of escapes": ("select U&\"set\\005fconfig\"('search_path', 'nowhere', false)", "show search_path"),
    "a name of other escapes": (
        "select pg_catalog.u&\"set!005fconfig\" uescape '!' ('work_mem', '1MB', false)",
        "show work_mem",
    ),
    "lock in a block": ("do $$ begin perform pg_advisory_lock(7); end $$", LOCKS),
    "advisory lock of a function": ("select take_lock()", LOCKS),
    "set_config of a function": ("select set_memory()", "show work_mem"),
    "temporary table of a function": ("select leave_stage()", "select to_regclass('stage')"),
    "role of a function": ("select become()", "select current_user"),
    "listener of a function": ("select hear()", "select pg_listening_channels()"),
    "set_config of a function, in a query's query": (
        "select ndoc from ts_stat('select to_tsvector(''simple'', set_memory())')",
        "show work_mem",
    ),
    # These settings the server reports.
    **{
        f"{setting} of a {kind}": (statement.format(setting.lower()), f"show {setting}")
        for setting in ("search_path", "default_transaction_read_only", "TimeZone")
        for kind, statement in {
            "view": "select * from view_{}",
            "trigger": "insert into public.triggered_{} values (1)",
            "default": "insert into public.default_{} (n) values (1)",
        }.items()
    },
}
#: What neither a command's name nor its text tells.
HIDDEN = {
    "advisory lock of a view": ("select * from view_of_lock", LOCKS),
    "set_config of a view": ("select * from view_of_memory", "show work_mem"),
    "temporary table of a view": ("select * from view_of_stage", "select to_regclass('stage')"),
}
_VALUES = {
    "search_path": "nowhere",
    "default_transaction_read_only": "on",
    "timezone": "Asia/Tokyo",
}


@pytest.fixture
def options(databases: Databases) -> dict[str, Any]:
    databases.execute(
        "one",
        "create function leave_stage() returns void language plpgsql as $$ begin create temp table stage (); end $$;"
        "create function take_lock() returns void language sql as 'select pg_advisory_lock(7)';"
        "create function set_memory() returns text language sql as $$ select set_config('work_mem', '1MB', false) $$;"
        "create function become() returns void language plpgsql as $$ begin execute 'set role pg_monitor'; end $$;"
        "create function hear() returns void language plpgsql as $$ begin execute 'listen news'; end $$;"
        "create view view_of_lock as select take_lock() is null as n;"
        "create view view_of_memory as select set_memory();"
        "create view view_of_stage as select leave_stage() is null as n;",
    )
    for name, value in _VALUES.items():
        setting = f"set_config('{name}', '{value}', false)"
        with psycopg.connect(databases.dsn("one"), autocommit=True) as connection:
            statements = (
                f"create view view_{name} as select {setting}",
                f"create table default_{name} (n integer, path text default {setting})",
                f"create table triggered_{name} (n integer)",
                f"create function set_{name}() returns trigger language plpgsql as "
                f"$$ begin perform {setting}; return new; end $$",
                f"create trigger sets before insert on triggered_{name} for each row execute function set_{name}()",
            )
            connection.execute("; ".join(statements).encode())
    password = databases.server.password
    return {"name": "one", "driver": "psycopg", "url": databases.url("one"), "password": password, "pool_max_size": 1}


@pytest.fixture
def auto(options: dict[str, Any]) -> Iterator[DataSource]:
    with DataSource(**options) as datasource:
        yield datasource


@pytest.fixture
def always(options: dict[str, Any]) -> Iterator[DataSource]:
    with DataSource(**options, pool_reset="always") as datasource:
        yield datasource


def ask(datasource: DataSource, question: str) -> tuple[int, Any]:
    """What the pool's next user sees, and of which session."""
    with datasource.connect() as connection:
        session = connection.info.backend_pid
        try:
            return session, connection.execute(question).fetchall()
        except psycopg.Error as error:
            return session, error.sqlstate


def leave(datasource: DataSource, statement: str, how: str) -> None:
    if how == "enlisted":
        with transaction(), datasource.connect() as connection:
            connection.execute(statement)
    elif how == "autocommit":
        with closing(datasource.connect()) as connection:
            connection.autocommit = True
            connection.execute(statement)
    elif how == "pipeline":
        with datasource.connect() as connection, connection.pipeline():
            connection.execute(statement)
    elif how == "enlisted pipeline":
        with transaction(), datasource.connect() as connection, connection.pipeline():
            connection.execute(statement)
    elif how == "prepared":
        with datasource.connect() as connection:
            connection.execute(statement, prepare=True)
    elif how == "prepared, and composed":
        with transaction(), datasource.connect() as connection:
            connection.execute(psycopg.sql.SQL(statement), prepare=True)
    elif how == "psycopg's own cursor":
        with datasource.connect() as connection:
            psycopg.Cursor(connection).execute(statement)  # type: ignore[call-overload]
    elif how == "failed later":
        with suppress(psycopg.errors.DivisionByZero), datasource.connect() as connection:
            connection.execute(statement)
            connection.execute("select 1/0")
    else:
        with datasource.connect() as connection:
            connection.execute(statement)


PREPARED = ["prepared", "prepared, and composed"]
PIPELINES = ["pipeline", "enlisted pipeline"]
HOW = ["plain", "enlisted", "autocommit", *PIPELINES, *PREPARED, "psycopg's own cursor", "failed later"]


@pytest.mark.parametrize("how", HOW)
def test_auto_cleans_what_commands_tell(auto: DataSource, how: str) -> None:
    for state, (statement, question) in STATES.items():
        if how in (*PIPELINES, *PREPARED) and ";" in statement.split("$$")[0]:
            continue  # one statement at a time
        before = ask(auto, question)
        leave(auto, statement, how)
        assert ask(auto, question) == before, state


@pytest.mark.parametrize("how", ["plain", "enlisted", "autocommit"])
def test_always_cleans_everything(always: DataSource, how: str) -> None:
    for state, (statement, question) in (STATES | HIDDEN).items():
        before = ask(always, question)
        leave(always, statement, how)
        assert ask(always, question) == before, state


@pytest.mark.parametrize(
    "statement",
    [
        "copy (select pg_advisory_lock(7)) to stdout",
        "select 1; select pg_advisory_lock(7); select 1/0",
        "insert into u select 1 where pg_try_advisory_lock(7)",
    ],
)
@pytest.mark.parametrize("enlisted", [False, True])
def test_auto_sees_locks_by_the_text(auto: DataSource, databases: Databases, statement: str, *, enlisted: bool) -> None:
    databases.execute("one", "create table u (n integer)")
    before = ask(auto, LOCKS)
    around = transaction() if enlisted else nullcontext()
    with suppress(psycopg.errors.DivisionByZero), around, auto.connect() as connection:
        if statement.startswith("copy"):
            with connection.cursor().copy(statement) as copy:
                assert len(list(copy.rows())) == 1
        else:
            connection.execute(statement)
    assert ask(auto, LOCKS) == before
    with auto.connect() as connection:
        assert next(connection.cursor().stream("select pg_advisory_lock(7) is null"))
    assert ask(auto, LOCKS) == before


def test_auto_sees_locks_of_prepared_statements_that_fail(auto: DataSource) -> None:
    before = ask(auto, LOCKS)
    with suppress(psycopg.errors.DivisionByZero), transaction(), auto.connect() as connection:
        connection.execute("select pg_advisory_lock(7), 1 / n from generate_series(0, 0) as n", prepare=True)
    assert ask(auto, LOCKS) == before


def test_notifications_that_nobody_has_read(auto: DataSource, databases: Databases) -> None:
    with auto.connect() as connection:
        connection.execute("listen news")
        connection.commit()
        databases.execute("one", "notify news, 'unread'")
        connection.execute("select 1")
    with auto.connect() as connection:
        assert list(connection.notifies(timeout=0.05)) == []


def test_a_notification_that_came_with_the_end_of_its_transaction(auto: DataSource) -> None:
    """It has arrived, and psycopg has not looked: the next statement of anybody would find it."""
    with transaction(), closing(auto.connect()) as connection:
        connection.execute("listen news")
        connection.execute("notify news, 'at the end'")
    with closing(auto.connect()) as connection:
        connection.autocommit = True
        connection.execute("select 1")
        assert list(connection.notifies(timeout=0.05)) == []


def test_auto_leaves_what_no_command_tells(auto: DataSource) -> None:
    """As the configuration reference says."""
    for statement, question in HIDDEN.values():
        before = ask(auto, question)
        leave(auto, statement, "plain")
        assert ask(auto, question) != before


def test_a_staging_table_has_the_rows_of_its_user_only(auto: DataSource, databases: Databases) -> None:
    databases.execute("one", "create table t (n integer)")
    for numbers in ([1, 2], [3]):
        with auto.connect() as connection:
            connection.execute("create temp table if not exists stage (n integer)")
            connection.cursor().executemany("insert into stage values (%s)", [(number,) for number in numbers])
            connection.execute("insert into t select n from stage")
    assert databases.rows("one", "select n from t order by n") == [(1,), (2,), (3,)]


@pytest.mark.filterwarnings("ignore:.*was deleted while still open:ResourceWarning")
def test_a_cursor_of_psycopgs_own_that_is_held(auto: DataSource) -> None:
    before = ask(auto, "select name from pg_cursors")
    with auto.connect() as connection:
        cursor = connection.cursor(name="far", withhold=True).execute("select generate_series(1, 3)")
        assert cursor.fetchone() == (1,)
    assert ask(auto, "select name from pg_cursors") == before
    del cursor
    gc.collect()


@pytest.mark.parametrize("reset", ["auto", "always"])
def test_psycopgs_prepared_statements_stay(options: dict[str, Any], reset: str) -> None:
    with DataSource(**options, pool_reset=reset) as datasource:
        for number in range(3):
            with datasource.connect() as connection:
                connection.execute("do $$ begin end $$")
                assert connection.execute("select %s::int", [number], prepare=True).fetchone() == (number,)
        with datasource.connect() as connection:
            found = connection.execute("select count(*) from pg_prepared_statements").fetchone()
            assert found == (1,)


def test_what_is_clean_costs_nothing(auto: DataSource, databases: Databases) -> None:
    databases.execute("one", "create table t (n integer)")
    with auto.connect() as connection:
        session = connection.info.backend_pid
        connection.execute("insert into t values (1)")
        connection.execute("select n from t").fetchall()
        connection.cursor(name="near").execute("select n from t").close()
        connection.execute("select pg_advisory_xact_lock(7), pg_catalog.SET_CONFIG('a.b', %s, True)", ["it's (so)"])
        connection.execute("select set_config('a.b', 'it''s (, false)', true), set_config('a.c', '', true)")
        connection.execute("update t set n = 2")
    last = databases.rows("two", "select query from pg_stat_activity where pid = %s", (session,))
    assert last == [("COMMIT",)]


@pytest.mark.parametrize("function", ["take_lock()", "set_memory()", "become()", "hear()"])
@pytest.mark.parametrize("how", ["stream", "copy", "executemany", "named cursor", "prepared in SQL", "cursor in SQL"])
@pytest.mark.parametrize("enlisted", [False, True])
def test_auto_cleans_what_functions_leave(
    auto: DataSource, databases: Databases, function: str, how: str, *, enlisted: bool
) -> None:
    databases.execute("one", "create table t (n integer); grant all on t to public")
    databases.execute("one", "grant usage on schema public to public")
    question = f"select current_setting('work_mem'), current_user, array(select pg_listening_channels()), ({LOCKS})"
    before = ask(auto, question)
    select = f"select {function}::text"
    around = transaction() if enlisted else nullcontext()
    with around, auto.connect() as connection:
        cursor = connection.cursor()
        if how == "stream":
            assert len(list(cursor.stream(select))) == 1
        elif how == "copy":
            with cursor.copy(f"copy ({select}) to stdout") as copy:
                assert len(list(copy.rows())) == 1
        elif how == "executemany":
            cursor.executemany(f"insert into t select %s where {function}::text is not null", [(1,), (2,)])
        elif how == "named cursor":
            with connection.cursor(name="near") as named:
                assert len(named.execute(select).fetchall()) == 1
        elif how == "prepared in SQL":
            cursor.execute(f"prepare mine as {select}")
            assert len(cursor.execute("execute mine").fetchall()) == 1
        else:
            cursor.execute(f"declare near cursor for {select}")
            assert len(cursor.execute("fetch near").fetchall()) == 1
    assert ask(auto, question) == before


def test_the_known_functions_leave_nothing(databases: Databases) -> None:
    """As the server itself declares them: no overload of theirs is volatile."""
    found: dict[str, set[str]] = {}
    for name, volatility in databases.rows(
        "one", "select proname, provolatile::text from pg_proc where pronamespace = 'pg_catalog'::regnamespace"
    ):
        found.setdefault(name, set()).add(volatility)
    assert {name for name in KNOWN if "v" in found.get(name, set())} == set()
    assert found.keys() >= CHANGES_NO_SESSION
    assert KNOWN - found.keys() == {"coalesce", "nullif", "greatest", "least", "grouping", "trim"}
