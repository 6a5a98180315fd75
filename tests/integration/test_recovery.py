"""Recovery over real databases: what it finishes, and what it leaves alone."""

from __future__ import annotations

import json
import logging
import sqlite3
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg import sql

from recovery.cli import ExitCode
from recovery.setup import initialise
from tests.integration.recovery_site import HOLDER, WRITER, Site
from txpool.log import open_log
from txpool.resources.base import BranchRecord
from txpool.settings import RecoverySettings
from txpool.xid import make_gtrid, make_xid

BOTH = ("one", "two")


@pytest.fixture
def site(tmp_path: Path, databases: Any) -> Site:
    return Site(tmp_path, databases)


def prepare(site: Site, database: str, gid: str) -> None:
    """By hand, as any program could."""
    with psycopg.connect(site.databases.dsn(database)) as connection:
        connection.execute("insert into t values (1)")
        connection.execute(sql.SQL("prepare transaction {}").format(gid))


def end(site: Site, database: str, verb: str, gid: str) -> None:
    with psycopg.connect(site.databases.dsn(database), autocommit=True) as connection:
        connection.execute(sql.SQL(f"{verb} prepared {{}}").format(gid))  # type: ignore[arg-type]


def holder(site: Site, *names: str) -> Iterator[tuple[Any, str]]:
    """A living process that is prepared, and has decided nothing."""
    process = site.process(HOLDER, *names, failpoints="coordinator.prepared=hang")
    try:
        gtrid = process.stdout.readline().strip()
        while len(site.databases.prepared()) < len(set(names) - {"ledger"}):
            assert process.poll() is None, process.stderr.read()
        yield process, gtrid
    finally:
        process.kill()
        process.communicate()


@pytest.fixture
def held(site: Site) -> Iterator[tuple[Any, str]]:
    yield from holder(site, *BOTH)


@pytest.fixture
def held_marked(site: Site) -> Iterator[tuple[Any, str]]:
    yield from holder(site, *BOTH, "ledger")


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


def test_another_servers_silence_keeps_the_decision(site: Site) -> None:
    site.killed(WRITER, *BOTH, failpoints="coordinator.decided=kill")
    right = (site.folder / "two.properties").read_text()
    site.write("two", right.replace("/two", "/one").strip())
    report = site.manager().scan()
    assert len(site.databases.prepared()) == 1
    assert site.kept() == {"decisions": 1}
    assert "leads to" in report.pending[0].reason
    site.write("two", right.strip())
    site.manager().scan()
    assert site.counts() == {"one": 1, "two": 1, "ledger": 0}
    assert site.kept() == {}


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


# -- the command --------------------------------------------------------------------------------------------------


def test_the_list_says_what_will_be_done_in_words_and_never_a_password(site: Site) -> None:
    site.killed(WRITER, *BOTH, failpoints="coordinator.decided=kill")
    listed = site.command("list", "--json")
    assert listed.returncode == ExitCode.IN_DOUBT
    (found,) = json.loads(listed.stdout)
    assert found["decision"] == "commit"
    assert found["kept"] == "the log"
    assert {(branch["datasource"], branch["state"]) for branch in found["branches"]} == {
        ("one", "prepared"),
        ("two", "prepared"),
    }
    assert "commit: it is decided in the log" in found["next"]
    shown = site.command("show", found["gtrid"])
    for branch in found["branches"]:
        assert branch["gid"] in shown.stdout
    scanned = site.command("scan")
    assert scanned.returncode == ExitCode.OK
    assert found["branches"][0]["gid"] in scanned.stdout
    assert f"committed {found['branches'][0]['gid']} in one (decided in the log)" in scanned.stderr
    for result in (listed, shown, scanned, site.command("list")):
        assert site.databases.server.password not in result.stdout + result.stderr


def test_a_rollback_by_hand_takes_the_key_of_a_living_process(site: Site, held: tuple[Any, str]) -> None:
    process, gtrid = held
    assert site.command("list").returncode == ExitCode.OK
    result = site.command("rollback", gtrid, "--yes")
    assert result.returncode == ExitCode.OK, result.stderr
    assert f"rollback of {gtrid} by" in result.stderr
    assert process.poll() is None
    assert site.databases.prepared() == []
    assert site.counts() == {"one": 0, "two": 0, "ledger": 0}
    refused = site.command("commit", gtrid, "--yes")
    assert refused.returncode == ExitCode.REFUSED
    assert "not decided" in refused.stderr


def test_a_rollback_by_hand_of_a_marked_transaction_waits_for_nobody(site: Site, held_marked: tuple[Any, str]) -> None:
    process, gtrid = held_marked
    result = site.command("rollback", gtrid, "--yes")
    assert result.returncode == ExitCode.FAILED, "the ledger is locked by the living process"
    assert "ledger, which decides" in result.stderr
    assert "Traceback" not in result.stderr
    assert len(site.databases.prepared()) == 2
    process.kill()
    process.wait()
    assert site.command("rollback", gtrid, "--yes").returncode == ExitCode.OK
    assert site.databases.prepared() == []
    assert site.marks() == []


@pytest.mark.parametrize("names", [BOTH, (*BOTH, "ledger")], ids=["logged", "marked"])
def test_what_is_decided_can_be_committed_by_hand_and_not_rolled_back(site: Site, names: tuple[str, ...]) -> None:
    point = "marked.committed" if "ledger" in names else "coordinator.decided"
    site.killed(WRITER, *names, failpoints=f"{point}=kill")
    gtrid = json.loads(site.command("list", "--json").stdout)[0]["gtrid"]
    assert site.command("rollback", gtrid, "--yes").returncode == ExitCode.REFUSED
    assert len(site.databases.prepared()) == 2
    assert site.command("commit", gtrid).returncode == ExitCode.REFUSED, "nobody has confirmed it"
    assert len(site.databases.prepared()) == 2
    assert site.command("commit", gtrid, "--yes").returncode == ExitCode.OK
    assert site.counts() == {"one": 1, "two": 1, "ledger": int("ledger" in names)}
    assert (site.kept(), site.marks()) == ({}, [])


def test_a_wrong_configuration_is_one_line(site: Site) -> None:
    site.write("recovery", "node.name = etl-1\nlog.url = sqlite:///txlog\ndatasource = one.properties")
    result = site.command("scan")
    assert result.returncode == ExitCode.CONFIGURATION
    assert len(result.stderr.strip().splitlines()) == 1
    assert "datasources" in result.stderr


def test_a_log_that_is_missing_presumes_nothing(site: Site) -> None:
    site.killed(WRITER, *BOTH, failpoints="coordinator.decided=kill")
    (site.folder / "txlog").rename(site.folder / "away")
    result = site.command("scan")
    assert result.returncode == ExitCode.LOG
    assert "Traceback" not in result.stderr
    assert len(site.databases.prepared()) == 2


def test_init_makes_what_is_missing_once_and_adopts_a_copy(site: Site) -> None:
    assert site.command("init").returncode == ExitCode.OK
    site.killed(WRITER, *BOTH, failpoints="coordinator.prepared=kill")
    (site.folder / "txlog").rename(site.folder / "old")
    (site.folder / "txlog").mkdir(mode=0o700)
    for path in (site.folder / "old").iterdir():
        if path.is_file():
            (site.folder / "txlog" / path.name).write_bytes(path.read_bytes())
    assert site.command("scan").returncode == ExitCode.LOG
    adopted = site.command("init", "--adopt")
    assert adopted.returncode == ExitCode.OK, adopted.stderr
    assert site.command("scan").returncode == ExitCode.IN_DOUBT
    assert len(site.databases.prepared()) == 2


# -- the daemon ---------------------------------------------------------------------------------------------------


DAEMON = "import sys; from recovery.cli import app; app(['run', '--conf', 'recovery.properties'])"


def lines_until(process: Any, *texts: str) -> list[str]:
    found = []
    for line in process.stderr:
        found.append(line)
        if all(any(text in each for each in found) for text in texts):
            return found
    raise AssertionError(f"the daemon ended: {found}")


def test_the_daemon_recovers_reloads_and_ends_cleanly(site: Site) -> None:
    site.killed(WRITER, *BOTH, failpoints="coordinator.decided=kill")
    stranger = make_xid(make_gtrid("etl-1", "strange00000", 1), 0, "one").joined
    prepare(site, "one", stranger)
    process = site.process(DAEMON)
    try:
        lines_until(process, "recovery runs with", "forgot", "strange00000")
        assert site.counts() == {"one": 1, "two": 1, "ledger": 0}
        right = site.conf.read_text()
        site.write("recovery", "node.name = etl-1\nnonsense = 1")
        process.send_signal(1)
        lines_until(process, "SIGHUP: ", "goes on with the configuration that it had")
        site.write("recovery", right.replace("recovery.period = 3600", "recovery.period = 1800").strip())
        process.send_signal(1)
        lines_until(process, "every 1800 s")
        process.terminate()
        _, rest = process.communicate(timeout=60)
        assert process.returncode == 0, rest
        assert "ended" in rest
        assert "Traceback" not in rest
    finally:
        process.kill()
        process.communicate()
    assert site.databases.prepared() == [stranger]


def test_the_daemon_says_at_its_end_what_is_pending(site: Site) -> None:
    stranger = make_xid(make_gtrid("etl-1", "strange00000", 1), 0, "one").joined
    prepare(site, "one", stranger)
    process = site.process(DAEMON)
    try:
        lines_until(process, "strange00000")
        process.send_signal(2)
        _, rest = process.communicate(timeout=60)
        assert process.returncode == 0, rest
        assert f"still pending: {stranger}" in rest
    finally:
        process.kill()
        process.communicate()


def test_the_thread_in_an_application_recovers_too(site: Site, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "txpool.recovery")
    site.killed(WRITER, *BOTH, "ledger", failpoints="marked.committed=kill")
    manager = site.manager()
    manager.start()
    manager.close()
    assert site.counts() == {"one": 1, "two": 1, "ledger": 1}
    assert site.marks() == []
    assert "committed in ledger, which decides it" in caplog.text
