"""SQL of txpool's gets the schema of each name, or is refused when it is imported."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import txpool
from txpool.resources.postgresql.qualified import qualified, spelled


@pytest.mark.parametrize(
    ("statement", "expected"),
    [
        (
            "select format('%I', c.relname) from pg_class c where c.oid = to_regclass(%s)::oid",
            "select pg_catalog.format('%I', c.relname) from pg_catalog.pg_class c "
            "where c.oid operator(pg_catalog.=) pg_catalog.to_regclass(%s)::pg_catalog.oid",
        ),
        (
            "select count(*) > 1, left(a, -1), -1 from pg_locks l join t on l.pid = t.pid, pg_roles",
            "select pg_catalog.count(*) operator(pg_catalog.>) 1, pg_catalog.left(a, -1), -1 "
            "from pg_catalog.pg_locks l join t on l.pid operator(pg_catalog.=) t.pid, pg_catalog.pg_roles",
        ),
        (
            "update t set a = b + 1, c = %s where d = 2",
            "update t set a = b operator(pg_catalog.+) 1, c = %s where d = 2",
        ),
        (
            "insert into a.t as met (k, v) values (%s, now()) on conflict (k) do update set v = excluded.v",
            "insert into a.t as met (k, v) values (%s, pg_catalog.now()) on conflict (k) do update set v = excluded.v",
        ),
        (
            "with recursive w(x) as (select 1), y (z) as materialized (table w) select f(z) from y u",
            "with recursive w(x) as (select 1), y (z) as materialized (table w) select pg_catalog.f(z) from y u",
        ),
        ("select 'pg_class'::regclass, x::bigint", "select 'pg_catalog.pg_class'::pg_catalog.regclass, x::bigint"),
        ("select 'f(x) = 1' -- f(x) = 1", "select 'f(x) = 1' -- f(x) = 1"),
        ("set local txpool.begun = 'x'; set lock_timeout = 1", "set local txpool.begun = 'x'; set lock_timeout = 1"),
        ("lock table a.t in row exclusive mode", "lock table a.t in row exclusive mode"),
        ('select "f(x)"."=" from a', 'select "f(x)"."=" from a'),
        ("create table if not exists t (a varchar(3))", "create table if not exists t (a varchar(3))"),
        ("select extract(epoch from (a - b))", "select extract(epoch from (a operator(pg_catalog.-) b))"),
    ],
)
def test_each_name_gets_its_schema(statement: str, expected: str) -> None:
    expected = expected.replace(" where d = 2", " where d operator(pg_catalog.=) 2")
    assert spelled(statement) == expected
    assert spelled(expected) == expected


def test_the_given_tables_have_schemas_of_their_own() -> None:
    tables = {"it": '"o\'s".it'}
    assert (
        qualified("select it.a from it where b = 'it'::regclass", tables)
        == "select it.a from \"o's\".it where b operator(pg_catalog.=) '\"o''s\".it'::pg_catalog.regclass"
    )


@pytest.mark.parametrize(
    "statement",
    [
        "select a in (1, 2)",
        "select a not in (table b)",
        "select a between 1 and 2",
        "select a like 'b'",
        "select case a when 1 then 2 end",
        "select nullif(a, b)",
        "select a is distinct from b",
        "select a is not distinct from b",
        "select * from a join b using (c)",
        "select * from a natural join b",
        "select cast(a as text)",
        "select a = b + c",
        "select a || b || c",
    ],
)
def test_what_hides_an_operator_is_refused(statement: str) -> None:
    with pytest.raises(ValueError, match=r"write .* in place of|two operators without parentheses"):
        spelled(statement)


#: Of these files the SQL is another database's, or is qualified where it is executed: that of a log.
_OTHERS = ("mysql", "sqlite", "collecting", "log")
_STARTS = ("select ", "with ", "insert into ", "update ", "delete from ")


def test_no_statement_of_postgresqls_is_left_as_it_is() -> None:
    """Each text in the code that begins as a statement is an argument of `qualified`, or needs no schema."""
    root = Path(txpool.__file__).parent
    found = []
    files = [*(root / "resources/postgresql").rglob("*.py"), *(root / "spark").rglob("*.py")]
    for file in files:
        if any(part in _OTHERS for part in file.with_suffix("").parts):
            continue
        tree = ast.parse(file.read_text())
        inside = {
            id(each)
            for call in ast.walk(tree)
            if isinstance(call, ast.Call) and getattr(call.func, "id", getattr(call.func, "attr", "")) in _QUALIFYING
            for each in ast.walk(call)
        }
        inside |= {id(each.value) for each in ast.walk(tree) if isinstance(each, ast.Expr)}  # what is no argument
        for node in ast.walk(tree):
            text = _text(node)
            if text is None or id(node) in inside or not text.strip().lower().startswith(_STARTS):
                continue
            try:
                same = spelled(text) == text
            except ValueError:
                same = False
            if not same:
                found.append(f"{file.relative_to(root)}:{node.lineno}: {text}")  # type: ignore[attr-defined]
    assert found == [], "\n".join(found)


_QUALIFYING = ("qualified", "spelled")


def _text(node: ast.AST) -> str | None:
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    if isinstance(node, ast.JoinedStr):
        return "".join(str(each.value) if isinstance(each, ast.Constant) else "{}" for each in node.values)
    return None
