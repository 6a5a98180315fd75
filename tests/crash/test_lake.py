"""A process that writes Iceberg tables is killed: all of its tables and databases change, or none, and no file is left.

Killed at 3 of the named points and at 2 random moments by default, chosen by a seed (TXPOOL_CRASH_SEED); with
TXPOOL_CRASH_FULL=1 at each point, and 40 times. At a random moment two writers are in conflict, and recovery is killed,
too. The tables are read by pyiceberg alone, in a process that does not know txpool.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import time
from collections.abc import Collection, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict
from pyiceberg.catalog.sql import SqlCatalog
from sqlalchemy import URL

import txpool
import txpool.lake
from recovery.manager import RecoveryManager
from tests.crash import eventually as places
from tests.crash.eventually import Eventually
from tests.crash.evidence import SEED
from tests.crash.judged import require_atomic
from tests.support import preloaded
from tests.support.s3_server import ObjectStore, store_with_a_bucket
from txpool.datasource import registry

pytestmark = pytest.mark.slow

FULL = os.environ.get("TXPOOL_CRASH_FULL") == "1"
RANDOM_KILLS = 40 if FULL else 2
#: Whether the transaction commits if it is killed there.
POINTS = {
    "lake.journal": False,
    "lake.file": False,
    "lake.file@3": False,
    "lake.written": False,
    "lake.swapped": False,
    "coordinator.begin": False,
    "coordinator.preparing": False,
    "coordinator.prepared": False,
    "log.record": False,
    "log.recorded": True,
    "coordinator.decided": True,
    "coordinator.one-committed": True,
    "coordinator.committed": True,
    "lake.ended": True,
}
#: Of those, the ones that a catalog in a marked file reaches, beside a database that prepares.
MARKED = {
    "lake.file@3": False,
    "lake.swapped": False,
    "coordinator.prepared": False,
    "marked.commit": False,
    "marked.committed": True,
    "lake.ended": True,
}

#: And those that one reaches whose warehouse is in a bucket.
BUCKET = {
    "lake.journal": False,
    "s3.created": False,
    "s3.created@3": False,
    "lake.file": False,
    "lake.file@3": False,
    "lake.written": False,
    "lake.swapped": False,
    "coordinator.prepared": False,
    "log.recorded": True,
    "coordinator.one-committed": True,
    "lake.ended": True,
}

#: What writes a number into both tables, and into the other database.
WRITE = """
import sys
import pyarrow as pa
import txpool, txpool.lake
txpool.configure("txpool.properties")

@txpool.transactional(attempts=100)
def write(number):
    lake = txpool.lake.catalog("wh.properties")
    for name in ("orders", "lines"):
        lake.load_table("db." + name).append(pa.table({"id": [number]}))
    with txpool.connect("two.properties") as two:
        two.execute("insert into done values (%s)", [number])
"""
WRITER = f"""{WRITE}
for number in map(int, sys.argv[1:]):
    write(number)
    print(number, flush=True)
"""
RECOVERY = "from recovery.manager import RecoveryManager\nRecoveryManager('recovery.properties').scan()"
# pyiceberg alone: what each table holds, and every file that its metadata names.
READER = """
import json, sys
from pyiceberg.table import StaticTable
found, named, read = {}, [], set()
for name, location in json.load(sys.stdin).items():
    table = StaticTable.from_metadata(location, json.loads(sys.argv[1]))
    found[name] = sorted(table.scan().to_arrow()["id"].to_pylist())
    named += [location, *(each.metadata_file for each in table.metadata.metadata_log)]
    for snapshot in table.snapshots():
        named.append(snapshot.manifest_list)
        for manifest in snapshot.manifests(table.io):
            if manifest.manifest_path in read:  # each snapshot has those of the ones before
                continue
            read.add(manifest.manifest_path)
            named += [each.data_file.file_path for each in manifest.fetch_manifest_entry(table.io)]
named += read
assert "txpool" not in sys.modules
print(json.dumps([found, sorted(set(named))]))
"""


class Site:
    """A warehouse, its catalog in `one` or in a marked file, and a table in `two`."""

    points = POINTS

    def __init__(self, folder: Path, databases: Any, *, marked: bool) -> None:
        self.folder, self._databases, self.marked = folder, databases, marked
        catalog = f"driver = sqlite3\nmode = cmr\nurl = sqlite:///{folder}/one.db\n" if marked else self._at("one")
        files = {
            "one": f"name = one\n{catalog}",
            "two": f"name = two\n{self._at('two')}",
            "wh": f"name = wh\ndriver = iceberg\ncatalog = one.properties\n{self.warehouse()}",
            "txpool": "node.name = tests\nlog.url = sqlite:///log\nlog.create = true\n",
            "recovery": "node.name = tests\nlog.url = sqlite:///log\nrecovery.backoff = 0\n"
            "datasources = one.properties, two.properties, wh.properties\n",
        }
        for name, text in files.items():
            path = folder / f"{name}.properties"
            path.write_text(text)
            path.chmod(0o600)
        if marked:
            (folder / "one.db").touch()
        txpool.configure("txpool.properties")
        source = txpool.DataSource.from_properties("one.properties")
        if marked:
            source.xids_table().create()
        with psycopg.connect(databases.dsn("two"), autocommit=True) as connection:
            connection.execute("create table done (id integer)")
        self.make_tables()

    def warehouse(self) -> str:
        (self.folder / "wh").mkdir()
        return "warehouse = wh\n"

    def journals(self) -> list[str]:
        return [path.name for path in self.folder.glob("wh/_txpool/*.journal")]

    def access(self) -> dict[str, str]:
        """The properties by which pyiceberg reads the tables."""
        return {}

    def _at(self, database: str) -> str:
        password = self._databases.server.password
        secret = f"password = {password}\n" if password else ""
        return f"driver = psycopg\nurl = {self._databases.url(database)}\n{secret}"

    def make_tables(self) -> None:
        import pyarrow as pa

        with txpool.transaction():
            lake = txpool.lake.catalog("wh.properties")
            lake.create_namespace("db")
            for name in ("orders", "lines"):
                # Else metadata behind the last hundred is named by none, and stays, as Iceberg leaves it.
                kept = {"write.metadata.previous-versions-max": "100000"}
                lake.create_table(f"db.{name}", pa.schema([("id", pa.int64())]), properties=kept)

    def write(self, *numbers: int, failpoints: str = "") -> preloaded.Process:
        environment = os.environ | {"TXPOOL_FAILPOINTS": failpoints}
        return preloaded.start("-c", WRITER, *map(str, numbers), cwd=self.folder, env=environment)

    def recover(self) -> None:
        manager = RecoveryManager("recovery.properties")
        for _ in range(60):
            report = manager.scan()
            if not self.rows() and not self.journals():
                return
            time.sleep(0.5)
        raise AssertionError(f"not swept: {report}")

    def rows(self) -> int:
        return int(self._in_catalog("select count(*) from {}lake where gtrid <> ''")[0][0])

    def _in_catalog(self, statement: str) -> list[Any]:
        if self.marked:
            import sqlite3

            with sqlite3.connect(self.folder / "one.db", timeout=600) as connection:
                text = statement.replace("{}lake", "txpool_lake").replace("{}", "")
                return connection.execute(text).fetchall()
        with psycopg.connect(self._databases.dsn("one"), autocommit=True) as there:
            return there.execute(statement.replace("{}", "txpool_spark.")).fetchall()

    def _read(self) -> tuple[dict[str, list[int]], set[str]]:
        """The rows of each table, and the files that its metadata names."""
        pointers = dict(self._in_catalog("select table_name, metadata_location from {}iceberg_tables"))
        read = subprocess.run(
            [sys.executable, "-c", READER, json.dumps(self.access())],
            input=json.dumps(pointers),
            text=True,
            capture_output=True,
            timeout=600,
            check=False,
        )
        assert read.returncode == 0, read.stderr
        found, named = json.loads(read.stdout)
        return found, set(named)

    def _done(self) -> list[int]:
        with psycopg.connect(self._databases.dsn("two"), autocommit=True) as connection:
            return [number for (number,) in connection.execute("select id from done order by id")]

    def _files(self) -> set[str]:
        return {str(each) for each in (self.folder / "wh" / "db").rglob("*") if each.is_file()}

    def require_whole(self) -> list[int]:
        """What has been written: the same everywhere; every file that is named is there, and no other."""
        found, named = self._read()
        done = self._done()
        assert found == {"orders": done, "lines": done}
        assert self._files() == named
        return done

    def judge(self, tried: Iterable[int], said: Collection[int]) -> None:
        """What no part of txpool finds each of these whole or nowhere, and nowhere that nobody has written."""
        found, _ = self._read()
        told = {str(each): "committed" if each in said else "nothing" for each in tried}
        require_atomic(told, {"done": self._done(), **found})

    def remove_orphans(self) -> None:
        """What another program does, at the least age that Spark's procedure takes: a day."""
        _, named = self._read()
        for path in map(Path, self._files() - named):
            if path.stat().st_mtime < time.time() - 24 * 3600:
                path.unlink()

    def age(self) -> None:
        """Let all files be older than that, and one of them an orphan."""
        (self.folder / "wh" / "db" / "orphan").touch()
        for path in self._files():
            os.utime(path, (0, 0))


class InBucket(Site):
    """The same with a warehouse in a bucket."""

    points = BUCKET

    def __init__(self, folder: Path, databases: Any, store: ObjectStore) -> None:
        self.store = store
        super().__init__(folder, databases, marked=False)

    def warehouse(self) -> str:
        return (
            f"warehouse = s3://bucket/wh\nuser = tests\npassword = secret-of-tests\n"
            f"driver.endpoint_url = {self.store.url}\ndriver.region_name = us-east-1\n"
        )

    def journals(self) -> list[str]:
        return self.store.names("wh/_txpool/staged/")

    def access(self) -> dict[str, str]:
        keys = {"access-key-id": "tests", "secret-access-key": "secret-of-tests", "region": "us-east-1"}
        return {f"s3.{name}": value for name, value in {**keys, "endpoint": self.store.url}.items()}

    def _files(self) -> set[str]:
        """The objects, if no upload is left but those without parts, which the journal did not have yet."""
        client = self.store.client()
        for each in client.list_multipart_uploads(Bucket="bucket").get("Uploads", ()):
            assert not client.list_parts(Bucket="bucket", Key=each["Key"], UploadId=each["UploadId"]).get("Parts")
        return {f"s3://bucket/{each}" for each in self.store.names("wh/db/")}

    def remove_orphans(self) -> None:
        """Nobody does."""

    age = remove_orphans


@pytest.fixture(params=["prepares", "marked", "bucket"])
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def store(kind: str) -> Iterator[ObjectStore | None]:
    """Of the bucket. It is there until all that must have ended has been looked at."""
    if kind != "bucket":
        yield None
        return
    with store_with_a_bucket() as found:
        yield found


@pytest.fixture
def site(
    kind: str,
    store: ObjectStore | None,
    databases: Any,
    tmp_path: Path,
    monkeypatch: Any,
    eventually: Eventually,
) -> Iterator[Site]:
    monkeypatch.chdir(tmp_path)
    if store is None:
        yield from in_use(Site(tmp_path, databases, marked=kind == "marked"), databases, eventually)
    else:
        yield from in_use(InBucket(tmp_path, databases, store), databases, eventually)


def in_use(site: Site, databases: Any, eventually: Eventually) -> Iterator[Site]:
    eventually.in_the(
        places.of_files(
            site.folder / "recovery.properties",
            log="log",
            marked=["one.db"] * site.marked,
            dsns=[databases.dsn(name) for name in ("one", "two")],
            more=lambda: (("staged", name) for name in site.journals()),
        )
    )
    yield site
    for each in registry.opened():
        each.close()
    txpool.configure()


@pytest.mark.costly
def test_killed_at_every_point(site: Site) -> None:
    points = [*(MARKED if site.marked else site.points).items()]
    expected: list[int] = []
    if not FULL:
        points = random.Random(SEED).sample(points, 3)
    print(f"seed {SEED}")
    for number, (point, commits) in enumerate(points):
        name, _, nth = point.partition("@")
        process = site.write(number, failpoints=f"{name}=kill@{nth or 1}")
        _, errors = process.communicate(timeout=600)
        assert process.returncode == -9, f"{point} was not reached: {errors[-3000:]}"
        site.recover()
        expected += [number] * commits
        assert site.require_whole() == expected, point


@pytest.mark.costly
def test_a_sweep_that_is_killed_is_gone_on_with(site: Site) -> None:
    site.write(1, failpoints="lake.swapped=kill").communicate(timeout=600)
    for nth in (1, 3):
        environment = os.environ | {"TXPOOL_FAILPOINTS": f"lake.sweeping=kill@{nth}"}
        swept = preloaded.start("-c", RECOVERY, cwd=site.folder, env=environment)
        _, errors = swept.communicate(timeout=600)
        assert swept.returncode == -9, errors[-3000:]
    site.recover()
    assert site.require_whole() == []


@pytest.mark.costly
def test_killed_at_any_moment(site: Site) -> None:
    chance = random.Random(SEED)
    print(f"seed {SEED}")
    said: list[int] = []
    for number in range(0, RANDOM_KILLS // 2 * 100, 100):
        site.age()
        writers = [site.write(*range(number + first, number + 100, 2)) for first in (0, 1)]
        said += [int(process.stdout.readline()) for process in writers]  # both are at work
        for process in chance.sample(writers, 2):
            time.sleep(chance.random() / 2)  # any moment is right
            process.kill()
            said += [int(line) for line in process.communicate(timeout=600)[0].split()]
            recovering = preloaded.start("-c", RECOVERY, cwd=site.folder, env=dict(os.environ))
            time.sleep(chance.random() * 2)
            recovering.kill()
            recovering.communicate(timeout=600)
        site.remove_orphans()
        site.recover()
        assert set(said) <= set(site.require_whole())
    site.judge(range(RANDOM_KILLS // 2 * 100), said)


#: What Iceberg's JdbcCatalog commits a table with.
JDBC = """
    update txpool_spark.iceberg_tables set metadata_location = %s, previous_metadata_location = %s
    where catalog_name = 'wh' and table_namespace = 'db' and table_name = 'orders' and metadata_location = %s
    and (iceberg_type = 'TABLE' or iceberg_type is null)"""


@pytest.mark.costly
@pytest.mark.parametrize("kind", ["prepares"])
@pytest.mark.parametrize("commits", [True, False])
def test_what_a_foreign_writer_meets_while_a_branch_is_in_doubt(site: Site, databases: Any, commits: bool) -> None:
    import pyarrow as pa

    pointer = "select metadata_location from txpool_spark.iceberg_tables where table_name = 'orders'"
    before = databases.rows("one", pointer)[0][0]
    site.write(1, failpoints=f"{'log.recorded' if commits else 'coordinator.prepared'}=kill").communicate(timeout=600)
    assert databases.rows("one", pointer) == [(before,)]
    with psycopg.connect(databases.dsn("one"), options="-c lock_timeout=200ms") as connection:
        with pytest.raises(psycopg.errors.LockNotAvailable):
            connection.execute(JDBC, ["elsewhere", before, before])
        connection.rollback()

    def jdbc() -> int:
        with psycopg.connect(databases.dsn("one"), options="-c lock_timeout=60s") as connection:
            changed = connection.execute(JDBC, ["elsewhere", before, before]).rowcount
            connection.rollback()
            return changed

    def foreign() -> None:
        parts = conninfo_to_dict(databases.dsn("one"), options="-c search_path=txpool_spark -c lock_timeout=60s")
        uri = URL.create("postgresql+psycopg", query={name: str(value) for name, value in parts.items()})
        shown = uri.render_as_string(hide_password=False)
        catalog = SqlCatalog("wh", uri=shown, warehouse=str(site.folder / "wh"), init_catalog_tables="false")
        try:
            catalog.load_table("db.orders").append(pa.table({"id": [99]}))
        finally:
            catalog.engine.dispose()

    waiting = "select count(*) from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock'"
    with ThreadPoolExecutor(2) as pool:
        others = [pool.submit(jdbc), pool.submit(foreign)]
        while databases.rows("one", waiting)[0][0] < len(others):
            assert not any(each.done() for each in others), [each.exception() for each in others if each.done()]
            time.sleep(0.1)
        site.recover()
        assert others[0].result(timeout=600) == (0 if commits else 1)
        others[1].result(timeout=600)
    found, named = site._read()
    assert found == {"orders": [1, 99] if commits else [99], "lines": [1] if commits else []}
    assert all(Path(each.removeprefix("file://")).exists() for each in named)
