"""Objects in a bucket: a process, or a recovery, that is killed at each point; interrupts; a store that goes away.

The store is moto's server, a process of its own, which outlives whoever is killed.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from functools import partial
from pathlib import Path

import pytest

import txpool
from recovery import RecoveryManager
from tests.crash import eventually as places
from tests.crash.eventually import Eventually
from tests.crash.evidence import SEED, Count, Evidence
from tests.crash.struck_jobs import count_places, interrupted
from tests.support.forking import is_killed
from tests.support.interrupts import codes_of
from tests.support.s3_server import ObjectStore, object_store
from tests.support.sampling import chosen
from txpool import failpoints
from txpool.config.settings import RecoverySettings
from txpool.resources.s3 import branch, bucket, local, manifest, upload, work
from txpool.setup.stores import initialise

HIDDEN = "exports/.txpool/"
#: Where a process is killed, and whether that comes after the decision.
POINTS = {
    "files.staged": False,
    "s3.copied": False,
    "s3.created": False,
    "s3.staged": False,
    "s3.staged@2": False,
    "s3.uploaded": False,
    "coordinator.prepared": False,
    "marked.commit": False,
    "marked.committed": True,
    "coordinator.decided": True,
    "s3.ending": True,
    "s3.completed": True,
    "s3.completed@3": True,
    "s3.published": True,
    "coordinator.committed": True,
}
#: Where a recovery is killed after that, and after which of them.
IN_RECOVERY = {
    "s3.ending": ("coordinator.prepared", "coordinator.decided"),
    "s3.completed": ("coordinator.decided",),
    "s3.published": ("coordinator.decided",),
    "s3.sweeping": ("s3.staged",),
    "files.sweeping": ("files.staged", "s3.copied"),
    "recovery.branch": ("coordinator.prepared", "s3.completed"),
}


@pytest.fixture(scope="module")
def store() -> Iterator[ObjectStore]:
    with object_store() as found:
        yield found


class Shop:
    """A bucket, a ledger beside it, and a job that writes to both."""

    def __init__(self, folder: Path, store: ObjectStore) -> None:
        self.folder = folder
        self.store = store
        self.client = store.client()

    def job(self, number: int) -> None:
        bucket = self.folder / "objects.properties"
        with txpool.transaction():
            with txpool.folder(bucket, f"n{number}").filling() as filled:  # as write_files() does
                (filled / "data").write_text(str(number))
            with txpool.folder(bucket, "latest", overwrite=True).open("data") as file:
                file.write(str(number))
            with txpool.connect(self.folder / "ledger.properties") as connection:
                connection.execute("insert into loads values (?)", (number,))

    def killed(self, number: int, point: str) -> bool:
        """Run the job in a forked child; whether it was killed at that point."""
        name, _, nth = point.partition("@")
        return self._dies(name, int(nth or 1), partial(self.job, number), again=True)

    def recovery_killed(self, point: str) -> bool:
        return self._dies(point, 1, self.scan, again=False)

    def _dies(self, point: str, nth: int, work: Callable[[], object], *, again: bool) -> bool:
        def dies() -> None:
            if again:
                txpool.configure(self.folder / "txpool.properties")
            failpoints.arm(point, "kill", nth=nth)
            work()

        txpool.configure()
        return is_killed(dies)

    def scan(self) -> None:
        RecoveryManager(self.folder / "recovery.properties").scan()

    def recovered(self, number: int, shown: str) -> bool:
        """After recovery, whether the job has committed: in all of its places, or in none, and nothing is left."""
        txpool.configure()  # its process has ended, as far as recovery can see
        self.scan()
        with closing(sqlite3.connect(self.folder / "ledger.db")) as file:
            rows = [row for (row,) in file.execute("select number from loads where number = ?", (number,))]
        found = set(self.store.names(f"exports/n{number}/"))
        whole = found == {f"exports/n{number}/data", f"exports/n{number}/_SUCCESS"}
        assert whole or not found, shown
        latest = (
            "exports/latest/data" in self.store.names("exports/latest/")
            and self.client.get_object(Bucket="bucket", Key="exports/latest/data")["Body"].read()
            == str(number).encode()
        )
        assert whole is latest is (rows == [number]), shown
        assert [*self.left()] == [], shown
        txpool.configure(self.folder / "txpool.properties")
        return whole

    def left(self) -> Iterator[tuple[str, str]]:
        """What is prepared or staged. An upload that the journal does not have yet has no parts, and is nobody's."""
        yield from (("hidden", key) for key in self.store.names(HIDDEN) if key != f"{HIDDEN}identity")
        yield from (("in the folder", path.name) for path in self.folder.glob("shared/.txpool/staged/*"))
        for each in self.client.list_multipart_uploads(Bucket="bucket").get("Uploads", ()):
            named = {"Bucket": "bucket", "Key": each["Key"], "UploadId": each["UploadId"]}
            if self.client.list_parts(**named).get("Parts"):
                yield "upload", each["Key"]
            else:
                self.client.abort_multipart_upload(**named)


@pytest.fixture
def shop(tmp_path: Path, store: ObjectStore, eventually: Eventually) -> Iterator[Shop]:
    found = Shop(tmp_path, store)
    found.client.create_bucket(Bucket="bucket")
    (tmp_path / "shared").mkdir()
    file = tmp_path / "objects.properties"
    file.touch(0o600)
    file.write_text(
        "name = objects\ndriver = s3\nurl = s3://bucket/exports\nuser = tests\npassword = secret-of-tests\n"
        f"driver.endpoint_url = {store.url}\ndriver.region_name = us-east-1\nstaging = shared\n"
    )
    (tmp_path / "ledger.properties").write_text(
        "name = ledger\ndriver = sqlite3\nmode = cmr\nurl = sqlite:///ledger.db\n"
    )
    common = "node.name = etl\nlog.url = sqlite:///txlog\n"
    (tmp_path / "txpool.properties").write_text(f"{common}log.create = true\n")
    datasources = "datasources = objects.properties, ledger.properties\nrecovery.backoff = 0\n"
    (tmp_path / "recovery.properties").write_text(f"{common}{datasources}")
    txpool.configure(tmp_path / "txpool.properties")
    initialise(RecoverySettings.load(tmp_path / "recovery.properties"))
    with closing(txpool.connect(tmp_path / "ledger.properties")) as connection:
        connection.execute("create table loads (number integer)")
        connection.commit()
    eventually.in_the(places.of_files(tmp_path / "recovery.properties", marked=["ledger.db"], more=found.left))
    yield found
    failpoints.disarm()
    txpool.configure()


@pytest.fixture(autouse=True)
def empty(store: ObjectStore, shop: Shop) -> Iterator[None]:
    yield
    for key in store.names():
        shop.client.delete_object(Bucket="bucket", Key=key)


@pytest.mark.costly
def test_a_process_that_is_killed_at_each_point(shop: Shop, evidence: Evidence) -> None:
    points = chosen(POINTS, 6)
    for number, point in enumerate(points, 1):
        assert shop.killed(number, point), point
        assert shop.recovered(number, point) is POINTS[point], f"seed {SEED}: {point}"
    evidence.add(Count.KILLS, len(points))
    evidence.hit({point.partition("@")[0] for point in points})


@pytest.mark.costly
def test_a_recovery_that_is_killed_at_each_point(shop: Shop, evidence: Evidence) -> None:
    cases = chosen([(point, at) for point, before in IN_RECOVERY.items() for at in before], 3)
    for number, (point, at) in enumerate(cases, 1):
        assert shop.killed(number, at), at
        assert shop.recovery_killed(point), point
        assert shop.recovered(number, f"{at}, {point}") is POINTS[at]
    evidence.add(Count.KILLS, 2 * len(cases))
    evidence.hit(point for point, _ in cases)


# -- interrupts -----------------------------------------------------------------------------------------------------


CODES = {code for module in (branch, bucket, local, manifest, upload, work) for code in codes_of(module)}


@pytest.mark.costly
def test_an_interrupt_at_each_place(shop: Shop) -> None:
    shop.job(1)
    count = count_places(partial(shop.job, 2), CODES)
    for number, nth in enumerate(chosen(range(1, count + 1), 4), 3):
        told = interrupted(partial(shop.job, number), CODES, nth)
        assert txpool.current() is None
        shown = f"seed {SEED}: interrupt at {nth} of {count}, told {told!r}"
        committed = shop.recovered(number, shown)
        if told is None:
            assert committed, shown
        elif isinstance(told, txpool.TransactionRolledBack):
            assert not committed, shown
