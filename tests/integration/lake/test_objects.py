"""A warehouse in a bucket: its tables' files are objects, and its journals, too."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pytest
from pyiceberg.io.pyarrow import _dataframe_to_data_files
from pyiceberg.table import StaticTable

import txpool
import txpool.lake
from tests.integration.lake.conftest import IN_SQLITE, SCHEMA, Lake, rows
from tests.integration.outbox.conftest import Place
from tests.integration.resources.s3.conftest import store
from tests.support.s3_server import ObjectStore
from txpool.errors import ConfigurationError, Error, OperationalError
from txpool.lake.journals.files import AttemptFiles
from txpool.lake.warehouse import LakeStaging, Warehouse
from txpool.lake.work import LakeWork
from txpool.resources.s3.bucket import Bucket, StoreError

__all__ = ["store"]
#: Of the warehouse, without what binds it.
HIDDEN = "wh/_txpool/"
BOUND = {f"{HIDDEN}identity", f"{HIDDEN}catalog"}
SECRET = "secret-of-tests"


class ObjectLake(Lake):
    """A warehouse in a bucket."""

    def __init__(self, place: Place, folder: Path, store: ObjectStore) -> None:
        self.store = store
        super().__init__(place, folder)

    def warehouse(self, name: str, folder: str = "") -> Path:
        path = self.folder / f"{name}.properties"
        path.touch(0o600)
        path.write_text(
            f"name = {name}\ndriver = iceberg\ncatalog = orders.properties\nwarehouse = s3://bucket/{folder or name}\n"
            f"bucket.owner = 123456789012\nuser = tests\npassword = {SECRET}\n"
            f"driver.endpoint_url = {self.store.url}\ndriver.region_name = us-east-1\n"
        )
        return path

    def files(self) -> set[str]:
        return set(self.store.names("wh/")) - BOUND

    def journals(self) -> set[str]:
        return {each for each in self.files() if each.startswith(HIDDEN)}

    def published(self, name: str = "orders") -> Any:
        """The table, as pyiceberg alone reads it."""
        schema = "txpool_spark." if self.place.kind == "postgresql" else ""
        query = f"select metadata_location from {schema}iceberg_tables where table_name = '{name}'"
        properties = {
            "s3.endpoint": self.store.url,
            "s3.region": "us-east-1",
            "s3.access-key-id": "tests",
            "s3.secret-access-key": SECRET,
        }
        return StaticTable.from_metadata(str(self.place.sql("orders", query)[0][0]), properties)

    def require_whole(self, *ids: int) -> None:
        """These are the rows, each file that the table names is there, and nothing else is."""
        table = self.published()
        assert sorted(table.scan().to_arrow()["id"].to_pylist()) == sorted(ids)
        named = {table.metadata_location, *(each.metadata_file for each in table.metadata.metadata_log)}
        for snapshot in table.snapshots():
            named.add(snapshot.manifest_list)
            for manifest in snapshot.manifests(table.io):
                named.add(manifest.manifest_path)
                named |= {each.data_file.file_path for each in manifest.fetch_manifest_entry(table.io)}
        assert {f"s3://bucket/{each}" for each in self.files()} == named
        assert (self.store.uploads(), self.rows()) == ([], 0)


@pytest.fixture
def lake(catalogs: Place, tmp_path: Path, store: ObjectStore) -> Iterator[ObjectLake]:
    client = store.client()
    client.create_bucket(Bucket="bucket")
    yield ObjectLake(catalogs, tmp_path, store)
    for key in store.names():
        client.delete_object(Bucket="bucket", Key=key)
    for each in client.list_multipart_uploads(Bucket="bucket").get("Uploads", ()):
        client.abort_multipart_upload(Bucket="bucket", Key=each["Key"], UploadId=each["UploadId"])
    client.delete_bucket(Bucket="bucket")


def swept(lake: ObjectLake) -> None:
    staging = LakeStaging(lake.source.settings, 1.0)
    for each in staging.tables():
        staging.drop(each)
    assert staging.tables() == []


def test_every_kind_of_change_commits(lake: ObjectLake) -> None:
    lake.create("orders")
    with txpool.transaction():
        table = lake.catalog.load_table("db.orders")
        table.append(rows(1, 2, 3))
        table.append(pd.DataFrame({"id": [9], "name": ["nine"]}))
        table.delete("id = 2")
        table.upsert(pa.table({"id": [3, 4], "name": ["three", "four"]}, schema=SCHEMA), join_cols=["id"])
        assert sorted(table.scan().to_arrow()["id"].to_pylist()) == [1, 3, 4, 9]
    assert sorted(lake.published().scan().to_arrow()["id"].to_pylist()) == lake.ids("orders") == [1, 3, 4, 9]
    with txpool.transaction():
        lake.catalog.load_table("db.orders").overwrite(rows(7))
    assert lake.ids("orders") == [7]
    assert (lake.journals(), lake.store.uploads(), lake.rows()) == (set(), [], 0)


@IN_SQLITE
def test_credentials_of_the_environment(lake: ObjectLake, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (
        ("AWS_ENDPOINT_URL_S3", lake.store.url),
        ("AWS_ACCESS_KEY_ID", "tests"),
        ("AWS_SECRET_ACCESS_KEY", SECRET),
        ("AWS_DEFAULT_REGION", "us-east-1"),
    ):
        monkeypatch.setenv(name, value)
    text = lake.file.read_text()
    lake.file.write_text(text.partition("user =")[0])
    lake.create("orders")
    with txpool.transaction():
        lake.append("orders", 1)
    assert lake.ids("orders") == [1]
    lake.require_whole(1)


@IN_SQLITE
def test_what_is_rolled_back_leaves_no_object(lake: ObjectLake) -> None:
    lake.create("orders")
    lake.require_whole()
    files = lake.files()
    with pytest.raises(ZeroDivisionError), txpool.transaction():
        lake.append("orders", 1)
        lake.catalog.create_table("db.more", SCHEMA).append(rows(1))
        assert lake.files() > files
        1 / 0
    assert lake.files() == files
    lake.require_whole()


@IN_SQLITE
def test_an_object_larger_than_a_part(lake: ObjectLake, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("txpool.resources.s3.upload.PART", 5 * 1024 * 1024)
    lake.create("orders")
    ids = range(2_000_000)
    with txpool.transaction():
        lake.catalog.load_table("db.orders").append(pa.table({"id": ids, "name": [f"n{each * 7919}" for each in ids]}))
    with txpool.transaction():
        assert lake.catalog.load_table("db.orders").scan().count() == len(ids)


@IN_SQLITE
@pytest.mark.parametrize("commit", [True, False])
def test_a_sweep_keeps_what_is_published(lake: ObjectLake, monkeypatch: pytest.MonkeyPatch, commit: bool) -> None:
    lake.create("orders")
    with monkeypatch.context() as patch:
        patch.setattr(LakeWork, "_after", lambda self, status: None)  # as if the process were dead
        with suppress(ZeroDivisionError), txpool.transaction():
            lake.append("orders", 1)
            if not commit:
                1 / 0
    assert lake.journals()
    swept(lake)
    lake.require_whole(*[1] * commit)


@IN_SQLITE
def test_39_journals_that_a_replica_has_kept_remove_nothing_that_is_named(lake: ObjectLake) -> None:
    """S3 replicates no deletion unless it is told to."""
    lake.create("orders")
    client = lake.store.client()
    with txpool.transaction():
        lake.append("orders", 1)
        kept = {key: client.get_object(Bucket="bucket", Key=key)["Body"].read() for key in lake.journals()}
    assert kept
    for key, content in kept.items():
        client.put_object(Bucket="bucket", Key=key, Body=content)
    swept(lake)
    lake.require_whole(1)


@IN_SQLITE
@pytest.mark.parametrize("commit", [True, False])
def test_lost_attempts_go_with_the_transaction(lake: ObjectLake, commit: bool) -> None:
    lake.create("orders")
    with suppress(ZeroDivisionError), txpool.transaction() as transaction:
        changes = lake.catalog.load_table("db.orders").transaction()
        files = attempt(lake, transaction.gtrid, "0.0.1", 1)
        attempt(lake, transaction.gtrid, "0.0.2", 1)
        changes.publish(files, overwrite=False)
        changes.commit_transaction()
        if not commit:
            1 / 0
    lake.require_whole(*[1] * commit)


def attempt(lake: ObjectLake, gtrid: str, numbers: str, *ids: int) -> list[Any]:
    """What an attempt makes, and would report to the driver."""
    journals = Warehouse(lake.source.settings).journals
    with journals.attempt(gtrid, numbers) as journal:
        io = journals.io(AttemptFiles(journals, journal))
        return list(_dataframe_to_data_files(lake.catalog.load_table("db.orders").metadata, rows(*ids), io))


@IN_SQLITE
@pytest.mark.parametrize("commit", [True, False])
def test_a_sweep_that_dies_at_any_step_is_gone_on_with(
    lake: ObjectLake, monkeypatch: pytest.MonkeyPatch, commit: bool
) -> None:
    lake.create("orders")
    real, left = Bucket.call, [0]

    def dying(self: Bucket, operation: str, **parameters: Any) -> Any:
        left[0] -= operation in ("delete_object", "delete_objects")
        if left[0] < 0:
            raise KeyboardInterrupt
        return real(self, operation, **parameters)

    for step in range(4):
        with monkeypatch.context() as patch:
            patch.setattr(LakeWork, "_after", lambda self, status: None)  # as if the process were dead
            with suppress(ZeroDivisionError), txpool.transaction() as transaction:
                changes = lake.catalog.load_table("db.orders").transaction()
                attempt(lake, transaction.gtrid, "0.0.2", 9)
                changes.publish(attempt(lake, transaction.gtrid, "0.0.1", step), overwrite=False)
                changes.commit_transaction()
                if not commit:
                    1 / 0
            left[0] = step
            patch.setattr(Bucket, "call", dying)
            with suppress(KeyboardInterrupt):
                swept(lake)
        swept(lake)
    lake.require_whole(*range(4 * commit))


@IN_SQLITE
def test_whoever_is_swept_completes_nothing(lake: ObjectLake) -> None:
    """A task that lives on, and a sweep of what it was writing."""
    lake.create("orders")
    journals = Warehouse(lake.source.settings).journals
    with pytest.raises(ZeroDivisionError), txpool.transaction() as transaction:
        lake.append("orders", 1)
        held = journals.attempt(transaction.gtrid, "0.0.1")
        files = AttemptFiles(journals, held.__enter__())
        late, later = (journals.io(files).new_output(f"s3://bucket/wh/db/orders/data/{name}") for name in "ab")
        stream = late.create()
        stream.write(b"a part")
        1 / 0
    with pytest.raises(Error):
        stream.close()
    lake.require_whole()
    with later.create() as stream:  # a new one, of which nobody has heard
        stream.write(b"it appears")
    assert "wh/db/orders/data/b" in lake.files()
    swept(lake)
    lake.require_whole()


@IN_SQLITE
def test_an_entry_that_arrives_late_removes_nothing(lake: ObjectLake, monkeypatch: pytest.MonkeyPatch) -> None:
    """The answers to some entries are lost, and the requests are done when all has ended."""
    lake.create("orders")
    real, late = Bucket.call, []

    def lost(self: Bucket, operation: str, **parameters: Any) -> Any:
        if operation == "put_object" and parameters["Key"].rpartition("/")[2].isdecimal() and len(late) < 3:
            late.append(parameters)
            raise StoreError("no answer", "")
        return real(self, operation, **parameters)

    with monkeypatch.context() as patch:
        patch.setattr(Bucket, "call", lost)
        with txpool.transaction():
            lake.append("orders", 1)
    lake.require_whole(1)
    for each in late:
        lake.store.client().put_object(Bucket="bucket", Key=each["Key"], Body=each["Body"])
    swept(lake)
    lake.require_whole(1)


@IN_SQLITE
def test_what_is_not_ours_is_left(lake: ObjectLake) -> None:
    lake.create("orders")
    client, stranger = lake.store.client(), lake.store.client("stranger")
    kept = "wh/db/orders/data/theirs"
    client.put_object(Bucket="bucket", Key=kept, Body=b"theirs")
    journals = Warehouse(lake.source.settings).journals
    with suppress(ZeroDivisionError), txpool.transaction() as transaction:
        lake.append("orders", 1)
        forged = f"{HIDDEN}staged/{transaction.gtrid}/99"
        stranger.put_object(Bucket="bucket", Key=forged, Body=b'{"format": 1, "files": {"db/orders/data/theirs": ""}}')
        with journals.attempt(transaction.gtrid, "0.0.1") as journal:  # a name that is taken
            output = journals.io(AttemptFiles(journals, journal)).new_output(f"s3://bucket/{kept}")
            stream = output.create()
            stream.write(b"ours")
            with pytest.raises(OperationalError, match="theirs"):
                stream.close()
        1 / 0
    assert client.get_object(Bucket="bucket", Key=kept)["Body"].read() == b"theirs"
    assert lake.journals() == {forged}
    for key in (kept, forged):
        client.delete_object(Bucket="bucket", Key=key)
    lake.require_whole()


@IN_SQLITE
def test_a_warehouse_has_one_catalog(lake: ObjectLake) -> None:
    lake.create("orders")
    other = lake.warehouse("other", "wh")
    with pytest.raises(ConfigurationError, match="a name and a folder of its own"), txpool.transaction():
        txpool.lake.catalog(other)
    with pytest.raises(ConfigurationError, match="is not in it"), txpool.transaction():
        lake.catalog.create_table("db.elsewhere", SCHEMA, location="s3://bucket/elsewhere")
    for location in ("s3://bucket/wh/_txpool/x", "s3://bucket/wh/db/../../x", "s3://bucket/wh/a#b", "/wh/db/x"):
        with pytest.raises(ConfigurationError, match="is not in it"):
            Warehouse(lake.source.settings).journals.inside(location)


@IN_SQLITE
def test_secrets_are_shown_nowhere(lake: ObjectLake, caplog: pytest.LogCaptureFixture) -> None:
    from txpool.findings.finding import Finding

    caplog.set_level("DEBUG", "txpool")
    lake.create("orders")
    with pytest.raises(ZeroDivisionError), txpool.transaction():
        lake.append("orders", 1)
        client = lake.store.client()
        kept = [client.get_object(Bucket="bucket", Key=key)["Body"].read() for key in lake.store.names()]
        shown = [
            repr(lake.catalog),
            repr(lake.catalog.properties),
            repr(lake.catalog.load_table("db.orders").io.properties),
        ]
        1 / 0
    found: list[Finding] = list(
        lake.source.resource_manager.findings(lake.source.settings, stale_after=1, timeout=None)
    )
    text = "".join([*map(repr, found), *shown, caplog.text, b"".join(kept).decode("latin-1")])
    assert "is bound to the catalog wh" in text
    assert "no lifecycle rule aborts uploads of s3://bucket/wh/" in text
    assert SECRET not in text


@pytest.mark.costly
@IN_SQLITE
def test_check_reads_the_bucket_s_lifecycle_rules(lake: ObjectLake) -> None:
    """Trap 14: a rule that removes the tables' files or the journals, or that aborts uploads."""
    client, settings = lake.store.client(), lake.source.settings

    def found(rule: dict[str, Any]) -> list[tuple[str, str]]:
        configuration = {"Rules": [{"ID": "r", "Status": "Enabled", **rule}]}
        client.put_bucket_lifecycle_configuration(Bucket="bucket", LifecycleConfiguration=configuration)
        findings = lake.source.resource_manager.findings(settings, stale_after=1, timeout=None)
        return [(each.severity.value, each.found) for each in findings if each.topic == "lifecycle"]

    none = ("warning", "no lifecycle rule aborts uploads of s3://bucket/wh/")
    for prefix in ("", "wh/db/orders", "wh/_txpool/staged/"):
        rule = {"Filter": {"Prefix": prefix}, "Expiration": {"Days": 400}}
        assert found(rule) == [("wrong", "a lifecycle rule removes objects below wh/"), none]
    moved = {"Filter": {"Prefix": "wh/db"}, "Transitions": [{"Days": 30, "StorageClass": "GLACIER"}]}
    assert found(moved) == [("warning", "a lifecycle rule moves objects below wh/ to GLACIER"), none]
    tagged = {"Key": "deleted", "Value": "true"}  # as Iceberg's s3.delete.tags: what is written has no tag
    assert found({"Filter": {"Tag": tagged}, "Expiration": {"Days": 7}}) == [none]
    assert found({"Filter": {"And": {"Prefix": "wh/", "Tags": [tagged]}}, "Expiration": {"Days": 7}}) == [none]
    assert found({"Filter": {"Prefix": "elsewhere/"}, "Expiration": {"Days": 7}}) == [none]
    abort = {"Filter": {"Prefix": ""}, "AbortIncompleteMultipartUpload": {"DaysAfterInitiation": 1}}
    assert found(abort) == [("ok", "a lifecycle rule aborts uploads after 1 days: no file may take longer to write")]


@IN_SQLITE
def test_rules_that_cannot_be_read_are_a_warning(lake: ObjectLake, monkeypatch: pytest.MonkeyPatch) -> None:
    call = Bucket.call

    def refused(bucket: Bucket, operation: str, **parameters: Any) -> Any:
        if "lifecycle" in operation:
            raise StoreError("no right", "AccessDenied")
        return call(bucket, operation, **parameters)

    monkeypatch.setattr(Bucket, "call", refused)
    findings = lake.source.resource_manager.findings(lake.source.settings, stale_after=1, timeout=None)
    (text,) = [each.found for each in findings if each.topic == "lifecycle"]
    assert text.startswith("the lifecycle rules of the bucket cannot be read: ")


@IN_SQLITE
def test_two_transactions_that_change_one_table(lake: ObjectLake) -> None:
    lake.create("orders")

    @txpool.transactional(attempts=20)
    def append(number: int) -> None:
        lake.append("orders", number)

    threads = [threading.Thread(target=append, args=[number]) for number in (1, 2)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert lake.ids("orders") == [1, 2]
    assert (lake.journals(), lake.store.uploads()) == (set(), [])
