"""A planted catalogue: beside each function and operator of pg_catalog that txpool's statements call, others that fit.

`mallory`, who owns nothing, makes them in the schemas that she may create in: `public`, as before PostgreSQL 15, and
schemas that have the names of other roles. Whoever calls one says so in the server's log, as which role: a line there
outlives every rollback.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import product
from typing import TYPE_CHECKING, Any

import psycopg

from tests.support.server_log import Call, Message

if TYPE_CHECKING:
    from tests.support.strangers import Strangers

PREFIX = "planted: "
#: The types that PostgreSQL converts among without being asked: an argument of one is planted with each of the others.
_FAMILIES = (
    ("text", "name", "character varying"),
    ("oid", "regclass", "integer", "bigint"),
    ("smallint", "integer", "bigint", "numeric", "double precision"),
    ('"char"', "text"),
    ("xid", "integer"),
)
#: Of so many arguments each has only its own types.
_MOST_COMBINED = 3
#: Names of types that a cast could be written as: text(x).
_CASTS = ("text", "oid", "int4", "int8", "float8", "bool", "regclass", "jsonb", "name", "numeric", "xid8")
_CAST_FROM = ("text", "name", "oid", "regclass", "integer", "bigint", "xid", '"char"', "jsonb")
#: What is looked up by its name alone: as tables, whose rows call a function, and as types.
_TABLES = ("pg_class", "pg_namespace", "pg_roles", "pg_prepared_xacts", "pg_locks", "pg_database", "pg_settings")

_ROUTINES = """
    select p.oid, p.proname, p.prokind::text, array(select format_type(a, null) from unnest(p.proargtypes) a),
        format_type(p.prorettype, null), p.proretset, p.pronargs
    from pg_proc p where p.oid = any (%s) and p.pronamespace = 'pg_catalog'::regnamespace
"""
_OPERATORS = """
    select o.oid, o.oprname, o.oprkind::text, format_type(o.oprleft, null), format_type(o.oprright, null),
        format_type(o.oprresult, null)
    from pg_operator o where o.oid = any (%s) and o.oprnamespace = 'pg_catalog'::regnamespace
"""
_ELEMENT = """
    select t.oid, format_type(t.oid, null), case when t.typelem <> 0 and t.typcategory = 'A'
        then format_type(t.typelem, null) end
    from pg_type t where t.oid = any (%s)
"""


@dataclass
class Planted:
    """How many were made, by their kind, and how many of the catalogue's are beside them."""

    beside: Counter[str] = field(default_factory=Counter)
    made: Counter[str] = field(default_factory=Counter)
    refused: Counter[str] = field(default_factory=Counter)

    def __str__(self) -> str:
        beside = ", ".join(f"{number} {kind}s" for kind, number in sorted(self.beside.items()))
        made = ", ".join(f"{number} {kind}s" for kind, number in sorted(self.made.items()))
        refused = ", ".join(f"{number} {kind}s" for kind, number in sorted(self.refused.items()))
        return f"beside {beside} of pg_catalog: {made} planted; the server refused {refused or 'none'}"


def plant(strangers: Strangers, used: Iterable[Call], schemas: Sequence[str], databases: Sequence[str]) -> Planted:
    """Plant beside all of `used` in each schema, which `mallory` may create or create in."""
    found = Planted()
    with strangers.session("mallory", databases[0]) as session:
        statements = [*dict.fromkeys(_statements(session, set(used), found))]
    for database in databases:
        with strangers.session("mallory", database) as session:
            for schema in schemas:
                session.execute("set search_path = pg_catalog")
                if schema != "public":
                    session.execute(f"create schema {schema}".encode())
                    session.execute(f"grant usage, create on schema {schema} to public".encode())
                for kind, statement in statements:
                    try:
                        session.execute(statement.replace("HERE", schema).encode())
                    except psycopg.Error:
                        found.refused[kind] += 1
                    else:
                        found.made[kind] += 1
    return found


def called(messages: list[Message]) -> Counter[str]:
    """What of the planted was called, and as whom."""
    return Counter(each.text for each in messages if each.text.startswith(PREFIX))


def _statements(session: Any, used: set[Call], found: Planted) -> Iterator[tuple[str, str]]:
    numbers = sorted({number for call in used for number in (*call.arguments, call.result)})
    types = {oid: (name, element) for oid, name, element in session.execute(_ELEMENT, [numbers]).fetchall()}
    by_oid: dict[int, list[Call]] = {}
    for call in used:
        by_oid.setdefault(call.oid, []).append(call)
    oids = [call.oid for call in used if call.kind != "operator"]
    for oid, name, kind, declared, result, is_set, _ in session.execute(_ROUTINES, [oids]).fetchall():
        found.beside["aggregate" if kind == "a" else "function"] += 1
        made: set[tuple[str, ...]] = set()
        for call in by_oid[oid]:
            actual = [types.get(each, ("", None))[0] for each in call.arguments]
            returns = types.get(call.result, (result, None))[0] if result.startswith("any") else result
            for arguments in _fitting([*_beside(actual, declared)]):
                if arguments not in made:
                    made.add(arguments)
                    yield from _routine(name, kind, arguments, returns, is_set=is_set)
    oids = [call.oid for call in used if call.kind == "operator"]
    for oid, name, _, left, right, result in session.execute(_OPERATORS, [oids]).fetchall():
        found.beside["operator"] += 1
        made = set()
        for call in by_oid[oid]:
            actual = [types.get(each, ("", None))[0] for each in call.arguments]
            elements = [types.get(each, ("", None))[1] or "" for each in call.arguments]
            declared = [each for each in (left, right) if each != "-"]
            pairs = [(each, *rest) for each, *rest in zip(declared, actual, elements, strict=False)]
            for arguments in _fitting(pairs):
                if arguments not in made:
                    made.add(arguments)
                    yield from _operator(name, arguments, result)
    for name in _CASTS:
        found.beside["cast"] += 1
        for given in _CAST_FROM:
            yield "cast function", _function(name, [given], name)
            yield "cast", f"create cast ({given} as {name}) with inout as implicit"
    for name in _TABLES:
        yield "function", _function("whole_row", [], "integer")
        yield "view", f"create view HERE.{name} as select HERE.whole_row()::text as name, HERE.whole_row()::oid as oid"
        yield "view", f"grant select on HERE.{name} to public"
    for name in ("text", "oid", "name", "int8", "float8", "regclass", "xid8", "timestamptz"):
        yield "type", f"create domain HERE.{name} as pg_catalog.{name}"


def _beside(actual: Sequence[str], declared: Sequence[str]) -> Iterator[tuple[str, ...]]:
    """For each argument the types that it has, and that are declared; a variadic one has those that it has."""
    for number, own in enumerate(actual):
        other = declared[number] if number < len(declared) else own
        yield (own,) if other.startswith(('"any"', "any")) or number >= len(declared) else (own, other)


def _fitting(arguments: Sequence[Sequence[str]]) -> Iterator[tuple[str, ...]]:
    choices = []
    for own in arguments:
        known = [each for each in dict.fromkeys(own) if each and not each.startswith(("any", '"any"', "-", "unknown"))]
        if len(arguments) <= _MOST_COMBINED:
            known += [each for family in _FAMILIES if set(family) & set(known) for each in family]
        choices.append([*dict.fromkeys(known)])
    yield from product(*choices)


def _routine(name: str, kind: str, arguments: Sequence[str], result: str, *, is_set: bool) -> Iterator[tuple[str, str]]:
    if kind == "a":
        if not arguments:
            return  # count(*): it has no name of its own
        state = f"step_{name}"
        yield "function", _function(state, ["text", *arguments], "text")
        yield (
            "aggregate",
            f"create aggregate HERE.{name}({', '.join(arguments)}) "
            f"(sfunc = HERE.{state}, stype = pg_catalog.text, initcond = '')",
        )
    else:
        yield "function", _function(name, arguments, f"setof {result}" if is_set else result)


def _operator(name: str, arguments: Sequence[str], result: str) -> Iterator[tuple[str, str]]:
    function = "operator_" + "".join(f"{ord(each):x}" for each in name)
    left = f"leftarg = {arguments[0]}, " if len(arguments) == 2 else ""
    yield "function", _function(function, arguments, result)
    yield "operator", f"create operator HERE.{name} ({left}rightarg = {arguments[-1]}, function = HERE.{function})"


def _function(name: str, arguments: Sequence[str], result: str) -> str:
    shown = f"{name}({', '.join(arguments)})".replace("'", "''")
    body = f"begin raise log '{PREFIX}% as %', '{shown}', current_user; return"
    body += ";" if result.startswith("setof") or result == "void" else " null;"
    return (
        f'create function HERE."{name}"({", ".join(arguments)}) returns {result} language plpgsql as $$ {body} end $$'
    )
