"""A name is a claim: what a role that may only connect prepares under our names decides nothing, and delays nothing."""

from __future__ import annotations

import json
from collections.abc import Iterator

import psycopg
import pytest
from psycopg import sql

from recovery.cli import ExitCode
from tests.support.recovery_site import BOTH, WRITER, Site, end
from txpool.config.settings import DataSourceSettings
from txpool.datasource import DataSource
from txpool.xid import split_gtrid

MALLORY = "mallory"
_PASSWORD = "owns nothing"


@pytest.fixture
def mallory(site: Site) -> Iterator[None]:
    """A role that may connect, and owns nothing."""
    site.databases.execute("one", f"create role {MALLORY} login password '{_PASSWORD}'")  # type: ignore[arg-type]
    yield
    for gid in site.databases.prepared():
        for database in BOTH:
            query = "select database from pg_prepared_xacts where gid = %s"
            if (database,) in site.databases.rows("one", query, [gid]):
                end(site, database, "rollback", gid)
    site.databases.execute("one", f"drop role {MALLORY}")  # type: ignore[arg-type]


def forge(site: Site, database: str, gid: str) -> None:
    dsn = psycopg.conninfo.make_conninfo(site.databases.dsn(database), user=MALLORY, password=_PASSWORD)
    with psycopg.connect(dsn) as connection:
        connection.execute(sql.SQL("prepare transaction {}").format(gid))


def gtrid_of(site: Site) -> str:
    return ":".join(site.databases.prepared()[0].split(":")[:4])


@pytest.mark.parametrize("decider", ["M.ledger", "M.nosuch", "M.ledger:abcdefghijkl", "L"])
@pytest.mark.parametrize("point", ["coordinator.decided", "coordinator.prepared"])
@pytest.mark.usefixtures("mallory")
def test_it_overrides_no_decision_and_holds_nothing_up(site: Site, point: str, decider: str) -> None:
    site.killed(WRITER, *BOTH, failpoints=f"{point}=kill")
    forged = f"{gtrid_of(site)}:9:b:{decider}"
    if point == "coordinator.decided":
        (gid,) = [gid for gid in site.databases.prepared() if ":two:" in gid]
        end(site, "two", "commit", gid)
    forge(site, "one", forged)
    first = site.command("scan", "--json")
    assert site.databases.prepared() == [forged]
    count = 1 if point == "coordinator.decided" else 0
    assert site.counts() == {"one": count, "two": count, "ledger": 0}
    assert site.marks() == [], "no tombstone was put for it"
    assert site.kept() == {}, "nothing is kept for it"
    assert first.returncode == ExitCode.FOREIGN
    (alarm,) = json.loads(first.stdout)["alarms"]
    assert (alarm["kind"], alarm["subject"]) == ("foreign", "role mallory in one")
    assert "superuser" not in first.stdout + first.stderr
    listed = json.loads(site.command("list", "--json").stdout)
    ((branch,),) = [each["branches"] for each in listed]
    assert (branch["gid"], branch["owner"], branch["state"]) == (forged, MALLORY, "not ours, by its owner")
    shown = site.command("show", gtrid_of(site))
    assert "mallory" in shown.stdout
    assert "not known to be ours" in " ".join(shown.stdout.split())


@pytest.mark.usefixtures("mallory")
def test_by_hand_it_is_not_touched_either(site: Site) -> None:
    site.killed(WRITER, *BOTH, failpoints="coordinator.prepared=kill")
    gtrid = gtrid_of(site)
    forged = f"{gtrid}:9:b:M.ledger"
    forge(site, "two", forged)
    done = site.command("rollback", gtrid, "--yes")
    assert done.returncode in (ExitCode.OK, ExitCode.FOREIGN), done.stderr
    assert site.databases.prepared() == [forged]
    assert site.counts() == {"one": 0, "two": 0, "ledger": 0}


@pytest.mark.usefixtures("mallory")
def test_a_row_that_decides_outranks_it(site: Site) -> None:
    """Killed behind the marked commit: the row decides, whatever the names of others say."""
    site.killed(WRITER, *BOTH, "ledger", failpoints="marked.committed=kill")
    gtrid = gtrid_of(site)
    forge(site, "one", f"{gtrid}:9:b:L")
    forge(site, "two", f"{gtrid}:8:c:M.other")
    site.command("scan")
    assert site.counts() == {"one": 1, "two": 1, "ledger": 1}
    assert site.marks() == []
    assert len(site.databases.prepared()) == 2


@pytest.mark.usefixtures("mallory")
def test_without_any_transaction_it_is_no_doubt_of_ours(site: Site) -> None:
    process = site.process(WRITER, *BOTH)
    output, errors = process.communicate(timeout=600)
    assert output == "returned\n", errors
    site.command("scan")
    log = site.manager()
    with log._opened() as opened:
        (incarnation, *_) = opened.incarnations()
    forged = f"txp1:etl-1:{incarnation}:zz:0:one:M.ledger"
    forge(site, "one", forged)
    assert split_gtrid(forged.rsplit(":", 3)[0]).incarnation == incarnation
    assert site.command("list").returncode == ExitCode.OK
    strange = "txp1:etl-1:strange00000:1:0:one:L"
    forge(site, "one", strange)
    scan = site.command("scan", "--json")
    assert scan.returncode == ExitCode.FOREIGN
    (alarm,) = json.loads(scan.stdout)["alarms"]
    assert forged in alarm["text"], "that of a name which this log knows"
    assert strange not in alarm["text"]
    assert sorted(site.databases.prepared()) == sorted([forged, strange])


def test_branches_of_one_role_that_differ_in_their_decider_end_by_themselves_neither_way(site: Site) -> None:
    site.killed(WRITER, *BOTH, failpoints="coordinator.prepared=kill")
    gtrid = gtrid_of(site)
    before = site.databases.prepared()
    odd = f"{gtrid}:9:b:M.ledger"
    with psycopg.connect(site.databases.dsn("one")) as connection:
        connection.execute(sql.SQL("prepare transaction {}").format(odd))
    scan = site.command("scan", "--json")
    assert site.databases.prepared() == sorted([*before, odd])
    assert site.marks() == []
    assert scan.returncode == ExitCode.IN_DOUBT
    assert [alarm["kind"] for alarm in json.loads(scan.stdout)["alarms"]] == ["disputed"]
    assert "M.ledger" in scan.stdout
    refused = site.command("rollback", gtrid, "--yes")
    assert refused.returncode == ExitCode.REFUSED
    end(site, "one", "rollback", odd)
    site.command("scan")
    assert site.databases.prepared() == []


def test_the_server_tells_who_may_have_prepared_it_and_whose_role_is_gone_is_nobodys(site: Site) -> None:
    """As a superuser sees it, who is a member of no role by that."""
    site.databases.execute("one", f"create role {MALLORY} login password '{_PASSWORD}'")  # type: ignore[arg-type]
    gid = "txp1:etl-1:strange00000:1:0:one:L"
    manager = DataSource.from_settings(DataSourceSettings.load(site.folder / "one.properties")).branch_recovery()
    try:
        forge(site, "one", gid)
        (branch,) = manager.recover()
        assert branch.owner == MALLORY
        assert not branch.prepared_by(manager.logins())
    finally:
        site.databases.execute("one", f"drop role {MALLORY}")  # type: ignore[arg-type]
    try:
        (branch,) = manager.recover()
        assert branch.owner is None
        assert not branch.prepared_by(manager.logins())
    finally:
        end(site, "one", "rollback", gid)
