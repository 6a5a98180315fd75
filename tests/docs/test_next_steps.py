"""What recovery says that it will do next stands on the page that tells an operator what to do about it."""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Iterator

from recovery.operator import next_step
from tests.support.repository import ROOT

PAGE = (ROOT / "docs" / "operations" / "in-doubt.md").read_text()
#: What is filled in, and what stands for it on the page.
_ANY = "…"


def _texts() -> Iterator[str]:
    """Every text of the module that is no docstring, with what is filled in left out."""
    tree = ast.parse(inspect.getsource(next_step))
    parts = {part for each in ast.walk(tree) if isinstance(each, ast.JoinedStr) for part in each.values}
    for each in ast.walk(tree):
        if isinstance(each, ast.JoinedStr):
            yield _ANY.join(str(part.value) if isinstance(part, ast.Constant) else "" for part in each.values)
        elif isinstance(each, ast.Constant) and isinstance(each.value, str) and each not in parts:
            yield each.value


def _rows() -> list[str]:
    table = PAGE.split("## What `next` says")[1].split("\n## ")[0]
    return re.findall(r"^\| `(.+?)` \|", table, re.MULTILINE)


def test_every_row_is_said() -> None:
    said = "\n".join(_texts())
    rows = _rows()
    assert len(rows) > 10
    pieces = {piece.strip(" ,") for row in rows for piece in row.split(_ANY)} - {""}
    assert [piece for piece in pieces if piece.removeprefix("leave it alone: ") not in said] == []


def test_every_reason_to_leave_a_transaction_alone_has_its_row() -> None:
    rows = "\n".join(_rows())
    reasons = [*next_step._WHY_LEFT_ALONE.values(), next_step._FOREIGN_NEXT.removeprefix("leave it alone: ")]
    assert [reason for reason in reasons if re.split(r"[.,:]", reason)[0] not in rows] == []
