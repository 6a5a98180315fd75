"""Recovery over real databases: what it finishes, and what it leaves alone."""

from __future__ import annotations

import json
import sqlite3
import threading
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from recovery.cli import ExitCode
from tests.support.recovery_site import BOTH, WRITER, Site, end, prepare
from txpool.config.settings import RecoverySettings
from txpool.log import open_log
from txpool.resources.base import BranchRecord
from txpool.setup.stores import initialise
from txpool.xid import make_gtrid, make_xid

pytestmark = pytest.mark.part(2)


def test_a_living_process_is_left_alone_and_its_death_is_seen(site: Site, held: tuple[Any, str]) -> None:
    process, gtrid = held
    manager = site.manager()
    report = manager.scan()
    assert len(site.databases.prepared()) == 2
    assert {left.gtrid for left in report.left_alone} == {gtrid}
    assert not report.pending
    process.kill()
    process.wait()
    manager.scan()
    assert site.databases.prepared() == []
    assert site.counts() == {"one": 0, "two": 0, "ledger": 0}


def test_what_is_not_ours_is_left_alone(site: Site) -> None:
    log = open_log(f"sqlite:///{site.folder / 'txlog'}", node="etl-1")
    strangers = [
        "another product's transaction",
        make_xid(make_gtrid("etl-2", log.incarnation, 1), 0, "one").joined,
        make_xid(make_gtrid("etl-1", "strange00000", 1), 0, "one").joined,
        make_xid(make_gtrid("etl-1", log.incarnation, 1), 0, "one").joined + ":and-more",
    ]
    log.close()
    for gid in strangers:
        prepare(site, "one", gid)
    report = site.manager().scan()
    assert sorted(strangers) == site.databases.prepared()
    assert [left.gid for left in report.pending] == [strangers[2]]
    assert "look first at the other databases of this gtrid" in report.pending[0].reason


def test_another_servers_silence_keeps_the_decision(site: Site) -> None:
    site.killed(WRITER, *BOTH, failpoints="coordinator.decided=kill")
    right = (site.folder / "two.properties").read_text()
    site.write("two", right.replace("/two", "/one").strip())
    report = site.manager().scan()
    assert len(site.databases.prepared()) == 1
    assert site.kept() == {"decisions": 1}
    (left,) = report.pending
    assert "leads to another database than the one it was prepared in" in left.reason
    (shown,) = site.manager().in_doubt()
    states = {branch.gid: branch.state for branch in shown.branches}
    assert states[left.gid] == "leads to another database than the one it was prepared in"
    assert "keep the decision until two leads to the database that the branch was prepared in" in shown.next
    site.write("two", right.strip())
    site.manager().scan()
    assert site.counts() == {"one": 1, "two": 1, "ledger": 0}
    assert site.kept() == {}


def test_a_database_that_was_renamed_is_the_same(site: Site) -> None:
    """It has committed, and the decision is not forgotten yet: whoever asks it afterwards asks by its new name."""
    site.killed(WRITER, *BOTH, failpoints="coordinator.committed=kill")
    assert site.kept() == {"decisions": 1}
    right = (site.folder / "two.properties").read_text()
    site.databases.execute("one", "alter database two rename to deux")
    try:
        site.write("two", right.replace("/two", "/deux").strip())
        assert site.command("scan").returncode == ExitCode.OK
        assert site.kept() == {}
        assert site.command("list").returncode == ExitCode.OK
    finally:
        site.databases.execute(
            "one", "select pg_terminate_backend(pid, 10000) from pg_stat_activity where datname = 'deux'"
        )
        site.databases.execute("one", "alter database deux rename to two")
    assert site.counts() == {"one": 1, "two": 1, "ledger": 0}


def test_an_unreachable_datasource_keeps_the_decision_and_the_row(site: Site) -> None:
    site.killed(WRITER, *BOTH, failpoints="coordinator.decided=kill")
    site.killed(WRITER, *BOTH, "ledger", failpoints="marked.committed=kill")
    right = (site.folder / "two.properties").read_text()
    site.write("two", right.replace(f":{site.databases.server.port}/", ":1/").strip())
    report = site.manager().scan()
    assert set(report.unreachable) == {"two"}
    assert (site.kept(), site.marks()) == ({"decisions": 1}, ["commit"])
    assert site.counts() == {"one": 2, "two": 0, "ledger": 1}
    site.write("two", right.strip())
    site.manager().scan()
    assert site.counts() == {"one": 2, "two": 2, "ledger": 1}
    assert (site.kept(), site.marks()) == ({}, [])


@pytest.mark.parametrize("row", ["no row", "its own tombstone"])
def test_another_table_of_marks_has_not_answered(site: Site, row: str) -> None:
    """The url leads to another database today, which has a table of marks as well: neither may decide, nor be asked."""
    site.killed(WRITER, *BOTH, "ledger", failpoints="marked.committed=kill")
    right, other = site.folder / "ledger.db", site.folder / "other.db"
    with closing(sqlite3.connect(other)) as file:
        file.execute("create table t (id int)")
    right.rename(site.folder / "away.db")
    other.rename(right)
    initialise(RecoverySettings.load(site.conf))
    if row != "no row":
        gtrid = ":".join(site.databases.prepared()[0].split(":")[:4])
        with closing(sqlite3.connect(right)) as file:
            file.execute(
                "insert into xids (xid, transaction_manager_id, action_uid, kind, branches) "
                "values (?, '', '', 'abort', '[]')",
                [gtrid],
            )
            file.commit()
    for _ in range(2):
        report = site.manager().scan()
        assert len(site.databases.prepared()) == 2
        assert {"leads to another table" in left.reason for left in report.pending} == {True}
    for verb in ("commit", "rollback"):
        done = site.command(verb, report.pending[0].gtrid)
        assert done.returncode != 0, done.stdout
    assert len(site.databases.prepared()) == 2
    right.rename(other)
    (site.folder / "away.db").rename(right)
    site.manager().scan()
    assert site.counts() == {"one": 1, "two": 1, "ledger": 1}
    assert (site.kept(), site.marks()) == ({}, [])


def test_a_marked_datasource_that_is_locked_or_gone_decides_nothing(
    site: Site, caplog: pytest.LogCaptureFixture
) -> None:
    site.killed(WRITER, *BOTH, "ledger", failpoints="marked.committed=kill")
    with closing(sqlite3.connect(site.folder / "ledger.db")) as lock:
        lock.execute("begin immediate")
        site.manager().scan()
        assert len(site.databases.prepared()) == 2
        assert "ledger" in caplog.text
        lock.rollback()
    (site.folder / "ledger.db").rename(site.folder / "away.db")
    report = site.manager().scan()
    assert len(site.databases.prepared()) == 2
    assert "ledger" in report.unreachable
    (site.folder / "away.db").replace(site.folder / "ledger.db")
    site.manager().scan()
    assert site.counts() == {"one": 1, "two": 1, "ledger": 1}


def test_what_somebody_ended_otherwise_by_hand_is_a_heuristic_outcome(site: Site) -> None:
    site.killed(WRITER, *BOTH, failpoints="coordinator.decided=kill")
    (gid,) = [gid for gid in site.databases.prepared() if ":two:" in gid]
    end(site, "two", "rollback", gid)
    first = site.command("scan", "--json")
    assert first.returncode == ExitCode.HEURISTIC
    (found,) = json.loads(first.stdout)["heuristics"]
    assert (found["datasource"], found["decided"], found["ended"]) == ("two", "commit", "rolled back")
    assert site.kept() == {"heuristics": 1}
    assert site.command("scan").returncode == ExitCode.OK
    assert site.command("list").returncode == ExitCode.HEURISTIC
    assert site.command("forget", found["gtrid"], "--yes").returncode == ExitCode.OK
    assert site.command("forget", found["gtrid"], "--yes").returncode == ExitCode.REFUSED
    assert site.kept() == {}


def test_what_somebody_had_committed_by_hand_is_no_heuristic_outcome(site: Site) -> None:
    site.killed(WRITER, *BOTH, failpoints="coordinator.decided=kill")
    for gid in site.databases.prepared():
        end(site, "two" if ":two:" in gid else "one", "commit", gid)
    assert not site.manager().scan().heuristics
    assert site.kept() == {}


@pytest.mark.parametrize("names", [BOTH, (*BOTH, "ledger")], ids=["logged", "marked"])
@pytest.mark.parametrize("point", ["coordinator.prepared", "decided"])
def test_recoverers_at_the_same_time_do_no_harm(site: Site, names: tuple[str, ...], point: str) -> None:
    decided = "marked.committed" if "ledger" in names else "coordinator.decided"
    for _ in range(3):
        site.killed(WRITER, *names, failpoints=f"{decided if point == 'decided' else point}=kill")
    managers = [site.manager() for _ in range(3)]
    start = threading.Barrier(len(managers))
    reports: list[Any] = []

    def scan(manager: Any) -> None:
        start.wait()
        reports.append(manager.scan())

    threads = [threading.Thread(target=scan, args=[manager]) for manager in managers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [report.heuristics for report in reports] == [(), (), ()]
    site.manager().scan()
    count = 3 if point == "decided" else 0
    assert site.counts() == {"one": count, "two": count, "ledger": count if "ledger" in names else 0}
    assert site.databases.prepared() == []
    assert (site.kept(), site.marks()) == ({}, [])


def test_a_decision_of_a_finished_gtrid_is_carried_out_while_its_process_lives(site: Site) -> None:
    log = open_log(f"sqlite:///{site.folder / 'txlog'}", node="etl-1")
    gtrid = make_gtrid("etl-1", log.incarnation, 1)
    named, loser = make_xid(gtrid, 0, "one"), make_xid(gtrid, 1, "two")
    prepare(site, "one", named.joined)
    log.record(gtrid, [BranchRecord(named, "one")])
    site.manager().scan()
    assert site.databases.prepared() == [named.joined]
    log.finish(gtrid)
    site.manager().scan()
    assert site.databases.prepared() == []
    prepare(site, "two", loser.joined)
    site.manager().scan()
    assert site.databases.prepared() == []
    assert site.counts() == {"one": 1, "two": 0, "ledger": 0}
    assert site.kept() == {"finished": 1}
    log.close()
    site.manager().scan()
    assert site.kept() == {}


@pytest.mark.parametrize("point", ["coordinator.prepared", "coordinator.decided"])
def test_a_log_on_a_server_is_recovered_from_too(tmp_path: Path, databases: Any, point: str) -> None:
    site = Site(tmp_path, databases, store="sql")
    site.killed(WRITER, *BOTH, failpoints=f"{point}=kill")
    assert len(databases.prepared()) == 2
    result = site.command("scan")
    assert result.returncode == ExitCode.OK, result.stderr
    count = int(point == "coordinator.decided")
    assert site.counts() == {"one": count, "two": count, "ledger": 0}
    assert databases.prepared() == []
    assert databases.rows("one", "select count(*) from txpool_decisions") == [(0,)]
