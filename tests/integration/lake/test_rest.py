"""Tables of a REST catalog: what is prepared is a reference in each, and appends go on top of what others commit."""

from __future__ import annotations

import os
import shutil
import signal
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pytest
from pyiceberg.catalog.rest import DEFAULT_ENDPOINTS, Capability
from pyiceberg.table.update import AddSnapshotUpdate
from pyiceberg.types import StringType

import txpool
import txpool.lake
from tests.support.forking import is_killed
from tests.support.rest_catalog import RestServer
from tests.support.rest_site import TABLES, RestSite, rest_server_in, rest_site, rows
from txpool import failpoints
from txpool.conformance.cases.case import Verdict
from txpool.conformance.kit import run_cases
from txpool.datasource.lookup import find_source
from txpool.lake.rest.branch import ReferencesRecovery, ReferencesStaging
from txpool.lake.rest.catalog import RestLakeCatalog
from txpool.lake.rest.snapshots import drops, encode, forgets, leads, requires
from txpool.lake.rest.work import ReferencesWork
from txpool.resources.base import BranchOutcome, BranchRecord
from txpool.resources.iceberg.manager import MANAGER
from txpool.xid import make_gtrid, make_xid, parse

GTRID = make_gtrid("etl", "abcdefghijkl", 1)
XID = make_xid(GTRID, 0, "wh")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RestServer]:
    with rest_server_in(tmp_path_factory.mktemp("rest")) as found:
        yield found


@pytest.fixture
def site(tmp_path: Path, server: RestServer) -> Iterator[RestSite]:
    with rest_site(tmp_path, server) as found:
        yield found
        for name in TABLES:
            found.client.drop_table(f"db.{name}")
        found.client.drop_namespace("db")
        for folder in ("db", "_txpool"):
            shutil.rmtree(found.warehouse / folder, ignore_errors=True)


def committed(site: RestSite, name: str, references: dict[str, int | None], *updates: Any) -> None:
    """Somebody else's conditional commit."""
    table = site.client.load_table(f"db.{name}")
    site.client.commit_table(table, tuple(requires(*each) for each in references.items()), updates)


def prepared(site: RestSite, number: int = 1) -> str:
    """A branch whose process has died after its PREPARE; the name of its references."""
    assert site.killed(number, "coordinator.prepared")
    name, again = site.references()
    assert name == again
    return name


def test_a_refusal_says_where_and_what_to_do(site: RestSite) -> None:
    def table() -> Any:
        return txpool.lake.catalog(site.file).load_table("db.orders")

    hidden = site.warehouse / "_txpool"
    hidden.write_text("no folder")
    with pytest.raises(txpool.OperationalError, match="wh cannot be used: "), txpool.transaction():
        table()
    hidden.unlink()
    for says, work in (
        ("catalog wh: .* named as in namespace", lambda: txpool.lake.catalog(site.file).load_table("orders")),
        ("create_table", lambda: txpool.lake.catalog(site.file).load_table("db.no")),
        (r"db\.orders: .* nope", lambda: table().scan("nope = 1").to_arrow()),
        (r"db\.orders: append\(\) was not done: Mismatch", lambda: table().append(pa.table({"id": ["a"]}))),
    ):
        with suppress(txpool.TransactionRolledBack), txpool.transaction() as tx:
            with pytest.raises(txpool.ProgrammingError, match=says):
                work()
            tx.set_rollback_only()


@pytest.mark.costly
def test_tables_change_together_by_one_branch(site: RestSite) -> None:
    with txpool.transaction():
        site.append(1)
        site.append(2, "orders")
        lake = txpool.lake.catalog(site.file)
        assert sorted(lake.load_table("db.orders").scan().to_arrow()["id"].to_pylist()) == [1, 2]
        assert site.ids("orders") == []
    assert (site.ids("orders"), site.ids("lines")) == ([1, 2], [1])
    files = [each.file.file_path for each in site.client.load_table("db.orders").scan().plan_files()]
    assert duckdb.sql(f"select id from read_parquet({files}) order by id").fetchall() == [(1,), (2,)]
    assert [*site.left()] == []


def test_a_rollback_leaves_nothing(site: RestSite) -> None:
    site.job(1)
    with pytest.raises(ZeroDivisionError), txpool.transaction():
        site.append(2)
        _ = 1 / 0
    assert [*site.left()] == []
    assert site.ids("orders") == [1]


def test_frames_of_pandas_and_polars(site: RestSite) -> None:
    import pandas as pd
    import polars as pl

    with txpool.transaction():
        table = txpool.lake.catalog(site.file).load_table("db.orders")
        table.append(pd.DataFrame({"id": [1]}))
        table.append(pl.DataFrame({"id": [2]}))
        with pytest.raises(txpool.DataError, match="large numbers would become negative"):
            table.append(pa.table({"id": pa.array([1], pa.uint64())}))
    assert site.ids("orders") == [1, 2]


@pytest.mark.parametrize("others", [False, True])
def test_what_an_append_says_of_itself_is_kept(others: bool, site: RestSite) -> None:
    change = (lambda: site.foreign(10)) if others else "count"
    with failpoints.arming("coordinator.decided", change), txpool.transaction():
        table = txpool.lake.catalog(site.file).load_table("db.orders")
        table.append(rows(1), snapshot_properties={"load": "first", "by": "us"})
        table.append(rows(2, 3), snapshot_properties={"load": "second"})
    snapshot = site.client.load_table("db.orders").current_snapshot()
    assert snapshot is not None
    assert snapshot.summary is not None
    found = snapshot.summary
    assert (found["load"], found["by"], found["added-records"]) == ("second", "us", "3")
    assert found["total-records"] == ("4" if others else "3")


def test_a_snapshot_is_no_older_than_its_table(site: RestSite, monkeypatch: pytest.MonkeyPatch) -> None:
    """A server in Java refuses others, by its default, as where this machine's clock is behind."""
    ahead = time.time() + 86400
    with monkeypatch.context() as patch:
        patch.setattr(time, "time", lambda: ahead)
        site.foreign(10)
    with txpool.transaction():
        txpool.lake.catalog(site.file).load_table("db.orders").append(rows(1))
    snapshots = site.client.load_table("db.orders").metadata.snapshots
    assert [each.timestamp_ms for each in snapshots] == sorted(each.timestamp_ms for each in snapshots)
    assert site.ids("orders") == [1, 10]


def other_appends(site: RestSite) -> None:
    site.foreign(10)


def other_adds_a_column(site: RestSite) -> None:
    with site.client.load_table("db.orders").update_schema() as update:
        update.add_column("name", StringType())
        update.rename_column("id", "key")
    site.client.load_table("db.orders").append(pa.table({"key": [10], "name": ["x"]}))
    with site.client.load_table("db.orders").update_schema() as update:
        update.rename_column("key", "id")


def other_partitions(site: RestSite) -> None:
    with site.client.load_table("db.orders").update_spec() as update:
        update.add_identity("id")
    site.foreign(10)


def other_renames(site: RestSite) -> None:
    site.client.rename_table("db.orders", "db.former")
    site.client.rename_table("db.lines", "db.other")


@pytest.mark.parametrize("change", [other_appends, other_adds_a_column, other_partitions])
@pytest.mark.parametrize("when", ["lake.synced", "coordinator.decided"])
def test_what_others_commit_meanwhile_stays(change: Callable[[RestSite], None], when: str, site: RestSite) -> None:
    """Before the reference is made, and after the decision."""
    with failpoints.arming(when, lambda: change(site)):
        site.job(1)
    assert site.ids("orders") == [1, 10]
    assert [*site.left()] == []
    table = site.client.load_table("db.orders")
    snapshot = table.current_snapshot()
    assert snapshot is not None
    assert snapshot.schema_id == table.metadata.current_schema_id


def test_a_table_that_was_renamed_is_found_by_its_uuid(site: RestSite) -> None:
    with failpoints.arming("coordinator.decided", lambda: other_renames(site)):
        site.job(1)
    for name, former in (("orders", "former"), ("lines", "other")):
        site.client.rename_table(f"db.{former}", f"db.{name}")
        assert site.ids(name) == [1]
    assert [*site.left()] == []


def test_18_an_empty_table_has_an_empty_snapshot_first(site: RestSite) -> None:
    with failpoints.arming("lake.referenced"), pytest.raises(txpool.TransactionRolledBack), txpool.transaction():
        site.append(1, "orders")
    site.gone()
    site.scan()
    table = site.client.load_table("db.orders")
    assert site.ids("orders") == []
    (only,) = table.snapshots()
    assert only.manifests(table.io) == []
    assert [*site.left()] == []


def test_a_child_that_was_forked_meanwhile_keeps_nothing_from_its_end(site: RestSite) -> None:
    """It has the parent's open files, and with them the lock of the journal."""
    ends, writer = os.pipe()
    with failpoints.arming("coordinator.decided", lambda: site.foreign(10)), txpool.transaction() as tx:
        site.append(1)
        if not (child := os.fork()):
            os.close(writer)
            os.read(ends, 1)  # until the parent has closed its end
            os._exit(0)
    os.close(writer)
    os.close(ends)
    os.waitpid(child, 0)
    assert not tx.unanswered
    assert site.ids("orders") == [1, 10]
    assert [*site.left()] == []


def test_a_child_that_lives_on_keeps_nothing_of_its_killed_parent(site: RestSite) -> None:
    """It has the journal's lock, too, which would end with the child alone."""
    ends, writer = os.pipe()

    def killed() -> None:
        site.configure()
        txpool.begin()
        site.append(1)
        if not os.fork():
            os.close(writer)
            os.read(ends, 1)  # until the test has closed its end
            os._exit(0)
        os.kill(os.getpid(), signal.SIGKILL)

    txpool.configure()
    assert is_killed(killed)
    site.scan()
    left = [*site.left()]
    os.close(writer)
    os.close(ends)
    assert left == []


# -- what is refused ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "change",
    [
        lambda table: table.overwrite(rows(2)),
        lambda table: table.delete("id = 1"),
        lambda table: table.upsert(rows(2), ["id"]),
        lambda table: table.dynamic_partition_overwrite(rows(2)),
        lambda table: table.append(rows(2), branch="theirs"),
        lambda table: table.update_schema().add_column("name", StringType()).commit(),
        lambda table: table.update_spec().add_identity("id").commit(),
        lambda table: table.transaction().set_properties(a="b").commit_transaction(),
        lambda table: table.manage_snapshots().create_branch(table.current_snapshot().snapshot_id, "b").commit(),
        lambda table: table.manage_snapshots().set_current_snapshot(table.snapshots()[0].snapshot_id).commit(),
    ],
    ids=["overwrite", "delete", "upsert", "partitions", "branch", "schema", "spec", "properties", "ref", "rollback"],
)
def test_what_is_no_append_is_refused_with_the_reason(change: Callable[[Any], object], site: RestSite) -> None:
    site.job(1)
    tx = txpool.begin()
    table = txpool.lake.catalog(site.file).load_table("db.orders")
    with pytest.raises(txpool.NotSupportedError, match="others may change a table between the decision and its"):
        change(table)
    txpool.rollback()
    assert tx.ended
    assert site.ids("orders") == [1]
    assert [*site.left()] == []


@pytest.mark.parametrize(
    "call",
    [
        lambda lake: lake.create_table("db.new", pa.schema([("id", pa.int64())])),
        lambda lake: lake.drop_table("db.orders"),
        lambda lake: lake.rename_table("db.orders", "db.other"),
        lambda lake: lake.create_namespace("new"),
    ],
    ids=["create", "drop", "rename", "namespace"],
)
def test_a_catalog_changes_by_a_catalog_of_ones_own(call: Callable[[Any], object], site: RestSite) -> None:
    with txpool.transaction():
        with pytest.raises(txpool.NotSupportedError, match="by a catalog of your own"):
            call(txpool.lake.catalog(site.file))
    assert site.ids("orders") == []


def test_it_needs_a_log_and_a_transaction(site: RestSite) -> None:
    with pytest.raises(txpool.ProgrammingError, match="outside a transaction"):
        txpool.lake.catalog(site.file)
    txpool.configure()
    with txpool.transaction(), pytest.raises(txpool.ProgrammingError, match="needs a decision log"):
        txpool.lake.catalog(site.file)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("catalog.type = rest\nwarehouse = wh\n", "catalog.uri"),
        ("catalog.type = rest\ncatalog.uri = http://x\n", "warehouse"),
        ("catalog.type = rest\ncatalog.uri = http://a:b@x\nwarehouse = wh\n", "has a password in it"),
        ("catalog.type = rest\ncatalog.uri = http://x\ncatalog = a\nwarehouse = wh\n", "leave one out"),
        ("catalog.uri = http://x\ncatalog = a\nwarehouse = wh\n", "no use"),
        ("catalog = a\nwarehouse = s3:///wh\n", "no folder in it"),
        ("catalog = a\nwarehouse = s3://bucket//wh\n", "no folder in it"),
        ("catalog = a\nwarehouse = s3://bucket/../wh\n", "no folder in it"),
        ("catalog = a\nwarehouse = s3a://bucket/wh\n", "write s3://bucket/prefix"),
        ("catalog.type = hive\ncatalog.uri = http://x\nwarehouse = wh\n", "catalog.type"),
    ],
)
def test_what_a_file_says_is_looked_at_first(text: str, told: str, tmp_path: Path) -> None:
    file = tmp_path / "wh.properties"
    file.write_text(f"name = wh\ndriver = iceberg\n{text}")
    file.chmod(0o600)
    with pytest.raises(txpool.ConfigurationError, match=told):
        find_source(file)


def test_a_warehouse_that_others_may_read_is_refused(site: RestSite) -> None:
    site.job(1)
    (site.warehouse / "_txpool").chmod(0o755)
    with pytest.raises(txpool.OperationalError, match="chmod 700"):
        site.job(2)
    (site.warehouse / "_txpool").chmod(0o700)
    assert site.ids("orders") == [1]


def test_a_warehouse_of_a_catalog_in_a_datasource_is_refused(site: RestSite) -> None:
    site.place.identity()
    (site.warehouse / "_txpool" / "catalog").write_text("a token")
    with pytest.raises(txpool.ConfigurationError, match="belongs to a catalog in a datasource"):
        site.job(1)
    (site.warehouse / "_txpool" / "catalog").write_text("rest")


# -- whose it is ----------------------------------------------------------------------------------------------------


def forged(site: RestSite, xid: str = XID.joined) -> None:
    """A reference with a name of ours on a snapshot of somebody else's, whose summary says what ours say."""
    site.foreign(5)
    staged = site.client.load_table("db.orders").current_snapshot()
    assert staged is not None
    table = site.client.load_table("db.orders")
    number, sequence = staged.snapshot_id + 1, table.metadata.last_sequence_number + 1
    claims = {"operation": "append", "txpool.xid": xid, "txpool.proof": "0" * 64}
    made = staged.model_validate(
        {
            "snapshot-id": number,
            "parent-snapshot-id": staged.snapshot_id,
            "sequence-number": sequence,
            "manifest-list": staged.manifest_list,
            "summary": claims,
        }
    )
    committed(site, "orders", {xid: None}, AddSnapshotUpdate(snapshot=made), leads(xid, number))


def test_31_a_forged_reference_is_listed_and_never_ended(site: RestSite) -> None:
    forged(site)
    site.gone()
    site.scan()
    assert site.references() == [XID.joined]
    (listed,) = ReferencesRecovery(site.settings).recover()
    assert listed.xid == XID
    assert not listed.prepared_by({"", "f" * 64})
    assert site.ids("orders") == [5]
    _, warning = MANAGER.findings(site.settings, stale_after=0, timeout=None)
    assert f"and no proof: db.orders: {XID.joined}" in warning.found


@pytest.mark.parametrize("commit", [True, False])
def test_31_nor_does_the_name_alone_let_anybody_end_it(commit: bool, site: RestSite) -> None:
    forged(site)
    access = ReferencesRecovery(site.settings)
    record = BranchRecord(XID, "wh", access.identity(), {})
    ended = (access.commit if commit else access.rollback)(record)
    assert ended in (BranchOutcome.LOST, BranchOutcome.ABSENT)
    assert site.references() == [XID.joined]
    assert site.ids("orders") == [5]


def test_31_a_proof_is_of_one_snapshot(site: RestSite) -> None:
    """Whoever copies the summary of one of ours proves nothing by it."""
    name = prepared(site)
    table = site.client.load_table("db.orders")
    ours = table.snapshot_by_name(name)
    assert ours is not None
    main = table.metadata.current_snapshot_id
    copied = ours.model_copy(update={"snapshot_id": 7, "sequence_number": ours.sequence_number + 1})
    other = make_xid(GTRID, 1, "wh").joined
    committed(site, "orders", {"main": main}, AddSnapshotUpdate(snapshot=copied), leads(other, 7))
    committed(site, "lines", {}, leads(other, site.client.load_table("db.lines").refs()[name].snapshot_id))
    found = {each.xid.joined: each.roles for each in ReferencesRecovery(site.settings).recover()}
    assert found == {name: None, other: frozenset()}


def test_31_a_reference_that_was_moved_is_left_as_it_is(site: RestSite) -> None:
    name = prepared(site)
    access = ReferencesRecovery(site.settings)
    (listed,) = access.recover()
    record = BranchRecord(listed.xid, "wh", access.identity(), listed.evidence)
    site.foreign(5)
    theirs = site.client.load_table("db.lines").metadata.current_snapshot_id
    assert theirs is not None
    committed(site, "lines", {}, leads(name, theirs))
    assert access.commit(record) is BranchOutcome.UNKNOWN
    assert "somebody has moved it" in access.why_not(record)
    assert site.references() == [name]
    assert site.client.load_table("db.lines").refs()[name].snapshot_id == theirs
    assert (site.ids("orders"), site.ids("lines")) == ([1, 5], [5])


@pytest.mark.parametrize("commit", [True, False])
def test_31_what_is_made_anew_under_a_name_is_not_committed_twice(commit: bool, site: RestSite) -> None:
    """Whoever may write the table has kept the snapshot of a branch that has committed."""
    name = prepared(site)
    site.foreign(5)
    kept = site.client.load_table("db.orders").snapshot_by_name(name)
    assert kept is not None
    access = ReferencesRecovery(site.settings)
    (listed,) = access.recover()
    record = BranchRecord(listed.xid, "wh", access.identity(), listed.evidence)
    assert access.commit(record) is BranchOutcome.COMMITTED
    table = site.client.load_table("db.orders")
    again = kept.model_copy(update={"sequence_number": table.metadata.last_sequence_number + 1})
    committed(site, "orders", {}, AddSnapshotUpdate(snapshot=again), leads(name, kept.snapshot_id))
    (planted,) = access.recover()
    assert planted.roles == frozenset()
    assert (access.commit if commit else access.rollback)(record) is BranchOutcome.COMMITTED
    assert site.ids("orders") == [1, 5]
    assert site.references() == []


def test_no_code_runs_that_the_server_names(site: RestSite) -> None:
    """pyiceberg would call what its configuration names."""
    called = site.folder / "called"
    auth = {"type": "custom", "impl": "os.mkdir", "custom": {"path": str(called)}}
    with site.server.config(overrides={"auth": auth}):
        site.job(1)
    assert site.ids("orders") == [1]
    assert not called.exists()


def test_what_is_staged_is_read_also_if_the_server_plans_scans(site: RestSite) -> None:
    endpoints = [str(each) for each in (*DEFAULT_ENDPOINTS, Capability.V1_SUBMIT_TABLE_SCAN_PLAN)]
    with site.server.config(overrides={"scan-planning-mode": "server"}, endpoints=endpoints), txpool.transaction():
        site.append(1)
        table = txpool.lake.catalog(site.file).load_table("db.orders")
        assert table.scan().to_arrow()["id"].to_pylist() == [1]


# -- what is gone ---------------------------------------------------------------------------------------------------


def test_11_a_reference_that_somebody_has_dropped_is_a_hazard(site: RestSite) -> None:
    """No file goes on a 409, or on a reference that is gone. The sweep removes them once nothing names them."""
    name = prepared(site)
    access = ReferencesRecovery(site.settings)
    (listed,) = access.recover()
    record = BranchRecord(listed.xid, "wh", access.identity(), listed.evidence)
    before = site.files()
    committed(site, "orders", {}, drops(name))
    assert access.commit(record) is BranchOutcome.LOST
    assert site.ids("lines") == [1]
    assert site.ids("orders") == []
    assert site.files() == before
    ReferencesStaging(site.settings).drop(ReferencesStaging(site.settings).tables()[0])
    assert site.named() <= site.files()
    assert before - site.files()


def test_a_table_that_was_dropped_keeps_no_other_from_its_end(site: RestSite) -> None:
    with (
        failpoints.arming("coordinator.decided", lambda: site.client.drop_table("db.lines")),
        txpool.transaction() as tx,
    ):
        site.append(1)
    assert site.ids("orders") == [1]
    assert tx.unanswered == ["wh"]
    site.scan()
    assert site.ids("orders") == [1]
    site.client.create_table("db.lines", rows().schema)


@pytest.mark.parametrize("killed", [False, True])
def test_a_branch_that_rolls_back_beside_a_table_that_was_dropped_leaves_nothing(killed: bool, site: RestSite) -> None:
    """The reference went with the table, and nobody has published it."""
    if killed:
        prepared(site)
        site.client.drop_table("db.lines")
    else:

        def dropped() -> None:
            site.client.drop_table("db.lines")
            raise OSError("no")

        with (
            failpoints.arming("coordinator.prepared", dropped),
            pytest.raises(txpool.TransactionRolledBack),
            txpool.transaction(),
        ):
            site.append(1)
    site.gone()
    site.scan()
    site.client.create_table("db.lines", rows().schema)
    assert [each for each in site.left() if "txpool-empty" not in each[1]] == []
    assert site.ids("orders") == []


@pytest.mark.parametrize("point", ["coordinator.decided", "lake.ended"])
def test_a_branch_whose_table_is_gone_for_good_ends_as_a_hazard(point: str, site: RestSite) -> None:
    """Its file says so: without that a uri that leads to another catalog would show the same."""
    assert site.killed(1, point)
    site.client.drop_table("db.lines")
    site.gone()
    report = site.scan()
    assert not report.heuristics
    assert "dropped.tables = db.lines" in str(report.errors)
    with site.file.open("a") as file:
        file.write("dropped.tables = db.lines\n")
    (found,) = site.scan().heuristics
    assert found.ended == "lost"
    site.scan()
    assert site.ids("orders") == [1]
    site.client.create_table("db.lines", rows().schema)
    assert [each for each in site.left() if "txpool-empty" not in each[1]] == []


def test_what_a_table_has_got_outlives_it(site: RestSite) -> None:
    """The commit was killed before the journal went. A uri that leads to another catalog shows no table either."""
    assert site.killed(1, "lake.ended")
    files = {each.file.file_path for each in site.client.load_table("db.lines").scan().plan_files()}
    site.client.drop_table("db.lines")
    site.gone()
    site.scan()
    staging = ReferencesStaging(site.settings)
    with pytest.raises(txpool.OperationalError, match="it was dropped, or the uri leads to another catalog"):
        staging.drop(staging.tables()[0])
    assert {each.removeprefix("file://") for each in files} <= site.files()
    site.client.create_table("db.lines", rows().schema)


@pytest.mark.parametrize("point", ["", "lake.rebased", "lake.table-ended"])
def test_a_journal_that_somebody_has_removed_keeps_no_branch_from_its_end(point: str, site: RestSite) -> None:
    """What others have committed meanwhile needs another snapshot, whose files a new journal lists."""
    assert site.killed(1, "coordinator.decided")
    site.foreign(5)
    for each in (site.warehouse / "_txpool").glob("*.journal"):
        each.unlink()
    site.gone()
    if point:
        assert site.recovery_killed(point)
    site.scan()
    assert site.ids("orders") == site.ids("lines") == [1, 5]
    assert site.references() == []
    assert [*(site.warehouse / "_txpool").glob("*.journal")] == []
    assert site.named() - site.files() <= {each for each in site.named() if "txpool-empty" in each}


def test_a_journal_that_somebody_removes_from_a_transaction_rolls_it_back(site: RestSite) -> None:
    with pytest.raises(txpool.TransactionRolledBack), txpool.transaction():
        site.append(1)
        for each in (site.warehouse / "_txpool").glob("*.journal"):
            each.unlink()
    assert site.references() == []
    assert site.ids("orders") == []


@pytest.mark.parametrize("again", [True, False])
def test_a_branch_that_has_ended_shows_how(again: bool, site: RestSite) -> None:
    prepared(site)
    access = ReferencesRecovery(site.settings)
    (listed,) = access.recover()
    record = BranchRecord(listed.xid, "wh", access.identity(), listed.evidence)
    assert access.commit(record) is BranchOutcome.COMMITTED
    assert (access.commit if again else access.rollback)(record) is BranchOutcome.COMMITTED
    assert site.ids("orders") == [1]


def test_a_branch_that_somebody_has_published_has_committed(site: RestSite) -> None:
    name = prepared(site)
    for table in TABLES:
        committed(site, table, {}, leads("main", site.client.load_table(f"db.{table}").refs()[name].snapshot_id))
    access = ReferencesRecovery(site.settings)
    (listed,) = access.recover()
    assert listed.roles == frozenset()
    record = BranchRecord(listed.xid, "wh", access.identity(), {**listed.evidence, "tables": _tables(site, name)})
    assert access.rollback(record) is BranchOutcome.COMMITTED
    assert site.ids("orders") == [1]
    assert site.references() == []
    assert site.named() <= site.files()


def _tables(site: RestSite, name: str) -> str:
    found = parse(name)
    assert found is not None
    return encode(each for _, each in site.place._noted(found.gtrid))


def test_39_a_sweep_keeps_what_any_snapshot_names(site: RestSite) -> None:
    """Somebody has taken the files over into a snapshot of their own, and ours is gone without a trace."""
    name = prepared(site)
    table = site.client.load_table("db.orders")
    staged = table.snapshot_by_name(name)
    assert staged is not None
    data = [entry.data_file for each in staged.manifests(table.io) for entry in each.fetch_manifest_entry(table.io)]
    with table.transaction() as changes, changes.update_snapshot().fast_append() as producer:
        for each in data:
            producer.append_data_file(each)
    for other in TABLES:
        number = site.client.load_table(f"db.{other}").refs()[name].snapshot_id
        committed(site, other, {}, drops(name), forgets(number))
    staging = ReferencesStaging(site.settings)
    staging.drop(staging.tables()[0])
    assert site.ids("orders") == [1]
    assert site.ids("lines") == []
    assert [*site.left()] == []


def test_39_a_journal_that_a_restore_has_brought_back_removes_nothing_that_is_named(site: RestSite) -> None:
    """As it was before the PREPARE, so that it has no note of a reference; and the transaction has committed since."""
    with txpool.transaction() as transaction:
        site.append(1)
        journal = Path(site.place.journals.shown(transaction.gtrid))
        copy = journal.read_bytes()
    journal.write_bytes(copy)
    site.place.sweep(transaction.gtrid)
    assert not journal.exists()
    assert site.ids("orders") == [1]


def test_39_a_sweep_takes_nothing_of_what_is_prepared(site: RestSite) -> None:
    prepared(site)
    before = site.files()
    staging = ReferencesStaging(site.settings)
    with pytest.raises(txpool.OperationalError):
        staging.drop(staging.tables()[0])
    assert site.files() == before
    access = ReferencesRecovery(site.settings)
    (listed,) = access.recover()
    record = BranchRecord(listed.xid, "wh", access.identity(), listed.evidence)
    assert access.rollback(record) is BranchOutcome.ROLLED_BACK
    assert [*site.left()] == []


def test_39_nor_of_what_a_process_still_writes(site: RestSite) -> None:
    with txpool.transaction():
        site.append(1)
        staging = ReferencesStaging(site.settings)
        with pytest.raises(txpool.OperationalError, match="somebody works with"):
            staging.drop(staging.tables()[0])
    assert site.ids("orders") == [1]


@pytest.mark.costly
def test_the_conformance_kit(site: RestSite) -> None:
    run = run_cases(site.settings, patience=60)
    failed = [(each.case.name, each.reason, each.traceback) for each in run.results if each.verdict is Verdict.FAILED]
    assert failed == []
    assert len([each for each in run.results if each.verdict is Verdict.PASSED]) >= 12
    assert ReferencesRecovery(site.settings).recover() == []


def test_check_tells_whether_the_server_answers(site: RestSite) -> None:
    prepared(site)
    (found,) = MANAGER.findings(site.settings, stale_after=0, timeout=None)
    assert "1 branches are prepared there" in found.found
    site.file.write_text(site.file.read_text().replace(site.server.uri, "http://127.0.0.1:9"))
    (failed,) = MANAGER.findings(site.settings, stale_after=0, timeout=None)
    assert "cannot be used" in failed.found
    with txpool.transaction(), pytest.raises(txpool.OperationalError, match="does not serve"):
        RestLakeCatalog(ReferencesWork(site.place, GTRID))


def test_a_namespace_that_nobody_may_list_keeps_no_branch_from_its_end(site: RestSite) -> None:
    site.client.create_namespace("forbidden")
    prepared(site)
    site.gone()
    site.scan()
    assert site.references() == []
    site.client.drop_namespace("forbidden")


def test_no_expiry_of_snapshots_drops_a_reference_for_its_age(site: RestSite) -> None:
    name = prepared(site)
    assert site.client.load_table("db.orders").refs()[name].max_ref_age_ms == 2**63 - 1


def test_tables_of_the_first_format_and_within_nested_namespaces(site: RestSite) -> None:
    tables = ("db.first", ("db", "within", "parts"))
    site.client.create_namespace(("db", "within"))
    site.client.create_table(tables[0], rows().schema, properties={"format-version": "1"})
    site.client.create_table(tables[1], rows().schema)
    with site.client.load_table(tables[1]).update_spec() as update:
        update.add_identity("id")

    def other_appends_to_both() -> None:
        for table in tables:
            site.client.load_table(table).append(rows(10))

    with failpoints.arming("coordinator.decided", other_appends_to_both), txpool.transaction():
        for table in tables:
            txpool.lake.catalog(site.file).load_table(table).append(rows(1, 2))
    for table in tables:
        found = site.client.load_table(table)
        assert sorted(found.scan().to_arrow()["id"].to_pylist()) == [1, 2, 10]
        assert list(found.refs()) == ["main"]
        site.client.drop_table(table)
    site.client.drop_namespace(("db", "within"))
    assert [path.name for path in site.warehouse.glob("_txpool/*.journal")] == []


@pytest.mark.costly
def test_transactions_at_once_append_to_the_same_tables(site: RestSite) -> None:
    """None waits for another, and none fails: each appends on top of what has been committed."""

    def work(first: int) -> None:
        for number in range(first, first + 3):
            with txpool.transaction():
                site.append(number)

    with ThreadPoolExecutor(4) as pool:
        for each in [pool.submit(work, first) for first in (0, 10, 20, 30)]:
            each.result(timeout=300)
    expected = [first + number for first in (0, 10, 20, 30) for number in range(3)]
    assert site.ids("orders") == site.ids("lines") == expected
    site.gone()
    site.scan()  # what the one has removed meanwhile, the other cannot read: then it leaves its files to recovery
    assert [*site.left()] == []


@pytest.mark.costly
def test_a_hazard_is_reported_by_recovery(site: RestSite) -> None:
    """The decision is made, and somebody has dropped the reference."""
    assert site.killed(1, "coordinator.decided")
    name, _ = site.references()
    committed(site, "orders", {}, drops(name))
    site.gone()
    (found,) = site.scan().heuristics
    assert (f"{found.gtrid}:{found.bqual}", found.ended) == (name, "lost")
    assert (site.ids("orders"), site.ids("lines")) == ([], [1])
    site.scan()
    assert site.references() == []
    assert site.named() <= site.files() | {each for each in site.named() if "txpool-empty" in each}


def test_what_it_needs_is_said_if_it_is_missing(site: RestSite, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "txpool.lake.rest.branch", None)
    with pytest.raises(txpool.ConfigurationError, match=r"pip install 'txpool\[lake\]'"), txpool.transaction():
        txpool.lake.catalog(site.file)
    with pytest.raises(txpool.ConfigurationError, match=r"pip install 'txpool\[lake\]'"):
        MANAGER.branch_recovery(site.settings)
