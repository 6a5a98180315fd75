"""A small commit of two Iceberg tables and a row in PostgreSQL, and pyiceberg's two appends, one after the other.

python tests/benchmarks/bench_lake_commit.py [--place disk|memory]

The catalog of all tables is one, in PostgreSQL. txpool prepares two databases, the catalog's and the row's. pyiceberg
does two commits, and no row: alone it cannot do all of it at once. It syncs no file. Servers, warehouse and log
are on a disk, and in memory, where a flush takes no time.
"""

from __future__ import annotations

import itertools
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from importlib.metadata import version
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

import pyarrow as pa
from pyiceberg.catalog.sql import SqlCatalog
from sqlalchemy import make_url

import txpool
import txpool.lake
from tests.benchmarks.report import compare
from tests.benchmarks.running import Place, chosen_places
from tests.benchmarks.servers import Server
from tests.benchmarks.transactions import UPDATE

#: How many commits a round has, of tables that are new: each commit makes the next one's metadata longer.
_COMMITS = 20
_ROWS = pa.table({"id": list(range(10)), "name": [f"name-{each}" for each in range(10)]})
_rounds = itertools.count()


def _theirs(catalog: SqlCatalog, names: Sequence[str]) -> Callable[[], None]:
    def commit() -> None:
        for name in names:
            catalog.load_table(name).append(_ROWS)

    return commit


def _kept(catalog: SqlCatalog, names: Sequence[str]) -> Callable[[], None]:
    """By tables that stay loaded, which nobody else may change."""
    tables = [catalog.load_table(name) for name in names]

    def commit() -> None:
        for table in tables:
            table.append(_ROWS)

    return commit


def _ours(folder: Path, names: Sequence[str]) -> Callable[[], None]:
    def commit() -> None:
        with txpool.transaction():
            lake = txpool.lake.catalog(folder / "lake.properties")
            for name in names:
                lake.load_table(name).append(_ROWS)
            with txpool.connect(folder / "two.properties") as connection:
                connection.execute(UPDATE, (0,))

    return commit


def _timed(folder: Path, way: Callable[[Sequence[str]], Callable[[], None]]) -> float:
    """Milliseconds for one commit."""
    names = [f"db.{name}{next(_rounds)}" for name in ("first", "second")]
    with txpool.transaction():
        for name in names:
            txpool.lake.catalog(folder / "lake.properties").create_table(name, _ROWS.schema)
    commit = way(names)
    began = time.perf_counter()
    for _ in range(_COMMITS):
        commit()
    return (time.perf_counter() - began) * 1000 / _COMMITS


def main() -> None:
    for place in chosen_places():
        with place.servers(["one", "two"]) as servers:
            _compare(place, servers["one"])


def _compare(place: Place, server: Server) -> None:
    (place.folder / "secret").write_text(server.password)
    (place.folder / "secret").chmod(0o600)
    for name in ("one", "two"):
        text = f"driver = psycopg\nurl = {server.url(name)}\npassword = ${{file:secret}}\n"
        (place.folder / f"{name}.properties").write_text(text)
    root = place.folder / "warehouse"
    root.mkdir()
    text = f"name = lake\ndriver = iceberg\ncatalog = one.properties\nwarehouse = {root}\n"
    (place.folder / "lake.properties").write_text(text)
    with txpool.transaction():
        txpool.lake.catalog(place.folder / "lake.properties").create_namespace("db")
    uri = make_url(server.url("one")).set(drivername="postgresql+psycopg", password=server.password)
    uri = uri.update_query_dict({"options": "-csearch_path=txpool_spark"})
    text = uri.render_as_string(hide_password=False)
    catalog = SqlCatalog("lake", uri=text, warehouse=str(root), init_catalog_tables="false")
    compare(
        f"10 rows into each of two Iceberg tables, pyiceberg {version('pyiceberg')}; {place}",
        {
            name: partial(_timed, place.folder, way)
            for name, way in {
                "pyiceberg": partial(_theirs, catalog),
                "pyiceberg, tables kept": partial(_kept, catalog),
                "txpool, with a row": partial(_ours, place.folder),
            }.items()
        },
        rounds=9,
        unit="ms",
        bound="at most 1.4",
        transactions=_COMMITS,
        servers=[server],
    )


if __name__ == "__main__":
    main()
