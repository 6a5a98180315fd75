"""A warehouse whose catalog is in each kind of database."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import txpool
import txpool.lake
from tests.integration.outbox.conftest import Place, place
from txpool.datasource.registry import by_key
from txpool.datasource.source import Source

__all__ = ["place"]
#: For what is the same with every database.
IN_SQLITE = pytest.mark.parametrize("place", ["sqlite"], indirect=True)
IN_POSTGRESQL = pytest.mark.parametrize("place", ["postgresql"], indirect=True)
SCHEMA = pa.schema([("id", pa.int64()), ("name", pa.string())])


class Lake:
    """Warehouses of a place's datasource `orders`."""

    def __init__(self, place: Place, folder: Path) -> None:
        self.place, self.folder = place, folder
        self.file = self.warehouse("wh")

    def warehouse(self, name: str, folder: str = "") -> Path:
        root = self.folder / (folder or name)
        root.mkdir(exist_ok=True)
        path = self.folder / f"{name}.properties"
        path.write_text(f"name = {name}\ndriver = iceberg\ncatalog = orders.properties\nwarehouse = {root.name}\n")
        return path

    @property
    def catalog(self) -> Any:
        return txpool.lake.catalog(self.file)

    @property
    def source(self) -> Source:
        return txpool.lake.opening.find_source(self.file)

    def create(self, *names: str) -> None:
        with txpool.transaction():
            self.catalog.create_namespace("db")
            for name in names:
                self.catalog.create_table(f"db.{name}", SCHEMA)

    def append(self, name: str, *ids: int) -> None:
        self.catalog.load_table(f"db.{name}").append(rows(*ids))

    def ids(self, name: str) -> list[int]:
        with txpool.transaction():
            return sorted(self.catalog.load_table(f"db.{name}").scan().to_arrow()["id"].to_pylist())

    def files(self) -> set[str]:
        """The files of the tables, and the journals."""
        kept = ("identity", "catalog")
        return {str(each) for each in (self.folder / "wh").rglob("*") if each.is_file() and each.name not in kept}

    def rows(self) -> int:
        """How many rows of transactions the catalog's database has."""
        table = "txpool_spark.lake" if self.place.kind == "postgresql" else "txpool_lake"
        return int(self.place.sql("orders", f"select count(*) from {table} where gtrid <> ''")[0][0])


def rows(*ids: int) -> pa.Table:
    return pa.table({"id": list(ids), "name": [f"n{each}" for each in ids]}, schema=SCHEMA)


@pytest.fixture
def catalogs(place: Place, tmp_path: Path) -> Iterator[Place]:
    """The place, whose datasource `orders` files of warehouses name."""
    file = tmp_path / "orders.properties"
    file.write_text("")  # never read: the datasource is known by its path
    by_key[str(file)] = place.orders
    with closing(place.orders.connect()):
        pass
    yield place
    by_key.pop(str(file), None)
    for path in tmp_path.glob("*.properties"):
        if (found := by_key.get(str(path))) is not None:
            found.close()


@pytest.fixture
def lake(catalogs: Place, tmp_path: Path) -> Lake:
    return Lake(catalogs, tmp_path)
