"""Nothing that a stranger plants in the search path runs as an application, an administrator or recovery."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

import psycopg
import pytest

from tests.integration.planted.site import (
    ALL_MODES,
    ANY,
    CRASHES,
    DATABASES,
    WAITS,
    WATCHED,
    PlantedSite,
    require_nothing_called,
    unqualified,
)
from tests.support.planted import plant
from tests.support.server_log import Call, LoggedPostgres, Message, ServerLog, calls
from tests.support.strangers import Strangers

if TYPE_CHECKING:
    from tests.conftest import Require

pytestmark = pytest.mark.slow
#: Where `mallory` may create, and the search path of the others: by default pg_catalog comes before all that it names.
PLACES = {
    "public": (["public"], ""),
    "schemas named as the roles": (["public", *WATCHED], ""),
    "before the catalogue": (["public", *WATCHED], '"$user", public, pg_catalog'),
}


@pytest.fixture(scope="module")
def postgres(require: Require) -> Iterator[LoggedPostgres]:
    """A server of its own, whose log tells what it has understood."""
    with LoggedPostgres() as server:
        yield server


@pytest.mark.costly
def test_a_long_message_is_whole_in_the_log(postgres: LoggedPostgres) -> None:
    """Many sessions log at once what is longer than a pipe takes at once."""
    log = ServerLog(postgres)

    def say(letter: str) -> None:
        with closing(psycopg.connect(postgres.dsn("one"), autocommit=True)) as session:
            session.execute(
                f"do $$ begin for n in 1..20 loop raise log '%', repeat('{letter}', 50000); end loop; end $$"
            )

    with ThreadPoolExecutor(8) as threads:
        list(threads.map(say, "abcdefgh"))
    said = Counter(each.text for each in log.messages() if len(each.text) > 1000)
    assert said == {50_000 * letter: 20 for letter in "abcdefgh"}


@pytest.fixture
def keeper(strangers: Strangers) -> Iterator[Strangers]:
    """A superuser, as which recovery works."""
    it = strangers
    it.admin(f"create role keeper superuser login password '{it.password}'", "grant app to keeper")
    for database in DATABASES:
        it.admin("grant create on schema public to mallory", database=database)
    yield it
    for database in DATABASES:
        it.databases.rows(
            database, "select pg_terminate_backend(pid, 5000) from pg_stat_activity where usename = 'keeper'"
        )
        it.admin("drop owned by keeper cascade", database=database)
    it.admin("drop role keeper")


def everything(site: PlantedSite) -> list[Message]:
    """Every command and mode, as application, administrator and recovery."""
    log = site.reading()
    for who in ("", "keeper-"):
        site.recovery("init", who=who)
    site.run("-c", ALL_MODES)
    site.run("-c", CRASHES, "one", "two", failpoints="coordinator.prepared=kill", exits=(-9,))
    assert "waits for a lock that a prepared branch holds" in site.run("-c", WAITS).stderr
    for point in ("coordinator.prepared=kill", "branch.commit-sent=kill"):
        for names in (["one", "two"], ["one", "rows"], ["one", "two", "marked"]):
            site.run("-c", CRASHES, *names, failpoints=point, exits=(-9,))
    for who in ("", "keeper-"):
        listed = site.recovery("list", "--json", exits=ANY, who=who)
        for gtrid in dict.fromkeys(re.findall(r'"gtrid": "([^"]+)"', listed)):
            site.recovery("show", gtrid, exits=ANY, who=who)
            site.recovery("rollback", gtrid, "--yes", exits=ANY, who=who)
            site.recovery("commit", gtrid, "--yes", exits=ANY, who=who)
        site.recovery("suspend", who=who)
        site.recovery("resume", who=who)
        site.recovery("scan", exits=ANY, who=who)
        site.recovery("list", "--expired", exits=ANY, who=who)
        site.recovery("audit", who=who)
        site.recovery("forget", "txp1:etl-1:none:0", "--yes", exits=ANY, who=who)
        for name in ("one", "two", "rows", "marked", "local", "joining", "fresh", "txpool", "recovery"):
            site.run("-m", "txpool", "check", f"{who}{name}.properties", exits=ANY)
    return log.messages()


_ESCALATES = (
    "create function public.escalate() returns void language plpgsql as $$ begin "
    "if (select usesuper from pg_catalog.pg_user where usename = current_user) "
    "then alter role mallory superuser; end if; end $$"
)
_PLANTED = {
    "a function": ["function public.format(text, name, name) returns text", "pg_catalog.format($1, $2, $3)"],
    "an operator": ["function public.same(oid, regclass) returns boolean", "$1 = $2::oid"],
}


@pytest.mark.costly
@pytest.mark.parametrize("what", _PLANTED)
def test_recovery_makes_no_stranger_a_superuser(tmp_path: Path, keeper: Strangers, what: str) -> None:
    """Before it trusts a table, it has to find that."""
    site = PlantedSite(tmp_path, keeper, fresh=False)
    site.recovery("init")
    header, value = _PLANTED[what]
    keeper.does(
        "mallory",
        _ESCALATES,
        f"create {header} language plpgsql as $$ begin perform public.escalate(); return {value}; end $$",
    )
    if what == "an operator":
        keeper.does("mallory", "create operator public.= (leftarg = oid, rightarg = regclass, function = public.same)")
    site.run("-c", CRASHES, "one", "marked", failpoints="coordinator.prepared=kill", exits=(-9,))
    site.recovery("scan", exits=ANY)
    assert keeper.databases.rows("one", "select rolsuper from pg_roles where rolname = 'mallory'") == [(False,)]


@pytest.fixture(scope="module")
def used() -> set[Call]:
    """What txpool's statements call: found by the first test of this module, for all."""
    return set()


@pytest.mark.costly
@pytest.mark.parametrize("place", PLACES)
def test_no_command_and_no_mode_calls_what_is_planted(
    tmp_path: Path, keeper: Strangers, used: set[Call], place: str
) -> None:
    schemas, path = PLACES[place]
    if not used:
        used |= found_in_the_log(tmp_path, keeper)
    folder = tmp_path / "planted"
    folder.mkdir()
    site = PlantedSite(folder, keeper, fresh=False)
    if schemas != ["public"]:  # what is made without a schema would be made in a stranger's, and refused
        site.recovery("init")
    print(plant(keeper, used, schemas, DATABASES))
    site = PlantedSite(folder, keeper)
    site.watch(path=path)
    require_nothing_called(everything(site))


def found_in_the_log(tmp_path: Path, keeper: Strangers) -> set[Call]:
    folder = tmp_path / "watched"
    folder.mkdir()
    site = PlantedSite(folder, keeper)
    site.watch()
    messages = everything(site)
    assert unqualified(messages) == []
    found = calls(messages)
    print(f"{len({each.statement for each in messages})} statements call {len(found)}")
    assert len(found) > 50
    again(keeper)
    return found


def again(strangers: Strangers) -> None:
    """Nothing is left of the first time."""
    for database in DATABASES:
        for (gid,) in strangers.databases.rows(
            database, "select gid from pg_prepared_xacts where database = current_database()"
        ):
            strangers.admin(f"rollback prepared '{gid}'", database=database)
        strangers.admin(
            "drop schema public cascade",
            "drop schema if exists txpool_spark cascade",
            "create schema public",
            "grant usage on schema public to public",
            "grant create on schema public to app, mallory",
            database=database,
        )
