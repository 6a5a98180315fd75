"""The command: what it says of what is in doubt, what it does by hand and refuses, and what it needs."""

from __future__ import annotations

import json
from typing import Any

import pytest

from recovery.cli import ExitCode
from tests.support.recovery_site import BOTH, WRITER, Site


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
