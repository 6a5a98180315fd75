"""Somebody else may write to the folder: what they plant changes no outcome, and nothing of it is appended."""

from __future__ import annotations

import json
import os
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable

import txpool
from tests.integration.resources.delta.conftest import SCHEMA, Tables, committed
from tests.integration.resources.files.conftest import gone
from txpool.config.settings import DataSourceSettings
from txpool.resources.base import BranchOutcome
from txpool.resources.delta.branch import DeltaResource
from txpool.resources.delta.manager import MANAGER
from txpool.resources.delta.work import DeltaWork
from txpool.resources.files.place import Place
from txpool.xid import make_gtrid, make_xid

if TYPE_CHECKING:
    from tests.conftest import Require

STRANGER = 12345
GTRID = make_gtrid("etl", "abcdefghijkl", 1)
XID = make_xid(GTRID, 0, "tables").joined


def test_31_a_forged_manifest_is_listed_and_never_ended(tables: Tables, require: Require) -> None:
    """It would append a file of theirs, or let a rollback remove one of ours."""
    require(os.geteuid() == 0, "root, who can make a stranger's files")
    tables.create()
    _, ours = tables.prepared(1)
    manifest = json.loads((tables.hidden / "prepared" / ours).read_text())
    (tables.hidden / "prepared" / XID).write_text(json.dumps({**manifest, "xid": XID}))
    os.chown(tables.hidden / "prepared" / XID, STRANGER, STRANGER)
    for end in (tables.resource().publish, tables.resource().withdraw):
        with pytest.raises(txpool.OperationalError, match=f"user {STRANGER}'s, who may have forged it"):
            end(XID)
    tables.scan()
    assert tables.committed() == [1]
    gone()
    tables.scan()
    assert XID in tables.left()
    settings = DataSourceSettings.load(tables.file)
    (listed,) = MANAGER.branch_recovery(settings).recover()
    assert not listed.prepared_by({"", "0", str(STRANGER)})
    assert "owners" in {each.topic for each in MANAGER.findings(settings, stale_after=0, timeout=None)}


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("path", "../other/part.parquet"),
        ("path", "/etc/passwd"),
        ("path", "_delta_log/00000000000000000001.json"),
        ("source", ".."),
        ("table", "../tables"),
        ("path", None),
    ],
)
def test_a_damaged_manifest_is_left_as_it_is(key: str, value: Any, tables: Tables) -> None:
    tables.create()
    resource, xid = tables.prepared(1)
    file = tables.hidden / "prepared" / xid
    manifest = json.loads(file.read_text())
    if key == "table":
        manifest["appends"][0][0] = value
    else:
        manifest["appends"][0][3][0][key] = value
    file.write_text(json.dumps(manifest))
    for end in (resource.publish, resource.withdraw):
        with pytest.raises(txpool.OperationalError, match="a manifest is damaged"):
            end(xid)
    assert tables.committed() == []
    assert xid in tables.left()


def test_a_file_of_somebody_else_takes_no_place(tables: Tables) -> None:
    """What is decided waits until it is moved away."""
    tables.create()
    resource, xid = tables.prepared(1)
    (staged,) = (tables.hidden / "staged").glob("*/*/*.parquet")
    theirs = tables.place / "orders" / staged.name
    theirs.write_bytes(b"\0" * staged.stat().st_size)
    with pytest.raises(txpool.OperationalError, match="is somebody else's"):
        resource.publish(xid)
    theirs.rename(tables.site / "theirs")
    tables.scan()
    assert tables.committed() == [1]


def test_a_restored_copy_of_what_was_linked_is_known_again(tables: Tables) -> None:
    tables.create()
    resource, xid = tables.prepared(1)
    (staged,) = (tables.hidden / "staged").glob("*/*/*.parquet")
    (tables.place / "orders" / staged.name).write_bytes(staged.read_bytes())
    assert resource.publish(xid) is BranchOutcome.COMMITTED
    assert tables.committed() == [1]


def test_links_on_the_way_are_not_followed(tables: Tables) -> None:
    """Somebody puts a link in the place of a table, or of a partition's folder, while the branch is in doubt."""
    tables.create(partition_by=["part"])
    resource, xid = tables.prepared(1)
    elsewhere = tables.site / "elsewhere"
    elsewhere.mkdir()
    partition = tables.place / "orders" / "part=a%20b"
    partition.symlink_to(elsewhere)
    with pytest.raises(OSError):
        resource.publish(xid)
    assert [*elsewhere.iterdir()] == []
    partition.unlink()
    tables.scan()
    assert tables.committed() == [1]


def test_a_hidden_folder_of_another_user_is_refused(tables: Tables, require: Require) -> None:
    require(os.geteuid() == 0, "root, who can make a stranger's files")
    tables.create()
    with txpool.transaction():
        tables.append(1)
    os.chown(tables.hidden / "staged", STRANGER, STRANGER)
    work = DeltaWork(tables.resource().place, GTRID)
    with pytest.raises(txpool.OperationalError, match="proves nothing"):
        work.state("orders")


@pytest.mark.parametrize("by", [[], ["part"]])
def test_what_root_has_left_the_folders_owner_ends(by: list[str], require: Require) -> None:
    """As their daemon does, behind one job that an administrator has run."""
    require(os.geteuid() == 0, "root, who can make a stranger's files")
    with TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        DeltaTable.create(f"{folder}/orders", SCHEMA, partition_by=by)
        for each in (Path(folder), *Path(folder).rglob("*")):
            os.chown(each, STRANGER, STRANGER)
        resource = DeltaResource(Place("tables", folder), "")
        work = DeltaWork(resource.place, GTRID)
        rows = pa.table({"n": [1], "part": ["a b"]}, schema=SCHEMA)
        work.state("orders")
        work.append("orders", rows.to_batches(), SCHEMA)
        work.prepare(XID)
        os.seteuid(STRANGER)
        try:
            resource = DeltaResource(Place("tables", folder), "")
            assert resource.publish(XID) is BranchOutcome.COMMITTED
        finally:
            os.seteuid(0)
        assert committed(Path(folder, "orders")) == [1]
        assert {each.stat().st_uid for each in Path(folder).rglob("*")} == {STRANGER}
        assert [*Path(folder, ".txpool", "staged").iterdir()] == []
