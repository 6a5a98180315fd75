"""The driver moves the winners' staged rows, and none of another attempt's, whenever that commits them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import psycopg
import pytest

from txpool.errors import DataError, OperationalError
from txpool.spark.commit.attempts import PartitionResult
from txpool.spark.table.postgresql.merge import PostgreSQLMerge
from txpool.spark.table.target import Target
from txpool.spark.types.columns import Layout

if TYPE_CHECKING:
    from tests.conftest import Databases

pytestmark = pytest.mark.spark


@pytest.fixture(autouse=True)
def staged(databases: Databases) -> None:
    """Two winners' rows, in a table of which one row is there before."""
    databases.execute(
        "one",
        """
        create table landed (id bigint primary key, who text);
        create table loose (id bigint, who text);
        create unlogged table staged (id bigint, who text, txpool_attempt bigint not null);
        insert into landed values (-1, 'old');
        insert into loose values (-1, 'old');
        insert into staged select id, 'new', 10 + id % 2 from generate_series(0, 9) id
        """,
    )


class _Late:
    """A cursor; once it comes to a statement with certain words, a loser's rows are committed before that."""

    def __init__(self, databases: Databases, cursor: Any, words: str) -> None:
        self._databases = databases
        self._cursor = cursor
        self._words = words
        self.came = False

    def execute(self, statement: str, *parameters: Any) -> Any:
        if self._words in statement and not self.came:
            self._databases.execute("one", "insert into staged select id, 'lost', 7 from generate_series(0, 4) id")
            self.came = True
        return self._cursor.execute(statement, *parameters)


@contextmanager
def driver(databases: Databases) -> Iterator[Any]:
    with psycopg.connect(databases.dsn("one")) as connection:
        yield connection.cursor()


def move(mode: str, table: str) -> PostgreSQLMerge:
    layout = Layout(("id", "who"), (), ("bigint", "text"))
    return PostgreSQLMerge(
        "txp1:driver:a:1", Target(table), layout, mode, ("id",) if mode == "upsert" else (), "staged"
    )


def winners(*sizes: int) -> list[PartitionResult]:
    """The third has been empty."""
    return [
        PartitionResult(number, attempt, (), {}, (rows, 0))
        for number, (attempt, rows) in enumerate(zip((10, 11, 12), sizes, strict=True))
    ]


@pytest.mark.parametrize(
    ("mode", "words"),
    [
        ("append", "transaction_isolation"),
        ("append", "insert into"),
        ("overwrite", "delete from"),
        ("overwrite", "insert into"),
        ("upsert", "having"),
        ("upsert", "insert into"),
    ],
)
def test_what_a_loser_commits_meanwhile_stays_out(databases: Databases, mode: str, words: str) -> None:
    # The table has no key where one would tell of rows that are there twice.
    table = "landed" if mode == "upsert" else "loose"
    with driver(databases) as cursor:
        late = _Late(databases, cursor, words)
        move(mode, table).run(late, winners(5, 5, 0))
        assert late.came
    old = [] if mode == "overwrite" else [(-1, "old")]
    found = databases.rows("one", f"select id, who from {table} order by id, who")
    assert found == [*old, *((number, "new") for number in range(10))]


def test_a_winners_row_that_is_missing_is_missed(databases: Databases) -> None:
    with driver(databases) as cursor, pytest.raises(OperationalError, match=r"11 had staged 6 rows .* and 5 are"):
        move("append", "loose").run(cursor, winners(5, 6, 0))
    with driver(databases) as cursor, pytest.raises(OperationalError, match=r"12 had staged 1 rows .* and 0 are"):
        move("append", "loose").run(cursor, winners(5, 5, 1))
    assert databases.rows("one", "select id from loose") == [(-1,)]


def test_the_keys_of_two_winners_are_told_from_a_losers(databases: Databases) -> None:
    databases.execute("one", "insert into staged values (3, 'again', 10)")
    with driver(databases) as cursor, pytest.raises(DataError, match="key id = 3: 2 rows have it"):
        move("upsert", "landed").run(cursor, winners(6, 5, 0))
    assert databases.rows("one", "select id from landed") == [(-1,)]


def test_where_no_partition_has_rows_nothing_is_moved(databases: Databases) -> None:
    with driver(databases) as cursor:
        move("append", "loose").run(cursor, winners(0, 0, 0))
        move("overwrite", "landed").run(_Late(databases, cursor, "delete"), winners(0, 0, 0))
    assert databases.rows("one", "select id from loose") == [(-1,)]
    assert databases.rows("one", "select id from landed") == []


def test_rows_that_a_trigger_leaves_out_are_no_error(databases: Databases) -> None:
    databases.execute(
        "one",
        """
        create function picky() returns trigger language plpgsql as
            'begin if new.id = 4 then return null; end if; return new; end';
        create trigger picky before insert on loose for each row execute function picky()
        """,
    )
    with driver(databases) as cursor:
        move("append", "loose").run(cursor, winners(5, 5, 0))
    assert databases.rows("one", "select count(*), bool_or(id = 4) from loose") == [(10, False)]
