"""Rows in a table without transactions stay where the transaction rolls back, and nobody is told that they do not."""

from __future__ import annotations

from contextlib import suppress

import pytest

import txpool
from tests.integration.resources.mysql.branches import BranchDatabase, both, work
from txpool import failpoints


@pytest.fixture
def keeping(managed: BranchDatabase) -> BranchDatabase:
    """`one` has a table without transactions, called m."""
    managed.server.execute("create table m (id int) engine=myisam", database="one")
    return managed


def write(source: txpool.DataSource) -> None:
    """Over PyMySQL the statement is an error, though its row is there; mysqlclient does not tell."""
    with suppress(txpool.NotSupportedError):
        source.connect().cursor().execute("insert into m values (1)")


def kept(place: BranchDatabase) -> list[tuple[int]]:
    return place.server.execute("select id from m", database="one")


@pytest.mark.parametrize("mode", ["xa", "cmr", "local", "last-resource"])
def test_a_rollback_tells_that_they_stay(keeping: BranchDatabase, mode: str) -> None:
    source = keeping.datasource("one", mode=mode, name=mode)
    if mode == "cmr":
        source.xids_table().create()  # type: ignore[attr-defined]
    with pytest.raises(txpool.HeuristicCommit), txpool.transaction():
        work(1, source)
        write(source)
        raise ZeroDivisionError
    assert (keeping.rows(), kept(keeping)) == ([], [(1,)])
    with pytest.raises(ZeroDivisionError), txpool.transaction():
        work(2, source)
        raise ZeroDivisionError
    assert keeping.rows() == [], "the next transaction is told as it is"


def test_a_rollback_after_the_prepare_tells_it(keeping: BranchDatabase) -> None:
    source, other = keeping.datasource("one"), keeping.datasource("two")
    refused = pytest.raises(txpool.HeuristicMixed)
    with refused, failpoints.arming("log.record", "raise"), txpool.transaction():
        work(1, source, other)
        write(source)
    assert (both(keeping), kept(keeping)) == ([[], []], [(1,)])
    with txpool.transaction():
        work(2, source, other)
    assert both(keeping) == [[2], [2]], "the connections are fit for use"


def test_a_branch_alone_that_cannot_commit_is_not_told_as_committed(keeping: BranchDatabase) -> None:
    keeping.require_pymysql()
    source = keeping.datasource("one")
    with pytest.raises(txpool.TransactionInDoubt, match="a part of it is committed, or may be"), txpool.transaction():
        work(1, source)
        write(source)
    assert (keeping.rows(), kept(keeping)) == ([], [(1,)])


@pytest.mark.parametrize("mode", ["xa", "cmr", "local", "last-resource"])
def test_what_follows_is_no_error_of_its_own(keeping: BranchDatabase, mode: str) -> None:
    """It was executed: whoever repeats what has failed would have its rows twice."""
    keeping.require_pymysql()
    source = keeping.datasource("one", mode=mode, name=mode)
    if mode == "cmr":
        source.xids_table().create()  # type: ignore[attr-defined]
    failed = False
    with pytest.raises(txpool.HeuristicCommit), txpool.transaction() as transaction:
        with pytest.raises(txpool.NotSupportedError, match="no rollback undoes"):
            source.connect().cursor().execute("insert into m values (1)")
        try:
            work(1, source)
        except txpool.Error:
            failed = True
        transaction.set_rollback_only()
    assert not failed
    assert (keeping.rows(), kept(keeping)) == ([], [(1,)])


def test_a_temporary_table_that_stays_is_none_of_it(managed: BranchDatabase) -> None:
    """The server warns of that, too, where it writes a binary log."""
    source = managed.datasource("one")
    with pytest.raises(ZeroDivisionError), txpool.transaction():
        work(1, source)
        source.connect().cursor().execute("create temporary table made_inside (id int)")
        raise ZeroDivisionError
    assert managed.rows() == []
