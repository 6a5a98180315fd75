"""A bucket in which a datasource publishes, a marked ledger beside it, a log, and a recovery."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import txpool
from recovery import RecoveryManager
from tests.support.s3_server import STRANGER, ObjectStore, object_store
from txpool import failpoints
from txpool.config.settings import DataSourceSettings
from txpool.files import StagedFolder
from txpool.resources.s3.bucket import Bucket
from txpool.resources.s3.manager import MANAGER


class Objects:
    """What is in the bucket, as any program sees it; and what txpool keeps hidden there."""

    hidden = "exports/.txpool/"

    def __init__(self, site: Path, store: ObjectStore) -> None:
        self.site = site
        self.store = store
        self.file = site / "objects.properties"
        self.client = store.client()

    def write(self, name: str, content: str, *, overwrite: bool = False) -> StagedFolder:
        """Stage two objects."""
        staged = txpool.folder(self.file, name, overwrite=overwrite)
        for file in ("part-0.csv", "more/part-1.csv"):
            with staged.open(file) as part:
                part.write(content)
        return staged

    def published(self) -> dict[str, str]:
        """The contents of all objects that a reader finds; of the marks their name alone."""
        found = {}
        for key in self.store.names("exports/"):
            if not key.startswith(self.hidden):
                body = self.client.get_object(Bucket="bucket", Key=key)["Body"].read().decode()
                found[key.removeprefix("exports/")] = "" if key.endswith("_SUCCESS") else body
        return found

    def whole(self, **contents: str) -> dict[str, str]:
        """What `published` returns if these are there."""
        files = {}
        for name, content in contents.items():
            files |= {f"{name}/part-0.csv": content, f"{name}/more/part-1.csv": content, f"{name}/_SUCCESS": ""}
        return files

    def left(self) -> list[str]:
        """What is prepared, what is staged, and every upload."""
        hidden = [key.removeprefix(self.hidden) for key in self.store.names(self.hidden)]
        return sorted([key for key in hidden if key != "identity"] + self.store.uploads())

    def manifests(self) -> list[str]:
        return [key.removeprefix(f"{self.hidden}prepared/") for key in self.store.names(f"{self.hidden}prepared/")]

    def bucket(self) -> Bucket:
        return MANAGER.bucket(DataSourceSettings.load(self.file))

    def stranger(self) -> Any:
        """A client who may write to the bucket, and does not own it."""
        return self.store.client(STRANGER)

    def scan(self) -> RecoveryManager:
        manager = RecoveryManager(self.site / "recovery.properties")
        manager.scan()
        return manager


@pytest.fixture(scope="session")
def store() -> Iterator[ObjectStore]:
    with object_store() as found:
        yield found


@pytest.fixture
def objects(tmp_path: Path, store: ObjectStore) -> Iterator[Objects]:
    found = Objects(tmp_path, store)
    found.client.create_bucket(Bucket="bucket")
    found.file.write_text(
        "name = objects\ndriver = s3\nurl = s3://bucket/exports\nbucket.owner = 123456789012\nuser = tests\n"
        f"password = secret-of-tests\ndriver.endpoint_url = {store.url}\ndriver.region_name = us-east-1\n"
    )
    found.file.chmod(0o600)
    (tmp_path / "ledger.properties").write_text(
        f"name = ledger\ndriver = sqlite3\nmode = cmr\nurl = sqlite:///{tmp_path}/ledger.db\n"
    )
    common = f"node.name = etl\nlog.url = sqlite:///{tmp_path}/txlog\n"
    (tmp_path / "txpool.properties").write_text(f"{common}log.create = true\n")
    (tmp_path / "recovery.properties").write_text(f"{common}datasources = objects.properties\nrecovery.backoff = 0\n")
    txpool.configure(tmp_path / "txpool.properties")
    yield found
    failpoints.disarm()
    txpool.configure()
    for key in store.names():
        found.client.delete_object(Bucket="bucket", Key=key)
    for each in found.client.list_multipart_uploads(Bucket="bucket").get("Uploads", ()):
        found.client.abort_multipart_upload(Bucket="bucket", Key=each["Key"], UploadId=each["UploadId"])
    found.client.delete_bucket(Bucket="bucket")


def gone() -> None:
    """This process's incarnation has ended, as far as recovery can see."""
    txpool.configure()
    gc.collect()
