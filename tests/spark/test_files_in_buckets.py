"""write_files() to a bucket: Spark writes into a folder, whose files become objects; read as any program reads them."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import txpool
from tests.support.s3_server import ObjectStore, object_store
from txpool.config.settings import DataSourceSettings
from txpool.resources.s3.manager import MANAGER
from txpool.resources.s3.work import StagedObjects
from txpool.spark import write_files

pytestmark = pytest.mark.spark


@pytest.fixture(scope="module")
def server() -> Iterator[ObjectStore]:
    with object_store() as found:
        yield found


@pytest.fixture
def store(server: ObjectStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ObjectStore]:
    monkeypatch.chdir(tmp_path)
    server.client().create_bucket(Bucket="bucket")
    (tmp_path / "shared").mkdir()
    file = tmp_path / "bucket.properties"
    file.touch(0o600)
    file.write_text(
        "name = bucket\ndriver = s3\nurl = s3://bucket/exports\nstaging = shared\nuser = tests\n"
        f"password = secret-of-tests\ndriver.endpoint_url = {server.url}\ndriver.region_name = us-east-1\n"
    )
    txpool.configure(node_name="driver", log_url="sqlite:///txlog", log_create=True)
    yield server
    txpool.configure()
    assert left(server) == []
    for key in server.names():
        server.client().delete_object(Bucket="bucket", Key=key)


def left(store: ObjectStore) -> list[str]:
    """What is staged or prepared, in the folder and in the bucket."""
    staged = Path("shared/.txpool/staged")
    hidden = [each for each in store.names("exports/.txpool/") if not each.endswith("identity")]
    return [*(os.listdir(staged) if staged.exists() else ()), *hidden, *store.uploads()]


def published(store: ObjectStore, name: str) -> list[str]:
    prefix = f"exports/{name}/"
    return [each.removeprefix(prefix) for each in store.names(prefix)]


def rows_of(spark: Any, store: ObjectStore, name: str, folder: Path) -> Any:
    """What Spark reads of it once it is in a folder again."""
    for each in published(store, name):
        path = folder / name / each
        path.parent.mkdir(parents=True, exist_ok=True)
        body = store.client().get_object(Bucket="bucket", Key=f"exports/{name}/{each}")["Body"].read()
        path.write_bytes(body)
    return spark.read.parquet(f"file://{folder / name}")


def test_the_objects_appear_with_the_commit(spark: Any, store: ObjectStore, tmp_path: Path) -> None:
    rows = spark.range(100, numPartitions=3).selectExpr("id", "cast(id % 3 as int) as part")
    with txpool.transaction():
        write_files(rows, "bucket.properties", "day", partition_by=["part"], compression="gzip")
        assert published(store, "day") == []
        assert os.listdir("shared/.txpool/staged") == []
    assert rows_of(spark, store, "day", tmp_path).where("part = 1").count() == 33
    names = published(store, "day")
    assert "_SUCCESS" in names
    assert {each.partition("/")[0] for each in names} == {"_SUCCESS", "part=0", "part=1", "part=2"}
    with pytest.raises(txpool.ProgrammingError, match="choose another name than day"):
        write_files(rows, "bucket.properties", "day")
    assert published(store, "day") == names


def test_a_partition_whose_name_begins_with_a_point(spark: Any, store: ObjectStore) -> None:
    """Spark writes it, and a program may read it: nothing of it is left out."""
    rows = spark.range(4, numPartitions=1).selectExpr("id", "cast(id % 2 as int) as `.part`")
    write_files(rows, "bucket.properties", "day", partition_by=[".part"], format="csv")
    found = {each.partition("/")[0] for each in published(store, "day")}
    assert found == {"_SUCCESS", ".part=0", ".part=1"}


def test_a_task_that_fails(spark: Any, store: ObjectStore) -> None:
    bad = spark.range(5, numPartitions=2).selectExpr("if(id = 4, cast(raise_error('as told') as long), id) as id")
    with pytest.raises(txpool.TransactionRolledBack), txpool.transaction():
        write_files(spark.range(5), "bucket.properties", "other", format="csv")
        with pytest.raises(Exception, match="as told"):
            write_files(bad, "bucket.properties", "day")
    assert store.names("exports/") == ["exports/.txpool/identity"] * bool(store.names("exports/"))


def test_an_upload_that_fails(spark: Any, store: ObjectStore, monkeypatch: pytest.MonkeyPatch) -> None:
    real = StagedObjects._upload

    def failing(self: StagedObjects, path: Path, file: str) -> None:
        real(self, path, file)
        raise OSError("as told")

    monkeypatch.setattr(StagedObjects, "_upload", failing)
    with pytest.raises(OSError, match="as told"):
        write_files(spark.range(50, numPartitions=4), "bucket.properties", "day")
    assert published(store, "day") == []


def test_what_attempts_have_left_is_not_sent(spark: Any, store: ObjectStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """A lost attempt's file, and one that comes when the folder is gone: a recovery removes it."""
    real, folders = StagedObjects._upload, []

    def late(self: StagedObjects, path: Path, file: str) -> None:
        folders.append(path.parent)
        real(self, path, file)

    def saved(writer: Any, path: str) -> None:
        save(writer, path)
        attempt = Path(path.removeprefix("file://"), "_temporary", "0", "attempt")
        attempt.mkdir(parents=True)
        (attempt / "part-0").write_text("lost")

    from pyspark.sql import DataFrameWriter

    save = DataFrameWriter.save
    monkeypatch.setattr(StagedObjects, "_upload", late)
    monkeypatch.setattr(DataFrameWriter, "save", saved)
    write_files(spark.range(10, numPartitions=1), "bucket.properties", "day", format="csv")
    names = published(store, "day")
    assert names[0] == "_SUCCESS"
    assert [each[:5] for each in names[1:]] == ["part-"]
    folders[0].mkdir()
    (folders[0] / "part-0").write_text("late")
    staging = MANAGER.staging(DataSourceSettings.load("bucket.properties"), lock_timeout=1)
    (found,) = staging.tables()
    assert found.gtrid.startswith("txp1:driver:")
    staging.drop(found)


@pytest.mark.parametrize("mode", ["append", "overwrite"])
def test_what_a_bucket_does_not_have(mode: Any, spark: Any, store: ObjectStore) -> None:
    with pytest.raises(txpool.NotSupportedError, match="of its own"):
        write_files(spark.range(5), "bucket.properties", "day", mode=mode)
    shutil.rmtree("shared")
    with pytest.raises(txpool.OperationalError, match="Is it mounted"):
        write_files(spark.range(5), "bucket.properties", "day")
    text = Path("bucket.properties").read_text()
    Path("other.properties").touch(0o600)
    Path("other.properties").write_text(text.replace("staging = shared\n", "").replace("name = bucket", "name = other"))
    with pytest.raises(txpool.ConfigurationError, match="write staging = "):
        write_files(spark.range(5), "other.properties", "day")
