"""A log, marks and in-doubt branches of the former version open and end, without any command by hand."""

from __future__ import annotations

import signal

import pytest

from recovery import RecoveryManager
from recovery.scan.report import ScanReport
from tests.integration.upgrade.former import APP, COMMITTED, LEFT_ALONE, WRITER, Former, Make
from txpool.config.settings import RecoverySettings
from txpool.setup.stores import initialise

STORES = pytest.mark.parametrize("store", ["sqlite", "server"])


def scan(site: Former) -> ScanReport:
    manager = RecoveryManager(site.conf)
    try:
        return manager.scan()
    finally:
        manager.close()


@STORES
@pytest.mark.parametrize("recovery_user", ["", "txpool"], ids=["one user", "recovery.user"])
def test_recovery_ends_all_that_the_former_version_has_left(former: Make, store: str, recovery_user: str) -> None:
    """With a recovery.user, nobody has noted the role that has prepared: it counts since it is configured."""
    site = former(store)
    site.configure(recovery_user=recovery_user)
    undecided = len([branch for branch in site.branches() if branch.number in ("2", "4", "5", "6", "8")]) + 4
    report = scan(site)
    assert not report.errors
    assert not report.unreachable
    assert site.databases.prepared() == LEFT_ALONE
    assert site.rows() == COMMITTED
    assert len(report.committed) == 6
    assert len(report.rolled_back) == undecided
    assert {left.gid for left in report.left_alone} == set(LEFT_ALONE)


@STORES
def test_nothing_is_kept_of_it_but_what_waits_for_people(former: Make, store: str) -> None:
    site = former(store)
    # What expires is told by this machine's clock, and the former version has written at its own time.
    site.configure(more="recovery.expiry.interval = none")
    heuristics = site.kept("heuristics")
    scan(site)
    scan(site)  # an abort record goes once no branch of it is listed
    assert site.kept("decisions") == site.kept("pointers") == site.kept("finished") == []
    assert site.marks() == {"ledger": ["txp1:identity"], "book": ["txp1:identity"]}
    assert site.kept("heuristics") == heuristics
    assert site.kept("expired") == [], "a branch has appeared that brings it back"
    assert all(fenced for (fenced,) in site.kept("incarnations", "fenced"))


@STORES
def test_what_people_have_done_is_told_as_before(former: Make, store: str) -> None:
    site = former(store)
    manager = RecoveryManager(site.conf)
    try:
        assert [(deed.command, deed.reason, deed.outcome) for deed in manager.audit_entries()] == [
            ("suspend", "works on the net", "done"),
            ("resume", "", "done"),
        ]
        gone, incarnation = manager.expired()
        ((noted,), (standing,)) = gone.heuristics, site.kept("heuristics", "gtrid")
        assert (noted.datasource, noted.decided, noted.ended) == ("one", "commit", "rolled back")
        assert (incarnation.kind, incarnation.name) == ("incarnation", site.kept("expired", "name")[0][0])
        # A heuristic outcome of that time has no note of how its databases have ended.
        shown = manager.show(standing[0])
        assert shown is not None
        assert [(it.datasource, it.ended) for it in shown.heuristics] == [("two", "rolled back")]
        assert manager.forget(standing[0]) == 1
        assert manager.forget(gone.name) == 1
    finally:
        manager.close()


@STORES
def test_a_suspension_of_that_time_holds_and_is_ended(former: Make, store: str) -> None:
    site = former(store)
    text = '{"node": "etl-1", "since": 1795317111.9, "who": "root@host", "reason": "works on the net"}'
    site.keep_memo("suspended", "etl-1", text)
    manager = RecoveryManager(site.conf)
    try:
        before = site.databases.prepared()
        manager.scan()
        assert site.databases.prepared() == before
        held = manager.suspended()
        assert held is not None
        assert (held.node, held.who, held.reason) == ("etl-1", "root@host", "works on the net")
        assert manager.resume()
        manager.scan()
        assert site.rows() == COMMITTED
    finally:
        manager.close()


@STORES
def test_init_leaves_a_log_of_that_time_as_it_is(former: Make, store: str) -> None:
    site = former(store)
    before = site.stored()
    assert all(step.done for step in initialise(RecoverySettings.load(site.conf)))
    assert site.stored() == before
    scan(site)
    assert site.rows() == COMMITTED


@STORES
def test_an_adopted_log_keeps_its_notes_and_forgets_who_has_written_them(former: Make, store: str) -> None:
    """So recovery still reports what is noted and not configured, and leaves every earlier branch alone."""
    site = former(store)
    process = site.start(WRITER, "21", "one", "two", failpoints="coordinator.decided=kill")
    process.communicate(timeout=600)
    assert process.returncode == -signal.SIGKILL
    site.disconnect()
    before = site.stored()
    assert len(site.kept("memos where kind = 'incarnation'")) == 1
    assert all(step.done for step in initialise(RecoverySettings.load(site.conf), adopt=True))
    after = site.stored()
    assert after["incarnations"] == after["expired"] == after["finished"] == []
    assert [memo for memo in before["memos"] if memo[0] not in ("incarnation", "timeout")] == after["memos"]
    assert len(site.kept("memos where kind = 'datasource'")) == 2
    for table in ("decisions", "pointers", "heuristics", "databases", "marks"):
        assert after[table] == before[table]
    report = scan(site)
    assert not report.committed
    assert not report.rolled_back
    assert site.stored()["databases"] == before["databases"]


@STORES
def test_a_recovery_that_logs_in_as_somebody_else_is_told_the_owner(former: Make, store: str) -> None:
    """Where no file says who the application is, what the log has not decided waits for prepared.owners."""
    site = former(store)
    site.configure(user="txpool")
    undecided = sorted(branch.gid for branch in site.branches() if branch.number in ("2", "4", "5", "6", "14"))
    # Who decides by a row says so in the names of its branches, which are not believed either.
    report = scan(site)
    assert [alarm.kind for alarm in report.alarms if alarm.subject.startswith("role")] == ["foreign", "foreign"]
    assert set(undecided) <= set(site.databases.prepared())
    # What a decision names counts whoever owns it; a table of marks that belongs to a stranger has not answered.
    assert site.rows() == COMMITTED | {"one": [1, 3, 7]}
    site.configure(user="txpool", owners=APP)
    scan(site)
    assert site.databases.prepared() == LEFT_ALONE
    assert site.rows() == COMMITTED
