"""What a role that may connect somewhere on the server can put in the way of whoever lists what is prepared."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from recovery.cli import ExitCode
from tests.support.recovery_site import BOTH, WRITER, Site
from tests.support.strangers import Strangers
from txpool.resources.postgresql.log.holders import HELD_LEASES
from txpool.resources.postgresql.tables.trust import relation_faults, schema_faults, writers

MALLORY = "mallory"
_OTHER = "of_bytes"


@pytest.fixture
def bytes_database(site: Site) -> Iterator[str]:
    """A database of the server whose texts are bytes, and in which `mallory`, who owns nothing, may connect."""
    password = site.databases.server.password
    site.databases.execute("one", f"create role {MALLORY} login password '{password}'")  # type: ignore[arg-type]
    make = f"create database {_OTHER} encoding 'SQL_ASCII' locale 'C' template template0"
    site.databases.execute("one", make)  # type: ignore[arg-type]
    yield psycopg.conninfo.make_conninfo(site.databases.dsn("one"), dbname=_OTHER)
    with psycopg.connect(site.databases.dsn("one"), dbname=_OTHER, autocommit=True) as connection:
        connection.execute("set client_encoding to sql_ascii")
        ours = "select textsend(gid) from pg_prepared_xacts where database = current_database()"
        for (gid,) in connection.execute(ours).fetchall():
            connection.execute(b"rollback prepared '" + gid.replace(b"'", b"''") + b"'")
    site.databases.execute("one", f"drop database {_OTHER}")  # type: ignore[arg-type]
    site.databases.execute("one", f"drop role {MALLORY}")  # type: ignore[arg-type]


@pytest.mark.parametrize("tail", [b"\xff", b"\xc3", b"1:0:two:L\xc3", b"\\\xe9:'"])
def test_a_name_that_is_no_text_here_stops_nobody(site: Site, bytes_database: str, tail: bytes) -> None:
    site.killed(WRITER, *BOTH, failpoints="coordinator.prepared=kill")
    with psycopg.connect(bytes_database, user=MALLORY, client_encoding="sql_ascii", autocommit=True) as connection:
        connection.execute("begin")
        gid = b"txp1:etl-1:strange00000:" + tail
        connection.execute(b"prepare transaction '" + gid.replace(b"'", b"''") + b"'")
    scan = site.command("scan")
    assert scan.returncode == ExitCode.OK, scan.stdout + scan.stderr
    query = "select count(*) from pg_prepared_xacts where database <> %s"
    assert site.databases.rows("one", query, [_OTHER]) == [(0,)]


_BODY = "language plpgsql as $$ begin raise 'run as %', current_user; end $$"
_PLANTED = (
    f"function quote_ident(name) returns text {_BODY}",
    f"function to_jsonb(pg_auth_members) returns jsonb {_BODY}",
    f"function json_at(jsonb, jsonb) returns text {_BODY}",
    "operator ->> (leftarg = jsonb, rightarg = jsonb, function = json_at)",
    f"function joined(bigint, text) returns text {_BODY}",
    "operator || (leftarg = bigint, rightarg = text, function = joined)",
    f"function joined(text, oid) returns text {_BODY}",
    "operator || (leftarg = text, rightarg = oid, function = joined)",
    f"function step(text, text) returns text {_BODY}",
    "aggregate array_agg(text) (sfunc = step, stype = text, initcond = '')",
    f"function unnest(text[]) returns setof text {_BODY}",
    f"function format(text, name) returns text {_BODY}",
    f"function format(text, name, name) returns text {_BODY}",
    f"function format(text, regclass) returns text {_BODY}",
    f"function compared(oid, integer) returns boolean {_BODY}",
    "operator >= (leftarg = oid, rightarg = integer, function = compared)",
    f"function compared(oid, regclass) returns boolean {_BODY}",
    "operator = (leftarg = oid, rightarg = regclass, function = compared)",
    f"function has_any_column_privilege(oid, regclass, text) returns boolean {_BODY}",
)


def plant(strangers: Strangers) -> None:
    """In a schema that has the name of our role `mallory` makes what fits better than the server's own."""
    strangers.does(
        MALLORY,
        "create schema app",
        "grant usage on schema app to public",
        *(f"set search_path = app, pg_catalog; create {each}" for each in _PLANTED),
    )


def test_what_is_planted_in_the_search_path_is_not_run(strangers: Strangers, tmp_path: Path) -> None:
    """Neither by what every session asks, nor by who looks for branches, for locks, or for whose a table is."""
    site = Site(tmp_path, strangers.databases, store="sql")
    for name in BOTH:
        strangers.admin("grant insert on t to app", database=name)
        text = (tmp_path / f"{name}.properties").read_text()
        site.write(name, text.replace(f"//{site.databases.server.user}@", "//app@"))
    plant(strangers)
    site.killed(WRITER, *BOTH, failpoints="coordinator.prepared=kill")
    scan = site.command("scan")
    assert scan.returncode == ExitCode.OK, scan.stdout + scan.stderr
    assert site.databases.prepared() == []
    strangers.does("app", "create schema kept", "create table kept.it (id integer)")
    with strangers.session("app") as session:
        assert relation_faults(session.cursor(), ["kept.it"]) == []
        assert schema_faults(session.cursor(), "kept") == []
        assert writers(session.cursor(), ["kept.it"]) == []
        session.execute("create table kept.txpool_incarnations (lease bigint)")
        session.execute("set search_path = app, kept")
        session.execute("select pg_advisory_lock(7)")
        assert session.execute(f"with {HELD_LEASES} select * from held").fetchall() == [(7,)]
