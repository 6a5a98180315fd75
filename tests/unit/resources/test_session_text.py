"""Which statements leave something in a PostgreSQL session, by their text. In doubt they do, for a round trip."""

from __future__ import annotations

import pytest

from txpool.resources.postgresql.statements import statement_text
from txpool.resources.postgresql.statements.statement_text import may_commit, outlives_transaction
from txpool.sql import kept as kept_answers

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
    "update pg_settings set setting = 'x' where name = 'search_path'",
    "with a as (UPDATE pg_catalog.PG_SETTINGS as s set setting = 'x' returning 1) select 1",
    "select U&\"set\\005fconfig\"('a.b', 'c', false)",
    "select pg_catalog.u&\"set!005fconfig\" uescape '!' ('a.b', 'c', false)",
    "insert into t values " + "(1)," * 2000 + "(pg_advisory_lock(1))",
    "insert into t values " + "(1)," * 2000 + "(2)",  # nobody has searched it
    "select leave()",
    "select leave ( 1 )",
    'select"leave"(1)',
    """select 1 "it's", leave(1), '('""",
    """select '"', leave(1), '"'""",
    'select 1 "b as", leave(1) "("',
    'select 1 "b as", leave(1), 2 "c" from "("',
    'select "leave" (1)',
    "select leave/**/(1)",
    "select leave -- lower\n(1)",
    "select 'it''s', leave(1)",
    "select E'\\'', leave(1), '",
    "select $$a$$, leave(1)",
    "select app.lower('a')",
    'select "app" . lower(1)',
    "select \"Lower\"('a')",
    "select \xe4lower('a')",
    "select lower(leave('a'))",
    "insert into t values (leave(1))",
    "insert into t (n) select leave(1)",
    "insert into t select leave(n) from t",
    "update t set n = 1 where leave(n)",
    "delete from t using leave(1) as l (n)",
    "with a as (select leave(1)) select 1 from a",
    "with a as materialized(select leave(1)) select 1 from a",
    "merge into t using leave(1) as l on true when matched then do nothing",
    "select * from rows from (leave(1))",
    "copy (select leave(1)) to stdout",
    "values (leave(1))",
    "declare c cursor for select leave(1)",
    "refresh materialized view v",
    "select 1; refresh materialized view v",
    "alter table t alter n type text using n",
    "load 'it'",
    "select query_to_xml('select leave()', true, true, '')",
    "select * from ts_stat('select leave()')",
)
LEAVES_NOTHING = (
    "",
    "select 1",
    "select pg_advisory_xact_lock(1), pg_try_advisory_xact_lock_shared(2)",
    "select pg_advisory_unlock(1), pg_advisory_unlock_all()",
    "select set_config('a.b', 'c', true)",
    "select pg_catalog.SET_CONFIG( 'a.b', $1 , TRUE )",
    "select set_config('a.b', 'it''s (so); no', true), set_config('a.c', $1, true)",
    "insert into t values (1, 'it''s (so)'), ($1, 'f(x)')",
    "insert into t (n, m) values (1, 2) on conflict (n) do update set (n, m) = (1, 2) returning (n)",
    'INSERT INTO "T" ("n") VALUES ($1)',
    """INSERT INTO "T" ("n", "m") VALUES ('it''s "f"(1)', 'leave(1)') RETURNING "T"."n\"""",
    'insert into app."T" (n) values (1)',
    "select n from t where n in (1, 2) and (m = any($1) or exists (select from u))",
    "select count(*) filter (where n > 1), row_number() over (partition by n order by (m)) from t",
    "with a as (values (1)), b as materialized (select 1) select cast(column1 as numeric(10, 2)) from a",
    "select v.n from (values (1, 2)) as v (n, m)",
    "select /* leave(1) */ now() -- leave(1)",
    "select $$leave(1)$$, 'a\\b', lower('a') || E'\\n'",
    "select pg_catalog.lower('a'), pg_catalog.now ()",
    "copy t (n) from stdin",
    "copy (select n from t) to stdout",
    "begin; insert into t values (1); commit;",
    " ( select 1 ) union (select 2)",
    "merge into t using (select 1 as n) as s on (t.n = s.n) when not matched then insert (n) values (1)",
    "select setting from pg_settings where name = 'search_path'",
    "select U&'set\\005fconfig'",
)


@pytest.mark.parametrize("statement", LEAVES)
def test_something(statement: str) -> None:
    assert outlives_transaction(statement.encode())


@pytest.mark.parametrize("statement", LEAVES_NOTHING)
def test_nothing(statement: str) -> None:
    assert not outlives_transaction(statement.encode())


def test_only_so_many_answers_are_kept_and_of_short_statements_only() -> None:
    for number in range(3 * kept_answers._MOST_KEPT):
        leaves = number % 2 == 0
        function = "pg_advisory_lock" if leaves else "abs"
        assert outlives_transaction(f"select {function}({number})".encode()) is leaves
        assert outlives_transaction(f"select {function}({number})".encode()) is leaves  # as it was kept
        assert 0 < len(statement_text.OUTLIVING) <= kept_answers._MOST_KEPT
    kept = len(statement_text.OUTLIVING)
    assert outlives_transaction(b"select pg_advisory_lock(1)".ljust(kept_answers.LONGEST_KEPT + 1))
    assert len(statement_text.OUTLIVING) == kept


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
