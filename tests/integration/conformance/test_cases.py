"""Each case passes with txpool's own resource managers, and fails with one that misbehaves in that way."""

from __future__ import annotations

import gc
import io
import math
import sqlite3
from contextlib import closing
from typing import TYPE_CHECKING, Any

import pytest
from rich.console import Console

from tests.integration.conformance import broken, broken_marks
from txpool.conformance.cases.case import Verdict
from txpool.conformance.kit import CASES, run_cases
from txpool.conformance.report import as_dict, print_table
from txpool.conformance.subject import Subject
from txpool.errors import InterfaceError
from txpool.resources.manager import ResourceManager

if TYPE_CHECKING:
    from tests.conftest import Databases
    from tests.integration.conformance.conftest import SettingsOf

BY_NAME = {case.name: case for case in CASES}
APPLY = {
    "xa": set(BY_NAME) - {"fence"},
    "cmr": set(BY_NAME) - {"unknown-xid", "foreign-xid", "undone", "named-again", "gone", "forgotten"},
    "last-resource": {"reader", "swallowed-failure", "own-commit"},
    "local": {"reader", "swallowed-failure", "own-commit"},
}
#: The case, the mode, the resource manager that misbehaves, and a part of what the kit says of it.
BROKEN: list[tuple[str, str, type[ResourceManager], str]] = [
    ("dropped-client", "xa", broken.Forgetful, "cannot be read after its branch was ended"),
    ("dropped-client", "cmr", broken_marks.NeverCommits, "put beside a row that is committed"),
    ("killed-server", "xa", broken.InMemory, "was answered 'unknown'"),
    ("killed-server", "cmr", broken_marks.PostgreSQLNeverCommits, "put beside a row that is committed"),
    ("unknown-xid", "xa", broken.Obliging, "was never prepared was answered 'committed'"),
    ("duplicate-xid", "xa", broken.Overwriting, "a second branch was prepared"),
    ("duplicate-xid", "xa", broken.RollsBackByName, "ended another's branch"),
    ("duplicate-xid", "cmr", broken_marks.ReplacesRows, "a second row was committed"),
    ("foreign-xid", "xa", broken.Lenient, "is listed as one of txpool's"),
    ("two-finishing", "xa", broken.TakesAbsentForDone, "two that ended one branch were told"),
    ("two-finishing", "cmr", broken_marks.TombstoneTakenForRow, "two recoverers found"),
    ("reader", "xa", broken.AllReaders, "taken for one that has only read"),
    ("reader", "xa", broken.LeavesReaderPrepared, "has left a prepared branch"),
    ("reader", "cmr", broken_marks.AllMarkedReaders, "taken for one that has only read"),
    ("swallowed-failure", "xa", broken.AnyAnswerIsYes, "after PREPARE was answered as success"),
    ("swallowed-failure", "xa", broken.AnyCommitIsOne, "after COMMIT was answered as success"),
    ("swallowed-failure", "last-resource", broken.AnyCommitIsOne, "after COMMIT was answered as success"),
    ("own-commit", "xa", broken.BlindToCommit, "had committed a part"),
    ("own-commit", "local", broken.BlindToCommit, "had committed a part"),
    ("limits-of-names", "xa", broken.LowerCase, "was refused"),
    ("limits-of-names", "cmr", broken_marks.IgnoresCase, "its case is not told apart"),
    ("undone", "xa", broken.CommitsAtRollback, "rolled back before its PREPARE"),
    ("named-again", "xa", broken.KeepsFirstName, "which was named"),
    ("gone", "xa", broken.SureOfItsServer, "though its record has no"),
    ("forgotten", "xa", broken.RemembersAll, "remembered as a heuristic one"),
    ("listing", "xa", broken.AnotherIdentity, "recovery would not look"),
    ("listing", "xa", broken.ListsTwice, "more than once"),
    ("listing", "cmr", broken_marks.WithoutBranches, "with other branches"),
    ("fence", "cmr", broken_marks.ReplacingTombstones, "put beside a row that is committed"),
    ("fence", "cmr", broken_marks.TombstoneTakenForRow, "another's tombstone for a row"),
    ("fence", "cmr", broken_marks.ReplacesRows, "the row was committed beside it"),
    ("hanging-owner", "xa", broken.WaitsForOwner, "was answered 'unknown'"),
    ("hanging-owner", "xa", broken.AbsentToItsOwnerIsDone, "a heuristic outcome would go unseen"),
    ("hanging-owner", "cmr", broken_marks.WaitsForEver, "waited longer than"),
]


class Killed:
    """The tests' own server."""

    def __init__(self, server: Any) -> None:
        self._server = server

    def kill(self) -> None:
        self._server.stop("immediate")

    def start(self) -> None:
        self._server.start()


@pytest.mark.parametrize(
    ("driver", "mode"), [("psycopg", each) for each in APPLY] + [("sqlite3", "cmr"), ("sqlite3", "local")]
)
def test_txpools_own_pass(driver: str, mode: str, settings_of: SettingsOf, databases: Databases) -> None:
    server = Killed(databases.server) if driver == "psycopg" else None
    found = run_cases(settings_of(mode, driver), server=server)
    assert [(each.case.name, each.reason) for each in found.results if each.verdict is Verdict.FAILED] == []
    assert (found.trouble, found.left) == ("", ())
    expected = APPLY[mode] - ({"killed-server"} if driver == "sqlite3" else set())
    assert {each.case.name for each in found.results if each.verdict is Verdict.PASSED} == expected
    assert found.passed


@pytest.mark.parametrize(
    ("name", "mode", "manager", "says"), BROKEN, ids=[f"{c}-{m}-{k.__name__}" for c, m, k, _ in BROKEN]
)
def test_a_broken_one_fails(
    name: str,
    mode: str,
    manager: type[ResourceManager],
    says: str,
    settings_of: SettingsOf,
    request: pytest.FixtureRequest,
) -> None:
    server = Killed(request.getfixturevalue("postgres")) if name == "killed-server" else None
    found = run_cases(settings_of(mode, manager), server=server, cases=[BY_NAME[name]], patience=1.5)
    (result,) = found.results
    assert (result.verdict, says in result.reason) == (Verdict.FAILED, True), (result, found)
    assert not found.passed


def test_an_error_of_its_own_is_shown_with_its_traceback(settings_of: SettingsOf) -> None:
    found = run_cases(settings_of("xa", broken.Mistaken), cases=[BY_NAME["dropped-client"]], patience=1.5)
    (result,) = found.results
    assert result.reason == "KeyError: 'a mistake of its own'"
    assert result.traceback.splitlines()[-1] == result.reason
    assert "in commit\n" in result.traceback
    written = io.StringIO()
    print_table(Console(file=written, width=80), [found])
    assert 'raise KeyError("a mistake of its own")' in written.getvalue()
    assert as_dict([found])["datasources"][0]["cases"][0]["traceback"] == result.traceback
    before = run_cases(settings_of("xa", broken.Unlistable), cases=[BY_NAME["dropped-client"]], patience=1.5)
    assert "in recover\n" in before.traceback
    print_table(Console(file=written, width=80), [before])
    assert written.getvalue().count('raise KeyError("a mistake of its own")') == 2


@pytest.mark.slow
@pytest.mark.parametrize("unanswered", [1, math.inf])
def test_a_foreign_branch_that_cannot_be_ended_at_once_is_not_forgotten(
    unanswered: float, settings_of: SettingsOf, databases: Databases, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Recovery never lists it, so it is tried again, or its name is said."""
    monkeypatch.setattr(broken.Unanswering, "unanswered", unanswered)
    found = run_cases(settings_of("xa", broken.Unanswering), cases=[BY_NAME["foreign-xid"]], patience=1.5)
    left = databases.prepared()
    assert (len(left) > 0) is (unanswered == math.inf)
    assert all(any(name in each for each in found.left) for name in left)


def test_every_case_has_a_broken_one_in_every_mode_of_its_own() -> None:
    have = {(name, mode) for name, mode, *_ in BROKEN}
    own = {(case.name, mode) for case in CASES for mode in ("xa", "cmr") if case.by_mode.get(mode)}
    shared = {("swallowed-failure", "cmr"), ("own-commit", "cmr")}  # the same code as in the other modes
    assert own - have == shared


def test_a_case_that_never_ends_is_given_up(settings_of: SettingsOf) -> None:
    settings = settings_of("cmr", broken_marks.WaitsForEver)
    found = run_cases(settings, cases=[BY_NAME["hanging-owner"]], patience=60, limit=1.0)
    assert found.results[0].verdict is Verdict.FAILED
    assert "has not ended within 1 s" in found.results[0].reason


def test_a_case_that_was_given_up_keeps_no_connection(settings_of: SettingsOf) -> None:
    """It goes on in its thread, after the kit has removed its tables and closed its pool."""
    subject = Subject(settings_of("xa"))
    subject.open()
    work = subject.workload
    assert subject.close() == []
    with pytest.raises(InterfaceError, match="the kit has ended"):
        work.visible("first")
    del subject, work
    gc.collect()  # a connection that is open still would warn


def test_a_file_keeps_its_data(settings_of: SettingsOf) -> None:
    settings = settings_of("cmr", "sqlite3")
    path = settings.url.removeprefix("sqlite:///")
    dump = (
        "create table xids (xid text primary key, kind text)",
        "create table mine (id integer)",
        "insert into xids values ('theirs', 'commit')",
        "insert into mine values (7)",
    )
    with closing(sqlite3.connect(path)) as connection:
        for statement in dump:
            connection.execute(statement)
        connection.commit()
        before = list(connection.iterdump())
    assert run_cases(settings).passed
    with closing(sqlite3.connect(path)) as connection:
        assert list(connection.iterdump()) == before
