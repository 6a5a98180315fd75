"""A PostgreSQL server that is no place for branches, or that holds some already."""

from __future__ import annotations

import re
import socket
from pathlib import Path

import pytest

from tests.integration.check.place import PASSWORD, Place, checked, pooler_before, standby_of
from txpool.cli import TxpoolExitCode
from txpool.config.settings import RecoverySettings
from txpool.demo.server import EmbeddedPostgres
from txpool.setup.stores import initialise
from txpool.xid import make_gtrid, make_xid, new_incarnation


def test_a_server_that_does_not_wait_for_the_disk(place: Place) -> None:
    try:
        place.admin("ALTER SYSTEM SET fsync = off", "SELECT pg_reload_conf()")
        while not (found := checked(place.file()).about("durability")):
            pass  # the server reads its configuration again in its own time
        place.heal(found[0]["do"])
        while checked(place.file()).bad:
            pass
    finally:
        place.admin("ALTER SYSTEM RESET fsync", "SELECT pg_reload_conf()")
    assert [f["found"] for f in found] == ["fsync is off"]


def test_slots_that_are_all_taken(place: Place) -> None:
    with place.session() as connection:
        for number in range(12):
            connection.execute("begin")
            connection.execute(f"prepare transaction 'another product {number}'".encode())
            if number == 10:
                (nearly,) = checked(place.file()).about("slots")
                assert (nearly["severity"], nearly["found"][:41]) == (
                    "warning",
                    "1 of 12 prepared-transaction slots are fr",
                )
        answer = checked(place.file())
        for number in range(12):
            connection.execute(f"rollback prepared 'another product {number}'".encode())
    assert answer.bad == ["slots"]
    (slots,) = answer.about("slots")
    assert "all 12 prepared-transaction slots of the server are taken" in slots["found"]
    assert "FROM pg_prepared_xacts" in slots["do"]


def test_branches_that_are_left_over(place: Place) -> None:
    ours = make_xid(make_gtrid("etl-9", new_incarnation(), 1), 0, "orders").joined
    gids = ["another product's", ours]
    with place.session() as connection:
        for gid in gids:
            connection.execute("begin")
            connection.execute("prepare transaction '{}'".format(gid.replace("'", "''")).encode())
        young, old = checked(place.file()), checked(place.file(), "--old", "0")
        assert [connection.execute("select count(*) from pg_prepared_xacts").fetchone()] == [(2,)]
        for gid in gids:
            connection.execute("rollback prepared '{}'".format(gid.replace("'", "''")).encode())
    assert young.bad == []
    assert "2 branches are prepared in this database, none for 600 s" in young.about("left over")[0]["found"]
    assert old.bad == ["left over", "foreign"]
    assert re.search(rf"{re.escape(ours)} \(owner {place.user}, \d+ seconds\)", old.about("left over")[0]["found"])
    assert "recovery runs for node etl-9" in old.about("left over")[0]["do"]
    assert re.search(rf"another product's \(owner {place.user}, \d+ seconds\)", old.about("foreign")[0]["found"])
    assert "ROLLBACK PREPARED 'another product''s';" in old.about("foreign")[0]["do"]


def test_branches_of_another_role(place: Place) -> None:
    place.admin(f"CREATE ROLE {place.user}_old LOGIN PASSWORD '{place.server.password}'")
    place.admin(f"GRANT CONNECT ON DATABASE {place.database} TO {place.user}_old")
    gid = make_xid(make_gtrid("etl-9", new_incarnation(), 1), 0, "orders").joined
    with place.session(f"{place.user}_old") as connection:
        connection.execute("begin")
        connection.execute(f"prepare transaction '{gid}'".encode())
        answer = checked(place.file())
        connection.execute(f"rollback prepared '{gid}'".encode())
    (finding,) = answer.about("recovery", "wrong")
    assert f"were prepared by {place.user}_old, and recovery connects as {place.user}" in finding["found"]


def test_a_user_of_recovery_who_may_not_recover(place: Place) -> None:
    place.admin(f"CREATE ROLE {place.user}_rec LOGIN PASSWORD '{place.server.password}'")
    place.admin(f"GRANT CONNECT ON DATABASE {place.database} TO {place.user}_rec")
    path = place.file(f"recovery.user = {place.user}_rec\nrecovery.password = ${{env:{PASSWORD}}}")
    answer = checked(path)
    (finding,) = answer.about("recovery", "wrong")
    assert answer.bad == ["recovery"]
    assert finding["found"] == f"recovery.user {place.user}_rec cannot end what {place.user} has prepared"
    with place.session() as connection:
        assert connection.execute("select gid from pg_prepared_xacts").fetchall() == []
    place.heal(finding["do"])
    assert checked(path).bad == []


def test_a_pool_that_is_larger_than_its_role_may_have(place: Place) -> None:
    place.admin(f"ALTER ROLE {place.user} CONNECTION LIMIT 6")
    answer = checked(place.file())
    assert answer.bad == ["connections"]
    assert f"pool.max-size is 10, and {place.user} may have 6 connections" in answer.about("connections")[0]["found"]
    assert checked(place.file("pool.max-size = 5")).bad == []


def test_a_url_that_leaves_out_a_primary_which_only_reads_by_default(place: Place) -> None:
    place.admin(f"ALTER ROLE {place.user} SET default_transaction_read_only = on")
    answer = checked(place.file(url=f"{place.url}?target_session_attrs=read-write"))
    assert answer.code == TxpoolExitCode.UNREACHABLE
    assert "write target_session_attrs=primary" in answer.about("connection")[0]["do"]
    assert answer.about("connection")[0]["do"].endswith("SET default_transaction_read_only = off")


@pytest.mark.costly
def test_a_standby_and_its_primary(tmp_path: Path, careless: EmbeddedPostgres) -> None:
    place = Place(tmp_path, careless)
    assert careless.folder is not None
    folder = careless.folder / "standby"
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    with standby_of(careless, folder, port):
        answer = checked(place.file(mode="local", url=place.url.replace(f":{careless.port}/", f":{port}/")))
        primary = checked(place.file(mode="local"))
    assert answer.code == TxpoolExitCode.WRONG
    assert answer.bad == ["standby"]
    assert answer.about("standby")[0]["found"] == "this server is a standby, which can only be read"
    assert "target_session_attrs=read-write" in answer.about("standby")[0]["do"]
    assert primary.bad == ["durability", "durability"]
    assert (
        "standbys that stream from it: 1; and synchronous_standby_names is empty"
        in primary.about("durability")[1]["found"]
    )


@pytest.mark.costly
def test_a_pooler_in_between(place: Place) -> None:
    with pooler_before(place.server) as port:
        url = place.url.replace(f":{place.server.port}/", f":{port}/")
        answer = checked(place.file(url=url))
        place.write("txpool", f"node.name = a\nlog.url = {url}\nlog.password = ${{env:{PASSWORD}}}")
        initialise(RecoverySettings.load(place.folder / "txpool.properties"))
        log = checked(place.folder / "txpool.properties")
    assert (answer.code, answer.bad) == (TxpoolExitCode.WARNING, ["pooler"])
    assert answer.about("recovery", "ok")  # what works through it was tried
    assert (log.code, log.bad) == (TxpoolExitCode.WRONG, ["pooler"])
    assert log.about("pooler")[0]["do"] == "let log.url lead to the server itself"


def test_nobody_there(tmp_path: Path, server: EmbeddedPostgres) -> None:
    place = Place(tmp_path, server)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        (refused,) = checked(place.file(url=f"postgresql://app@127.0.0.1:{taken.getsockname()[1]}/x")).about(
            "connection"
        )
        taken.listen()
        silent = place.file("driver.connect_timeout = 2", url=f"postgresql://app@127.0.0.1:{taken.getsockname()[1]}/x")
        (timeout,) = checked(silent).about("connection")
    (unknown,) = checked(place.file(url="postgresql://app@nosuch.invalid/x")).about("connection")
    assert "nothing listens there" in refused["do"]
    assert "firewalls" in timeout["do"]
    assert "no such host is known here" in unknown["do"]


@pytest.mark.costly
def test_functions_that_leave_something_in_the_session(place: Place) -> None:
    bodies = {
        "setof record": [
            "select pg_advisory_lock(7)",
            "select set_config('a.b', 'c', false)",
            "select pg_advisory_xact_lock(7)",
            "select set_config('a.b', 'c', true)",
        ],
        "void": [
            "begin create temp table stage (); end",
            "begin create temp table stage () on commit drop; end",
        ],
    }
    with place.session() as connection:
        for kind, language in (("setof record", "sql"), ("void", "plpgsql")):
            for number, body in enumerate(bodies[kind]):
                head = f"create function {language}{number}() returns {kind} language {language}"
                connection.execute(f"{head} as $f$ {body} $f$".encode())
    answer = checked(place.file())
    assert answer.bad == ["session"]
    (found,) = answer.about("session", "warning")
    assert found["found"].endswith(": public.plpgsql0, public.sql0, public.sql1")
    assert "pool.reset = always" in found["do"]
    assert checked(place.file("pool.reset = always")).bad == []


def test_who_may_create_in_the_search_path(place: Place) -> None:
    with place.session() as connection:
        connection.execute("create schema shared")
        connection.execute("grant create on schema shared to public")
        assert checked(place.file()).bad == []
        connection.execute(f"alter role {place.user} set search_path = shared, public".encode())
        answer = checked(place.file())
        assert answer.bad == ["search path"]
        (found,) = answer.about("search path", "warning")
        assert found["found"] == "everybody may create in schema shared, which is on the search path"
        connection.execute(found["do"].encode())
        assert checked(place.file()).bad == []
