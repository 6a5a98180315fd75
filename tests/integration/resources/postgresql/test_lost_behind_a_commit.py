"""The program's own COMMIT in a message whose session is lost behind it: nobody says rolled back, or does it again."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import txpool
from tests.support.unseen import unseen

if TYPE_CHECKING:
    from tests.conftest import Databases

KILL = "select pg_terminate_backend(pg_backend_pid())"


@pytest.mark.parametrize("mode", ["local", "xa"])
@pytest.mark.parametrize(
    "statements",
    [
        (f"insert into t values (1); commit; {KILL}",),
        ("insert into t values (1)", f"commit; {KILL}"),
        ("insert into t values (1)", f"/* done */ END; {KILL}"),
    ],
)
def test_it_may_have_committed(databases: Databases, tmp_path: Path, mode: str, statements: tuple[str, ...]) -> None:
    databases.execute("one", "create table t (n int)")
    txpool.configure(node_name="tests", log_url=f"sqlite:///{tmp_path}/log", log_create=True)
    source, calls = databases.datasource("one", mode=mode), []

    @txpool.transactional(attempts=2)
    def work() -> None:
        calls.append(1)
        with source.connect() as connection:
            for statement in statements:
                connection.execute(unseen(statement))

    with source, pytest.raises(txpool.HeuristicError):
        work()
    assert databases.rows("one", "select n from t") == [(1,)]
    assert len(calls) == 1
    txpool.configure()


def test_what_has_no_commit_has_rolled_back(databases: Databases) -> None:
    databases.execute("one", "create table t (n int)")
    source, calls = databases.datasource("one", mode="local"), []

    @txpool.transactional(attempts=2)
    def work() -> None:
        calls.append(1)
        with source.connect() as connection:
            connection.execute(f"insert into t values (1); {KILL}")

    with source, pytest.raises(txpool.OperationalError, match="terminating connection"):
        work()
    assert databases.rows("one", "select n from t") == []
    assert len(calls) == 1
