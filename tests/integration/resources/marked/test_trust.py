"""Rule 32: a table of marks counts by who owns it, and by whose functions hang on it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest

from tests.integration.resources.marked.ledger import Ledger, new_gtrid
from tests.support.strangers import EVIL, Strangers, ran
from txpool.config.secrets import Secret
from txpool.config.settings import DataSourceSettings
from txpool.errors import OperationalError
from txpool.resources.driver.making import make_driver
from txpool.resources.marked.xids import Xids
from txpool.resources.postgresql.tables import trust

MINE = (
    "create table {} (xid varchar(64) primary key, transaction_manager_id varchar(64) not null, "
    "action_uid varchar(64) not null, kind varchar(6) not null, branches text not null, "
    "confirmed integer not null default 0, made_at timestamptz not null default now())"
)
IDENTITY = "insert into {} values ('txp1:identity', 'txp1', 'abcdefabcdef', 'abort', '')"


@pytest.fixture
def ledger(strangers: Strangers) -> Iterator[Ledger]:
    """A marked datasource of app's, without its table."""
    it = Ledger(settings(strangers), lambda query: strangers.databases.rows("one", query))
    yield it
    for raw in it.raws:
        raw.close()


def settings(strangers: Strangers, **options: Any) -> DataSourceSettings:
    given = {"name": "ledger", "driver": "psycopg", "mode": "cmr", "url": strangers.url()} | options
    return DataSourceSettings.load(password=Secret(strangers.password), **given)


def recovery(strangers: Strangers, **options: Any) -> Xids:
    """The table as recovery's own user has it."""
    return Xids("ledger", make_driver(settings(strangers, **options), recovery=True), nodes={"tests"})


def refused(ledger: Ledger, message: str) -> None:
    """Neither a transaction nor recovery goes by it."""
    for action in (
        ledger.marked,
        ledger.xids.create,
        ledger.xids.read,
        lambda: ledger.xids.tombstone(new_gtrid()),
        lambda: ledger.xids.delete([new_gtrid()]),
    ):
        with pytest.raises(OperationalError, match=message):
            action()


def planted(strangers: Strangers, *statements: str) -> None:
    """Mallory's table, which stands first on app's search path; all may do with it what they like."""
    strangers.does(
        "mallory",
        *EVIL,
        "create schema app",
        MINE.format("app.xids"),
        IDENTITY.format("app.xids"),
        *statements,
        "grant all on schema app to public",
        "grant all on all tables in schema app to public",
    )


def test_32_a_table_that_a_stranger_has_made_is_no_table_of_marks(strangers: Strangers, ledger: Ledger) -> None:
    planted(
        strangers,
        "insert into app.xids values ('txp1:tests:aaaaaaaaaaaa:1', 'tests', 'aaaaaaaaaaaa', 'commit', '[]')",
        "create trigger t before insert or update or delete on app.xids execute function evil.tell()",
    )
    refused(ledger, r"schema app belongs to mallory.*ALTER SCHEMA app OWNER TO app;")
    assert ran(strangers.databases) == []


@pytest.mark.costly
def test_32_nor_is_one_in_a_schema_of_ours(strangers: Strangers, ledger: Ledger) -> None:
    """As on clusters of before PostgreSQL 15, where everybody may create tables in public."""
    strangers.admin("grant create on schema public to mallory")
    strangers.does("mallory", *EVIL, MINE.format("public.xids"), "grant all on public.xids to public")
    refused(ledger, r"table public\.xids belongs to mallory.*ALTER TABLE public\.xids OWNER TO app;")


def test_32_nor_is_one_of_ours_in_a_schema_of_a_strangers(strangers: Strangers, ledger: Ledger) -> None:
    strangers.does("mallory", "create schema app", "grant all on schema app to public")
    with pytest.raises(OperationalError, match="schema app belongs to mallory"):
        ledger.xids.create()
    assert strangers.databases.rows("one", "select relname from pg_class where relname = 'xids'") == []


@pytest.mark.parametrize(
    ("statements", "message"),
    [
        (["create view {} as select * from public.base"], r"public\.xids is a view"),
        (["create table {} (like public.base) partition by list (xid)"], r"public\.xids is partitioned"),
    ],
)
def test_32_only_a_plain_table_counts(
    strangers: Strangers, ledger: Ledger, statements: list[str], message: str
) -> None:
    strangers.admin(MINE.format("public.base"), *(each.format("public.xids") for each in statements))
    strangers.admin("grant all on all tables in schema public to app")
    refused(ledger, message)


#: What hangs on a table that was a stranger's, and has been given to us.
HUNG = {
    "a trigger": ("create trigger t before insert on {} execute function evil.tell()", "trigger t"),
    "a rule": ("create rule r as on insert to {} do also select evil.value()", "rule r"),
    "a default": ("alter table {} alter confirmed set default evil.value()", "the default of column confirmed"),
    "a constraint": ("alter table {} add constraint c check (evil.value() = 1)", "constraint c"),
    "an index": ("create index i on {} ((evil.steady()))", "index"),
    "a policy": ("create policy p on {} using (evil.value() = 1)", "policy p"),
    "a domain": ("alter table {} alter confirmed type evil.number", "column confirmed"),
    "an operator": ("alter table {} add constraint c check (confirmed operator(evil.===) 1)", "constraint c"),
    "a generated column": ("alter table {} add more integer generated always as (evil.steady()) stored", "the default"),
    "a child": ("create table evil.child () inherits ({})", "public.xids has evil.child"),
}


@pytest.mark.parametrize("what", HUNG)
def test_32_nothing_of_a_strangers_hangs_on_it(strangers: Strangers, ledger: Ledger, what: str) -> None:
    statement, message = HUNG[what]
    strangers.admin("grant create on schema public to mallory")
    strangers.does(
        "mallory",
        *EVIL,
        "create function evil.steady() returns integer language sql immutable as 'select 1'",
        "create domain evil.number integer check (evil.value() = 1)",
        "create function evil.same(integer, integer) returns boolean language sql as 'select evil.value() = 1'",
        "create operator evil.=== (leftarg = integer, rightarg = integer, function = evil.same)",
        MINE.format("public.xids"),
        statement.format("public.xids"),
        "grant all on public.xids to public",
    )
    strangers.admin("alter table public.xids owner to app")
    refused(ledger, rf"{message}.* mallory")
    assert ran(strangers.databases) == []


def test_32_a_trigger_that_was_hung_by_leave_of_the_owner_is_none_of_ours(strangers: Strangers, ledger: Ledger) -> None:
    ledger.xids.create()
    strangers.does("mallory", *EVIL)
    strangers.does("app", "grant trigger on xids to mallory")
    strangers.does("mallory", "create trigger t before insert on public.xids for each row execute function evil.tell()")
    found = r"trigger t of public\.xids calls function evil\.tell\(\), which belongs to mallory"
    with pytest.raises(OperationalError, match=found + ".*DROP TRIGGER t ON public.xids;"):
        recovery(strangers).tombstone(new_gtrid())
    with pytest.raises(OperationalError, match=found):
        Xids("ledger", ledger.driver).mark(None, new_gtrid(), [], [])
    # One whose process has begun before that: what it does on a connection of its own sees it.
    with pytest.raises(OperationalError, match=found):
        ledger.xids.delete([new_gtrid()])
    assert ran(strangers.databases) == []
    strangers.admin("drop trigger t on public.xids")
    _, gtrid = ledger.decided()
    assert ledger.rows() == {gtrid: "commit"}


@pytest.mark.parametrize("owner", ["txpool", "app", "dba", "the database's"])
def test_what_ours_have_made_counts(strangers: Strangers, ledger: Ledger, owner: str) -> None:
    """An administrator, whoever owns the database, or a role that ours is a member of by way of another one."""
    if owner == "txpool":
        strangers.admin(MINE.format("public.xids"), "grant all on public.xids to app")
    elif owner == "app":
        ledger.xids.create()
    elif owner == "dba":
        strangers.admin("create role between", "create role dba", "grant dba to between", "grant between to app")
        strangers.admin(MINE.format("public.xids"), "alter table public.xids owner to dba")
    else:
        strangers.admin("create role dba", MINE.format("public.xids"), "alter table public.xids owner to dba")
        strangers.admin("alter database one owner to dba", "grant all on public.xids to app")
    try:
        ledger.xids.create()
        branch, gtrid = ledger.decided()
        assert recovery(strangers).tombstone(gtrid, branch.identity()).committed
    finally:
        strangers.admin("alter database one owner to txpool", "drop owned by mallory")
        strangers.admin(*(f"drop table if exists {table}" for table in ("xids",)), "drop role if exists between, dba")


def test_a_recovery_of_another_user_goes_by_the_applications_table(strangers: Strangers, ledger: Ledger) -> None:
    """And the application by that of recovery's user: the file names both."""
    ledger.xids.create()
    branch, gtrid = ledger.decided()
    own = {"recovery_user": "txpool", "recovery_password": Secret(strangers.password)}
    assert recovery(strangers, **own).tombstone(gtrid, branch.identity()).committed
    strangers.admin("alter table xids owner to mallory", "grant all on xids to app")
    own = {"recovery_user": "mallory", "recovery_password": Secret(strangers.password)}
    assert recovery(strangers, **own).tombstone(gtrid, branch.identity()).committed
    both = Xids("ledger", make_driver(settings(strangers, **own)))
    assert gtrid in {row.gtrid for row in both.read()}
    with pytest.raises(OperationalError, match=r"table public\.xids belongs to mallory"):
        ledger.xids.read()


@pytest.mark.parametrize(
    "how", ["grant app to mallory", "grant pg_monitor to app, mallory", "alter role app createrole"]
)
def test_32_who_is_related_otherwise_is_a_stranger(strangers: Strangers, ledger: Ledger, how: str) -> None:
    """A member of ours, one who has a bundle of rights in common with us, one that ours has made."""
    strangers.admin("grant create on schema public to mallory", how)
    owner = "mallory"
    if "createrole" in how:
        strangers.does("app", "create role made")
        owner = "made"
    strangers.admin(MINE.format("public.xids"), f"alter table public.xids owner to {owner}", "grant all on xids to app")
    refused(ledger, f"table public.xids belongs to {owner}")
    strangers.admin("drop table xids", "drop role if exists made")


def test_a_role_that_the_session_takes_on_counts(strangers: Strangers, ledger: Ledger) -> None:
    """ALTER ROLE … SET role: the tables are of the group, and so are those of whoever logs in."""
    strangers.admin("create role all_apps", "grant all_apps to app", "alter role app set role = all_apps")
    strangers.admin("grant all on schema public to all_apps", "grant all on all tables in schema public to all_apps")
    try:
        with closing(make_driver(settings(strangers)).connect()) as raw:
            assert raw.execute("select session_user, current_user").fetchone() == ("app", "all_apps")
        xids = Xids("ledger", make_driver(settings(strangers)))
        xids.create()
        assert strangers.databases.rows("one", "select tableowner from pg_tables where tablename = 'xids'") == [
            ("all_apps",)
        ]
        gtrid = new_gtrid()
        assert not xids.tombstone(gtrid, xids.identity(None)).committed
        strangers.admin("alter table xids owner to app", "grant all on xids to all_apps")
        assert [row.gtrid for row in xids.read()] == [gtrid]
    finally:
        strangers.admin("drop table if exists xids", "drop owned by all_apps", "drop role all_apps")


def test_it_costs_a_marked_transaction_nothing(
    strangers: Strangers, ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    ledger.xids.create()
    ledger.decided()
    monkeypatch.setattr(trust, "_RELATIONS", "nothing is asked any more")
    for _ in range(3):
        _, gtrid = ledger.decided()
        assert gtrid in ledger.rows()
