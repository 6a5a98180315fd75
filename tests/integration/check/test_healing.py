"""What is right, what SQL has broken, and the advice that heals it."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from tests.integration.check.place import Place, checked
from txpool.cli import TxpoolExitCode, app
from txpool.config.settings import RecoverySettings
from txpool.demo.server import EmbeddedPostgres
from txpool.setup.stores import initialise

pytestmark = pytest.mark.part(2)


def mark(place: Place) -> Path:
    """A marked datasource whose table is right."""
    path = place.file(mode="cmr")
    recovery = place.write("recovery", "node.name = etl-1\nlog.url = sqlite:///txlog\ndatasources = orders.properties")
    assert all(step.done for step in initialise(RecoverySettings.load(recovery)))
    return path


def test_nothing_is_wrong_where_nothing_is(place: Place) -> None:
    answer = checked(place.file())
    assert (answer.code, answer.bad) == (TxpoolExitCode.OK, [])
    assert [f["topic"] for f in answer.findings] == [
        "file",
        "version",
        "clock",
        "slots",
        "left over",
        "recovery",
    ]
    with place.session() as connection:
        assert connection.execute("select gid from pg_prepared_xacts").fetchall() == []


def test_nothing_is_wrong_with_a_whole_configuration(place: Place) -> None:
    mark(place)
    place.file(name="other")
    place.write("ledger", "driver = sqlite3\nmode = cmr\nurl = sqlite:///ledger.db")
    conf = place.write(
        "recovery",
        "node.name = etl-1\nlog.url = sqlite:///txlog\n"
        "datasources = orders.properties, other.properties, ledger.properties",
    )
    assert all(step.done for step in initialise(RecoverySettings.load(conf)))
    answer = checked(conf)
    assert answer.bad == []
    assert {"log", "slots", "marks", "write"} <= {f["topic"] for f in answer.findings}
    if not answer.about("storage", "warning"):
        assert answer.code == TxpoolExitCode.OK


def test_it_is_read_by_people_too(place: Place) -> None:
    place.admin(f"ALTER ROLE {place.user} SET synchronous_commit = off")
    result = CliRunner().invoke(app, ["check", str(place.file())])
    assert f"warning: synchronous_commit is off for {place.user}" in result.stdout
    assert f"do:  ALTER ROLE {place.user} RESET synchronous_commit;" in result.stdout
    assert result.exit_code == TxpoolExitCode.WARNING


# What breaks it (statements of an administrator), the mode, the severity and topic of the answer, and what it says.
BROKEN = {
    "a role that may only read": (
        ["ALTER ROLE {user} SET default_transaction_read_only = on"],
        ("xa", "wrong", "read-only", "default_transaction_read_only is on"),
    ),
    "a database that may only be read": (
        ["ALTER DATABASE {database} SET default_transaction_read_only = on"],
        ("cmr", "wrong", "read-only", "default_transaction_read_only is on"),
    ),
    "no durable commit for a role": (
        ["ALTER ROLE {user} SET synchronous_commit = off"],
        ("xa", "warning", "durability", "synchronous_commit is off for {user} in {database} (from: user)"),
    ),
    "no durable commit in a database": (
        ["ALTER DATABASE {database} SET synchronous_commit = off"],
        ("xa", "warning", "durability", "synchronous_commit is off for {user} in {database} (from: database)"),
    ),
    "no durable commit for a role in a database": (
        ["ALTER ROLE {user} IN DATABASE {database} SET synchronous_commit = off"],
        ("cmr", "warning", "durability", "(from: database user)"),
    ),
    "transactions that are cut": (
        ["ALTER ROLE {user} SET idle_in_transaction_session_timeout = '5s'"],
        ("xa", "warning", "timeout", "idle_in_transaction_session_timeout is 5000 ms"),
    ),
    "statements that are cut": (
        ["ALTER DATABASE {database} SET statement_timeout = '400ms'"],
        ("xa", "warning", "timeout", "statement_timeout is 400 ms"),
    ),
    "locks that are not waited for": (
        ["ALTER ROLE {user} SET lock_timeout = '10ms'"],
        ("xa", "warning", "timeout", "lock_timeout is 10 ms"),
    ),
    "a listing that nobody may read": (
        ["REVOKE SELECT ON pg_catalog.pg_prepared_xacts FROM public"],
        ("xa", "wrong", "listing", "{user} may not read pg_prepared_xacts"),
    ),
    "a server that nobody may identify": (
        ["REVOKE EXECUTE ON FUNCTION pg_control_system() FROM public"],
        ("xa", "warning", "identity", "{user} may not read the server's system identifier"),
    ),
    "transactions that nobody may ask about": (
        ["REVOKE EXECUTE ON FUNCTION pg_xact_status(xid8) FROM public"],
        ("xa", "warning", "status", "{user} may not ask what became of a transaction"),
    ),
    "no right to connect": (
        ["REVOKE CONNECT ON DATABASE {database} FROM public, {user}"],
        ("xa", "wrong", "connection", "permission denied for database"),
    ),
    "a role that may not log in": (
        ["ALTER ROLE {user} NOLOGIN"],
        ("xa", "wrong", "connection", "is not permitted to log in"),
    ),
    "another password": (
        ["ALTER ROLE {user} PASSWORD 'another'"],
        ("xa", "wrong", "connection", "password authentication failed"),
    ),
    "no such database": (
        ["ALTER DATABASE {database} RENAME TO {database}_old"],
        ("xa", "wrong", "connection", 'database "{database}" does not exist'),
    ),
    "no connection left": (
        ["ALTER ROLE {user} CONNECTION LIMIT 0"],
        ("xa", "wrong", "connection", "too many connections for role"),
    ),
    "unlogged marks": (
        ["ALTER TABLE xids SET UNLOGGED"],
        ("cmr", "wrong", "table", "public.xids is unlogged"),
    ),
    "marks without a key": (
        ["ALTER TABLE xids DROP CONSTRAINT xids_pkey", "CREATE INDEX ON xids (xid)"],
        ("cmr", "wrong", "table", "public.xids has no unique key on xid alone"),
    ),
    "marks that may not be written": (
        ["ALTER TABLE xids OWNER TO txpool", "GRANT SELECT, INSERT ON xids TO {user}"],
        ("cmr", "wrong", "privileges", "{user} may not UPDATE, DELETE on public.xids"),
    ),
    "marks that are hidden by policies": (
        ["ALTER TABLE xids ENABLE ROW LEVEL SECURITY", "ALTER TABLE xids FORCE ROW LEVEL SECURITY"],
        ("cmr", "wrong", "table", "row-level security applies to {user} on public.xids"),
    ),
    "marks of a stranger's": (
        ["CREATE ROLE {user}_x", "ALTER TABLE xids OWNER TO {user}_x", "GRANT ALL ON xids TO {user}"],
        ("cmr", "wrong", "owner", "table public.xids belongs to {user}_x"),
    ),
    "marks in a schema of a stranger's": (
        ["CREATE ROLE {user}_x", "ALTER SCHEMA public OWNER TO {user}_x", "GRANT ALL ON SCHEMA public TO {user}"],
        ("cmr", "wrong", "owner", "schema public belongs to {user}_x"),
    ),
    "a stranger's trigger on marks": (
        [
            "CREATE ROLE {user}_x",
            "CREATE FUNCTION f() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NEW; END'",
            "ALTER FUNCTION f() OWNER TO {user}_x",
            "CREATE TRIGGER t BEFORE INSERT ON xids EXECUTE FUNCTION f()",
        ],
        ("cmr", "wrong", "owner", "trigger t of public.xids calls function f(), which belongs to {user}_x"),
    ),
    "marks that everybody may write": (
        ["GRANT INSERT, UPDATE (kind) ON xids TO public"],
        ("cmr", "wrong", "grants", "everybody may INSERT, UPDATE on public.xids"),
    ),
    "marks that others may write": (
        ["CREATE ROLE {user}_x", "GRANT DELETE, TRIGGER ON xids TO {user}_x"],
        ("cmr", "warning", "grants", "{user}_x may DELETE, TRIGGER on public.xids"),
    ),
    "a stranger's schema for Spark": (
        ["CREATE ROLE {user}_x", "CREATE SCHEMA txpool_spark AUTHORIZATION {user}_x"],
        ("xa", "wrong", "owner", "schema txpool_spark belongs to {user}_x"),
    ),
    "a stranger's records of Spark": (
        [
            "CREATE ROLE {user}_x",
            "CREATE SCHEMA txpool_spark",
            "GRANT USAGE ON SCHEMA txpool_spark TO public",
            "CREATE TABLE txpool_spark.writes (n int)",
            "ALTER TABLE txpool_spark.writes OWNER TO {user}_x",
        ],
        ("xa", "wrong", "owner", "table txpool_spark.writes belongs to {user}_x"),
    ),
    "a database for everybody": (
        ["GRANT CONNECT ON DATABASE {database} TO public"],
        ("xa", "warning", "connect", "every role of the server may connect to {database}"),
    ),
    "a marked database for everybody": (
        ["GRANT CONNECT ON DATABASE {database} TO public"],
        ("cmr", "warning", "connect", "every role of the server may connect to {database}"),
    ),
}


#: What else is found, since it is on the search path.
ALSO = {"marks in a schema of a stranger's": ["search path"]}


@pytest.mark.parametrize("what", BROKEN)
def test_what_sql_has_broken_its_advice_heals(place: Place, what: str) -> None:
    breaking, (mode, severity, topic, found) = BROKEN[what]
    names = {"user": place.user, "database": place.database}
    path = mark(place) if mode == "cmr" else place.file()
    assert checked(path).bad == []
    outside = "postgres" if topic == "connection" else None  # of a database that nobody may enter
    place.admin(*(statement.format(**names) for statement in breaking), database=outside)

    answer = checked(path)
    assert answer.bad == [topic, *ALSO.get(what, ())]
    (finding,) = (f for f in answer.about(topic) if f["severity"] != "ok")
    assert finding["severity"] == severity
    assert found.format(**names) in finding["found"]
    codes = {
        "warning": TxpoolExitCode.WARNING,
        "wrong": TxpoolExitCode.UNREACHABLE if topic == "connection" else TxpoolExitCode.WRONG,
    }
    assert answer.code == codes[severity]

    place.heal(finding["do"], database=outside)
    assert checked(path).about(topic, severity) == []


def test_no_two_of_these_answers_are_alike() -> None:
    answers = [answer for _, answer in BROKEN.values()]
    assert len(set(answers)) == len(answers)


@pytest.mark.costly
def test_a_server_that_cannot_prepare(tmp_path: Path, careless: EmbeddedPostgres) -> None:
    place = Place(tmp_path, careless)
    answer = checked(place.file())
    (slots,) = answer.about("slots", "wrong")
    assert slots["found"] == "max_prepared_transactions is 0"
    assert (
        slots["do"]
        == "start the server with -c max_prepared_transactions=100, or write mode = cmr, which needs no slots"
    )
    (pages,) = answer.about("durability", "warning")
    assert pages["found"] == "full_page_writes is off"
    assert pages["do"] == "start the server with -c full_page_writes=on"
    assert answer.code == TxpoolExitCode.WRONG
    # The advice is right: marked, nothing is wrong but the pages.
    assert checked(mark(place)).bad == ["durability"]


def test_marks_that_are_none(place: Place) -> None:
    path = place.file(mode="cmr")
    (missing,) = checked(path).about("table")
    assert missing["found"] == f"there is no table xids that {place.user} can see"
    assert "`txpool-recovery init`" in missing["do"]
    place.admin("CREATE VIEW xids AS SELECT 1 AS xid")
    assert checked(path).about("table")[0]["found"] == "public.xids is a view"
    place.admin("DROP VIEW xids", "CREATE TABLE xids (xid text PRIMARY KEY, transactionManagerID text, actionuid text)")
    (foreign,) = checked(path).about("table")
    assert foreign["found"].startswith("public.xids has no column transaction_manager_id, action_uid, kind, branches")
    place.heal(foreign["do"])
    assert checked(mark(place)).bad == []
