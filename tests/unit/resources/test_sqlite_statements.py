"""Which statements may leave something in a SQLite session, by their text."""

from __future__ import annotations

import pytest

from txpool.resources.sqlite.session import PLAIN, changes_session

LEAVES_NOTHING = [
    "select 1",
    "  \t\r\n\f SELECT 1",
    "-- a; pragma foreign_keys = 1\n select 1",
    "/* pragma */ /**/ -- \n\n/* * / ** */InSeRt into t values (1)",
    "with a as (select 1) delete from t",
    "values (1)",
    "replace into t values (1)",
    "begin immediate",
    "COMMIT",
    "savepoint a",
    "alter table t add column v",
    "pragma foreign_keys",
    "PRAGMA main.table_info('t');",
    'pragma "main".table_xinfo(t)',
    "pragma main . index_list ( t ) ; ",
    "pragma wal_checkpoint(truncate)",
    "\ufeffselect 1",
]
MAY_LEAVE = [
    "pragma foreign_keys = 1",
    "PrAgMa foreign_keys(1)",
    "pragma main.cache_size=7",
    "pragma/**/foreign_keys",
    "pragma table_info(t) = 1",
    "pragma foreign_keys -- = \n = 1",
    "/* select */ pragma foreign_keys=1",
    "--select\npragma foreign_keys=1",
    "/* unclosed select",
    "(select 1)",
    ";select 1",
    "attach 'x' as y",
    "detach y",
    "create table t (n)",
    "create temp table t (n)",
    "explain select 1",
    "analyze temp",
    "selection",
    "",
    " ",
    "--",
]


@pytest.mark.parametrize("sql", LEAVES_NOTHING)
def test_what_leaves_nothing_is_known_from_then_on(sql: str) -> None:
    PLAIN.discard(sql)
    assert not changes_session(sql)
    assert sql in PLAIN


@pytest.mark.parametrize("sql", [*MAY_LEAVE, 42, None, b"select 1"])
def test_what_may_leave_something(sql: object) -> None:
    assert changes_session(sql)
    assert sql not in PLAIN


def test_what_is_known_is_bounded() -> None:
    for number in range(5_000):
        assert not changes_session(f"select {number}")
    assert not changes_session("select '" + "x" * 10_000 + "'")
    assert len(PLAIN) <= 1_000
    assert max(map(len, PLAIN)) <= 1_000


@pytest.mark.parametrize("text", [" ", "/*", "--\n", "/* */", "/", "pragma a ", "pragma a("])
def test_a_long_text_takes_no_long_time(text: str) -> None:
    """Were the time quadratic, this would take hours."""
    assert changes_session(text * 1_000_000)
