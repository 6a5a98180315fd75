"""That a leftover is found, whichever it is; and that every crash test over databases ends with that look."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager

import psycopg
import pytest

from tests.crash import eventually as places
from tests.crash.eventually import Eventually
from tests.crash.site import CrashSite
from tests.support.repository import ROOT

#: Of a process that this log does not know: recovery leaves it alone.
GTRID = "txp1:etl-1:abcdefghijkl:1"

#: The modules of tests/crash of which no test ends so.
ELSEWHERE = {
    "test_disk": "each image of a simulated disk is judged by tests/crash/disk/verdict.py, which recovers it",
    "test_explorer": "each end of an execution is judged by tests/crash/explorer/final_check.py",
    "test_idempotency_disk": "as test_disk",
    "test_lost_markers": "a branch by itself, with no log and no recovery",
    "test_mutations": "what is left out leaves something",
    "test_own_resource": "as test_disk",
}
#: Tests that have no databases, in modules in which others have some.
WITHOUT_DATABASES = {
    "test_after_any_crash_it_is_whole_and_ends_as_decided",
    "test_a_sync_that_is_left_out_is_found",
    "test_whichever_operation_fails_what_is_told_is_true",
}


@contextmanager
def in_one(world: CrashSite, plant: str, remove: str) -> Iterator[None]:
    for statement in plant.split(";"):
        world.session("one").execute(statement)
    yield
    world.session("one").execute(remove)


@contextmanager
def locked(world: CrashSite) -> Iterator[None]:
    with psycopg.connect(world.server.dsn("one")) as other:
        other.execute("lock table t in exclusive mode")
        yield


@contextmanager
def in_ledger(world: CrashSite) -> Iterator[None]:
    with closing(sqlite3.connect(world.folder / "ledger.db", isolation_level=None)) as file:
        file.execute("begin immediate")
        yield


@contextmanager
def in_log(world: CrashSite) -> Iterator[None]:
    with closing(sqlite3.connect(world.folder / "txlog" / "log.db", isolation_level=None)) as log:
        log.execute("insert into finished (gtrid) values (?)", [GTRID])
        yield
        log.execute("delete from finished")


#: Of what kind each is.
PLANTED: list[tuple[str, Callable[[CrashSite], object]]] = [
    (
        "prepared",
        lambda world: in_one(
            world, "begin; insert into t values (1); prepare transaction 'else'", "rollback prepared 'else'"
        ),
    ),
    (
        "staged",
        lambda world: in_one(
            world,
            f'create schema txpool_spark; create table txpool_spark."{GTRID}:0" (n int)',
            "drop schema txpool_spark cascade",
        ),
    ),
    ("locks", locked),
    ("locks", in_ledger),
    ("finished", in_log),
]


@pytest.mark.costly
def test_whatever_is_left_is_found_unless_it_is_declared_exactly(
    world: CrashSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(places, "PATIENCE", 0)
    for kind, plant in PLANTED:
        declared, exact = Eventually(), Eventually()
        for each in (declared, exact):
            each.in_the(places.world(world))
        with plant(world):  # type: ignore[attr-defined]
            with pytest.raises(AssertionError, match=f"'{kind}'"):
                exact.assert_ended()
            declared.stays(**{kind: 1 + (kind == "prepared")})  # what is prepared has a lock
            exact.stays(**{kind: 9})
            with pytest.raises(AssertionError, match=f"'{kind}'"):
                exact.assert_ended()


@pytest.mark.costly
def test_a_branch_that_recovery_leaves_alone_is_found(world: CrashSite) -> None:
    eventually = Eventually()
    eventually.in_the(places.world(world))
    with in_one(
        world,
        f"begin; insert into t values (1); prepare transaction '{GTRID}:0:one:L'",
        f"rollback prepared '{GTRID}:0:one:L'",
    ):
        with pytest.raises(AssertionError, match=r"has left .*:0:one:L"):
            eventually.assert_ended()


def test_every_crash_test_over_databases_ends_so(request: pytest.FixtureRequest) -> None:
    """Of all that were collected."""
    folder = ROOT / "tests" / "crash"
    without = {
        (item.path.stem, getattr(item, "originalname", item.name))
        for item in request.session.items
        if item.path.parent == folder and "eventually" not in getattr(item, "fixturenames", ())
    }
    names = {name for module, name in without if module not in {*ELSEWHERE, "test_eventually"}}
    assert names <= WITHOUT_DATABASES, "give it the fixture `eventually`"
