"""What the tests here see of a transaction: that it is open, and, as soon as it has ended, that it is not."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest

import txpool
from tests.integration.interrupts.worlds import world_of


@pytest.mark.parametrize("name", ["psycopg alone", "sqlite3 alone", "pymysql alone", "pymysql"])
def test_one_that_has_ended_is_seen_no_more(name: str, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    with world_of(name, request, tmp_path) as world:
        assert world.left() == []
        for number in range(20):
            txpool.begin()
            try:
                for source in world.sources:
                    with closing(source.connect()) as connection:
                        connection.cursor().execute(f"insert into t values ({number})")
                open_ones = world.left()
            finally:
                txpool.rollback()
            assert open_ones
            assert world.left() == []
