"""Rule 32: a lock on the log's server counts by who holds it, the log's tables by who owns them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import psycopg
import pytest

from tests.integration.log.tables import NODE, decided, gtrid_of
from tests.support.log_places import LogPlace, PostgreSQLPlace
from tests.support.strangers import EVIL, Strangers, ran
from txpool.config.secrets import Secret
from txpool.errors import LogError
from txpool.log import IncarnationState, SqlLog, adopt_log, open_log
from txpool.log.sql.statements import TABLES
from txpool.resources.postgresql.log.server import key_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.conftest import Databases

_TAKE = "select pg_advisory_lock({})"


@pytest.fixture
def place(databases: Databases) -> LogPlace:
    """What is here is PostgreSQL's own."""
    return PostgreSQLPlace(databases)


@pytest.fixture
def opened(strangers: Strangers) -> Iterator[Any]:
    """Opens the log as app, who has made it."""
    logs: list[SqlLog] = []

    def opening(node: str = NODE, database: str = "one", **options: Any) -> SqlLog:
        url = strangers.url("app", database)
        logs.append(SqlLog(url, node=node, create=True, password=Secret(strangers.password), **options))
        return logs[-1]

    yield opening
    for log in logs:
        log.close()


@pytest.fixture
def gone(opened: Any) -> tuple[SqlLog, str]:
    """A log, and an incarnation in it whose process has died."""
    former = opened()
    name = former.incarnation
    former.close()
    return opened(), name


def test_32_a_lock_that_a_stranger_holds_keeps_nobody_alive(strangers: Strangers, gone: tuple[SqlLog, str]) -> None:
    log, name = gone
    with strangers.session("mallory") as mallory:
        mallory.execute(_TAKE.format(key_of(name)).encode())
        assert log.incarnations() == {name: IncarnationState.DEAD}
        log.fence(name)
        assert log.incarnations() == {name: IncarnationState.FENCED}


def test_32_a_lock_that_no_session_holds_keeps_nobody_alive(strangers: Strangers, gone: tuple[SqlLog, str]) -> None:
    log, name = gone
    for role in ("mallory", "app"):
        with strangers.session(role) as connection:
            connection.execute("begin")
            connection.execute("select pg_advisory_xact_lock(%s)", [key_of(name)])
            connection.execute("prepare transaction 'a lock for ever'")
        assert log.incarnations() == {name: IncarnationState.DEAD}
        strangers.admin("rollback prepared 'a lock for ever'")


def test_32_a_lock_of_another_database_or_of_two_keys_is_another(
    strangers: Strangers, gone: tuple[SqlLog, str]
) -> None:
    log, name = gone
    key = key_of(name)
    with strangers.session("app", "two") as elsewhere, strangers.session("app") as here:
        elsewhere.execute(_TAKE.format(key).encode())
        high, low = (int.from_bytes(part, "big", signed=True) for part in (key.to_bytes(8)[:4], key.to_bytes(8)[4:]))
        here.execute("select pg_advisory_lock(%s, %s)", [high, low])
        assert log.incarnations() == {name: IncarnationState.DEAD}
        here.execute(_TAKE.format(key).encode())
        assert log.incarnations() == {name: IncarnationState.ALIVE}


@pytest.mark.parametrize(
    "grants",
    [
        ["grant insert on txpool_incarnations to mallory"],
        ["grant update (fenced), insert on txpool_incarnations to mallory"],
        ["grant app to mallory"],
        ["alter role mallory noinherit", "grant app to mallory"],
        ["alter role mallory superuser"],
        ["grant insert on txpool_incarnations to public"],
    ],
    ids=", ".join,
)
def test_32_a_lock_of_a_role_that_may_write_the_registry_counts(
    strangers: Strangers, gone: tuple[SqlLog, str], grants: list[str]
) -> None:
    log, name = gone
    with strangers.session("mallory") as other:
        other.execute(_TAKE.format(key_of(name)).encode())
        assert log.incarnations() == {name: IncarnationState.DEAD}
        strangers.admin(*grants)
        assert log.incarnations() == {name: IncarnationState.ALIVE}


def test_32_a_role_that_may_only_read_sees_who_lives(databases: Databases, strangers: Strangers) -> None:
    """That pg_stat_activity shows everybody the role of every session is what this rests on."""
    password = Secret(strangers.password)
    log = open_log(databases.url("one"), node=NODE, password=password, create=True)
    name = log.incarnation
    strangers.admin("grant select on all tables in schema public to app")
    other = open_log(strangers.url(), node=NODE, password=password)
    try:
        assert other.incarnations() == {name: IncarnationState.ALIVE}
        log.close()
        assert other.incarnations() == {name: IncarnationState.DEAD}
    finally:
        other.close()


def test_32_a_stranger_keeps_no_log_from_being_adopted(strangers: Strangers, gone: tuple[SqlLog, str]) -> None:
    _, name = gone
    with strangers.session("mallory") as mallory:
        mallory.execute(_TAKE.format(key_of(name)).encode())
        adopt_log(strangers.url(), node=NODE, password=Secret(strangers.password))


def test_32_a_stranger_keeps_no_log_from_being_made(strangers: Strangers, opened: Any) -> None:
    with strangers.session("mallory") as mallory:
        mallory.execute(_TAKE.format(0x7478706F6F6C).encode())
        log = opened(lock_timeout=1)
        log.record(gtrid_of(log), [])


# -- the tables ---------------------------------------------------------------------------------------------------

_PLANTED = (
    "create schema app",
    "grant all on schema app to public",
    "create table app.txpool_meta (name text primary key, value text not null)",
    "grant all on app.txpool_meta to public",
)


def opens(strangers: Strangers, **options: Any) -> None:
    open_log(strangers.url(), node=NODE, password=Secret(strangers.password), **options).close()


@pytest.mark.parametrize("create", [True, False])
def test_32_a_log_of_a_strangers_is_not_opened(strangers: Strangers, opened: Any, create: bool) -> None:
    """It stands first on the search path, and holds no decision."""
    log = opened()
    gtrid = gtrid_of(log)
    log.record(gtrid, [])
    names = [
        name
        for (name,) in strangers.databases.rows(
            "one", "select relname from pg_class where relname ~ '^txpool_.*[^y]$' and relkind = 'r'"
        )
    ]
    strangers.admin("grant select on all tables in schema public to mallory")
    strangers.does(
        "mallory", *_PLANTED[:2], *(f"create table app.{name} (like public.{name} including all)" for name in names)
    )
    strangers.does(
        "mallory",
        "insert into app.txpool_meta select * from public.txpool_meta",
        "grant all on all tables in schema app to public",
    )
    with pytest.raises(LogError, match=r"schema app belongs to mallory.*Nothing was done; drop it"):
        opens(strangers, create=create)
    assert strangers.databases.rows("one", "select count(*) from app.txpool_decisions") == [(0,)]
    assert decided(strangers.databases) == {gtrid}


def test_32_a_log_that_is_in_use_stays_where_it_is(strangers: Strangers, opened: Any) -> None:
    """What is made later in a schema before it on the search path holds its decisions for none of its connections."""
    log = opened()
    first, second = gtrid_of(log), gtrid_of(log, 2)
    log.record(first, [])
    strangers.does("mallory", "create schema app", "grant usage on schema app to public")
    strangers.admin("grant select on all tables in schema public to mallory")
    for name in TABLES:
        strangers.does("mallory", f"create table app.{name} (like public.{name} including all)")
    strangers.does("mallory", "grant all on all tables in schema app to public")
    log.record(second, [])
    log.finish(second)
    assert set(log.decisions()) == {first, second}
    assert log.finished() == {second}
    for name in ("decisions", "finished"):
        assert strangers.databases.rows("one", f"select count(*) from app.txpool_{name}") == [(0,)]  # type: ignore[arg-type]


def test_32_a_log_is_not_made_in_a_schema_of_a_strangers(strangers: Strangers) -> None:
    strangers.does("mallory", *_PLANTED[:2])
    with pytest.raises(LogError, match="schema app belongs to mallory"):
        opens(strangers, create=True)
    assert strangers.databases.rows("one", "select relname from pg_class where relname ~ '^txpool_'") == []


@pytest.mark.parametrize("create", [True, False])
def test_32_no_trigger_of_a_strangers_runs_in_the_log(strangers: Strangers, opened: Any, create: bool) -> None:
    opened().close()
    strangers.does("mallory", *EVIL)
    strangers.does("app", "grant trigger on txpool_incarnations to mallory")
    strangers.does(
        "mallory", "create trigger t before insert on txpool_incarnations for each row execute function evil.tell()"
    )
    message = r"trigger t of public\.txpool_incarnations calls function evil\.tell\(\), which belongs to mallory"
    with pytest.raises(LogError, match=message):
        log = open_log(strangers.url(), node=NODE, password=Secret(strangers.password), create=create)
        log.incarnation
    assert ran(strangers.databases) == []


def test_a_log_that_an_administrator_has_made_counts(databases: Databases, strangers: Strangers) -> None:
    open_log(databases.url("one"), node=NODE, password=Secret(strangers.password), create=True).close()
    strangers.admin("grant select, insert, update, delete on all tables in schema public to app")
    log = open_log(strangers.url(), node=NODE, password=Secret(strangers.password))
    log.record(gtrid_of(log), [])
    log.close()


def test_a_log_of_a_role_that_ours_is_a_member_of_counts(strangers: Strangers) -> None:
    strangers.admin("grant create on schema public to mallory", "grant mallory to app")
    open_log(strangers.url("mallory"), node=NODE, password=Secret(strangers.password), create=True).close()
    log = open_log(strangers.url(), node=NODE, password=Secret(strangers.password))
    log.record(gtrid_of(log), [])
    log.close()
    strangers.admin("revoke mallory from app", "grant all on all tables in schema public to app")
    with pytest.raises(LogError, match=r"table public\.txpool_\w+ belongs to mallory"):
        opens(strangers)
    # A superuser may do as mallory, and is no member of that role for it.
    with pytest.raises(LogError, match="belongs to mallory"):
        open_log(strangers.databases.url("one"), node=NODE, password=Secret(strangers.password))


def test_who_makes_a_log_at_the_same_time_is_waited_for(strangers: Strangers, opened: Any) -> None:
    with psycopg.connect(strangers.url(), password=strangers.password) as other:
        other.execute("create table txpool_meta (name text)")
        with pytest.raises(LogError, match="lock timeout"):
            opened(lock_timeout=0.3)
        other.rollback()
    assert opened().incarnation
