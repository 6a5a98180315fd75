"""A resource manager that is no database, as a broker's is: it begins by itself, and names its branches early."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import txpool
from tests.integration.resources.own.outboxes import file_of, left, sent
from tests.support.outbox import ProvenOutbox
from txpool.conformance.cases.case import Verdict
from txpool.conformance.kit import run_cases
from txpool.datasource import find_source
from txpool.resource import BranchRecovery, ResourceManager, Xid
from txpool.resources.own.branch import ResourceBranch, ResourceRecovery
from txpool.tm.manager import get_manager


class Branch(ResourceBranch):
    """A branch that has its name from the first."""

    named = False

    def name(self, xid: Xid) -> None:
        if not self.named:
            super().name(xid)
        self.named = True


class Queue(ResourceManager):
    driver = "queue"
    database = "a queue"
    schemes = ("file:",)
    url_example = "file:/srv/queue"
    url_is_path = True
    names_early = True
    instead_of_connecting = "it is a queue"

    def _outbox(self, settings: Any) -> Any:
        folder = settings.properties.entry("url").folder / settings.url.removeprefix("file:")
        return ProvenOutbox(settings.name, folder)

    def begin(self, source: Any, transaction: Any, timeout: float | None) -> tuple[Any, Branch]:
        outbox = self._outbox(source.settings)
        work = outbox.begin()
        return work, Branch(outbox, work, transaction.gtrid)

    def branch_recovery(self, settings: Any, *, recovery: bool = True) -> BranchRecovery:
        return ResourceRecovery(self._outbox(settings))

    def workload(self, source: Any) -> Any:
        return self._outbox(source.settings).workload()


@pytest.fixture
def file(log: Path, outbox: Any) -> Path:
    path = file_of(outbox, log, f"{__name__}:Queue")
    path.chmod(0o600)
    return path


def test_it_takes_part_with_another(file: Path, outbox: Any, second: Any) -> None:
    source = find_source(file)
    with txpool.transaction() as tx:
        part = tx.enlist_datasource(source)
        assert part.branch.record.xid.joined.startswith(tx.gtrid)
        name = part.branch.record.xid
        part.pooled.write(b"one")
        tx.enlist(second).write(b"two")
    assert part.branch.record.xid == name
    assert (sent(outbox), sent(second), left(outbox), left(second)) == (["one"], ["two"], [], [])


def test_an_exception_rolls_it_back(file: Path, outbox: Any) -> None:
    with pytest.raises(ValueError), txpool.transaction() as tx:
        tx.enlist_datasource(find_source(file)).pooled.write(b"one")
        raise ValueError
    assert (sent(outbox), left(outbox)) == ([], [])


def test_it_passes_the_kit(file: Path, outbox: Any) -> None:
    found = run_cases(find_source(file).settings)
    assert [(each.case.name, each.reason) for each in found.results if each.verdict is Verdict.FAILED] == []
    passed = {each.case.name for each in found.results if each.verdict is Verdict.PASSED}
    assert {"dropped-client", "undone", "named-again", "gone", "forgotten", "listing"} <= passed
    assert found.passed


def test_it_can_be_adopted(file: Path, outbox: Any) -> None:
    source = find_source(file)
    tx = get_manager().new_transaction()
    part = tx.enlist_datasource(source)
    part.pooled.write(b"one")
    part.branch.start_prepare()
    branch = source.prepared_branch(part.branch.record)
    branch.start_commit()
    assert branch.await_commit().value == "committed"
    with pytest.raises(txpool.HeuristicHazard):  # another has ended its branch, and nothing shows how
        tx.rollback()
    assert sent(outbox) == ["one"]


def test_it_has_no_connections(file: Path) -> None:
    for use in (txpool.connect, txpool.DataSource.from_properties):
        with pytest.raises(txpool.NotSupportedError, match="has no connections: it is a queue"):
            use(file)
