"""Others' VACUUM beside a commit, without any retention: it removes what no log names yet, also empty folders."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from typing import Any

import pytest
from deltalake import DeltaTable

from tests.integration.resources.delta.conftest import Tables
from tests.integration.resources.delta.test_recovery import heuristics
from txpool import failpoints
from txpool.resources.base import BranchOutcome


def vacuum(tables: Tables) -> None:
    DeltaTable(str(tables.place / "orders")).vacuum(0, dry_run=False, enforce_retention_duration=False, full=True)


def quiet_vacuum(tables: Tables) -> None:
    """As Spark's, which makes no version of the table."""
    for each in tables.unnamed():
        (tables.place / "orders" / each).unlink()


@pytest.mark.parametrize("by", [(), ("part",)])
@pytest.mark.parametrize("removing", [vacuum, quiet_vacuum])
def test_files_that_it_removes_before_the_commit_names_them_come_back(
    removing: Callable[[Tables], None], by: tuple[str, ...], tables: Tables
) -> None:
    tables.create(partition_by=by)
    resource, xid = tables.prepared(1)
    with failpoints.arming("delta.linked", lambda: removing(tables)):
        assert resource.publish(xid) is BranchOutcome.COMMITTED
    assert tables.committed() == [1]
    assert DeltaTable(str(tables.place / "orders")).to_pyarrow_table()["part"].to_pylist() == ["a b"]
    assert tables.left() == []


def test_so_they_do_if_the_commit_was_killed_then(tables: Tables) -> None:
    tables.create()
    resource, xid = tables.prepared(1)

    def killed() -> None:
        for each in (tables.place / "orders").glob("*.parquet"):
            each.unlink()
        raise failpoints.Failpoint

    with failpoints.arming("delta.appended", killed), pytest.raises(failpoints.Failpoint):
        resource.publish(xid)
    tables.scan()
    assert tables.committed() == [1]
    assert heuristics() == []


def test_files_that_are_gone_for_good_are_a_hazard(tables: Tables) -> None:
    """Those that are there stay: the log names them."""
    tables.create(partition_by=["part"])
    with tables.left_prepared():
        tables.append(1, part="gone")
        tables.append(2, part="there")

    def removed() -> None:
        for each in tables.place.rglob("part=gone/*.parquet"):
            each.unlink()

    with failpoints.arming("delta.appended", removed):
        tables.scan()
    assert heuristics() == ["lost"]
    assert tables.left() == []
    assert len([*(tables.place / "orders" / "part=there").iterdir()]) == 1


def test_what_others_have_compacted_since_does_not_come_back(tables: Tables) -> None:
    """The commit was killed behind its entry, and recovery comes later."""
    tables.create()
    resource, xid = tables.prepared(1)
    with failpoints.arming("delta.appended", "raise"), pytest.raises(failpoints.Failpoint):
        resource.publish(xid)
    DeltaTable(str(tables.place / "orders")).delete()
    vacuum(tables)
    shutil.rmtree(next((tables.hidden / "staged").iterdir()))
    tables.scan()
    assert tables.committed() == []
    assert heuristics() == []
    assert tables.unnamed() == set()


def test_an_empty_folder_that_it_removes_is_made_again(tables: Tables, monkeypatch: pytest.MonkeyPatch) -> None:
    """As Spark's VACUUM does, which finds the folder of a partition before the first file is in it."""
    tables.create(partition_by=["part"])
    resource, xid = tables.prepared(1)
    link, folders = os.link, [tables.place / "orders" / "part=a%20b"]

    def later(source: Any, target: Any, **options: Any) -> None:
        if folders:
            folders.pop().rmdir()
        link(source, target, **options)

    monkeypatch.setattr(os, "link", later)
    assert resource.publish(xid) is BranchOutcome.COMMITTED
    assert tables.committed() == [1]
    assert tables.left() == []
