"""A folder of Delta tables, a marked ledger beside it, a log, and a recovery."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import duckdb
import pyarrow as pa
import pytest
from deltalake import DeltaTable

import txpool
from recovery import RecoveryManager
from tests.integration.resources.files.conftest import write_beside_a_ledger
from txpool import failpoints
from txpool.lake import write_table
from txpool.resources.base import BranchOutcome
from txpool.resources.delta.branch import DeltaResource
from txpool.resources.files.branch import PlaceBranch
from txpool.resources.files.place import Place

SCHEMA = pa.schema([("n", pa.int64()), ("part", pa.string())])


def actions(table: Path) -> Iterator[dict[str, Any]]:
    """The entries of a table's log, by its format alone; no version is missing, and none is empty."""
    entries = sorted((table / "_delta_log").glob("*.json"))
    assert [int(each.stem) for each in entries] == [*range(len(entries))]
    for entry in entries:
        text = entry.read_bytes()
        assert text, entry
        yield from map(json.loads, text.splitlines())


def committed(table: Path, column: str = "n") -> list[Any]:
    """A column's values as DuckDB reads them in the files that the log names."""
    files = []
    for action in actions(table):
        if "add" in action:
            files.append(str(table / unquote(action["add"]["path"])))
        elif "remove" in action:
            files.remove(str(table / unquote(action["remove"]["path"])))
    if not files:
        return []
    return sorted(value for (value,) in duckdb.sql(f"select {column} from read_parquet({files})").fetchall())


def transactions(table: Path) -> list[str]:
    """The applications whose `txn` the log has."""
    return [action["txn"]["appId"] for action in actions(table) if "txn" in action]


class Tables:
    """What is on the disk, as other programs see it; and what txpool keeps hidden there."""

    def __init__(self, site: Path) -> None:
        self.site = site
        self.file = site / "tables.properties"
        self.place = site / "tables"
        self.hidden = self.place / ".txpool"

    def create(self, name: str = "orders", *, partition_by: Sequence[str] = (), **properties: str) -> DeltaTable:
        return DeltaTable.create(
            str(self.place / name), SCHEMA, partition_by=[*partition_by], configuration=properties or None
        )

    def append(self, *numbers: int, to: str = "orders", part: str | None = "a b") -> int:
        rows = pa.table({"n": numbers, "part": [part for _ in numbers]}, schema=SCHEMA)
        return write_table(rows, self.file, to)

    def committed(self, name: str = "orders") -> list[Any]:
        return committed(self.place / name)

    def left(self) -> list[str]:
        """What is prepared, and what is staged."""
        return sorted(each.name for folder in ("prepared", "staged") for each in (self.hidden / folder).iterdir())

    def unnamed(self, name: str = "orders") -> set[str]:
        """Files of the table's folder that its log does not name."""
        table = self.place / name
        named = {unquote(each["add"]["path"]) for each in actions(table) if "add" in each}
        return {str(each.relative_to(table)) for each in table.rglob("*.parquet")} - named

    def scan(self) -> RecoveryManager:
        manager = RecoveryManager(self.site / "recovery.properties")
        manager.scan()
        return manager

    @contextmanager
    def left_prepared(self) -> Iterator[None]:
        """A transaction whose process leaves its branch prepared, and decided."""
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(PlaceBranch, "end", lambda self, commit: BranchOutcome.UNKNOWN)
            with txpool.transaction():
                yield

    def prepared(self, *numbers: int, to: Sequence[str] = ("orders",)) -> tuple[DeltaResource, str]:
        """A branch that a process has left prepared, and decided: its resource, and its xid."""
        with self.left_prepared():
            for each in to:
                self.append(*numbers, to=each)
        (xid,) = [each.name for each in (self.hidden / "prepared").iterdir()]
        return self.resource(), xid

    def resource(self) -> DeltaResource:
        return DeltaResource(Place("tables", str(self.place)), str(self.file))


@pytest.fixture
def tables(tmp_path: Path) -> Iterator[Tables]:
    (tmp_path / "tables").mkdir()
    (tmp_path / "tables.properties").write_text("name = tables\ndriver = delta\nfolder = tables\n")
    write_beside_a_ledger(tmp_path, "tables")
    txpool.configure(tmp_path / "txpool.properties")
    yield Tables(tmp_path)
    failpoints.disarm()
    txpool.configure()
