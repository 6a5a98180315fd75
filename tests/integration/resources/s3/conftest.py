"""A bucket in which a datasource publishes, a marked ledger beside it, a log, and a recovery."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import txpool
from tests.integration.resources.files.conftest import PublishingSite, gone, write_beside_a_ledger
from tests.support.s3_server import STRANGER, ObjectStore, object_store
from txpool import failpoints
from txpool.config.settings import DataSourceSettings
from txpool.resources.s3.bucket import Bucket
from txpool.resources.s3.manager import MANAGER

__all__ = ["gone"]


class Objects(PublishingSite):
    """What is in the bucket, as any program sees it; and what txpool keeps hidden there."""

    hidden = "exports/.txpool/"

    def __init__(self, site: Path, store: ObjectStore) -> None:
        super().__init__(site, "objects")
        self.store = store
        self.client = store.client()

    def published(self) -> dict[str, str]:
        """The contents of all objects that a reader finds; of the marks their name alone."""
        found = {}
        for key in self.store.names("exports/"):
            if not key.startswith(self.hidden):
                body = self.client.get_object(Bucket="bucket", Key=key)["Body"].read().decode()
                found[key.removeprefix("exports/")] = "" if key.endswith("_SUCCESS") else body
        return found

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
    write_beside_a_ledger(tmp_path, "objects")
    txpool.configure(tmp_path / "txpool.properties")
    yield found
    failpoints.disarm()
    txpool.configure()
    for key in store.names():
        found.client.delete_object(Bucket="bucket", Key=key)
    for each in found.client.list_multipart_uploads(Bucket="bucket").get("Uploads", ()):
        found.client.abort_multipart_upload(Bucket="bucket", Key=each["Key"], UploadId=each["UploadId"])
    found.client.delete_bucket(Bucket="bucket")
