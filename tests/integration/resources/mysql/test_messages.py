"""Commands of txpool's own in one message: each is executed, and answered, as if it were alone."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from tests.integration.resources.mysql.branches import BranchDatabase

#: An unknown branch, an unknown table, and a syntax error.
_REFUSED = {"xa commit 'none'": 1397, "select * from nowhere": 1146, "this is no sql": 1064}


@pytest.fixture(params=[True, False], ids=["several in a message", "one in a message"])
def raw(world: BranchDatabase, request: pytest.FixtureRequest) -> Any:
    if request.param:
        raw = world.driver.connect()
    elif world.driver_name == "mysqlclient":
        raw = world.driver_of(driver_multi_statements="false").connect()
    else:
        pytest.skip("PyMySQL sends several messages at once")
    world.raws.append(raw)
    raw.session.run("set autocommit = 1")
    return raw


def test_one_that_is_refused_stops_no_other(raw: Any) -> None:
    refusals = [(None, ""), *itertools.product(range(3), _REFUSED)]
    for (refused, statement), slow in itertools.product(refusals, (None, *range(4))):
        statements = ["insert into work values (1, 1)", "select 7 as a, 'x' as b", "update work set id = id + 1"]
        expected: list[tuple[int, tuple[Any, ...], int]] = [(0, (), 1), (0, ((7, "x"),), 0), (0, (), 1)]
        if refused is not None:
            statements.insert(refused, statement)
            expected.insert(refused, (_REFUSED[statement], (), 0))
        if slow is not None:
            statements.insert(slow, "commit")
            expected.insert(slow, (0, (), 0))
        raw.session.run("delete from work")
        raw.session.send(*statements)
        found = [(each.code, each.rows, 0 if each.rows else each.affected) for each in raw.session.receive()]
        assert found == expected, statements
        assert raw.session.run("select id from work") == ((2,),), statements
    assert not raw.lost


def test_no_statement_of_the_program_stands_behind_another_where_its_settings_say_so(world: BranchDatabase) -> None:
    if world.driver_name != "mysqlclient":
        pytest.skip("PyMySQL takes one statement")
    with world.datasource(mode="local", driver_multi_statements="false").connect() as connection:
        cursor = connection.cursor()
        with pytest.raises(world.module.ProgrammingError, match="1064"):
            cursor.execute("select 1; delete from work")
