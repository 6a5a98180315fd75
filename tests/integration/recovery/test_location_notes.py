"""Where a node prepares is in the log before the first PREPARE: recovery finds it, whatever its own file names."""

from __future__ import annotations

import json
import re
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from recovery import RecoveryManager
from recovery.cli import ExitCode
from recovery.operator import commands
from recovery.scan.reading import take_snapshot
from tests.support.recovery_site import BOTH, HOLDER, PASSWORD, WRITER, Site, daemon, end, extend, get, prepare
from tests.support.waiting import until
from txpool.check import node
from txpool.cli import app
from txpool.config.settings import RecoverySettings
from txpool.datasource import DataSource
from txpool.errors import ProgrammingError
from txpool.log import open_log
from txpool.xid import make_gtrid, make_xid

pytestmark = pytest.mark.part(2)

PREPARED = "coordinator.prepared=kill"


def knows_one_only(site: Site) -> None:
    text = site.conf.read_text().replace("one.properties, two.properties, ", "one.properties, ")
    site.write("recovery", text.strip())


def notes(site: Site) -> list[dict[str, Any]]:
    with closing(sqlite3.connect(site.folder / "txlog" / "log.db")) as log:
        return [json.loads(text) for (text,) in log.execute("select text from memos where kind = 'datasource'")]


def alarms(scan: Any) -> list[tuple[str, str]]:
    assert scan.stdout, scan.stderr
    return [(alarm["kind"], alarm["subject"]) for alarm in json.loads(scan.stdout)["alarms"]]


def test_a_note_is_there_before_the_first_prepare_and_holds_no_secret(site: Site) -> None:
    site.killed(WRITER, *BOTH, failpoints="branch.prepare-sent=kill")
    roles = dict(site.databases.rows("one", "select rolname::text, oid::text from pg_roles"))
    system = site.databases.rows("one", "select system_identifier::text from pg_control_system()")[0][0]
    oids = dict(site.databases.rows("one", "select datname::text, oid::text from pg_database"))
    assert sorted(notes(site), key=lambda note: str(note["datasource"])) == [
        {
            "format": "1",
            "node": "etl-1",
            "datasource": name,
            "identity": f"{system}/{oids[name]}",
            "role": roles[site.databases.server.user],
            "path": str(site.folder / f"{name}.properties"),
        }
        for name in BOTH
    ]
    assert site.databases.server.password not in str(notes(site))


def test_one_phase_needs_none(site: Site) -> None:
    process = site.process(WRITER, "one")
    assert process.communicate(timeout=600)[0] == "returned\n"
    assert notes(site) == []


def test_where_it_cannot_be_noted_nothing_is_prepared(site: Site) -> None:
    process = site.process(WRITER, *BOTH, failpoints="log.note=raise")
    _, errors = process.communicate(timeout=600)
    assert "TransactionRolledBack" in errors
    assert site.databases.prepared() == []
    assert site.counts() == {"one": 0, "two": 0, "ledger": 0}


def test_a_datasource_that_its_file_does_not_name_is_opened_by_the_note(site: Site) -> None:
    site.killed(WRITER, *BOTH, failpoints=PREPARED)
    knows_one_only(site)
    assert site.command("list").returncode == ExitCode.UNCONFIGURED
    scan = site.command("scan", "--json")
    assert site.databases.prepared() == []
    assert site.counts() == {"one": 0, "two": 0, "ledger": 0}
    assert alarms(scan) == [("unconfigured", "two")]
    assert scan.returncode == ExitCode.UNCONFIGURED
    assert "Add that file to `datasources`" in scan.stdout


def test_a_decision_is_carried_out_there_too(site: Site) -> None:
    site.killed(WRITER, *BOTH, failpoints="coordinator.decided=kill")
    knows_one_only(site)
    site.command("scan")
    assert site.databases.prepared() == []
    assert site.counts() == {"one": 1, "two": 1, "ledger": 0}
    assert site.kept() == {}


def others_may_write(path: Path) -> None:
    path.chmod(0o666)


def leads_elsewhere(path: Path) -> None:
    path.write_text(path.read_text().replace("/two", "/one"))


def is_gone(path: Path) -> None:
    path.unlink()


def lacks_its_secret(path: Path) -> None:
    path.write_text(path.read_text().replace("${env:", "${env:NOT_"))


@pytest.mark.parametrize("harm", [others_may_write, leads_elsewhere, is_gone, lacks_its_secret])
def test_a_file_that_may_not_be_believed_is_not_and_the_database_is_named(site: Site, harm: Any) -> None:
    site.killed(WRITER, *BOTH, failpoints=PREPARED)
    knows_one_only(site)
    harm(site.folder / "two.properties")
    (held,) = [gid for gid in site.databases.prepared() if ":two:" in gid]
    scan = site.command("scan", "--json")
    assert site.databases.prepared() == [held]
    assert alarms(scan) == [("unconfigured", "two")]
    assert scan.returncode == ExitCode.UNCONFIGURED
    (alarm,) = json.loads(scan.stdout)["alarms"]
    assert "Branches prepared there (1) keep their locks" in alarm["text"], (
        "seen from the other database of the same server"
    )
    listed = site.command("list", "--json")
    assert listed.returncode == ExitCode.UNCONFIGURED
    assert "two" in listed.stderr
    (found,) = json.loads(listed.stdout)
    assert [branch["gid"] for branch in found["branches"]] == [held]
    assert found["attention"]
    extend(site, "status.address = 127.0.0.1:0")
    with daemon(site) as (_, url):
        assert "prepares in datasource two" in get(url)
        if "txpool_alarms" in (metrics := get(f"{url}metrics")):
            assert 'txpool_alarms{alarm="unconfigured"} 1.0' in metrics
            assert "\ntxpool_oldest_indoubt_seconds " not in metrics, "nobody knows"


def test_a_note_is_retired_once_nothing_can_be_there(site: Site) -> None:
    site.killed(WRITER, *BOTH, failpoints=PREPARED)
    knows_one_only(site)
    (site.folder / "two.properties").rename(site.folder / "later.properties")
    site.command("scan")
    refused = site.command("forget", "--datasource", "two", "--yes")
    assert refused.returncode == ExitCode.REFUSED
    assert "is prepared in two" in refused.stderr
    unknown = site.command("forget", "--datasource", "three", "--yes")
    assert unknown.returncode == ExitCode.REFUSED
    assert "one, two" in unknown.stderr
    (site.folder / "later.properties").rename(site.folder / "two.properties")
    site.command("scan")
    assert site.databases.prepared() == []
    assert site.command("forget", "--datasource", "two", "--yes", "--reason", "it is gone").returncode == ExitCode.OK
    assert [note["datasource"] for note in notes(site)] == ["one"]
    assert site.command("scan").returncode == ExitCode.OK
    assert "it is gone" in site.command("audit").stdout
    assert site.command("forget", "--yes").returncode == ExitCode.USAGE


def test_a_note_stays_while_a_process_of_its_node_lives(site: Site, held: tuple[Any, str]) -> None:
    knows_one_only(site)
    refused = site.command("forget", "--datasource", "two", "--yes")
    assert refused.returncode == ExitCode.REFUSED
    assert "a process of node etl-1 is alive" in refused.stderr
    assert len(notes(site)) == 2


@pytest.mark.parametrize("lives", [False, True])
def test_a_note_that_a_process_writes_during_the_command_stays(
    site: Site, monkeypatch: pytest.MonkeyPatch, lives: bool
) -> None:
    """It begins after what is prepared was listed, and prepares: nobody else tells where its branch is."""
    site.killed(WRITER, *BOTH, failpoints=PREPARED)
    assert site.command("scan").returncode == ExitCode.OK
    begun: list[Any] = []

    def listed_before_it_begins(*arguments: Any, **options: Any) -> Any:
        snapshot = take_snapshot(*arguments, **options)
        if lives:
            begun.append(site.process(HOLDER, *BOTH, failpoints="coordinator.prepared=hang"))
            until(lambda: len(site.databases.prepared()) == len(BOTH))
        else:
            site.killed(WRITER, *BOTH, failpoints=PREPARED)
        return snapshot

    monkeypatch.setattr(commands, "take_snapshot", listed_before_it_begins)
    try:
        with closing(site.manager()) as manager, pytest.raises(ProgrammingError, match="a process of node etl-1"):
            manager.forget_datasource("two")
    finally:
        for process in begun:
            process.kill()
            process.communicate()
    knows_one_only(site)
    assert alarms(site.command("scan", "--json")) == [("unconfigured", "two")]
    assert site.databases.prepared() == []
    assert site.counts() == {"one": 0, "two": 0, "ledger": 0}


def test_one_of_another_name_leads_there(site: Site) -> None:
    """By identity, not by name."""
    site.killed(WRITER, *BOTH, failpoints="coordinator.decided=kill")
    (site.folder / "two.properties").rename(site.folder / "renamed.properties")
    site.write("recovery", site.conf.read_text().replace("two.properties", "renamed.properties").strip())
    assert site.command("scan").returncode == ExitCode.OK
    assert site.counts() == {"one": 1, "two": 1, "ledger": 0}
    assert site.kept() == {}


def test_what_lies_in_another_database_of_the_server_is_told_without_any_note(site: Site) -> None:
    """As of a process of before there were notes."""
    knows_one_only(site)
    log = open_log(f"sqlite:///{site.folder / 'txlog'}", node="etl-1")
    gid = make_xid(make_gtrid("etl-1", log.incarnation, 1), 0, "two").joined
    prepare(site, "two", gid)
    log.close()
    scan = site.command("scan", "--json")
    assert alarms(scan) == [("unconfigured", "two")]
    assert site.databases.prepared() == [gid]


def test_a_manager_in_the_process_knows_its_datasources(site: Site) -> None:
    """Also those that came from code, and so have no file."""
    site.killed(WRITER, *BOTH, failpoints=PREPARED)
    knows_one_only(site)
    (site.folder / "two.properties").unlink()
    url, password = site.databases.url("two"), site.databases.server.password
    with DataSource("two", driver="psycopg", url=url, password=password):
        report = RecoveryManager(site.conf).scan()
    assert site.databases.prepared() == []
    assert report.alarms == ()


def test_check_finds_a_node_name_that_two_logs_share(site: Site, capsys: pytest.CaptureFixture[str]) -> None:
    def checked() -> list[str]:
        with pytest.raises(SystemExit):
            app(["check", str(site.conf), "--json"])
        sections = json.loads(capsys.readouterr().out)["sections"]
        return [each["found"] for section in sections for each in section["findings"] if each["topic"] == "node"]

    site.killed(WRITER, *BOTH, failpoints=PREPARED)
    assert checked() == []
    site.write("recovery", site.conf.read_text().replace("sqlite:///txlog", "sqlite:///other").strip())
    assert site.command("init").returncode == ExitCode.OK
    (found,) = checked()
    assert found.startswith("processes of node etl-1 that this log has never known have left branches or marks: ")
    assert found.endswith("in two")


def test_a_configured_datasource_that_is_silent_is_told_as_that_and_once(site: Site) -> None:
    """It may be the one that the branches lie in, which another database of the server shows."""
    site.killed(WRITER, *BOTH, failpoints="coordinator.decided=kill")
    right = (site.folder / "two.properties").read_text().strip()
    site.write("two", re.sub(r"127\.0\.0\.1:\d+", "127.0.0.1:1", right))
    scan = site.command("scan")
    assert scan.returncode == ExitCode.UNREACHABLE
    assert "unconfigured" not in scan.stdout + scan.stderr
    assert scan.stdout.count("Connection refused") == 1
    assert scan.stderr.count("Connection refused") == 1
    site.write("two", right)
    assert site.command("scan").returncode == ExitCode.OK
    assert site.counts() == {"one": 1, "two": 1, "ledger": 0}


@pytest.fixture
def hidden(site: Site) -> Iterator[Site]:
    """The server tells the datasources' role nothing of its identity: a role that may prepare, and is no superuser."""
    password = site.databases.server.password
    site.databases.execute("one", f"create role plain login password '{password}'")  # type: ignore[arg-type]
    for name in BOTH:
        site.databases.execute(name, "revoke execute on function pg_control_system() from public")
        site.databases.execute(name, "grant usage on schema public to plain; grant insert on t to plain")
        text = (site.folder / f"{name}.properties").read_text().replace(f"//{site.databases.server.user}@", "//plain@")
        site.write(name, text.strip())
    yield site
    for name in BOTH:
        for gid in site.databases.prepared():
            if site.databases.rows(
                name, "select 1 from pg_prepared_xacts where gid = %s and database = %s", [gid, name]
            ):
                end(site, name, "rollback", gid)
        site.databases.execute(name, "grant execute on function pg_control_system() to public")
        site.databases.execute(name, "drop owned by plain")
    site.databases.execute("one", "drop role plain")


def test_a_server_that_hides_its_identity_shows_no_other_databases(hidden: Site) -> None:
    """The branches of one datasource would be told as those of a database that nothing leads to, in every other."""
    hidden.killed(WRITER, *BOTH, failpoints="coordinator.decided=kill")
    scan = hidden.command("scan", "--json")
    assert alarms(scan) == []
    assert scan.returncode == ExitCode.OK, scan.stdout + scan.stderr
    assert hidden.counts() == {"one": 1, "two": 1, "ledger": 0}


def test_no_note_is_retired_while_a_branch_is_listed_where_the_identity_is_told_to_recovery_only(hidden: Site) -> None:
    hidden.killed(WRITER, *BOTH, failpoints=PREPARED)
    user = hidden.databases.server.user
    for name in BOTH:
        text = (hidden.folder / f"{name}.properties").read_text().strip()
        hidden.write(name, f"{text}\nrecovery.user = {user}\nrecovery.password = ${{env:{PASSWORD}}}")
    refused = hidden.command("forget", "--datasource", "two", "--yes")
    assert refused.returncode == ExitCode.REFUSED, refused.stdout + refused.stderr
    assert "is prepared in two" in refused.stderr
    assert hidden.command("scan").returncode == ExitCode.OK
    assert hidden.databases.prepared() == []
    assert hidden.command("forget", "--datasource", "two", "--yes").returncode == ExitCode.OK


def test_check_takes_no_process_that_begins_meanwhile_for_a_stranger(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is prepared is looked at first, and then who is known."""
    log = open_log(f"sqlite:///{site.folder / 'txlog'}", node="etl-1")
    opened = node.open_log

    def begins(*arguments: Any, **options: Any) -> Any:
        found = opened(*arguments, **options)
        known = found.incarnations

        def then() -> Any:
            before = known()
            if not site.databases.prepared():
                prepare(site, "two", make_xid(make_gtrid("etl-1", log.incarnation, 1), 0, "two").joined)
            return before

        monkeypatch.setattr(found, "incarnations", then)
        return found

    monkeypatch.chdir(site.folder)
    monkeypatch.setattr(node, "open_log", begins)
    try:
        settings = RecoverySettings.load(site.conf)
        assert list(node.findings(settings)) == []  # type: ignore[arg-type]
        assert len(site.databases.prepared()) == 1
    finally:
        log.close()
