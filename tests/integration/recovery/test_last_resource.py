"""A last resource's crash between its commit and the record: a hazard that is told, over real databases."""

from __future__ import annotations

import json
import os
import signal
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from recovery.cli import ExitCode
from tests.support.recovery_site import HOLDER, WRITER, Site, end

pytestmark = pytest.mark.part(2)


@pytest.fixture(params=["sqlite", "sql"])
def site(request: pytest.FixtureRequest, tmp_path: Path, databases: Any) -> Site:
    """Beside the databases of a site a till, which commits last."""
    site = Site(tmp_path, databases, store=request.param)
    site.write("till", "driver = sqlite3\nmode = last-resource\nurl = sqlite:///till.db")
    with closing(sqlite3.connect(site.folder / "till.db")) as till:
        till.execute("create table t (id int)")
    return site


def tilled(site: Site) -> int:
    with closing(sqlite3.connect(site.folder / "till.db")) as till:
        return int(till.execute("select count(*) from t").fetchone()[0])


@pytest.mark.slow
def test_38_a_crash_between_its_commit_and_the_record_is_the_hazard_that_it_is(site: Site) -> None:
    site.killed(WRITER, "one", "till", failpoints="log.record=kill")
    assert tilled(site) == 1
    listed = site.command("list")
    assert listed.returncode == ExitCode.IN_DOUBT
    assert "the last resource till, which may have committed" in listed.stdout
    scanned = site.command("scan")
    assert scanned.returncode == ExitCode.HEURISTIC, scanned.stdout
    assert "1 rolled back" in scanned.stdout
    assert "its last resource till may have committed before that" in scanned.stderr
    assert site.counts() == {"one": 0, "two": 0, "ledger": 0}
    (found,) = json.loads(site.command("list", "--json").stdout)
    (heuristic,) = found["heuristics"]
    assert (heuristic["datasource"], heuristic["decided"], heuristic["ended"]) == ("till", "rollback", "lost")
    shown = site.command("show", found["gtrid"])
    assert shown.returncode == ExitCode.HEURISTIC
    assert "till: decided to rollback, ended lost" in shown.stdout
    assert site.command("scan").returncode == ExitCode.OK
    assert site.kept() == {"heuristics": 1}
    assert site.command("forget", found["gtrid"], "--yes").returncode == ExitCode.OK
    assert site.kept() == {}


@pytest.mark.slow
@pytest.mark.parametrize("verb", ["rollback", "commit"])
def test_38_the_note_alone_tells_of_it_once_others_have_ended_the_only_branch(site: Site, verb: str) -> None:
    site.killed(WRITER, "one", "till", failpoints="log.record=kill")
    (gid,) = site.databases.prepared()
    end(site, "one", verb, gid)
    assert tilled(site) == 1
    listed = site.command("list")
    assert listed.returncode == ExitCode.IN_DOUBT, listed.stdout
    assert "the last resource till, which may have committed" in listed.stdout
    scanned = site.command("scan")
    assert scanned.returncode == ExitCode.HEURISTIC, scanned.stdout
    assert "its last resource till may have committed before that" in scanned.stderr
    assert "till: decided to rollback, ended lost" in scanned.stdout
    assert site.kept() == {"heuristics": 1}
    (found,) = json.loads(site.command("list", "--json").stdout)
    assert [each["datasource"] for each in found["heuristics"]] == ["till"]
    assert site.command("forget", found["gtrid"], "--yes").returncode == ExitCode.OK
    assert site.kept() == {}
    assert site.command("scan").returncode == ExitCode.OK


@pytest.mark.slow
@pytest.mark.parametrize("point", ["log.last", "branch.prepare-sent", "log.recorded"])
def test_38_what_a_crash_elsewhere_leaves(site: Site, point: str) -> None:
    """Before the note there is nothing; while it prepares, nobody can tell; behind the decision all commits."""
    site.killed(WRITER, "one", "two", "till", failpoints=f"{point}=kill")
    codes = {"log.last": ExitCode.OK, "branch.prepare-sent": ExitCode.HEURISTIC, "log.recorded": ExitCode.OK}
    scanned = site.command("scan")
    assert scanned.returncode == codes[point], scanned.stdout
    committed = int(point == "log.recorded")
    assert site.counts() == {"one": committed, "two": committed, "ledger": 0}
    assert tilled(site) == committed
    site.command("scan")
    assert site.kept().keys() <= {"heuristics"}


def test_38_without_a_crash_nothing_is_left(site: Site) -> None:
    process = site.process(WRITER, "one", "two", "till")
    output, errors = process.communicate(timeout=600)
    assert "returned" in output, errors
    assert site.counts() | {"till": tilled(site)} == {"one": 1, "two": 1, "ledger": 0, "till": 1}
    assert site.command("scan").returncode == ExitCode.OK
    assert site.kept() == {}


@pytest.mark.slow
def test_38_by_hand_beside_its_stopped_process_it_is_warned_of(site: Site) -> None:
    process = site.process(HOLDER, "one", "till", failpoints="log.record=hang")
    try:
        gtrid = process.stdout.readline().strip()
        while not tilled(site):
            assert process.poll() is None, process.stderr.read()
        os.kill(process.pid, signal.SIGSTOP)
        refused = site.command("rollback", gtrid, answer="n\n")
        assert refused.returncode == ExitCode.REFUSED
        assert "the last resource till, which may have committed" in " ".join(refused.stderr.split())
        assert len(site.databases.prepared()) == 1
        done = site.command("rollback", gtrid, "--yes")
        assert done.returncode == ExitCode.HEURISTIC, done.stdout
        assert "may have committed" in done.stderr
        assert site.databases.prepared() == []
    finally:
        process.kill()
        process.communicate()
    assert site.counts()["one"] == 0
