"""The modes beside xa, and what a marked datasource has kept."""

from __future__ import annotations

from contextlib import suppress

import pytest

import txpool
from tests.conftest import Databases
from tests.integration.resources.mysql.branches import BranchDatabase, both, work
from tests.support.unseen import unseen


@pytest.mark.parametrize("mode", ["local", "last-resource", "cmr"])
def test_other_modes(managed: BranchDatabase, databases: Databases, mode: str) -> None:
    databases.execute("one", "create table work (id int)")
    source = managed.datasource(mode=mode, name=mode)
    other = databases.datasource("one", "pg")
    if mode == "cmr":
        source.xids_table().create()  # type: ignore[attr-defined]
    with other:
        with txpool.transaction():
            source.connect().cursor().execute("insert into work values (1, 1)")
        with pytest.raises(ZeroDivisionError), txpool.transaction():
            source.connect().cursor().execute("insert into work values (2, 2)")
            raise ZeroDivisionError
        assert managed.rows() == [1]
        if mode == "local":
            with pytest.raises(txpool.ProgrammingError, match="must be alone"), txpool.transaction():
                other.connect().cursor().execute("insert into work (id) values (3)")
                source.connect()
            return
        with txpool.transaction():
            for each in (source, other):
                each.connect().cursor().execute("insert into work (id) values (3)")
        with pytest.raises(txpool.Error), txpool.transaction():
            for each in (source, other):
                each.connect().cursor().execute("insert into work (id) values (4)")
            source.connect().cursor().execute("create table x (i int)")  # which commits
        assert managed.rows() == [1, 3, 4], "what the program's own DDL has committed stays"
        assert databases.rows("one", "select id from work") == [(3,)]
        with pytest.raises(txpool.Error), txpool.transaction():
            for each in (source, other):
                each.connect().cursor().execute("insert into work (id) values (5)")
            source.connect().cursor().execute("insert into work (id) values (5)")
        assert managed.rows() == [1, 3, 4]
    assert source.statistics().created <= 2
    assert databases.prepared() == []


def test_what_a_marked_datasource_has_kept_is_told(managed: BranchDatabase, databases: Databases) -> None:
    """The others roll back, and a heuristic outcome says that this one has not, or may not have."""
    databases.execute("one", "create table work (id int)")
    managed.server.execute(
        "create table myisam (id int) engine=myisam",
        "create procedure p() begin commit; insert into work (id) values (9); end",
        database="two",
    )
    marked = managed.datasource("two", mode="cmr")
    marked.xids_table().create()  # type: ignore[attr-defined]
    with databases.datasource("one", "pg") as pg:
        if managed.driver_name == "pymysql":  # mysqlclient does not tell
            with pytest.raises(txpool.HeuristicMixed), txpool.transaction():
                work(1, pg)
                with suppress(txpool.NotSupportedError):
                    marked.connect().cursor().execute("insert into myisam values (1)")
            assert managed.server.execute("select id from myisam", database="two") == [(1,)]
        with pytest.raises(txpool.HeuristicHazard), txpool.transaction():
            work(2, pg, marked)
            marked.connect().cursor().execute("call p()")
            work(3, marked)
    assert databases.rows("one", "select id from work") == []
    assert both(managed)[1] == [2]


@pytest.mark.parametrize("ends", ["commit release", "insert into work (id) values (2); commit"])
@pytest.mark.parametrize("committing", [True, False], ids=["commit", "rollback"])
def test_what_the_programs_own_sql_has_committed_is_told_where_its_session_is_lost(
    managed: BranchDatabase, ends: str, *, committing: bool
) -> None:
    """It ends its session, or leaves answers unread, so that nobody can ask for the savepoint."""
    if ";" in ends and managed.driver_name == "pymysql":
        pytest.skip("PyMySQL takes one statement in a message")
    marked, prepared = managed.datasource("two", mode="cmr"), managed.datasource("one")
    marked.xids_table().create()  # type: ignore[attr-defined]
    txpool.begin()
    for source in (marked, prepared):
        source.connect().cursor().execute("insert into work (id) values (1)")
    cursor = marked.connect().cursor()
    with suppress(txpool.ProgrammingError):  # PyMySQL sees it at the statement
        cursor.execute(unseen(ends))
    with pytest.raises((txpool.HeuristicHazard, txpool.HeuristicMixed)):
        (txpool.commit if committing else txpool.rollback)()
    assert managed.rows() == []
    assert (1,) in managed.server.execute("select id from work", database="two")
