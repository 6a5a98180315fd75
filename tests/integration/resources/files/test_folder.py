"""Folders that are published when their transaction commits: what readers see, what is refused, what is left."""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import Any

import pytest

import txpool
from tests.integration.resources.files.conftest import Exports
from txpool.config.settings import DataSourceSettings
from txpool.conformance.cases.case import Verdict
from txpool.conformance.kit import run_cases
from txpool.resources.files import branch, tree
from txpool.resources.files.manager import MANAGER
from txpool.resources.files.place import Place


def test_it_appears_with_the_commit_and_only_then(exports: Exports) -> None:
    with txpool.transaction():
        exports.write("a", "1")
        exports.write("b", "2")
        assert exports.published() == {}
    assert exports.published() == exports.whole(a="1", b="2")
    assert exports.left() == []


def test_it_is_gone_with_a_rollback(exports: Exports) -> None:
    with pytest.raises(ZeroDivisionError), txpool.transaction():
        exports.write("2026/11/27", "1")
        1 / 0
    assert exports.published() == {}
    assert os.listdir(exports.place) == [".txpool"]
    assert exports.left() == []


def test_an_overwritten_folder_is_exchanged(exports: Exports, monkeypatch: pytest.MonkeyPatch) -> None:
    """A reader that asks at any time finds one or the other, whole."""
    with txpool.transaction():
        exports.write("a", "former")
    seen = []
    exchange = branch.exchange

    def seeing(*arguments: object) -> None:
        seen.append(exports.published())
        exchange(*arguments)  # type: ignore[arg-type]
        seen.append(exports.published())

    monkeypatch.setattr(branch, "exchange", seeing)
    with txpool.transaction():
        exports.write("a", "new", overwrite=True)
    before, after = seen
    assert before == exports.whole(a="former")
    new = exports.whole(a="new")
    assert after == {**{file: text for file, text in new.items() if "_SUCCESS" not in file}, "a/_txpool": ""}
    assert exports.published() == new
    assert exports.left() == []


def test_success_comes_when_all_folders_are_there(exports: Exports, monkeypatch: pytest.MonkeyPatch) -> None:
    marks = []
    succeed = branch._succeed

    def seeing(*arguments: object) -> None:
        marks.append(sorted(each for each in exports.published() if "/_" in each))
        succeed(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(branch, "_succeed", seeing)
    with txpool.transaction():
        exports.write("a", "1")
        exports.write("b", "2")
    assert marks == [["a/_txpool", "b/_txpool"], ["a/_SUCCESS", "b/_txpool"]]


def test_a_name_that_is_taken_is_refused(exports: Exports) -> None:
    with txpool.transaction():
        exports.write("a", "1")
    with txpool.transaction() as tx:
        with pytest.raises(txpool.ProgrammingError, match=r"the folder a is there already.*overwrite=True"):
            txpool.folder(exports.file, "a")
        assert tx.status is txpool.Status.ACTIVE
        exports.write("b", "2")
        with pytest.raises(txpool.ProgrammingError, match="writes b already"):
            txpool.folder(exports.file, "b/c", overwrite=True)
    assert exports.published() == exports.whole(a="1", b="2")


def another_place(exports: Exports, hidden: str) -> Path:
    """What another datasource has prepared in a folder below `shop`; of a warehouse of Iceberg tables, its journals."""
    found = exports.place / "shop" / "inner" / hidden / "prepared"
    found.mkdir(parents=True)
    return found


@pytest.mark.parametrize("hidden", [".txpool", "_txpool"])
def test_what_holds_another_datasources_folder_is_not_overwritten(hidden: str, exports: Exports) -> None:
    """What that one has prepared would go with it."""
    with txpool.transaction():
        exports.write("shop", "former")
    with pytest.raises(txpool.TransactionRolledBack, match=f"shop/inner/{hidden}, .* another datasource"):
        with txpool.transaction():
            exports.write("shop", "new", overwrite=True)
            prepared = another_place(exports, hidden)
    with txpool.transaction(), pytest.raises(txpool.ProgrammingError, match=f"shop/inner/{hidden}, .*as it was"):
        exports.write("shop", "new", overwrite=True)
    assert prepared.is_dir()
    assert exports.published() == exports.whole(shop="former")
    assert exports.left() == []


def test_nor_if_that_came_after_the_prepare(exports: Exports, monkeypatch: pytest.MonkeyPatch) -> None:
    with txpool.transaction():
        exports.write("shop", "former")
    move, prepared = branch._move, []

    def meanwhile(*arguments: Any, **options: Any) -> None:
        prepared.append(another_place(exports, ".txpool"))
        move(*arguments, **options)

    monkeypatch.setattr(branch, "_move", meanwhile)
    with txpool.transaction():
        exports.write("shop", "new", overwrite=True)
    monkeypatch.undo()
    (xid,) = os.listdir(exports.hidden / "prepared")
    with pytest.raises(txpool.OperationalError, match=r"another datasource .* and recovery publishes"):
        branch.publish(Place("exports", str(exports.place)), xid)
    assert prepared[0].is_dir()
    assert exports.published() == exports.whole(shop="former")
    prepared[0].parent.rename(exports.site / "moved")
    exports.scan()
    assert exports.published() == exports.whole(shop="new")
    assert exports.left() == []


def test_one_that_was_made_meanwhile_is_a_vote_to_roll_back(exports: Exports) -> None:
    with pytest.raises(txpool.TransactionRolledBack, match="is there already"), txpool.transaction():
        exports.write("a", "1")
        (exports.place / "a").mkdir()
    assert exports.left() == []
    assert os.listdir(exports.place / "a") == []


def test_two_of_ours_do_not_both_prepare_one_name(exports: Exports) -> None:
    """Trap 13: a commit cannot refuse. So the later one is told at its PREPARE."""
    first = txpool.begin()
    exports.write("orders/2026", "1")
    txpool.suspend()
    place = MANAGER.branch_recovery(DataSourceSettings.load(exports.file))
    assert place.recover() == []
    work = first.enlistment_in("exports")
    assert work is not None
    work.branch.start_prepare()
    assert [each.xid.gtrid for each in place.recover()] == [first.gtrid]
    with pytest.raises(txpool.TransactionRolledBack, match=rf"{first.gtrid}.*is prepared to publish orders/2026"):
        with txpool.transaction():
            exports.write("orders", "2")
    txpool.resume(first)
    txpool.rollback()
    assert exports.left() == []
    assert exports.published() == {}


def test_what_is_still_open_is_a_vote_to_roll_back(exports: Exports) -> None:
    with pytest.raises(txpool.TransactionRolledBack, match=r"late\.csv is still open"), txpool.transaction():
        file = exports.write("a", "1").open("late.csv")
        file.write("held back")
    file.close()
    assert exports.published() == {}
    assert exports.left() == []


@pytest.mark.parametrize("mode", ["w", "xb", "r+"])
def test_also_if_it_was_opened_by_its_path(mode: str, exports: Exports) -> None:
    """Its folder would be published without what it holds back, and get that some time later."""
    with pytest.raises(txpool.TransactionRolledBack, match=r"late\.csv is still open"), txpool.transaction():
        late = exports.write("a", "1").path / "more" / "late.csv"
        if mode == "r+":
            late.touch()
        file = late.open(mode)
    file.close()
    assert exports.published() == {}
    with txpool.transaction():
        folder = exports.write("a", "1").path
        read, gone = (folder / "part-0.csv").open(), (folder / "gone").open("w")
        (folder / "gone").unlink()
    read.close()
    gone.close()
    assert exports.published() == exports.whole(a="1")
    assert exports.left() == []


def test_a_file_with_the_name_of_the_marker_is_not_replaced(exports: Exports) -> None:
    with pytest.raises(txpool.TransactionRolledBack, match="the name _txpool in a is txpool's own"):
        with txpool.transaction():
            exports.write("a", "1").open("_txpool").close()
    assert exports.published() == {}
    assert exports.left() == []


def test_names_are_paths_too(exports: Exports) -> None:
    with txpool.transaction():
        txpool.folder(exports.file, Path("day", "first")).open(Path("more", "part")).close()
    assert exports.published() == {"day/first/more/part": "", "day/first/_SUCCESS": ""}


@pytest.mark.parametrize("file", [None, b"a", "../a", "_SUCCESS"])
def test_what_open_refuses(exports: Exports, file: Any) -> None:
    """A mark of the caller's own would be removed, since txpool's comes last."""
    with txpool.transaction():
        with pytest.raises(txpool.ProgrammingError, match="is no name of a file in the folder a"):
            exports.write("a", "1").open(file)
    assert exports.published() == exports.whole(a="1")


@pytest.mark.parametrize(
    "name", ["", "/etc", "a/../b", "..", ".txpool/staged", "a/.txpool", "a//b", "a\n", "./a", None, b"a"]
)
def test_names_that_lead_elsewhere(exports: Exports, name: Any) -> None:
    with txpool.transaction() as tx:
        with pytest.raises(txpool.ProgrammingError, match="is no name of a folder below it"):
            txpool.folder(exports.file, name)
        assert tx.datasources
    assert exports.published() == {}


def test_outside_of_a_transaction_and_without_a_log(exports: Exports) -> None:
    with pytest.raises(txpool.ProgrammingError, match="outside a transaction"):
        txpool.folder(exports.file, "a")
    txpool.configure(node_name="n")
    with txpool.transaction(), pytest.raises(txpool.ProgrammingError, match="needs a decision log"):
        txpool.folder(exports.file, "a")
    with txpool.transaction(), pytest.raises(txpool.ConfigurationError, match="name a file with driver = files"):
        txpool.folder(exports.site / "ledger.properties", "a")
    with pytest.raises(txpool.ConfigurationError, match="write folder = /srv/exports"):
        DataSourceSettings.load(name="a", driver="files")
    with pytest.raises(txpool.NotSupportedError, match=r"txpool\.folder\(\) writes there"):
        txpool.connect(exports.file)


def test_a_folder_that_is_not_mounted(exports: Exports) -> None:
    exports.place.rmdir()
    with pytest.raises(txpool.OperationalError, match=r"is not there\. Is it mounted"), txpool.transaction():
        txpool.folder(exports.file, "a")


def test_a_file_system_without_the_flags(exports: Exports, monkeypatch: pytest.MonkeyPatch) -> None:
    """As NFS answers."""

    def invalid(name: str, *_: object) -> None:
        raise OSError(22, "Invalid argument", name)

    monkeypatch.setattr(tree, "_rename", invalid)
    with txpool.transaction(), pytest.raises(txpool.OperationalError, match="RENAME_NOREPLACE and RENAME_EXCHANGE"):
        txpool.folder(exports.file, "a")
    settings = DataSourceSettings.load(exports.file)
    found = [*MANAGER.findings(settings, stale_after=0, timeout=None)]
    assert [each.topic for each in found if each.severity.value == "wrong"] == ["renames"]
    assert exports.left() == []


def test_the_conformance_kit(exports: Exports) -> None:
    run = run_cases(DataSourceSettings.load(exports.file), patience=1)
    failed = [each for each in run.results if each.verdict is Verdict.FAILED]
    assert not failed
    assert len([each for each in run.results if each.verdict is Verdict.PASSED]) >= 12
    assert exports.left() == []


def test_threads_stage_side_by_side(exports: Exports) -> None:
    def job(number: int) -> None:
        with txpool.transaction():
            exports.write(f"n{number}", str(number))

    threads = [threading.Thread(target=job, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert exports.published() == exports.whole(**{f"n{number}": str(number) for number in range(8)})
