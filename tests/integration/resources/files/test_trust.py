"""Somebody else may write to the folder: what they plant changes no outcome, and nothing of it is published."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import txpool
from tests.integration.resources.files.conftest import Exports, gone
from tests.integration.resources.files.test_recovery import prepared
from txpool.config.settings import DataSourceSettings
from txpool.resources.base import BranchOutcome, BranchRecord
from txpool.resources.files import branch
from txpool.resources.files.manager import MANAGER
from txpool.resources.files.place import Place
from txpool.xid import make_gtrid, make_xid

if TYPE_CHECKING:
    from tests.conftest import Require

STRANGER = 12345


@pytest.fixture(autouse=True)
def as_root(require: Require) -> None:
    require(os.geteuid() == 0, "root, who can make a stranger's files")


def forged(exports: Exports, gtrid: str) -> str:
    """A stranger's manifest: it would publish what they have staged."""
    txpool.begin()
    exports.write("before", "1")
    txpool.rollback()  # the hidden folder is there now
    xid = make_xid(gtrid, 0, "exports").joined
    staged = exports.hidden / "staged" / "theirs"
    (staged / "0").mkdir(parents=True)
    (staged / "0" / "_txpool").write_text(xid)
    manifest = exports.hidden / "prepared" / xid
    manifest.write_text(json.dumps({"format": 1, "xid": xid, "staging": "theirs", "folders": [["a", True]]}))
    os.chown(manifest, STRANGER, STRANGER)
    return xid


def test_31_a_forged_manifest_is_listed_and_never_ended(exports: Exports) -> None:
    gtrid = make_gtrid("etl", "abcdefghijkl", 1)
    xid = forged(exports, gtrid)
    gone()
    manager = exports.scan()
    assert xid in exports.left()
    settings = DataSourceSettings.load(exports.file)
    (listed,) = MANAGER.branch_recovery(settings).recover()
    assert not listed.prepared_by({"", "0", str(STRANGER)})
    assert exports.published() == {}
    assert "owners" in {each.topic for each in MANAGER.findings(settings, stale_after=0, timeout=None)}
    del manager


@pytest.mark.parametrize("commit", [True, False])
def test_31_nor_if_a_decision_names_it(commit: bool, exports: Exports) -> None:
    xid = forged(exports, make_gtrid("etl", "abcdefghijkl", 1))
    access = MANAGER.branch_recovery(DataSourceSettings.load(exports.file))
    gtrid, _, bqual = xid.partition(":0:")
    record = BranchRecord(make_xid(gtrid, 0, "exports"), "exports")
    assert record.xid.bqual == f"0:{bqual}"
    assert access._end(record, commit=commit) is BranchOutcome.UNKNOWN
    assert f"is user {STRANGER}'s" in access.why_not(record)
    assert exports.published() == {}
    assert xid in exports.left()


def test_an_owner_that_is_configured_counts(exports: Exports) -> None:
    there, xid = prepared(exports, "a")
    os.chown(exports.hidden / "prepared" / xid, STRANGER, STRANGER)
    with pytest.raises(txpool.OperationalError, match="may have forged it"):
        branch.publish(there, xid)
    trusting = Place("exports", str(exports.place), (str(STRANGER),))
    assert branch.publish(trusting, xid) is BranchOutcome.COMMITTED


def test_a_manifest_under_another_name_is_not_that_branch(exports: Exports) -> None:
    """A second name of one of ours has our owner."""
    there, xid = prepared(exports, "a")
    other = xid.replace("etl", "elt")
    os.link(exports.hidden / "prepared" / xid, exports.hidden / "prepared" / other)
    with pytest.raises(txpool.OperationalError, match="was written for another branch"):
        branch.publish(there, other)
    assert branch.publish(there, xid) is BranchOutcome.COMMITTED


def test_a_hidden_folder_of_a_strangers_is_not_used(exports: Exports) -> None:
    exports.hidden.mkdir(0o700)
    os.chown(exports.hidden, STRANGER, STRANGER)
    with pytest.raises(txpool.OperationalError, match=f"is user {STRANGER}'s"), txpool.transaction():
        exports.write("a", "1")
    os.chown(exports.hidden, 0, 0)
    exports.hidden.chmod(0o777)
    with pytest.raises(txpool.OperationalError, match="others may write to"), txpool.transaction():
        exports.write("a", "1")


def test_what_root_makes_is_the_folders_owners(exports: Exports) -> None:
    os.chown(exports.place, STRANGER, STRANGER)
    with txpool.transaction():
        exports.write("a", "1")
    assert exports.hidden.stat().st_uid == (exports.hidden / "staged").stat().st_uid == STRANGER


@pytest.mark.parametrize("where", ["hidden", "above", "target"])
def test_a_link_in_the_way_is_refused(where: str, exports: Exports) -> None:
    elsewhere = exports.site / "elsewhere"
    elsewhere.mkdir()
    link = {"hidden": exports.hidden, "above": exports.place / "a", "target": exports.place / "a"}[where]
    link.symlink_to(elsewhere)
    refused = (txpool.OperationalError, txpool.ProgrammingError, OSError)
    with pytest.raises(refused), txpool.transaction():
        exports.write("a/b" if where == "above" else "a", "1", overwrite=True)
    assert os.listdir(elsewhere) == []


@pytest.mark.parametrize("overwrite", [True, False])
def test_a_link_that_comes_after_prepare_leads_nowhere(overwrite: bool, exports: Exports) -> None:
    elsewhere = exports.site / "elsewhere"
    elsewhere.mkdir()
    prepared(exports, "a/b", overwrite=overwrite)
    (exports.place / "a").symlink_to(elsewhere)
    exports.scan()
    assert os.listdir(elsewhere) == []
    assert len(exports.left()) == 2, "it is in doubt until the link is gone"
    (exports.place / "a").unlink()
    exports.scan()
    assert exports.published() == exports.whole(**{"a/b": "new"})


def test_a_link_in_the_target_itself_is_not_exchanged(exports: Exports) -> None:
    elsewhere = exports.site / "elsewhere"
    elsewhere.mkdir()
    prepared(exports, "a", overwrite=True)
    (exports.place / "a").symlink_to(elsewhere)
    exports.scan()
    assert (exports.place / "a").is_symlink()
    assert len(exports.left()) == 2


@pytest.mark.parametrize("make", [lambda path: path.symlink_to("/etc/hostname"), os.mkfifo])
def test_what_is_staged_has_files_and_folders_alone(make: object, exports: Exports) -> None:
    with pytest.raises(txpool.Error, match="is neither a file nor a folder"), txpool.transaction():
        staged = exports.write("a", "1")
        make(Path(staged, "more", "odd"))  # type: ignore[operator]
    assert exports.published() == {}
    assert exports.left() == []
