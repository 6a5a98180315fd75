"""Cells in a real kernel of Jupyter's, whose loop runs all the time: with top-level await, and synchronous ones."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.integration.aio.two_databases import TwoDatabases
from tests.support.repository import ROOT

pytest.importorskip("ipykernel")

_CONFIGURE = """
import asyncio, warnings, txpool
warnings.simplefilter("always")
options = {{"driver": "psycopg", "mode": "xa", "password": {password!r}}}
one = txpool.DataSource(name="one", url={one!r}, **options)
two = txpool.DataSource(name="two", url={two!r}, **options)
txpool.configure(node_name="notebook", log_url="sqlite:///notebook", log_create=True)
"""
_SYNCHRONOUS = """
with txpool.transaction() as tx:
    for source in (one, two):
        with txpool.connect(source) as connection:
            connection.execute("insert into t values ({value})")
str(tx.status)
"""
_AWAITED = """
async def insert(source, value={value}):
    async with await txpool.aconnect(source) as connection:
        await connection.execute("insert into t values (%s)", (value,))
async with txpool.transaction() as tx:
    await asyncio.gather(insert(one), insert(two))
str(tx.status)
"""
_FAILING = """
async with txpool.transaction():
    await insert(one, 5)
    1 / 0
"""
_REFUSED = """
async with txpool.transaction():
    with txpool.connect(one) as connection:
        connection.execute("insert into t values (5)")
"""


def cells(folder: Path, *sources: str) -> list[dict[str, Any]]:
    done = subprocess.run(
        [sys.executable, "-m", "tests.support.kernel", str(folder)],
        cwd=ROOT,
        input=json.dumps(sources),
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    said: list[dict[str, Any]] = json.loads(done.stdout)
    return said


@pytest.mark.costly
def test_cells_of_both_kinds(two: TwoDatabases, tmp_path: Path) -> None:
    server = two.databases.server
    configured = _CONFIGURE.format(password=server.password, one=server.url("one"), two=server.url("two"))
    works = [_SYNCHRONOUS.format(value=1), _AWAITED.format(value=2), _SYNCHRONOUS.format(value=3)]
    first, *ended, failing, refused, last = cells(
        tmp_path, configured, *works, _FAILING, _REFUSED, _AWAITED.format(value=4)
    )
    assert first["error"] == ""
    assert [cell["error"] for cell in ended] == ["", "", ""]
    assert ["COMMITTED" in cell["result"] for cell in (*ended, last)] == [True] * 4
    assert failing["error"].startswith("ZeroDivisionError")
    assert "await txpool.aconnect" in refused["error"]
    assert sum("Warning" in cell["stderr"] for cell in (*ended, last)) <= 1
    assert [two.held(value) for value in range(1, 6)] == [(1, 1), (1, 1), (1, 1), (1, 1), (0, 0)]
    assert two.prepared == []
