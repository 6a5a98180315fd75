"""A database that ends a branch by itself remembers that until it is told to forget it: not before the log has it.

None of the databases here does that. So one stands between txpool and Derby's XAResource that does it as X/Open says.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest

import txpool
from recovery import RecoveryManager
from recovery.scan import saved
from tests.conftest import Databases
from tests.support.jdbc_places import JdbcPlaces
from txpool import failpoints
from txpool.datasource import DataSource
from txpool.log.base import DecisionLog
from txpool.resources.jdbc.branches import codes
from txpool.resources.jdbc.branches.xid import key_of
from txpool.resources.jdbc.databases.derby import Derby
from txpool.resources.jdbc.jvm import jvm
from txpool.tm.manager import get_manager

COMMIT, ROLLBACK = "commit", "rollback"


class Willful:
    """What a database that ends branches by itself keeps: shared by its connections."""

    def __init__(self, code: int, log: Path) -> None:
        self.code = code
        #: What it has ended by itself, by name.
        self.remembered: dict[str, Any] = {}
        #: What the log had on disk, each time that it was told to forget.
        self.recorded: list[list[tuple[str, str]]] = []
        self._log = log

    def heuristics(self) -> list[tuple[str, str]]:
        with closing(sqlite3.connect(self._log / "log.db")) as log:
            return log.execute("select decided, ended from heuristics").fetchall()


class WillfulResource:
    """One connection's XAResource."""

    def __init__(self, database: Willful, resource: Any) -> None:
        self._database = database
        self._resource = resource

    def __getattr__(self, name: str) -> Any:
        return getattr(self._resource, name)

    def commit(self, xid: Any, one_phase: bool) -> None:
        self._end(xid)

    def rollback(self, xid: Any) -> None:
        self._end(xid)

    def _end(self, xid: Any) -> None:
        key, kept = key_of(xid), self._database.remembered
        if key not in kept:
            if self._database.code == codes.XA_HEURCOM:
                self._resource.commit(xid, False)
            else:
                self._resource.rollback(xid)
            kept[key] = xid
        raise jvm.started().load("javax.transaction.xa.XAException")(self._database.code)

    def recover(self, flags: int) -> list[Any]:
        return [*self._resource.recover(flags), *self._database.remembered.values()]

    def forget(self, xid: Any) -> None:
        self._database.recorded.append(self._database.heuristics())
        del self._database.remembered[key_of(xid)]


@pytest.fixture
def willful(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Willful:
    database = Willful(request.param, tmp_path / "txlog")
    identify = Derby.identify

    def identify_and_stand_between(self: Derby, raw: Any, *, writes: bool) -> Any:
        if raw.xa is not None and not isinstance(raw.xa, WillfulResource):
            raw.xa = WillfulResource(database, raw.xa)
        return identify(self, raw, writes=writes)

    monkeypatch.setattr(Derby, "identify", identify_and_stand_between)
    return database


@pytest.fixture
def derby(jdbc_places: JdbcPlaces, willful: Willful, tmp_path: Path) -> Iterator[DataSource]:
    """Derby, and a decision log in a folder."""
    txpool.configure(node_name="etl-1", log_url=f"sqlite:///{tmp_path}/txlog", log_create=True)
    yield jdbc_places.open("derby")
    failpoints.disarm()
    txpool.configure()


@pytest.fixture
def other(databases: Databases) -> Iterator[DataSource]:
    """PostgreSQL, which does as it is told."""
    databases.execute("two", "create table t (id int)")
    with databases.datasource("two", "other") as source:
        yield source


def write(*sources: DataSource) -> None:
    with txpool.transaction():
        for source in sources:
            source.connect().cursor().execute("insert into t (id) values (1)")


@contextmanager
def recovering(*sources: DataSource) -> Iterator[tuple[RecoveryManager, DecisionLog]]:
    log = get_manager().log
    assert log is not None
    with closing(RecoveryManager(log=log, datasources=sources, backoff=0)) as manager:
        yield manager, log


@pytest.mark.parametrize(
    ("willful", "ended"), [(codes.XA_HEURRB, "rolled back"), (codes.XA_HEURMIX, "lost")], indirect=["willful"]
)
def test_the_coordinator_records_it_first(willful: Willful, derby: DataSource, other: DataSource, ended: str) -> None:
    with pytest.raises(txpool.HeuristicError):
        write(derby, other)
    assert willful.recorded == [[(COMMIT, ended)]]
    assert willful.remembered == {}
    with recovering(derby, other) as (manager, log):
        manager.scan()
        (ends,) = saved.read(log).ends.values()
        assert ends == {"derby": ended, "other": "committed"}, "what is gone now has ended as it was recorded"


@pytest.mark.parametrize("willful", [codes.XA_HEURCOM], indirect=True)
def test_what_it_has_ended_as_decided_is_forgotten_at_once(
    willful: Willful, derby: DataSource, other: DataSource, jdbc_places: JdbcPlaces
) -> None:
    write(derby, other)
    assert willful.recorded == [[]]
    assert willful.remembered == {}
    assert jdbc_places.rows(derby) == [1]


@pytest.mark.parametrize(
    ("willful", "points", "recorded"),
    [
        (codes.XA_HEURRB, ["branch.commit-sent"], (COMMIT, "rolled back")),
        (codes.XA_HEURHAZ, ["branch.commit-sent"], (COMMIT, "lost")),
        (codes.XA_HEURCOM, ["coordinator.prepared", "branch.rollback-sent"], (ROLLBACK, "committed")),
        (codes.XA_HEURMIX, ["coordinator.prepared", "branch.rollback-sent"], (ROLLBACK, "lost")),
    ],
    indirect=["willful"],
)
def test_recovery_is_told_what_an_earlier_command_was_not(
    willful: Willful,
    derby: DataSource,
    other: DataSource,
    points: list[str],
    recorded: tuple[str, str],
) -> None:
    """The database has ended the branch by itself, and whoever asked has not heard it."""
    for point in points:
        failpoints.arm(point)
    if recorded[0] == COMMIT:
        write(derby, other)
    else:
        with pytest.raises(txpool.TransactionRolledBack):
            write(derby, other)
    failpoints.disarm()
    assert len(willful.remembered) == 1
    with recovering(derby, other) as (manager, _):
        report = manager.scan()
        assert [(each.decided, each.ended) for each in report.heuristics] == [recorded]
        assert willful.recorded == [[recorded]]
        assert willful.remembered == {}
        assert manager.scan().heuristics == ()
    assert willful.heuristics() == [recorded]
