"""A pass over many branches: they share a connection in each database, and what becomes of them where it is lost."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.recovery_site import BOTH, Site, prepare
from tests.support.waiting import until
from txpool import failpoints
from txpool.config.secrets import Secret
from txpool.config.settings import DataSourceSettings
from txpool.log import open_log
from txpool.log.sqlite.group import GroupCommit
from txpool.resources.base import BranchOutcome, BranchRecord
from txpool.resources.driver.making import make_driver
from txpool.resources.postgresql.branches.recovery import PostgreSQLBranchRecovery
from txpool.xid import Xid, make_gtrid, make_xid

END_SESSIONS = (
    "select pg_terminate_backend(pid, 10000) from pg_stat_activity "
    "where datname = current_database() and pid <> pg_backend_pid()"
)

COMMITTING = "select 1 from pg_stat_activity where datname = current_database() and query like 'commit prepared%%'"


def left_behind(site: Site, count: int, *, decided: bool = True) -> None:
    """Transactions over both databases that a process has prepared, and decided if `decided`, before it died."""
    log = open_log(f"sqlite:///{site.folder / 'txlog'}", node="etl-1")
    for number in range(count):
        gtrid = make_gtrid("etl-1", log.incarnation, number)
        xids = [make_xid(gtrid, each, name) for each, name in enumerate(BOTH)]
        for xid in xids:
            prepare(site, xid.tag, xid.joined)
        if decided:
            log.record(gtrid, [BranchRecord(xid, xid.tag) for xid in xids])
    log.close()


@pytest.mark.parametrize("decided", [True, False], ids=["commits", "rollbacks"])
def test_many_branches_need_no_more_connections_than_a_few(site: Site, connects: list[str], decided: bool) -> None:
    counts = []
    for count in (1, 12):
        left_behind(site, count, decided=decided)
        connects.clear()
        report = site.manager().scan()
        assert len(report.committed if decided else report.rolled_back) == 2 * count
        counts.append(len(connects))
    assert counts[0] == counts[1]
    assert site.databases.prepared() == []
    assert site.counts() == {"one": 13 * decided, "two": 13 * decided, "ledger": 0}


def test_a_listing_and_its_identity_share_a_connection(site: Site, connects: list[str]) -> None:
    site.manager().scan()
    assert [connects.count(name) for name in BOTH] == [3, 3]  # what is prepared, what is staged, slots


def test_a_connection_that_is_lost_amid_a_pass_changes_no_outcome(site: Site) -> None:
    left_behind(site, 6)

    def end_sessions() -> None:
        until(lambda: site.databases.rows("one", COMMITTING))  # the worker of one connects meanwhile
        site.databases.rows("one", END_SESSIONS)

    with failpoints.arming("branch.commit-sent", end_sessions, nth=5):
        report = site.manager().scan()
    assert not report.pending
    assert site.databases.prepared() == []
    assert site.counts() == {"one": 6, "two": 6, "ledger": 0}
    assert site.kept() == {}


def test_a_server_that_stops_amid_a_pass_is_asked_again_by_the_next(site: Site, connects: list[str]) -> None:
    left_behind(site, 6)

    def stop_now() -> None:
        connects.clear()
        site.databases.server.stop("immediate")

    try:
        with failpoints.arming("branch.commit-sent", stop_now, nth=5):
            report = site.manager().scan()
        # What was sent is tried again once; of the others, only the first opens a connection. Then come the slots.
        assert connects.count("one") <= 3
    finally:
        site.databases.server.start()
    kept = {left.gtrid for left in report.pending}
    assert kept
    assert site.kept() == {"decisions": len(kept)}
    assert all("gave no answer to its commit" in left.reason and left.error for left in report.pending)
    report = site.manager().scan()
    assert set(report.forgotten) == kept
    assert site.databases.prepared() == []
    assert site.counts() == {"one": 6, "two": 6, "ledger": 0}


def test_a_branch_that_is_refused_does_not_keep_the_others(site: Site) -> None:
    """The connection goes on after the server has refused a command, and says which branch has no outcome, and why."""
    users = site.databases
    users.execute("one", "drop role if exists clerk; create role clerk login password 'clerk'")
    xids = [make_xid(make_gtrid("etl-1", "abcdefghijkl", number), 0, "one") for number in range(3)]
    url = users.url("one").replace("txpool@", "clerk@")
    clerk = make_driver(DataSourceSettings.load(name="one", driver="psycopg", url=url, password=Secret("clerk")))
    for xid in xids:
        if xid is xids[1]:
            prepare(site, "one", xid.joined)
        else:
            raw = clerk.connect()
            clerk.execute(raw, "select 1")
            clerk.execute(raw, f"prepare transaction '{xid.joined}'")
            clerk.close(raw)
    manager = PostgreSQLBranchRecovery("one", clerk)
    phase_two = manager.phase_two()
    branches = [phase_two.branch(BranchRecord(xid, "one")) for xid in xids]
    for branch in branches:
        branch.start_commit()
    outcomes = [branch.await_commit() for branch in branches]
    assert outcomes == [BranchOutcome.COMMITTED, BranchOutcome.UNKNOWN, BranchOutcome.COMMITTED]
    assert "permission denied" in manager.why_not(BranchRecord(xids[1], "one"))
    assert _reasons(manager, (xids[0], xids[2])) == ["", ""]
    assert users.prepared() == [xids[1].joined]


def _reasons(manager: PostgreSQLBranchRecovery, xids: tuple[Xid, ...]) -> list[str]:
    return [manager.why_not(BranchRecord(xid, "one")) for xid in xids]


def test_what_has_become_of_many_gone_branches_is_written_together(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    left_behind(site, 6)
    for gid in site.databases.prepared():
        if ":one:" in gid:
            site.databases.execute("one", f"rollback prepared '{gid}'")
    writes: list[str] = []
    write = GroupCommit.write

    def counting(group: GroupCommit, work: Any, *arguments: Any) -> Any:
        writes.append(getattr(work, "__qualname__", ""))
        return write(group, work, *arguments)

    monkeypatch.setattr(GroupCommit, "write", counting)
    report = site.manager().scan()
    assert len(report.heuristics) == len(report.committed) == len(report.forgotten) == 6
    assert len([each for each in writes if "record" in each]) == 2  # the outcomes, and how all databases ended
    assert site.databases.prepared() == []
