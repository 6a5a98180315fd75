"""A REST catalog with two tables, a marked ledger beside it, a log, and a job that writes to all of them."""

from __future__ import annotations

import gc
import os
import signal
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, Final

import pyarrow as pa

import txpool
import txpool.lake
from recovery import RecoveryManager
from tests.support import preloaded
from tests.support.forking import is_killed
from tests.support.object_files import properties_at
from tests.support.repository import ROOT
from tests.support.rest_catalog import RestServer, rest_server
from tests.support.s3_server import ObjectStore
from txpool import failpoints
from txpool.config.settings import DataSourceSettings, RecoverySettings
from txpool.lake.rest.references import References
from txpool.setup.stores import initialise

TABLES: Final = ("lines", "orders")
SCHEMA: Final = pa.schema([("id", pa.int64())])


class RestSite:
    """Tables, as any program sees them, and what txpool has beside them."""

    def __init__(self, folder: Path, server: RestServer) -> None:
        self.folder, self.server = folder, server
        self.warehouse = server.folder / "wh"
        self.file = folder / "wh.properties"
        self.client = server.client()
        self.client.create_namespace("db")
        for name in TABLES:
            self.client.create_table(f"db.{name}", SCHEMA)
        common = f"node.name = etl\nlog.url = sqlite:///{folder}/txlog\n"
        files = {
            "wh": f"name = wh\ndriver = iceberg\ncatalog.type = rest\ncatalog.uri = {server.uri}\n{self.where()}",
            "ledger": f"name = ledger\ndriver = sqlite3\nmode = cmr\nurl = sqlite:///{folder}/ledger.db\n",
            "txpool": f"{common}log.create = true\n",
            "recovery": f"{common}datasources = wh.properties, ledger.properties\nrecovery.backoff = 0\n",
        }
        for name, text in files.items():
            (folder / f"{name}.properties").touch(0o600)
            (folder / f"{name}.properties").write_text(text)
        self.configure()
        initialise(RecoverySettings.load(folder / "recovery.properties"))
        with closing(txpool.connect(folder / "ledger.properties")) as connection:
            connection.execute("create table loads (number integer)")
            connection.commit()

    def where(self) -> str:
        """The lines of the file that lead to the warehouse."""
        return f"warehouse = {self.warehouse}\n"

    def configure(self) -> None:
        txpool.configure(self.folder / "txpool.properties")

    @property
    def settings(self) -> DataSourceSettings:
        return DataSourceSettings.load(self.file)

    @property
    def place(self) -> References:
        return References(self.settings)

    # -- work ---------------------------------------------------------------------------------------------------

    def append(self, number: int, *names: str) -> None:
        """Within the transaction."""
        lake = txpool.lake.catalog(self.file)
        for name in names or TABLES:
            lake.load_table(f"db.{name}").append(rows(number))

    def job(self, number: int) -> None:
        with txpool.transaction():
            self.append(number)
            with txpool.connect(self.folder / "ledger.properties") as connection:
                connection.execute("insert into loads values (?)", (number,))

    def foreign(self, number: int, *names: str) -> None:
        """Somebody else appends."""
        for name in names or TABLES:
            self.client.load_table(f"db.{name}").append(rows(number))

    def killed(self, number: int, point: str) -> bool:
        """Run the job in a forked child; whether it was killed at that point."""
        name, _, nth = point.partition("@")
        return self._dies(name, int(nth or 1), lambda: self.job(number), again=True)

    def recovery_killed(self, point: str) -> bool:
        return self._dies(point, 1, self.scan, again=False)

    def _dies(self, point: str, nth: int, work: Callable[[], object], *, again: bool) -> bool:
        def dies() -> None:
            if again:
                self.configure()
            failpoints.arm(point, "kill", nth=nth)
            work()

        txpool.configure()
        return is_killed(dies)

    def scan(self) -> Any:
        return RecoveryManager(self.folder / "recovery.properties").scan()

    def gone(self) -> None:
        """This process's incarnation has ended, as far as recovery can see."""
        txpool.configure()
        gc.collect()

    # -- what is there ------------------------------------------------------------------------------------------

    def ids(self, name: str) -> list[int]:
        """The rows of main."""
        found: list[int] = self.client.load_table(f"db.{name}").scan().to_arrow()["id"].to_pylist()
        return sorted(found)

    def references(self) -> list[str]:
        """The names of all references but main, as often as tables have them."""
        return sorted(each for name in TABLES for each in self.client.load_table(f"db.{name}").refs() if each != "main")

    def left(self) -> Iterator[tuple[str, str]]:
        yield from (("prepared", each) for each in self.references())
        yield from (("staged", each) for each in self.journals())
        yield from (("file", each) for each in sorted(self.files() - self.named()))

    def journals(self) -> list[str]:
        return [each.name for each in self.warehouse.glob("_txpool/*.journal")]

    def files(self) -> set[str]:
        """Every file of the tables, but for the server's own."""
        return {str(each) for each in (self.warehouse / "db").rglob("*") if each.suffix in (".avro", ".parquet")}

    def named(self) -> set[str]:
        """The files that a snapshot of any table names. The empty first snapshot's is a table's own."""
        found = set()
        for name in TABLES:
            table = self.client.load_table(f"db.{name}")
            found.add(f"{table.location()}/metadata/txpool-empty-{table.metadata.table_uuid}.avro")
            for snapshot in table.snapshots():
                found.add(snapshot.manifest_list)
                for manifest in snapshot.manifests(table.io):
                    found.add(manifest.manifest_path)
                    found |= {each.data_file.file_path for each in manifest.fetch_manifest_entry(table.io)}
        return {each.removeprefix("file://") for each in found}

    def recovered(self, number: int, shown: str) -> bool:
        """After recovery, whether the job has committed: in all of its places once, or in none, and nothing is left."""
        self.gone()
        self.scan()
        with closing(sqlite3.connect(self.folder / "ledger.db")) as file:
            rows_ = [row for (row,) in file.execute("select number from loads where number = ?", (number,))]
        for name in TABLES:
            assert [each for each in self.ids(name) if each == number] == rows_, f"{shown}: {name}"
        assert [*self.left()] == [], shown
        assert self.named() - self.files() <= {each for each in self.named() if "txpool-empty" in each}, shown
        self.configure()
        return bool(rows_)


class BucketSite(RestSite):
    """The same with a warehouse in a bucket. Other processes die: none is forked off one that uses Arrow's client."""

    @property
    def store(self) -> ObjectStore:
        assert self.server.store is not None
        return self.server.store

    def where(self) -> str:
        access = "".join(f"driver.{name} = {value}\n" for name, value in properties_at(self.store).items())
        return f"warehouse = s3://bucket/wh\n{access}"

    def killed(self, number: int, point: str) -> bool:
        return self._is_killed(point, f"site.configure(); site.job({number})")

    def recovery_killed(self, point: str) -> bool:
        return self._is_killed(point, "site.scan()")

    def _is_killed(self, point: str, work: str) -> bool:
        name, _, nth = point.partition("@")
        environment = {**os.environ, "TXPOOL_FAILPOINTS": f"{name}=kill@{nth or 1}"}
        source = f"from tests.support.rest_site import *\nsite = site_again({str(self.folder)!r})\n{work}"
        process = preloaded.start("-c", source, cwd=ROOT, env=environment)
        _, errors = process.communicate(timeout=600)
        assert process.returncode in (0, -signal.SIGKILL), errors
        return process.returncode != 0

    def journals(self) -> list[str]:
        return self.store.names("wh/_txpool/staged/")

    def files(self) -> set[str]:
        """Every object of the tables, if no upload has parts whose id no journal has."""
        client = self.store.client()
        for each in client.list_multipart_uploads(Bucket="bucket").get("Uploads", ()):
            assert not client.list_parts(Bucket="bucket", Key=each["Key"], UploadId=each["UploadId"]).get("Parts")
        return {f"s3://bucket/{each}" for each in self.store.names("wh/db/") if each.endswith((".avro", ".parquet"))}


def site_again(folder: str) -> RestSite:
    """A site in another process, for work alone."""
    found = RestSite.__new__(RestSite)
    found.folder = Path(folder)
    found.file = found.folder / "wh.properties"
    return found


def rows(*numbers: int) -> pa.Table:
    return pa.table({"id": list(numbers)}, schema=SCHEMA)


@contextmanager
def rest_server_in(folder: Path, store: ObjectStore | None = None) -> Iterator[RestServer]:
    """A server whose files are in a folder below this one."""
    (folder / "catalog").mkdir()
    with rest_server(folder / "catalog", store) as server:
        yield server


@contextmanager
def rest_site(folder: Path, server: RestServer) -> Iterator[RestSite]:
    """A site over a new server."""
    yield RestSite(folder, server) if server.store is None else BucketSite(folder, server)
    failpoints.disarm()
    txpool.configure()
