"""Datasources are added to a running recovery manager, and removed from it; the daemon runs modules of a user's own."""

from __future__ import annotations

import re
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from recovery import RecoveryManager
from recovery.cli import ExitCode
from recovery.orphans import Ballot
from tests.support.recovery_site import BOTH, PASSWORD, WRITER, Site, daemon, extend, get
from tests.support.waiting import until
from txpool.datasource import DataSource
from txpool.errors import ConfigurationError, ProgrammingError

PREPARED, DECIDED = "coordinator.prepared=kill", "coordinator.decided=kill"


def knows_one_only(site: Site) -> Path:
    """Its note leads nowhere, either: the file of two is another one now."""
    text = site.conf.read_text().replace("one.properties, two.properties, ", "one.properties, ")
    site.write("recovery", text.strip())
    moved = site.folder / "moved.properties"
    moved.write_text("name = two\n" + (site.folder / "two.properties").read_text())
    (site.folder / "two.properties").unlink()
    return moved


def alarm_of(manager: RecoveryManager, name: str) -> str:
    assert manager.last_report is not None
    return " ".join(alarm.text for alarm in manager.last_report.alarms if alarm.subject == name)


@pytest.mark.parametrize("of_a_file", [True, False])
def test_one_that_is_added_is_recovered_from_the_next_pass_on(site: Site, of_a_file: bool) -> None:
    site.killed(WRITER, *BOTH, failpoints=DECIDED)
    moved = knows_one_only(site)
    with closing(site.manager(period=3600)) as manager:
        manager.start()
        until(lambda: manager.last_report is not None)
        assert len(site.databases.prepared()) == 1
        url = site.databases.url("two")
        made = None if of_a_file else DataSource("other", driver="psycopg", url=url, password=f"${{env:{PASSWORD}}}")
        manager.add_datasource(made or moved)
        manager.scan_soon()
        until(lambda: site.databases.prepared() == [] and site.kept() == {})
        assert site.counts() == {"one": 1, "two": 1, "ledger": 0}
        until(lambda: manager.last_report is not None and manager.last_report.alarms == ())
        assert repr(manager).count("two" if of_a_file else "other") == 1
    if made is not None:
        made.connect().close()  # the manager closes what it has opened, and no other
        made.close()


@pytest.mark.parametrize(("failpoint", "rows"), [(PREPARED, 0), (DECIDED, 1)])
def test_the_branches_of_one_that_is_removed_stay_and_are_told_until_it_is_added_again(
    site: Site, failpoint: str, rows: int
) -> None:
    """Though its file is there, and this process has it open: nobody looks for it."""
    site.killed(WRITER, *BOTH, failpoints=failpoint)
    url, password = site.databases.url("two"), site.databases.server.password
    with DataSource("two", driver="psycopg", url=url, password=password), closing(site.manager()) as manager:
        manager.remove_datasource("two")
        for _ in range(2):
            report = manager.scan()
            assert len(site.databases.prepared()) == 1
        told = alarm_of(manager, "two")
        assert "it was removed from this recovery manager" in told
        assert "Branches prepared there (1) keep their locks" in told
        assert [each.name for each in manager.last_scan.overview.datasources] == ["one", "ledger"]  # type: ignore[union-attr]
        (found,) = manager.in_doubt()
        assert found.attention
        assert "two" in manager.unconfigured
        assert bool(report.left_alone) is (failpoint == DECIDED), "the decision is kept"
        manager.add_datasource(site.folder / "two.properties")
        assert manager.scan().alarms == ()
    assert site.databases.prepared() == []
    assert site.counts() == {"one": rows, "two": rows, "ledger": 0}
    assert site.kept() == {}


def test_a_marked_one_that_is_removed_decides_nothing_until_it_is_added_again(site: Site) -> None:
    site.killed(WRITER, "one", "ledger", failpoints="marked.committed=kill")
    with closing(site.manager()) as manager:
        manager.remove_datasource("ledger")
        (left,) = manager.scan().pending
        assert "ledger" in left.reason
        assert len(site.databases.prepared()) == 1
        manager.add_datasource(site.folder / "ledger.properties")
        manager.scan()
    assert site.counts() == {"one": 1, "two": 0, "ledger": 1}
    assert site.databases.prepared() == []


def test_the_pass_in_progress_goes_on_with_it(site: Site) -> None:
    site.killed(WRITER, *BOTH, failpoints=PREPARED)
    passes: list[RecoveryManager] = []

    class Remover:
        def vote(self, snapshot: Any, xid: Any) -> Ballot | None:
            if "two" in snapshot.listings and snapshot.listings["two"].branches:
                passes.append(manager)
                if len(passes) == 3:  # the second pass: two branches vote in each
                    manager.remove_datasource("two")
            return None

    with closing(site.manager(filters=[Remover()])) as manager:
        manager.scan()
        assert len(passes) >= 3
        assert "two" not in repr(manager)
    assert site.databases.prepared() == []
    assert site.counts() == {"one": 0, "two": 0, "ledger": 0}


def test_what_cannot_be_added_or_removed_changes_nothing(site: Site) -> None:
    url, password = site.databases.url("one"), site.databases.server.password
    with (
        closing(site.manager()) as manager,
        DataSource("two", driver="psycopg", url=url, password=password) as other,
    ):
        before = repr(manager)
        with pytest.raises(ConfigurationError, match="two datasources are called two"):
            manager.add_datasource(other)
        with pytest.raises(ConfigurationError):
            manager.add_datasource(site.folder / "nowhere.properties")
        with pytest.raises(ProgrammingError, match=r"has no datasource three.*it has one, two, ledger"):
            manager.remove_datasource("three")
        assert repr(manager) == before
        for name in BOTH:
            manager.remove_datasource(name)
        with pytest.raises(ProgrammingError, match="only datasource"):
            manager.remove_datasource("ledger")
        assert ": ledger, every" in repr(manager)


def test_the_daemon_runs_modules_of_ones_own(site: Site) -> None:
    site.killed(WRITER, *BOTH, failpoints=DECIDED)
    (site.folder / "own.py").write_text(
        "from pathlib import Path\n"
        "class Writes:\n"
        "    def run(self, snapshot):\n"
        "        with Path('decided').open('a') as file:\n"
        "            print(*snapshot.decisions, file=file)\n"
        "class Fails:\n"
        "    def run(self, snapshot):\n"
        "        raise RuntimeError('the ticket office is closed')\n"
    )
    extend(site, "status.address = 127.0.0.1:0", "recovery.modules = own:Fails, gone.away:Gone, own:Writes")
    with daemon(site) as (_, url):
        page = get(url)
    assert site.counts() == {"one": 1, "two": 1, "ledger": 0}
    assert (site.folder / "decided").read_text().startswith("txp1:etl-1:")
    assert "own:Fails" in page
    scan = site.command("scan")
    assert scan.returncode == ExitCode.FAILED
    assert re.search(r"module own:Fails\s+failed .*the ticket office is closed", scan.stdout)
    assert re.search(r"module gone.away:Gone\s+failed .*No module named 'gone'", scan.stdout)
    extend(site, "")
    site.conf.chmod(0o666)
    refused = site.command("scan")
    assert refused.returncode == ExitCode.CONFIGURATION
    assert "it names code to run" in refused.stderr
