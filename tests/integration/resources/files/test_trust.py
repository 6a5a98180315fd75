"""Somebody else may write to the folder: what they plant changes no outcome, and nothing of it is published."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

import pytest

import txpool
from tests.integration.resources.files.conftest import Exports, gone
from tests.integration.resources.files.test_recovery import prepared
from txpool.config.settings import DataSourceSettings
from txpool.findings.finding import Finding
from txpool.resources.base import BranchOutcome, BranchRecord
from txpool.resources.files import branch
from txpool.resources.files.manager import MANAGER
from txpool.resources.files.place import Place
from txpool.resources.files.work import FolderWork
from txpool.xid import make_gtrid, make_xid, parse

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


def plant(folder: Path, xid: str, file: str) -> None:
    """A stranger's folder that says of itself that a branch has published it."""
    folder.mkdir()
    (folder / file).write_text(xid)
    for each in (folder, folder / file):
        os.chown(each, STRANGER, STRANGER)


@pytest.mark.parametrize("file", ["_txpool", "_SUCCESS"])
def test_a_forged_mark_keeps_nobody_from_rolling_back(file: str, exports: Exports) -> None:
    there, xid = prepared(exports, "a")
    plant(exports.place / "a", xid, file)
    assert branch.withdraw(there, xid) is BranchOutcome.ROLLED_BACK
    assert exports.left() == []
    assert exports.published() == {f"a/{file}": ""}


@pytest.mark.parametrize("file", ["_txpool", "_SUCCESS"])
@pytest.mark.parametrize("commit", [True, False])
def test_a_forged_mark_is_no_answer(commit: bool, file: str, exports: Exports) -> None:
    """Neither that it has committed, where it has rolled back, nor a heuristic commit beside a rollback."""
    there, xid = prepared(exports, "a")
    resource = branch.FolderResource(there, str(exports.file))
    found = parse(xid)
    assert found is not None
    evidence = {"generation": there.generation(), "folder": "a"}
    record = BranchRecord(found, "exports", there.identity(), evidence=evidence)
    assert branch.end_branch(resource, record, commit=False) == (BranchOutcome.ROLLED_BACK, "")
    plant(exports.place / "a", xid, file)
    assert branch.end_branch(resource, record, commit=commit) == (BranchOutcome.ABSENT, "")


def test_a_forged_mark_takes_no_place(exports: Exports) -> None:
    """What is decided waits until it is moved away, or replaces it."""
    _, xid = prepared(exports, "a", "b", overwrite=False)
    plant(exports.place / "b", xid, "_txpool")
    exports.scan()
    assert exports.published()["b/_txpool"] == ""
    assert "b/part-0.csv" not in exports.published()
    shutil.rmtree(exports.place / "b")
    exports.scan()
    assert exports.published() == exports.whole(a="new", b="new")


def test_a_hidden_folder_that_is_changed_meanwhile_leads_no_step_elsewhere(
    exports: Exports, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between the look at whose it is and each step in it, somebody who may write to the folder puts theirs there."""
    with txpool.transaction():
        exports.write("before", "1")
    theirs = exports.site / "theirs"
    for each in ("prepared", "staged"):
        (theirs / each).mkdir(parents=True)
    (theirs / "generation").symlink_to(exports.site / "made-by-root")
    (theirs / "lock").symlink_to(exports.site / "made-by-root")
    (theirs / "identity").write_text("theirs")
    identity = Place("exports", str(exports.place)).identity()
    require_ours = Place._require_ours

    def changed(there: Place, descriptor: int, owners: frozenset[int]) -> None:
        require_ours(there, descriptor, owners)
        if os.path.samefile(f"/proc/self/fd/{descriptor}", exports.hidden):
            exports.hidden.rename(exports.site / "ours")
            theirs.rename(exports.hidden)

    def restored() -> None:
        exports.hidden.rename(theirs)
        (exports.site / "ours").rename(exports.hidden)

    for step in (lambda there: there.identity(), lambda there: there.generation(), _locks):
        with monkeypatch.context() as patch:
            patch.setattr(Place, "_require_ours", changed)
            answer = step(Place("exports", str(exports.place)))
        restored()
        assert answer != "theirs"
        assert answer in (identity, None) or "." in answer
    assert not (exports.site / "made-by-root").exists()


def _locks(there: Place) -> None:
    with there.open() as hidden, there.changing(hidden):
        pass


def test_a_manifest_that_names_what_another_has_staged(exports: Exports) -> None:
    """A stranger's manifest under a name of their own: it neither publishes nor removes, nor keeps from being swept."""
    there, _ = prepared(exports, "a")
    (staged,) = os.listdir(exports.hidden / "staged")
    theirs = make_xid(make_gtrid("etl", "zzzzzzzzzzzz", 9), 0, "exports").joined
    manifest = exports.hidden / "prepared" / theirs
    manifest.write_text(json.dumps({"format": 1, "xid": theirs, "staging": staged, "folders": [["stolen", True]]}))
    os.chown(manifest, STRANGER, STRANGER)
    for end in (branch.publish, branch.withdraw):
        with pytest.raises(txpool.OperationalError, match="may have forged it"):
            end(there, theirs)
    assert branch.StagedInPlace(there).tables() == [], "it is ours, prepared by ours"
    exports.scan()
    assert exports.published() == exports.whole(a="new")
    assert exports.left() == [theirs]
    with txpool.transaction():
        exports.write("stolen", "1")  # their claim to a name keeps nobody from it
    with pytest.raises(ZeroDivisionError), txpool.transaction():
        exports.write("b", "1")
        1 / 0
    assert exports.left() == [theirs]


DAMAGED = (
    *(b"", b"{", b"[]", b"null", b'{"format": 2}', b"\xff\xfe"),
    b'{"format": 1, "xid": "%", "staging": "../x", "folders": []}',
    *(
        b'{"format": 1, "xid": "%%", "staging": "s", "folders": [["%s", true]]}' % name
        for name in (b"..", b"/etc", b".txpool/prepared", b"a/../../b", b"")
    ),
)


@pytest.mark.parametrize("content", DAMAGED)
def test_a_damaged_manifest_is_left_as_it_is(content: bytes, exports: Exports) -> None:
    """Also one of our own owner: it is listed, and the rest goes on."""
    _, xid = prepared(exports, "a")
    manifest = exports.hidden / "prepared" / xid
    whole = manifest.read_bytes()
    manifest.write_bytes(content.replace(b"%", xid.encode()))
    exports.scan()
    assert exports.published() == {}
    assert xid in exports.left()
    manifest.write_bytes(whole)
    exports.scan()
    assert exports.published() == exports.whole(a="new")


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


def test_another_user_is_told_that_it_is_not_theirs() -> None:
    with TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        Place("exports", folder).identity()
        os.seteuid(STRANGER)
        try:
            with pytest.raises(txpool.OperationalError, match=r"exports: .* cannot be used: PermissionError"):
                Place("exports", folder).identity()
        finally:
            os.seteuid(0)


def test_another_user_leaves_nothing_there_that_keeps_the_owner_out() -> None:
    with TemporaryDirectory() as folder:
        Path(folder).chmod(0o777)
        os.seteuid(STRANGER)
        try:
            with pytest.raises(txpool.OperationalError, match=f"this process is user {STRANGER}'s") as refused:
                Place("exports", folder).identity()
        finally:
            os.seteuid(0)
        assert "Nothing was done" in str(refused.value)
        assert os.listdir(folder) == []
        Place("exports", folder).identity()


def test_what_root_makes_is_the_folders_owners(exports: Exports) -> None:
    os.chown(exports.place, STRANGER, STRANGER)
    with txpool.transaction():
        exports.write("a", "1")
    assert exports.hidden.stat().st_uid == (exports.hidden / "staged").stat().st_uid == STRANGER


@pytest.mark.parametrize("overwrite", [True, False])
def test_what_root_has_left_the_folders_owner_ends_and_works_on(overwrite: bool) -> None:
    """As their daemon does, behind one job that an administrator has run."""
    roots, theirs = (make_xid(make_gtrid("etl", "abcdefghijkl", number), 0, "exports").joined for number in (1, 2))
    with TemporaryDirectory() as folder:
        there = Place("exports", folder)
        Path(folder).chmod(0o755)
        if overwrite:
            Path(folder, "a").mkdir()
            os.chown(Path(folder, "a"), STRANGER, STRANGER)
        os.chown(folder, STRANGER, STRANGER)
        _prepare(there, "a", roots, overwrite=overwrite)
        os.seteuid(STRANGER)
        try:
            there = Place("exports", folder)
            _prepare(there, "b", theirs)
            for xid in (theirs, roots):
                assert branch.publish(there, xid) is BranchOutcome.COMMITTED
            assert branch.StagedInPlace(there).tables() == []
            shutil.rmtree(Path(folder, "a", "more"))  # it is theirs
        finally:
            os.seteuid(0)
        assert Path(folder, "a", "file").read_text() == "a"
        assert Path(folder, "a", "_SUCCESS").read_text() == roots


def test_a_file_that_has_another_name_elsewhere_stays_its_owners() -> None:
    """Whoever may write there could have root give away any file of the file system's."""
    with TemporaryDirectory() as folder:
        other, there = Path(folder, "other"), Place("exports", f"{folder}/exports")
        other.touch()
        there.path.mkdir()
        os.chown(there.path, STRANGER, STRANGER)
        work = FolderWork(there, make_gtrid("etl", "abcdefghijkl", 1))
        os.link(other, work.folder("a", overwrite=False).path / "theirs")
        work.prepare(make_xid(work.gtrid, 0, "exports").joined)
        assert other.stat().st_uid == 0


def test_who_works_in_another_users_folder_is_warned(exports: Exports, caplog: pytest.LogCaptureFixture) -> None:
    """What a crash leaves before the PREPARE is root's, and its owner's recovery cannot remove all of it."""
    os.chown(exports.place, STRANGER, STRANGER)
    with pytest.raises(ZeroDivisionError), txpool.transaction():
        exports.write("a", "1")
        assert f"exports is user {STRANGER}'s" in caplog.text
        (found,) = _owners(exports)
        assert "staged" in found.found
        assert f"chown -hR {STRANGER}" in found.do
        1 / 0
    assert _owners(exports) == []


def _owners(exports: Exports) -> list[Finding]:
    found = MANAGER.findings(DataSourceSettings.load(exports.file), stale_after=0, timeout=None)
    return [each for each in found if each.topic == "owners"]


def _prepare(there: Place, name: str, xid: str, *, overwrite: bool = False) -> None:
    found = parse(xid)
    assert found is not None
    work = FolderWork(there, found.gtrid)
    staged = work.folder(name, overwrite=overwrite)
    for each in ("file", "more/file"):
        with staged.open(each) as file:
            file.write(name)
    work.prepare(xid)


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
    with pytest.raises(txpool.TransactionRolledBack, match=r"voted to roll back .* neither a file") as refused:
        with txpool.transaction():
            staged = exports.write("a", "1")
            make(Path(staged, "more", "odd"))  # type: ignore[operator]
    assert "recovery" not in str(refused.value)  # nothing is left for it
    assert exports.published() == {}
    assert exports.left() == []
