"""The conformance kit finds what is wrong with a resource of a user's own."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.integration.resources.own.outboxes import file_of
from tests.support.outbox import ProvenOutbox
from txpool.config.settings import DataSourceSettings
from txpool.conformance.cases.case import Verdict
from txpool.conformance.kit import CASES, run_cases
from txpool.resource import Refused


class Agreeable(ProvenOutbox):  # type: ignore[misc]
    """Whatever is asked for has happened."""

    def commit(self, xid: str) -> bool:
        super().commit(xid)
        return True


class Forgetful(ProvenOutbox):  # type: ignore[misc]
    """What is prepared is known to the object that prepared it."""

    def __init__(self, name: str, path: Path) -> None:
        super().__init__(name, path)
        self.known: set[str] = set()

    def prepared(self) -> set[str]:
        return self.known


class Careless(ProvenOutbox):  # type: ignore[misc]
    """A name that is taken is an error like any other, so that what has it is rolled back."""

    def begin(self) -> Any:
        work = super().begin()
        prepare: Callable[[str], None] = work.prepare

        def careless(xid: str) -> None:
            try:
                prepare(xid)
            except Refused as error:
                raise OSError(str(error)) from error

        work.prepare = careless
        return work


class Anywhere(ProvenOutbox):  # type: ignore[misc]
    """Each object has an identity of its own."""

    def identity(self) -> str:
        return f"{super().identity()}/{id(self)}"


@pytest.mark.parametrize(
    ("kind", "case", "says"),
    [
        (Agreeable, "unknown-xid", "was never prepared was answered 'committed'"),
        (Forgetful, "listing", "are listed"),
        (Careless, "duplicate-xid", "ended another's branch"),
        (Anywhere, "listing", "recovery would not look"),
    ],
)
def test_the_kit_finds_what_is_wrong_with_one(kind: type, case: str, says: str, log: Path, outbox: Any) -> None:
    file = file_of(outbox, log, f"{__name__}:{kind.__name__}")
    found = run_cases(DataSourceSettings.load(file), cases=[each for each in CASES if each.name == case], patience=1)
    (result,) = found.results
    assert (result.verdict, says in result.reason) == (Verdict.FAILED, True), found


def test_the_kit_must_know_what_to_write(log: Path, outbox: Any) -> None:
    assert "has no workload()" in run_cases(DataSourceSettings.load(file_of(outbox, log))).trouble
