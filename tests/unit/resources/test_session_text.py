"""Which statements leave something in a PostgreSQL session, by their text. In doubt they do, for a round trip."""

from __future__ import annotations

import pytest

from txpool.resources.postgresql.session import statement_text
from txpool.resources.postgresql.session.statement_text import may_commit, outlives_transaction

LEAVES = (
    "select pg_advisory_lock(1)",
    "SELECT PG_CATALOG.PG_ADVISORY_LOCK_SHARED(1, 2)",
    'select "pg_try_advisory_lock"(1)',
    "with a as (select pg_try_advisory_lock_shared(1)) select 1",
    "select set_config('a.b', 'c', false)",
    "select set_config($1, $2, $3)",
    "select set_config('a.b', 'c', true), set_config('a.b', 'c', false)",
    "select set_config('a.b', ', true)', false)",
    "select set_config('a.b', 'c', false -- , true\n)",
    "select set_config('a.b', $$c, true)$$, false)",
    "select set_config('a.b', $q$c, true)$q$, false)",
    "select set_config('a.b', E'\\', true)', false)",
    "select set_config/**/('a.b', 'c', false)",
    "select \"set_config\"('a.b', 'c', false)",
    "select set_config('a.b', 'c', false), greatest(1, true)",
    "select SET_CONFIG ( 'a.b' , current_setting('c') , false )",
    "insert into t values " + "(1)," * 2000 + "(pg_advisory_lock(1))",
)
LEAVES_NOTHING = (
    "",
    "select 1",
    "select pg_advisory_xact_lock(1), pg_try_advisory_xact_lock_shared(2)",
    "select pg_advisory_unlock(1), pg_advisory_unlock_all()",
    "select set_config('a.b', 'c', true)",
    "select pg_catalog.SET_CONFIG( 'a.b', $1 , TRUE )",
    "select set_config('a.b', 'it''s (so); no', true), set_config('a.c', $1, true)",
    "insert into t values " + "(1)," * 2000 + "(2)",
)


@pytest.mark.parametrize("statement", LEAVES)
def test_something(statement: str) -> None:
    assert outlives_transaction(statement.encode())


@pytest.mark.parametrize("statement", LEAVES_NOTHING)
def test_nothing(statement: str) -> None:
    assert not outlives_transaction(statement.encode())


def test_only_so_many_answers_are_kept_and_of_short_statements_only() -> None:
    for number in range(3 * statement_text._MOST_KEPT):
        leaves = number % 2 == 0
        function = "pg_advisory_lock" if leaves else "abs"
        assert outlives_transaction(f"select {function}({number})".encode()) is leaves
        assert outlives_transaction(f"select {function}({number})".encode()) is leaves  # as it was kept
        assert 0 < len(statement_text._answers) <= statement_text._MOST_KEPT
    kept = len(statement_text._answers)
    assert outlives_transaction(b"select pg_advisory_lock(1)".ljust(statement_text._LONGEST_KEPT + 1))
    assert len(statement_text._answers) == kept


@pytest.mark.parametrize(
    "message", ["commit", "select 1; END", "/* a */ -- b\n;prepare\ttransaction 'x'", b"select 1;commit"]
)
def test_a_message_that_commits(message: bytes | str) -> None:
    assert may_commit(message)


@pytest.mark.parametrize(
    "message", ["select 1", "insert into t values (1)", "committed", ";" + "-" * 5000, ";/*" * 5000]
)
def test_a_message_that_commits_nothing(message: str) -> None:
    """Nor does the search take longer than the text is long."""
    assert not may_commit(message)
