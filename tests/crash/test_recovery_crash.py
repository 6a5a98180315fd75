"""A transaction killed at every point, then recovery; and recovery killed at each of its own, then recovery again."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.integration.recovery_site import WRITER, Site

BOTH = ("one", "two")
MARKED = ("one", "two", "ledger")
POINTS_OF_RECOVERY = [
    "recovery.listed",
    "recovery.fenced",
    "recovery.read",
    "recovery.tombstone",
    "recovery.branch",
    "recovery.branch=kill@2",
    "recovery.forget",
    "branch.commit-sent",
    "branch.rollback-sent",
]


@pytest.fixture
def site(tmp_path: Path, databases: Any) -> Site:
    return Site(tmp_path, databases)


def assert_ended(site: Site, names: tuple[str, ...], committed: bool) -> None:
    """In every database the same, nothing prepared, nothing kept."""
    assert site.counts() == {name: int(committed and name in names) for name in MARKED}
    assert site.databases.prepared() == []
    assert site.marks() == []
    assert site.kept() == {}


@pytest.mark.parametrize(
    ("names", "point", "committed"),
    [
        (BOTH, "coordinator.begin", False),
        (BOTH, "coordinator.preparing", False),
        (BOTH, "coordinator.prepared", False),
        (BOTH, "log.record", False),
        (BOTH, "log.recorded", True),
        (BOTH, "coordinator.decided", True),
        (BOTH, "coordinator.committing", True),
        (BOTH, "coordinator.one-committed", True),
        (BOTH, "coordinator.committed", True),
        (MARKED, "marked.row", False),
        (MARKED, "coordinator.marked", False),
        (MARKED, "coordinator.preparing", False),
        (MARKED, "coordinator.prepared", False),
        (MARKED, "marked.commit", False),
        (MARKED, "marked.committed", True),
        (MARKED, "coordinator.one-committed", True),
        (MARKED, "coordinator.committed", True),
    ],
)
def test_a_killed_transaction_has_one_outcome(site: Site, names: tuple[str, ...], point: str, committed: bool) -> None:
    site.killed(WRITER, *names, failpoints=f"{point}=kill")
    report = site.manager().scan()
    assert not report.errors
    assert not report.left_alone
    assert_ended(site, names, committed)


@pytest.mark.parametrize("point", POINTS_OF_RECOVERY)
@pytest.mark.parametrize(
    ("names", "crash", "committed"),
    [
        (BOTH, "coordinator.prepared", False),
        (BOTH, "coordinator.decided", True),
        (MARKED, "coordinator.prepared", False),
        (MARKED, "marked.committed", True),
    ],
    ids=["undecided", "decided", "unmarked", "marked"],
)
def test_recovery_that_is_killed_goes_on_where_it_was(
    site: Site, names: tuple[str, ...], crash: str, committed: bool, point: str
) -> None:
    site.killed(WRITER, *names, failpoints=f"{crash}=kill")
    first = site.command("scan", failpoints=point if "=" in point else f"{point}=kill")
    unreached = {("recovery.tombstone", BOTH), ("recovery.forget", BOTH if not committed else ())}
    never = (point, names) in unreached or point == f"branch.{'rollback' if committed else 'commit'}-sent"
    assert (first.returncode == -9) is not never, first.stderr
    second = site.command("scan")
    assert second.returncode == 0, second.stderr
    assert_ended(site, names, committed)
