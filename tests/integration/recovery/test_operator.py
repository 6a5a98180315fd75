"""What an operator has: the real command over real databases, suspended daemons, other roles, JSON, 80 columns."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg import sql

from recovery.cli import ExitCode
from recovery.operator.audit import AuditEntry
from recovery.operator.listing import InDoubt
from recovery.operator.suspension import Suspension
from recovery.scan.modules.expiry import Expired
from recovery.scan.report import ScanReport
from tests.support.recovery_site import BOTH, DAEMON, PASSWORD, WRITER, Site, end, lines_until, prepare
from txpool.setup.stores import Step
from txpool.xid import make_gtrid, make_xid

pytestmark = pytest.mark.part(2)

PENDING = "coordinator.prepared=kill"
DECIDED = "coordinator.decided=kill"


def gtrid_in(site: Site) -> str:
    with closing(site.manager()) as manager:
        (found,) = manager.in_doubt()
    return found.gtrid


def scan(site: Site, times: int = 1) -> None:
    with closing(site.manager()) as manager:
        for _ in range(times):
            manager.scan()


def names_of(kind: type) -> list[str]:
    return [field.name for field in dataclasses.fields(kind)]


# -- suspended ----------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("store", ["sqlite", "sql"])
def test_a_suspended_daemon_does_nothing_restarts_included_until_it_is_resumed(
    tmp_path: Path, databases: Any, store: str
) -> None:
    site = Site(tmp_path, databases, store=store)
    site.host("recovery", period="0.05")
    process = site.process(DAEMON)
    try:
        lines_until(process, "recovery runs with")
        suspended = site.command("suspend", "--reason", "the disk is replaced", "--json")
        assert suspended.returncode == ExitCode.OK, suspended.stderr
        assert [*json.loads(suspended.stdout)] == names_of(Suspension)
        lines_until(process, "is suspended since")
        site.killed(WRITER, *BOTH, failpoints=DECIDED)
        process.terminate()
        _, rest = process.communicate(timeout=600)
        assert process.returncode == 0, rest
        # The last scan's sessions may have been ended together with the killed process's.
        assert "is suspended since" in rest or "its last scan failed" in rest
        assert len(databases.prepared()) == 2
        process = site.process(DAEMON)
        lines = lines_until(process, "is suspended since")
        assert "the disk is replaced" in lines[-1]
        refused = site.command("scan")
        assert refused.returncode == ExitCode.REFUSED
        assert "is suspended since" in refused.stdout
        assert site.command("resume").returncode == ExitCode.OK
        lines_until(process, "forgot")
        assert site.counts() == {"one": 1, "two": 1, "ledger": 0}
    finally:
        process.kill()
        process.communicate()


# -- what was done by hand ----------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_person_is_shown_what_it_is_about_and_asked(site: Site) -> None:
    site.killed(WRITER, *BOTH, failpoints=PENDING)
    gtrid = gtrid_in(site)
    refused = site.command("rollback", gtrid, "--reason", "no", answer="n\n")
    assert refused.returncode == ExitCode.REFUSED
    for branch in site.databases.prepared():
        assert branch in refused.stderr
    assert len(site.databases.prepared()) == 2
    assert json.loads(site.command("audit", "--json").stdout) == []
    assert site.command("rollback", gtrid, "--reason", "ticket 7", answer="y\n").returncode == ExitCode.OK
    assert site.databases.prepared() == []
    (entry,) = json.loads(site.command("audit", "--json").stdout)
    assert [*entry] == names_of(AuditEntry)
    assert (entry["command"], entry["gtrid"], entry["reason"]) == ("rollback", gtrid, "ticket 7")
    assert entry["outcome"] == "done: 2 rolled back"
    assert "ticket 7" in site.command("audit").stdout
    assert "ticket 7" in site.command("show", gtrid).stdout


def test_a_deed_that_did_nothing_is_told_as_that(site: Site) -> None:
    site.killed(WRITER, *BOTH, failpoints=DECIDED)
    gtrid = gtrid_in(site)
    (gid,) = [gid for gid in site.databases.prepared() if ":one:" in gid]
    end(site, "one", "commit", gid)
    site.write("two", (site.folder / "two.properties").read_text().replace("/two", "/one").strip())
    assert site.command("commit", gtrid, "--yes").returncode == ExitCode.IN_DOUBT
    (entry,) = json.loads(site.command("audit", "--json").stdout)
    assert entry["outcome"].startswith("unfinished: 1 left alone; two: two leads to another database")
    assert len(site.databases.prepared()) == 1


@pytest.mark.slow
def test_a_heuristic_outcome_is_shown_branch_by_branch_and_resolved_by_a_person(site: Site) -> None:
    site.killed(WRITER, *BOTH, failpoints=DECIDED)
    gtrid = gtrid_in(site)
    (gid,) = [gid for gid in site.databases.prepared() if ":two:" in gid]
    end(site, "two", "rollback", gid)
    first = site.command("commit", gtrid, "--yes", "--json")
    assert first.returncode == ExitCode.HEURISTIC, first.stderr
    assert [each["datasource"] for each in json.loads(first.stdout)["heuristics"]] == ["two"]
    shown = json.loads(site.command("show", gtrid, "--json").stdout)
    assert (gid, "two", "ended rolled back") in [
        (branch["gid"], branch["datasource"], branch["state"]) for branch in shown["branches"]
    ]
    assert shown["ends"] == {"one": "committed", "two": "rolled back"}
    assert [(each["command"], each["outcome"]) for each in shown["history"]] == [
        ("commit", "done: 1 committed, 1 forgotten, 1 heuristic")
    ]
    refused = site.command("rollback", gtrid, "--yes")
    assert refused.returncode == ExitCode.REFUSED
    assert "forget" in refused.stderr
    scanned = site.command("scan")
    assert scanned.returncode == ExitCode.OK
    assert "heuristic" not in scanned.stderr, "it is no news"
    assert site.kept() == {"heuristics": 1}
    assert site.command("forget", gtrid, answer="n\n").returncode == ExitCode.REFUSED
    assert site.kept() == {"heuristics": 1}
    forgotten = site.command("forget", gtrid, "--json", "--reason", "row 1 written by hand", answer="y\n")
    assert (forgotten.returncode, json.loads(forgotten.stdout)) == (ExitCode.OK, {"gtrid": gtrid, "forgotten": 1})
    assert site.kept() == {}


# -- expired ------------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("store", ["sqlite", "sql"])
def test_what_has_expired_is_listed_and_a_late_branch_of_it_is_swept(
    tmp_path: Path, databases: Any, store: str
) -> None:
    site = Site(tmp_path, databases, store=store)
    site.conf.write_text(site.conf.read_text() + "recovery.expiry.interval = 1ms\n")
    site.killed(WRITER, *BOTH, failpoints=DECIDED)
    gtrid = gtrid_in(site)
    (gid,) = [gid for gid in databases.prepared() if ":two:" in gid]
    end(site, "two", "rollback", gid)
    scan(site, times=5)
    assert site.kept() == {}
    listed = site.command("list")
    assert "have expired unresolved: 1" in listed.stderr
    assert listed.returncode == ExitCode.HEURISTIC, "the alarm stands until somebody forgets it"
    gone = site.command("list", "--expired", "--json")
    noted, incarnation = json.loads(gone.stdout)
    assert [*noted] == names_of(Expired)
    assert (noted["kind"], noted["name"], noted["heuristics"][0]["datasource"]) == ("heuristic", gtrid, "two")
    assert (incarnation["kind"], incarnation["name"]) == ("incarnation", gtrid.split(":")[2])
    late = make_xid(gtrid[:-1] + "z", 0, "one").joined
    prepare(site, "one", late)
    with closing(site.manager()) as manager:
        assert "fenced" in manager.in_doubt()[0].standing
        manager.scan()
        assert databases.prepared() == []
        assert manager.forget(gtrid) == 1
        assert [each.kind for each in manager.expired()] == []


#: A service. Somebody rolls the branch in two back by hand, after the decision. One also gives no answer to its commit.
SERVICE = """
    import signal, sys
    import psycopg
    from txpool import failpoints
    from txpool.datasource import connect
    from txpool.errors import Error
    from txpool.tm.manager import configure
    from txpool.tm.demarcation.block import transaction

    def rolls_back_by_hand():
        with psycopg.connect(sys.argv[1], autocommit=True) as two:
            two.execute(f"rollback prepared '{tx.gtrid}:1:two:L'")
        with psycopg.connect(sys.argv[2], autocommit=True) as one:
            query = "select pg_terminate_backend(pid, 60000) from pg_stat_activity where pid <> pg_backend_pid()"
            one.execute(f"{query} and datname = 'one'")

    configure("txpool.properties")
    failpoints.arm("coordinator.decided", rolls_back_by_hand)
    try:
        with transaction() as tx:
            for name in ("one", "two"):
                connect(f"{name}.properties").cursor().execute("insert into t values (1)")
    except Error as error:
        print(type(error).__name__, flush=True)
    failpoints.disarm()
    with transaction():
        for name in ("one", "two"):
            connect(f"{name}.properties").cursor().execute("insert into t values (2)")
    print("goes on", flush=True)
    signal.pause()
"""


@pytest.mark.slow
def test_a_heuristic_outcome_of_a_living_service_expires(site: Site) -> None:
    site.conf.write_text(site.conf.read_text() + "recovery.expiry.interval = 1ms\n")
    service = site.process(SERVICE, site.databases.dsn("two"), site.databases.dsn("one"))
    try:
        assert service.stdout.readline() == "HeuristicMixed\n", service.stderr.read()
        assert service.stdout.readline() == "goes on\n", service.stderr.read()
        scan(site, times=5)
        kept = site.kept()
        assert (kept.get("finished"), kept.get("heuristics")) == (1, None)
        gone = json.loads(site.command("list", "--expired", "--json").stdout)
        assert [each["kind"] for each in gone] == ["heuristic"]
        assert service.poll() is None
    finally:
        service.kill()
        service.communicate()


def test_filters_and_scanners_of_ones_own_are_found_by_the_daemons_configuration(site: Site) -> None:
    (site.folder / "own.py").write_text(
        "from recovery.orphans import Ballot, Vote\n"
        "class Hold:\n"
        "    def vote(self, evidence, xid):\n"
        "        return Ballot(Vote.LEAVE_ALONE, 'not on a Friday', alarm=True)\n"
    )
    site.killed(WRITER, *BOTH, failpoints=PENDING)
    text = site.conf.read_text()
    site.conf.write_text(text + "recovery.orphan-filters = own.Hold\n")
    held = site.command("scan")
    assert held.returncode == ExitCode.IN_DOUBT, held.stderr
    assert "not on a Friday" in held.stdout
    site.conf.chmod(0o666)
    refused = site.command("scan")
    assert refused.returncode == ExitCode.CONFIGURATION
    assert "others can write" in refused.stderr
    assert len(site.databases.prepared()) == 2
    site.conf.write_text(text)
    scan(site)
    assert site.databases.prepared() == []


# -- what it looks like -------------------------------------------------------------------------------------------


def test_the_list_can_be_copied_from_at_80_columns(site: Site) -> None:
    site.killed(WRITER, *BOTH, failpoints=PENDING)
    gtrid = gtrid_in(site)
    listed = site.command("list", columns=80).stdout.splitlines()
    assert listed[0] == gtrid
    assert max(map(len, listed)) <= 80
    shown = site.command("show", gtrid, columns=80).stdout
    assert shown.splitlines()[0] == gtrid
    for gid in site.databases.prepared():
        assert f" {gid} " in shown
    scanned = site.command("scan", columns=80).stdout.splitlines()
    assert {line for line in scanned if line.startswith(gtrid)} == {f"{gtrid}:0:one:L", f"{gtrid}:1:two:L"}


@pytest.mark.slow
def test_every_command_prints_json(site: Site) -> None:
    assert [[*each] for each in json.loads(site.command("init", "--json").stdout)] == [names_of(Step)] * 2
    site.killed(WRITER, *BOTH, failpoints=DECIDED)
    (found,) = json.loads(site.command("list", "--json").stdout)
    assert [*found] == names_of(InDoubt)
    assert json.loads(site.command("show", found["gtrid"], "--json").stdout)["history"] == []
    assert [*json.loads(site.command("commit", found["gtrid"], "--yes", "--json").stdout)] == names_of(ScanReport)
    site.killed(WRITER, *BOTH, failpoints=PENDING)
    rolled = site.command("rollback", gtrid_in(site), "--yes", "--json").stdout
    assert len(json.loads(rolled)["rolled_back"]) == 2
    assert [*json.loads(site.command("scan", "--json").stdout)] == names_of(ScanReport)
    assert json.loads(site.command("resume", "--json").stdout) == {"resumed": False}
    assert site.command("list", "--json").stdout == "[]\n"


# -- recovery's own user ------------------------------------------------------------------------------------------

APP, MEMBER, STRANGER = "txpool_app", "txpool_member", "txpool_stranger"


@pytest.fixture
def roles(databases: Any) -> Iterator[str]:
    """The application's role, one that is a member of it, and one that is nothing to it; the superuser's name."""
    server = databases.server

    def clean() -> None:
        for role in (APP, MEMBER, STRANGER):
            for name in BOTH:
                found = databases.rows("one", "select 1 from pg_roles where rolname = %s", [role])
                if found:
                    databases.execute(name, f"drop owned by {role}")
            databases.execute("one", f"drop role if exists {role}")

    clean()
    for role in (APP, MEMBER, STRANGER):
        with psycopg.connect(databases.dsn("one"), autocommit=True) as connection:
            connection.execute(
                sql.SQL("create role {} login password {}").format(sql.Identifier(role), sql.Literal(server.password))
            )
    databases.execute("one", f"grant {APP} to {MEMBER}")
    yield server.user
    clean()


@pytest.mark.parametrize(("kind", "point"), [("superuser", DECIDED), ("member", PENDING), ("member", DECIDED)])
def test_recovery_finishes_under_a_user_of_its_own_what_the_applications_has_prepared(
    site: Site, roles: str, kind: str, point: str
) -> None:
    databases = site.databases
    files = {name: site.folder / f"{name}.properties" for name in BOTH}
    for name, file in files.items():
        databases.execute(name, f"grant usage on schema public to {APP}; grant insert on t to {APP}")
        text = f"driver = psycopg\nurl = {databases.url(name)}\nuser = {APP}\npassword = ${{env:{PASSWORD}}}\n"
        file.write_text(text + f"recovery.user = {STRANGER}\nrecovery.password = ${{env:{PASSWORD}}}\n")
    site.killed(WRITER, *BOTH, failpoints=point)
    assert databases.rows("one", "select distinct owner::text from pg_prepared_xacts") == [(APP,)]
    refused = site.command("scan")
    assert refused.returncode == ExitCode.IN_DOUBT, refused.stderr
    assert f'permission denied to set role "{APP}"' in refused.stderr
    assert len(databases.prepared()) == 2
    for file in files.values():
        user = {"superuser": roles, "member": MEMBER}[kind]
        file.write_text(file.read_text().replace(STRANGER, user))
    scan(site)
    count = int(point == DECIDED)
    assert site.counts() == {"one": count, "two": count, "ledger": 0}
    assert databases.prepared() == []


def test_what_a_stranger_may_not_finish_is_said_once(site: Site, roles: str, caplog: pytest.LogCaptureFixture) -> None:
    strange = make_xid(make_gtrid("etl-1", "strange00000", 1), 0, "one").joined
    prepare(site, "one", strange)
    text = (site.folder / "one.properties").read_text()
    site.write("one", f"{text}recovery.user = {STRANGER}\nrecovery.password = ${{env:{PASSWORD}}}")
    manager = site.manager()
    manager.rollback(strange.rsplit(":", 3)[0])
    for _ in range(3):
        manager.scan()
    manager.close()
    warnings = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert len([text for text in warnings if "refused it" in text]) == 1
    assert len(set(warnings)) == len(warnings)
    assert site.databases.prepared() == [strange]
