"""The former version beside tables of a lake, which it does not know: it deletes nothing, and forgets no decision.

Of an Iceberg table whose catalog is in a database, the pointer changes in that database's branch: it ends that as any
other. TXPOOL_OLD_CHECKOUT names a checkout of it.
"""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.integration.upgrade.former import APP, Former, Make
from tests.integration.upgrade.test_side_by_side import command, configure, ended, recover, start

pytestmark = pytest.mark.former

_TABLES = ("lines", "orders")
#: The folders of what is noted of open transactions, and the files there that stay.
_ROOMS, _KEPT = ("_txpool", "staged", "prepared"), ("catalog", "generation", "identity", "key")
_WRITER = """
    import sys
    import pyarrow
    import txpool
    import txpool.lake
    from txpool.lake import write_table

    txpool.configure("txpool.properties")
    number, *names = sys.argv[1:]
    frame = pyarrow.table({"id": pyarrow.array([int(number)], pyarrow.int64())})
    with txpool.transaction():
        for name in names:
            txpool.connect(f"{name}.properties").cursor().execute(f"insert into t values ({number})")
        for name in ("lines", "orders"):
            CHANGE
"""
_APPEND = 'txpool.lake.catalog("wh.properties").load_table(f"db.{name}").append(frame)'
_WRITE = 'write_table(frame, "wh.properties", name)'
_CREATE = """
    import pyarrow
    import txpool
    import txpool.lake

    txpool.configure("txpool.properties")
    with txpool.transaction():
        lake = txpool.lake.catalog("wh.properties")
        lake.create_namespace("db")
        for name in ("lines", "orders"):
            lake.create_table(f"db.{name}", pyarrow.schema([("id", pyarrow.int64())]))
"""


class Beside:
    """What the former version has left, and two tables beside it that another program made."""

    def __init__(self, site: Former, properties: str, change: str, ids: Callable[[str], list[int]]) -> None:
        self.site = site
        self.ids = ids
        self.properties = properties
        self._writer = _WRITER.replace("CHANGE", change)

    def configure(self, version: str) -> None:
        configure(self.site, version)
        self.site.write("wh", self.properties)

    def run(self, source: str, *arguments: str, failpoints: str = "") -> None:
        self.configure("new")
        process = start(self.site, "new", source, *arguments, failpoints=failpoints)
        ended(process, -signal.SIGKILL if failpoints else 0)
        self.site.disconnect()

    def write(self, number: int, *names: str, failpoints: str = "") -> None:
        self.run(self._writer, str(number), *names, failpoints=failpoints)

    def scan(self, version: str) -> tuple[int, str]:
        """A scan whose configuration names the tables' file, too."""
        self.configure(version)
        text = self.site.conf.read_text().replace("datasources = ", "datasources = wh.properties, ")
        self.site.conf.write_text(text)
        process = start(self.site, version, "", "-m", "recovery", "scan", "--conf", "recovery.properties")
        output, errors = process.communicate(timeout=600)
        return process.returncode, output + errors

    def files(self) -> dict[str, bytes]:
        """Every file of the tables and beside them: data, metadata, journals."""
        found = (path for path in (self.site.folder / "wh").rglob("*") if path.is_file())
        return {str(path): path.read_bytes() for path in found}

    def journals(self) -> list[str]:
        """What is noted of transactions that have not ended."""
        found = (Path(path) for path in self.files())
        return [str(path) for path in found if path.parent.name in _ROOMS and path.name not in _KEPT]

    def both(self) -> list[list[int]]:
        return [self.ids(name) for name in _TABLES]


def _delta(site: Former) -> Iterator[Beside]:
    import pyarrow
    from deltalake import DeltaTable

    (site.folder / "wh").mkdir()
    for name in _TABLES:
        DeltaTable.create(site.folder / "wh" / name, pyarrow.schema([("id", pyarrow.int64())]))

    def ids(name: str) -> list[int]:
        return sorted(DeltaTable(site.folder / "wh" / name).to_pyarrow_table()["id"].to_pylist())

    yield Beside(site, "driver = delta\nfolder = wh", _WRITE, ids)


def _iceberg(site: Former) -> Iterator[Beside]:
    from psycopg.conninfo import conninfo_to_dict
    from pyiceberg.catalog.sql import SqlCatalog
    from sqlalchemy import URL

    (site.folder / "wh").mkdir()
    site.databases.execute("one", f"grant create on database one to {APP}")
    parts = conninfo_to_dict(site.databases.dsn("one"), options="-c search_path=txpool_spark")
    url = URL.create("postgresql+psycopg", query={name: str(value) for name, value in parts.items()})

    def ids(name: str) -> list[int]:
        uri = url.render_as_string(hide_password=False)
        catalog = SqlCatalog("wh", uri=uri, warehouse=str(site.folder / "wh"), init_catalog_tables="false")
        try:
            return sorted(catalog.load_table(f"db.{name}").scan().to_arrow()["id"].to_pylist())
        finally:
            catalog.engine.dispose()

    beside = Beside(site, "driver = iceberg\ncatalog = one.properties\nwarehouse = wh", _APPEND, ids)
    beside.run(_CREATE)
    yield beside


def _rest(site: Former) -> Iterator[Beside]:
    import pyarrow

    from tests.support.rest_catalog import rest_server

    (site.folder / "catalog").mkdir()
    with rest_server(site.folder / "catalog") as server:
        client = server.client()
        client.create_namespace("db")
        for name in _TABLES:
            client.create_table(f"db.{name}", pyarrow.schema([("id", pyarrow.int64())]))

        def ids(name: str) -> list[int]:
            return sorted(server.client().load_table(f"db.{name}").scan().to_arrow()["id"].to_pylist())

        (site.folder / "wh").symlink_to(server.folder / "wh")
        properties = (
            f"driver = iceberg\ncatalog.type = rest\ncatalog.uri = {server.uri}\nwarehouse = {server.folder}/wh"
        )
        yield Beside(site, properties, _APPEND, ids)


_KINDS: dict[str, Callable[[Former], Iterator[Beside]]] = {"delta": _delta, "iceberg": _iceberg, "rest": _rest}


@pytest.fixture
def beside(former: Make, store: str, kind: str) -> Iterator[Beside]:
    site = former(store)
    recover(site, "new", 0, 1)
    for made in _KINDS[kind](site):
        made.write(40, "one")
        assert made.both() == [[40], [40]]
        yield made


@pytest.mark.parametrize("store", ["sqlite", "server"])
@pytest.mark.parametrize(("point", "commits"), [("coordinator.prepared", False), ("coordinator.decided", True)])
@pytest.mark.parametrize("kind", _KINDS)
def test_what_a_crash_has_left_is_this_versions_to_end(beside: Beside, kind: str, point: str, commits: bool) -> None:
    beside.write(41, "one", "two", failpoints=f"{point}=kill")
    left = beside.files()
    assert beside.journals()
    for _ in range(2):
        _, said = command(beside.site, "old", "scan")
        assert "Traceback" not in said
        assert beside.files() == left, said
    assert command(beside.site, "old", "list")[0] != 70
    assert beside.files() == left
    code, said = beside.scan("new")
    assert code in (0, 1), said
    for name in ("one", "two"):
        assert (41 in beside.site.rows()[name]) is commits, said
    assert beside.both() == [[40, 41] if commits else [40]] * 2, said
    assert beside.journals() == []


@pytest.mark.parametrize("store", ["sqlite"])
@pytest.mark.parametrize("kind", _KINDS)
def test_it_refuses_a_file_of_a_driver_that_it_does_not_know(beside: Beside, kind: str) -> None:
    beside.write(41, "one", "two", failpoints="coordinator.decided=kill")
    left = beside.files()
    code, said = beside.scan("old")
    assert code not in (0, 1), said
    assert "wh" in said
    assert beside.files() == left
    code, said = beside.scan("new")
    assert code in (0, 1), said
    assert beside.both() == [[40, 41]] * 2
    assert 41 in beside.site.rows()["one"]
