"""Before a job, and where a statement waits: one scan as the process's own file says, and what it leaves alone."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

import txpool
from recovery import RecoveryManager
from recovery.orphans import Ballot, Vote
from tests.support.recovery_site import BOTH, WRITER, Site
from txpool.datasource import DataSource, opened
from txpool.errors import OperationalError
from txpool.idempotency.on_demand import incarnations
from txpool.spark.commit.before_job import settle_earlier_runs
from txpool.tm.manager import get_manager
from txpool.xid import Xid

pytestmark = pytest.mark.part(2)


class Cautious:
    """A filter that keeps everything."""

    def vote(self, snapshot: object, xid: Xid) -> Ballot:
        return Ballot(Vote.LEAVE_ALONE, f"{xid.node} is being looked at by Ann")


@pytest.fixture(params=["sqlite", "sql"])
def stored(
    request: pytest.FixtureRequest, tmp_path: Path, databases: Any, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Site]:
    site = Site(tmp_path, databases, store=request.param)
    monkeypatch.chdir(tmp_path)
    yield site
    for source in opened():
        source.close()
    txpool.configure(node_name="tests", log_url="memory:")


def left_by_a_dead_process(site: Site) -> str:
    site.killed(WRITER, *BOTH, failpoints="coordinator.prepared=kill")
    (gtrid,) = {":".join(gid.split(":")[:4]) for gid in site.databases.prepared()}
    return gtrid


def runs_as(site: Site, node: str, more: str = "") -> None:
    """This process is that node's, by a file of its own with these lines."""
    text = (site.folder / "txpool.properties").read_text()
    site.write("driver", f"{text.replace('etl-1', node)}\n{more}")
    txpool.configure("driver.properties")


def settle() -> None:
    """As before a job over database one."""
    settle_earlier_runs(get_manager().log, [DataSource.from_properties("one.properties")])


def test_what_a_dead_process_of_this_node_has_left_is_ended(stored: Site, caplog: pytest.LogCaptureFixture) -> None:
    left_by_a_dead_process(stored)
    runs_as(stored, "etl-1")
    with caplog.at_level(logging.WARNING):
        settle()
    assert stored.databases.prepared() == []  # also in database two, whose file the log has noted
    assert stored.counts() == {"one": 0, "two": 0, "ledger": 0}
    # Datasources of earlier tests may say that their own log is closed.
    assert [each.message for each in caplog.records if each.module != "finishing"] == []


def test_it_connects_twice_if_nothing_is_left(stored: Site, connects: list[str]) -> None:
    runs_as(stored, "etl-1")
    settle()
    connects.clear()
    settle()
    assert connects == ["one", "one"]  # for what is prepared, and what is staged


def test_a_filter_of_the_file_counts_and_the_error_has_its_reason(stored: Site) -> None:
    gtrid = left_by_a_dead_process(stored)
    runs_as(stored, "etl-1", f"recovery.orphan-filters = node, {Cautious.__module__}.Cautious")
    with pytest.raises(OperationalError, match="nothing was written") as caught:
        settle()
    assert f"{gtrid} in one (etl-1 is being looked at by Ann)" in str(caught.value)
    assert len(stored.databases.prepared()) == 2


def test_a_filter_of_a_manager_of_the_process_counts(stored: Site) -> None:
    gtrid = left_by_a_dead_process(stored)
    runs_as(stored, "etl-1")
    with closing(RecoveryManager(stored.conf, filters=[Cautious()])) as manager:
        manager.start()
        with pytest.raises(OperationalError, match=f"{gtrid} in one .etl-1 is being looked at by Ann"):
            settle()
    assert len(stored.databases.prepared()) == 2


def test_a_suspension_counts_and_the_error_names_it(stored: Site) -> None:
    gtrid = left_by_a_dead_process(stored)
    assert stored.command("suspend", "--reason", "the audit").returncode == 0
    runs_as(stored, "etl-1")
    with pytest.raises(OperationalError) as caught:
        settle()
    assert f"{gtrid} in one (" in str(caught.value)
    assert "the audit" in str(caught.value)
    assert "txpool-recovery show" in str(caught.value)
    assert len(stored.databases.prepared()) == 2
    assert stored.command("resume").returncode == 0
    settle()
    assert stored.databases.prepared() == []


def test_a_suspension_without_anything_left_holds_no_job_up(stored: Site) -> None:
    assert stored.command("suspend", "--reason", "the audit").returncode == 0
    runs_as(stored, "etl-1")
    settle()


@pytest.mark.parametrize("nodes", ["etl-1, etl-2", "*"])
def test_the_nodes_of_the_file_count(
    tmp_path: Path, databases: Any, monkeypatch: pytest.MonkeyPatch, nodes: str
) -> None:
    site = Site(tmp_path, databases, store="sql")
    monkeypatch.chdir(tmp_path)
    incarnation = left_by_a_dead_process(site).split(":")[2]
    runs_as(site, "etl-2")
    assert incarnation not in incarnations()
    settle()
    assert len(site.databases.prepared()) == 2
    runs_as(site, "etl-2", f"recovery.nodes = {nodes}")
    assert incarnations()[incarnation].name == "DEAD"
    settle()
    assert site.databases.prepared() == []
    txpool.configure(node_name="tests", log_url="memory:")


@pytest.mark.parametrize(("point", "rows"), [("coordinator.prepared", 0), ("marked.committed", 1)])
def test_a_marked_datasource_that_decides_is_opened_by_its_note(stored: Site, point: str, rows: int) -> None:
    stored.killed(WRITER, *BOTH, "ledger", failpoints=f"{point}=kill")
    runs_as(stored, "etl-1")
    assert "ledger" not in [source.name for source in opened()]
    settle()
    assert stored.databases.prepared() == []
    assert stored.counts() == {"one": rows, "two": rows, "ledger": rows}


@pytest.mark.parametrize("change", ["writable", "renamed", "elsewhere", "gone"])
def test_a_noted_file_that_is_not_the_deciding_datasource_decides_nothing(stored: Site, change: str) -> None:
    stored.killed(WRITER, *BOTH, "ledger", failpoints="marked.committed=kill")
    runs_as(stored, "etl-1")
    file = stored.folder / "ledger.properties"
    right = file.read_text()
    if change == "writable":
        file.chmod(0o666)
    elif change == "renamed":
        stored.write("ledger", f"name = other\n{right.strip()}")
    elif change == "elsewhere":
        stored.write("ledger", right.replace("ledger.db", "another.db").strip())
    else:
        file.unlink()
    settle()
    assert len(stored.databases.prepared()) == 2
    stored.write("ledger", right.strip())
    file.chmod(0o600)
    settle()
    assert stored.databases.prepared() == []
    assert stored.counts() == {"one": 1, "two": 1, "ledger": 1}
