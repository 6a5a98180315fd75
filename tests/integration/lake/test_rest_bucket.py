"""Tables of a REST catalog whose warehouse is in a bucket: the journal is there, too, and nobody is kept from it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

import txpool
import txpool.lake
from tests.integration.resources.s3.conftest import store
from tests.support.rest_catalog import RestServer
from tests.support.rest_site import TABLES, BucketSite, rest_server_in, rest_site, rows
from tests.support.s3_server import STRANGER, ObjectStore
from txpool import failpoints
from txpool.conformance.cases.case import Verdict
from txpool.conformance.kit import run_cases
from txpool.lake.rest.branch import ReferencesRecovery, ReferencesStaging
from txpool.resources.iceberg.manager import MANAGER
from txpool.resources.s3.bucket import Bucket
from txpool.xid import make_gtrid

__all__ = ["store"]
SECRET = "secret-of-tests"
HIDDEN = "wh/_txpool/"
GTRID = make_gtrid("etl", "abcdefghijkl", 1)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, store: ObjectStore) -> Iterator[RestServer]:
    store.client().create_bucket(Bucket="bucket")
    with rest_server_in(tmp_path_factory.mktemp("rest"), store) as found:
        yield found
    store.client().delete_bucket(Bucket="bucket")


@pytest.fixture
def site(tmp_path: Path, server: RestServer) -> Iterator[BucketSite]:
    with rest_site(tmp_path, server) as found:
        assert isinstance(found, BucketSite)
        yield found
        for name in TABLES:
            found.client.drop_table(f"db.{name}")
        found.client.drop_namespace("db")
        client = found.store.client()
        for key in found.store.names():
            client.delete_object(Bucket="bucket", Key=key)
        for each in client.list_multipart_uploads(Bucket="bucket").get("Uploads", ()):
            client.abort_multipart_upload(Bucket="bucket", Key=each["Key"], UploadId=each["UploadId"])


def swept(site: BucketSite) -> None:
    staging = ReferencesStaging(site.settings)
    for each in staging.tables():
        staging.drop(each)


def require_whole(site: BucketSite, *numbers: int) -> None:
    """These are the rows of each table, each file that one names is there, and nothing else is."""
    for name in TABLES:
        assert site.ids(name) == [*numbers]
    assert [*site.left()] == []
    assert site.named() - site.files() <= {each for each in site.named() if "txpool-empty" in each}


def test_what_others_commit_meanwhile_stays(site: BucketSite) -> None:
    with failpoints.arming("coordinator.decided", lambda: site.foreign(5)):
        site.job(1)
    with pytest.raises(ZeroDivisionError), txpool.transaction():
        site.append(2)
        lake = txpool.lake.catalog(site.file)
        assert sorted(lake.load_table("db.orders").scan().to_arrow()["id"].to_pylist()) == [1, 2, 5]
        _ = 1 / 0
    require_whole(site, 1, 5)
    assert site.store.uploads() == []


def test_what_the_server_says_of_the_bucket_counts_for_nothing(site: BucketSite) -> None:
    """It vends credentials of somebody else's, leads elsewhere, and names code."""
    claims = {
        "py-io-impl": "tests.support.nobodys.Files",
        "s3.endpoint": "http://127.0.0.1:9",
        "s3.access-key-id": STRANGER,
        "s3.secret-access-key": "vended",
        "s3.session-token": "vended",
        "s3.remote-signing-enabled": "true",
    }
    vended = [{"prefix": "s3://bucket/wh/db", "config": claims}]
    with site.server.config(overrides=claims, **{"of-tables": {"config": claims, "storage-credentials": vended}}):
        site.job(1)
        headers = site.place.client._session.headers
    assert not {each for each in headers if "delegation" in each.lower()}
    require_whole(site, 1)
    client = site.store.client()
    owners = client.list_objects_v2(Bucket="bucket", Prefix="wh/db/", FetchOwner=True)["Contents"]
    assert "f" * 64 not in {each["Owner"]["ID"] for each in owners}


@pytest.mark.parametrize(
    ("point", "names"),
    [("lake.file", TABLES), ("lake.noted", TABLES[:1]), ("lake.noted@2", TABLES), ("lake.referenced@2", TABLES)],
)
def test_39_whoever_is_swept_prepares_nothing(point: str, names: tuple[str, ...], site: BucketSite) -> None:
    """There are no locks: a process that lives on, and was taken for dead, finds out before it votes."""

    def sweep() -> None:
        with suppress(txpool.OperationalError):  # if one reference is there
            swept(site)

    name, _, nth = point.partition("@")
    arming = failpoints.arming(name, sweep, nth=int(nth or 1))
    with arming, pytest.raises(txpool.Error) as caught, txpool.transaction():
        site.append(1, *names)
    assert isinstance(caught.value, txpool.TransactionRolledBack | txpool.OperationalError), caught.value
    site.gone()
    site.scan()
    require_whole(site)


@pytest.mark.costly
def test_a_sweep_that_dies_at_any_step_keeps_what_is_published(
    site: BucketSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a journal has noted is the last that goes: without it, its files would be taken for nobody's."""
    assert site.killed(1, "lake.ended")
    real = Bucket.call
    died: set[str] = set()

    def dying(self: Bucket, operation: str, **parameters: Any) -> Any:
        kinds = {_kind(each) for each in _deleted(operation, parameters)}
        if not kinds <= died:
            died.update(kinds)
            raise KeyboardInterrupt
        return real(self, operation, **parameters)

    for _ in range(5):
        with monkeypatch.context() as patch, suppress(KeyboardInterrupt):
            patch.setattr(Bucket, "call", dying)
            swept(site)
    assert died == {"file", "entry", "note", "begun", "swept"}
    swept(site)
    site.gone()
    site.scan()
    require_whole(site, 1)


def _deleted(operation: str, parameters: dict[str, Any]) -> list[str]:
    """The keys of what a request removes."""
    if operation == "delete_objects":
        return [each["Key"] for each in parameters["Delete"]["Objects"]]
    return [parameters["Key"]] if operation == "delete_object" else []


def _kind(key: str) -> str:
    name = key.rpartition("/")[2]
    if "/staged/" not in key:
        return "file"
    return name if name in ("begun", "swept") else "note" if name.startswith("note-") else "entry"


@pytest.mark.costly
def test_a_journal_that_somebody_has_removed_keeps_no_branch_from_its_end(site: BucketSite) -> None:
    assert site.killed(1, "coordinator.decided")
    site.foreign(5)
    for key in site.journals():
        site.store.client().delete_object(Bucket="bucket", Key=key)
    site.gone()
    site.scan()
    for name in TABLES:
        assert site.ids(name) == [1, 5]
    assert site.journals() == site.references() == []
    assert site.named() - site.files() <= {each for each in site.named() if "txpool-empty" in each}


def test_31_what_a_stranger_has_written_there_counts_for_nothing(site: BucketSite) -> None:
    site.job(1)
    stranger = site.store.client(STRANGER)
    files = site.files()
    forged = {
        f"{HIDDEN}staged/{GTRID}/begun": b"",
        f"{HIDDEN}staged/{GTRID}/1": b'{"format": 1, "files": {"db/orders/data/theirs": "1"}}',
        f"{HIDDEN}staged/{GTRID}/note-1": b'{"format": 1, "note": {"decided": true}}',
    }
    for key, content in forged.items():
        stranger.put_object(Bucket="bucket", Key=key, Body=content)
    assert ReferencesStaging(site.settings).tables() == []
    site.place.sweep(GTRID)
    assert site.files() == files
    for key in forged:
        stranger.delete_object(Bucket="bucket", Key=key)
    stranger.put_object(Bucket="bucket", Key=f"{HIDDEN}key", Body=b"0" * 32)
    with pytest.raises(txpool.OperationalError, match="is not proven to be the bucket's owner's"):
        ReferencesRecovery(site.settings).recover()


def test_what_is_refused(site: BucketSite) -> None:
    site.client.create_table("db.elsewhere", rows().schema, location="s3://bucket/elsewhere")
    with pytest.raises(txpool.ConfigurationError, match="is not in it"), txpool.transaction():
        txpool.lake.catalog(site.file).load_table("db.elsewhere")
    site.client.drop_table("db.elsewhere")
    text = site.file.read_text()
    site.file.write_text(f"{text}driver.s3.signer = x\n")
    with pytest.raises(txpool.ConfigurationError, match=r"driver\.s3\.signer.*has no use: write driver\.s3\.endpoint"):
        _ = site.settings
    site.file.write_text(text)
    site.place.identity()
    site.store.client().put_object(Bucket="bucket", Key=f"{HIDDEN}catalog", Body=b"a token")
    with pytest.raises(txpool.ConfigurationError, match="belongs to a catalog in a datasource"):
        site.place.identity()


def test_check_tells_of_the_bucket_and_no_secret(site: BucketSite) -> None:
    findings = [*MANAGER.findings(site.settings, stale_after=0, timeout=None)]
    text = "\n".join(map(repr, findings))
    assert "0 branches are prepared there" in text
    assert "writes an object only if none is there" in text
    assert "no lifecycle rule aborts uploads of s3://bucket/wh/" in text
    assert SECRET not in text + repr(site.settings) + repr(site.place.properties())


@pytest.mark.costly
def test_the_conformance_kit(site: BucketSite) -> None:
    run = run_cases(site.settings, patience=60)
    failed = [(each.case.name, each.reason, each.traceback) for each in run.results if each.verdict is Verdict.FAILED]
    assert failed == []
    assert len([each for each in run.results if each.verdict is Verdict.PASSED]) >= 12
    assert ReferencesRecovery(site.settings).recover() == []
