"""Others change a table's metadata: only what keeps staged rows from being the table's ends their branch otherwise."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable

import txpool
from tests.integration.resources.delta.conftest import Tables, actions
from tests.integration.resources.delta.test_recovery import heuristics
from txpool import lake

WITHIN = pa.struct([("a", pa.int64()), ("b", pa.string())])
COLUMNS = pa.schema([("n", pa.int64()), ("s", WITHIN), ("l", pa.list_(WITHIN)), ("m", pa.map_(pa.string(), WITHIN))])
ROW = {"n": 1, "s": {"a": 2, "b": "x"}, "l": [{"a": 3, "b": "y"}, None], "m": [("k", {"a": 4, "b": None})]}

#: One of these gets the fields of a table's schema, and changes them.
Change = Callable[[list[dict[str, Any]]], object]


def create(tables: Tables) -> None:
    DeltaTable.create(str(tables.place / "nested"), COLUMNS)


def append(tables: Tables, **values: Any) -> None:
    lake.write_table(pa.Table.from_pylist([ROW | values], schema=COLUMNS), tables.file, "nested")


def alter(table: Path, change: Change) -> None:
    """What Spark's ALTER TABLE does: a version of the table that has its metadata alone."""
    (*_, metadata) = [each["metaData"] for each in actions(table) if "metaData" in each]
    schema = json.loads(metadata["schemaString"])
    change(schema["fields"])
    changed = {**metadata, "schemaString": json.dumps(schema)}
    version = len([*(table / "_delta_log").glob("*.json")])
    lines = [{"commitInfo": {"timestamp": int(time.time() * 1000), "operation": "ALTER"}}, {"metaData": changed}]
    (table / "_delta_log" / f"{version:020}.json").write_text("".join(f"{json.dumps(each)}\n" for each in lines))


def structs(fields: list[dict[str, Any]]) -> list[list[dict[str, Any]]]:
    """The fields of the structs in the columns."""
    kinds = {each["name"]: each["type"] for each in fields}
    return [kinds["s"]["fields"], kinds["l"]["elementType"]["fields"], kinds["m"]["valueType"]["fields"]]


def comment(fields: list[dict[str, Any]]) -> None:
    for each in (*fields, *(field for within in structs(fields) for field in within)):
        each["metadata"]["comment"] = "what it is for"


def add(fields: list[dict[str, Any]]) -> None:
    for within in structs(fields):
        within.append({"name": "more", "type": "date", "nullable": True, "metadata": {}})


def move(fields: list[dict[str, Any]]) -> None:
    for within in (fields, *structs(fields)):
        within.reverse()


def restrict(fields: list[dict[str, Any]]) -> None:
    fields[0]["nullable"] = structs(fields)[0][0]["nullable"] = False


def rows(tables: Tables) -> list[dict[str, Any]]:
    """What deltalake reads, by the first columns and fields."""
    found = DeltaTable(str(tables.place / "nested")).to_pyarrow_table().sort_by("n")
    return pa.table([found[each.name].cast(each.type) for each in COLUMNS], schema=COLUMNS).to_pylist()


@pytest.mark.parametrize("change", [comment, add, move, restrict])
def test_what_is_staged_is_appended_whatever_changes_beside_it(change: Change, tables: Tables) -> None:
    create(tables)
    with tables.left_prepared():
        append(tables)
    alter(tables.place / "nested", change)
    tables.scan()
    assert rows(tables) == [ROW]
    assert heuristics() == []
    assert tables.left() == []


def test_a_comment_keeps_nobody_from_preparing(tables: Tables) -> None:
    create(tables)
    with txpool.transaction():
        append(tables)
        alter(tables.place / "nested", comment)
        append(tables, n=2)
        alter(tables.place / "nested", lambda fields: fields[0].update(metadata={"comment": "another"}))
    assert rows(tables) == [ROW, ROW | {"n": 2}]


def narrow(fields: list[dict[str, Any]]) -> None:
    structs(fields)[1][0]["type"] = "integer"


def drop(fields: list[dict[str, Any]]) -> None:
    structs(fields)[2].pop()


def require(fields: list[dict[str, Any]]) -> None:
    structs(fields)[0].append({"name": "more", "type": "date", "nullable": False, "metadata": {}})


@pytest.mark.parametrize("change", [restrict, narrow, drop, require])
def test_what_the_table_cannot_have_any_more_is_a_hazard(change: Change, tables: Tables) -> None:
    create(tables)
    with tables.left_prepared():
        append(tables, **({"s": {"a": None, "b": "x"}} if change is restrict else {}))
    alter(tables.place / "nested", change)
    tables.scan()
    assert not any("add" in each for each in actions(tables.place / "nested"))
    assert heuristics() == ["lost"]
    assert tables.left() == []
